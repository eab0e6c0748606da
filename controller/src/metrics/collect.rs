//! Every metric of the controllers. Pure.

use jiff::Timestamp;
use mc_metrics::{
    process,
    text::{Kind, Text},
};
use tokio::time::Instant;

use super::{
    Role,
    counts::{Counts, Leader, Member},
    state::State,
    tally::Counted,
};
use crate::{leader::members::READY_FOR, plan};

/// An API server as labels name it, and what is known of it.
type Server = (&'static str, Counted);

pub(super) fn render(role: Role, state: &State, servers: &[Server], now: Instant, time: Timestamp) -> String {
    let mut text = Text::default();
    replica(&mut text, role, state);
    plans(&mut text, state);
    writes(&mut text, servers, now);
    exchanges(&mut text, servers, now);
    match &state.counts {
        Counts::None => {}
        Counts::Leader(counts) => leader(&mut text, counts, time),
        Counts::Member(counts) => member(&mut text, counts, time),
    }
    process::write(&mut text);
    text.finish()
}

fn replica(text: &mut Text, role: Role, state: &State) {
    text.family(
        "mccontroller_build_info",
        Kind::Gauge,
        "Version of the controller, and what it does.",
    );
    text.value(
        &[("role", role.name()), ("version", env!("CARGO_PKG_VERSION"))],
        1,
    );
    text.single(
        "mccontroller_leading",
        Kind::Gauge,
        "1 while this replica is the one that works: it holds the Lease, or there is no election.",
        u8::from(state.works()),
    );
    text.single(
        "mccontroller_ready",
        Kind::Gauge,
        "What /readyz says.",
        u8::from(state.ready().is_ok()),
    );
}

fn plans(text: &mut Text, state: &State) {
    text.family(
        "mccontroller_plan_duration_seconds",
        Kind::Histogram,
        "How long plans took to make; their number, too.",
    );
    state.plans.write(text, &[]);
    text.single(
        "mccontroller_last_plan_timestamp_seconds",
        Kind::Gauge,
        "When the last plan was made, 0 for never.",
        state.last_plan.map_or(0.0, |at| at.as_duration().as_secs_f64()),
    );
    text.single(
        "mccontroller_notices",
        Kind::Gauge,
        "What a person should know now; the log names each when it begins and when it ends.",
        state.notices,
    );
    text.family(
        "mccontroller_warnings",
        Kind::Gauge,
        "Warnings that hold now and are told as Events, by kind of the object and reason.",
    );
    for ((kind, reason), count) in &state.warnings {
        text.value(&[("kind", kind.name()), ("reason", reason)], count);
    }
}

fn writes(text: &mut Text, servers: &[Server], now: Instant) {
    text.family(
        "mccontroller_writes_total",
        Kind::Counter,
        "Writes that ended, by API server, kind of object and result.",
    );
    for (server, counted) in servers {
        for ((kind, fate), count) in &counted.writes {
            text.value(
                &[("server", server), ("kind", kind.name()), ("result", fate.name())],
                count,
            );
        }
    }
    text.family(
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
            text.value(&[("server", server), ("kind", kind.name())], count);
        }
    }
    text.family(
        "mccontroller_pending_write_age_seconds",
        Kind::Gauge,
        "How long the oldest of these has been asked for: the lag behind what should be; 0 for none.",
    );
    for (server, counted) in servers {
        let oldest = counted.pending.values().min();
        let age = oldest.map_or(0.0, |at| since(*at, now));
        text.value(&[("server", server)], age);
    }
    text.family(
        "mccontroller_failing_objects",
        Kind::Gauge,
        "Objects that could not be written more than once, and were not written since.",
    );
    for (server, counted) in servers {
        for (kind, count) in &counted.failing {
            text.value(&[("server", server), ("kind", kind.name())], count);
        }
    }
}

fn exchanges(text: &mut Text, servers: &[Server], now: Instant) {
    text.family(
        "mccontroller_api_contact_age_seconds",
        Kind::Gauge,
        "How long ago the API server last answered; absent until it has.",
    );
    for (server, counted) in servers {
        if let Some(at) = counted.answered {
            text.value(&[("server", server)], since(at, now));
        }
    }
    text.family(
        "mccontroller_watch_restarts_total",
        Kind::Counter,
        "Watches that ended in an error and were begun again, by kind of object.",
    );
    for (server, counted) in servers {
        for (kind, count) in &counted.watch_restarts {
            text.value(&[("server", server), ("kind", kind)], count);
        }
    }
    text.family(
        "mccontroller_events_total",
        Kind::Counter,
        "Kubernetes Events that were told, or could not be told when it was tried.",
    );
    for (server, counted) in servers {
        text.value(&[("server", server), ("result", "told")], counted.told);
        text.value(&[("server", server), ("result", "failed")], counted.untold);
    }
}

fn leader(text: &mut Text, counts: &Leader, time: Timestamp) {
    text.family(
        "mccontroller_member_heartbeat_age_seconds",
        Kind::Gauge,
        "How long ago the heartbeat of an accepted member was last seen to change, by the leader's clock.",
    );
    for (cluster, at) in &counts.members {
        text.value(&[("cluster", cluster)], age(*at, time));
    }
    text.family(
        "mccontroller_member_connected",
        Kind::Gauge,
        "1 for an accepted member whose heartbeat is not older than 30 s.",
    );
    for (cluster, at) in &counts.members {
        let connected = time.duration_since(*at) <= READY_FOR;
        text.value(&[("cluster", cluster)], u8::from(connected));
    }
    text.single(
        "mccontroller_refused_members",
        Kind::Gauge,
        "Clusters that announce themselves and are not accepted.",
        counts.refused,
    );
    text.family(
        "mccontroller_resource_exports",
        Kind::Gauge,
        "ResourceExports by cluster and kind.",
    );
    for ((cluster, kind), count) in &counts.exports {
        text.value(&[("cluster", cluster), ("kind", kind)], count);
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
        text.family(name, Kind::Gauge, help);
        for (cluster, count) in by_cluster {
            text.value(&[("cluster", cluster)], count);
        }
    }
    text.family(
        "mccontroller_resource_imports",
        Kind::Gauge,
        "ResourceImports by kind; those of kind LabelIdentity are the numbers given away.",
    );
    for (kind, count) in &counts.imports {
        text.value(&[("kind", kind)], count);
    }
}

fn member(text: &mut Text, counts: &Member, time: Timestamp) {
    if counts.joined {
        text.single(
            "mccontroller_leader_connected",
            Kind::Gauge,
            "1 where the last exchange with the leader's API server succeeded; absent without a ClusterSet.",
            u8::from(counts.connected),
        );
        text.single(
            "mccontroller_leader_accepted",
            Kind::Gauge,
            "1 where the leader, as last seen, takes this cluster for a member; absent without a ClusterSet.",
            u8::from(counts.accepted),
        );
    }
    if let Some(at) = counts.heartbeat {
        text.single(
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
        text.single(name, Kind::Gauge, help, count);
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
        text.family(name, Kind::Gauge, help);
        for (reason, count) in by_reason {
            text.value(&[("reason", reason)], count);
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
        text.single(name, Kind::Gauge, help, count);
    }
    if let Some(count) = counts.label_identities {
        text.single(
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
