//! Gateways that die, freeze and come back, under numbered datagrams of many flows.
//!
//! Runs as root with `MC_AGENT` naming the agent, one test after the other: `cargo xtask test --suite
//! failover`; `MC_LONG=1` makes the runs long. Outages are printed; only generous deadlines are asserted.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod bed;
mod flows;

use std::{
    collections::BTreeSet,
    hint,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use bed::{Bed, Fault, G1, G2};
use flows::{FLOWS, Flows};
use mc_gateway_common::verdict::Event;
use nix::sys::signal::Signal;

/// Whether the long variants are wanted.
fn long() -> bool {
    std::env::var_os("MC_LONG").is_some_and(|value| value != "0" && !value.is_empty())
}

/// Every other gateway in turn, killed in every other way in turn: what is lost is lost by the flows of
/// that gateway only, always the same ones.
#[test]
fn flows_of_a_dead_gateway_move_and_only_those() {
    let trials = if long() { 200 } else { 12 };
    let mut bed = Bed::create("die");
    let flows = Flows::start(&bed);
    let mut outages = Vec::new();
    let mut moved: [Option<BTreeSet<usize>>; 2] = [None, None];
    for trial in 0..trials {
        let which = trial % 2;
        let victim = [G1, G2][which];
        let fault = [Fault::LinkDown, Fault::Freeze][trial / 2 % 2];
        let deaths = bed.count_log("gw-east", &format!("{} dead", bed::outside(victim)));
        let lives = bed.count_log("gw-east", &format!("{} alive", bed::outside(victim)));
        let before = flows.mark();
        bed.break_gateway(victim, fault);
        bed.wait_log("gw-east", &format!("{} dead", bed::outside(victim)), deaths + 1);
        flows.wait_all_after(Instant::now(), "traffic resumes");
        let lost = flows.lost_since(&before);
        assert!(!lost.is_empty(), "trial {trial}: {victim} carried no flow");
        outages.push(flows.longest_gap_since(&before, &lost));
        let expected = moved[which].get_or_insert_with(|| lost.clone());
        assert_eq!(
            &lost, expected,
            "trial {trial}: {fault:?} of {victim} hit other flows than before"
        );
        bed.heal_gateway(victim, fault);
        bed.wait_log("gw-east", &format!("{} alive", bed::outside(victim)), lives + 1);
        flows.wait_all_after(Instant::now(), "traffic after the gateway came back");
    }
    let [Some(first), Some(second)] = moved else {
        panic!("fewer than two trials");
    };
    assert!(first.is_disjoint(&second), "{first:?} and {second:?}");
    assert_eq!(
        first.len() + second.len(),
        FLOWS,
        "flows of no gateway: {first:?} {second:?}"
    );
    outages.sort();
    let at = |percent: usize| outages[(outages.len() * percent).div_ceil(100).saturating_sub(1)].as_millis();
    println!(
        "failover: {trials} trials, p50 {} p99 {} max {} ms",
        at(50),
        at(99),
        at(100)
    );
    assert!(
        outages.iter().all(|outage| *outage < Duration::from_secs(10)),
        "{outages:?}"
    );
}

#[test]
fn a_stopped_agent_kills_nobody() {
    let mut bed = Bed::create("stop");
    let flows = Flows::start(&bed);
    let before = flows.mark();
    for agent in ["gw-east", G1, "node-west"] {
        bed.signal_agent(agent, Signal::SIGSTOP);
    }
    let end = Instant::now() + Duration::from_secs(2);
    flows.wait_all_after(end, "traffic while agents are stopped");
    for agent in ["gw-east", G1, "node-west"] {
        bed.signal_agent(agent, Signal::SIGCONT);
    }
    // Long enough for every agent to have noticed whatever there is to notice.
    flows.wait_all_after(Instant::now() + Duration::from_secs(1), "traffic afterwards");
    assert_eq!(flows.lost_since(&before), BTreeSet::new());
    bed.assert_nobody_died();
}

#[test]
fn busy_cpus_make_no_false_failover() {
    let duration = Duration::from_secs(if long() { 600 } else { 20 });
    let bed = Bed::create("busy");
    let flows = Flows::start(&bed);
    let stop = AtomicBool::new(false);
    let cpus = thread::available_parallelism().expect("CPUs").get();
    thread::scope(|scope| {
        for _ in 0..2 * cpus {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            flows.wait_all_after(Instant::now() + duration, "traffic under load");
        }));
        stop.store(true, Ordering::Relaxed);
        waited.expect("traffic under load");
    });
    bed.assert_nobody_died();
    println!(
        "no false failover in {} s with all {cpus} CPUs busy",
        duration.as_secs()
    );
}

#[test]
fn with_all_gateways_dead_the_first_choice_is_used_and_counted() {
    let mut bed = Bed::create("all");
    let flows = Flows::start(&bed);
    let counted = bed.events("gw-east", Event::AllMembersDead);
    for victim in [G1, G2] {
        bed.break_gateway(victim, Fault::Freeze);
    }
    for victim in [G1, G2] {
        bed.wait_log("gw-east", &format!("{} dead", bed::outside(victim)), 1);
    }
    bed.wait("packets sent to the dead", |bed| {
        let now = bed.events("gw-east", Event::AllMembersDead);
        (now > counted + 100)
            .then_some(())
            .ok_or(format!("{counted}, then {now}"))
    });
    bed.heal_gateway(G1, Fault::Freeze);
    bed.wait_log("gw-east", &format!("{} alive", bed::outside(G1)), 1);
    flows.wait_all_after(Instant::now(), "traffic resumes by itself over one gateway");
    bed.heal_gateway(G2, Fault::Freeze);
    bed.wait_log("gw-east", &format!("{} alive", bed::outside(G2)), 1);
    flows.wait_all_after(Instant::now(), "traffic over both");
    let settled = bed.events("gw-east", Event::AllMembersDead);
    flows.wait_all_after(Instant::now() + Duration::from_millis(500), "traffic over both");
    assert_eq!(bed.events("gw-east", Event::AllMembersDead), settled);
}
