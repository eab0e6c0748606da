//! Changes of hosts by other programs.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};
use mc_gateway_common::abi;
use mc_tests::{fixture, process::run, topology::Place, wait::wait_for};

use super::{Allowed, Event};
use crate::world::{EAST, TIMEOUT, WEST, World};

pub(super) const EVENTS: &[Event] = &[
    Event {
        // Gateways without programs or routes count as dead for a second, and their connections move.
        reopen: true,
        ..Event::new("MTU of the underlay lowered", mtu_lowered)
    },
    Event::new("MTU of the underlay restored", mtu_restored),
    Event::new("nftables table deleted", nftables_deleted),
    Event::new("routes of mc0 flushed", routes_flushed),
    Event::new("mc0 deleted", device_deleted),
    Event::new("pins removed", pins_removed),
    Event::new("map entries removed", map_entries_removed),
    Event::new("forwarding reset", forwarding_reset),
    Event::new("IPv6 of mc0 reset", ipv6_reset),
    Event::new("neighbour entries flushed", neighbours_flushed),
    Event::new("conntrack flushed", conntrack_flushed),
];

fn all_nodes() -> Vec<Place> {
    EAST.into_iter().chain(WEST).collect()
}

fn set_mtu(world: &mut World, mtu: u32) -> Result<()> {
    for place in all_nodes() {
        let mut lines = vec![format!("link set eth0 mtu {mtu}")];
        if ![Place::NodeEast, Place::NodeWest].contains(&place) {
            lines.push(format!("link set eth1 mtu {mtu}"));
        }
        world.bed.netns(place).ip(&lines)?;
    }
    let overhead = world.bed.options().overhead();
    let wanted = format!("mtu {} ", mtu - overhead);
    for place in all_nodes() {
        wait_for(&format!("{wanted}of {}", place.name()), TIMEOUT, || {
            let link = world.bed.netns(place).run("ip", ["link", "show", "mc0"]);
            let link = link.map_err(|error| format!("{error:#}"))?;
            if link.contains(&wanted) { Ok(()) } else { Err(link) }
        })?;
    }
    Ok(())
}

fn mtu_lowered(world: &mut World) -> Result<Allowed> {
    set_mtu(world, 1_400)?;
    Ok(Allowed::None)
}

fn mtu_restored(world: &mut World) -> Result<Allowed> {
    let mtu = world.bed.options().mtu;
    set_mtu(world, mtu)?;
    Ok(Allowed::None)
}

fn nftables_deleted(world: &mut World) -> Result<Allowed> {
    for place in all_nodes() {
        let nft = |args: &[&str]| world.bed.netns(place).run("nft", args);
        nft(&["delete", "table", "inet", "mc_gateway"])?;
        wait_for("the table", TIMEOUT, || {
            let table = nft(&["list", "table", "inet", "mc_gateway"]);
            table.map_err(|error| format!("{error:#}"))
        })?;
    }
    Ok(Allowed::None)
}

/// The routes to `mc0` of one family on a Node.
fn routes(world: &World, place: Place, family: &str) -> Result<String> {
    world
        .bed
        .netns(place)
        .run("ip", [family, "route", "show", "proto", "109"])
}

/// Runs a change of all Nodes and waits until each has its routes again.
fn until_routes_return(world: &mut World, change: impl Fn(&World, Place) -> Result<()>) -> Result<()> {
    for place in all_nodes() {
        let before = [routes(world, place, "-4")?, routes(world, place, "-6")?];
        anyhow::ensure!(before.iter().all(|routes| routes.contains("mc0")), "{before:?}");
        change(world, place)?;
        wait_for(&format!("routes of {}", place.name()), TIMEOUT, || {
            let now = [routes(world, place, "-4"), routes(world, place, "-6")];
            let now = now.map(Result::unwrap_or_default);
            if now == before {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        })?;
    }
    Ok(())
}

fn routes_flushed(world: &mut World) -> Result<Allowed> {
    until_routes_return(world, |world, place| {
        for family in ["-4", "-6"] {
            world
                .bed
                .netns(place)
                .run("ip", [family, "route", "flush", "proto", "109"])?;
        }
        Ok(())
    })?;
    Ok(Allowed::None)
}

fn device_deleted(world: &mut World) -> Result<Allowed> {
    until_routes_return(world, |world, place| {
        world.bed.netns(place).ip(&["link del mc0"])?;
        Ok(())
    })?;
    Ok(Allowed::None)
}

fn pins_removed(world: &mut World) -> Result<Allowed> {
    for place in all_nodes() {
        fs::remove_dir_all(world.bed.bpf_dir(place)).context("pins")?;
    }
    for place in all_nodes() {
        let maps = world.bed.bpf_dir(place).join(abi::MAPS_DIR);
        let links = world.bed.bpf_dir(place).join("links");
        wait_for(&format!("pins of {}", place.name()), TIMEOUT, || {
            let pins = fs::read_dir(&maps).map_or(0, Iterator::count);
            let links = fs::read_dir(&links).map_or(0, Iterator::count);
            if pins == abi::ALL_MAPS.len() && links > 1 {
                Ok(())
            } else {
                Err(format!("{pins} maps, {links} links"))
            }
        })?;
    }
    Ok(Allowed::None)
}

/// The prefixes of both Pod networks at a gateway. A resync repairs them; a new agent does so sooner.
fn map_entries_removed(world: &mut World) -> Result<Allowed> {
    let place = Place::GatewayWest;
    let pin = world.bed.bpf_dir(place).join(abi::MAPS_DIR).join(abi::PREFIXES);
    let pin = pin.to_string_lossy().into_owned();
    let dump = fixture::bpftool(&["-j", "map", "dump", "pinned", &pin]);
    let entries: Vec<serde_json::Value> = serde_json::from_str(&dump)?;
    for entry in &entries {
        let key = entry["key"].as_array().context("a key")?;
        let bytes: Vec<&str> = key.iter().filter_map(serde_json::Value::as_str).collect();
        let mut args = vec!["map", "delete", "pinned", &pin, "key"];
        args.extend(bytes);
        fixture::bpftool(&args);
    }
    if !fixture::is_long_run() {
        world.restart(&[place], true)?;
    }
    // Longer than the interval of resyncs.
    wait_for("the prefixes", TIMEOUT * 2, || {
        let dump = fixture::bpftool(&["-j", "map", "dump", "pinned", &pin]);
        let now: Vec<serde_json::Value> = serde_json::from_str(&dump).map_err(|error| error.to_string())?;
        (now.len() == entries.len()).then_some(()).ok_or(dump)
    })?;
    Ok(Allowed::None)
}

/// As `sysctl --system` with a file that turns forwarding off and one that turns it on.
fn forwarding_reset(world: &mut World) -> Result<Allowed> {
    for place in all_nodes() {
        for value in ["0", "1"] {
            world.bed.netns(place).sysctl(&[
                ("net.ipv4.ip_forward", value),
                ("net.ipv6.conf.all.forwarding", value),
            ])?;
        }
    }
    Ok(Allowed::None)
}

fn ipv6_reset(world: &mut World) -> Result<Allowed> {
    until_routes_return(world, |world, place| {
        for value in ["1", "0"] {
            world
                .bed
                .netns(place)
                .sysctl(&[("net.ipv6.conf.mc0.disable_ipv6", value)])?;
        }
        Ok(())
    })?;
    Ok(Allowed::None)
}

fn neighbours_flushed(world: &mut World) -> Result<Allowed> {
    for place in all_nodes() {
        world.bed.netns(place).ip(&["neigh flush all"])?;
    }
    Ok(Allowed::None)
}

/// Without the flows of a service proxy on the host, which live in conntrack.
fn conntrack_flushed(world: &mut World) -> Result<Allowed> {
    for place in all_nodes() {
        let mut command: Command = world.bed.netns(place).command("conntrack");
        run(command.arg("-F"))?;
    }
    Ok(Allowed::None)
}
