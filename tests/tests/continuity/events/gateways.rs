//! Gateways that are drained, lost, added and moved.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use mc_tests::topology::{Cluster, Family, Fault, Place, gateway_info};

use super::{Allowed, Event};
use crate::{
    objects::{Endpoint, SPARE, SPARES},
    pool::{Id, to_services},
    world::{EAST, Liveness, WEST, WEST_GATEWAYS, World},
};

pub(super) const EVENTS: &[Event] = &[
    Event::new("gateway with flows of its stack lost", lost_with_stack),
    Event::new("that gateway returns", |world| {
        returned(world, FIRST, Fault::LinkDown)
    }),
    Event::new("gateway drained", drained),
    Event::new("drained gateway in use again", undrained),
    Event::new("gateway lost: links down", |world| {
        lost(world, FIRST, Fault::LinkDown)
    }),
    Event::new("lost gateway returns", |world| {
        returned(world, FIRST, Fault::LinkDown)
    }),
    Event::new("gateway frozen", |world| lost(world, SECOND, Fault::Freeze)),
    Event::new("frozen gateway returns", |world| {
        returned(world, SECOND, Fault::Freeze)
    }),
    Event::new("gateway removed from objects", removed),
    Event::new("gateway added to objects", added),
    Event::new("gatewayIP of a gateway changed", address_changed),
    Event::new("endpoints added, then gateway lost", lost_after_change),
];

const FIRST: Place = WEST_GATEWAYS[0];
const SECOND: Place = WEST_GATEWAYS[1];

/// Addresses of west's second gateway.
fn second_addresses() -> [String; 2] {
    let nets = Cluster::West.nets(Family::V4);
    [nets.gateway[1], nets.internal[1]].map(|net| net.addr().to_string())
}

fn drained(world: &mut World) -> Result<Allowed> {
    let ids = of_stack(world, SECOND)?;
    let [outside, _] = second_addresses();
    let info = gateway_info(SECOND, &outside);
    let drained = info.replace('}', ", weight: 0}");
    world.edit(Cluster::East, "west.yaml", &EAST[1..], |text| {
        text.replace(&info, &drained)
    })?;
    let line = format!("gatewayIP: {outside}\n");
    world.edit(Cluster::West, "gateway.yaml", &[Place::NodeWest], |text| {
        text.replace(&line, &format!("{line}weight: 0\n"))
    })?;
    Ok(Allowed::Some {
        class: "served by the stack of a drained gateway",
        ids,
    })
}

fn undrained(world: &mut World) -> Result<Allowed> {
    world.edit(Cluster::East, "west.yaml", &EAST[1..], |text| {
        text.replace(", weight: 0", "")
    })?;
    world.edit(Cluster::West, "gateway.yaml", &[Place::NodeWest], |text| {
        text.replace("weight: 0\n", "")
    })?;
    Ok(Allowed::None)
}

fn lost(world: &mut World, victim: Place, fault: Fault) -> Result<Allowed> {
    world.bed.inject_fault(victim, fault)?;
    world.wait_gateway(victim, Liveness::Dead)?;
    Ok(Allowed::None)
}

fn returned(world: &mut World, victim: Place, fault: Fault) -> Result<Allowed> {
    world.bed.clear_fault(victim, fault)?;
    world.wait_gateway(victim, Liveness::Alive)?;
    Ok(Allowed::None)
}

fn removed(world: &mut World) -> Result<Allowed> {
    let [outside, _] = second_addresses();
    let line = gateway_info(SECOND, &outside) + "\n";
    world.edit(Cluster::East, "west.yaml", &EAST[1..], |text| {
        text.replace(&line, "")
    })?;
    world.edit(Cluster::West, "gateway.yaml", &WEST, |text| {
        let kept = text
            .split("---\n")
            .filter(|document| !document.contains(&outside));
        kept.collect::<Vec<_>>().join("---\n")
    })?;
    Ok(Allowed::None)
}

fn added(world: &mut World) -> Result<Allowed> {
    let [outside, inside] = second_addresses();
    world.edit(Cluster::West, "gateway.yaml", &WEST, |text| {
        let nets = Cluster::West.nets(Family::V4);
        let [first_outside, first_inside] =
            [nets.gateway[0], nets.internal[0]].map(|net| net.addr().to_string());
        let second = text
            .replace(FIRST.name(), SECOND.name())
            .replace(&format!("{first_outside}\n"), &format!("{outside}\n"))
            .replace(&format!("{first_inside}\n"), &format!("{inside}\n"));
        format!("{text}---\n{second}")
    })?;
    let first = Cluster::West.nets(Family::V4).gateway[0].addr();
    let first = gateway_info(FIRST, &first.to_string());
    let both = format!("{first}\n{}", gateway_info(SECOND, &outside));
    world.edit(Cluster::East, "west.yaml", &EAST[1..], |text| {
        text.replace(&first, &both)
    })?;
    Ok(Allowed::None)
}

/// The address of east's second gateway, first beside the old one.
fn address_changed(world: &mut World) -> Result<Allowed> {
    const NEW: &str = "192.168.100.31";
    let gateway = Place::SecondGatewayEast;
    let old = Cluster::East.nets(Family::V4).gateway[1];
    let from = format!("gatewayIP: {}\n", old.addr());
    let to = format!("gatewayIP: {NEW}\n");
    let bits = old.prefix_len();
    world.applied(&[gateway], |world| {
        world
            .bed
            .netns(gateway)
            .ip(&[format!("addr add {NEW}/{bits} dev eth1")])?;
        let file = world.bed.manifests_dir(Cluster::East).join("gateway.yaml");
        let text = std::fs::read_to_string(&file)?;
        std::fs::write(&file, text.replace(&from, &to)).context("a manifest")
    })?;
    world.edit(Cluster::West, "east.yaml", &WEST_GATEWAYS, |text| {
        text.replace(&format!("\"{}\"", old.addr()), &format!("\"{NEW}\""))
    })?;
    world.bed.netns(gateway).ip(&[
        format!("addr del {old} dev eth1"),
        // The kernel removes the secondary addresses of a network with its first one.
        format!("addr replace {NEW}/{bits} dev eth1"),
    ])?;
    Ok(Allowed::None)
}

/// Connections of the service proxy on a gateway, as its flow table names them.
fn of_stack(world: &World, place: Place) -> Result<BTreeSet<Id>> {
    let at = world.connections_at(place)?;
    Ok(at.into_iter().filter(|id| world.of_stack.contains(id)).collect())
}

fn lost_with_stack(world: &mut World) -> Result<Allowed> {
    let ids = of_stack(world, FIRST)?;
    anyhow::ensure!(
        !ids.is_empty(),
        "no connection of the service proxy on {}",
        FIRST.name()
    );
    lost(world, FIRST, Fault::LinkDown)?;
    Ok(Allowed::Some {
        class: "served by the stack of a lost gateway",
        ids,
    })
}

/// First local port of [`lost_after_change`].
const PORTS: u16 = 60_000;
/// Number of its connections that the remaining gateway gives to another backend. It is the same in every run, because
/// addresses and ports are.
const MOVED: usize = 28;

fn lost_after_change(world: &mut World) -> Result<Allowed> {
    world.pool.restart_at(PORTS);
    let opened = world.pool.open(to_services(100))?;
    world
        .web
        .endpoints
        .extend((SPARE..SPARE + SPARES).map(Endpoint::of_node));
    world.publish()?;
    let ids = world.connections_at(FIRST)?;
    println!(
        "{} of {} connections at {}",
        ids.len(),
        opened.len(),
        FIRST.name()
    );
    lost(world, FIRST, Fault::LinkDown)?;
    Ok(Allowed::Exactly {
        class: "their gateway is lost after a change of endpoints",
        ids,
        count: MOVED,
    })
}
