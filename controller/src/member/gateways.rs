//! Selection of gateway Nodes and their weights; independent of the leader.
//!
//! Pure: the plan is independent of the order of objects, and an applied plan is stable until a drain period ends or
//! the snapshot changes. A gateway is drained before it is removed: with weight 0 it receives no new flows and forwards
//! the existing ones until the drain period ends.

use std::{cmp::Reverse, fmt};

use ipnet::IpNet;
use jiff::Timestamp;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    config::GatewayMode,
    gateway::{DEFAULT_WEIGHT, Gateway, MAX_GATEWAYS, PrimaryRank},
    names,
};

use super::gateway_candidates::{self, Candidate, NodeHealth};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, api_time, get},
};

/// Keeps the Gateways and returns them: active ones first, then draining ones, each by age. The primary gateway stays
/// primary while active, since Antrea clusters use no other; if it is not the oldest, it is marked, so that agents
/// elect the same one.
pub fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) -> Vec<Gateway> {
    if snapshot.service_cidrs.is_empty() {
        // A gateway without the Service CIDR cannot deliver to Services.
        return vec![];
    }
    let candidates = gateway_candidates::candidates(snapshot, plan);
    let active = active(&candidates, snapshot.config.gateway_mode, snapshot.now, plan);
    let mut desired: Vec<_> = active.iter().map(|c| active_gateway(snapshot, c)).collect();
    let room = MAX_GATEWAYS.saturating_sub(desired.len());
    desired.extend(draining(snapshot, &candidates, &active, room, plan));
    desired.sort_by_cached_key(|gateway| {
        let created = existing(snapshot, gateway).and_then(ResourceExt::creation_timestamp);
        (
            gateway.weight() == 0,
            created.is_none(),
            created,
            gateway.name_any(),
        )
    });
    keep_primary(snapshot, &mut desired);
    for gateway in &desired {
        if existing(snapshot, gateway).is_none_or(|old| !is_up_to_date(old, gateway)) {
            plan.apply(ApiServer::Local, gateway);
        }
    }
    for old in snapshot.gateways.values() {
        if !desired.iter().any(|g| g.name_any() == old.name_any()) {
            plan.delete(ApiServer::Local, old.as_ref());
        }
    }
    desired
}

/// Moves the previous primary to the front if it is still active. It is marked where age and name do not identify it,
/// or may not: a new Gateway can get a creation time of the same second.
fn keep_primary(snapshot: &MemberSnapshot, desired: &mut [Gateway]) {
    let previous = snapshot.gateways.values().min_by_key(|old| {
        let name = old.metadata.name.as_deref().unwrap_or_default();
        PrimaryRank::new(
            old.weight(),
            old.is_marked_primary(),
            old.creation_timestamp(),
            name,
        )
    });
    let Some(previous) = previous else { return };
    let place = desired
        .iter()
        .position(|gateway| gateway.weight() != 0 && gateway.name_any() == previous.name_any());
    let Some(earlier) = place.and_then(|place| desired.get_mut(..=place)) else {
        return;
    };
    earlier.rotate_right(1);
    let age = |gateway: &Gateway| {
        let created = existing(snapshot, gateway).and_then(ResourceExt::creation_timestamp);
        (
            created.or_else(|| previous.creation_timestamp()),
            gateway.name_any(),
        )
    };
    let Some((first, others)) = desired.split_first_mut() else {
        return;
    };
    let earlier = others
        .iter()
        .any(|other| other.weight() != 0 && age(other) < age(first));
    if earlier || previous.is_marked_primary() {
        let mark = (names::ANNOTATION_PRIMARY.to_owned(), "true".to_owned());
        first.annotations_mut().extend([mark]);
    }
}

/// Deletes all Gateways: there is no membership.
pub fn withdraw(snapshot: &MemberSnapshot, plan: &mut Plan) {
    for old in snapshot.gateways.values() {
        plan.delete(ApiServer::Local, old.as_ref());
    }
}

/// The candidates that receive new flows.
///
/// Those with the best health of any: Nodes that are Ready and not cordoned, else Ready ones, else present gateways.
/// Active gateways precede draining ones, those precede new ones, then by name. One cordoned Node stays active, the
/// last to be cordoned. If no Node is Ready all gateways stay: the control plane has failed rather than the data path.
/// A Node that is not Ready never becomes a gateway.
fn active<'c, 'w>(
    candidates: &'c [Candidate<'w>],
    mode: GatewayMode,
    now: Timestamp,
    plan: &mut Plan,
) -> Vec<&'c Candidate<'w>> {
    let mut eligible: Vec<_> = candidates
        .iter()
        .filter(|c| c.health.is_ready() || c.existing.is_some())
        .collect();
    let Some(best) = eligible.iter().map(|c| c.health).min() else {
        return vec![];
    };
    eligible.retain(|c| c.health == best);
    eligible.sort_by_cached_key(|c| {
        let since = c.existing.and_then(|old| draining_since(old, now));
        let rank = match (c.existing, since) {
            (Some(_), None) => 0,
            (Some(_), Some(_)) => 1,
            (None, _) => 2,
        };
        let created = c.existing.and_then(ResourceExt::creation_timestamp);
        (rank, Reverse(since), created, c.name.clone())
    });
    let limit = match (mode, best) {
        (GatewayMode::ActiveActive, NodeHealth::Ready | NodeHealth::NotReady) => MAX_GATEWAYS,
        _ => 1,
    };
    if mode == GatewayMode::ActiveActive && best == NodeHealth::Ready {
        for surplus in eligible.iter().skip(limit) {
            plan.issue(
                IssueCode::TooManyGateways,
                format!("Node {}", surplus.name),
                format!("not used: {MAX_GATEWAYS} other Nodes are gateways, the maximum of a cluster"),
            );
        }
    }
    eligible.truncate(limit);
    eligible
}

/// The draining Gateways, which receive no new flows; at most `room`, the most recently drained.
fn draining(
    snapshot: &MemberSnapshot,
    candidates: &[Candidate<'_>],
    active: &[&Candidate<'_>],
    room: usize,
    plan: &mut Plan,
) -> Vec<Gateway> {
    let any_ready = active.iter().any(|c| c.health.is_ready());
    let mut drains: Vec<_> = snapshot
        .gateways
        .values()
        .filter(|old| old.metadata.deletion_timestamp.is_none())
        .filter(|old| !active.iter().any(|c| c.name == old.name_any()))
        .map(|old| {
            let since = draining_since(old, snapshot.now).unwrap_or(snapshot.now);
            let candidate = candidates.iter().find(|c| c.name == old.name_any());
            Drain {
                old,
                candidate,
                since,
                // A usable gateway is not removed before another one is Ready.
                until: (any_ready || candidate.is_none())
                    .then(|| since.checked_add(snapshot.config.drain_period).ok())
                    .flatten(),
            }
        })
        .filter(|drain| drain.until.is_none_or(|until| until > snapshot.now))
        .collect();
    drains.sort_by_cached_key(|d| (Reverse(d.since), d.old.name_any()));
    drains.truncate(room);
    for drain in &drains {
        if let Some(until) = drain.until {
            plan.requeue_at(until);
        }
        plan.issue(
            IssueCode::GatewayDraining,
            format!("Gateway {}", drain.old.name_any()),
            drain.to_string(),
        );
    }
    drains.iter().map(|d| d.gateway(snapshot)).collect()
}

/// A draining Gateway.
struct Drain<'a> {
    old: &'a Gateway,
    /// Its Node, if that is still eligible.
    candidate: Option<&'a Candidate<'a>>,
    since: Timestamp,
    until: Option<Timestamp>,
}

// === impl Drain ===

impl Drain<'_> {
    fn gateway(&self, snapshot: &MemberSnapshot) -> Gateway {
        let mut gateway = match self.candidate {
            Some(candidate) => active_gateway(snapshot, candidate),
            None => gateway(
                snapshot,
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
        match self.candidate.map(|c| c.health) {
            Some(NodeHealth::Ready) => f.write_str("another Node is gateway instead")?,
            Some(condition) => write!(f, "its Node is {condition}")?,
            None => f.write_str("its Node is no longer eligible")?,
        }
        f.write_str(": no new flows")?;
        match self.until {
            Some(until) => write!(f, ", removed at {}", api_time(until).0),
            None => f.write_str(", kept until another Node is Ready"),
        }
    }
}

/// The start of the drain period. A time in the future (a clock was set back) is ignored.
fn draining_since(gateway: &Gateway, now: Timestamp) -> Option<Timestamp> {
    let since = gateway.annotations().get(names::ANNOTATION_DRAINING_SINCE)?;
    since.parse().ok().filter(|since| *since <= now)
}

fn active_gateway(snapshot: &MemberSnapshot, candidate: &Candidate<'_>) -> Gateway {
    let ips = (
        candidate.gateway_ip.to_string(),
        candidate.internal_ip.to_string(),
    );
    Gateway {
        // The default is not written, as in other implementations.
        weight: Some(candidate.weight).filter(|w| *w != DEFAULT_WEIGHT),
        ..gateway(snapshot, candidate.name.clone(), ips.0, ips.1)
    }
}

fn gateway(snapshot: &MemberSnapshot, name: String, gateway_ip: String, internal_ip: String) -> Gateway {
    let public_key = public_key(snapshot, &name);
    Gateway {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(snapshot.namespace.clone()),
            ..ObjectMeta::default()
        },
        gateway_ip,
        internal_ip,
        service_cidr: join_cidrs(&snapshot.service_cidrs),
        public_key,
        ..Gateway::default()
    }
}

/// The public key of a Node's agent; empty without one. The agents of other nodes validate it.
fn public_key(snapshot: &MemberSnapshot, node: &str) -> String {
    let key = get(&snapshot.node_keys, &snapshot.namespace, node);
    let key = key.filter(|key| key.is_owned_by_node());
    key.map(|key| key.spec.public_key.clone()).unwrap_or_default()
}

/// Both families in one field.
fn join_cidrs(cidrs: &[IpNet]) -> String {
    let cidrs: Vec<_> = cidrs.iter().map(ToString::to_string).collect();
    cidrs.join(",")
}

fn existing<'a>(snapshot: &'a MemberSnapshot, gateway: &Gateway) -> Option<&'a Gateway> {
    get(&snapshot.gateways, &snapshot.namespace, &gateway.name_any()).map(AsRef::as_ref)
}

fn is_up_to_date(old: &Gateway, new: &Gateway) -> bool {
    let since = |g: &Gateway| g.annotations().get(names::ANNOTATION_DRAINING_SINCE).cloned();
    (&old.gateway_ip, &old.internal_ip, &old.service_cidr, old.weight())
        == (&new.gateway_ip, &new.internal_ip, &new.service_cidr, new.weight())
        && old.public_key == new.public_key
        && (since(old), old.is_marked_primary()) == (since(new), new.is_marked_primary())
}
