//! IPv6 headers with addresses in `::/64`: IPv4-mapped ones, which are the maps' form of IPv4 addresses, and the
//! unspecified one, which is the maps' form of no address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mc_gateway_common::{
    maps::MemoryMaps,
    packet::ip::mapped,
    verdict::DropReason::{InnerMalformed, UnknownPeer},
};

use super::{Case, Expect, Program, case_from_underlay, web};
use crate::{
    fixture::{self, GATEWAY_OUTSIDE, POD_HERE, POD_NODE, POD_WEST, Shape, WEST_GATEWAY},
    packets::Tunnel,
};

/// The IPv4-mapped address.
fn v6(address: [u8; 4]) -> IpAddr {
    Ipv4Addr::from(address).to_ipv6_mapped().into()
}

/// An underlay address of east's gateway besides its IPv4 addresses.
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xc100, 0, 0, 0, 0, 0, 1);

/// East's gateway with underlay addresses of both families.
fn dual_stack_gateway() -> MemoryMaps {
    let mut tables = fixture::gateway();
    if let Some(config) = &mut tables.config {
        config.local[2] = GATEWAY_V6.octets();
    }
    tables
}

pub(crate) fn mapped_addresses(cases: &mut Vec<Case>) {
    let both = Shape {
        inner_v6: true,
        ..Shape::default()
    };
    // Prefixes of both families.
    let mut gateway = both.tables(fixture::gateway());
    gateway.prefixes.extend(fixture::gateway().prefixes);
    let mut node = both.tables(fixture::node());
    node.prefixes.extend(fixture::node().prefixes);
    for (name, source, destination) in [
        ("source", v6(POD_WEST), both.inner(POD_HERE)),
        ("destination", both.inner(POD_WEST), v6(POD_HERE)),
        ("addresses", v6(POD_WEST), v6(POD_HERE)),
        ("destination behind a gateway", both.inner(POD_WEST), v6(POD_NODE)),
    ] {
        let tunnel = Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(source, destination));
        cases.push(case_from_underlay(
            format!("spoof: IPv4-mapped inner {name}"),
            gateway.clone(),
            tunnel.frame(),
            Expect::Drop(InnerMalformed),
        ));
    }
    for (name, source, destination) in [
        ("source", v6(POD_NODE), both.inner(POD_WEST)),
        ("destination", both.inner(POD_NODE), v6(POD_WEST)),
        ("addresses", v6(POD_NODE), v6(POD_WEST)),
    ] {
        cases.push(Case {
            name: format!("spoof: IPv4-mapped {name} of a Pod's packet"),
            program: Program::ToRemote,
            tables: node.clone(),
            frame: web(source, destination).frame(),
            gso_size: 0,
            expect: Expect::Drop(InnerMalformed),
        });
    }
    let genuine = web(POD_WEST, POD_HERE);
    cases.push(case_from_underlay(
        "spoof: IPv4-mapped outer source",
        dual_stack_gateway(),
        Tunnel::new(v6(WEST_GATEWAY), GATEWAY_V6, &genuine).frame(),
        Expect::Drop(UnknownPeer),
    ));
    assert_eq!(
        mapped(WEST_GATEWAY),
        Ipv4Addr::from(WEST_GATEWAY).to_ipv6_mapped().octets()
    );
    let outer_v6 = Shape {
        outer_v6: true,
        ..Shape::default()
    };
    let peer = outer_v6.outer(WEST_GATEWAY);
    let mut tables = dual_stack_gateway();
    tables.peers.extend(outer_v6.tables(fixture::gateway()).peers);
    for (name, destination) in [
        ("IPv4-mapped", v6(GATEWAY_OUTSIDE)),
        ("unspecified", Ipv6Addr::UNSPECIFIED.into()),
    ] {
        cases.push(case_from_underlay(
            format!("spoof: {name} outer destination"),
            tables.clone(),
            Tunnel::new(peer, destination, &genuine).frame(),
            Expect::Pass,
        ));
    }
}
