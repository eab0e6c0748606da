//! Being a member: the `ClusterSet`, its Secret, the announce and its heartbeat, the status.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use super::parting;
use crate::{
    api::{
        cluster_set::{ClusterSet, ClusterSetStatus, ClusterStatus},
        condition::{self, Condition},
        member_cluster_announce::MemberClusterAnnounce,
        names, validation,
    },
    identity::{self, Unknown},
    plan::{Plan, Side},
    world::{LeaderView, Link, MemberWorld, SecretSeen, time},
};

/// How often the member says that it is alive.
pub const HEARTBEAT: SignedDuration = SignedDuration::from_secs(10);

/// How to talk to the leader; a change of any part makes a new connection.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// The ID of the set.
    pub cluster_set: String,
    /// The ID of the local cluster.
    pub cluster_id: String,
    /// Where the leader keeps the exchanged objects.
    pub namespace: String,
    /// The URL of its API server.
    pub server: String,
    /// The certificates to trust, PEM.
    pub ca: Vec<u8>,
    /// The bearer token.
    pub token: String,
}

/// Why a member is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The `ClusterSet` says something that cannot be.
    #[error("{field}: {why}")]
    Field {
        /// Where.
        field: &'static str,
        /// What.
        why: String,
    },
    /// It is not known what this cluster is called.
    #[error(transparent)]
    Identity(#[from] Unknown),
    /// The Secret does not exist.
    #[error("spec.leaders[0].secret: Secret \"{namespace}/{name}\" does not exist")]
    SecretNotFound {
        /// Where it is looked for.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The Secret lacks something.
    #[error("spec.leaders[0].secret: Secret \"{namespace}/{name}\" has no usable key {key:?}: {why}")]
    SecretIncomplete {
        /// Where it is.
        namespace: String,
        /// Its name.
        name: String,
        /// The key in question.
        key: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// The Secret is being looked up.
    #[error("reading Secret {name:?}")]
    SecretPending {
        /// Its name.
        name: String,
    },
    /// The leader does not answer as it should.
    #[error("spec.leaders[0].server: {server:?}: {error}")]
    Disconnected {
        /// The URL.
        server: String,
        /// What happened.
        error: String,
    },
    /// The first answer is outstanding.
    #[error("connecting to {server:?}")]
    Connecting {
        /// The URL.
        server: String,
    },
    /// The leader's controller has not looked yet.
    #[error("the leader has not accepted this cluster yet")]
    NotAccepted,
    /// The leader's controller says no.
    #[error("the leader refuses this cluster: {why}")]
    Refused {
        /// Its words.
        why: String,
    },
}

/// What the leader thinks of this member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// Nothing yet.
    Pending,
    /// It is a member.
    Accepted,
    /// It is not, and why.
    Refused(String),
}

// === impl Problem ===

impl Problem {
    /// The reason of the condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Identity(unknown) if unknown.transient() => "Connecting",
            Self::Field { .. } | Self::Identity(_) => "InvalidClusterSet",
            Self::SecretNotFound { .. } => "SecretNotFound",
            Self::SecretIncomplete { .. } => "SecretIncomplete",
            Self::SecretPending { .. } | Self::Connecting { .. } => "Connecting",
            Self::Disconnected { .. } => "Disconnected",
            Self::NotAccepted => "NotAccepted",
            Self::Refused { .. } => "Refused",
        }
    }

    fn transient(&self) -> bool {
        match self {
            Self::SecretPending { .. } | Self::Connecting { .. } | Self::NotAccepted => true,
            Self::Identity(unknown) => unknown.transient(),
            _ => false,
        }
    }
}

/// The `ClusterSet` that counts: the oldest of this controller's Namespace.
#[must_use]
pub fn current(world: &MemberWorld) -> Option<&ClusterSet> {
    world
        .cluster_sets
        .values()
        .filter(|s| s.metadata.deletion_timestamp.is_none())
        .min_by_key(|s| (s.creation_timestamp(), s.name_any()))
        .map(AsRef::as_ref)
}

/// Where the leader keeps the exchanged objects.
#[must_use]
pub fn leader_namespace(set: &ClusterSet) -> &str {
    if set.spec.namespace.is_empty() {
        names::LEADER_NAMESPACE
    } else {
        &set.spec.namespace
    }
}

/// The Secret a `ClusterSet` names.
#[must_use]
pub fn secret_name(set: &ClusterSet) -> Option<&str> {
    set.spec
        .leaders
        .first()
        .map(|l| l.secret.as_str())
        .filter(|s| !s.is_empty())
}

/// How to reach the leader, or what is missing for that.
pub fn link_spec(set: &ClusterSet, secret: &SecretSeen) -> Result<LinkSpec, Problem> {
    let field = |field, why: &str| Problem::Field {
        field,
        why: why.to_owned(),
    };
    // 63 is the limit of a label's value, and the ID becomes one.
    validation::dns_label(&set.spec.cluster_id, 63).map_err(|e| field("spec.clusterID", &e.to_string()))?;
    let leader = set
        .spec
        .leaders
        .first()
        .ok_or_else(|| field("spec.leaders", "is empty"))?;
    if leader.server.is_empty() {
        return Err(field("spec.leaders[0].server", "is empty"));
    }
    if !leader.server.starts_with("https://") {
        return Err(field(
            "spec.leaders[0].server",
            &format!("{:?} is not an https:// URL", leader.server),
        ));
    }
    let name = secret_name(set).ok_or_else(|| field("spec.leaders[0].secret", "is empty"))?;
    let namespace = set.namespace().unwrap_or_default();
    let secret = match secret {
        SecretSeen::Pending => {
            return Err(Problem::SecretPending {
                name: name.to_owned(),
            });
        }
        SecretSeen::Missing => {
            return Err(Problem::SecretNotFound {
                namespace,
                name: name.to_owned(),
            });
        }
        SecretSeen::Present(secret) => secret,
    };
    let (ca, token) = credentials(secret)?;
    Ok(LinkSpec {
        cluster_set: set.name_any(),
        cluster_id: set.spec.cluster_id.clone(),
        namespace: leader_namespace(set).to_owned(),
        server: leader.server.clone(),
        ca,
        token,
    })
}

/// The certificates and the token of a Secret.
pub fn credentials(secret: &Secret) -> Result<(Vec<u8>, String), Problem> {
    let ca = key(secret, "ca.crt")?;
    if !ca.starts_with(b"-----BEGIN CERTIFICATE-----") {
        return Err(incomplete(secret, "ca.crt", "not a PEM certificate"));
    }
    let token =
        String::from_utf8(key(secret, "token")?).map_err(|_| incomplete(secret, "token", "not text"))?;
    Ok((ca, token.trim().to_owned()))
}

fn key(secret: &Secret, key: &'static str) -> Result<Vec<u8>, Problem> {
    match secret.data.as_ref().and_then(|d| d.get(key)) {
        None => Err(incomplete(secret, key, "it is absent")),
        Some(value) if value.0.trim_ascii().is_empty() => Err(incomplete(secret, key, "it is empty")),
        Some(value) => Ok(value.0.trim_ascii().to_owned()),
    }
}

fn incomplete(secret: &Secret, key: &'static str, why: &'static str) -> Problem {
    Problem::SecretIncomplete {
        namespace: secret.namespace().unwrap_or_default(),
        name: secret.name_any(),
        key,
        why,
    }
}

/// This cluster's announce, as the leader has it.
#[must_use]
pub fn announce<'a>(leader: &'a LeaderView, set: &ClusterSet) -> Option<&'a MemberClusterAnnounce> {
    let name = names::member_announce(&set.spec.cluster_id);
    leader
        .announces
        .values()
        .find(|a| a.name_any() == name)
        .map(AsRef::as_ref)
}

/// What the leader thinks of this member: it sets its finalizer on an announce it accepts.
#[must_use]
pub fn acceptance(leader: &LeaderView, set: &ClusterSet) -> Acceptance {
    let Some(announce) = announce(leader, set).filter(|a| a.metadata.deletion_timestamp.is_none()) else {
        return Acceptance::Pending;
    };
    if announce.cluster_set_id != set.name_any() {
        return Acceptance::Refused(mismatch("name", &set.name_any(), &announce.cluster_set_id));
    }
    if let Some(why) = announce.annotations().get(names::ANNOTATION_REFUSED) {
        return Acceptance::Refused(why.clone());
    }
    let finalizer = names::member_announce_finalizer(&set.spec.cluster_id);
    if announce.finalizers().contains(&finalizer) {
        Acceptance::Accepted
    } else {
        Acceptance::Pending
    }
}

fn mismatch(field: &str, ours: &str, theirs: &str) -> String {
    format!("ClusterSet {field} {ours:?} is not the {theirs:?} this cluster announced before")
}

/// The announce, its heartbeat and the status of the `ClusterSet`.
pub fn plan(world: &MemberWorld, set: Option<&ClusterSet>, plan: &mut Plan) {
    let Some(set) = set else { return };
    // A connection may stand of a ClusterSet that was deleted a moment ago, and the new one says no ID yet.
    let named = !set.spec.cluster_id.is_empty();
    if let Some(leader) = world.leader.as_ref().filter(|l| l.synced && named) {
        heartbeat(world, set, leader, plan);
    }
    for other in world
        .cluster_sets
        .values()
        .filter(|s| s.name_any() != set.name_any())
    {
        plan.notice(
            format!("ClusterSet {}", other.name_any()),
            format!(
                "ignored: ClusterSet {:?} is already in this Namespace",
                set.name_any()
            ),
        );
    }
    let problem = problem(world, set);
    if let Some(problem) = problem.as_ref().filter(|p| !p.transient()) {
        plan.notice(format!("ClusterSet {}", set.name_any()), problem.to_string());
    }
    // A controller that has just started says nothing until it knows.
    let trying = matches!(
        problem,
        Some(
            Problem::SecretPending { .. }
                | Problem::Connecting { .. }
                | Problem::Identity(Unknown::Pending { .. })
        )
    );
    if trying && set.status.as_ref().is_some_and(|s| !s.conditions.is_empty()) {
        return;
    }
    let status = status(world, set, problem.as_ref());
    if set.status.as_ref() != Some(&status) {
        plan.status(Side::Local, set, &status);
    }
}

fn heartbeat(world: &MemberWorld, set: &ClusterSet, leader: &LeaderView, plan: &mut Plan) {
    let now = time(world.now).0.to_string();
    let leader_id = set
        .spec
        .leaders
        .first()
        .map(|l| l.cluster_id.clone())
        .unwrap_or_default();
    let Some(old) = announce(leader, set) else {
        // Whoever starts after an announce nobody recorded would not know that it has to be taken back.
        if !parting::is_recorded(world, set) {
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
        new.annotations_mut()
            .insert(names::ANNOTATION_TOUCH_TS.to_owned(), now);
        return plan.create(Side::Leader, &new);
    };
    if old.metadata.deletion_timestamp.is_some() {
        return;
    }
    // IDs never change in place: this is the announce of an earlier membership.
    if old.cluster_set_id != set.name_any() || old.leader_cluster_id != leader_id {
        return plan.delete(Side::Leader, old);
    }
    let last: Option<Timestamp> = old
        .annotations()
        .get(names::ANNOTATION_TOUCH_TS)
        .and_then(|t| t.parse().ok());
    let due = last
        .and_then(|t| t.checked_add(HEARTBEAT).ok())
        .filter(|due| *due > world.now);
    match due {
        Some(due) if due.duration_since(world.now) <= HEARTBEAT => plan.wake(due),
        // Never, overdue, or a time from the future: a clock was set back.
        _ => {
            let touch = json!({ "metadata": { "annotations": { names::ANNOTATION_TOUCH_TS: now } } });
            plan.merge(Side::Leader, old, touch);
        }
    }
}

/// What keeps this member from being ready.
#[must_use]
pub fn problem(world: &MemberWorld, set: &ClusterSet) -> Option<Problem> {
    if let Some(unknown) = identity::unknown(set, &world.claims) {
        return Some(unknown.into());
    }
    let spec = match link_spec(set, &world.secret) {
        Ok(spec) => spec,
        Err(problem) => return Some(problem),
    };
    match &world.link {
        Link::Down { error } => {
            return Some(Problem::Disconnected {
                server: spec.server,
                error: error.clone(),
            });
        }
        Link::Idle | Link::Connecting => return Some(Problem::Connecting { server: spec.server }),
        Link::Up => {}
    }
    let Some(leader) = world.leader.as_ref().filter(|l| l.synced) else {
        return Some(Problem::Connecting { server: spec.server });
    };
    match acceptance(leader, set) {
        Acceptance::Accepted => None,
        Acceptance::Pending => Some(Problem::NotAccepted),
        Acceptance::Refused(why) => Some(Problem::Refused { why }),
    }
}

fn status(world: &MemberWorld, set: &ClusterSet, problem: Option<&Problem>) -> ClusterSetStatus {
    let now = time(world.now);
    let mut status = set.status.clone().unwrap_or_default();
    status.total_clusters = 1;
    status.ready_clusters = i32::from(problem.is_none());
    status.observed_generation = set.metadata.generation;
    let ready = match problem {
        None => Condition::new("Ready", condition::TRUE, "Connected", ""),
        Some(p) if p.transient() => Condition::new("Ready", condition::UNKNOWN, p.reason(), p.to_string()),
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
    let is_leader = if problem.is_none() {
        let message = "This leader cluster is the leader for local cluster";
        Condition::new("IsLeader", condition::TRUE, "", message)
    } else {
        Condition::new("IsLeader", condition::FALSE, "", "")
    };
    condition::upsert(&mut conditions, is_leader, &now);
    status.cluster_statuses = vec![ClusterStatus {
        cluster_id: leader,
        conditions,
    }];
    status
}
