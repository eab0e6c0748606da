//! Traffic counters by peer, with explicit expectations for host and kernel.

use std::collections::BTreeMap;

use mc_gateway_common::{
    abi::{MAX_PEER_STATS, PeerStats},
    maps::MemoryMaps,
    packet::ip::mapped,
};

use crate::{
    cases::{self, Case, Program, web},
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, STRANGER, WEST_GATEWAY,
        traffic,
    },
    kernel::Kernel,
    load_or_refill,
    packets::{Ip, Tunnel},
    run_on_host,
};

/// Increment of one sent packet.
fn sent(bytes: usize) -> PeerStats {
    PeerStats {
        sent_packets: 1,
        sent_bytes: u64::try_from(bytes).expect("a length"),
        ..PeerStats::default()
    }
}

fn received(bytes: usize) -> PeerStats {
    PeerStats {
        received_packets: 1,
        received_bytes: u64::try_from(bytes).expect("a length"),
        ..PeerStats::default()
    }
}

type Expected = Vec<(u32, PeerStats)>;

/// Packets of every kind with the increments of each slot.
fn packets() -> Vec<(&'static str, Program, MemoryMaps, Vec<u8>, Expected)> {
    let out = web(POD_NODE, POD_WEST);
    let through = Tunnel::new(NODE, GATEWAY_INSIDE, &out).frame();
    let len = through.len();
    let to_here = |from| Tunnel::new(from, GATEWAY_OUTSIDE, &web(POD_WEST, POD_HERE)).frame();
    let (node, west, gateway) = (traffic(NODE), traffic(WEST_GATEWAY), traffic(GATEWAY_INSIDE));
    let underlay = |name, tables, frame, expected| (name, Program::FromUnderlay, tables, frame, expected);
    let mut packets = vec![
        (
            "encapsulated: underlay bytes",
            Program::ToRemote,
            fixture::node(),
            out.frame(),
            vec![(gateway, sent(out.frame().len() + 50))],
        ),
        (
            "dropped on mc0",
            Program::ToRemote,
            fixture::node(),
            web(POD_NODE, [198, 51, 100, 1]).frame(),
            vec![],
        ),
        underlay(
            "forwarded: both peers",
            fixture::gateway(),
            through.clone(),
            vec![(node, received(len)), (west, sent(len))],
        ),
        underlay(
            "delivered",
            fixture::gateway(),
            to_here(WEST_GATEWAY),
            vec![(west, received(len))],
        ),
        underlay("unknown peer", fixture::gateway(), to_here(STRANGER), vec![]),
        underlay(
            "spoofed inner source",
            fixture::gateway(),
            Tunnel::new(NODE, GATEWAY_INSIDE, &web(POD_HERE, POD_WEST)).frame(),
            vec![],
        ),
    ];
    let mut looping = Tunnel::new(NODE, GATEWAY_INSIDE, &out);
    looping.ttl = 1;
    packets.push(underlay(
        "received and dropped for its TTL",
        fixture::gateway(),
        looping.frame(),
        vec![(node, received(len))],
    ));
    let mut small = fixture::gateway();
    for next_hop in small.next_hops.values_mut() {
        next_hop.mtu = 600;
    }
    let large = Ip::new(POD_NODE, POD_WEST, 17, vec![0xa5; 1_000]);
    let large = Tunnel::new(NODE, GATEWAY_INSIDE, &large).frame();
    let len_of_large = large.len();
    packets.push(underlay(
        "received and answered with an ICMP error",
        small,
        large,
        vec![(node, received(len_of_large))],
    ));
    let mut nowhere = fixture::gateway();
    for next_hop in nowhere.next_hops.values_mut() {
        next_hop.stats = MAX_PEER_STATS;
    }
    for peer in nowhere.peers.values_mut() {
        peer.stats = u32::MAX;
    }
    packets.push(underlay("slots beyond the map", nowhere, through.clone(), vec![]));
    let mut shared = fixture::gateway();
    for next_hop in shared.next_hops.values_mut() {
        next_hop.stats = 0;
    }
    shared.peers.get_mut(&mapped(NODE)).expect("a peer").stats = MAX_PEER_STATS - 1;
    packets.push(underlay(
        "shared slot and last slot",
        shared,
        through,
        vec![(MAX_PEER_STATS - 1, received(len)), (0, sent(len))],
    ));
    packets
}

#[test]
fn each_direction_is_counted_at_its_peer() {
    let mut kernel: Option<(MemoryMaps, Kernel)> = None;
    for (name, program, tables, frame, expected) in packets() {
        let expected: BTreeMap<u32, PeerStats> = expected.into_iter().collect();
        let counted = tables.clone();
        let _verdict = run_on_host(program, &counted, &frame);
        assert_eq!(*counted.traffic.borrow(), expected, "{name}, host");
        let kernel = load_or_refill(&mut kernel, &tables);
        kernel.set_icmp_limit(&tables);
        // Twice: the second packet finds its peer in the cache.
        for round in 1..=2 {
            let mut after = kernel.counts().traffic;
            for (slot, more) in &expected {
                crate::kernel::add_traffic(&mut after, *slot, more);
            }
            kernel.run(program.name(), &frame);
            assert_eq!(kernel.counts().traffic, after, "{name}, kernel, round {round}");
        }
    }
}

#[test]
fn probes_are_not_counted_as_traffic() {
    let probes: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| case.name.contains("probe"))
        .collect();
    assert!(probes.len() > 20, "{} cases", probes.len());
    for case in probes {
        let _verdict = run_on_host(case.program, &case.tables, &case.frame);
        assert!(case.tables.traffic.borrow().is_empty(), "{}", case.name);
    }
}
