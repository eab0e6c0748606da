//! Open connections continue through every kind of event: none is cut except those of a documented class.
//!
//! Runs as root with the path of the agent in `MC_AGENT`: `cargo xtask test --suite continuity`. `MC_LONG=1` opens
//! 1,000 connections instead of 100, and `MC_AGENT_PREVIOUS` is the agent of the previous release. `MC_EVENTS` limits
//! the run to events whose names contain one of its words, separated by commas.
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

mod connection;
mod events;
mod objects;
mod pool;
mod runtime;
mod server;
mod wire;
mod world;

use std::{env, time::Instant};

use anyhow::{Context as _, Result, ensure};
use mc_tests::{fixture, skip::skipped};

use crate::{
    events::{Allowed, Event},
    pool::{Report, list, mixture},
    world::{World, previous_agent},
};

/// Applies an event, checks all connections and prints a line.
fn run_event(world: &mut World, event: &Event) -> Result<usize> {
    if event.reopen {
        world.reopen()?;
    }
    let before = world.deaths();
    let start = Instant::now();
    let allowed = (event.apply)(world).context("the event")?;
    let Report {
        cut,
        longest_pause,
        errors,
    } = world.pool.check()?;
    world.of_stack.retain(|id| cut.iter().all(|cut| cut.id != *id));
    let deaths: usize = world
        .deaths()
        .iter()
        .map(|(place, count)| count.saturating_sub(before.get(place).copied().unwrap_or_default()))
        .sum();
    println!(
        "{:<52} {:>3} cut, longest pause {:>5} ms, {errors:>2} UDP errors, {deaths:>2} next hops dead; {:.1} s{}",
        event.name,
        cut.len(),
        longest_pause.as_millis(),
        start.elapsed().as_secs_f32(),
        allowed
            .class()
            .map_or_else(String::new, |class| format!("; expected: {class}")),
    );
    let unexpected: Vec<_> = cut.iter().filter(|cut| !allowed.contains(cut.id)).collect();
    ensure!(
        unexpected.is_empty(),
        "{} of {} connections cut:\n  {}",
        unexpected.len(),
        world.pool.len(),
        list(unexpected)
    );
    if let Allowed::Exactly { count, class, .. } = allowed {
        ensure!(
            cut.len() == count,
            "{} cut, {count} expected ({class}):\n  {}",
            cut.len(),
            list(&cut)
        );
    }
    Ok(cut.len())
}

/// Whether `MC_EVENTS` selects an event.
fn is_selected(event: &Event) -> bool {
    env::var("MC_EVENTS").map_or(true, |words| {
        words.split(',').any(|word| event.name.contains(word))
    })
}

#[test]
fn open_connections_survive_every_event() -> Result<()> {
    let previous = previous_agent();
    if previous.is_none() {
        skipped("upgrade from the previous release: MC_AGENT_PREVIOUS is not set");
    }
    let count = if fixture::is_long_run() { 1_000 } else { 100 };
    let start = Instant::now();
    let mut world = World::create(previous)?;
    world.open_before_change(mixture(count))?;
    println!(
        "{count} connections open after {:.1} s",
        start.elapsed().as_secs_f32()
    );
    let (mut events, mut expected, mut failed) = (0, 0, Vec::new());
    for event in events::all() {
        if (event.needs_previous && !world.previous) || !is_selected(&event) {
            continue;
        }
        match run_event(&mut world, &event) {
            Ok(cut) => expected += cut,
            Err(error) => {
                println!("{}: {error:#}", event.name);
                failed.push(event.name);
            }
        }
        events += 1;
    }
    println!(
        "continuity: {count} connections, {events} kinds of event, {expected} cut as documented, {:.0} s",
        start.elapsed().as_secs_f32()
    );
    ensure!(failed.is_empty(), "failed: {failed:?}");
    Ok(())
}
