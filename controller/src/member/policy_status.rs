//! The status of network policies, from the reports of the Nodes' agents.
//!
//! Where the agents enforce every rule, policies get the status that Antrea's controller writes elsewhere.
//! Where Antrea enforces policies and some agent only those rules that cross clusters, Antrea owns the status, and the
//! agents' errors become Events.

use jiff::Timestamp;
use kube::Resource;
use mc_api::{
    condition::{self, Condition},
    network_policy::{NetworkPolicyStatus, Phase, PolicyKind, REALIZABLE, REALIZATION_FAILURE},
    node_policy_status::Enforcement,
};
use serde_json::Value;

use super::{
    policy_reports::{GenerationReports, PolicyReports, is_enforced, text},
    traffic_stats::Pace,
};
use crate::{
    plan::{ApiServer, ObjectRef, Plan, WritableKind},
    snapshot::{MemberSnapshot, OptionalKind, StatusTimes, api_time},
};

/// The reason of [`REALIZATION_FAILURE`] and of Events, as in Antrea.
const FAILED_ON_NODE: &str = "NetworkPolicyRealizationFailedOnNode";
/// The reason of [`REALIZABLE`], by which a status of this controller is recognized; Antrea's has none.
const ENFORCED: &str = "EnforcedByAgents";

/// Writes the status of every policy, or Events.
pub fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) {
    let is_pending = snapshot.node_policy_statuses.is_pending()
        || snapshot.policies.is_pending()
        || snapshot.network_policies.is_pending();
    if is_pending {
        return;
    }
    let before = plan.writes.len();
    if !is_enforced(snapshot) {
        withdraw(&snapshot.policies, before, plan);
        withdraw(&snapshot.network_policies, before, plan);
        let reports = PolicyReports::new(snapshot, Enforcement::ClusterSetOnly);
        report_errors(&snapshot.policies, &reports, plan);
        report_errors(&snapshot.network_policies, &reports, plan);
        return;
    }
    let write = Writer {
        reports: PolicyReports::new(snapshot, Enforcement::All),
        now: snapshot.now,
        before,
        pace: Pace::new(
            snapshot.now,
            active(&snapshot.policies)
                .count()
                .saturating_add(active(&snapshot.network_policies).count()),
            snapshot.nodes.len(),
        ),
        times: &snapshot.status_times,
    };
    write.statuses(&snapshot.policies, plan);
    write.statuses(&snapshot.network_policies, plan);
}

struct Writer<'a> {
    reports: PolicyReports<'a>,
    now: Timestamp,
    /// Writes of the plan without statuses of policies.
    before: usize,
    pace: Pace,
    times: &'a StatusTimes,
}

// === impl Writer ===

impl Writer<'_> {
    /// Counters alone are written at the pace; other changes at once, with the newest counters.
    fn statuses<K: PolicyKind + WritableKind>(&self, policies: &OptionalKind<K>, plan: &mut Plan) {
        for policy in active(policies) {
            let mut old = policy.status();
            let last = self.times.last(&ObjectRef::new(ApiServer::Local, policy), &old);
            let counters = std::mem::take(&mut old.rule_traffic_stats);
            old.traffic_stats_time = None;
            let reports = self.reports.of(policy);
            let mut new = status(policy, &old, &reports, self.now);
            let sums = reports.rule_traffic_stats();
            if new == old {
                if sums == counters {
                    continue;
                }
                if let Some(next) = self.pace.next(last) {
                    plan.requeue_at(next);
                    continue;
                }
            }
            if plan.has_room(self.before) {
                new.rule_traffic_stats = sums;
                new.traffic_stats_time = Some(api_time(self.now).0.to_string());
                plan.status(ApiServer::Local, policy, &new);
            }
        }
    }
}

/// The status of a policy without counters.
fn status<K: PolicyKind>(
    policy: &K,
    old: &NetworkPolicyStatus,
    reports: &GenerationReports<'_>,
    now: Timestamp,
) -> NetworkPolicyStatus {
    let generation = policy.meta().generation.unwrap_or_default();
    let failure = reports.message();
    // Another policy that changes does not revoke the phase: until the Nodes have applied that one, they are behind.
    let is_settled = is_ours(old)
        && old.observed_generation == generation
        && [Phase::Realized, Phase::Failed]
            .iter()
            .any(|phase| phase.name() == old.phase);
    let is_complete = reports.current + reports.failed == reports.desired;
    let phase = if is_complete && (reports.is_applied_everywhere || is_settled) {
        if failure.is_some() {
            Phase::Failed
        } else {
            Phase::Realized
        }
    } else if reports.is_applied {
        Phase::Realizing
    } else {
        Phase::Pending
    };
    let mut wanted = vec![Condition::new(
        REALIZABLE,
        condition::TRUE,
        ENFORCED,
        "enforced by the agents of mc-gateway",
    )];
    wanted.extend(
        failure.map(|message| Condition::new(REALIZATION_FAILURE, condition::TRUE, FAILED_ON_NODE, message)),
    );
    let now = api_time(now);
    let mut conditions = old.conditions.clone();
    conditions.retain(|old| wanted.iter().any(|new| new.type_ == old.type_));
    for condition in wanted {
        condition::upsert(&mut conditions, condition, &now);
    }
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    NetworkPolicyStatus {
        phase: phase.name().to_owned(),
        observed_generation: generation,
        current_nodes_realized: number(reports.current),
        desired_nodes_realized: number(reports.desired),
        conditions,
        ..NetworkPolicyStatus::default()
    }
}

fn number(nodes: usize) -> i32 {
    i32::try_from(nodes).unwrap_or(i32::MAX)
}

/// Whether this controller has written the status.
fn is_ours(status: &NetworkPolicyStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == REALIZABLE && c.reason == ENFORCED)
}

/// Resets the statuses of this controller: no Node enforces the policies.
fn withdraw<K: PolicyKind + WritableKind>(policies: &OptionalKind<K>, before: usize, plan: &mut Plan) {
    for policy in active(policies) {
        let old = policy.status();
        if !is_ours(&old) || !plan.has_room(before) {
            continue;
        }
        let new = NetworkPolicyStatus {
            phase: Phase::Pending.name().to_owned(),
            observed_generation: policy.meta().generation.unwrap_or_default(),
            ..NetworkPolicyStatus::default()
        };
        plan.status(ApiServer::Local, policy, &new);
    }
}

/// Events for the agents' errors. Rules without peers in other clusters are Antrea's alone.
fn report_errors<K: PolicyKind + WritableKind>(
    policies: &OptionalKind<K>,
    reports: &PolicyReports<'_>,
    plan: &mut Plan,
) {
    for policy in active(policies).filter(|policy| selects_other_clusters(policy.spec())) {
        for error in reports.of(policy).errors.keys() {
            plan.warning_event(ApiServer::Local, policy, FAILED_ON_NODE, text(error));
        }
    }
}

/// Whether a rule for ingress has a peer of scope `ClusterSet`.
fn selects_other_clusters(spec: &Value) -> bool {
    items(spec, "ingress")
        .flat_map(|rule| items(rule, "from"))
        .any(|peer| peer.get("scope").and_then(Value::as_str) == Some("ClusterSet"))
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// The policies that are not being deleted.
fn active<K: Resource>(policies: &OptionalKind<K>) -> impl Iterator<Item = &K> {
    let objects = policies
        .objects()
        .into_iter()
        .flat_map(|objects| objects.values());
    objects
        .map(AsRef::as_ref)
        .filter(|policy| policy.meta().deletion_timestamp.is_none())
}
