//! What a program decides about a packet.

/// Why a packet of ours was dropped. The number is the index into `mc_drops` and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The map of the node's configuration is empty or written for another ABI version.
    NotConfigured = 1,
    /// `to_remote`: neither an IPv4 nor an IPv6 packet.
    NotIp = 2,
    /// Inner packet too short for its headers, or header fields that contradict each other.
    InnerMalformed = 3,
    /// Destination is in no prefix, or in one that cannot be reached from where the packet came.
    NoRoute = 4,
    /// The group of the prefix has no usable next hop.
    NoNextHop = 5,
    /// `bpf_skb_adjust_room` refused to grow the packet.
    EncapFailed = 6,
    /// `bpf_skb_adjust_room` refused to shrink the packet.
    DecapFailed = 7,
    /// Packet bytes could not be written.
    WriteFailed = 8,
    /// Outer source is no peer, though the inner frame carries the multi-cluster MAC address.
    UnknownPeer = 9,
    /// Outer packet of a peer is too short for the headers it announces.
    Truncated = 10,
    /// Outer packet of a peer is a fragment: encapsulated packets are sent with DF set.
    OuterFragment = 11,
    /// Tunnel header version, protocol type or control bit that this version does not understand.
    TunnelHeader = 12,
    /// Tunnel header with options: none is understood yet.
    TunnelOptions = 13,
    /// Inner source is in no prefix of the peer it came from.
    InnerSource = 14,
    /// Outer TTL ran out at a gateway: a forwarding loop.
    TtlExceeded = 15,
    /// Inner frame is neither IPv4 nor IPv6.
    InnerProtocol = 16,
    /// Header checksum of the outer packet is wrong: what it says cannot be passed on as true.
    OuterChecksum = 17,
    /// The outer packet met congestion and the inner one cannot say so (RFC 6040 section 4.2).
    Ecn = 18,
    /// Gateway: the next next hop is reached by the other IP version than the packet came with.
    OuterFamily = 19,
    /// Probe of a peer that is cut off, of another version, or says impossible things.
    ProbeMalformed = 20,
    /// Answer to a probe that is older than the newest one answered, or was answered already.
    ProbeStale = 21,
    /// Answer that does not come from the next hop it names.
    ProbeNextHop = 22,
    /// Answer to a probe that was never sent.
    ProbeUnsent = 23,
    /// A packet to a Service address that comes from a gateway of this cluster names no backend of this node.
    UnknownBackend = 24,
    /// A packet to a Service address names a backend of another Service or port.
    ForeignBackend = 25,
    /// Larger than the next hop takes, and nobody to tell: an ICMP error, a later fragment, or not from or
    /// for one host.
    TooBig = 30,
    /// Larger than the next hop takes; the sender is not told because too many errors were sent already.
    TooBigLimited = 31,
    /// IPv6 packet of at most 1,280 bytes, and the next hop takes even less (RFC 8200 section 5).
    BelowIpv6Minimum = 32,
}

impl DropReason {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 28] = [
        Self::NotConfigured,
        Self::NotIp,
        Self::InnerMalformed,
        Self::NoRoute,
        Self::NoNextHop,
        Self::EncapFailed,
        Self::DecapFailed,
        Self::WriteFailed,
        Self::UnknownPeer,
        Self::Truncated,
        Self::OuterFragment,
        Self::TunnelHeader,
        Self::TunnelOptions,
        Self::InnerSource,
        Self::TtlExceeded,
        Self::InnerProtocol,
        Self::OuterChecksum,
        Self::Ecn,
        Self::OuterFamily,
        Self::ProbeMalformed,
        Self::ProbeStale,
        Self::ProbeNextHop,
        Self::ProbeUnsent,
        Self::UnknownBackend,
        Self::ForeignBackend,
        Self::TooBig,
        Self::TooBigLimited,
        Self::BelowIpv6Minimum,
    ];

    /// The reason with this number; a number that has none yields the first.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            2 => Self::NotIp,
            3 => Self::InnerMalformed,
            4 => Self::NoRoute,
            5 => Self::NoNextHop,
            6 => Self::EncapFailed,
            7 => Self::DecapFailed,
            8 => Self::WriteFailed,
            9 => Self::UnknownPeer,
            10 => Self::Truncated,
            11 => Self::OuterFragment,
            12 => Self::TunnelHeader,
            13 => Self::TunnelOptions,
            14 => Self::InnerSource,
            15 => Self::TtlExceeded,
            16 => Self::InnerProtocol,
            17 => Self::OuterChecksum,
            18 => Self::Ecn,
            19 => Self::OuterFamily,
            20 => Self::ProbeMalformed,
            21 => Self::ProbeStale,
            22 => Self::ProbeNextHop,
            23 => Self::ProbeUnsent,
            24 => Self::UnknownBackend,
            25 => Self::ForeignBackend,
            30 => Self::TooBig,
            31 => Self::TooBigLimited,
            32 => Self::BelowIpv6Minimum,
            _ => Self::NotConfigured,
        }
    }

    /// Name as printed by the agent: stable, lower case, dashes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotConfigured => "not-configured",
            Self::NotIp => "not-ip",
            Self::InnerMalformed => "inner-malformed",
            Self::NoRoute => "no-route",
            Self::NoNextHop => "no-next-hop",
            Self::EncapFailed => "encap-failed",
            Self::DecapFailed => "decap-failed",
            Self::WriteFailed => "write-failed",
            Self::UnknownPeer => "unknown-peer",
            Self::Truncated => "truncated",
            Self::OuterFragment => "outer-fragment",
            Self::TunnelHeader => "tunnel-header",
            Self::TunnelOptions => "tunnel-options",
            Self::InnerSource => "inner-source",
            Self::TtlExceeded => "ttl-exceeded",
            Self::InnerProtocol => "inner-protocol",
            Self::OuterChecksum => "outer-checksum",
            Self::Ecn => "ecn",
            Self::OuterFamily => "outer-family",
            Self::ProbeMalformed => "probe-malformed",
            Self::ProbeStale => "probe-stale",
            Self::ProbeNextHop => "probe-next-hop",
            Self::ProbeUnsent => "probe-unsent",
            Self::UnknownBackend => "unknown-backend",
            Self::ForeignBackend => "foreign-backend",
            Self::TooBig => "too-big",
            Self::TooBigLimited => "too-big-limited",
            Self::BelowIpv6Minimum => "below-ipv6-minimum",
        }
    }
}

/// What became of a packet that was neither refused nor left alone. The number is the index into `mc_outcomes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// `to_remote` encapsulated it.
    Encap = 0,
    /// `from_underlay` at a gateway passed it on, still encapsulated.
    Transit = 1,
    /// `from_underlay` decapsulated it and delivered it into the stack.
    Deliver = 2,
    /// `from_underlay` answered a peer's probe.
    Reflect = 3,
    /// `from_underlay` took the answer to a probe of this node.
    ProbeReply = 4,
    /// The packet is larger than the next hop takes: its sender was told by an ICMP error.
    TooBig = 5,
}

impl Outcome {
    /// Every path, in the order of its number.
    pub const ALL: [Self; 6] = [
        Self::Encap,
        Self::Transit,
        Self::Deliver,
        Self::Reflect,
        Self::ProbeReply,
        Self::TooBig,
    ];

    /// Name as printed by the agent.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encap => "encap",
            Self::Transit => "transit",
            Self::Deliver => "deliver",
            Self::Reflect => "reflect",
            Self::ProbeReply => "probe-reply",
            Self::TooBig => "too-big",
        }
    }
}

/// What happened to a packet that went on, counted besides its path. The number is the index into
/// `mc_events` and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Event {
    /// Every next hop of the group is dead: the first choice was used.
    AllNextHopsDead = 1,
    /// Congestion marked on the outer packet was passed on to the inner one (RFC 6040).
    EcnMarked = 2,
    /// Gateway: a flow to a Service address was given to a backend.
    ServiceFlow = 8,
    /// Gateway: a flow was given to another backend, because its own is gone or takes no new ones.
    ServiceFlowMoved = 9,
    /// Gateway: a packet to a Service address was left to the node's service proxy.
    ServiceToStack = 10,
    /// A packet to a Service address was translated into one to a Pod of this node.
    ServiceTranslated = 11,
    /// A packet of a Pod got the Service address its flow came by.
    ReplyTranslated = 12,
    /// A client uses two Service addresses of one Pod from one port: the older flow lost its way back.
    ReplyReplaced = 13,
    /// The kernel refused an entry in one of the flow tables.
    ServiceTableFull = 14,
    /// The MSS of a connection was lowered to what the path takes.
    MssLowered = 16,
}

impl Event {
    /// Every event, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::AllNextHopsDead,
        Self::EcnMarked,
        Self::ServiceFlow,
        Self::ServiceFlowMoved,
        Self::ServiceToStack,
        Self::ServiceTranslated,
        Self::ReplyTranslated,
        Self::ReplyReplaced,
        Self::ServiceTableFull,
        Self::MssLowered,
    ];

    /// Name as printed by the agent.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllNextHopsDead => "all-next-hops-dead",
            Self::EcnMarked => "ecn-marked",
            Self::ServiceFlow => "service-flow",
            Self::ServiceFlowMoved => "service-flow-moved",
            Self::ServiceToStack => "service-to-stack",
            Self::ServiceTranslated => "service-translated",
            Self::ReplyTranslated => "reply-translated",
            Self::ReplyReplaced => "reply-replaced",
            Self::ServiceTableFull => "service-table-full",
            Self::MssLowered => "mss-lowered",
        }
    }
}

/// A program's decision; the shell counts it and carries it out.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not ours: left untouched for whoever comes next.
    Pass,
    /// Ours, and refused.
    Drop(DropReason),
    /// Send out of a device with the neighbour's MAC address (`bpf_redirect_neigh`, Linux 5.10).
    Send {
        /// What was done to the packet.
        outcome: Outcome,
        /// The underlay device.
        ifindex: u32,
    },
    /// Give to this node's stack as received on a device (`bpf_redirect` with `BPF_F_INGRESS`).
    Deliver {
        /// What was done to the packet.
        outcome: Outcome,
        /// The device, `mc0`.
        ifindex: u32,
    },
    /// Ours, and done with: nothing of the packet goes on.
    Consume {
        /// What it was good for.
        outcome: Outcome,
    },
}
