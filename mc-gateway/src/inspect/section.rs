//! The parts of the output that the command line selects.

use clap::ValueEnum;

/// Part of the data path's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Every map with entries and capacity.
    #[value(alias = "tables")]
    Maps,
    /// Address prefixes and where they lead.
    Prefixes,
    /// Groups of nodes that can take a packet.
    Groups,
    /// Those nodes: path, liveness, round-trip time.
    #[value(name = "nexthops", alias = "members")]
    NextHops,
    /// Nodes packets are accepted from.
    Peers,
    /// Exported Services with the Pods behind them.
    Services,
    /// Flows to Services, at the gateway that chose and at the Pod's node.
    Flows,
    /// Pods that network policies select.
    Policies,
    /// Rules of network policies, with the packets on which they decided.
    Rules,
    /// The node's own settings, programs and devices.
    Config,
    /// Underlay devices: whether the kernel joins tunnel packets to super-packets.
    Underlay,
    /// Packets by path, drops by reason, events.
    Counters,
}

/// Sections printed by default: everything that fits a screen on most nodes.
pub(super) const DEFAULT: [Section; 7] = [
    Section::Config,
    Section::Underlay,
    Section::Maps,
    Section::Prefixes,
    Section::NextHops,
    Section::Peers,
    Section::Counters,
];
