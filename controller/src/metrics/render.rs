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

/// The label of an API server, and its metrics.
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
        "Version and role of the controller.",
    );
    scrape.value(
        &[("role", role.name()), ("version", env!("CARGO_PKG_VERSION"))],
        true,
    );
    scrape.single(
        "mccontroller_is_leader",
        Kind::Gauge,
        "1 while this replica is active: it holds the Lease, or there is no election.",
        state.is_active(),
    );
    scrape.single(
        "mccontroller_ready",
        Kind::Gauge,
        "1 while /readyz succeeds.",
        state.ready().is_ok(),
    );
}

fn plans(scrape: &mut Scrape, state: &ControllerState) {
    scrape.family(
        "mccontroller_reconcile_duration_seconds",
        Kind::Histogram,
        "Duration of plans, and their number.",
    );
    scrape.histogram(&[], &state.reconcile_durations);
    scrape.single(
        "mccontroller_last_reconcile_timestamp_seconds",
        Kind::Gauge,
        "Unix time of the last plan, 0 for never.",
        state
            .last_reconcile
            .map_or(0.0, |at| at.as_duration().as_secs_f64()),
    );
    scrape.family(
        "mccontroller_active_issues",
        Kind::Gauge,
        "Issues of the last plan by code; the log names each once.",
    );
    for (code, count) in &state.issues {
        scrape.value(&[("code", code.as_str())], count);
    }
    scrape.family(
        "mccontroller_active_warning_events",
        Kind::Gauge,
        "Active issues that are published as Events, by kind of the object and reason.",
    );
    for ((kind, reason), count) in &state.warnings {
        scrape.value(&[("kind", kind.name()), ("reason", reason)], count);
    }
}

fn writes(scrape: &mut Scrape, servers: &[Server], now: Instant) {
    scrape.family(
        "mccontroller_writes_total",
        Kind::Counter,
        "Completed writes, by API server, kind of object and result.",
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
        "Planned writes that are not done yet, by kind of object.",
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
        "Age of the oldest pending write, 0 for none.",
    );
    for (server, counted) in servers {
        let oldest = counted.pending.values().min();
        let age = oldest.map_or(0.0, |at| since(*at, now));
        scrape.value(&[("server", server)], age);
    }
    scrape.family(
        "mccontroller_failing_objects",
        Kind::Gauge,
        "Objects whose last two or more writes failed.",
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
        "Time since the API server's last answer; absent before the first.",
    );
    for (server, counted) in servers {
        if let Some(at) = counted.last_contact {
            scrape.value(&[("server", server)], since(at, now));
        }
    }
    scrape.family(
        "mccontroller_watch_restarts_total",
        Kind::Counter,
        "Watches that ended in an error, by kind of object.",
    );
    for (server, counted) in servers {
        for (kind, count) in &counted.watch_restarts {
            scrape.value(&[("server", server), ("kind", kind)], count);
        }
    }
    scrape.family(
        "mccontroller_events_total",
        Kind::Counter,
        "Kubernetes Events that were published, and attempts that failed.",
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
        "Time since the last heartbeat of an accepted member, by the leader's clock.",
    );
    for (cluster, at) in &counts.members {
        scrape.value(&[("cluster", cluster)], age(*at, time));
    }
    scrape.family(
        "mccontroller_member_connected",
        Kind::Gauge,
        "1 if the last heartbeat of an accepted member is at most 30 s old.",
    );
    for (cluster, at) in &counts.members {
        let connected = time.duration_since(*at) <= HEARTBEAT_TIMEOUT;
        scrape.value(&[("cluster", cluster)], connected);
    }
    scrape.single(
        "mccontroller_rejected_members",
        Kind::Gauge,
        "Clusters with an announce that is not accepted.",
        counts.rejected,
    );
    scrape.family(
        "mccontroller_resource_exports",
        Kind::Gauge,
        "ResourceExports of members, by cluster and kind.",
    );
    for ((cluster, kind), count) in &counts.exports {
        scrape.value(&[("cluster", cluster), ("kind", kind)], count);
    }
    for (name, help, by_cluster) in [
        (
            "mccontroller_failed_resource_exports",
            "ResourceExports that are not imported, by cluster; condition Failure has the reason.",
            &counts.failed,
        ),
        (
            "mccontroller_conflicting_resource_exports",
            "ResourceExports that conflict with other clusters, by cluster; condition Conflict has the reason.",
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
        "ResourceImports by kind; of kind LabelIdentity the allocated numbers.",
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
            "1 if the last request to the leader's API server succeeded; absent without a ClusterSet.",
            counts.connected,
        );
        scrape.single(
            "mccontroller_leader_accepted",
            Kind::Gauge,
            "1 if the leader accepts this member; absent without a ClusterSet.",
            counts.accepted,
        );
    }
    if let Some(at) = counts.heartbeat {
        scrape.single(
            "mccontroller_heartbeat_age_seconds",
            Kind::Gauge,
            "Age of the last heartbeat in the leader cluster.",
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
            "ServiceExports that conflict with other clusters, by reason.",
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
            "Services that the ClusterSet offers to this cluster.",
            counts.offered,
        ),
        (
            "mccontroller_imported_services",
            "Imported Services.",
            counts.imported,
        ),
        (
            "mccontroller_gateways",
            "Gateways of this cluster.",
            counts.gateways,
        ),
        (
            "mccontroller_known_clusters",
            "Other clusters with known networks: ClusterInfoImports.",
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
