//! The eBPF programs and their places on devices.

use mc_gateway_common::abi::{self, sample};
use mc_gateway_common::maps::MemoryMaps;
use mc_gateway_common::packet::SlicePacket;
use mc_gateway_common::pipeline;
use mc_gateway_common::verdict::Verdict;

/// One of the programs, in the order in which they are replaced: `from_tunnel` of this version also accepts packets of
/// an earlier `from_underlay`, but not the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    /// On the egress of `mc0`.
    ToRemote,
    /// On the ingress of the agent's tunnel devices.
    FromTunnel,
    /// On the ingress of every underlay device.
    FromUnderlay,
    /// On the ingress of `mc0`.
    FromRemote,
    /// On the egress of the Pods' devices.
    ToPod,
    /// On the ingress of the Pods' devices.
    FromPod,
}

impl Program {
    /// All programs.
    pub const ALL: [Self; 6] = [
        Self::ToRemote,
        Self::FromTunnel,
        Self::FromUnderlay,
        Self::FromRemote,
        Self::ToPod,
        Self::FromPod,
    ];

    /// Name in the object, in `bpftool prog` and in pin names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToRemote => abi::PROGRAM_TO_REMOTE,
            Self::FromUnderlay => abi::PROGRAM_FROM_UNDERLAY,
            Self::FromTunnel => abi::PROGRAM_FROM_TUNNEL,
            Self::FromRemote => abi::PROGRAM_FROM_REMOTE,
            Self::ToPod => abi::PROGRAM_TO_POD,
            Self::FromPod => abi::PROGRAM_FROM_POD,
        }
    }

    /// The program of this number in drop samples and log records.
    #[must_use]
    pub const fn of_sample(number: u32) -> Option<Self> {
        Some(match number {
            sample::TO_REMOTE => Self::ToRemote,
            sample::FROM_UNDERLAY => Self::FromUnderlay,
            sample::FROM_TUNNEL => Self::FromTunnel,
            sample::FROM_REMOTE => Self::FromRemote,
            sample::TO_POD => Self::ToPod,
            sample::FROM_POD => Self::FromPod,
            _ => return None,
        })
    }

    /// The verdict of its pipeline on the host.
    pub fn run_on_host(self, packet: &mut SlicePacket, maps: &MemoryMaps) -> Verdict {
        match self {
            Self::ToRemote => pipeline::to_remote(packet, maps),
            Self::FromUnderlay => pipeline::from_underlay(packet, maps),
            Self::FromTunnel => pipeline::from_tunnel(packet, maps),
            Self::FromRemote => pipeline::from_remote(packet, maps),
            Self::ToPod => pipeline::to_pod(packet, maps),
            Self::FromPod => pipeline::from_pod(packet, maps),
        }
    }

    /// Whether it is attached to the egress of a device.
    #[must_use]
    pub const fn is_on_egress(self) -> bool {
        match self {
            Self::ToRemote | Self::ToPod => true,
            Self::FromTunnel | Self::FromUnderlay | Self::FromRemote | Self::FromPod => false,
        }
    }
}

/// How a program is attached to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachMode {
    /// A pinned TCX link (Linux 6.6).
    #[default]
    Tcx,
    /// A filter of the device's clsact qdisc.
    Clsact,
}

/// The place of a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// The program.
    pub program: Program,
    /// Name of the device.
    pub device: String,
    /// How it is attached.
    pub mode: AttachMode,
}

/// A program at a [`Hook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Index of the device; 0 if the device no longer exists.
    pub ifindex: u32,
    /// Whether it is the program loaded by this agent, not one of a previous agent.
    pub current: bool,
}
