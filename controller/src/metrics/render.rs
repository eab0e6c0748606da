//! Every metric of the controllers. Pure.

use std::fmt;

use jiff::Timestamp;
use mc_metrics::scrape::{Kind, Scrape};
use tokio::time::Instant;

use super::{
    Role,
    api_metrics::ApiMetricsSnapshot,
    object_gauges::{LeaderGauges, MemberGauges, ObjectGauges},
    state::ControllerState,
};
use crate::{leader::heartbeat::HEARTBEAT_TIMEOUT, plan};

/// An API server as labels name it, and what is known of it.
type Server = (&'static str, ApiMetricsSnapshot);

pub(super) fn render(
    role: Role,
    state: &ControllerState,
    servers: &[Server],
    now: Instant,
    time: Timestamp,
) -> Result<String, fmt::Error> {
    let mut scrape = Scrape::default();
    replica(&mut scrape, role, state);
    plans(&mut scrape, state);
    writes(&mut scrape, servers, now);
    exchanges(&mut scrape, servers, now);
    match &state.objects {
        ObjectGauges::None => {}
        ObjectGauges::Leader(counts) => leader(&mut scrape, counts, time),
        ObjectGauges::Member(counts) => member(&mut scrape, counts, time),
    }
    scrape.encode()
}

fn replica(scrape: &mut Scrape, role: Role, state: &ControllerState) {
    scrape.family(
        "mccontroller_build_info",
        Kind::Gauge,
        "Version of the controller, and what it does.",
    );
    scrape.value(
        &[("role", role.name()), ("version", env!("CARGO_PKG_VERSION"))],
        true,
    );
    scrape.single(
        "mccontroller_is_leader",
        Kind::Gauge,
        "1 while this replica is the one that works: it holds the Lease, or there is no election.",
        state.is_active(),
    );
    scrape.single(
        "mccontroller_ready",
        Kind::Gauge,
        "What /readyz says.",
        state.ready().is_ok(),
    );
}

fn plans(scrape: &mut Scrape, state: &ControllerState) {
    scrape.family(
        "mccontroller_reconcile_duration_seconds",
        Kind::Histogram,
        "How long plans took to make; their number, too.",
    );
    scrape.histogram(&[], &state.reconcile_durations);
    scrape.single(
        "mccontroller_last_reconcile_timestamp_seconds",
        Kind::Gauge,
        "When the last plan was made, 0 for never.",
        state
            .last_reconcile
            .map_or(0.0, |at| at.as_duration().as_secs_f64()),
    );
    scrape.single(
        "mccontroller_active_issues",
        Kind::Gauge,
        "What a person should know now; the log names each when it begins and when it ends.",
        state.issues,
    );
    scrape.family(
        "mccontroller_active_warning_events",
        Kind::Gauge,
        "Warnings that hold now and are told as Events, by kind of the object and reason.",
    );
    for ((kind, reason), count) in &state.warnings {
        scrape.value(&[("kind", kind.name()), ("reason", reason)], count);
    }
}

fn writes(scrape: &mut Scrape, servers: &[Server], now: Instant) {
    scrape.family(
        "mccontroller_writes_total",
        Kind::Counter,
        "Writes that ended, by API server, kind of object and result.",
    );
    for (server, counted) in servers {
        for ((kind, fate), count) in &counted.writes {
            scrape.value(
                &[("server", server), ("kind", kind.name()), ("result", fate.name())],
                count,
            );
        }
    }
    scrape.family(
        "mccontroller_pending_writes",
        Kind::Gauge,
        "What the last plan asked for and is not done yet, by kind of object.",
    );
    for (server, counted) in servers {
        let mut kinds: std::collections::BTreeMap<plan::Kind, u64> = std::collections::BTreeMap::new();
        for target in counted.pending.keys() {
            let count = kinds.entry(target.kind).or_default();
            *count = count.saturating_add(1);
        }
        for (kind, count) in kinds {
            scrape.value(&[("server", server), ("kind", kind.name())], count);
        }
    }
    scrape.family(
        "mccontroller_pending_write_age_seconds",
        Kind::Gauge,
        "How long the oldest of these has been asked for: the lag behind what should be; 0 for none.",
    );
    for (server, counted) in servers {
        let oldest = counted.pending.values().min();
        let age = oldest.map_or(0.0, |at| since(*at, now));
        scrape.value(&[("server", server)], age);
    }
    scrape.family(
        "mccontroller_failing_objects",
        Kind::Gauge,
        "Objects that could not be written more than once, and were not written since.",
    );
    for (server, counted) in servers {
        for (kind, count) in &counted.failing {
            scrape.value(&[("server", server), ("kind", kind.name())], count);
        }
    }
}

fn exchanges(scrape: &mut Scrape, servers: &[Server], now: Instant) {
    scrape.family(
        "mccontroller_api_contact_age_seconds",
        Kind::Gauge,
        "How long ago the API server last answered; absent until it has.",
    );
    for (server, counted) in servers {
        if let Some(at) = counted.last_contact {
            scrape.value(&[("server", server)], since(at, now));
        }
    }
    scrape.family(
        "mccontroller_watch_restarts_total",
        Kind::Counter,
        "Watches that ended in an error and were begun again, by kind of object.",
    );
    for (server, counted) in servers {
        for (kind, count) in &counted.watch_restarts {
            scrape.value(&[("server", server), ("kind", kind)], count);
        }
    }
    scrape.family(
        "mccontroller_events_total",
        Kind::Counter,
        "Kubernetes Events that were told, or could not be told when it was tried.",
    );
    for (server, counted) in servers {
        scrape.value(
            &[("server", server), ("result", "published")],
            counted.events_published,
        );
        scrape.value(&[("server", server), ("result", "failed")], counted.events_failed);
    }
}

fn leader(scrape: &mut Scrape, counts: &LeaderGauges, time: Timestamp) {
    scrape.family(
        "mccontroller_member_heartbeat_age_seconds",
        Kind::Gauge,
        "How long ago the heartbeat of an accepted member was last seen to change, by the leader's clock.",
    );
    for (cluster, at) in &counts.members {
        scrape.value(&[("cluster", cluster)], age(*at, time));
    }
    scrape.family(
        "mccontroller_member_connected",
        Kind::Gauge,
        "1 for an accepted member whose heartbeat is not older than 30 s.",
    );
    for (cluster, at) in &counts.members {
        let connected = time.duration_since(*at) <= HEARTBEAT_TIMEOUT;
        scrape.value(&[("cluster", cluster)], connected);
    }
    scrape.single(
        "mccontroller_rejected_members",
        Kind::Gauge,
        "Clusters that announce themselves and are not accepted.",
        counts.rejected,
    );
    scrape.family(
        "mccontroller_resource_exports",
        Kind::Gauge,
        "ResourceExports by cluster and kind.",
    );
    for ((cluster, kind), count) in &counts.exports {
        scrape.value(&[("cluster", cluster), ("kind", kind)], count);
    }
    for (name, help, by_cluster) in [
        (
            "mccontroller_failed_resource_exports",
            "ResourceExports that are not imported, by cluster; their condition Failure says why.",
            &counts.failed,
        ),
        (
            "mccontroller_conflicting_resource_exports",
            "ResourceExports that other clusters contradict, by cluster; their condition Conflict says in what.",
            &counts.conflicting,
        ),
    ] {
        scrape.family(name, Kind::Gauge, help);
        for (cluster, count) in by_cluster {
            scrape.value(&[("cluster", cluster)], count);
        }
    }
    scrape.family(
        "mccontroller_resource_imports",
        Kind::Gauge,
        "ResourceImports by kind; those of kind LabelIdentity are the numbers given away.",
    );
    for (kind, count) in &counts.imports {
        scrape.value(&[("kind", kind)], count);
    }
}

fn member(scrape: &mut Scrape, counts: &MemberGauges, time: Timestamp) {
    if counts.joined {
        scrape.single(
            "mccontroller_leader_connected",
            Kind::Gauge,
            "1 where the last exchange with the leader's API server succeeded; absent without a ClusterSet.",
            counts.connected,
        );
        scrape.single(
            "mccontroller_leader_accepted",
            Kind::Gauge,
            "1 where the leader, as last seen, takes this cluster for a member; absent without a ClusterSet.",
            counts.accepted,
        );
    }
    if let Some(at) = counts.heartbeat {
        scrape.single(
            "mccontroller_heartbeat_age_seconds",
            Kind::Gauge,
            "Age of this cluster's last heartbeat that the leader, as last seen, has.",
            age(at, time),
        );
    }
    for (name, help, count) in [
        (
            "mccontroller_service_exports",
            "ServiceExports of this cluster.",
            counts.exports,
        ),
        (
            "mccontroller_ready_service_exports",
            "ServiceExports with condition Ready.",
            counts.ready,
        ),
    ] {
        scrape.single(name, Kind::Gauge, help, count);
    }
    for (name, help, by_reason) in [
        (
            "mccontroller_invalid_service_exports",
            "ServiceExports that are not Valid, by reason.",
            &counts.invalid,
        ),
        (
            "mccontroller_conflicting_service_exports",
            "ServiceExports that other clusters contradict, by reason.",
            &counts.conflicting,
        ),
    ] {
        scrape.family(name, Kind::Gauge, help);
        for (reason, count) in by_reason {
            scrape.value(&[("reason", reason)], count);
        }
    }
    for (name, help, count) in [
        (
            "mccontroller_offered_services",
            "Services the ClusterSet offers to this cluster, as last seen at the leader.",
            counts.offered,
        ),
        (
            "mccontroller_imported_services",
            "Services this controller has imported.",
            counts.imported,
        ),
        (
            "mccontroller_gateways",
            "Gateways of this cluster.",
            counts.gateways,
        ),
        (
            "mccontroller_known_clusters",
            "Other clusters whose networks are known: ClusterInfoImports.",
            counts.clusters,
        ),
    ] {
        scrape.single(name, Kind::Gauge, help, count);
    }
    if let Some(count) = counts.label_identities {
        scrape.single(
            "mccontroller_label_identities",
            Kind::Gauge,
            "LabelIdentities of this cluster.",
            count,
        );
    }
}

fn since(at: Instant, now: Instant) -> f64 {
    now.saturating_duration_since(at).as_secs_f64()
}

/// Seconds; a clock that was set back makes nothing younger than now.
fn age(at: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(at).as_secs_f64().max(0.0)
}
