//! What is counted by peer, by the kernel's programs and on the host.

use std::collections::BTreeMap;

use mc_gateway_common::{
    abi::{MAX_TRAFFIC, Traffic},
    packet::ip::mapped,
    tables::MapTables,
};

use crate::{
    cases::{self, Case, Program, web},
    kernel::Kernel,
    loaded, on_host,
    packets::{Ip, Tunnel},
    world::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, STRANGER, WEST_GATEWAY,
        traffic,
    },
};

/// What one packet of `bytes` adds.
fn sent(bytes: usize) -> Traffic {
    Traffic {
        sent_packets: 1,
        sent_bytes: u64::try_from(bytes).expect("a length"),
        ..Traffic::default()
    }
}

fn received(bytes: usize) -> Traffic {
    Traffic {
        received_packets: 1,
        received_bytes: u64::try_from(bytes).expect("a length"),
        ..Traffic::default()
    }
}

type Expected = Vec<(u32, Traffic)>;

/// Packets of every kind, and what they add to which slot.
fn packets() -> Vec<(&'static str, Program, MapTables, Vec<u8>, Expected)> {
    let out = web(POD_NODE, POD_WEST);
    let through = Tunnel::new(NODE, GATEWAY_INSIDE, &out).frame();
    let len = through.len();
    let to_here = |from| Tunnel::new(from, GATEWAY_OUTSIDE, &web(POD_WEST, POD_HERE)).frame();
    let (node, west, gateway) = (traffic(NODE), traffic(WEST_GATEWAY), traffic(GATEWAY_INSIDE));
    let underlay = |name, tables, frame, expected| (name, Program::FromUnderlay, tables, frame, expected);
    let mut packets = vec![
        (
            "encapsulated: as on the underlay",
            Program::ToRemote,
            world::node(),
            out.frame(),
            vec![(gateway, sent(out.frame().len() + 50))],
        ),
        (
            "refused on mc0",
            Program::ToRemote,
            world::node(),
            web(POD_NODE, [198, 51, 100, 1]).frame(),
            vec![],
        ),
        underlay(
            "passed on: both peers",
            world::gateway(),
            through.clone(),
            vec![(node, received(len)), (west, sent(len))],
        ),
        underlay(
            "delivered",
            world::gateway(),
            to_here(WEST_GATEWAY),
            vec![(west, received(len))],
        ),
        underlay("a stranger's", world::gateway(), to_here(STRANGER), vec![]),
        underlay(
            "not from where it says",
            world::gateway(),
            Tunnel::new(NODE, GATEWAY_INSIDE, &web(POD_HERE, POD_WEST)).frame(),
            vec![],
        ),
    ];
    let mut looping = Tunnel::new(NODE, GATEWAY_INSIDE, &out);
    looping.ttl = 1;
    packets.push(underlay(
        "came, and went no further",
        world::gateway(),
        looping.frame(),
        vec![(node, received(len))],
    ));
    let mut small = world::gateway();
    for member in small.members.values_mut() {
        member.mtu = 600;
    }
    let large = Ip::new(POD_NODE, POD_WEST, 17, vec![0xa5; 1_000]);
    let large = Tunnel::new(NODE, GATEWAY_INSIDE, &large).frame();
    let len_of_large = large.len();
    packets.push(underlay(
        "came, and its sender was told that it is too big",
        small,
        large,
        vec![(node, received(len_of_large))],
    ));
    let mut nowhere = world::gateway();
    for member in nowhere.members.values_mut() {
        member.traffic = MAX_TRAFFIC;
    }
    for peer in nowhere.peers.values_mut() {
        peer.traffic = u32::MAX;
    }
    packets.push(underlay(
        "slots that do not exist",
        nowhere,
        through.clone(),
        vec![],
    ));
    let mut shared = world::gateway();
    for member in shared.members.values_mut() {
        member.traffic = 0;
    }
    shared.peers.get_mut(&mapped(NODE)).expect("a peer").traffic = MAX_TRAFFIC - 1;
    packets.push(underlay(
        "the shared slot and the last one",
        shared,
        through,
        vec![(MAX_TRAFFIC - 1, received(len)), (0, sent(len))],
    ));
    packets
}

#[test]
fn each_direction_counts_at_its_peer() {
    let mut kernel: Option<(MapTables, Kernel)> = None;
    for (name, program, tables, frame, expected) in packets() {
        let expected: BTreeMap<u32, Traffic> = expected.into_iter().collect();
        let counted = tables.clone();
        let _verdict = on_host(program, &counted, &frame);
        assert_eq!(*counted.traffic.borrow(), expected, "{name}, host");
        let kernel = loaded(&mut kernel, &tables);
        kernel.set_icmp_limit(&tables);
        // Twice: what is remembered of a way says who its peer is, too.
        for round in 1..=2 {
            let mut after = kernel.counts().traffic;
            for (slot, more) in &expected {
                crate::kernel::add(&mut after, *slot, more);
            }
            kernel.run(program.name(), &frame);
            assert_eq!(kernel.counts().traffic, after, "{name}, kernel, round {round}");
        }
    }
}

#[test]
fn probes_are_no_traffic() {
    let probes: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| case.name.contains("probe"))
        .collect();
    assert!(probes.len() > 20, "{} cases", probes.len());
    for case in probes {
        let _verdict = on_host(case.program, &case.tables, &case.frame);
        assert!(case.tables.traffic.borrow().is_empty(), "{}", case.name);
    }
}
