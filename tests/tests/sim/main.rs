//! Simulation of the controllers against fake API servers on virtual time, deterministic by seed.
//!
//! One leader and two to four members run in one thread on paused time. The seed decides user actions, faults, crashes
//! and delays; `MC_SIM_SEED=N` repeats a run and prints its log. [`invariants`] are checked after every write. After
//! the faults stop, all clusters must converge to [`expected_state`] within a bound and stay there without a write.
//! `MC_LONG=1` runs 50,000 seeds, the gate the first 4,000.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, and a simulation knows its indices"
)]

mod accounts;
mod apply_requests;
mod cloned_cluster;
mod deregistration;
mod election;
mod empty_leader;
mod endpoint_ranges;
mod expected_state;
mod foreign_writes;
mod heartbeats;
mod import_failures;
mod invariants;
mod kept_objects;
mod label_numbers;
mod member_namespaces;
mod network_history;
mod pending_deletions;
mod pod_restart;
mod policies;
mod ports;
mod reachability;
mod replaced_cluster_set;
mod run;
mod simulation;
mod strangers;
mod transport;
mod user_actions;

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cloned_cluster::Backup;
use empty_leader::Lost;
use mc_test_kit::fake_apiserver::resources::Scheme;
use run::{Outcome, PROMISED_CONVERGENCE, Plan, Scenario, run};
use simulation::{Counts, Crash};

/// Seeds of the long variant.
const LONG_SEEDS: u64 = 50_000;
/// Seeds of the gate, always the same: a failure comes from the change, not from the machine's speed.
const GATE_SEEDS: u64 = 4000;

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn add(total: &mut Counts, one: &Counts) {
    total.requests += one.requests;
    total.writes += one.writes;
    total.controller_writes += one.controller_writes;
    total.faults += one.faults;
    total.crashes += one.crashes;
    total.ended_waits += one.ended_waits;
}

/// One worker thread per CPU.
fn worker_threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Results of all seeds.
#[derive(Default)]
struct Summary {
    seeds: u64,
    counts: Counts,
    /// Times to converge, with the seeds.
    settle_times: Vec<(Duration, u64)>,
    leftovers: usize,
    failed: Vec<(u64, Vec<String>)>,
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        add(&mut self.counts, &outcome.counts);
        self.settle_times.push((outcome.settle_time, seed));
        self.leftovers += outcome.leftovers;
        if !outcome.failures.is_empty() {
            self.failed.push((seed, outcome.failures));
        }
    }
}

#[test]
fn seeds() {
    let kinds = Arc::new(Scheme::new());
    if let Some(seed) = env_number("MC_SIM_SEED") {
        let outcome = run(seed, Plan::Random, &kinds, true);
        println!("{}", outcome.log.unwrap_or_default());
        println!(
            "seed {seed}: {:?}, converged after {:?}",
            outcome.counts, outcome.settle_time
        );
        assert!(
            outcome.failures.is_empty(),
            "seed {seed}: {:#?}",
            outcome.failures
        );
        return;
    }
    let long = env::var_os("MC_LONG").is_some_and(|v| v != "0" && !v.is_empty());
    let most = env_number("MC_SIM_SEEDS").unwrap_or(if long { LONG_SEEDS } else { GATE_SEEDS });
    let base = env_number("MC_SIM_BASE").unwrap_or(1);
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let total = Mutex::new(Summary::default());
    thread::scope(|scope| {
        for _ in 0..worker_threads() {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= most {
                        break;
                    }
                    let outcome = run(base + index, Plan::Random, &kinds, false);
                    total.lock().expect("no thread panics").add(base + index, outcome);
                }
            });
        }
    });
    let mut total = total.into_inner().expect("no thread panics");
    total.failed.sort();
    for (seed, failures) in total.failed.iter().take(10) {
        println!("seed {seed} (MC_SIM_SEED={seed} repeats it and prints its log):");
        for failure in failures {
            println!("    {failure}");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let slowest = total.settle_times.iter().max().copied().unwrap_or_default();
    let times = total.settle_times.into_iter();
    let slow: Vec<_> = times.filter(|(time, _)| *time > PROMISED_CONVERGENCE).collect();
    println!(
        "sim: seeds {base}..{}: {} seeds, {} failed, {:.0} seeds/s, {} writes checked ({} of controllers), {} requests, \
         {} faults, {} deaths, converged after at most {:.0} s (seed {}), {} leftovers, {} waits for departed clusters ended",
        base + total.seeds,
        total.seeds,
        total.failed.len(),
        f64::from(u32::try_from(total.seeds).unwrap_or(u32::MAX)) / seconds,
        total.counts.writes,
        total.counts.controller_writes,
        total.counts.requests,
        total.counts.faults,
        total.counts.crashes,
        slowest.0.as_secs_f64(),
        slowest.1,
        total.leftovers,
        total.counts.ended_waits,
    );
    assert!(total.failed.is_empty(), "{} seeds failed", total.failed.len());
    assert!(
        total.counts.ended_waits <= (total.seeds / 500).max(2),
        "members have new leaders for too long: {} waits were ended",
        total.counts.ended_waits
    );
    assert!(
        slow.is_empty(),
        "seeds that converged after more than {PROMISED_CONVERGENCE:?}: {slow:?}"
    );
}

#[test]
fn a_seed_is_deterministic() {
    let kinds = Arc::new(Scheme::new());
    for seed in 1..=20 {
        let [a, b] = [(); 2].map(|()| run(seed, Plan::Random, &kinds, false));
        assert_eq!(a.trace_hash, b.trace_hash, "seed {seed}");
        assert_eq!(
            (a.counts.writes, a.counts.requests),
            (b.counts.writes, b.counts.requests),
            "seed {seed}"
        );
    }
}

/// A member keeps many imports that a restored leader lacks.
#[test]
fn an_empty_leader_removes_no_imports() {
    let scenario = Plan::Fixed(Scenario::EmptyLeader(Lost::ManyServices), None);
    let outcome = run(1, scenario, &Arc::new(Scheme::new()), false);
    assert!(outcome.failures.is_empty(), "{:#?}", outcome.failures);
}

/// C1 of the review of the control plane: a member that joined a new leader first deleted its imports.
#[test]
fn a_new_leader_removes_no_imports() {
    for seed in 1..=20 {
        let scenario = Plan::Fixed(Scenario::EmptyLeader(Lost::Everything), None);
        let outcome = run(seed, scenario, &Arc::new(Scheme::new()), false);
        assert!(
            outcome.failures.is_empty(),
            "seed {seed}: {:#?}",
            outcome.failures
        );
    }
}

/// A cluster that was restored from a backup leaves the objects of its original alone.
#[test]
fn a_copy_of_a_cluster_changes_nothing() {
    let outcome = run(
        1,
        Plan::Fixed(Scenario::ClonedCluster(Backup::Objects), None),
        &Arc::new(Scheme::new()),
        false,
    );
    assert!(outcome.failures.is_empty(), "{:#?}", outcome.failures);
}

/// The same for a cluster whose etcd was copied.
#[test]
fn a_copy_of_etcd_changes_nothing() {
    for seed in 1..=20 {
        let outcome = run(
            seed,
            Plan::Fixed(Scenario::ClonedCluster(Backup::Etcd), None),
            &Arc::new(Scheme::new()),
            false,
        );
        assert!(
            outcome.failures.is_empty(),
            "seed {seed}: {:#?}",
            outcome.failures
        );
    }
}

/// Crashes each controller before and after each of its writes, in each scenario.
#[test]
fn every_crash_is_recovered_from() {
    let kinds = Arc::new(Scheme::new());
    let scenarios = [
        Scenario::Join,
        Scenario::Export,
        Scenario::PodRestart,
        Scenario::ReplacedClusterSet,
        Scenario::Conflict,
        Scenario::Gateways,
        Scenario::Leave,
        Scenario::StaleMember,
        Scenario::Identities,
    ];
    let mut deaths = vec![];
    for scenario in scenarios {
        let outcome = run(1, Plan::Fixed(scenario, None), &kinds, false);
        assert!(
            outcome.failures.is_empty(),
            "{scenario:?}: {:#?}",
            outcome.failures
        );
        assert_eq!(outcome.leftovers, 0, "{scenario:?}");
        for (actor, writes) in outcome.writes {
            for write in 1..=writes {
                for after in [false, true] {
                    deaths.push((scenario, Crash { actor, write, after }));
                }
            }
        }
    }
    let (next, failed) = (AtomicU64::new(0), Mutex::new(vec![]));
    thread::scope(|scope| {
        for _ in 0..worker_threads() {
            scope.spawn(|| {
                while let Some((scenario, crash)) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                    .ok()
                    .and_then(|i| deaths.get(i))
                {
                    let outcome = run(1, Plan::Fixed(*scenario, Some(*crash)), &kinds, false);
                    if !outcome.failures.is_empty() {
                        let what = format!("{scenario:?}, {crash:?}: {:#?}", outcome.failures);
                        failed.lock().expect("no thread panics").push(what);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panics");
    println!(
        "sim: {} deaths at writes of {} scenarios, {} not recovered from",
        deaths.len(),
        scenarios.len(),
        failed.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
