//! Which Nodes are gateways, and with which weight. Needs no leader.
//!
//! Pure: the same world gives the same plan, whatever order its objects come in, and a plan that was carried out
//! leaves nothing to do until a drain period ends or the world changes. A gateway that is to go is drained first:
//! its weight is 0, so it is given no new flows, and it forwards what still comes until the period is over.

use std::{cmp::Reverse, fmt};

use ipnet::IpNet;
use jiff::Timestamp;
use kube::{ResourceExt, core::ObjectMeta};

use super::candidates::{self, Candidate, Condition};
use crate::{
    api::{
        config::GatewayMode,
        gateway::{DEFAULT_WEIGHT, Gateway, MAX_GATEWAYS},
        names,
    },
    plan::{Plan, Side},
    world::{MemberWorld, get, time},
};

/// Writes the Gateways and returns those in force: active ones first, those being drained behind them, the older
/// before the younger. Only who was first stays it while it is active, because there are clusters that know no other: where that is not the
/// oldest, the Gateway says so itself, for agents to know as well.
pub fn plan(world: &MemberWorld, plan: &mut Plan) -> Vec<Gateway> {
    if world.service_cidrs.is_empty() {
        // Found out in a moment; gateways without it could not deliver to Services.
        return vec![];
    }
    let candidates = candidates::read(world, plan);
    let active = active(&candidates, world.config.gateway_mode, world.now, plan);
    let mut wanted: Vec<_> = active.iter().map(|c| serving(world, c)).collect();
    let room = MAX_GATEWAYS.saturating_sub(wanted.len());
    wanted.extend(draining(world, &candidates, &active, room, plan));
    wanted.sort_by_cached_key(|gateway| {
        let created = old(world, gateway).and_then(ResourceExt::creation_timestamp);
        (
            gateway.weight() == 0,
            created.is_none(),
            created,
            gateway.name_any(),
        )
    });
    keep_first(world, &mut wanted);
    for gateway in &wanted {
        if old(world, gateway).is_none_or(|old| !same(old, gateway)) {
            plan.apply(Side::Local, gateway);
        }
    }
    for old in world.gateways.values() {
        if !wanted.iter().any(|g| g.name_any() == old.name_any()) {
            plan.delete(Side::Local, old.as_ref());
        }
    }
    wanted
}

/// Moves who was first to the front again, if it is still active; with a mark where its age and name do not say so, or may
/// not: one that is made now can turn out to be of the same second.
fn keep_first(world: &MemberWorld, wanted: &mut [Gateway]) {
    let before = world.gateways.values().min_by_key(|old| {
        let created = old.creation_timestamp();
        let late = (old.weight() == 0, !old.is_primary(), created.is_none());
        (late, created, old.name_any())
    });
    let Some(before) = before else { return };
    let place = wanted
        .iter()
        .position(|gateway| gateway.weight() != 0 && gateway.name_any() == before.name_any());
    let Some(earlier) = place.and_then(|place| wanted.get_mut(..=place)) else {
        return;
    };
    earlier.rotate_right(1);
    let age = |gateway: &Gateway| {
        let created = old(world, gateway).and_then(ResourceExt::creation_timestamp);
        (
            created.or_else(|| before.creation_timestamp()),
            gateway.name_any(),
        )
    };
    let Some((first, others)) = wanted.split_first_mut() else {
        return;
    };
    let earlier = others
        .iter()
        .any(|other| other.weight() != 0 && age(other) < age(first));
    if earlier || before.is_primary() {
        let mark = (names::ANNOTATION_PRIMARY.to_owned(), "true".to_owned());
        first.annotations_mut().extend([mark]);
    }
}

/// No membership, no gateways.
pub fn withdraw(world: &MemberWorld, plan: &mut Plan) {
    for old in world.gateways.values() {
        plan.delete(Side::Local, old.as_ref());
    }
}

/// The candidates that take new flows.
///
/// Those in the best condition that any has: a Node that is Ready and not cordoned, else one that is Ready, else
/// those that are gateways already. Who is active stays it, who is being drained comes back before a new one comes, then by name.
/// Of cordoned Nodes one stays, the last one to be cordoned. Of Nodes of which none is Ready all stay: silence of
/// all kubelets says more about the control plane than about the data path. A Node that is not Ready never starts.
fn active<'c, 'w>(
    candidates: &'c [Candidate<'w>],
    mode: GatewayMode,
    now: Timestamp,
    plan: &mut Plan,
) -> Vec<&'c Candidate<'w>> {
    let mut eligible: Vec<_> = candidates
        .iter()
        .filter(|c| c.condition.ready() || c.old.is_some())
        .collect();
    let Some(best) = eligible.iter().map(|c| c.condition).min() else {
        return vec![];
    };
    eligible.retain(|c| c.condition == best);
    eligible.sort_by_cached_key(|c| {
        let since = c.old.and_then(|old| draining_since(old, now));
        let rank = match (c.old, since) {
            (Some(_), None) => 0,
            (Some(_), Some(_)) => 1,
            (None, _) => 2,
        };
        let created = c.old.and_then(ResourceExt::creation_timestamp);
        (rank, Reverse(since), created, c.name.clone())
    });
    let many = match (mode, best) {
        (GatewayMode::ActiveActive, Condition::Serving | Condition::NotReady) => MAX_GATEWAYS,
        _ => 1,
    };
    if mode == GatewayMode::ActiveActive && best == Condition::Serving {
        for surplus in eligible.iter().skip(many) {
            plan.notice(
                format!("Node {}", surplus.name),
                format!(
                    "not used: {MAX_GATEWAYS} other Nodes are gateways, which is the most a cluster can have"
                ),
            );
        }
    }
    eligible.truncate(many);
    eligible
}

/// The Gateways that stay for a while without new flows; at most `room`, the last to be drained.
fn draining(
    world: &MemberWorld,
    candidates: &[Candidate<'_>],
    active: &[&Candidate<'_>],
    room: usize,
    plan: &mut Plan,
) -> Vec<Gateway> {
    let served = active.iter().any(|c| c.condition.ready());
    let mut drains: Vec<_> = world
        .gateways
        .values()
        .filter(|old| old.metadata.deletion_timestamp.is_none())
        .filter(|old| !active.iter().any(|c| c.name == old.name_any()))
        .map(|old| {
            let since = draining_since(old, world.now).unwrap_or(world.now);
            let candidate = candidates.iter().find(|c| c.name == old.name_any());
            Drain {
                old,
                candidate,
                since,
                // A Node that could still serve is not removed before somebody else does.
                until: (served || candidate.is_none())
                    .then(|| since.checked_add(world.config.drain_period).ok())
                    .flatten(),
            }
        })
        .filter(|drain| drain.until.is_none_or(|until| until > world.now))
        .collect();
    drains.sort_by_cached_key(|d| (Reverse(d.since), d.old.name_any()));
    drains.truncate(room);
    for drain in &drains {
        if let Some(until) = drain.until {
            plan.wake(until);
        }
        plan.notice(format!("Gateway {}", drain.old.name_any()), drain.to_string());
    }
    drains.iter().map(|d| d.gateway(world)).collect()
}

/// A Gateway that is to go.
struct Drain<'a> {
    old: &'a Gateway,
    /// Its Node, if that could still be gateway.
    candidate: Option<&'a Candidate<'a>>,
    since: Timestamp,
    until: Option<Timestamp>,
}

// === impl Drain ===

impl Drain<'_> {
    fn gateway(&self, world: &MemberWorld) -> Gateway {
        let mut gateway = match self.candidate {
            Some(candidate) => serving(world, candidate),
            None => object(
                world,
                self.old.name_any(),
                self.old.gateway_ip.clone(),
                self.old.internal_ip.clone(),
            ),
        };
        gateway.weight = Some(0);
        gateway.annotations_mut().insert(
            names::ANNOTATION_DRAINING_SINCE.to_owned(),
            self.since.to_string(),
        );
        gateway
    }
}

impl fmt::Display for Drain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.candidate.map(|c| c.condition) {
            Some(Condition::Serving) => f.write_str("another Node is gateway instead")?,
            Some(condition) => write!(f, "its Node is {condition}")?,
            None => f.write_str("its Node is not to be gateway any more")?,
        }
        f.write_str(": no new flows")?;
        match self.until {
            Some(until) => write!(f, ", removed at {}", time(until).0),
            None => f.write_str(", kept until another Node is Ready"),
        }
    }
}

/// Since when a Gateway is being drained. A time from the future (a clock was set back) is none.
fn draining_since(gateway: &Gateway, now: Timestamp) -> Option<Timestamp> {
    let since = gateway.annotations().get(names::ANNOTATION_DRAINING_SINCE)?;
    since.parse().ok().filter(|since| *since <= now)
}

fn serving(world: &MemberWorld, candidate: &Candidate<'_>) -> Gateway {
    let ips = (
        candidate.gateway_ip.to_string(),
        candidate.internal_ip.to_string(),
    );
    Gateway {
        // Not written where other implementations would not write it either.
        weight: Some(candidate.weight).filter(|w| *w != DEFAULT_WEIGHT),
        ..object(world, candidate.name.clone(), ips.0, ips.1)
    }
}

fn object(world: &MemberWorld, name: String, gateway_ip: String, internal_ip: String) -> Gateway {
    Gateway {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(world.namespace.clone()),
            ..ObjectMeta::default()
        },
        gateway_ip,
        internal_ip,
        service_cidr: joined(&world.service_cidrs),
        ..Gateway::default()
    }
}

/// As a Gateway of ours has them: both families in one field.
fn joined(cidrs: &[IpNet]) -> String {
    let cidrs: Vec<_> = cidrs.iter().map(ToString::to_string).collect();
    cidrs.join(",")
}

fn old<'a>(world: &'a MemberWorld, gateway: &Gateway) -> Option<&'a Gateway> {
    get(&world.gateways, &world.namespace, &gateway.name_any()).map(AsRef::as_ref)
}

fn same(old: &Gateway, new: &Gateway) -> bool {
    let since = |g: &Gateway| g.annotations().get(names::ANNOTATION_DRAINING_SINCE).cloned();
    (&old.gateway_ip, &old.internal_ip, &old.service_cidr, old.weight())
        == (&new.gateway_ip, &new.internal_ip, &new.service_cidr, new.weight())
        && (since(old), old.is_primary()) == (since(new), new.is_primary())
}
