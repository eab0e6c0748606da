//! Verdict of a program on a packet, with the numbers of drop reasons, outcomes and events.

/// Reason of a drop. The number is the index into `mc_drops` and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The configuration map is empty or has another layout version.
    ///
    /// The agent has not written the configuration yet, or has another version: see its log.
    NotConfigured = 1,
    /// `to_remote`: neither an IPv4 nor an IPv6 packet.
    ///
    /// Harmless.
    NotIp = 2,
    /// The inner packet is shorter than its headers, or its header fields conflict.
    ///
    /// A peer of another version, or a forged packet.
    InnerMalformed = 3,
    /// No prefix covers the destination, or the sender may not reach it.
    ///
    /// `inspect prefixes`. On `mc0` some are multicast packets of the kernel (harmless).
    NoRoute = 4,
    /// The next-hop group of the prefix has no usable next hop.
    ///
    /// `inspect groups`, and the log for rejected addresses.
    NoNextHop = 5,
    /// `bpf_skb_adjust_room` refused to grow the packet.
    ///
    /// Please report it.
    EncapFailed = 6,
    /// The kernel refused to shrink the packet.
    ///
    /// An ICMP error for a packet that crossed veth devices only; otherwise please report it.
    DecapFailed = 7,
    /// Packet bytes could not be written.
    ///
    /// Please report it.
    WriteFailed = 8,
    /// The outer source is no peer, and the inner frame has the multi-cluster MAC address.
    ///
    /// `inspect peers`. A NAT between the clusters changes the outer source.
    UnknownPeer = 9,
    /// The outer packet of a peer is shorter than its headers.
    ///
    /// A peer of another version, or a forged packet.
    Truncated = 10,
    /// The outer packet of a peer is a fragment, although encapsulated packets have DF.
    ///
    /// A peer of another version, or a forged packet.
    OuterFragment = 11,
    /// The tunnel header has an unknown version, protocol type or control bit.
    ///
    /// A peer of another version, or a forged packet.
    TunnelHeader = 12,
    /// The tunnel header has options.
    ///
    /// A peer of another version, or a forged packet.
    TunnelOptions = 13,
    /// The inner source is no address of the sender: of the peer, or of this Node on `mc0`.
    ///
    /// Masquerading on the sending Node, a Node without an address among its Pods (`ip route show proto 109` has no
    /// `src`), a packet routed for others, a forged packet, or an Antrea gateway that is missing in
    /// `--antrea-clusters`.
    InnerSource = 14,
    /// The outer TTL expired at a gateway.
    ///
    /// A forwarding loop.
    TtlExceeded = 15,
    /// The inner frame is neither IPv4 nor IPv6.
    ///
    /// A peer of another version, or a forged packet.
    InnerProtocol = 16,
    /// The header checksum of the outer packet is wrong.
    ///
    /// A peer of another version, or a forged packet.
    OuterChecksum = 17,
    /// The outer packet has a congestion mark and the inner one is not ECN-capable (RFC 6040 section 4.2).
    ///
    /// The underlay is congested.
    Ecn = 18,
    /// The next hop has another outer IP version than the packet.
    ///
    /// Two legs use different IP versions.
    OuterFamily = 19,
    /// A probe of a peer is truncated, of another version, or has invalid fields.
    ///
    /// A peer of another version, or a forged packet.
    ProbeMalformed = 20,
    /// The answer is older than the newest one, or a duplicate.
    ///
    /// Harmless.
    ProbeStale = 21,
    /// The answer has another source than the next hop that it names.
    ///
    /// A NAT between the clusters, or a forged packet.
    ProbeNextHop = 22,
    /// The answer has the number of a probe that was not sent.
    ///
    /// A forged packet.
    ProbeUnsent = 23,
    /// A packet to a Service address from a gateway of this cluster names no backend of this Node.
    ///
    /// Harmless in small numbers while endpoints change; otherwise compare `inspect services` on both Nodes.
    UnknownBackend = 24,
    /// A packet to a Service address names a backend of another Service or port, or is returned by another Node than
    /// the backend's.
    ///
    /// Agents of different versions, or a forged packet.
    ForeignBackend = 25,
    /// A gateway of another cluster sends to a Service port that is not exported.
    ///
    /// Export the Service, or run the agents of the gateways with `--expose-all-services`.
    NotExported = 26,
    /// The packet exceeds the path, and no ICMP error may answer it: an ICMP error, a later fragment, or no unicast
    /// address.
    TooBig = 30,
    /// The packet exceeds the path, and the rate limit of ICMP errors is exhausted.
    TooBigLimited = 31,
    /// The path carries less than 1,280 bytes of IPv6 (RFC 8200 section 5).
    ///
    /// Raise the MTU of the underlay.
    BelowIpv6Minimum = 32,
    /// The kernel has joined several tunnel packets into one.
    ///
    /// Turn it off on the underlay device: `ethtool -K DEVICE rx-udp-gro-forwarding off rx-gro-list off`.
    Aggregated = 33,
    /// The inner source MAC address has no secret of the peer in the outer source.
    ///
    /// A forged packet, a peer whose public key is missing in its objects (`inspect peers`), or clocks that differ by
    /// more than an hour.
    PeerSecret = 34,
    /// A peer opens flows to Services, or sends fragmented packets to them, faster than its limit.
    ///
    /// `--new-flows-per-peer`. A client that scans or floods; packets of established flows are forwarded.
    FlowLimited = 36,
    /// A Node of this cluster returns a packet to a Service that this gateway has not sent to a Node that may return
    /// it: neither an unfragmented datagram nor a TCP segment without SYN, or not of an unconfirmed flow of that Node.
    ///
    /// Harmless in small numbers while endpoints and gateways change; otherwise a forged packet.
    UnexpectedReturn = 37,
    /// A packet to or on the agent's tunnel device, which `from_underlay` has not left to it.
    ///
    /// A forged packet, or a CNI with the VNI 7169895, which is reserved for the agent.
    NotAdmitted = 38,
    /// A network policy drops the packet, or rejects it without an answer.
    ///
    /// The samples in the log name policy, rule, cluster, Pods and labels; `inspect rules` counts packets by rule.
    Policy = 39,
    /// A policy selects the destination by label identities, and that of the sender is unknown.
    ///
    /// Harmless in small numbers while Pods start. Otherwise `kubectl get labelidentities` in both clusters.
    IdentityUnknown = 40,
    /// A gateway of another cluster sends with a label identity that only other clusters export, to a Pod that a policy
    /// selects.
    ///
    /// A forged packet, or a label that this cluster has exported just now: `kubectl get labelidentities -o yaml` names
    /// the clusters of each.
    IdentityForged = 41,
    /// A policy selects Pods of this Node, and source or destination may be one that its agent does not know.
    ///
    /// Harmless in small numbers while Pods start. Otherwise see the agent's log, and `inspect policies`.
    PolicyPod = 42,
    /// A new flow from another cluster to a Service that the gateway leaves to the service proxy, which hides the
    /// sender from the policies that select a Pod of the Service.
    ///
    /// The agent's log names the Service: use the Pods' addresses (endpoint type `PodIP`), a Service that gateways
    /// translate, or policies that do not select its Pods.
    IdentityLost = 43,
}

impl DropReason {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 39] = [
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
        Self::NotExported,
        Self::TooBig,
        Self::TooBigLimited,
        Self::BelowIpv6Minimum,
        Self::Aggregated,
        Self::PeerSecret,
        Self::FlowLimited,
        Self::UnexpectedReturn,
        Self::NotAdmitted,
        Self::Policy,
        Self::IdentityUnknown,
        Self::IdentityForged,
        Self::PolicyPod,
        Self::IdentityLost,
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
            26 => Self::NotExported,
            30 => Self::TooBig,
            31 => Self::TooBigLimited,
            32 => Self::BelowIpv6Minimum,
            33 => Self::Aggregated,
            34 => Self::PeerSecret,
            36 => Self::FlowLimited,
            37 => Self::UnexpectedReturn,
            38 => Self::NotAdmitted,
            39 => Self::Policy,
            40 => Self::IdentityUnknown,
            41 => Self::IdentityForged,
            42 => Self::PolicyPod,
            43 => Self::IdentityLost,
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
            Self::NotExported => "not-exported",
            Self::TooBig => "too-big",
            Self::TooBigLimited => "too-big-limited",
            Self::BelowIpv6Minimum => "below-ipv6-minimum",
            Self::Aggregated => "aggregated",
            Self::PeerSecret => "peer-secret",
            Self::FlowLimited => "flow-limited",
            Self::UnexpectedReturn => "unexpected-return",
            Self::NotAdmitted => "not-admitted",
            Self::Policy => "policy",
            Self::IdentityUnknown => "identity-unknown",
            Self::IdentityForged => "identity-forged",
            Self::PolicyPod => "policy-pod",
            Self::IdentityLost => "identity-lost",
        }
    }
}

/// The success of a packet that is neither dropped nor passed. The number is the index into `mc_outcomes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Encapsulated by `to_remote`.
    Encap = 0,
    /// Forwarded by `from_underlay` at a gateway, or returned to one, still encapsulated.
    Transit = 1,
    /// Decapsulated and delivered into the stack, by `from_underlay` or by `from_tunnel` after the kernel.
    Deliver = 2,
    /// A peer's probe, reflected by `from_underlay`.
    Reflect = 3,
    /// The answer to a probe of this Node.
    ProbeReply = 4,
    /// The packet exceeds the path: answered with an ICMP error.
    TooBig = 5,
    /// Left by `from_underlay` to the agent's tunnel device for decapsulation; `from_tunnel` counts it as delivered.
    KernelDecap = 6,
    /// A reply to a probe that came through the tunnel device as a test.
    DecapTest = 7,
    /// A TCP connection that a network policy rejects: answered with a reset.
    Reset = 8,
    /// Any other packet that a network policy rejects: answered with an ICMP error.
    Rejected = 9,
}

impl Outcome {
    /// Every outcome, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Encap,
        Self::Transit,
        Self::Deliver,
        Self::Reflect,
        Self::ProbeReply,
        Self::TooBig,
        Self::KernelDecap,
        Self::DecapTest,
        Self::Reset,
        Self::Rejected,
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
            Self::KernelDecap => "kernel-decap",
            Self::DecapTest => "decap-test",
            Self::Reset => "reset",
            Self::Rejected => "rejected",
        }
    }
}

/// An occurrence on a packet that is forwarded, counted in addition to its outcome. The number is the index into
/// `mc_events` and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Event {
    /// Every next hop of the group is dead: the preferred one is used.
    AllNextHopsDead = 1,
    /// A congestion mark of the outer packet is copied to the inner one (RFC 6040).
    EcnMarked = 2,
    /// Gateway: a flow to a Service address is assigned to a backend.
    ServiceFlow = 8,
    /// Gateway: a flow is assigned to another backend, because its own is gone or takes no new flows, or its Node
    /// returns its packets.
    ServiceFlowMoved = 9,
    /// Gateway: a packet to a Service address is left to the Node's service proxy.
    ServiceToStack = 10,
    /// A packet to a Service address is translated to a Pod of this Node.
    ServiceTranslated = 11,
    /// The source of a Pod's packet is translated to the Service address of its flow.
    ReplyTranslated = 12,
    /// A client uses two Service addresses of one Pod from one port: the reply entry of the older flow is replaced.
    ReplyReplaced = 13,
    /// The kernel refused an entry in a flow table.
    ServiceTableFull = 14,
    /// The MSS of a connection is lowered to the path.
    MssLowered = 16,
    /// A packet of a flow that this Node does not know is returned to the gateway that sent it.
    ServiceReturned = 17,
}

impl Event {
    /// Every event, in the order of its number.
    pub const ALL: [Self; 11] = [
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
        Self::ServiceReturned,
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
            Self::ServiceReturned => "service-returned",
        }
    }
}

/// A program's decision; the shell counts it and carries it out.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not ours: left untouched for the next program.
    Pass,
    /// Ours, and dropped.
    Drop(DropReason),
    /// Send out of a device.
    Send {
        /// The counted outcome.
        outcome: Outcome,
        /// The underlay device.
        ifindex: u32,
        /// Whether the frame has the link addresses of the next hop (`bpf_redirect`). Otherwise the kernel writes them
        /// (`bpf_redirect_neigh`, Linux 5.10).
        addressed: bool,
    },
    /// Deliver to this Node's stack as received on a device (`bpf_redirect` with `BPF_F_INGRESS`).
    Deliver {
        /// The counted outcome.
        outcome: Outcome,
        /// The device: `mc0`, or that of a Pod.
        ifindex: u32,
    },
    /// Leave to the kernel's UDP stack, which decapsulates it (`TC_ACT_OK`: no other program on the device runs).
    KernelDecap {
        /// The counted outcome.
        outcome: Outcome,
    },
    /// Ours, and consumed: nothing is forwarded.
    Consume {
        /// The counted outcome.
        outcome: Outcome,
    },
}
