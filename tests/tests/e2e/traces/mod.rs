//! The fake API server of the suite `sim` compared with a real one: the same traces of operations on both must give the
//! same responses and events.
//!
//! Server-generated values (UIDs, versions, addresses, times) are compared by identity and, for versions, by order;
//! `managedFields` by their effects. `MC_TRACE_SEED=N` repeats one trace; a difference is shown with the shortest trace
//! that produces it.

mod body;
mod fake_server;
mod normalize;
mod object_ref;
mod op;
mod real_server;
mod run;
mod server;

use std::env;

use mc_tests::fixture::is_long_run;
use op::Op;
use run::{Counts, Difference, Pair};
use server::Server;

use crate::api::wait;

/// Traces of the gate, always the same.
const GATE_TRACES: u64 = 16;
/// Traces of the long variant.
const LONG_TRACES: u64 = 300;
/// Operations per trace, besides the initial lists, the final watches and the clean-up.
const TRACE_LENGTH: usize = 50;
/// Limit of attempts to shorten a failing trace.
const MAX_SHRINK_ATTEMPTS: usize = 150;

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Runs a trace on both servers, starting empty.
async fn compare(
    real: &real_server::Server,
    kinds: &[body::Kind],
    ops: &[Op],
) -> (Counts, Result<(), Difference>) {
    let model = fake_server::client();
    let namespaces = real_server::create_namespaces(&model).await;
    let mut pair = Pair {
        model: Server::new(model, namespaces),
        real: Server::new(real.client.clone(), real.namespaces.clone()),
        counts: Counts::default(),
    };
    let result = pair.run(kinds, ops).await;
    if result.is_err() {
        real.clear().await;
    }
    (pair.counts, result)
}

/// The shortest trace that still produces a difference.
async fn shortest(
    real: &real_server::Server,
    kinds: &[body::Kind],
    ops: Vec<Op>,
    first: Difference,
) -> (Vec<Op>, Difference) {
    let (mut ops, mut found, mut tries) = (ops, first, 0);
    ops.truncate(found.after);
    // Drops half of it, a quarter, ..., single operations.
    let mut size = ops.len().div_ceil(2);
    while size > 0 && tries < MAX_SHRINK_ATTEMPTS {
        let mut at = 0;
        let mut shorter = false;
        while at < ops.len() && tries < MAX_SHRINK_ATTEMPTS {
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
    let real = real_server::Server::open().await;
    let long = is_long_run();
    let seeds = match env_number("MC_TRACE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + env_number("MC_TRACE_SEEDS").unwrap_or(if long { LONG_TRACES } else { GATE_TRACES }),
    };
    let (mut all, mut failed) = (Counts::default(), vec![]);
    for seed in seeds.clone() {
        let (kinds, ops) = op::trace(seed, TRACE_LENGTH);
        let (counts, result) = compare(&real, &kinds, &ops).await;
        all.answers += counts.answers;
        all.events += counts.events;
        let Err(difference) = result else { continue };
        let object = format!(
            "seed {seed} (MC_TRACE_SEED={seed} repeats it), operation {} of {TRACE_LENGTH}",
            difference.after
        );
        println!("{object}: {}", difference.describe());
        failed.push(seed);
        if failed.len() <= 3 {
            let (ops, difference) = shortest(&real, &kinds, ops, difference).await;
            println!("the shortest trace found that produces a difference:");
            for op in ops {
                println!("  {op}");
            }
            println!("{}", difference.describe());
        }
    }
    real.close().await;
    println!(
        "faults: the fake and a real API server compared: {} traces, {} answers, {} events, {} differ",
        seeds.end - seeds.start,
        all.answers,
        all.events,
        failed.len()
    );
    assert!(failed.is_empty(), "seeds that differ: {failed:?}");
}

#[test]
fn the_fake_api_server_answers_like_a_real_one() {
    wait(traces());
}
