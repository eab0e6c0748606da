//! The Namespaces of single members in the leader cluster (`isolation: Namespace`), and the division of all exchanged
//! objects by them.
//!
//! A member with a Namespace of its own writes its announce and exports there and reads copies of the imports there, so
//! it needs no access to the Namespace that the other members share. The leader decides on the objects of all members
//! as if they were in one Namespace; a cluster counts in one Namespace only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use mc_api::{
    member_cluster_announce::MemberClusterAnnounce,
    names,
    resource_export::{ResourceExport, kind},
    resource_import::ResourceImport,
    validation,
};
use mc_kube::{NamespacedName, ObjectMap};

/// Objects that members and leader exchange, by kind.
#[derive(Clone, Debug, Default)]
pub struct ExchangedObjects {
    /// The members' announces.
    pub announces: ObjectMap<MemberClusterAnnounce>,
    /// The members' exports.
    pub exports: ObjectMap<ResourceExport>,
    /// Those that cannot be decoded.
    pub unreadable_exports: BTreeSet<NamespacedName>,
    /// The imports offered to members.
    pub imports: ObjectMap<ResourceImport>,
}

/// The Namespaces of single members, and the objects that are not those of a member in its place.
#[derive(Clone, Debug, Default)]
pub struct MemberNamespaces {
    /// Those of a member, by name.
    pub members: BTreeMap<String, MemberNamespace>,
    /// The names of others with the label, with the reason.
    pub refused: BTreeMap<String, String>,
    /// Announces outside of the Namespace of their cluster, with the reason to reject them.
    pub misplaced_announces: Vec<(Arc<MemberClusterAnnounce>, String)>,
    /// Exports outside of the Namespace of their cluster.
    pub misplaced_exports: ObjectMap<ResourceExport>,
    /// The imports in Namespaces with the label.
    pub import_copies: ObjectMap<ResourceImport>,
    /// The leader's copies of exports, in all Namespaces.
    pub export_copies: ObjectMap<ResourceExport>,
}

/// The Namespace of one member.
#[derive(Clone, Debug)]
pub struct MemberNamespace {
    /// The ID of the member.
    pub cluster_id: String,
    /// The Namespace; `None`: a recorded one without the label, in which the leader has accepted its member.
    pub object: Option<Arc<Namespace>>,
    /// Whether the member counts here, and not in the common Namespace.
    pub is_home: bool,
}

/// The announces by their Namespace and cluster.
struct Announces<'a> {
    common: &'a str,
    all: &'a ObjectMap<MemberClusterAnnounce>,
}

// === impl MemberNamespaces ===

impl MemberNamespaces {
    /// Divides the objects of all Namespaces into those on which the leader in `common` decides, and the rest.
    /// `labelled` are the Namespaces with [`names::LABEL_MEMBER_NAMESPACE_OF`] for this leader, `recorded` the IDs of
    /// those that it has recorded: a list from an old state of the API server withdraws no exports.
    #[must_use]
    pub fn divide(
        common: &str,
        labelled: &ObjectMap<Namespace>,
        recorded: &BTreeMap<String, String>,
        all: ExchangedObjects,
    ) -> (ExchangedObjects, Self) {
        let announces = Announces {
            common,
            all: &all.announces,
        };
        let (members, refused) = announces.members(labelled, recorded);
        let homes: BTreeMap<&str, &str> = members
            .iter()
            .filter(|(_, member)| member.is_home)
            .map(|(name, member)| (member.cluster_id.as_str(), name.as_str()))
            .collect();
        let home = |cluster: &str| homes.get(cluster).copied().unwrap_or(common);
        let is_known = |namespace: &str| {
            namespace == common || members.contains_key(namespace) || refused.contains_key(namespace)
        };
        let is_copy = |export: &ResourceExport| {
            let kinds = [kind::POLICY_SELECTORS, kind::IMPORT_FAILURES];
            kinds.contains(&export.spec.kind.as_str())
                && export.labels().contains_key(names::LABEL_COPIED_FROM)
        };
        let is_home_of_export = |name: &NamespacedName, export: &ResourceExport| {
            // An administrator's, with the ID of the leader cluster.
            let is_policy = export.spec.kind == kind::CLUSTER_NETWORK_POLICY;
            let home = if is_policy {
                common
            } else {
                home(&export.spec.cluster_id)
            };
            home == name.namespace
        };
        let misplaced = all.announces.iter().filter(|(name, announce)| {
            is_known(&name.namespace) && home(&announce.cluster_id) != name.namespace
        });
        let misplaced_announces = misplaced.map(|(name, announce)| {
            let (cluster, namespace) = (&announce.cluster_id, &name.namespace);
            let reason = match homes.get(cluster.as_str()) {
                Some(home) => {
                    format!("clusterID {cluster:?} has the Namespace {home:?} in the leader cluster")
                }
                None if members.get(namespace).is_some_and(|member| member.cluster_id == *cluster) => format!(
                    "clusterID {cluster:?} is a member in the Namespace {common:?}, with another clusterSetID or \
                     leaderClusterID"
                ),
                None => format!("clusterID {cluster:?} is not that of the Namespace {namespace:?}"),
            };
            (announce.clone(), reason)
        });
        let misplaced_announces = misplaced_announces.collect();
        let misplaced_exports = filter(&all.exports, |name, export| {
            is_known(&name.namespace) && !is_copy(export) && !is_home_of_export(name, export)
        });
        let import_copies = filter(&all.imports, |name, _| {
            is_known(&name.namespace) && name.namespace != common
        });
        let export_copies = filter(&all.exports, |name, export| {
            is_known(&name.namespace) && is_copy(export)
        });
        let unreadable = all.unreadable_exports.into_iter();
        let divided = ExchangedObjects {
            announces: filter(&all.announces, |name, announce| {
                home(&announce.cluster_id) == name.namespace
            }),
            exports: filter(&all.exports, |name, export| {
                is_home_of_export(name, export) && !is_copy(export)
            }),
            unreadable_exports: unreadable.filter(|name| is_known(&name.namespace)).collect(),
            imports: filter(&all.imports, |name, _| name.namespace == common),
        };
        let rest = Self {
            members,
            refused,
            misplaced_announces,
            misplaced_exports,
            import_copies,
            export_copies,
        };
        (divided, rest)
    }

    /// The Namespace in which a cluster counts, if it is one of its own.
    #[must_use]
    pub fn home(&self, cluster: &str) -> Option<(&str, &MemberNamespace)> {
        let mut members = self.members.iter();
        let (name, member) = members.find(|(_, member)| member.is_home && member.cluster_id == cluster)?;
        Some((name, member))
    }
}

/// The ID of the member of a labelled Namespace.
fn cluster_id<'a>(common: &str, namespace: &'a Namespace) -> Result<&'a str, String> {
    let annotation = names::ANNOTATION_CLUSTER_ID;
    if namespace.name_any() == common {
        return Err("it is the Namespace of the leader".to_owned());
    }
    let id = namespace.annotations().get(annotation);
    let id = id.ok_or_else(|| format!("annotation {annotation} is missing"))?;
    validation::dns_label(id, 63).map_err(|cause| format!("annotation {annotation}: {cause}"))
}

// === impl Announces ===

impl Announces<'_> {
    /// The Namespaces of members, and the others with the label. Of two Namespaces of a cluster that in which the
    /// leader has accepted it is in force, then the older one.
    fn members(
        &self,
        labelled: &ObjectMap<Namespace>,
        recorded: &BTreeMap<String, String>,
    ) -> (BTreeMap<String, MemberNamespace>, BTreeMap<String, String>) {
        let mut refused = BTreeMap::new();
        let mut candidates = vec![];
        for namespace in labelled.values() {
            let name = namespace.name_any();
            match cluster_id(self.common, namespace) {
                Ok(id) => candidates.push((name, id, Some(namespace))),
                Err(reason) => drop(refused.insert(name, reason)),
            }
        }
        for (name, id) in recorded {
            if labelled.values().all(|namespace| namespace.name_any() != *name) {
                candidates.push((name.clone(), id.as_str(), None));
            }
        }
        candidates.retain(|(name, id, object)| object.is_some() || self.is_accepted(name, id));
        candidates.sort_by_cached_key(|(name, id, object)| {
            let created = object.and_then(|object| object.creation_timestamp());
            (!self.is_accepted(name, id), created, name.clone())
        });
        let mut members: BTreeMap<String, MemberNamespace> = BTreeMap::new();
        for (name, id, object) in candidates {
            if let Some((other, _)) = members.iter().find(|(_, other)| other.cluster_id == id) {
                refused.insert(name, format!("cluster {id:?} has the Namespace {other:?}"));
                continue;
            }
            let member = MemberNamespace {
                cluster_id: id.to_owned(),
                object: object.cloned(),
                is_home: self.is_home(&name, id),
            };
            members.insert(name, member);
        }
        (members, refused)
    }

    /// A cluster with a Namespace of its own counts there, but for one that the leader has accepted in the common
    /// Namespace, and that has not announced the same membership in its own since.
    fn is_home(&self, namespace: &str, cluster: &str) -> bool {
        if self.is_accepted(namespace, cluster) || !self.is_accepted(self.common, cluster) {
            return true;
        }
        let membership = |namespace| {
            let announce = self.get(namespace, cluster)?;
            Some((&announce.cluster_set_id, &announce.leader_cluster_id))
        };
        membership(namespace) == membership(self.common)
    }

    fn is_accepted(&self, namespace: &str, cluster: &str) -> bool {
        let finalizer = names::member_announce_finalizer(cluster);
        self.get(namespace, cluster)
            .is_some_and(|announce| announce.finalizers().contains(&finalizer))
    }

    fn get(&self, namespace: &str, cluster: &str) -> Option<&MemberClusterAnnounce> {
        let name = NamespacedName::new(namespace, names::member_announce(cluster));
        let announce = self.all.get(&name).map(AsRef::as_ref);
        announce.filter(|announce: &&MemberClusterAnnounce| announce.cluster_id == cluster)
    }
}

/// The objects that `keep` selects; the map itself if these are all.
fn filter<K>(objects: &ObjectMap<K>, keep: impl Fn(&NamespacedName, &K) -> bool) -> ObjectMap<K> {
    if objects.iter().all(|(name, object)| keep(name, object)) {
        return objects.clone();
    }
    let kept = objects.iter().filter(|(name, object)| keep(name, object));
    Arc::new(
        kept.map(|(name, object)| (name.clone(), object.clone()))
            .collect(),
    )
}
