//! Attack vectors as data.

use std::net::{IpAddr, SocketAddr};

use mc_gateway_common::verdict::DropReason;
use mc_test_kit::datapath::packets::{Ip, OUTER_DST, Tunnel, udp, with_checksum};
use mc_tests::topology::{Family, Place};

use crate::bed::Bed;

/// Packets with this text must not arrive.
pub(crate) const ATTACK: &[u8] = b"mc-attack-packet";
/// Packets with this text must arrive.
pub(crate) const CONTROL: &[u8] = b"mc-control-packet";
/// UDP port on which every Pod listens.
pub(crate) const POD_PORT: u16 = 9000;
/// Source port of datagrams in frames.
pub(crate) const CLIENT_PORT: u16 = 7000;

/// Place of an attacker, and the device of its first victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    /// A host in the network between the clusters, to west's gateway.
    LanToGateway,
    /// A host in west's network, to west's regular node.
    LanToNode,
    /// East's Pod, to its node.
    Pod,
    /// West's regular node, to its gateway.
    Node,
    /// The gateway of the member `north`, to west's gateway.
    Member,
}

impl Entry {
    /// Every place.
    pub(crate) const ALL: [Self; 5] = [
        Self::LanToGateway,
        Self::LanToNode,
        Self::Pod,
        Self::Node,
        Self::Member,
    ];

    /// Name in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::LanToGateway => "LAN host to gateway",
            Self::LanToNode => "LAN host to node",
            Self::Pod => "Pod",
            Self::Node => "compromised node",
            Self::Member => "compromised member",
        }
    }

    /// First node that receives the packets, with the device.
    pub(crate) const fn victim(self) -> (Place, &'static str) {
        match self {
            Self::LanToGateway | Self::Member => (Place::GatewayWest, "eth1"),
            Self::LanToNode => (Place::NodeWest, "eth0"),
            Self::Pod => (Place::NodeEast, "pod0"),
            Self::Node => (Place::GatewayWest, "eth0"),
        }
    }

    /// Where a genuine packet arrives.
    pub(crate) const fn destination(self) -> Place {
        match self {
            Self::Node => Place::PodEast,
            _ => Place::PodWest,
        }
    }
}

/// Right answer to a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The programs drop and count it.
    Drop(DropReason),
    /// The programs deliver it to `mc0`, and a policy drops and counts it there.
    Policed(DropReason),
    /// A rule of the agent's nftables table with this comment drops and counts it.
    Rule(&'static str),
    /// It passes the programs untouched: a listener of the tunnel port at the victim receives it.
    Listener,
    /// It passes the programs untouched, and the kernel's stack drops it.
    Stack,
    /// It arrives, although it should not: `docs/known-gaps.md` names the reason. Not counted as a vector.
    Gap,
}

/// Form of a packet.
#[derive(Clone, Debug)]
pub(crate) enum Send {
    /// Frames that are one packet together, from the place of the attacker. [`OUTER_DST`] as destination stands for
    /// the victim's MAC address.
    Frames(Vec<Vec<u8>>),
    /// A datagram of a socket.
    Datagram {
        /// Namespace of the socket.
        from: Place,
        /// Address and port.
        to: SocketAddr,
        /// Payload.
        payload: Vec<u8>,
    },
}

/// One packet that an attacker sends.
#[derive(Clone, Debug)]
pub(crate) struct Vector {
    /// Unique within its place.
    pub(crate) name: String,
    /// Place of the attacker.
    pub(crate) entry: Entry,
    /// The packet.
    pub(crate) send: Send,
    /// Node that must drop it.
    pub(crate) at: Place,
    /// Right answer.
    pub(crate) expected: Expected,
}

/// Collects the vectors of one place and one family of inner packets.
#[derive(Debug)]
pub(crate) struct Generator<'a> {
    /// Addresses.
    pub(crate) bed: &'a Bed,
    /// Place of the attacker.
    pub(crate) entry: Entry,
    /// Family of inner packets.
    pub(crate) inner: Family,
    /// The vectors.
    pub(crate) vectors: Vec<Vector>,
}

impl<'a> Generator<'a> {
    /// Without vectors.
    pub(crate) fn new(bed: &'a Bed, entry: Entry, inner: Family) -> Self {
        Self {
            bed,
            entry,
            inner,
            vectors: Vec::new(),
        }
    }

    /// Source and destination of a genuine inner packet.
    pub(crate) fn ends(&self) -> (IpAddr, IpAddr) {
        self.bed.ends(self.entry, self.inner)
    }

    /// A genuine packet of the peer as which the attacker sends.
    pub(crate) fn genuine(&self) -> Tunnel {
        let (src, dst) = self.ends();
        self.between(src, dst)
    }

    /// A genuine packet but for the inner source.
    pub(crate) fn claiming(&self, src: IpAddr) -> Tunnel {
        self.between(src, self.ends().1)
    }

    /// A genuine packet but for the inner destination.
    pub(crate) fn to(&self, dst: IpAddr) -> Tunnel {
        self.between(self.ends().0, dst)
    }

    /// A genuine packet but for the inner addresses.
    pub(crate) fn between(&self, src: IpAddr, dst: IpAddr) -> Tunnel {
        self.bed
            .encapsulated(self.entry, &datagram(src, dst, POD_PORT, ATTACK))
    }

    /// A genuine packet but for the inner packet.
    pub(crate) fn carrying(&self, inner: &Ip) -> Tunnel {
        self.bed.encapsulated(self.entry, inner)
    }

    /// Adds a vector that the programs of the victim drop. With another outer source it has that one's secret.
    pub(crate) fn drop(&mut self, name: impl Into<String>, tunnel: &Tunnel, reason: DropReason) {
        let (src, dst) = self.bed.outer_ends(self.entry);
        let mut tunnel = tunnel.clone();
        if tunnel.inner_src == self.bed.secret(src, dst).bytes() {
            tunnel.inner_src = self.bed.secret(tunnel.src, tunnel.dst).bytes();
        }
        self.frame(name, tunnel.frame(), Expected::Drop(reason));
    }

    /// Adds a vector of a genuine packet with another inner source MAC address, which the victim drops.
    pub(crate) fn without_secret(&mut self, name: impl Into<String>, tunnel: &Tunnel) {
        self.frame(name, tunnel.frame(), Expected::Drop(DropReason::PeerSecret));
    }

    /// Adds a vector of one frame.
    pub(crate) fn frame(&mut self, name: impl Into<String>, frame: Vec<u8>, expected: Expected) {
        let at = self.entry.victim().0;
        self.add(name, Send::Frames(vec![frame]), at, expected);
    }

    /// Adds a vector.
    pub(crate) fn add(&mut self, name: impl Into<String>, send: Send, at: Place, expected: Expected) {
        let family = match self.inner {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        self.vectors.push(Vector {
            name: format!("{} ({family})", name.into()),
            entry: self.entry,
            send,
            at,
            expected,
        });
    }
}

/// A datagram with a text.
pub(crate) fn datagram(src: IpAddr, dst: IpAddr, port: u16, text: &[u8]) -> Ip {
    let datagram = with_checksum(src, dst, 17, udp(CLIENT_PORT, port, text), 6);
    Ip::new(src, dst, 17, datagram)
}

/// Name of the IPv6 form of the peer's IPv4 address.
pub(crate) const IPV4_MAPPED: &str = "IPv4-mapped";

/// Addresses that no host has, with a name. They are the source of nothing and the destination of nothing.
pub(crate) fn martians(family: Family, peer: IpAddr) -> Vec<(&'static str, IpAddr)> {
    let texts: &[(&str, &str)] = match family {
        Family::V4 => &[
            ("unspecified", "0.0.0.0"),
            ("this network", "0.1.2.3"),
            ("loopback", "127.0.0.1"),
            ("link-local", "169.254.1.1"),
            ("multicast", "224.0.0.1"),
            ("reserved", "240.0.0.1"),
            ("broadcast", "255.255.255.255"),
            ("documentation", "198.51.100.9"),
        ],
        Family::V6 => &[
            ("unspecified", "::"),
            ("loopback", "::1"),
            ("link-local", "fe80::1"),
            ("multicast", "ff02::1"),
            ("documentation", "2001:db8::9"),
        ],
    };
    let mut all: Vec<_> = texts
        .iter()
        .map(|(name, text)| (*name, text.parse().expect("an address")))
        .collect();
    if let (Family::V6, IpAddr::V4(v4)) = (family, peer) {
        let [a, b, c, d] = v4.octets();
        let words = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
        all.push((IPV4_MAPPED, v4.to_ipv6_mapped().into()));
        all.push(("IPv4-compatible", [0, 0, 0, 0, 0, 0, words[0], words[1]].into()));
        all.push(("NAT64", [0x64, 0xff9b, 0, 0, 0, 0, words[0], words[1]].into()));
        all.push(("6to4", [0x2002, words[0], words[1], 0, 0, 0, 0, 1].into()));
    }
    all
}

/// Whether a frame has the placeholder of the victim's MAC address.
pub(crate) fn is_addressed_later(frame: &[u8]) -> bool {
    frame.starts_with(&OUTER_DST)
}
