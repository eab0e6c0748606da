//! Limits of each peer in the kernel: one peer uses up its own share only.

use std::time::{Duration, Instant};

use mc_gateway_common::{
    abi::rate_limit::{PeerLimits, PeerRates, Rate, TokenBucket},
    maps::MemoryMaps,
    rate_limit::REJECTIONS,
    verdict::{DropReason, Event, Outcome},
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    TC_ACT_REDIRECT, TC_ACT_SHOT,
    cases::{rejected, services},
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, NORTH_GATEWAY, POD_NODE, POD_NORTH, POD_WEST,
        SERVICE_HERE, Shape, WEST_GATEWAY, gateway,
    },
    kernel::Kernel,
    packets::{Ip, Tunnel, tcp_syn, udp},
};

/// Tokens of the gateway of west, without a refill.
fn limit_west(tables: &MemoryMaps) {
    let few = TokenBucket {
        tokens: 20,
        at: u64::MAX,
    };
    let limits = PeerLimits {
        icmp_errors: few,
        flows: few,
        fragments: few,
    };
    let slot = fixture::traffic(WEST_GATEWAY);
    tables.peer_limits.borrow_mut().insert(slot, limits);
}

/// The UDP port of the Service in `cases/services.rs` with a Pod of the node.
const DATAGRAMS: u16 = 5000;
const WEB: u16 = 80;

/// Pins this thread to one CPU: each has its own tokens.
fn pin_to_one_cpu() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("CPUs");
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut cpus = CpuSet::new();
    cpus.set(first.expect("a CPU")).expect("a CPU");
    sched_setaffinity(Pid::from_raw(0), &cpus).expect("one CPU");
}

fn flow(from: [u8; 4], client: [u8; 4], port: u16) -> Vec<u8> {
    let inner = Ip::new(client, SERVICE_HERE, 17, udp(port, DATAGRAMS, b"x"));
    Tunnel::new(from, GATEWAY_OUTSIDE, &inner).frame()
}

#[test]
fn a_peer_with_too_many_flows_leaves_those_of_others_alone() {
    pin_to_one_cpu();
    let tables = services::world(Shape::default(), true);
    limit_west(&tables);
    let mut kernel = Kernel::load(&tables);
    kernel.set_peer_limits(&tables);
    let before = kernel.counts();
    let mut run = |frame: &[u8]| kernel.run("from_underlay", frame).action;
    for port in 0..20 {
        assert_eq!(
            run(&flow(WEST_GATEWAY, POD_WEST, 1_000 + port)),
            TC_ACT_REDIRECT,
            "{port}"
        );
    }
    for port in 20..1_000 {
        assert_eq!(
            run(&flow(WEST_GATEWAY, POD_WEST, 1_000 + port)),
            TC_ACT_SHOT,
            "{port}"
        );
    }
    let mut syn = Ip::new(POD_WEST, SERVICE_HERE, 6, tcp_syn(40_000, WEB));
    let tcp = |inner: &Ip| Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, inner).frame();
    assert_eq!(run(&tcp(&syn)), TC_ACT_SHOT);
    syn.payload[13] = 0x10;
    assert_eq!(run(&tcp(&syn)), TC_ACT_REDIRECT, "an established connection");
    // Known flows, and another peer.
    for port in 0..20 {
        assert_eq!(
            run(&flow(WEST_GATEWAY, POD_WEST, 1_000 + port)),
            TC_ACT_REDIRECT,
            "{port}"
        );
        assert_eq!(
            run(&flow(NORTH_GATEWAY, POD_NORTH, 1_000 + port)),
            TC_ACT_REDIRECT,
            "{port}"
        );
    }
    let after = kernel.counts();
    let reason = DropReason::FlowLimited as usize;
    assert_eq!(after.drops[reason] - before.drops[reason], 981);
    let event = Event::ServiceFlow as usize;
    assert_eq!(after.events[event] - before.events[event], 40, "entries");
}

#[test]
fn a_peer_with_too_many_icmp_errors_leaves_those_of_others_alone() {
    pin_to_one_cpu();
    let mut tables = gateway();
    for next_hop in tables.next_hops.values_mut() {
        next_hop.mtu = 1_300;
    }
    limit_west(&tables);
    let mut kernel = Kernel::load(&tables);
    kernel.set_peer_limits(&tables);
    let big = |src, dst| Ip::new(src, dst, 17, udp(1_000, 2_000, &[0; 1_372]));
    let from_west = Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &big(POD_WEST, POD_NODE)).frame();
    let from_node = Tunnel::new(NODE, GATEWAY_INSIDE, &big(POD_NODE, POD_WEST)).frame();
    let before = kernel.counts();
    for _ in 0..100 {
        kernel.run("from_underlay", &from_west);
    }
    for _ in 0..10 {
        assert_eq!(kernel.run("from_underlay", &from_node).action, TC_ACT_REDIRECT);
    }
    let after = kernel.counts();
    let errors = Outcome::TooBig as usize;
    assert_eq!(after.paths[errors].0 - before.paths[errors].0, 20 + 10);
    let reason = DropReason::TooBigLimited as usize;
    assert_eq!(after.drops[reason] - before.drops[reason], 80);
}

#[test]
fn new_flows_are_accepted_again_at_the_rate_of_the_limit() {
    pin_to_one_cpu();
    let tables = services::world(Shape::default(), true);
    let rates = PeerRates {
        flows: Rate {
            burst: 1,
            interval: 1_000_000,
        },
        ..PeerRates::DEFAULT
    };
    let mut kernel = Kernel::load_with_rates(&tables, &rates);
    let start = Instant::now();
    let mut accepted: u32 = 0;
    let mut port = 1_024;
    while accepted < 50 {
        assert!(start.elapsed() < Duration::from_secs(30), "{accepted} flows");
        let action = kernel
            .run("from_underlay", &flow(WEST_GATEWAY, POD_WEST, port))
            .action;
        accepted += u32::from(action == TC_ACT_REDIRECT);
        port = port.wrapping_add(1).max(1_024);
    }
    // The first token is late by a part of an interval, which shortens the time until the second one.
    assert!(
        start.elapsed() >= Duration::from_millis(48),
        "{:?}",
        start.elapsed()
    );
}

/// All senders of a node share the limit of ICMP errors, and each has a share of it.
#[test]
fn a_flood_of_rejected_packets_leaves_other_senders_their_errors() {
    pin_to_one_cpu();
    let (tables, [(flooding, flood), (other, packet)]) = rejected::of_two_senders();
    assert_ne!(flooding, other, "the senders have different slots");
    tables.icmp_limit.take();
    let full = [
        (flooding, TokenBucket::default()),
        (other, TokenBucket::default()),
    ];
    tables.sender_limits.borrow_mut().extend(full);
    let mut kernel = Kernel::load(&tables);
    kernel.set_icmp_limit(&tables);
    let start = Instant::now();
    let mut is_answered = |frame: &[u8]| kernel.run("to_pod", frame).action == TC_ACT_REDIRECT;
    let answered = (0..20_000).filter(|_| is_answered(&flood)).count();
    assert!(
        is_answered(&packet),
        "after {answered} errors to the flooding sender"
    );
    let earned = start.elapsed().as_nanos() / u128::from(REJECTIONS.interval);
    let most = u128::from(REJECTIONS.burst) + earned + 1;
    assert!((1..=most).contains(&(answered as u128)), "{answered} of {most}");
}
