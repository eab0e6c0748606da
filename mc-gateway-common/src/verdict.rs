//! What a program decides about a packet.

/// Why a packet of ours was dropped. The number is the index into `mc_drops` and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The map of the node's configuration is empty or written for another ABI version.
    NotConfigured = 1,
    /// `to_remote`: not an IPv4 packet (the kernel's own IPv6 chatter on `mc0` is counted here).
    NotIpv4 = 2,
    /// Inner packet too short for its headers, or header fields that contradict each other.
    InnerMalformed = 3,
    /// Destination is in no prefix, or in one that cannot be reached from where the packet came.
    NoRoute = 4,
    /// The group of the prefix has no usable member.
    NoMember = 5,
    /// `bpf_skb_adjust_room` refused to grow the packet.
    Grow = 6,
    /// `bpf_skb_adjust_room` refused to shrink the packet.
    Shrink = 7,
    /// Packet bytes could not be written.
    Store = 8,
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
    /// Inner frame is not IPv4.
    InnerProtocol = 16,
    /// Header checksum of the outer packet is wrong: what it says cannot be passed on as true.
    OuterChecksum = 17,
}

impl DropReason {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 17] = [
        Self::NotConfigured,
        Self::NotIpv4,
        Self::InnerMalformed,
        Self::NoRoute,
        Self::NoMember,
        Self::Grow,
        Self::Shrink,
        Self::Store,
        Self::UnknownPeer,
        Self::Truncated,
        Self::OuterFragment,
        Self::TunnelHeader,
        Self::TunnelOptions,
        Self::InnerSource,
        Self::TtlExceeded,
        Self::InnerProtocol,
        Self::OuterChecksum,
    ];

    /// Name as printed by the agent: stable, lower case, dashes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotConfigured => "not-configured",
            Self::NotIpv4 => "not-ipv4",
            Self::InnerMalformed => "inner-malformed",
            Self::NoRoute => "no-route",
            Self::NoMember => "no-member",
            Self::Grow => "grow",
            Self::Shrink => "shrink",
            Self::Store => "store",
            Self::UnknownPeer => "unknown-peer",
            Self::Truncated => "truncated",
            Self::OuterFragment => "outer-fragment",
            Self::TunnelHeader => "tunnel-header",
            Self::TunnelOptions => "tunnel-options",
            Self::InnerSource => "inner-source",
            Self::TtlExceeded => "ttl-exceeded",
            Self::InnerProtocol => "inner-protocol",
            Self::OuterChecksum => "outer-checksum",
        }
    }
}

/// The three ways a packet can take through this node. The number is the index into `mc_paths`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Path {
    /// `to_remote` encapsulated it.
    Encap = 0,
    /// `from_underlay` at a gateway passed it on, still encapsulated.
    Transit = 1,
    /// `from_underlay` decapsulated it and delivered it into the stack.
    Deliver = 2,
}

impl Path {
    /// Every path, in the order of its number.
    pub const ALL: [Self; 3] = [Self::Encap, Self::Transit, Self::Deliver];

    /// Name as printed by the agent.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encap => "encap",
            Self::Transit => "transit",
            Self::Deliver => "deliver",
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
        path: Path,
        /// The underlay device.
        ifindex: u32,
    },
    /// Give to this node's stack as received on a device (`bpf_redirect` with `BPF_F_INGRESS`).
    Deliver {
        /// The device, `mc0`.
        ifindex: u32,
    },
}
