//! Memberships that the leader has to be told the end of, kept in a `ConfigMap`: who starts again while a goodbye is
//! outstanding, or after the `ClusterSet` was deleted, knows from it whom to tell.
//!
//! A membership is recorded before it is announced and until its announce is known to be gone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::membership::{self, LinkSpec};
use crate::{
    api::{cluster_set::ClusterSet, names},
    plan::{Plan, Side},
    world::{MemberWorld, get},
};

/// Separates the parts of a key; no name has one.
const BETWEEN: char = '_';

/// What makes two connections to a leader one membership.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The ID of the set.
    pub cluster_set: String,
    /// The ID of the local cluster.
    pub cluster_id: String,
    /// Where the leader keeps the exchanged objects.
    pub namespace: String,
}

/// How the leader is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The URL of its API server.
    pub server: String,
    /// The Secret with its certificate and the token.
    pub secret: String,
}

/// How a goodbye goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// It is under way.
    Begun,
    /// The announce is gone, and nothing that was sent before can bring it back.
    Said,
    /// The leader does not know yet, and why.
    Outstanding(String),
}

/// All memberships on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Those that can be read.
    pub ways: BTreeMap<Membership, Way>,
    /// The others, by key, as they are, and what is wrong with them.
    unreadable: BTreeMap<String, (String, String)>,
}

// === impl Membership ===

impl Membership {
    /// That of a `ClusterSet`; `None` while the cluster's ID is not known.
    #[must_use]
    pub fn of(set: &ClusterSet) -> Option<Self> {
        (!set.spec.cluster_id.is_empty()).then(|| Self {
            cluster_set: set.name_any(),
            cluster_id: set.spec.cluster_id.clone(),
            namespace: membership::leader_namespace(set).to_owned(),
        })
    }

    /// Whether that of `set` may be this one.
    #[must_use]
    pub fn may_be_of(&self, set: &ClusterSet) -> bool {
        match Self::of(set) {
            Some(membership) => membership == *self,
            None => self.cluster_set == set.name_any(),
        }
    }

    fn key(&self) -> String {
        [&self.cluster_set, &self.cluster_id, &self.namespace]
            .map(String::as_str)
            .join(&BETWEEN.to_string())
    }

    fn read(key: &str) -> Option<Self> {
        let mut parts = key.split(BETWEEN).map(str::to_owned);
        let found = Self {
            cluster_set: parts.next()?,
            cluster_id: parts.next()?,
            namespace: parts.next()?,
        };
        parts.next().is_none().then_some(found)
    }
}

impl From<&LinkSpec> for Membership {
    fn from(spec: &LinkSpec) -> Self {
        Self {
            cluster_set: spec.cluster_set.clone(),
            cluster_id: spec.cluster_id.clone(),
            namespace: spec.namespace.clone(),
        }
    }
}

// === impl Record ===

impl Record {
    /// What the `ConfigMap` says.
    #[must_use]
    pub fn of(world: &MemberWorld) -> Self {
        let mut record = Self::default();
        let config_map = get(&world.memberships, &world.namespace, names::MEMBERSHIPS);
        for (key, text) in config_map.iter().flat_map(|c| c.data.iter().flatten()) {
            let way = serde_json::from_str::<Way>(text).map_err(|e| e.to_string());
            match (Membership::read(key), way) {
                (Some(membership), Ok(way)) => {
                    record.ways.insert(membership, way);
                }
                (membership, way) => {
                    let why = way.err().filter(|_| membership.is_some());
                    let why = why.unwrap_or_else(|| "the key is not SET_ID_NAMESPACE".to_owned());
                    record.unreadable.insert(key.clone(), (text.clone(), why));
                }
            }
        }
        record
    }

    fn data(&self) -> BTreeMap<String, String> {
        let ways = self.ways.iter().map(|(membership, way)| {
            let way = serde_json::to_string(way).unwrap_or_default();
            (membership.key(), way)
        });
        let unreadable = self.unreadable.iter();
        ways.chain(unreadable.map(|(key, (text, _))| (key.clone(), text.clone())))
            .collect()
    }
}

/// Whether the membership of `set` is on record, so that it may be announced.
#[must_use]
pub fn is_recorded(world: &MemberWorld, set: &ClusterSet) -> bool {
    Membership::of(set).is_some_and(|membership| Record::of(world).ways.contains_key(&membership))
}

/// The record as it has to be, and what is wrong with it.
pub fn plan(world: &MemberWorld, set: Option<&ClusterSet>, plan: &mut Plan) {
    let old = Record::of(world);
    let about = format!("ConfigMap {}/{}", world.namespace, names::MEMBERSHIPS);
    for (key, (_, why)) in &old.unreadable {
        plan.notice(about.as_str(), format!("data[{key:?}]: {why}; left alone"));
    }
    let mut new = old.clone();
    for (membership, goodbye) in &world.goodbyes {
        if set.is_some_and(|set| membership.may_be_of(set)) {
            continue;
        }
        match goodbye {
            Goodbye::Begun => {}
            Goodbye::Said => {
                new.ways.remove(membership);
            }
            Goodbye::Outstanding(why) => plan.notice(
                format!("ClusterSet {}", membership.cluster_set),
                format!(
                    "the leader was not told yet that cluster {:?} left: {why}; to give up, delete {about}",
                    membership.cluster_id
                ),
            ),
        }
    }
    let link = set.and_then(|set| membership::link_spec(set, &world.secret).ok());
    if let (Some(spec), Some(secret)) = (link, set.and_then(membership::secret_name)) {
        let way = Way {
            server: spec.server.clone(),
            secret: secret.to_owned(),
        };
        new.ways.insert(Membership::from(&spec), way);
    }
    if new == old {
        return;
    }
    let data = new.data();
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(names::MEMBERSHIPS.to_owned()),
            namespace: Some(world.namespace.clone()),
            labels: Some([(names::LABEL_MADE_BY.to_owned(), names::MANAGED_BY.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(data).filter(|data| !data.is_empty()),
        ..ConfigMap::default()
    };
    if config_map.data.is_some() {
        plan.apply(Side::Local, &config_map);
    } else if let Some(old) = get(&world.memberships, &world.namespace, names::MEMBERSHIPS) {
        plan.delete(Side::Local, old.as_ref());
    }
}
