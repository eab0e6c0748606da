//! The cases: a packet, the tables it meets, and what must come out, byte for byte.

mod antrea;
mod families;
mod from_underlay;
mod mtu;
mod not_ours;
pub(crate) mod probes;
mod refused;
pub(crate) mod services;
mod to_remote;

use std::net::IpAddr;

use mc_gateway_common::{tables::MapTables, verdict::DropReason};

use crate::packets::{Ip, tcp_syn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    ToRemote,
    FromUnderlay,
}

impl Program {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ToRemote => "to_remote",
            Self::FromUnderlay => "from_underlay",
        }
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
    /// An ICMP error into the own stack.
    AnswerHere(Vec<u8>),
    /// An ICMP error through the tunnel.
    AnswerBack(Vec<u8>),
    /// What is known of the member in the slot afterwards.
    Consume {
        slot: u32,
        sequence: u32,
        size: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) tables: MapTables,
    pub(crate) frame: Vec<u8>,
    pub(crate) expect: Expect,
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    to_remote::encap(&mut cases);
    to_remote::refused(&mut cases);
    from_underlay::transit(&mut cases);
    from_underlay::deliver(&mut cases);
    refused::spoofed(&mut cases);
    refused::malformed(&mut cases);
    not_ours::not_ours(&mut cases);
    families::families(&mut cases);
    probes::probes(&mut cases);
    mtu::mtu(&mut cases);
    services::services(&mut cases);
    antrea::antrea(&mut cases);
    cases
}

fn case_from_underlay(name: impl Into<String>, tables: MapTables, frame: Vec<u8>, expect: Expect) -> Case {
    Case {
        name: name.into(),
        program: Program::FromUnderlay,
        tables,
        frame,
        expect,
    }
}

/// A connection to port 80.
pub(crate) fn web(src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Ip {
    Ip::new(src, dst, 6, tcp_syn(40_000, 80))
}
