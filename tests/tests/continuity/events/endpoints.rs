//! Endpoints, ports, policies and exports of Services.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use mc_tests::{topology::Cluster, wait::wait_for};

use super::{Allowed, Event};
use crate::{
    connection::{Protocol, Target},
    objects::{ABSENT_NODE, Endpoint, SPARE, Service, absent_node, backend_addr},
    pool::{Id, to_services},
    world::{TIMEOUT, WEST_GATEWAYS, World},
};

pub(super) const EVENTS: &[Event] = &[
    Event::new("endpoint added", added),
    Event::new("endpoint of no connection removed", removed),
    Event::new("endpoint not ready", not_ready),
    Event::new("endpoint ready again", ready_again),
    Event::new("no endpoint ready", none_ready),
    Event::new("all endpoints ready again", all_ready),
    Event::new("EndpointSlice before its Node", slice_before_node),
    Event::new("Node of an endpoint arrives", node_arrives),
    Event::new("Node gone before its endpoint", node_gone),
    Event::new("Service port added", port_added),
    Event::new("Service port removed", port_removed),
    Event::new("export of another Service withdrawn and back", export_withdrawn),
    Event::new("another Service deleted and back", service_deleted),
];

/// A Service that the service proxy serves for a time.
pub(super) const POLICIES: &[Event] = &[
    Event::new("internalTrafficPolicy Local: to the service proxy", to_stack),
    Event::new("internalTrafficPolicy Cluster: back to the programs", from_stack),
];

/// The endpoint that becomes not ready.
const FLAPPING: u16 = 1;

fn added(world: &mut World) -> Result<Allowed> {
    world.web.endpoints.push(Endpoint::of_node(SPARE));
    world.publish()?;
    Ok(Allowed::None)
}

fn removed(world: &mut World) -> Result<Allowed> {
    world.web.endpoints.retain(|one| one.backend != SPARE);
    world.publish()?;
    Ok(Allowed::None)
}

fn set_ready(world: &mut World, backends: &[u16], ready: bool) -> Result<()> {
    for one in &mut world.web.endpoints {
        if backends.contains(&one.backend) {
            one.ready = ready;
        }
    }
    world.publish()
}

/// Datagrams to the Service that a backend serves.
pub(super) fn datagrams_of(world: &World, backend: u16) -> BTreeSet<Id> {
    let wanted = world
        .pool
        .select(|spec| spec.protocol == Protocol::Udp && spec.target == Target::Service);
    wanted
        .filter(|(id, spec, _)| world.pool.backend(*id) == Some(backend_addr(backend, spec.family)))
        .map(|(id, _, _)| id)
        .collect()
}

fn not_ready(world: &mut World) -> Result<Allowed> {
    let ids = datagrams_of(world, FLAPPING);
    set_ready(world, &[FLAPPING], false)?;
    Ok(Allowed::Exactly {
        class: "datagrams leave a Pod that is not ready",
        count: ids.len(),
        ids,
    })
}

fn ready_again(world: &mut World) -> Result<Allowed> {
    set_ready(world, &[FLAPPING], true)?;
    Ok(Allowed::None)
}

fn none_ready(world: &mut World) -> Result<Allowed> {
    set_ready(world, &[0, 1, 2, 3], false)?;
    Ok(Allowed::None)
}

fn all_ready(world: &mut World) -> Result<Allowed> {
    set_ready(world, &[0, 1, 2, 3], true)?;
    Ok(Allowed::None)
}

fn slice_before_node(world: &mut World) -> Result<Allowed> {
    world.web.endpoints.push(Endpoint::of_absent_node());
    world.publish()?;
    for place in WEST_GATEWAYS {
        wait_for("the report of the endpoint", TIMEOUT, || {
            let log = world.bed.agent_log(place).map_err(|error| format!("{error:#}"))?;
            let found = log.contains("is an endpoint on no reachable Node");
            found.then_some(()).ok_or(log)
        })?;
    }
    Ok(Allowed::None)
}

fn node_arrives(world: &mut World) -> Result<Allowed> {
    world.add_file(Cluster::West, "absent.yaml", &absent_node(), &WEST_GATEWAYS)?;
    for place in WEST_GATEWAYS {
        let rows = world.inspect(place, "services")?;
        let of_absent = rows.iter().filter(|row| {
            row["node"]
                .as_str()
                .is_some_and(|node| node.ends_with(ABSENT_NODE))
        });
        ensure!(of_absent.count() == 4, "{rows:?}");
    }
    Ok(Allowed::None)
}

fn node_gone(world: &mut World) -> Result<Allowed> {
    world.remove_file(Cluster::West, "absent.yaml", &WEST_GATEWAYS)?;
    world.pool.check()?.ensure_none_cut()?;
    world.web.endpoints.retain(|one| !one.absent);
    world.publish()?;
    Ok(Allowed::None)
}

fn port_added(world: &mut World) -> Result<Allowed> {
    world.web.metrics_port = true;
    world.publish()?;
    Ok(Allowed::None)
}

fn port_removed(world: &mut World) -> Result<Allowed> {
    world.web.metrics_port = false;
    world.publish()?;
    Ok(Allowed::None)
}

fn to_stack(world: &mut World) -> Result<Allowed> {
    world.web.local = true;
    world.publish()?;
    world.of_stack = world.pool.open(to_services(16))?;
    Ok(Allowed::None)
}

fn from_stack(world: &mut World) -> Result<Allowed> {
    let datagrams = world.pool.select(|spec| spec.protocol == Protocol::Udp);
    let ids = datagrams
        .map(|(id, _, _)| id)
        .filter(|id| world.of_stack.contains(id))
        .collect();
    world.web.local = false;
    world.publish()?;
    Ok(Allowed::Some {
        class: "datagrams leave the service proxy",
        ids,
    })
}

fn export_withdrawn(world: &mut World) -> Result<Allowed> {
    let other = Service::other();
    let withdrawn = Service {
        exported: false,
        ..Service::other()
    };
    for service in [withdrawn, other] {
        world.applied(&WEST_GATEWAYS, |world| world.write_service(&service))?;
    }
    Ok(Allowed::None)
}

fn service_deleted(world: &mut World) -> Result<Allowed> {
    let text = world.remove_file(Cluster::West, "other.yaml", &WEST_GATEWAYS)?;
    world.add_file(Cluster::West, "other.yaml", &text, &WEST_GATEWAYS)?;
    Ok(Allowed::None)
}
