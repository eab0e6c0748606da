//! The membership: `ClusterSet`, Secret, announce with heartbeat, status.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mc_api::{
    cluster_set::{ClusterSet, ClusterSetStatus, ClusterStatus},
    condition::{self, Condition},
    member_cluster_announce::MemberClusterAnnounce,
    names,
};
use serde_json::{Value, json};

use super::{
    announce::announce,
    cluster_copy::{other_cluster, own_uid},
    connection_config::{Credentials, connection_config, credentials},
    data_path_status::{self, DATA_PATH_READY},
    instance,
    leader_account::account_name,
    membership_record,
    not_ready_reason::NotReadyReason,
};
pub use crate::snapshot::leader_namespace;
use crate::{
    cluster_id::{self, ClusterIdError},
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderConnectionState, MemberSnapshot, RemoteObjects, SecretState, api_time},
};

/// The interval of heartbeats.
pub const HEARTBEAT_PERIOD: SignedDuration = SignedDuration::from_secs(10);

/// The leader's decision about this member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// No decision yet.
    Pending,
    /// The cluster is a member.
    Accepted,
    /// The cluster is rejected for this reason.
    Rejected(String),
}

/// The active `ClusterSet`: the oldest of this controller's namespace.
#[must_use]
pub fn active_cluster_set(snapshot: &MemberSnapshot) -> Option<&ClusterSet> {
    snapshot
        .cluster_sets
        .values()
        .filter(|s| s.metadata.deletion_timestamp.is_none())
        .min_by_key(|s| (s.creation_timestamp(), s.name_any()))
        .map(AsRef::as_ref)
}

/// The leader's decision: it sets its finalizer on the announce of an accepted member.
#[must_use]
pub fn acceptance(leader: &RemoteObjects, set: &ClusterSet) -> Acceptance {
    let Some(announce) = announce(leader, set).filter(|a| a.metadata.deletion_timestamp.is_none()) else {
        return Acceptance::Pending;
    };
    if announce.cluster_set_id != set.name_any() {
        return Acceptance::Rejected(id_mismatch("name", &set.name_any(), &announce.cluster_set_id));
    }
    if let Some(why) = names::ANNOTATION_REJECTED_REASON.get(announce) {
        return Acceptance::Rejected(why.to_owned());
    }
    let finalizer = names::member_announce_finalizer(&set.spec.cluster_id);
    if announce.finalizers().contains(&finalizer) {
        Acceptance::Accepted
    } else {
        Acceptance::Pending
    }
}

fn id_mismatch(field: &str, ours: &str, theirs: &str) -> String {
    format!("ClusterSet {field} {ours:?} is not the {theirs:?} this cluster announced before")
}

/// Keeps the announce, its heartbeat and the status of the `ClusterSet`.
pub fn plan(snapshot: &MemberSnapshot, set: &ClusterSet, plan: &mut Plan) {
    // The connection may still be that of a deleted ClusterSet while the ID of its successor is unknown.
    let has_id = !set.spec.cluster_id.is_empty();
    if let Some(leader) = snapshot.leader.as_ref().filter(|l| l.synced && has_id) {
        heartbeat(snapshot, set, leader, plan);
    }
    for other in snapshot
        .cluster_sets
        .values()
        .filter(|s| s.name_any() != set.name_any())
    {
        plan.issue(
            IssueCode::SecondClusterSet,
            format!("ClusterSet {}", other.name_any()),
            format!(
                "ignored: ClusterSet {:?} is already in this Namespace",
                set.name_any()
            ),
        );
    }
    let reason = not_ready_reason(snapshot, set);
    if let Some(reason) = reason.as_ref().filter(|p| !p.is_transient()) {
        plan.issue(
            IssueCode::NotReady,
            format!("ClusterSet {}", set.name_any()),
            reason.to_string(),
        );
    }
    // A controller that has just started keeps the status until the state is known.
    let connecting = matches!(
        reason,
        Some(
            NotReadyReason::SecretPending { .. }
                | NotReadyReason::Connecting { .. }
                | NotReadyReason::ClusterId(ClusterIdError::Pending { .. })
        )
    );
    if connecting && set.status.as_ref().is_some_and(|s| !s.conditions.is_empty()) {
        return;
    }
    let status = status(snapshot, set, reason.as_ref());
    if set.status.as_ref() != Some(&status) {
        plan.status(ApiServer::Local, set, &status);
    }
}

fn heartbeat(snapshot: &MemberSnapshot, set: &ClusterSet, leader: &RemoteObjects, plan: &mut Plan) {
    let now = api_time(snapshot.now).0.to_string();
    let leader_id = set
        .spec
        .leaders
        .first()
        .map(|l| l.cluster_id.clone())
        .unwrap_or_default();
    let Some(old) = announce(leader, set) else {
        // An announce without a record would not be deregistered after a restart.
        if !membership_record::is_recorded(snapshot, set) {
            return;
        }
        let mut new = MemberClusterAnnounce {
            cluster_id: set.spec.cluster_id.clone(),
            cluster_set_id: set.name_any(),
            leader_cluster_id: leader_id,
            ..MemberClusterAnnounce::default()
        };
        new.metadata.name = Some(names::member_announce(&set.spec.cluster_id));
        new.metadata.namespace = Some(leader_namespace(set).to_owned());
        let annotations = new.annotations_mut();
        annotations.insert(names::ANNOTATION_TOUCH_TS.to_owned(), now);
        if let Some(Value::String(account)) = account(snapshot, set) {
            annotations.insert(names::ANNOTATION_SERVICE_ACCOUNT.to_owned(), account);
        }
        if let Some(uid) = own_uid(snapshot) {
            annotations.insert(names::ANNOTATION_CLUSTER_UID.to_owned(), uid);
        }
        let statement = instance::statement(&snapshot.instance, snapshot.now);
        annotations.insert(names::ANNOTATION_INSTANCE.to_owned(), statement);
        return plan.create(ApiServer::Leader, &new);
    };
    if old.metadata.deletion_timestamp.is_some() {
        return;
    }
    if let Some(other) = other_cluster(snapshot, leader, set) {
        if let Ok(at) = snapshot.now.checked_add(other.remaining) {
            plan.requeue_at(at);
        }
        return;
    }
    instance::requeue(snapshot, snapshot.instance.writes_in, plan);
    // IDs are immutable: this is the announce of an earlier membership.
    let is_former = old.cluster_set_id != set.name_any() || old.leader_cluster_id != leader_id;
    if is_former && snapshot.instance.writes_in.is_none() {
        return plan.delete(ApiServer::Leader, old);
    }
    let last: Option<Timestamp> = old.heartbeat().parse().ok();
    let due = last
        .and_then(|t| t.checked_add(HEARTBEAT_PERIOD).ok())
        .filter(|due| *due > snapshot.now);
    let stated = json!(old.annotations().get(names::ANNOTATION_SERVICE_ACCOUNT));
    let changed_account = account(snapshot, set).filter(|account| *account != stated);
    let known_uid = old.annotations().get(names::ANNOTATION_CLUSTER_UID);
    let changed_uid = own_uid(snapshot).filter(|uid| known_uid != Some(uid));
    let statement = old.annotations().get(names::ANNOTATION_INSTANCE);
    let is_own = statement.is_some_and(|statement| instance::is_of(statement, &snapshot.instance.own));
    match due.filter(|_| changed_account.is_none() && changed_uid.is_none() && is_own) {
        Some(due) if due.duration_since(snapshot.now) <= HEARTBEAT_PERIOD => plan.requeue_at(due),
        // No heartbeat, an overdue one, or a time in the future after a clock was set back.
        _ => {
            let statement = json!(instance::statement(&snapshot.instance, snapshot.now));
            let annotations: serde_json::Map<_, _> = [
                (names::ANNOTATION_TOUCH_TS, json!(now)),
                (names::ANNOTATION_INSTANCE, statement),
            ]
            .into_iter()
            .chain(changed_account.map(|account| (names::ANNOTATION_SERVICE_ACCOUNT, account)))
            .chain(changed_uid.map(|uid| (names::ANNOTATION_CLUSTER_UID, json!(uid))))
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
            let touch = json!({ "metadata": { "annotations": annotations } });
            plan.merge(ApiServer::Leader, old, touch);
        }
    }
}

/// The name of this member's account in the leader cluster, null if its token has none; `None` without a usable Secret.
fn account(snapshot: &MemberSnapshot, set: &ClusterSet) -> Option<Value> {
    let SecretState::Present(secret) = &snapshot.secret else {
        return None;
    };
    let account = match credentials(secret).ok()?.1 {
        Credentials::Token(token) => account_name(&token, leader_namespace(set)),
        Credentials::Bootstrap { account, .. } => Some(account),
    };
    Some(json!(account))
}

/// The reason why this member is not ready, if any.
#[must_use]
pub fn not_ready_reason(snapshot: &MemberSnapshot, set: &ClusterSet) -> Option<NotReadyReason> {
    if let Some(unknown) = cluster_id::error(set, &snapshot.cluster_claims) {
        return Some(unknown.into());
    }
    let spec = match connection_config(set, &snapshot.secret) {
        Ok(spec) => spec,
        Err(reason) => return Some(reason),
    };
    match &snapshot.connection {
        LeaderConnectionState::Down { error } => {
            return Some(NotReadyReason::Disconnected {
                server: spec.server,
                error: error.clone(),
            });
        }
        LeaderConnectionState::Idle | LeaderConnectionState::Connecting => {
            return Some(NotReadyReason::Connecting { server: spec.server });
        }
        LeaderConnectionState::Up => {}
    }
    let Some(leader) = snapshot.leader.as_ref().filter(|l| l.synced) else {
        return Some(NotReadyReason::Connecting { server: spec.server });
    };
    if let Some(other) = other_cluster(snapshot, leader, set) {
        return Some(NotReadyReason::ClonedCluster {
            cluster_id: set.spec.cluster_id.clone(),
            mark: other.mark,
        });
    }
    match acceptance(leader, set) {
        Acceptance::Accepted => None,
        Acceptance::Pending => Some(NotReadyReason::NotAccepted),
        Acceptance::Rejected(why) => Some(NotReadyReason::Rejected { why }),
    }
}

fn status(snapshot: &MemberSnapshot, set: &ClusterSet, reason: Option<&NotReadyReason>) -> ClusterSetStatus {
    let now = api_time(snapshot.now);
    let mut status = set.status.clone().unwrap_or_default();
    status.total_clusters = 1;
    status.ready_clusters = i32::from(reason.is_none());
    status.observed_generation = set.metadata.generation;
    let ready = match reason {
        None => Condition::new("Ready", condition::TRUE, "Connected", ""),
        Some(p) if p.is_transient() => Condition::new("Ready", condition::UNKNOWN, p.reason(), p.to_string()),
        Some(p) => Condition::new("Ready", condition::FALSE, p.reason(), p.to_string()),
    };
    condition::upsert(&mut status.conditions, ready.clone(), &now);
    let leader = set
        .spec
        .leaders
        .first()
        .map(|l| l.cluster_id.clone())
        .unwrap_or_default();
    let mut conditions = status
        .cluster_statuses
        .iter()
        .find(|s| s.cluster_id == leader)
        .map(|s| s.conditions.clone())
        .unwrap_or_default();
    condition::upsert(&mut conditions, ready, &now);
    let is_leader = if reason.is_none() {
        let message = "This leader cluster is the leader for local cluster";
        Condition::new("IsLeader", condition::TRUE, "", message)
    } else {
        Condition::new("IsLeader", condition::FALSE, "", "")
    };
    condition::upsert(&mut conditions, is_leader, &now);
    // The leader is the first, as in Antrea, and may be a member, too.
    let mut others = data_path_status::cluster_statuses(snapshot, set);
    conditions.retain(|condition| condition.type_ != DATA_PATH_READY);
    if let Some(i) = others.iter().position(|other| other.cluster_id == leader) {
        conditions.append(&mut others.remove(i).conditions);
    }
    status.cluster_statuses = vec![ClusterStatus {
        cluster_id: leader,
        conditions,
    }];
    status.cluster_statuses.append(&mut others);
    status
}
