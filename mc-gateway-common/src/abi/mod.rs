//! Layout of every eBPF map: keys, values, names and capacities.
//!
//! The programs and the agent only use these types. Every struct is `repr(C)`, has no implicit padding (asserted below)
//! and is valid for any bit pattern, so that values of a pinned map are never misinterpreted. A change of a layout
//! requires a new [`ABI_VERSION`]: the agent rejects pins of other versions.

/// Marks types as plain old data for aya: repr(C), Copy, without padding and valid for any bit pattern, as their
/// modules assert.
#[cfg(feature = "user")]
macro_rules! impl_pod {
    ($($t:ty),* $(,)?) => {$(
        // SAFETY: repr(C), Copy, no padding (asserted in the module) and every bit pattern is valid.
        unsafe impl aya::Pod for $t {}
    )*};
}

pub mod addr;
mod address;
pub mod affinity;
mod delivered;
mod epoch;
pub mod flow_entry;
pub mod kernel_decap;
mod link;
pub mod liveness;
pub mod lookup_cache;
pub mod policy;
pub mod prefix;
pub mod rate_limit;
pub mod sample;
pub mod service;
mod source_mac;
pub mod transit;

pub use addr::Addr;
pub use address::Address;
pub use delivered::DeliveredMac;
pub use epoch::Epoch;
pub use link::LinkAddresses;
pub use prefix::{MAX_PREFIXES, PREFIXES, PrefixKey};
pub use source_mac::{MacMatch, SECRET_SLOTS, SourceMac};

/// Version of all layouts in this module together, stored in [`Config::abi`].
pub const ABI_VERSION: u32 = 9;
/// Name of the section of the eBPF object that holds [`ABI_VERSION`] as a `u32`.
pub const ABI_SECTION: &str = "mc_abi";
/// Name of the directory, below the pin directory, of the map pins of this version. In every version, [`Config`]
/// starts with the version number and is the only value of the map [`CONFIG`].
pub const MAPS_DIR: &str = "maps-v9";

/// Bits in front of the IPv4 address in an [`Addr`]: an IPv4 `/n` is an [`Addr`] prefix of `96 + n`.
pub const V4_PREFIX_BITS: u32 = 96;

/// Slots of the `mc_nh_groups` array. Slot 0 is never used: group 0 means "no group".
pub const MAX_NEXT_HOP_GROUPS: u32 = 8_192;
/// Slots of the `mc_nexthops` array. Slot 0 is never used.
pub const MAX_NEXT_HOPS: u32 = 16_384;
/// Capacity of `mc_peers`.
pub const MAX_PEERS: u32 = 16_384;
/// Slots of the per-CPU `mc_peer_stats` array. Slot 0 is shared by all peers without their own slot.
pub const MAX_PEER_STATS: u32 = 4_096;
/// Maximum number of next hops of a group.
pub const GROUP_NEXT_HOPS: usize = 16;
/// Maximum number of local underlay addresses of a node.
pub const LOCAL_ADDRS: usize = 4;
/// Slots of the per-CPU `mc_drops` array, indexed by [`crate::verdict::DropReason`].
pub const MAX_DROP_REASONS: u32 = 64;
/// Slots of the per-CPU `mc_outcomes` array, indexed by [`crate::verdict::Outcome`].
pub const MAX_OUTCOMES: u32 = 16;
/// Slots of the per-CPU `mc_events` array, indexed by [`crate::verdict::Event`].
pub const MAX_EVENTS: u32 = 32;

/// Name of the group map: array of [`NextHopGroup`].
pub const NEXT_HOP_GROUPS: &str = "mc_nh_groups";
/// Name of the next hop map: array of [`NextHop`].
pub const NEXT_HOPS: &str = "mc_nexthops";
/// Name of the peer map: hash of outer source [`Addr`] to [`Peer`].
pub const PEERS: &str = "mc_peers";
/// Name of the configuration map: array of one [`Config`].
pub const CONFIG: &str = "mc_config";
/// Name of the drop counters: per-CPU array of `u64`, indexed by [`crate::verdict::DropReason`].
pub const DROPS: &str = "mc_drops";
/// Name of the outcome counters: per-CPU array of [`Counter`], indexed by [`crate::verdict::Outcome`].
pub const OUTCOMES: &str = "mc_outcomes";
/// Name of the event counters: per-CPU array of `u64`, indexed by [`crate::verdict::Event`].
pub const EVENTS: &str = "mc_events";
/// Name of the counters by peer: per-CPU array of [`PeerStats`], indexed by [`Peer::stats`] and
/// [`NextHop::stats`].
pub const PEER_STATS: &str = "mc_peer_stats";
/// Name of the epoch map: array of one [`Epoch`]. Programs cache the results of recent
/// prefix, peer and next hop lookups during one epoch; 0 disables the caches. The agent increments the epoch after
/// every change of `mc_prefixes`, `mc_peers`, `mc_nh_groups` or `mc_nexthops`.
pub const EPOCH: &str = "mc_epoch";
/// All maps, in the pinning order of the agent.
pub const ALL_MAPS: [&str; 36] = [
    PREFIXES,
    prefix::PREFIX_LENS,
    prefix::PREFIX_GENERATION,
    NEXT_HOP_GROUPS,
    NEXT_HOPS,
    PEERS,
    CONFIG,
    DROPS,
    OUTCOMES,
    EVENTS,
    PEER_STATS,
    liveness::PROBE_SENT,
    liveness::PROBE_REPLY,
    liveness::PROBE_RTT,
    kernel_decap::KERNEL_DECAP_TESTS,
    EPOCH,
    sample::DROP_SAMPLES,
    sample::SAMPLE_LIMIT,
    rate_limit::ICMP_LIMIT,
    service::SERVICES,
    service::MAGLEV,
    service::BACKENDS,
    service::FLOWS,
    service::REPLIES,
    service::FRAGMENTS,
    transit::TRANSIT_DEVICES,
    policy::POLICY_STATE,
    policy::POLICY_PODS,
    policy::UNSELECTED_PODS,
    policy::IDENTITIES,
    policy::EXPORTERS,
    policy::ADDRESS_CLASSES,
    policy::PEER_RULES,
    policy::POLICY_RULES,
    policy::POLICY_FLOWS,
    policy::RULE_COUNTERS,
];

/// Name of the classifier on the egress of `mc0`.
pub const PROGRAM_TO_REMOTE: &str = "to_remote";
/// Name of the classifier on the ingress of every underlay device.
pub const PROGRAM_FROM_UNDERLAY: &str = "from_underlay";
/// Name of the classifier on the ingress of the agent's tunnel devices.
pub const PROGRAM_FROM_TUNNEL: &str = "from_tunnel";
/// Name of the classifier on the ingress of `mc0`.
pub const PROGRAM_FROM_REMOTE: &str = "from_remote";
/// Name of the classifier on the egress of the Pods' devices.
pub const PROGRAM_TO_POD: &str = "to_pod";
/// Name of the classifier on the ingress of the Pods' devices.
pub const PROGRAM_FROM_POD: &str = "from_pod";

/// [`Prefix::cluster`] and [`Peer::cluster`] of the cluster this node belongs to.
pub const CLUSTER_LOCAL: u64 = 0;

/// [`Prefix::action`]: packets to this prefix are delivered into this node's stack.
pub const ACTION_DELIVER: u32 = 1;
/// [`Prefix::action`]: packets to this prefix are forwarded to a next hop of [`Prefix::group`].
pub const ACTION_FORWARD: u32 = 2;
/// [`Prefix::action`]: Service addresses of this cluster. Packets to a known Service are translated, others delivered
/// into this node's stack for the service proxy.
pub const ACTION_SERVICE: u32 = 3;
/// [`Prefix::action`]: this gateway's `gatewayIP`, the source address of connections to clusters with Antrea gateways.
/// Only packets of Antrea gateways to it are delivered.
pub const ACTION_REPLY: u32 = 4;

/// [`Peer::flags`]: a gateway of another cluster.
pub const PEER_REMOTE_GATEWAY: u32 = 1;
/// [`Peer::flags`]: a gateway of this cluster.
pub const PEER_LOCAL_GATEWAY: u32 = 1 << 1;
/// [`Peer::flags`]: a node of this cluster whose Pods may reach other clusters through this gateway.
pub const PEER_LOCAL_NODE: u32 = 1 << 2;
/// [`Peer::flags`]: an Antrea gateway, in addition to [`PEER_REMOTE_GATEWAY`]. It sends the packets of its clients
/// from its own address, which is replaced by [`Peer::alias`].
pub const PEER_ANTREA: u32 = 1 << 3;
/// [`Peer::flags`]: a peer without a public key that the configuration names. Its inner source MAC address is not
/// checked.
pub const PEER_UNKEYED: u32 = 1 << 4;

/// [`Config::flags`]: this node is a gateway.
pub const CONFIG_GATEWAY: u32 = 1;
/// [`Config::flags`]: packets are encapsulated in VXLAN (RFC 7348) instead of Geneve (RFC 8926).
pub const CONFIG_VXLAN: u32 = 1 << 1;
/// [`Config::flags`]: outer UDP packets carry a checksum if one can be computed.
pub const CONFIG_UDP_CHECKSUM: u32 = 1 << 2;
/// [`Config::flags`]: the outer DSCP is [`Config::tos`] instead of the inner packet's.
pub const CONFIG_DSCP_FIXED: u32 = 1 << 3;
/// [`Config::flags`]: other clusters reach every Service of this cluster instead of the exported ones.
pub const CONFIG_ALL_SERVICES: u32 = 1 << 4;
/// [`Config::flags`], with [`CONFIG_ALL_SERVICES`]: rules for ingress may deny packets to Pods, and the service proxy
/// would hide the sender from them. New flows to ports without a [`service::Service`] are dropped.
pub const CONFIG_IDENTITY_LOST: u32 = 1 << 5;

/// [`Config::flags`]: Pods of exported Services run on this node: their prefixes have [`PREFIX_BACKENDS`].
pub const CONFIG_BACKENDS: u32 = 1 << 8;

/// [`Prefix::flags`]: a Pod of this node that is a backend of an exported Service, so that its packets may belong to a
/// flow to a Service address.
pub const PREFIX_BACKENDS: u32 = 1;
/// [`Prefix::flags`]: packets from nodes of this cluster are delivered into this node's stack, which translates their
/// source to its own address.
pub const PREFIX_HOST_SNAT: u32 = 1 << 1;
/// [`Prefix::flags`]: the alias of the only next hop of the group ([`Peer::alias`]). Packets leave with the next hop's
/// own address as destination.
pub const PREFIX_ALIAS: u32 = 1 << 2;

/// [`Prefix::flags`]: a node of this cluster, on a gateway for Antrea gateways. Packets of this node's stack to it
/// through `mc0`, which are translated replies, are encapsulated.
pub const PREFIX_RETURN_ROUTE: u32 = 1 << 3;

/// [`Prefix::flags`]: a prefix of this node with Pods that policies select, or that may be selected before the agent
/// has seen them. `from_remote` decides on packets to it, and flows from it are recorded.
pub const PREFIX_POLICY: u32 = 1 << 4;

/// [`Prefix::identity`]: no Pod, or a Pod of a cluster without label identities.
pub const IDENTITY_HOST: u32 = 0;
/// [`Prefix::identity`]: a Pod whose label identity this node does not know, the greatest number of 24 bits. Receivers
/// that enforce policies drop its packets where a policy selects Pods by label identity.
pub const IDENTITY_UNKNOWN: u32 = 0x00ff_ffff;

/// Routing of an address prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Prefix {
    /// Cluster that owns the prefix: [`CLUSTER_LOCAL`], or a remote cluster's name hashed with
    /// [`Config::cluster_id_key`].
    pub cluster: u64,
    /// Slot in `mc_nh_groups`; 0 without forwarding. For the Pod CIDR of a Node on a gateway it is the group of that
    /// Node, also if the prefix is looked up for an inner source.
    pub group: u32,
    /// [`ACTION_DELIVER`], [`ACTION_FORWARD`], [`ACTION_SERVICE`] or [`ACTION_REPLY`]; anything else is
    /// treated as no route.
    pub action: u32,
    /// [`PREFIX_BACKENDS`], [`PREFIX_HOST_SNAT`], [`PREFIX_ALIAS`], [`PREFIX_RETURN_ROUTE`],
    /// [`PREFIX_POLICY`].
    pub flags: u32,
    /// Label identity of packets from a prefix of this node, 24 bits: [`IDENTITY_HOST`], the ID of a Pod's labels, or
    /// [`IDENTITY_UNKNOWN`]. 0 for every other prefix.
    pub identity: u32,
}

/// The next hops for a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NextHopGroup {
    /// Stable ID of the group (a hash of its name), by which the agent identifies the slot after a restart.
    pub id: u32,
    /// Used entries of `next_hops`, at most [`GROUP_NEXT_HOPS`].
    pub len: u32,
    /// Slots in `mc_nexthops`.
    pub next_hops: [u32; GROUP_NEXT_HOPS],
}

/// A node that packets can be sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NextHop {
    /// Inner source MAC address of packets to the next hop: [`SourceMac`] as a number.
    pub source_mac: u64,
    /// Link addresses of frames to the next hop, if its neighbor is resolved. Programs use them until
    /// [`Epoch::links_until`].
    pub link: LinkAddresses,
    /// Outer destination address.
    pub addr: Addr,
    /// Outer source address.
    pub local: Addr,
    /// Underlay device of the packets.
    pub ifindex: u32,
    /// Stable id of the next hop (a hash of its name and address), the input of rendezvous hashing.
    pub id: u32,
    /// MTU of the path to the next hop: bytes of the largest inner IP packet.
    pub mtu: u32,
    /// Slot in `mc_peer_stats` for packets to the next hop, the slot of the peer with its address.
    pub stats: u32,
    /// Relative share of flows; 0 drains: selected only if no other next hop is usable.
    pub weight: u32,
    /// Neighbour on that device.
    pub neighbor: Neighbor,
}

impl NextHop {
    /// The same next hop without link addresses, which follow the kernel's neighbor table.
    #[must_use]
    pub const fn without_link(self) -> Self {
        Self {
            link: LinkAddresses::UNKNOWN,
            ..self
        }
    }
}

/// A neighbour on a link in the form of `bpf_redirect_neigh` (`struct bpf_redir_neigh`, Linux 5.10). It saves the
/// kernel's route lookup for every packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Neighbor {
    /// [`Neighbor::V4`], [`Neighbor::V6`], or 0: the kernel looks up the neighbour by its routes.
    pub family: u32,
    /// Its address in network order; an IPv4 address in the first four bytes, followed by zeros.
    pub addr: [u8; 16],
}

impl Neighbor {
    /// `AF_INET`.
    pub const V4: u32 = 2;
    /// `AF_INET6`.
    pub const V6: u32 = 10;
}

/// A node that may send encapsulated packets, by its outer source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Cluster whose prefixes are acceptable inner sources: [`CLUSTER_LOCAL`] or a remote cluster's ID.
    pub cluster: u64,
    /// Inner source MAC address of packets from the peer, by [`SourceMac::slot`]; 0 in the slots of periods that are
    /// not accepted, and for a peer without a public key.
    pub source_macs: [u64; SECRET_SLOTS],
    /// Inner source MAC address of packets to the peer that have no next hop: replies to probes, ICMP errors, returned
    /// packets.
    pub reply_mac: u64,
    /// [`PEER_REMOTE_GATEWAY`], [`PEER_LOCAL_GATEWAY`], [`PEER_LOCAL_NODE`], [`PEER_ANTREA`], [`PEER_UNKEYED`].
    pub flags: u32,
    /// Group of the peer's own Pod prefixes, or 0: inner sources of a [`PEER_LOCAL_NODE`] must be in a prefix of this
    /// group, and without a group it sends no packet as a Pod. For a [`PEER_ANTREA`], without a group: [`Peer::alias`]
    /// in network order.
    pub group: u32,
    /// Slot in `mc_peer_stats` for packets from the peer.
    pub stats: u32,
    /// Always 0.
    pub pad: u32,
}

impl Peer {
    /// The alias of a [`PEER_ANTREA`] inside this cluster: an unused address of the peer's cluster.
    #[inline(always)]
    #[must_use]
    pub const fn alias(&self) -> Address {
        Address::v4(u32::from_le_bytes(self.group.to_ne_bytes()))
    }

    /// The address that a packet from the peer has instead of `mac` if its secret is right, without a backend ID;
    /// `None` if the peer has no secret in that slot.
    #[inline(always)]
    #[must_use]
    pub const fn expected_mac(&self, mac: SourceMac) -> Option<SourceMac> {
        let [m0, m1, m2, m3] = self.source_macs;
        // A comparison instead of an index: the verifier does not follow the bounds of one into a map value.
        let expected = match mac.slot() {
            0 => m0,
            1 => m1,
            2 => m2,
            _ => m3,
        };
        if expected == 0 {
            return None;
        }
        Some(SourceMac::from_bits(expected))
    }

    /// Backend ID in the inner source MAC address of a packet from the peer; `None` without one, or with another
    /// secret.
    #[inline(always)]
    #[must_use]
    pub const fn backend(&self, mac: SourceMac) -> Option<u64> {
        let expected = match self.expected_mac(mac) {
            Some(expected) if mac.is_keyed() => expected,
            _ if self.flags & PEER_UNKEYED != 0 => SourceMac::UNKEYED,
            _ => return None,
        };
        match mac.compare(expected) {
            MacMatch::Backend(id) => Some(id),
            MacMatch::Equal | MacMatch::Different => None,
        }
    }

    /// Value of [`Self::group`] for an alias.
    #[must_use]
    pub const fn group_of_alias(alias: [u8; 4]) -> u32 {
        u32::from_ne_bytes(alias)
    }
}

/// Configuration of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// [`ABI_VERSION`] of the agent that wrote the maps.
    pub abi: u32,
    /// [`CONFIG_GATEWAY`], [`CONFIG_VXLAN`], [`CONFIG_UDP_CHECKSUM`], [`CONFIG_DSCP_FIXED`],
    /// [`CONFIG_BACKENDS`].
    pub flags: u32,
    /// Device for packets to the local stack.
    pub mc0_ifindex: u32,
    /// UDP destination port of encapsulated packets, host order: 6081 for Geneve (RFC 8926), 4789 for VXLAN (RFC 7348).
    pub port: u16,
    /// MAC address of `mc0`: the destination of delivered packets.
    pub mc0_mac: [u8; 6],
    /// DSCP of outer packets in the upper six bits, with [`CONFIG_DSCP_FIXED`].
    pub tos: u8,
    /// TTL or hop limit of outer packets; 0 means 64.
    pub hop_limit: u8,
    /// Secret of this node: inner source MAC address of packets that `from_underlay` leaves to the agent's tunnel
    /// devices. 0 while there is none.
    pub tunnel_mac: [u8; 6],
    /// Milliseconds for which a test packet that came through a tunnel device allows others to take that way.
    pub decap_test_ms: u32,
    /// Consecutive probes without a reply until a next hop is dead; 0 disables liveness.
    pub detect: u32,
    /// Hold-down of a recovered next hop, in milliseconds of replies.
    pub hold_down_ms: u32,
    /// Underlay addresses of this node; unused entries are zero.
    pub local: [Addr; LOCAL_ADDRS],
    /// Random key of the cluster IDs: without it no member can choose a name with the ID of another.
    pub cluster_id_key: [u8; 16],
}

/// Packets and bytes (of the frame as received by the program), counted per CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counter {
    /// Packets; a GSO packet counts once.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// GSO packets among the packets.
    pub gso: u64,
}

/// Packets sent to a peer or admitted from it, counted per CPU, without probes and ICMP errors of the programs. Bytes
/// are those of the frame on the underlay, including the outer headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerStats {
    /// Packets sent; a GSO packet counts once.
    pub sent_packets: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Bytes of these.
    pub received_bytes: u64,
}

// Sum of the fields' sizes equals the struct's size: no padding anywhere.
const _: () = assert!(size_of::<Prefix>() == 24 && align_of::<Prefix>() == 8);
const _: () =
    assert!(size_of::<NextHopGroup>() == 8 + 4 * GROUP_NEXT_HOPS && align_of::<NextHopGroup>() == 4);
const _: () = assert!(size_of::<NextHop>() == 96 && align_of::<NextHop>() == 8);
const _: () = assert!(size_of::<Peer>() == 32 + 8 * SECRET_SLOTS && align_of::<Peer>() == 8);
const _: () = assert!(size_of::<Config>() == 56 + 16 * LOCAL_ADDRS && align_of::<Config>() == 4);
const _: () = assert!(size_of::<Counter>() == 24 && align_of::<Counter>() == 8);
const _: () = assert!(size_of::<PeerStats>() == 32 && align_of::<PeerStats>() == 8);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]
    use crate::abi::{
        Config, Counter, Epoch, NextHop, NextHopGroup, Peer, PeerStats, Prefix,
        liveness::{ProbeReply, ProbeRtt, ProbeSent},
        sample::SampleLimiter,
    };

    impl_pod!(
        Prefix,
        NextHopGroup,
        NextHop,
        Peer,
        Config,
        Counter,
        Epoch,
        PeerStats,
        ProbeSent,
        ProbeReply,
        ProbeRtt,
        SampleLimiter
    );
}
