//! Verdicts, packet bytes and counters of the programs, on the host and in the kernel (`PROG_RUN`).
//!
//! Runs as root: the programs are loaded, but not attached.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    reason = "a test fails by panicking, and a table of cases is as long as it is"
)]

mod cases;
mod differential;
mod full_tables;
mod fuzz_seeds;
mod generator;
mod kernel;
mod load;
mod map_reading;
mod oracle;
mod peer_counters;
mod peer_limits;
mod pins;
mod policy;
mod policy_world;
mod prefix_table;
mod program_log;
mod random_policies;
mod spoofed_peers;
mod transit;

use std::collections::BTreeSet;

use cases::{Case, Expect, Program};
use kernel::{Counts, Kernel};
use mc_gateway_common::{
    maps::MemoryMaps,
    nexthop_select::mix,
    packet::SlicePacket,
    verdict::{DropReason, Outcome, Verdict},
};
use mc_test_kit::datapath::{fixture, packets};

/// `TC_ACT_UNSPEC`, `TC_ACT_OK`, `TC_ACT_SHOT` and `TC_ACT_REDIRECT` of `linux/pkt_cls.h`.
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_OK: u32 = 0;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;

/// Verdict and bytes on the host; counters remain in `tables`.
fn run_on_host(program: Program, tables: &MemoryMaps, frame: &[u8]) -> (Verdict, Vec<u8>) {
    run_gso_on_host(program, tables, frame, 0)
}

/// [`run_on_host`] for a GSO packet, unless `gso_size` is 0.
fn run_gso_on_host(program: Program, tables: &MemoryMaps, frame: &[u8], gso_size: u32) -> (Verdict, Vec<u8>) {
    let mut packet = SlicePacket::new(frame.to_vec());
    packet.set_gso_size(gso_size);
    packet.set_ingress_ifindex(cases::ingress_ifindex(program.name()));
    let verdict = program.run_on_host(&mut packet, tables);
    assert!(
        matches!(verdict, Verdict::Drop(_)) || packet.has_valid_device_sum(),
        "CHECKSUM_COMPLETE: {verdict:?} of {frame:02x?}"
    );
    (verdict, packet.bytes().to_vec())
}

fn tc_action(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Drop(_) | Verdict::Consume { .. } => TC_ACT_SHOT,
        Verdict::Send { .. } | Verdict::Deliver { .. } => TC_ACT_REDIRECT,
        Verdict::KernelDecap { .. } => TC_ACT_OK,
    }
}

/// The counters after one packet of `len` bytes: at most one outcome or drop reason, plus the events and the peers'
/// traffic counted by the host in `tables`.
fn expected_counts(before: &Counts, verdict: Verdict, len: usize, tables: &MemoryMaps) -> Counts {
    let mut after = before.clone();
    for (event, count) in &*tables.events.borrow() {
        after.events[*event as usize] += count;
    }
    for (slot, traffic) in &*tables.traffic.borrow() {
        kernel::add_traffic(&mut after.traffic, *slot, traffic);
    }
    let mut count = |outcome: Outcome| {
        let (packets, bytes) = &mut after.paths[outcome as usize];
        *packets += 1;
        *bytes += u64::try_from(len).expect("a length");
    };
    match verdict {
        Verdict::Pass => {}
        Verdict::Drop(reason) => after.drops[reason as usize] += 1,
        Verdict::Send { outcome, .. }
        | Verdict::Deliver { outcome, .. }
        | Verdict::KernelDecap { outcome }
        | Verdict::Consume { outcome } => count(outcome),
    }
    after
}

/// The programs with these tables, loaded once and refilled for each other set of tables.
fn load_or_refill<'k>(kernel: &'k mut Option<(MemoryMaps, Kernel)>, tables: &MemoryMaps) -> &'k mut Kernel {
    let (filled, kernel) = kernel.get_or_insert_with(|| (tables.clone(), Kernel::load(tables)));
    if filled != tables {
        kernel.refill(filled, tables);
        *filled = tables.clone();
    }
    kernel.set_flows(&tables.services);
    kernel
}

/// The counters of drops and outcomes that a case states, independent of the host's result.
fn stated_counts(before: &Counts, case: &Case) -> Counts {
    let mut after = before.clone();
    if let Expect::Drop(reason) = case.expect {
        after.drops[reason as usize] += 1;
    }
    if let Some(outcome) = case.expect.outcome() {
        let (packets, bytes) = &mut after.paths[outcome as usize];
        *packets += 1;
        *bytes += u64::try_from(case.frame.len()).expect("a length");
    }
    after
}

fn check_host(case: &Case) {
    let (verdict, bytes) = run_gso_on_host(case.program, &case.tables, &case.frame, case.gso_size);
    let name = &case.name;
    match (&case.expect, case.expect.outcome()) {
        (Expect::Drop(reason), _) => assert_eq!(verdict, Verdict::Drop(*reason), "{name}"),
        (
            Expect::Deliver(frame)
            | Expect::ErrorToHost(frame)
            | Expect::ResetToHost(frame)
            | Expect::RejectedToHost(frame),
            Some(outcome),
        ) => {
            let ifindex = 1;
            assert_eq!(verdict, Verdict::Deliver { outcome, ifindex }, "{name}");
            assert_eq!(&bytes, frame, "{name}");
        }
        (Expect::KernelDecap { frame, .. }, Some(outcome)) => {
            assert_eq!(verdict, Verdict::KernelDecap { outcome }, "{name}");
            assert_eq!(&bytes, frame, "{name}");
        }
        (Expect::Tested { key }, Some(outcome)) => {
            assert_eq!(verdict, Verdict::Consume { outcome }, "{name}");
            assert!(case.tables.decap_tests.borrow().contains_key(key), "{name}");
        }
        (Expect::Consume { slot, sequence, size }, Some(outcome)) => {
            assert_eq!(verdict, Verdict::Consume { outcome }, "{name}");
            let seen = case.tables.health.seen.borrow()[slot];
            assert_eq!((seen.sequence, seen.size), (*sequence, *size), "{name}");
        }
        (
            Expect::Encap(frame)
            | Expect::Transit(frame)
            | Expect::Reflect(frame)
            | Expect::Reset(frame)
            | Expect::Rejected(frame)
            | Expect::ErrorThroughTunnel(frame),
            Some(outcome),
        ) => {
            let sent = Verdict::Send {
                outcome,
                ifindex: 1,
                addressed: matches!(case.expect, Expect::Reset(_) | Expect::Rejected(_)),
            };
            assert_eq!(verdict, sent, "{name}");
            assert_eq!(&bytes, frame, "{name}");
        }
        _ => assert_eq!((verdict, &bytes), (Verdict::Pass, &case.frame), "{name}"),
    }
}

#[test]
fn cases_on_the_host() {
    for case in cases::all() {
        check_host(&case);
    }
}

/// `PROG_RUN` refuses a context with a VLAN; the kernel's part is in suite `netns`, module `underlay`.
#[test]
fn a_frame_of_a_vlan_passes() {
    for case in cases::all() {
        if case.program != Program::FromUnderlay {
            continue;
        }
        let mut packet = SlicePacket::new(case.frame.clone());
        packet.set_vlan_id(100);
        let verdict = Program::FromUnderlay.run_on_host(&mut packet, &case.tables);
        assert_eq!(
            (verdict, packet.bytes()),
            (Verdict::Pass, &*case.frame),
            "{}",
            case.name
        );
    }
}

#[test]
fn cases_in_the_kernel() {
    let mut kernel = None;
    for case in cases::all() {
        if !Kernel::accepts_frame(&case.frame) {
            println!("host only: {}", case.name);
            continue;
        }
        let kernel = load_or_refill(&mut kernel, &case.tables);
        let tables = case.tables.clone();
        let (verdict, bytes) = run_gso_on_host(case.program, &tables, &case.frame, case.gso_size);
        kernel.set_written_state(&case.tables);
        let before = kernel.counts();
        let outcome = kernel.run_gso(case.program.name(), &case.frame, case.gso_size);
        kernel.clear_peer_limits(&case.tables);
        assert_eq!(outcome.action, tc_action(verdict), "{}", case.name);
        // The bytes of a dropped packet are irrelevant: the program may have grown it before.
        if !matches!(verdict, Verdict::Drop(_)) {
            assert_eq!(outcome.bytes, bytes, "{}", case.name);
        }
        let after = kernel.counts();
        let expected = expected_counts(&before, verdict, case.frame.len(), &tables);
        assert_eq!(after, expected, "{}", case.name);
        let stated = stated_counts(&before, &case);
        assert_eq!(
            (&after.drops, &after.paths),
            (&stated.drops, &stated.paths),
            "{}",
            case.name
        );
        assert_eq!(kernel.health(&tables), kernel::health(&tables), "{}", case.name);
        let tested: Vec<u32> = tables.decap_tests.borrow().keys().copied().collect();
        assert_eq!(kernel.decap_tests(), tested, "{}", case.name);
        let left = tables.icmp_limit.borrow().tokens;
        assert_eq!(kernel.icmp_errors_left(), left, "{}", case.name);
        let flows = kernel::without_seconds(&tables.services);
        assert_eq!(kernel.flows(&tables.services), flows, "{}", case.name);
    }
}

#[test]
fn every_verdict_and_reachable_drop_reason_has_a_case() {
    let cases = cases::all();
    let hit: BTreeSet<u8> = cases
        .iter()
        .filter_map(|case| match case.expect {
            Expect::Drop(reason) => Some(reason as u8),
            _ => None,
        })
        .collect();
    // Failures of BPF helpers, which PROG_RUN cannot provoke: they require memory pressure or, for `DecapFailed`,
    // a packet that was encapsulated on the same host (`netns`: `mtu::check_gateway_on_veth_drops`).
    let not_in_prog_run = [
        DropReason::EncapFailed,
        DropReason::DecapFailed,
        DropReason::WriteFailed,
    ];
    for reason in DropReason::ALL {
        let expected = !not_in_prog_run.contains(&reason);
        assert_eq!(hit.contains(&(reason as u8)), expected, "{}", reason.name());
    }
    for has in [
        cases.iter().any(|case| matches!(case.expect, Expect::Pass)),
        cases.iter().any(|case| matches!(case.expect, Expect::Encap(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Transit(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Deliver(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Reflect(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Reset(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::ResetToHost(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::Rejected(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::RejectedToHost(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::ErrorToHost(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::ErrorThroughTunnel(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::Consume { .. })),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::KernelDecap { .. })),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::Tested { .. })),
    ] {
        assert!(has, "verdict without a case");
    }
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "duplicate name of a case");
    println!("{} cases", cases.len());
}

/// Mutated packets of the cases through the host's functions and the kernel's programs.
#[test]
fn mutated_packets_get_the_same_verdict_on_host_and_kernel() {
    let seed: u32 = std::env::var("MC_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(20_261_121);
    let packets: u32 = std::env::var("MC_PACKETS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(50_000);
    println!("seed {seed}, {packets} packets (MC_SEED and MC_PACKETS change them)");
    let cases: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| case.frame.len() < 2_000)
        .collect();
    let shape = fixture::Shape::default();
    let services = [true, false].map(|gateway| cases::services::world(shape, gateway));
    let mut worlds: Vec<(MemoryMaps, Kernel)> = [cases::probes::gateway(), fixture::node()]
        .into_iter()
        .chain(services)
        .map(|t| (t.clone(), Kernel::load(&t)))
        .collect();
    let mut verdicts = [0_u32; 6];
    for i in 0..packets {
        let random = |n: u32| mix(i, mix(n, seed));
        let case = &cases[random(0) as usize % cases.len()];
        let mut frame = case.frame.clone();
        for change in 0..random(1) % 4 {
            let at = random(2 + change) as usize % frame.len();
            frame[at] ^= 1 << (random(10 + change) % 8);
        }
        if random(20) % 8 == 0 {
            frame.truncate(14 + random(21) as usize % frame.len());
        }
        if !Kernel::accepts_frame(&frame) {
            continue;
        }
        let (tables, kernel) = &mut worlds[random(22) as usize % 4];
        let (verdict, bytes) = run_on_host(case.program, tables, &frame);
        let outcome = kernel.run(case.program.name(), &frame);
        assert_eq!(
            outcome.action,
            tc_action(verdict),
            "packet {i} of {}: {frame:02x?}",
            case.name
        );
        if !matches!(verdict, Verdict::Drop(_)) {
            assert_eq!(outcome.bytes, bytes, "packet {i} of {}: {frame:02x?}", case.name);
        }
        let kind = match verdict {
            Verdict::Pass => 0,
            Verdict::Drop(_) => 1,
            Verdict::Send { .. } => 2,
            Verdict::Deliver { .. } => 3,
            Verdict::Consume { .. } => 4,
            Verdict::KernelDecap { .. } => 5,
        };
        verdicts[kind] += 1;
    }
    let [passed, dropped, sent, delivered, ..] = verdicts;
    println!("{passed} passed, {dropped} dropped, {sent} sent, {delivered} delivered: no difference");
    assert!(
        verdicts.iter().take(4).all(|n| *n > packets / 200),
        "too few packets with one of the verdicts: {verdicts:?}"
    );
}
