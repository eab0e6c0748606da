//! Gateways that die, freeze and come back, under numbered datagrams of many flows.
//!
//! Runs as root with `MC_AGENT` naming the agent, one test after the other: `cargo xtask test --suite
//! failover`; `MC_LONG=1` makes the runs long. Outages are printed; only generous deadlines are asserted.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    env, hint,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use mc_gateway_common::verdict::{DropReason, Event};
use mc_tests::{
    bench::sample::percentile,
    counters::Counters,
    failover::{self, FLOWS, Flows, SOON, State, Trials, VICTIMS},
    topology::{Fault, Place, Topology},
    wait::wait_for,
};
use nix::sys::signal::Signal;

/// Whether the long variants are wanted.
fn long() -> bool {
    env::var_os("MC_LONG").is_some_and(|value| value != "0" && !value.is_empty())
}

fn agent() -> PathBuf {
    env::var_os("MC_AGENT")
        .map(PathBuf::from)
        .expect("MC_AGENT names the agent: run `cargo xtask test --suite failover`")
}

fn prefix(name: &str) -> String {
    let start = env::var("MC_PREFIX").unwrap_or_else(|_| "lv".to_owned());
    format!("{start}-{name}")
}

fn started(name: &str) -> (Flows, Topology) {
    let mut bed = failover::bed(&prefix(name), agent()).expect("two clusters");
    let flows = Flows::start(&bed).expect("traffic");
    failover::wait_settled(&mut bed).expect("all alive");
    (flows, bed)
}

/// Every other gateway in turn, killed in every other way in turn: what is lost is lost by the flows of
/// that gateway only, always the same ones.
#[test]
fn flows_of_a_dead_gateway_move_and_only_those() {
    let trials = if long() { 200 } else { 12 };
    let mut dying = Trials::create(&prefix("die"), agent()).expect("two clusters");
    let outages: Vec<f64> = (0..trials)
        .map(|_| dying.next_outage().expect("a trial").as_secs_f64() * 1e3)
        .collect();
    let [first, second] = dying.moved().expect("two trials");
    assert!(first.is_disjoint(second), "{first:?} and {second:?}");
    assert_eq!(
        first.len() + second.len(),
        FLOWS,
        "flows of no gateway: {first:?} {second:?}"
    );
    let at = |percent| percentile(outages.iter().copied(), percent).unwrap_or_default();
    println!(
        "failover: {trials} trials, p50 {:.0} p99 {:.0} max {:.0} ms",
        at(50),
        at(99),
        at(100)
    );
    assert!(at(100) < 10_000.0, "{outages:?}");
}

#[test]
fn a_stopped_agent_kills_nobody() {
    const STOPPED: [Place; 3] = [Place::GatewayEast, Place::GatewayWest, Place::NodeWest];
    let (flows, mut bed) = started("stop");
    let alive = failover::deaths(&mut bed).expect("counts");
    let before = flows.mark();
    for place in STOPPED {
        bed.signal_agent(place, Signal::SIGSTOP).expect("SIGSTOP");
    }
    let end = Instant::now() + Duration::from_secs(2);
    flows
        .wait_all_after(end, "traffic while agents are stopped")
        .expect("traffic");
    for place in STOPPED {
        bed.signal_agent(place, Signal::SIGCONT).expect("SIGCONT");
    }
    // Long enough for every agent to have noticed whatever there is to notice.
    flows
        .wait_all_after(Instant::now() + Duration::from_secs(1), "traffic afterwards")
        .expect("traffic");
    assert_eq!(flows.lost_since(&before), BTreeSet::new());
    assert_eq!(failover::deaths(&mut bed).expect("counts"), alive);
}

#[test]
fn busy_cpus_make_no_false_failover() {
    let duration = Duration::from_secs(if long() { 3600 } else { 20 });
    let (flows, mut bed) = started("busy");
    let alive = failover::deaths(&mut bed).expect("counts");
    let stop = AtomicBool::new(false);
    let cpus = thread::available_parallelism().expect("CPUs").get();
    let waited = thread::scope(|scope| {
        for _ in 0..2 * cpus {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let waited = flows.wait_all_after(Instant::now() + duration, "traffic under load");
        stop.store(true, Ordering::Relaxed);
        waited
    });
    waited.expect("traffic under load");
    assert_eq!(failover::deaths(&mut bed).expect("counts"), alive);
    println!(
        "no false failover in {} s with all {cpus} CPUs busy",
        duration.as_secs()
    );
}

#[test]
fn with_all_gateways_dead_the_first_choice_is_used_and_counted() {
    let (flows, mut bed) = started("all");
    let counted = |bed: &Topology| {
        let counts = failover::WITNESSES
            .map(|place| failover::events(bed, place, Event::AllMembersDead).expect("a count"));
        counts.iter().sum::<u64>()
    };
    let before = counted(&bed);
    for victim in VICTIMS {
        bed.break_gateway(victim, Fault::Freeze).expect("a fault");
    }
    for victim in VICTIMS {
        failover::wait_seen(&mut bed, victim, State::Dead, [0, 0]).expect("death");
    }
    wait_for("packets sent to the dead", SOON, || {
        let now = counted(&bed);
        (now > before + 100)
            .then_some(())
            .ok_or(format!("{before}, then {now}"))
    })
    .expect("packets");
    for (victim, what) in [
        (VICTIMS[0], "traffic resumes by itself over one gateway"),
        (VICTIMS[1], "traffic over both"),
    ] {
        let lives = failover::seen(&mut bed, victim, State::Alive).expect("logs");
        bed.heal_gateway(victim, Fault::Freeze).expect("no fault");
        failover::wait_seen(&mut bed, victim, State::Alive, lives).expect("life");
        flows.wait_all_after(Instant::now(), what).expect("traffic");
    }
    let settled = counted(&bed);
    let end = Instant::now() + Duration::from_millis(500);
    flows.wait_all_after(end, "traffic over both").expect("traffic");
    assert_eq!(counted(&bed), settled);
}

/// A gateway whose program is gone and where a process answers the probes, not as the program would.
#[test]
fn a_peer_that_answers_with_garbage_or_too_late_is_dead_and_harmless() {
    const LIAR: Place = VICTIMS[1];
    let (flows, mut bed) = started("lie");
    for (lie, counted) in [
        (
            "garbage",
            &[
                DropReason::ProbeMalformed,
                DropReason::ProbeMember,
                DropReason::ProbeUnsent,
            ][..],
        ),
        ("late", &[DropReason::ProbeLate]),
    ] {
        let deaths = failover::seen(&mut bed, LIAR, State::Dead).expect("logs");
        let lives = failover::seen(&mut bed, LIAR, State::Alive).expect("logs");
        bed.stop_agent(LIAR).expect("SIGTERM");
        bed.cleanup_agent(LIAR).expect("cleanup");
        let process = bed
            .traffic()
            .serve(bed.netns(LIAR), &["liar", lie])
            .expect("a liar");
        failover::wait_seen(&mut bed, LIAR, State::Dead, deaths).expect("death");
        flows
            .wait_all_after(Instant::now(), "traffic over the other gateway")
            .expect("traffic");
        let quiet = flows.mark();
        let before = refused_answers(&bed, counted);
        wait_for(&format!("refused answers ({lie})"), SOON, || {
            let now = refused_answers(&bed, counted);
            let more = now.iter().zip(&before).all(|(now, before)| *now > before + 5);
            more.then_some(()).ok_or(format!("{before:?}, then {now:?}"))
        })
        .expect("refused answers");
        // However long it goes on, nobody believes it, and nobody loses a packet.
        flows
            .wait_all_after(
                Instant::now() + Duration::from_secs(3),
                "traffic while it goes on",
            )
            .expect("traffic");
        assert_eq!(flows.lost_since(&quiet), BTreeSet::new(), "{lie}");
        assert_eq!(
            failover::seen(&mut bed, LIAR, State::Alive).expect("logs"),
            lives,
            "{lie}: believed"
        );
        drop(process);
        bed.start_agent(LIAR).expect("an agent");
        failover::wait_seen(&mut bed, LIAR, State::Alive, lives).expect("life");
        flows
            .wait_all_after(Instant::now(), "traffic over both")
            .expect("traffic");
        println!("{lie}: refused {before:?} and more, nothing believed");
    }
    for witness in failover::WITNESSES {
        let log = bed.agent_log(witness).expect("a log");
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// How often each witness has refused an answer for each reason.
fn refused_answers(bed: &Topology, reasons: &[DropReason]) -> Vec<u64> {
    let witnesses = failover::WITNESSES.iter().flat_map(|witness| {
        let drops = Counters::read(&bed.bpf_dir(*witness)).expect("counters").drops;
        reasons
            .iter()
            .map(move |reason| drops.get(reason.name()).copied().unwrap_or_default())
    });
    witnesses.collect()
}
