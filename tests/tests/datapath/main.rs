//! Every decision of the programs, on the host and in the kernel: verdict, bytes and all counters.
//!
//! Runs as root: the programs are loaded, but attached to nothing.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    reason = "a test fails by panicking, and a table of cases is as long as it is"
)]

mod cases;
mod differential;
mod full;
mod kernel;
mod load;
mod packets;
mod seeds;
mod traffic;
mod world;

use std::collections::BTreeSet;

use cases::{Case, Expect, Program};
use kernel::{Counts, Kernel};
use mc_gateway_common::{
    packet::SlicePacket,
    path,
    select::mix,
    tables::MapTables,
    verdict::{DropReason, Path, Verdict},
};

/// `TC_ACT_UNSPEC`, `TC_ACT_SHOT` and `TC_ACT_REDIRECT` of `linux/pkt_cls.h`.
const UNSPEC: u32 = u32::MAX;
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;

/// The host's verdict and bytes; what it counted stays in `tables`.
fn on_host(program: Program, tables: &MapTables, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let mut packet = SlicePacket::new(frame.to_vec());
    let verdict = match program {
        Program::ToRemote => path::to_remote(&mut packet, tables),
        Program::FromUnderlay => path::from_underlay(&mut packet, tables),
    };
    (verdict, packet.bytes().to_vec())
}

fn action(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Pass => UNSPEC,
        Verdict::Drop(_) | Verdict::Consume { .. } => SHOT,
        Verdict::Send { .. } | Verdict::Deliver { .. } => REDIRECT,
    }
}

/// The counters after one packet of `len` bytes: one path or drop reason moves, or none, and the events and
/// the peers' traffic the host counted in `tables`.
fn counted(before: &Counts, verdict: Verdict, len: usize, tables: &MapTables) -> Counts {
    let mut after = before.clone();
    for (event, count) in &*tables.events.borrow() {
        after.events[*event as usize] += count;
    }
    for (slot, traffic) in &*tables.traffic.borrow() {
        kernel::add(&mut after.traffic, *slot, traffic);
    }
    let mut path = |path: Path| {
        let (packets, bytes) = &mut after.paths[path as usize];
        *packets += 1;
        *bytes += u64::try_from(len).expect("a length");
    };
    match verdict {
        Verdict::Pass => {}
        Verdict::Drop(reason) => after.drops[reason as usize] += 1,
        Verdict::Send { path: taken, .. }
        | Verdict::Deliver { path: taken, .. }
        | Verdict::Consume { path: taken } => path(taken),
    }
    after
}

/// The programs with these tables: loaded once, filled anew for other tables.
fn loaded<'k>(kernel: &'k mut Option<(MapTables, Kernel)>, tables: &MapTables) -> &'k mut Kernel {
    let (filled, kernel) = kernel.get_or_insert_with(|| (tables.clone(), Kernel::load(tables)));
    if filled != tables {
        kernel.refill(filled, tables);
        *filled = tables.clone();
    }
    kernel.set_flows(&tables.services);
    kernel
}

fn check_host(case: &Case) {
    let (verdict, bytes) = on_host(case.program, &case.tables, &case.frame);
    match &case.expect {
        Expect::Pass => assert_eq!((verdict, &bytes), (Verdict::Pass, &case.frame), "{}", case.name),
        Expect::Drop(reason) => assert_eq!(verdict, Verdict::Drop(*reason), "{}", case.name),
        Expect::Encap(frame)
        | Expect::Transit(frame)
        | Expect::Reflect(frame)
        | Expect::AnswerBack(frame) => {
            let path = match case.expect {
                Expect::Encap(_) => Path::Encap,
                Expect::Transit(_) => Path::Transit,
                Expect::AnswerBack(_) => Path::TooBig,
                _ => Path::Reflect,
            };
            assert_eq!(verdict, Verdict::Send { path, ifindex: 1 }, "{}", case.name);
            assert_eq!(&bytes, frame, "{}", case.name);
        }
        Expect::Deliver(frame) | Expect::AnswerHere(frame) => {
            let path = match case.expect {
                Expect::Deliver(_) => Path::Deliver,
                _ => Path::TooBig,
            };
            let ifindex = 1;
            assert_eq!(verdict, Verdict::Deliver { path, ifindex }, "{}", case.name);
            assert_eq!(&bytes, frame, "{}", case.name);
        }
        Expect::Consume { slot, sequence, size } => {
            let path = Path::ProbeReply;
            assert_eq!(verdict, Verdict::Consume { path }, "{}", case.name);
            let seen = case.tables.health.seen.borrow()[slot];
            assert_eq!((seen.sequence, seen.size), (*sequence, *size), "{}", case.name);
        }
    }
}

#[test]
fn cases_on_the_host() {
    for case in cases::all() {
        check_host(&case);
    }
}

#[test]
fn cases_in_the_kernel() {
    let mut kernel = None;
    for case in cases::all() {
        if !Kernel::can_stage(&case.frame) {
            println!("host only: {}", case.name);
            continue;
        }
        let kernel = loaded(&mut kernel, &case.tables);
        let tables = case.tables.clone();
        let (verdict, bytes) = on_host(case.program, &tables, &case.frame);
        kernel.set_health(&case.tables);
        kernel.set_icmp_limit(&case.tables);
        let before = kernel.counts();
        let outcome = kernel.run(case.program.name(), &case.frame);
        assert_eq!(outcome.action, action(verdict), "{}", case.name);
        // What was dropped is gone: a program may have grown it before it gave up.
        if !matches!(verdict, Verdict::Drop(_)) {
            assert_eq!(outcome.bytes, bytes, "{}", case.name);
        }
        assert_eq!(
            kernel.counts(),
            counted(&before, verdict, case.frame.len(), &tables),
            "{}",
            case.name
        );
        assert_eq!(kernel.health(&tables), kernel::health(&tables), "{}", case.name);
        let left = tables.icmp_limit.borrow().tokens;
        assert_eq!(kernel.icmp_errors_left(), left, "{}", case.name);
        assert_eq!(kernel.flows(&tables.services), tables.services, "{}", case.name);
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
    // Helpers only fail on memory pressure or on packets no frame can be built for.
    let unreachable = [DropReason::Grow, DropReason::Shrink, DropReason::Store];
    for reason in DropReason::ALL {
        let expected = !unreachable.contains(&reason);
        assert_eq!(hit.contains(&(reason as u8)), expected, "{}", reason.name());
    }
    for has in [
        cases.iter().any(|case| matches!(case.expect, Expect::Pass)),
        cases.iter().any(|case| matches!(case.expect, Expect::Encap(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Transit(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Deliver(_))),
        cases.iter().any(|case| matches!(case.expect, Expect::Reflect(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::AnswerHere(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::AnswerBack(_))),
        cases
            .iter()
            .any(|case| matches!(case.expect, Expect::Consume { .. })),
    ] {
        assert!(has, "a verdict without a case");
    }
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases share a name");
    println!("{} cases", cases.len());
}

/// The same mutated packets through the host's functions and the kernel's programs.
#[test]
fn mutated_packets_are_judged_alike_by_host_and_kernel() {
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
    let shape = world::Shape::default();
    let services = [true, false].map(|gateway| cases::services::world(shape, gateway));
    let mut worlds: Vec<(MapTables, Kernel)> = [cases::probes::gateway(), world::node()]
        .into_iter()
        .chain(services)
        .map(|t| (t.clone(), Kernel::load(&t)))
        .collect();
    let mut verdicts = [0_u32; 5];
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
        if !Kernel::can_stage(&frame) {
            continue;
        }
        let (tables, kernel) = &mut worlds[random(22) as usize % 4];
        let (verdict, bytes) = on_host(case.program, tables, &frame);
        let outcome = kernel.run(case.program.name(), &frame);
        assert_eq!(
            outcome.action,
            action(verdict),
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
        };
        verdicts[kind] += 1;
    }
    let [passed, dropped, sent, delivered, _consumed] = verdicts;
    println!("{passed} passed, {dropped} dropped, {sent} sent, {delivered} delivered: no difference");
    assert!(
        verdicts.iter().take(4).all(|n| *n > packets / 200),
        "a verdict is hardly ever reached: {verdicts:?}"
    );
}
