//! Gateways that are drained, lost, added and moved.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use mc_tests::topology::{Cluster, Family, Fault, Place, gateway_info};

use super::{Allowed, Event, endpoints::datagrams_of};
use crate::{
    connection::Protocol,
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
    Event::new(
        "endpoints changed three times, then gateway returns",
        returned_after_changes,
    ),
    Event::new(
        "endpoints changed twice, then gateway drained",
        drained_after_changes,
    ),
    Event::new(
        "drained gateway in use again after a change",
        undrained_after_change,
    ),
    Event::new("gateway removed after changes", removed_after_changes),
    Event::new("endpoints changed twice, then gateway added", added_after_changes),
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
    ensure!(
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

/// First local port of the connections that move after a change of endpoints.
const PORTS: u16 = 60_000;

/// Opens connections to the present endpoints, and requires TCP connections at a gateway.
fn open_at(world: &mut World, place: Place) -> Result<()> {
    let opened = world.pool.open(to_services(100))?;
    let at = world.connections_at(place)?;
    let here = opened.iter().filter(|id| at.contains(id)).count();
    let tcp = world.pool.select(|spec| spec.protocol == Protocol::Tcp);
    let tcp = tcp
        .filter(|(id, _, _)| opened.contains(id) && at.contains(id))
        .count();
    println!(
        "{here} of {} connections at {}, {tcp} by TCP",
        opened.len(),
        place.name()
    );
    ensure!(tcp > 0, "no TCP connection at {}", place.name());
    Ok(())
}

/// Changes which endpoints of the Service are ready, in these steps. Datagrams leave those that are not.
fn change_endpoints(world: &mut World, steps: &[&[u16]]) -> Result<Allowed> {
    let backends = world.web.endpoints.iter().map(|one| one.backend);
    let leaving = backends.filter(|backend| steps.iter().any(|ready| !ready.contains(backend)));
    let ids = leaving.flat_map(|backend| datagrams_of(world, backend)).collect();
    for ready in steps {
        for one in &mut world.web.endpoints {
            one.ready = ready.contains(&one.backend);
        }
        world.publish()?;
    }
    Ok(Allowed::Some {
        class: "datagrams leave a Pod that is not ready",
        ids,
    })
}

fn lost_after_change(world: &mut World) -> Result<Allowed> {
    world.pool.restart_at(PORTS);
    open_at(world, FIRST)?;
    world
        .web
        .endpoints
        .extend((SPARE..SPARE + SPARES).map(Endpoint::of_node));
    world.publish()?;
    lost(world, FIRST, Fault::LinkDown)
}

/// The gateway has no entry of the connections that began without it.
fn returned_after_changes(world: &mut World) -> Result<Allowed> {
    open_at(world, SECOND)?;
    let allowed = change_endpoints(world, &[&[0, 1, 2], &[2, 3, 4, 5], &[5, 6, 7]])?;
    returned(world, FIRST, Fault::LinkDown)?;
    Ok(allowed)
}

fn drained_after_changes(world: &mut World) -> Result<Allowed> {
    open_at(world, SECOND)?;
    let allowed = change_endpoints(world, &[&[0, 1, 6], &[1, 2, 3, 4]])?;
    drained(world)?;
    Ok(allowed)
}

fn undrained_after_change(world: &mut World) -> Result<Allowed> {
    open_at(world, FIRST)?;
    let allowed = change_endpoints(world, &[&[0, 1, 2, 3, 4, 5, 6, 7]])?;
    undrained(world)?;
    Ok(allowed)
}

fn removed_after_changes(world: &mut World) -> Result<Allowed> {
    open_at(world, SECOND)?;
    let allowed = change_endpoints(world, &[&[0, 2, 4, 6]])?;
    removed(world)?;
    Ok(allowed)
}

/// The agent of the new gateway knows the past endpoints: it was a Node of the cluster meanwhile.
fn added_after_changes(world: &mut World) -> Result<Allowed> {
    open_at(world, FIRST)?;
    let allowed = change_endpoints(world, &[&[0, 1, 2], &[1, 3, 5, 7]])?;
    added(world)?;
    Ok(allowed)
}
