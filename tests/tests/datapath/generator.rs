//! Generated packets and their worlds.
//!
//! Packets are valid, mutated or truncated, with options, extension headers and fragments inside and outside, tunnel
//! headers with options and odd flags, probes, ICMP errors, nested tunnels and Services, in every combination of
//! families and formats. The same seed generates the same packets.

#![expect(clippy::cast_possible_truncation, reason = "random bits are cut to size")]

use std::{collections::BTreeMap, net::IpAddr};

use mc_gateway_common::{
    abi::{
        CLUSTER_LOCAL, IDENTITY_UNKNOWN, PREFIX_POLICY, SourceMac,
        service::{FlowKey, Reply, ReplyKey},
    },
    maps::MemoryMaps,
    packet::probe::{ETHERTYPE, Kind, Probe},
};
use mc_tests::rng::Rng;

use crate::{
    Program,
    cases::{self, from_remote, kernel_decap, services},
    fixture::{
        self, ALIAS_SOUTH, GATEWAY_INSIDE, GATEWAY_OUTSIDE, MC0_MAC, NODE, NORTH_GATEWAY, OTHER_GATEWAY,
        POD_HERE, POD_NODE, POD_NORTH, POD_WEST, SERVICE_HERE, SERVICE_SOUTH, SERVICE_WEST, SOUTH_GATEWAY,
        STRANGER, Shape, WEST_GATEWAY,
    },
    packets::{Ip, Tunnel, checksum, ethernet, tcp_syn, udp, with_checksum},
};

const PODS: [[u8; 4]; 13] = [
    POD_HERE,
    POD_NODE,
    POD_WEST,
    POD_NORTH,
    SERVICE_HERE,
    SERVICE_WEST,
    [127, 0, 0, 1],
    [224, 0, 0, 5],
    [198, 51, 100, 7],
    SERVICE_SOUTH,
    ALIAS_SOUTH,
    SOUTH_GATEWAY,
    GATEWAY_OUTSIDE,
];

/// Number of client ports: few, so that flows have several packets.
const CLIENTS: usize = 256;
const FIRST_CLIENT: u16 = 40_000;
/// Client ports of flows from before.
const KNOWN_CLIENTS: [u16; 12] = {
    let mut ports = [FIRST_CLIENT; 12];
    let mut at = 0;
    while at < ports.len() {
        ports[at] += at as u16;
        at += 1;
    }
    ports
};
/// Ports of the Services in `cases/services.rs`.
const SERVICE_PORTS: [u16; 7] = [80, 80, 81, 53, 5_000, 7, 443];
const SCTP: u8 = 132;
/// Port of the Services' Pods.
const POD_PORT: u16 = 8_080;

/// Paths of packets: outer source and destination, inner source and destination.
const ROUTES: [[[u8; 4]; 4]; 10] = [
    [NODE, GATEWAY_INSIDE, POD_NODE, POD_WEST],
    [WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_NODE],
    [WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_HERE],
    [NORTH_GATEWAY, GATEWAY_OUTSIDE, POD_NORTH, SERVICE_HERE],
    [GATEWAY_INSIDE, NODE, POD_WEST, POD_NODE],
    // South's Antrea gateway: its clients, replies to them, requests to it, and its replies.
    [SOUTH_GATEWAY, GATEWAY_OUTSIDE, SOUTH_GATEWAY, POD_NODE],
    [SOUTH_GATEWAY, GATEWAY_OUTSIDE, SOUTH_GATEWAY, POD_HERE],
    [NODE, GATEWAY_INSIDE, POD_NODE, ALIAS_SOUTH],
    [NODE, GATEWAY_INSIDE, POD_NODE, SERVICE_SOUTH],
    [SOUTH_GATEWAY, GATEWAY_OUTSIDE, SERVICE_SOUTH, GATEWAY_OUTSIDE],
];
const UNDERLAY: [[u8; 4]; 8] = [
    NODE,
    GATEWAY_INSIDE,
    GATEWAY_OUTSIDE,
    OTHER_GATEWAY,
    WEST_GATEWAY,
    NORTH_GATEWAY,
    SOUTH_GATEWAY,
    STRANGER,
];

/// The tables that packets run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// A gateway, with an Antrea gateway among its peers.
    Gateway,
    /// A regular node.
    Node,
    /// A gateway with Services.
    ServiceGateway,
    /// A gateway with several backends of a port, on itself and on the node, and with flows from before.
    SeveralBackends,
    /// [`Self::SeveralBackends`] with past tables, and packets that the node returns.
    PastTables,
    /// A gateway whose Services have no ready backend, and with flows from before.
    NoReadyBackend,
    /// A regular node with Pods behind Services.
    ServiceNode,
}

impl World {
    pub(crate) const ALL: [Self; 7] = [
        Self::Gateway,
        Self::Node,
        Self::ServiceGateway,
        Self::SeveralBackends,
        Self::PastTables,
        Self::NoReadyBackend,
        Self::ServiceNode,
    ];

    pub(crate) fn tables(self, shape: Shape) -> MemoryMaps {
        let mut tables = match self {
            Self::Gateway => shape.tables(fixture::antrea()),
            Self::Node => shape.tables(fixture::node()),
            Self::ServiceGateway => services::world(shape, true),
            Self::SeveralBackends => services::worlds::several_backends(shape),
            Self::PastTables => services::worlds::past_tables(shape),
            Self::NoReadyBackend => services::worlds::without_ready_backend(shape),
            Self::ServiceNode => services::world(shape, false),
        };
        for (slot, next_hop) in &mut tables.next_hops {
            next_hop.mtu = if slot % 2 == 0 { 1_450 } else { 1_300 };
        }
        if self.is_gateway()
            && let Some(config) = &mut tables.config
        {
            config.tunnel_mac = kernel_decap::SECRET;
        }
        // A label identity of its own for each prefix of this node.
        let own = tables
            .prefixes
            .values_mut()
            .filter(|prefix| prefix.cluster == CLUSTER_LOCAL);
        for (number, prefix) in (1..).zip(own) {
            prefix.identity = IDENTITY_UNKNOWN / number;
            prefix.flags |= PREFIX_POLICY * (number & 1);
        }
        if requires_secrets(shape) {
            tables = fixture::keyed(tables);
        }
        tables
    }

    /// The flow map before each batch.
    pub(crate) fn known_flows(self, shape: Shape) -> BTreeMap<FlowKey, u64> {
        match self {
            Self::SeveralBackends | Self::NoReadyBackend => {
                services::worlds::known_flows(shape, &KNOWN_CLIENTS)
            }
            Self::PastTables => services::worlds::unconfirmed_flows(shape, &KNOWN_CLIENTS),
            Self::Gateway | Self::Node | Self::ServiceGateway | Self::ServiceNode => BTreeMap::new(),
        }
    }

    /// The connections of this node's Pods before each batch.
    pub(crate) fn known_replies(self, shape: Shape) -> BTreeMap<ReplyKey, Reply> {
        match self {
            Self::PastTables => services::worlds::connections_here(shape, &KNOWN_CLIENTS),
            Self::ServiceNode => services::worlds::connections_on_node(shape, &KNOWN_CLIENTS),
            Self::Gateway
            | Self::Node
            | Self::ServiceGateway
            | Self::SeveralBackends
            | Self::NoReadyBackend => BTreeMap::new(),
        }
    }

    fn has_services(self) -> bool {
        !matches!(self, Self::Gateway | Self::Node)
    }

    fn is_gateway(self) -> bool {
        !matches!(self, Self::Node | Self::ServiceNode)
    }
}

/// Whether packets of the shape need the secret of their peer: every combination of families has a format with it.
fn requires_secrets(shape: Shape) -> bool {
    shape.vxlan != shape.inner_v6
}

/// Generates packets of one shape for one world.
pub(crate) struct Generator {
    random: Rng,
    shape: Shape,
    world: World,
    /// Some packets are probes.
    pub(crate) probes: bool,
    /// Some packets are on `mc0`, where policies decide on them.
    pub(crate) policies: bool,
}

/// A generated frame.
pub(crate) struct Generated {
    pub(crate) program: Program,
    pub(crate) frame: Vec<u8>,
    /// Whether all its checksums are valid.
    pub(crate) valid_checksums: bool,
}

impl Generator {
    pub(crate) fn new(seed: u64, shape: Shape, world: World) -> Self {
        Self {
            random: Rng::new(seed),
            shape,
            world,
            probes: true,
            policies: false,
        }
    }

    pub(crate) fn packet(&mut self) -> Generated {
        let program = if self.policies && self.random.one_in(2) {
            *self
                .random
                .pick(&[Program::FromRemote, Program::ToPod, Program::FromPod])
        } else if self.random.one_in(3) {
            Program::ToRemote
        } else if self.random.one_in(50) {
            Program::FromTunnel
        } else {
            Program::FromUnderlay
        };
        let mut frame = match program {
            Program::FromRemote => self.packet_on_mc0(),
            Program::ToPod | Program::FromPod => self.packet_of_pod(program),
            Program::FromTunnel => self.packet_on_tunnel(),
            Program::ToRemote if self.world.has_services() && self.random.one_in(2) => self.reply().frame(),
            Program::ToRemote => {
                let dst = *self
                    .random
                    .pick(&[POD_WEST, POD_WEST, ALIAS_SOUTH, SERVICE_SOUTH]);
                self.inner(self.own_pod(), dst).frame()
            }
            Program::FromUnderlay if self.world.has_services() && self.random.one_in(2) => {
                self.request().frame()
            }
            Program::FromUnderlay => self.tunnel().frame(),
        };
        let mut valid_checksums = true;
        if self.random.one_in(2) {
            valid_checksums = false;
            for _ in 0..=self.random.index(3) {
                let reach = if self.random.one_in(2) {
                    frame.len().min(110)
                } else {
                    frame.len()
                };
                let at = self.random.index(reach);
                frame[at] ^= 1 << self.random.index(8);
            }
        }
        if self.random.one_in(8) {
            valid_checksums = false;
            let len = 14 + self.random.index(frame.len());
            frame.truncate(len);
        }
        if self.random.one_in(16) {
            let len = self.random.index(40);
            frame.extend(self.random.bytes(len));
            valid_checksums = false;
        }
        Generated {
            program,
            frame,
            valid_checksums,
        }
    }

    /// A Pod of this node: it may not send as another node's.
    fn own_pod(&self) -> [u8; 4] {
        if self.world.is_gateway() {
            POD_HERE
        } else {
            POD_NODE
        }
    }

    /// A client's packet to a Service: from west's gateway, or from the own gateway with a selected backend.
    fn request(&mut self) -> Tunnel {
        let client = (POD_WEST, self.client_port());
        let service = (SERVICE_HERE, *self.random.pick(&SERVICE_PORTS));
        let inner = self.transport(client, service);
        let returned = self.world == World::PastTables && self.random.one_in(2);
        let (src, dst) = if returned {
            (NODE, GATEWAY_INSIDE)
        } else if self.world.is_gateway() {
            (WEST_GATEWAY, GATEWAY_OUTSIDE)
        } else {
            (GATEWAY_INSIDE, NODE)
        };
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), &inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel.udp_checksum = self.random.one_in(3);
        let mac = self.source_mac(src);
        tunnel.inner_src = mac.bytes();
        if (self.world == World::ServiceNode || returned) && !self.random.one_in(8) {
            let backend = *self.random.pick(&services::BACKENDS);
            let mac = mac.with_backend(backend);
            let marked = if returned {
                !self.random.one_in(8)
            } else {
                self.random.one_in(3)
            };
            tunnel.inner_src = if marked { mac.may_return() } else { mac }.bytes();
        }
        tunnel
    }

    /// The inner source MAC address of a packet from a peer, mostly with its secret where the shape requires it.
    fn source_mac(&mut self, from: [u8; 4]) -> SourceMac {
        if !requires_secrets(self.shape) || self.random.one_in(16) {
            return SourceMac::UNKEYED;
        }
        let from = if self.random.one_in(16) {
            *self.random.pick(&UNDERLAY)
        } else {
            from
        };
        let period = fixture::PERIOD + self.random.index(4) as u64 - 1;
        fixture::received_mac(from, period)
    }

    fn client_port(&mut self) -> u16 {
        FIRST_CLIENT + self.random.index(CLIENTS) as u16
    }

    /// A Pod's reply to a client of its Service.
    fn reply(&mut self) -> Ip {
        let pod = self.own_pod();
        let client = (POD_WEST, self.client_port());
        self.transport((pod, POD_PORT), client)
    }

    /// TCP, UDP, SCTP, a fragment, or an ICMP error about the reverse flow.
    fn transport(&mut self, src: ([u8; 4], u16), dst: ([u8; 4], u16)) -> Ip {
        let (from, to) = (self.shape.inner(src.0), self.shape.inner(dst.0));
        let proto = *self.random.pick(&[6, 6, 6, 17, 17, 17, SCTP]);
        if self.random.one_in(8) {
            let (proto, message) = self.port_unreachable((to, dst.1), (from, src.1), proto);
            return Ip::new(from, to, proto, message);
        }
        let len = self.random.index(64);
        let payload = self.random.bytes(len);
        let message = if proto == 6 {
            let mut segment = tcp_syn(src.1, dst.1);
            segment[13] = *self.random.pick(&[0x02, 0x10, 0x11, 0x12]);
            segment.extend(payload);
            with_checksum(from, to, 6, segment, 16)
        } else if proto == SCTP {
            // The common header of RFC 9260 section 3.1: ports, verification tag, checksum.
            [
                &src.1.to_be_bytes()[..],
                &dst.1.to_be_bytes(),
                &[0x5a; 8],
                &payload,
            ]
            .concat()
        } else {
            with_checksum(from, to, 17, udp(src.1, dst.1, &payload), 6)
        };
        let mut ip = Ip::new(from, to, proto, message);
        if self.random.one_in(8) {
            self.add_fragment_or_options(&mut ip);
        }
        ip
    }

    /// An ICMP error from `to` to `from` that quotes a packet in the opposite direction.
    fn port_unreachable(&mut self, from: (IpAddr, u16), to: (IpAddr, u16), proto: u8) -> (u8, Vec<u8>) {
        let quoted = if proto == 6 {
            tcp_syn(from.1, to.1)
        } else {
            let payload = self.random.bytes(8);
            udp(from.1, to.1, &payload)
        };
        let quoted = Ip::new(from.0, to.0, proto, quoted).bytes();
        let mut message = vec![if from.0.is_ipv4() { 3 } else { 1 }, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&quoted[..]);
        if from.0.is_ipv6() {
            return (58, with_checksum(to.0, from.0, 58, message, 2));
        }
        let check = checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        (1, message)
    }

    fn tunnel(&mut self) -> Tunnel {
        let [mut from, mut to, src, dst] = *self.random.pick(&ROUTES);
        if self.random.one_in(12) {
            from = *self.random.pick(&UNDERLAY);
        }
        if self.random.one_in(12) {
            to = *self.random.pick(&UNDERLAY);
        }
        let inner = self.inner(src, dst);
        let mut tunnel = Tunnel::new(self.shape.outer(from), self.shape.outer(to), &inner);
        tunnel.inner_src = self.source_mac(from).bytes();
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel.src_port = 0xc000 | self.random.next_u64() as u16;
        tunnel.udp_checksum = self.random.one_in(3);
        tunnel.vni = (self.random.next_u64() & 0x00ff_ffff) as u32;
        tunnel.ttl = *self.random.pick(&[0, 1, 2, 64, 255]);
        tunnel.tos = *self.random.pick(&[0, 1, 2, 3, 0xb8, 0xbb]);
        if self.random.one_in(16) {
            tunnel.mac = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        }
        if self.random.one_in(32) {
            tunnel = kernel_decap::readdressed(&tunnel);
        }
        if self.random.one_in(32) {
            tunnel.dst_port = 4790;
        }
        if self.probes && self.random.one_in(16) {
            self.probe(&mut tunnel);
        }
        if self.random.one_in(16) {
            self.odd_headers(&mut tunnel);
        }
        tunnel
    }

    /// A packet on `mc0` to a Pod or any other address, of a sender with a known, forged or unknown identity.
    fn packet_on_mc0(&mut self) -> Vec<u8> {
        let pods = [POD_NODE, POD_NODE, [10, 1, 0, 6], [10, 1, 0, 7], POD_WEST];
        let dst = (
            *self.random.pick(&pods),
            *self.random.pick(&[53, 54, 80, 81, 443, 8_080, 8_100]),
        );
        let src = (
            *self.random.pick(&[POD_WEST, [10, 2, 9, 5], STRANGER]),
            self.client_port(),
        );
        let inner = self.transport(src, dst);
        let identities = [
            from_remote::CLIENT,
            from_remote::OTHER,
            from_remote::FOREIGN,
            0,
            IDENTITY_UNKNOWN,
            5,
        ];
        let identity = *self.random.pick(&identities);
        let mac = cases::delivered_mac(identity, !self.random.one_in(8));
        ethernet(MC0_MAC, mac, inner.ethertype(), &inner.bytes())
    }

    /// A packet on the device of a Pod, with an address of the Pod or any other one.
    fn packet_of_pod(&mut self, program: Program) -> Vec<u8> {
        let pods = [
            POD_NODE,
            POD_NODE,
            [10, 1, 0, 6],
            [10, 1, 0, 7],
            [10, 1, 0, 8],
            [10, 1, 0, 99],
        ];
        let peers = [
            from_remote::PEER_POD,
            from_remote::SERVICE,
            [10, 2, 9, 5],
            STRANGER,
        ];
        let (pod, peer) = (*self.random.pick(&pods), *self.random.pick(&peers));
        let (src, dst) = if program == Program::ToPod {
            (peer, pod)
        } else {
            (pod, peer)
        };
        let port = *self.random.pick(&[53, 54, 55, 80, 81, 82, 82, 443, 8_080]);
        let src = (src, self.client_port());
        let inner = self.transport(src, (dst, port));
        ethernet(MC0_MAC, [2, 0, 0, 0, 0, 1], inner.ethertype(), &inner.bytes())
    }

    /// A packet on the tunnel device, mostly with the secret.
    fn packet_on_tunnel(&mut self) -> Vec<u8> {
        let [_, _, src, dst] = *self.random.pick(&ROUTES);
        let inner = self.inner(src, dst);
        let source = if self.random.one_in(4) {
            MC0_MAC
        } else {
            kernel_decap::SECRET
        };
        ethernet(MC0_MAC, source, inner.ethertype(), &inner.bytes())
    }

    /// A probe of any kind instead of a packet. Requests are reflected; replies are dropped, because the tables have
    /// no sent probe.
    fn probe(&mut self, tunnel: &mut Tunnel) {
        let probe = Probe {
            kind: *self.random.pick(&[
                Kind::Request,
                Kind::Request,
                Kind::Reply,
                Kind::SizeRequest,
                Kind::SizeReply,
            ]),
            size: self.random.next_u64() as u16,
            slot: self.random.next_u64() as u32 % 8,
            id: *self.random.pick(&[0, 1_007, 2_007, 3_007]),
            sequence: self.random.next_u64() as u32,
            sent_at: self.random.next_u64() >> 24,
        };
        tunnel.inner = probe.bytes().to_vec();
        let padding = *self.random.pick(&[0, 0, 1, 40, 1_300]);
        tunnel.inner.resize(tunnel.inner.len() + padding, 0);
        tunnel.inner_type = ETHERTYPE;
    }

    /// Outer options or extension headers, outer fragments, tunnel headers with options, random flags.
    fn odd_headers(&mut self, tunnel: &mut Tunnel) {
        match self.random.index(6) {
            0 if self.shape.outer_v6 => {
                let mut header = vec![17, 0, 0, 0, 0, 0, 0, 0];
                header[3] = *self.random.pick(&[0, 1, 8]);
                tunnel.outer_options = header;
                tunnel.outer_next = *self.random.pick(&[0, 43, 44, 60]);
            }
            0 => tunnel.outer_options = vec![1; 4 * (1 + self.random.index(10))],
            1 => tunnel.frags = self.random.next_u64() as u16,
            2 => {
                let words = 1 + self.random.index(4);
                tunnel.geneve[0] |= words as u8;
                tunnel.geneve_options = self.random.bytes(4 * words);
            }
            3 => tunnel.geneve = [self.random.next_u64() as u8 & 0xc0, self.random.next_u64() as u8],
            4 => tunnel.geneve_type = *self.random.pick(&[0x0800, 0x86dd, 0x6559]),
            _ => tunnel.inner_type = *self.random.pick(&[0x0806, 0x8100, 0x0800, 0x86dd, 0]),
        }
    }

    fn inner(&mut self, mut src: [u8; 4], mut dst: [u8; 4]) -> Ip {
        if self.random.one_in(10) {
            src = *self.random.pick(&PODS);
        }
        if self.random.one_in(10) {
            dst = *self.random.pick(&PODS);
        }
        let (from, to) = (self.shape.inner(src), self.shape.inner(dst));
        let len = match self.random.index(3) {
            0 => self.random.index(64),
            1 => 1_200 + self.random.index(300),
            _ => self.random.index(1_600),
        };
        let (proto, payload) = match self.random.index(8) {
            0..=2 => (6, with_checksum(from, to, 6, self.tcp(), 16)),
            3 | 4 => {
                let payload = self.random.bytes(len);
                let ports = (self.random.next_u64() as u16, self.random.next_u64() as u16);
                (
                    17,
                    with_checksum(from, to, 17, udp(ports.0, ports.1, &payload), 6),
                )
            }
            5 => self.icmp_error(from, to),
            6 => (17, self.nested()),
            // Noise of a protocol without a verifiable checksum.
            _ => (self.random.next_u64() as u8 | 0x80, self.random.bytes(len)),
        };
        let mut ip = Ip::new(from, to, proto, payload);
        ip.tos = *self.random.pick(&[0, 1, 2, 3, 0xb8]);
        ip.ttl = self.random.next_u64() as u8;
        if self.random.one_in(6) {
            self.add_fragment_or_options(&mut ip);
        }
        ip
    }

    /// A TCP segment with random options.
    fn tcp(&mut self) -> Vec<u8> {
        let mut options = Vec::new();
        while self.random.index(4) != 0 && options.len() < 32 {
            match self.random.index(5) {
                0 => options.extend([2, 4, 5, 180]),
                1 => options.push(1),
                2 => options.extend([3, 3, 7]),
                3 => options.extend([4, 2]),
                _ => options.extend([self.random.next_u64() as u8, self.random.next_u64() as u8 % 8]),
            }
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let mut tcp = self.random.bytes(20);
        tcp[12] = u8::try_from(5 + options.len() / 4).expect("at most 60 bytes") << 4;
        tcp[13] = *self.random.pick(&[0x02, 0x12, 0x10, 0x18]);
        tcp.extend(options);
        let len = if self.random.one_in(2) {
            0
        } else {
            self.random.index(1_500)
        };
        tcp.extend(self.random.bytes(len));
        tcp
    }

    fn icmp_error(&mut self, from: IpAddr, to: IpAddr) -> (u8, Vec<u8>) {
        let quoted = Ip::new(
            to,
            from,
            *self.random.pick(&[6, 17, 1, 58, 44]),
            self.random.bytes(40),
        )
        .bytes();
        let mut message = vec![*self.random.pick(&[1, 2, 3, 8, 11, 128]), 4, 0, 0, 0, 0, 5, 0];
        message.extend(&quoted[..]);
        if from.is_ipv6() {
            return (58, with_checksum(from, to, 58, message, 2));
        }
        let check = checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        (1, message)
    }

    /// A nested tunnel.
    fn nested(&mut self) -> Vec<u8> {
        let innermost = Ip::new(
            self.shape.inner(POD_WEST),
            self.shape.inner(POD_HERE),
            17,
            udp(1, 2, b"nested"),
        );
        let mut tunnel = Tunnel::new(self.shape.outer(STRANGER), self.shape.outer(NODE), &innermost);
        tunnel.dst_port = self.shape.port();
        tunnel.vxlan = self.shape.vxlan;
        let frame = tunnel.frame();
        frame[14 + if self.shape.outer_v6 { 40 } else { 20 }..].to_vec()
    }

    /// Adds fragmentation, IPv4 options or IPv6 extension headers.
    fn add_fragment_or_options(&mut self, ip: &mut Ip) {
        if !self.shape.inner_v6 {
            match self.random.index(3) {
                0 => ip.frags = 0x2000,
                1 => ip.frags = self.random.next_u64() as u16,
                _ => ip.options = vec![1; 4 * (1 + self.random.index(10))],
            }
            return;
        }
        let mut next = ip.proto;
        let mut headers: Vec<u8> = Vec::new();
        for _ in 0..=self.random.index(7) {
            let kind = *self.random.pick(&[0, 43, 60, 51, 44]);
            let mut header = vec![next, 0, 0, 0, 0, 0, 0, 0];
            match kind {
                44 => header[3] = *self.random.pick(&[0, 1, 9]),
                51 => header[1] = 0,
                _ if self.random.one_in(3) => {
                    header[1] = 1;
                    header.extend([0; 8]);
                }
                _ => {}
            }
            header.extend(&headers);
            headers = header;
            next = kind;
        }
        ip.proto = next;
        ip.options = headers;
    }
}
