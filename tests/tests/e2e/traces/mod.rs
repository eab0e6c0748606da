//! The model of an API server that the suite `sim` runs the controllers against, next to a real one: the same traces of
//! operations on both, and every answer and event has to be the same.
//!
//! What servers make up themselves (UIDs, versions, addresses, times) is compared by where it is the same and, for
//! versions, by order; `managedFields` by what they lead to. `MC_TRACE_SEED=N` repeats one trace; a difference is
//! shown with the shortest trace that leads to it.

mod body;
mod modelled;
mod names;
mod op;
mod place;
mod real;
mod run;
mod side;

use std::env;

use op::Op;
use run::{Counts, Difference, Pair};
use side::Side;

use crate::api::wait;

/// Traces in the gate: always the same ones.
const SHORT: u64 = 16;
/// In the long variant.
const LONG: u64 = 300;
/// Operations in each, beside lists at its begin, watches at its end and the removal of everything.
const LENGTH: usize = 50;
/// How often a trace that fails is tried again to make it shorter.
const TRIES: usize = 150;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// A trace on both servers, from nothing.
async fn compare(real: &real::Server, kinds: &[body::Kind], ops: &[Op]) -> (Counts, Result<(), Difference>) {
    let model = modelled::client();
    let spaces = real::furnish(&model).await;
    let mut pair = Pair {
        model: Side::new(model, spaces),
        real: Side::new(real.client.clone(), real.spaces.clone()),
        counts: Counts::default(),
    };
    let result = pair.run(kinds, ops).await;
    if result.is_err() {
        real.clear().await;
    }
    (pair.counts, result)
}

/// The shortest trace that still leads to a difference, and that difference.
async fn shortest(
    real: &real::Server,
    kinds: &[body::Kind],
    ops: Vec<Op>,
    first: Difference,
) -> (Vec<Op>, Difference) {
    let (mut ops, mut found, mut tries) = (ops, first, 0);
    ops.truncate(found.after);
    // Half of it, a quarter, ..., one operation at a time.
    let mut size = ops.len().div_ceil(2);
    while size > 0 && tries < TRIES {
        let mut at = 0;
        let mut shorter = false;
        while at < ops.len() && tries < TRIES {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            tries += 1;
            match compare(real, kinds, &fewer).await.1 {
                Ok(()) => at += size,
                Err(difference) => {
                    fewer.truncate(difference.after);
                    (ops, found, shorter) = (fewer, difference, true);
                }
            }
        }
        if !shorter || size > 1 {
            size /= 2;
        }
    }
    (ops, found)
}

async fn traces() {
    let real = real::Server::open().await;
    let long = env::var_os("MC_LONG").is_some_and(|v| v != "0" && !v.is_empty());
    let seeds = match number("MC_TRACE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("MC_TRACE_SEEDS").unwrap_or(if long { LONG } else { SHORT }),
    };
    let (mut all, mut failed) = (Counts::default(), vec![]);
    for seed in seeds.clone() {
        let (kinds, ops) = op::trace(seed, LENGTH);
        let (counts, result) = compare(&real, &kinds, &ops).await;
        all.answers += counts.answers;
        all.events += counts.events;
        let Err(difference) = result else { continue };
        let place = format!(
            "seed {seed} (MC_TRACE_SEED={seed} repeats it), operation {} of {LENGTH}",
            difference.after
        );
        println!("{place}: {}", difference.tell());
        failed.push(seed);
        if failed.len() <= 3 {
            let (ops, difference) = shortest(&real, &kinds, ops, difference).await;
            println!("the shortest trace found that comes to a difference:");
            for op in ops {
                println!("  {op}");
            }
            println!("{}", difference.tell());
        }
    }
    real.close().await;
    println!(
        "faults: the model and a real API server answer alike: {} traces, {} answers, {} events, {} differ",
        seeds.end - seeds.start,
        all.answers,
        all.events,
        failed.len()
    );
    assert!(failed.is_empty(), "seeds that differ: {failed:?}");
}

#[test]
fn the_model_answers_as_a_real_server_does() {
    wait(traces());
}
