//! The controllers as they are, against simulated API servers, on simulated time, from a seed.
//!
//! One leader and two to four members run in one thread on paused time. Users, faults and deaths come from the seed,
//! and so does every delay: `MC_SIM_SEED=N` repeats a run and tells its story. After every write the rules of
//! [`rules`] are checked; when the faults stop, everything has to come to what [`truth`] says, within a bound, and to
//! stay there without a write. `MC_LONG=1` runs 50,000 seeds, otherwise the first 10,000, or as
//! many of them as fit into five minutes.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, and a simulation knows its indices"
)]

mod election;
mod goodbyes;
#[path = "../model/mod.rs"]
mod model;
mod ports;
mod rules;
mod run;
mod silence;
mod truth;
mod users;
mod wire;
mod world;
mod writes;

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use model::kinds::Kinds;
use run::{Outcome, Plan, Scenario, run};
use world::{Counts, Crash};

/// How long seeds are tried in the gate: two minutes and a half on two CPUs, and a slow machine has to come to an end.
const GATE: Duration = Duration::from_mins(8);
/// How many are tried in the long variant, at least.
const LONG: u64 = 50_000;
/// Seeds in the gate: always the same ones, so that a failure is of the change and not of the machine's speed.
const SHORT: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn add(total: &mut Counts, one: &Counts) {
    total.requests += one.requests;
    total.writes += one.writes;
    total.ours += one.ours;
    total.faults += one.faults;
    total.crashes += one.crashes;
}

/// How many threads there are for it.
fn width() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What all seeds came to.
#[derive(Default)]
struct Total {
    seeds: u64,
    counts: Counts,
    rest: Duration,
    ghosts: usize,
    failed: Vec<(u64, Vec<String>)>,
}

impl Total {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        add(&mut self.counts, &outcome.counts);
        self.rest = self.rest.max(outcome.rest);
        self.ghosts += outcome.ghosts;
        if !outcome.failures.is_empty() {
            self.failed.push((seed, outcome.failures));
        }
    }
}

#[test]
fn seeds() {
    let kinds = Arc::new(Kinds::new());
    if let Some(seed) = number("MC_SIM_SEED") {
        let outcome = run(seed, Plan::Random, &kinds, true);
        println!("{}", outcome.story.unwrap_or_default());
        println!(
            "seed {seed}: {:?}, at rest after {:?}",
            outcome.counts, outcome.rest
        );
        assert!(
            outcome.failures.is_empty(),
            "seed {seed}: {:#?}",
            outcome.failures
        );
        return;
    }
    let long = env::var_os("MC_LONG").is_some_and(|v| v != "0" && !v.is_empty());
    let most = number("MC_SIM_SEEDS").unwrap_or(if long { LONG } else { SHORT });
    let base = number("MC_SIM_BASE").unwrap_or(1);
    let gate = if long || number("MC_SIM_SEEDS").is_some() {
        Duration::MAX
    } else {
        GATE
    };
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let total = Mutex::new(Total::default());
    thread::scope(|scope| {
        for _ in 0..width() {
            scope.spawn(|| {
                while start.elapsed() < gate {
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
        println!("seed {seed} (MC_SIM_SEED={seed} repeats it and tells its story):");
        for failure in failures {
            println!("    {failure}");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "sim: seeds {base}..{}: {} seeds, {} failed, {:.0} seeds/s, {} writes checked ({} of controllers), {} requests, \
         {} faults, {} deaths, at rest after at most {:.0} s, {} leftovers",
        base + total.seeds,
        total.seeds,
        total.failed.len(),
        f64::from(u32::try_from(total.seeds).unwrap_or(u32::MAX)) / seconds,
        total.counts.writes,
        total.counts.ours,
        total.counts.requests,
        total.counts.faults,
        total.counts.crashes,
        total.rest.as_secs_f64(),
        total.ghosts,
    );
    assert!(total.failed.is_empty(), "{} seeds failed", total.failed.len());
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let kinds = Arc::new(Kinds::new());
    for seed in 1..=20 {
        let [a, b] = [(); 2].map(|()| run(seed, Plan::Random, &kinds, false));
        assert_eq!(a.trace, b.trace, "seed {seed}");
        assert_eq!(
            (a.counts.writes, a.counts.requests),
            (b.counts.writes, b.counts.requests),
            "seed {seed}"
        );
    }
}

/// Each controller dies before and after each of its writes, in each scenario.
#[test]
fn every_death_is_recovered_from() {
    let kinds = Arc::new(Kinds::new());
    let scenarios = [
        Scenario::Join,
        Scenario::Export,
        Scenario::Conflict,
        Scenario::Gateways,
        Scenario::Leave,
        Scenario::Silent,
    ];
    let mut deaths = vec![];
    for scenario in scenarios {
        let outcome = run(1, Plan::Fixed(scenario, None), &kinds, false);
        assert!(
            outcome.failures.is_empty(),
            "{scenario:?}: {:#?}",
            outcome.failures
        );
        assert_eq!(outcome.ghosts, 0, "{scenario:?}");
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
        for _ in 0..width() {
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
