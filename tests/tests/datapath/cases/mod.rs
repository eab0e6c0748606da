//! Test cases: a packet, the tables, and the expected result byte for byte.

mod antrea;
mod drop;
mod families;
pub(crate) mod from_underlay;
mod gso;
pub(crate) use from_underlay::delivered_mac;

pub(crate) mod from_remote;
pub(crate) mod kernel_decap;
mod mapped;
mod mtu;
mod pass;
mod peer_secret;
pub(crate) mod pods;
pub(crate) mod probes;
pub(crate) mod rejected;
pub(crate) mod services;
mod to_remote;

use std::net::IpAddr;

pub(crate) use mc_gateway::plan::Program;
use mc_gateway_common::{
    maps::MemoryMaps,
    verdict::{DropReason, Outcome},
};

use crate::packets::{Ip, tcp_syn};

/// Device on which the node received the packets of a case; 0 where the program does not depend on it.
pub(crate) fn ingress_ifindex(program: &str) -> u32 {
    if program == Program::ToPod.name() {
        pods::POD_DEVICE
    } else {
        0
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Expect {
    Pass,
    Drop(DropReason),
    Encap(Vec<u8>),
    Transit(Vec<u8>),
    Deliver(Vec<u8>),
    Reflect(Vec<u8>),
    /// A reset sent out of a device.
    Reset(Vec<u8>),
    /// A reset delivered to the host's stack.
    ResetToHost(Vec<u8>),
    /// An ICMP error about a rejected packet, sent out of a device.
    Rejected(Vec<u8>),
    /// An ICMP error about a rejected packet, delivered to the host's stack.
    RejectedToHost(Vec<u8>),
    /// An ICMP error delivered to the host's stack.
    ErrorToHost(Vec<u8>),
    /// An ICMP error sent through the tunnel.
    ErrorThroughTunnel(Vec<u8>),
    /// Left to the tunnel device.
    KernelDecap {
        frame: Vec<u8>,
        outcome: Outcome,
    },
    /// A test packet on the tunnel device, with its key.
    Tested {
        key: u32,
    },
    /// A probe reply, with the next hop's resulting liveness record.
    Consume {
        slot: u32,
        sequence: u32,
        size: u32,
    },
}

impl Expect {
    /// The outcome counter that moves.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Pass | Self::Drop(_) => None,
            Self::Encap(_) => Some(Outcome::Encap),
            Self::Transit(_) => Some(Outcome::Transit),
            Self::Deliver(_) => Some(Outcome::Deliver),
            Self::Reflect(_) => Some(Outcome::Reflect),
            Self::Reset(_) | Self::ResetToHost(_) => Some(Outcome::Reset),
            Self::Rejected(_) | Self::RejectedToHost(_) => Some(Outcome::Rejected),
            Self::ErrorToHost(_) | Self::ErrorThroughTunnel(_) => Some(Outcome::TooBig),
            Self::Consume { .. } => Some(Outcome::ProbeReply),
            Self::KernelDecap { outcome, .. } => Some(*outcome),
            Self::Tested { .. } => Some(Outcome::DecapTest),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) tables: MemoryMaps,
    pub(crate) frame: Vec<u8>,
    /// Payload bytes per segment of a GSO packet, else 0.
    pub(crate) gso_size: u32,
    pub(crate) expect: Expect,
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    to_remote::encap(&mut cases);
    to_remote::dropped(&mut cases);
    to_remote::spoofed(&mut cases);
    from_underlay::transit(&mut cases);
    from_underlay::deliver(&mut cases);
    drop::spoofed(&mut cases);
    drop::malformed(&mut cases);
    mapped::mapped_addresses(&mut cases);
    gso::gso(&mut cases);
    pass::pass(&mut cases);
    families::families(&mut cases);
    probes::probes(&mut cases);
    mtu::mtu(&mut cases);
    services::services(&mut cases);
    antrea::antrea(&mut cases);
    peer_secret::cases(&mut cases);
    from_remote::cases(&mut cases);
    pods::cases(&mut cases);
    rejected::cases(&mut cases);
    kernel_decap::cases(&mut cases);
    cases
}

fn case_from_underlay(name: impl Into<String>, tables: MemoryMaps, frame: Vec<u8>, expect: Expect) -> Case {
    Case {
        gso_size: 0,
        name: name.into(),
        program: Program::FromUnderlay,
        tables,
        frame,
        expect,
    }
}

/// A TCP SYN to port 80.
pub(crate) fn web(src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Ip {
    Ip::new(src, dst, 6, tcp_syn(40_000, 80))
}
