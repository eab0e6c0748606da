//! Agents that end, begin, stall or are replaced.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use mc_gateway_common::abi;
use mc_tests::{
    fixture,
    later_layout::{later_dir, make_later_layout, pin_version},
    topology::{Place, Secrets},
    wait::wait_for,
};
use nix::sys::signal::Signal;

use super::{Allowed, Event};
use crate::{
    pool::to_services,
    world::{EAST, WEST, World},
};

pub(super) const EVENTS: &[Event] = &[
    Event {
        needs_previous: true,
        ..Event::new("agents upgraded from the previous release", upgraded)
    },
    Event::new("agents restarted by SIGTERM", |world| restarted(world, false)),
    Event::new("agents killed", |world| restarted(world, true)),
    Event::new("map layout migrated, flows begin meanwhile", migrated),
    Event::new("migration killed and repeated", migration_killed),
    Event::new(
        "migration killed while it removes the other layout",
        removal_killed,
    ),
    Event::new("map unpinned while its agent is down", unpinned),
    Event::new("agents stalled: probes delayed", stalled),
];

fn all_nodes() -> Vec<Place> {
    EAST.into_iter().chain(WEST).collect()
}

fn upgraded(world: &mut World) -> Result<Allowed> {
    for secrets in [Secrets::Off, Secrets::Optional, Secrets::Required] {
        world.bed.set_agent(fixture::agent_program(), secrets);
        // One Node after the other: neighbours have different releases or flags meanwhile.
        for place in all_nodes() {
            world.restart(&[place], false)?;
        }
    }
    world.previous = false;
    Ok(Allowed::None)
}

fn restarted(world: &mut World, kill: bool) -> Result<Allowed> {
    world.restart(&all_nodes(), kill)?;
    Ok(Allowed::None)
}

fn ensure_migrated(world: &World, place: Place) -> Result<()> {
    let dirs = fixture::map_dirs(&world.bed, place);
    ensure!(dirs == [abi::MAPS_DIR], "{}: {dirs:?}", place.name());
    Ok(())
}

fn migrated(world: &mut World) -> Result<Allowed> {
    let mut opened = Vec::new();
    for place in [
        Place::NodeWest,
        Place::GatewayWest,
        Place::NodeEast,
        Place::SecondGatewayWest,
    ] {
        world.bed.stop_agent(place)?;
        make_later_layout(&world.bed.bpf_dir(place))?;
        world.bed.spawn_agent(place)?;
        opened.extend(world.pool.open(to_services(8))?);
        world.bed.wait_agent(place)?;
        ensure_migrated(world, place)?;
    }
    let report = world.pool.check()?;
    world.pool.close(&opened);
    report.ensure_none_cut()?;
    Ok(Allowed::None)
}

fn migration_killed(world: &mut World) -> Result<Allowed> {
    for place in [Place::NodeWest, Place::GatewayWest] {
        world.bed.stop_agent(place)?;
        make_later_layout(&world.bed.bpf_dir(place))?;
        world.bed.spawn_agent(place)?;
        let provisional = world.bed.bpf_dir(place).join(format!("{}-new", abi::MAPS_DIR));
        let complete = world.bed.bpf_dir(place).join(abi::MAPS_DIR);
        wait_for("the maps of the new layout", Duration::from_secs(10), || {
            let found = provisional.exists() || complete.exists();
            found.then_some(()).ok_or_else(|| "none".to_owned())
        })?;
        world.bed.kill_agent(place)?;
        world.bed.start_agent(place)?;
        ensure_migrated(world, place)?;
    }
    Ok(Allowed::None)
}

/// The next agent finds complete maps of its own beside an incomplete directory of another layout, without flow tables.
fn removal_killed(world: &mut World) -> Result<Allowed> {
    for place in [Place::NodeWest, Place::GatewayWest] {
        world.bed.kill_agent(place)?;
        pin_version(&later_dir(&world.bed.bpf_dir(place)))?;
        world.bed.start_agent(place)?;
        ensure_migrated(world, place)?;
    }
    Ok(Allowed::None)
}

fn unpinned(world: &mut World) -> Result<Allowed> {
    for place in [Place::NodeWest, Place::GatewayWest] {
        world.bed.stop_agent(place)?;
        let pin = world.bed.bpf_dir(place).join(abi::MAPS_DIR).join(abi::PEERS);
        fs::remove_file(&pin).context("unpin")?;
        world.bed.start_agent(place)?;
        ensure_migrated(world, place)?;
    }
    Ok(Allowed::None)
}

fn stalled(world: &mut World) -> Result<Allowed> {
    for place in all_nodes() {
        world.bed.signal_agent(place, Signal::SIGSTOP)?;
    }
    let report = world.pool.check();
    for place in all_nodes() {
        world.bed.signal_agent(place, Signal::SIGCONT)?;
    }
    report?.ensure_none_cut()?;
    Ok(Allowed::None)
}
