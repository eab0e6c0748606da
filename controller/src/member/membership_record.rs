//! Persists memberships awaiting deregistration in a `ConfigMap`, so that a restart can resume, also after the
//! `ClusterSet` was deleted.
//!
//! A membership is recorded before it is announced, and until its deregistration is confirmed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use mc_api::{cluster_set::ClusterSet, names};
use serde::{Deserialize, Serialize};

use super::connection_config::{connection_config, secret_name};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{DeregistrationState, MemberSnapshot, Membership, get},
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
}

/// The recorded memberships.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipRecord {
    /// The endpoint of each membership's leader.
    pub endpoints: BTreeMap<Membership, LeaderEndpoint>,
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

/// Keeps the record and reports its invalid entries.
pub fn plan(snapshot: &MemberSnapshot, set: Option<&ClusterSet>, plan: &mut Plan) {
    let old = MembershipRecord::from_snapshot(snapshot);
    let about = format!("ConfigMap {}/{}", snapshot.namespace, names::MEMBERSHIP_RECORDS);
    for (key, (_, error)) in &old.unparsable {
        plan.issue(about.as_str(), format!("data[{key:?}]: {error}; not changed"));
    }
    let mut new = old.clone();
    for (membership, state) in &snapshot.deregistrations {
        if set.is_some_and(|set| membership.may_match(set)) {
            continue;
        }
        match state {
            DeregistrationState::InProgress => {}
            DeregistrationState::Confirmed => {
                new.endpoints.remove(membership);
            }
            DeregistrationState::Failing(error) => plan.issue(
                format!("ClusterSet {}", membership.cluster_set),
                format!(
                    "cluster {:?} is not deregistered from the leader: {error}; to give up, delete {about}",
                    membership.cluster_id
                ),
            ),
        }
    }
    let config = set.and_then(|set| connection_config(set, &snapshot.secret).ok());
    if let (Some(config), Some(secret)) = (config, set.and_then(secret_name)) {
        let endpoint = LeaderEndpoint {
            server: config.server.clone(),
            secret: secret.to_owned(),
        };
        new.endpoints.insert(Membership::from(&config), endpoint);
    }
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
