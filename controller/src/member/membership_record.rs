//! Persists memberships awaiting deregistration in a `ConfigMap`, so that a restart can resume, also after the
//! `ClusterSet` was deleted.
//!
//! A membership is recorded before it is announced, and until its deregistration is confirmed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{cluster_set::ClusterSet, names};
use serde::{Deserialize, Serialize};

use super::connection_config::{connection_config, secret_name};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Kind, Plan},
    snapshot::{DeregistrationState, MemberSnapshot, Membership, api_time, get},
};

/// Separates the parts of a key; names do not contain it.
const KEY_SEPARATOR: char = '_';

/// The endpoint of a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderEndpoint {
    /// The URL of its API server.
    pub server: String,
    /// The Secret with the CA bundle and the token.
    pub secret: String,
    /// The UID of the announce with which the leader has offered all imports of this cluster or has withdrawn them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_announce: Option<String>,
}

/// The recorded memberships.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipRecord {
    /// The endpoint of each membership's leader.
    pub endpoints: BTreeMap<Membership, LeaderEndpoint>,
    /// The time since which there is no `ClusterSet`, once written.
    without_cluster_set_since: Option<Timestamp>,
    /// Invalid entries by key: the text and the error.
    unparsable: BTreeMap<String, (String, String)>,
}

// === impl Record ===

impl MembershipRecord {
    /// The content of the `ConfigMap`.
    #[must_use]
    pub fn from_snapshot(snapshot: &MemberSnapshot) -> Self {
        let mut record = Self::default();
        let config_map = get(
            &snapshot.memberships,
            &snapshot.namespace,
            names::MEMBERSHIP_RECORDS,
        );
        record.without_cluster_set_since = config_map
            .and_then(|c| c.annotations().get(names::ANNOTATION_WITHOUT_CLUSTER_SET_SINCE))
            .and_then(|since| since.parse().ok());
        for (key, text) in config_map.iter().flat_map(|c| c.data.iter().flatten()) {
            let endpoint = serde_json::from_str::<LeaderEndpoint>(text).map_err(|e| e.to_string());
            match (parse_key(key), endpoint) {
                (Some(membership), Ok(endpoint)) => {
                    record.endpoints.insert(membership, endpoint);
                }
                (membership, endpoint) => {
                    let error = endpoint.err().filter(|_| membership.is_some());
                    let error = error.unwrap_or_else(|| "the key is not SET_ID_NAMESPACE".to_owned());
                    record.unparsable.insert(key.clone(), (text.clone(), error));
                }
            }
        }
        record
    }

    /// The time since which there is no `ClusterSet`, for a cluster without one: a missing time, or one after the clock
    /// was set back, begins at `now`.
    #[must_use]
    pub fn without_cluster_set_since(&self, now: Timestamp) -> Timestamp {
        let since = self.without_cluster_set_since.filter(|since| *since <= now);
        since.unwrap_or_else(|| api_time(now).0)
    }

    fn data(&self) -> BTreeMap<String, String> {
        let endpoints = self.endpoints.iter().map(|(membership, endpoint)| {
            let endpoint = serde_json::to_string(endpoint).unwrap_or_default();
            (format_key(membership), endpoint)
        });
        let unreadable = self.unparsable.iter();
        endpoints
            .chain(unreadable.map(|(key, (text, _))| (key.clone(), text.clone())))
            .collect()
    }
}

fn format_key(membership: &Membership) -> String {
    let Membership {
        cluster_set,
        cluster_id,
        namespace,
    } = membership;
    [cluster_set.as_str(), cluster_id, namespace].join(&KEY_SEPARATOR.to_string())
}

fn parse_key(key: &str) -> Option<Membership> {
    let mut parts = key.split(KEY_SEPARATOR).map(str::to_owned);
    let membership = Membership {
        cluster_set: parts.next()?,
        cluster_id: parts.next()?,
        namespace: parts.next()?,
    };
    parts.next().is_none().then_some(membership)
}

/// Whether the membership of `set` is recorded, so that it may be announced.
#[must_use]
pub fn is_recorded(snapshot: &MemberSnapshot, set: &ClusterSet) -> bool {
    Membership::from_cluster_set(set).is_some_and(|membership| {
        MembershipRecord::from_snapshot(snapshot)
            .endpoints
            .contains_key(&membership)
    })
}

/// Whether the leader has offered or withdrawn all imports since it has the announce with this UID, or imports may be
/// those of another `ClusterSet` that this cluster has left.
pub(super) fn is_settled(snapshot: &MemberSnapshot, set: &ClusterSet, announce: &str) -> bool {
    let record = MembershipRecord::from_snapshot(snapshot);
    let mut memberships = record.endpoints.keys();
    if memberships.any(|membership| membership.cluster_set != set.name_any()) {
        return true;
    }
    let endpoint = Membership::from_cluster_set(set).and_then(|membership| record.endpoints.get(&membership));
    endpoint.is_some_and(|endpoint| endpoint.settled_announce.as_deref() == Some(announce))
}

/// Records that the leader has offered or withdrawn all imports, in one write with the other changes of the record: the
/// next plan may see imports that this one creates.
pub(super) fn settle(snapshot: &MemberSnapshot, set: &ClusterSet, announce: &str, plan: &mut Plan) {
    let old = MembershipRecord::from_snapshot(snapshot);
    let mut new = next(snapshot, set, &old);
    let endpoint = Membership::from_cluster_set(set).and_then(|key| new.endpoints.get_mut(&key));
    if let Some(endpoint) = endpoint {
        endpoint.settled_announce = Some(announce.to_owned());
        plan.writes.retain(|write| {
            let is_record =
                write.target.kind == Kind::ConfigMap && write.target.name == names::MEMBERSHIP_RECORDS;
            !is_record || write.target.side != ApiServer::Local
        });
        write(snapshot, &old, &new, plan);
    }
}

/// Keeps the record of a cluster with a `ClusterSet`.
pub fn plan(snapshot: &MemberSnapshot, set: &ClusterSet, plan: &mut Plan) {
    let old = MembershipRecord::from_snapshot(snapshot);
    report(snapshot, Some(set), &old, plan);
    write(snapshot, &old, &next(snapshot, set, &old), plan);
}

/// The record of a cluster with the `ClusterSet` `set`.
fn next(snapshot: &MemberSnapshot, set: &ClusterSet, old: &MembershipRecord) -> MembershipRecord {
    let mut new = old.clone();
    new.without_cluster_set_since = None;
    remove_deregistered(snapshot, Some(set), &mut new);
    let config = connection_config(set, &snapshot.secret).ok();
    if let (Some(config), Some(secret)) = (config, secret_name(set)) {
        let membership = Membership::from(&config);
        let settled_announce = old
            .endpoints
            .get(&membership)
            .and_then(|old| old.settled_announce.clone());
        let endpoint = LeaderEndpoint {
            server: config.server.clone(),
            secret: secret.to_owned(),
            settled_announce,
        };
        new.endpoints.insert(membership, endpoint);
    }
    new
}

/// Keeps the record of a cluster without `ClusterSet`. A deregistered membership remains until its imports
/// are withdrawn: without its record they would have no owner.
pub(super) fn plan_without_cluster_set(snapshot: &MemberSnapshot, is_withdrawn: bool, plan: &mut Plan) {
    let old = MembershipRecord::from_snapshot(snapshot);
    let mut new = old.clone();
    new.without_cluster_set_since = Some(old.without_cluster_set_since(snapshot.now));
    report(snapshot, None, &old, plan);
    if is_withdrawn {
        remove_deregistered(snapshot, None, &mut new);
    }
    write(snapshot, &old, &new, plan);
}

/// Reports invalid entries and failing deregistrations.
fn report(snapshot: &MemberSnapshot, set: Option<&ClusterSet>, old: &MembershipRecord, plan: &mut Plan) {
    let about = format!("ConfigMap {}/{}", snapshot.namespace, names::MEMBERSHIP_RECORDS);
    for (key, (_, error)) in &old.unparsable {
        plan.issue(
            IssueCode::InvalidRecord,
            about.as_str(),
            format!("data[{key:?}]: {error}; not changed"),
        );
    }
    for (membership, state) in &snapshot.deregistrations {
        if let (true, DeregistrationState::Failing(error)) = (membership.has_ended(set), state) {
            plan.issue(
                IssueCode::DeregistrationPending,
                format!("ClusterSet {}", membership.cluster_set),
                format!(
                    "cluster {:?} is not deregistered from the leader: {error}; to give up, delete {about}",
                    membership.cluster_id
                ),
            );
        }
    }
}

fn remove_deregistered(snapshot: &MemberSnapshot, set: Option<&ClusterSet>, record: &mut MembershipRecord) {
    for (membership, state) in &snapshot.deregistrations {
        if membership.has_ended(set) && *state == DeregistrationState::Confirmed {
            record.endpoints.remove(membership);
        }
    }
}

/// Writes a changed record; an empty one is deleted.
fn write(snapshot: &MemberSnapshot, old: &MembershipRecord, new: &MembershipRecord, plan: &mut Plan) {
    if new == old {
        return;
    }
    let data = new.data();
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(names::MEMBERSHIP_RECORDS.to_owned()),
            namespace: Some(snapshot.namespace.clone()),
            labels: Some(
                [(
                    names::LABEL_APP_MANAGED_BY.to_owned(),
                    names::MANAGED_BY.to_owned(),
                )]
                .into(),
            ),
            annotations: new.without_cluster_set_since.map(|since| {
                let key = names::ANNOTATION_WITHOUT_CLUSTER_SET_SINCE.to_owned();
                [(key, since.to_string())].into()
            }),
            ..ObjectMeta::default()
        },
        data: Some(data).filter(|data| !data.is_empty()),
        ..ConfigMap::default()
    };
    if config_map.data.is_some() {
        plan.apply(ApiServer::Local, &config_map);
    } else if let Some(old) = get(
        &snapshot.memberships,
        &snapshot.namespace,
        names::MEMBERSHIP_RECORDS,
    ) {
        plan.delete(ApiServer::Local, old.as_ref());
    }
}
