//! Gateway failures and repairs under numbered datagrams of many flows.
//!
//! Runs as root, one test at a time, with the path of the agent in `MC_AGENT`: `cargo xtask test --suite failover`;
//! `MC_LONG=1` selects long runs. The promised limits of an outage are asserted.
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
    failover::{self, FLOWS, Flows, Liveness, Probing, TIMEOUT, Trials, VICTIMS},
    topology::{Cluster, Family, Fault, Place, Topology},
    wait::wait_for,
};
use nix::sys::signal::Signal;

/// Longest promised outage in milliseconds.
const MAX_OUTAGE_MS: f64 = 1_000.0;

/// The promised 99th percentile of outages in milliseconds, which only a long run has enough trials for.
fn promised_p99(probing: Probing) -> f64 {
    match probing {
        Probing::Default => 400.0,
        Probing::Fast => 150.0,
    }
}

/// Whether long runs are selected.
fn long() -> bool {
    env::var_os("MC_LONG").is_some_and(|value| value != "0" && !value.is_empty())
}

fn agent() -> PathBuf {
    env::var_os("MC_AGENT")
        .map(PathBuf::from)
        .expect("MC_AGENT is the path of the agent: run `cargo xtask test --suite failover`")
}

fn prefix(name: &str) -> String {
    let start = env::var("MC_PREFIX").unwrap_or_else(|_| "lv".to_owned());
    format!("{start}-{name}")
}

fn start(name: &str, probing: Probing) -> (Flows, Topology) {
    let mut bed = failover::create_topology(&prefix(name), agent(), probing).expect("two clusters");
    let flows = Flows::start(&bed).expect("traffic");
    failover::wait_all_alive(&mut bed).expect("all alive");
    (flows, bed)
}

/// Alternating victims and faults: only the victim's flows lose datagrams, the same ones each time.
#[test]
fn only_the_flows_of_a_dead_gateway_move() {
    fail_gateways(Probing::Default, if long() { 200 } else { 12 });
}

#[test]
fn probes_each_30_ms_shorten_the_outage() {
    fail_gateways(Probing::Fast, if long() { 200 } else { 4 });
}

fn fail_gateways(probing: Probing, trials: usize) {
    let mut dying = Trials::create(&prefix("die"), agent(), probing).expect("two clusters");
    let outages: Vec<f64> = (0..trials)
        .map(|_| dying.next_outage().expect("a trial").as_secs_f64() * 1e3)
        .collect();
    let [first, second] = dying.flows_by_victim().expect("two trials");
    assert!(first.is_disjoint(second), "{first:?} and {second:?}");
    assert_eq!(
        first.len() + second.len(),
        FLOWS,
        "flows without a gateway: {first:?} {second:?}"
    );
    let at = |percent| percentile(outages.iter().copied(), percent).unwrap_or_default();
    println!(
        "failover with probing {probing:?}: {trials} trials, p50 {:.0} p99 {:.0} max {:.0} ms",
        at(50),
        at(99),
        at(100)
    );
    assert!(
        at(100) <= MAX_OUTAGE_MS,
        "promised: {MAX_OUTAGE_MS} ms; {outages:?}"
    );
    if long() {
        let promised = promised_p99(probing);
        assert!(at(99) <= promised, "promised: {promised} ms; {outages:?}");
    }
}

#[test]
fn a_stopped_agent_causes_no_failover() {
    const STOPPED: [Place; 3] = [Place::GatewayEast, Place::GatewayWest, Place::NodeWest];
    let (flows, mut bed) = start("stop", Probing::Default);
    let alive = failover::death_counts(&mut bed).expect("counts");
    let before = flows.checkpoint();
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
    // Longer than the detection time.
    flows
        .wait_all_after(Instant::now() + Duration::from_secs(1), "traffic afterwards")
        .expect("traffic");
    assert_eq!(flows.lost_since(&before), BTreeSet::new());
    assert_eq!(failover::death_counts(&mut bed).expect("counts"), alive);
}

#[test]
fn busy_cpus_cause_no_failover() {
    let duration = Duration::from_secs(if long() { 3600 } else { 20 });
    let (flows, mut bed) = start("busy", Probing::Fast);
    let alive = failover::death_counts(&mut bed).expect("counts");
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
    assert_eq!(failover::death_counts(&mut bed).expect("counts"), alive);
    println!(
        "no false failover in {} s with all {cpus} CPUs busy",
        duration.as_secs()
    );
}

#[test]
fn with_all_gateways_dead_the_preferred_one_is_used_and_counted() {
    let (flows, mut bed) = start("all", Probing::Default);
    let counted = |bed: &Topology| {
        let counts = failover::OBSERVERS
            .map(|place| failover::event_count(bed, place, Event::AllNextHopsDead).expect("a count"));
        counts.iter().sum::<u64>()
    };
    let before = counted(&bed);
    for victim in VICTIMS {
        bed.inject_fault(victim, Fault::Freeze).expect("a fault");
    }
    for victim in VICTIMS {
        failover::wait_transition(&mut bed, victim, Liveness::Dead, [0, 0]).expect("death");
    }
    wait_for("packets to dead next hops", TIMEOUT, || {
        let now = counted(&bed);
        (now > before + 100)
            .then_some(())
            .ok_or(format!("{before} before, {now} now"))
    })
    .expect("packets");
    for (victim, what) in [
        (VICTIMS[0], "traffic over one gateway"),
        (VICTIMS[1], "traffic over both gateways"),
    ] {
        let lives = failover::transitions(&mut bed, victim, Liveness::Alive).expect("logs");
        bed.clear_fault(victim, Fault::Freeze).expect("no fault");
        failover::wait_transition(&mut bed, victim, Liveness::Alive, lives).expect("life");
        flows.wait_all_after(Instant::now(), what).expect("traffic");
    }
    let settled = counted(&bed);
    let end = Instant::now() + Duration::from_millis(500);
    flows.wait_all_after(end, "traffic over both").expect("traffic");
    assert_eq!(counted(&bed), settled);
}

/// Arguments of `mc-traffic` for a process that knows the secrets of the victim.
fn fake_prober(bed: &Topology, victim: Place, fault: &str) -> Vec<String> {
    let mut args = vec!["fake-prober".to_owned(), fault.to_owned()];
    for cluster in Cluster::ALL {
        let nets = cluster.nets(Family::V4);
        let [first, second] = [cluster.gateway(), cluster.second_gateway()];
        let peers = [
            (nets.node, cluster.node()),
            (nets.internal[0], first),
            (nets.gateway[0], first),
            (nets.internal[1], second),
            (nets.gateway[1], second),
        ];
        for (net, place) in peers {
            let mac = bed
                .source_mac(victim, place)
                .bytes()
                .map(|byte| format!("{byte:02x}"));
            args.push(format!("--secret={}={}", net.addr(), mac.join(":")));
        }
    }
    args
}

/// A process replies incorrectly to probes in place of a gateway's program.
#[test]
fn a_peer_with_malformed_or_late_replies_is_dead_and_harmless() {
    const VICTIM: Place = VICTIMS[1];
    let (flows, mut bed) = start("probes", Probing::Default);
    for (fault, counted) in [
        (
            "garbage",
            &[
                DropReason::ProbeMalformed,
                DropReason::ProbeNextHop,
                DropReason::ProbeUnsent,
            ][..],
        ),
        ("late", &[DropReason::ProbeStale]),
    ] {
        let deaths = failover::transitions(&mut bed, VICTIM, Liveness::Dead).expect("logs");
        let lives = failover::transitions(&mut bed, VICTIM, Liveness::Alive).expect("logs");
        bed.stop_agent(VICTIM).expect("SIGTERM");
        bed.cleanup_agent(VICTIM).expect("cleanup");
        let args = fake_prober(&bed, VICTIM, fault);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let process = bed
            .traffic()
            .serve(bed.netns(VICTIM), &args)
            .expect("a fake prober");
        failover::wait_transition(&mut bed, VICTIM, Liveness::Dead, deaths).expect("death");
        flows
            .wait_all_after(Instant::now(), "traffic over the other gateway")
            .expect("traffic");
        let quiet = flows.checkpoint();
        let before = dropped_replies(&bed, counted);
        wait_for(&format!("dropped replies ({fault})"), TIMEOUT, || {
            let now = dropped_replies(&bed, counted);
            let more = now.iter().zip(&before).all(|(now, before)| *now > before + 5);
            more.then_some(())
                .ok_or(format!("{before:?} before, {now:?} now"))
        })
        .expect("dropped replies");
        // The victim stays dead, and no packet is lost.
        flows
            .wait_all_after(Instant::now() + Duration::from_secs(3), "traffic meanwhile")
            .expect("traffic");
        assert_eq!(flows.lost_since(&quiet), BTreeSet::new(), "{fault}");
        assert_eq!(
            failover::transitions(&mut bed, VICTIM, Liveness::Alive).expect("logs"),
            lives,
            "{fault}: accepted"
        );
        drop(process);
        bed.start_agent(VICTIM).expect("an agent");
        failover::wait_transition(&mut bed, VICTIM, Liveness::Alive, lives).expect("life");
        flows
            .wait_all_after(Instant::now(), "traffic over both gateways")
            .expect("traffic");
        println!("{fault}: {before:?} replies dropped so far, none accepted");
    }
    for witness in failover::OBSERVERS {
        let log = bed.agent_log(witness).expect("a log");
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Probe replies dropped by each observer for each reason.
fn dropped_replies(bed: &Topology, reasons: &[DropReason]) -> Vec<u64> {
    let witnesses = failover::OBSERVERS.iter().flat_map(|witness| {
        let drops = Counters::read(&bed.bpf_dir(*witness)).expect("counters").drops;
        reasons
            .iter()
            .map(move |reason| drops.get(reason.name()).copied().unwrap_or_default())
    });
    witnesses.collect()
}
