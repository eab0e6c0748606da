//! Layout of every eBPF map: keys, values, names and capacities.
//!
//! Both sides of a map (the programs and the agent) use these types and no others. Every struct is
//! `repr(C)`, has no implicit padding (asserted below) and is valid for any bit pattern, so that bytes
//! read back from a pinned map can never be reinterpreted. A change of any of them needs a new
//! [`ABI_VERSION`]: the agent refuses pins of another version instead of guessing.

pub mod liveness;
pub mod rate_limit;
pub mod sample;
pub mod service;

/// Version of all layouts in this module together, stored in [`Config::abi`].
pub const ABI_VERSION: u32 = 5;
/// Name of the section of the eBPF object that holds [`ABI_VERSION`] as a `u32`.
pub const ABI_SECTION: &str = "mc_abi";
/// Name of the directory, below the pin directory, with the pins of this version's maps. In every version
/// [`Config`] begins with the version's number and is the only value of the map [`CONFIG`].
pub const MAPS_DIR: &str = "maps-v5";

/// An IPv6 address, or an IPv4 address as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2), in network order.
///
/// One layout for both families means one code path for both.
pub type Addr = [u8; 16];

/// Bits in front of the IPv4 address in an [`Addr`]: an IPv4 `/n` is an [`Addr`] prefix of `96 + n`.
pub const V4_PREFIX_BITS: u32 = 96;

/// Prefixes the `mc_prefixes` map can hold.
pub const MAX_PREFIXES: u32 = 131_072;
/// Slots of the `mc_nh_groups` array. Slot 0 is never used: group 0 means "no group".
pub const MAX_NEXT_HOP_GROUPS: u32 = 8_192;
/// Slots of the `mc_nexthops` array. Slot 0 is never used.
pub const MAX_NEXT_HOPS: u32 = 16_384;
/// Entries the `mc_peers` map can hold.
pub const MAX_PEERS: u32 = 16_384;
/// Slots of the per-CPU `mc_peer_stats` array. Slot 0 is shared by all peers that have none of their own.
pub const MAX_PEER_STATS: u32 = 4_096;
/// Next hops one group can have.
pub const GROUP_NEXT_HOPS: usize = 16;
/// Local underlay addresses a node can have.
pub const LOCAL_ADDRS: usize = 4;
/// Slots of the per-CPU `mc_drops` array; [`crate::verdict::DropReason`] numbers index it.
pub const MAX_DROP_REASONS: u32 = 64;
/// Slots of the per-CPU `mc_outcomes` array; [`crate::verdict::Outcome`] numbers index it.
pub const MAX_OUTCOMES: u32 = 16;
/// Slots of the per-CPU `mc_events` array; [`crate::verdict::Event`] numbers index it.
pub const MAX_EVENTS: u32 = 32;

/// Name of the prefix map: LPM trie of `{prefix_len: u32, data: Addr}` to [`Prefix`].
pub const PREFIXES: &str = "mc_prefixes";
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
/// Name of the path counters: per-CPU array of [`Counter`], indexed by [`crate::verdict::Outcome`].
pub const OUTCOMES: &str = "mc_outcomes";
/// Name of the event counters: per-CPU array of `u64`, indexed by [`crate::verdict::Event`].
pub const EVENTS: &str = "mc_events";
/// Name of the counters by peer: per-CPU array of [`PeerStats`], indexed by [`Peer::stats`] and
/// [`Next hop::traffic`].
pub const PEER_STATS: &str = "mc_peer_stats";
/// Name of the epoch map: array of one `u32`. Programs remember what prefixes and peers say of recent
/// addresses, and which next hop of a group a flow prefers, as long as it stays the same; 0 turns that off.
/// Whoever changes `mc_prefixes`, `mc_peers`, `mc_nh_groups` or `mc_nexthops` raises it afterwards.
pub const EPOCH: &str = "mc_epoch";
/// All maps, in the order the agent pins them.
pub const ALL_MAPS: [&str; 22] = [
    PREFIXES,
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
];

/// Name of the classifier on the egress of `mc0`.
pub const PROGRAM_TO_REMOTE: &str = "to_remote";
/// Name of the classifier on the ingress of every underlay device.
pub const PROGRAM_FROM_UNDERLAY: &str = "from_underlay";

/// [`Prefix::cluster`] and [`Peer::cluster`] of the cluster this node belongs to.
pub const CLUSTER_LOCAL: u32 = 0;

/// [`Prefix::action`]: packets to this prefix are delivered into this node's stack.
pub const ACTION_DELIVER: u32 = 1;
/// [`Prefix::action`]: packets to this prefix are forwarded to a next hop of [`Prefix::group`].
pub const ACTION_FORWARD: u32 = 2;
/// [`Prefix::action`]: Service addresses of this cluster: translated where the Service is known, else
/// delivered into this node's stack, where the node's service proxy takes over.
pub const ACTION_SERVICE: u32 = 3;
/// [`Prefix::action`]: our own `gatewayIP`, the source that connections to clusters with Antrea gateways
/// get: packets of such gateways to it are delivered, nobody else's.
pub const ACTION_REPLY: u32 = 4;

/// [`Peer::flags`]: a gateway of another cluster.
pub const PEER_REMOTE_GATEWAY: u32 = 1;
/// [`Peer::flags`]: a gateway of this cluster.
pub const PEER_LOCAL_GATEWAY: u32 = 1 << 1;
/// [`Peer::flags`]: a node of this cluster whose Pods may reach other clusters through this gateway.
pub const PEER_LOCAL_NODE: u32 = 1 << 2;
/// [`Peer::flags`]: a gateway of Antrea, besides [`PEER_REMOTE_GATEWAY`]: it sends the packets of its clients
/// from its own address, which is replaced by [`Peer::alias`].
pub const PEER_ANTREA: u32 = 1 << 3;

/// [`Config::flags`]: this node is a gateway.
pub const CONFIG_GATEWAY: u32 = 1;
/// [`Config::flags`]: packets are encapsulated in VXLAN (RFC 7348) instead of Geneve (RFC 8926).
pub const CONFIG_VXLAN: u32 = 1 << 1;
/// [`Config::flags`]: outer UDP packets carry a checksum where one can be computed.
pub const CONFIG_UDP_CHECKSUM: u32 = 1 << 2;
/// [`Config::flags`]: the outer DSCP is [`Config::tos`] instead of the inner packet's.
pub const CONFIG_DSCP_FIXED: u32 = 1 << 3;

/// [`Config::flags`]: Pods of exported Services run on this node: their prefixes have [`PREFIX_BACKENDS`].
pub const CONFIG_BACKENDS: u32 = 1 << 8;

/// [`Prefix::flags`]: a Pod of this node that is behind an exported Service, so that packets to and from it
/// may belong to a flow that came by a Service address.
pub const PREFIX_BACKENDS: u32 = 1;
/// [`Prefix::flags`]: packets from nodes of our cluster take the way through this node's stack, which gives
/// them its own address as source.
pub const PREFIX_HOST_SNAT: u32 = 1 << 1;
/// [`Prefix::flags`]: one address that stands for the only next hop of the group: packets leave with the
/// next hop's own address as destination ([`Peer::alias`]).
pub const PREFIX_ALIAS: u32 = 1 << 2;

/// [`Prefix::flags`]: of a node of our cluster, at the gateway that serves Antrea gateways: what this node's
/// stack sends there through `mc0` is encapsulated, too: replies the stack has translated.
pub const PREFIX_RETURN_ROUTE: u32 = 1 << 3;

/// Where packets to (and from) an address prefix belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Prefix {
    /// Cluster that owns the prefix: [`CLUSTER_LOCAL`] or the stable id of a remote cluster.
    pub cluster: u32,
    /// Slot in `mc_nh_groups`; 0 where nothing is forwarded. For a Node's Pod CIDR on a gateway it is the
    /// group of that Node, also when the prefix is looked up as an inner source.
    pub group: u32,
    /// [`ACTION_DELIVER`], [`ACTION_FORWARD`], [`ACTION_SERVICE`] or [`ACTION_REPLY`]; anything else is
    /// treated as no route.
    pub action: u32,
    /// [`PREFIX_BACKENDS`], [`PREFIX_HOST_SNAT`], [`PREFIX_ALIAS`], [`PREFIX_RETURN_ROUTE`].
    pub flags: u32,
}

/// The nodes that can take packets of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NextHopGroup {
    /// Stable id of the group (a hash of its name): tells the agent after a restart whose slot this is.
    pub id: u32,
    /// Used entries of `next_hops`, at most [`GROUP_NEXT_HOPS`].
    pub len: u32,
    /// Slots in `mc_nexthops`.
    pub next_hops: [u32; GROUP_NEXT_HOPS],
}

/// One node packets can be sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NextHop {
    /// Outer destination address.
    pub addr: Addr,
    /// Outer source address.
    pub local: Addr,
    /// Underlay device the packet leaves through.
    pub ifindex: u32,
    /// Stable id of the next hop (a hash of its name and address), the input of rendezvous hashing.
    pub id: u32,
    /// Largest inner IP packet in bytes the path to the next hop carries.
    pub mtu: u32,
    /// Relative share of flows; 0 drains: used only where no other next hop is usable.
    pub weight: u32,
    /// Neighbour on that device the packet is handed to.
    pub neighbor: Neighbor,
    /// Slot in `mc_peer_stats` that packets to the next hop count in: that of the peer with its address.
    pub stats: u32,
}

/// A neighbour on a link, as `bpf_redirect_neigh` takes it (`struct bpf_redir_neigh`, Linux 5.10): naming it
/// saves the route look-up the kernel makes for every packet otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Neighbor {
    /// [`NextHop::V4`], [`NextHop::V6`], or 0: the kernel's routes say who it is.
    pub family: u32,
    /// Its address in network order; of IPv4 the first four bytes, zeros behind them.
    pub addr: [u8; 16],
}

impl Neighbor {
    /// `AF_INET`.
    pub const V4: u32 = 2;
    /// `AF_INET6`.
    pub const V6: u32 = 10;
}

/// A node encapsulated packets are accepted from, found by the outer source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Cluster whose prefixes are acceptable inner sources: [`CLUSTER_LOCAL`] or a remote cluster's id.
    pub cluster: u32,
    /// [`PEER_REMOTE_GATEWAY`], [`PEER_LOCAL_GATEWAY`], [`PEER_LOCAL_NODE`], [`PEER_ANTREA`].
    pub flags: u32,
    /// Group of the peer's own Pod prefixes where known, else 0: inner sources of a
    /// [`PEER_LOCAL_NODE`] must lie in a prefix of this group. Of a [`PEER_ANTREA`], which has none:
    /// [`Peer::alias`], its bytes in network order.
    pub group: u32,
    /// Slot in `mc_peer_stats` that packets from the peer count in.
    pub stats: u32,
}

impl Peer {
    /// The address that stands for a [`PEER_ANTREA`] inside our cluster: one of its own cluster's.
    #[inline(always)]
    #[must_use]
    pub const fn alias(&self) -> crate::packet::Address {
        crate::packet::Address::v4(u32::from_le_bytes(self.group.to_ne_bytes()))
    }

    /// [`Self::group`] for an alias.
    #[must_use]
    pub const fn group_of_alias(alias: [u8; 4]) -> u32 {
        u32::from_ne_bytes(alias)
    }
}

/// What the programs know of the node they run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// [`ABI_VERSION`] of the agent that wrote the maps.
    pub abi: u32,
    /// [`CONFIG_GATEWAY`], [`CONFIG_VXLAN`], [`CONFIG_UDP_CHECKSUM`], [`CONFIG_DSCP_FIXED`],
    /// [`CONFIG_BACKENDS`].
    pub flags: u32,
    /// Device packets for the local stack are redirected into.
    pub mc0_ifindex: u32,
    /// UDP destination port of encapsulated packets, host order. Geneve's is 6081 (RFC 8926), VXLAN's
    /// 4789 (RFC 7348).
    pub port: u16,
    /// MAC address of `mc0`: the inner source of packets that leave, the destination of packets that arrive.
    pub mc0_mac: [u8; 6],
    /// DSCP of outer packets in the upper six bits, with [`CONFIG_DSCP_FIXED`].
    pub tos: u8,
    /// TTL or hop limit of outer packets; 0 stands for 64.
    pub hop_limit: u8,
    /// Always 0.
    pub pad: u16,
    /// Probes in a row without an answer after which a next hop counts as dead; 0 turns liveness off.
    pub detect: u32,
    /// How long, in milliseconds of answered probes, a next hop that comes back counts as dead.
    pub hold_down_ms: u32,
    /// Outer destinations that are this node's; unused entries are all zero.
    pub local: [Addr; LOCAL_ADDRS],
}

/// Packets and bytes (of the frame as the program saw it first), counted per CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counter {
    /// Packets; a GSO super-packet counts once.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// GSO super-packets among the packets.
    pub gso: u64,
}

/// What went to a peer and came from it, counted per CPU: what was sent on to it or admitted from it, not
/// probes and not ICMP errors of programs. Bytes are those of the frame on the underlay, with everything
/// around the inner packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerStats {
    /// Packets sent; a GSO super-packet counts once.
    pub sent_packets: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Bytes of these.
    pub received_bytes: u64,
}

// Sum of the fields' sizes equals the struct's size: no padding anywhere.
const _: () = assert!(size_of::<Prefix>() == 16 && align_of::<Prefix>() == 4);
const _: () =
    assert!(size_of::<NextHopGroup>() == 8 + 4 * GROUP_NEXT_HOPS && align_of::<NextHopGroup>() == 4);
const _: () = assert!(size_of::<NextHop>() == 72 && align_of::<NextHop>() == 4);
const _: () = assert!(size_of::<Peer>() == 16 && align_of::<Peer>() == 4);
const _: () = assert!(size_of::<Config>() == 32 + 16 * LOCAL_ADDRS && align_of::<Config>() == 4);
const _: () = assert!(size_of::<Counter>() == 24 && align_of::<Counter>() == 8);
const _: () = assert!(size_of::<PeerStats>() == 32 && align_of::<PeerStats>() == 8);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]
    use super::{
        Config, Counter, NextHop, NextHopGroup, Peer, PeerStats, Prefix,
        liveness::{ProbeReply, ProbeRtt, ProbeSent},
        sample::SampleLimiter,
    };

    macro_rules! pod {
        ($($t:ty),*) => {$(
            // SAFETY: repr(C), Copy, no padding (asserted above) and every bit pattern is valid.
            unsafe impl aya::Pod for $t {}
        )*};
    }
    pod!(
        Prefix,
        NextHopGroup,
        NextHop,
        Peer,
        Config,
        Counter,
        PeerStats,
        ProbeSent,
        ProbeReply,
        ProbeRtt,
        SampleLimiter
    );
}
