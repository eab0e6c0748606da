//! Imports that a new leader lacks until their exporters have joined it.
//!
//! Pure. Guarantee: a member that has joined a leader keeps the imports that this one lacks until the leader has all
//! exports of each cluster that exported them ([`names::LABEL_EXPORTS_COMPLETE`]), at most for [`MAX_WAIT`]. Members of
//! Antrea state nothing. After that a missing import is a withdrawn one, also for a restarted controller: the record of
//! the membership has the UID of the announce. Label identities follow the leader's list: a new leader gives their
//! numbers to other labels.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, names};

use super::{
    ActiveMembership,
    imported_objects::{deletes_import, source_imports},
    membership_record,
    slices::is_managed as is_own_slice,
};
use crate::{
    plan::{Kind, ObjectRef, Plan},
    snapshot::{CompleteExports, MemberSnapshot, get},
};

/// The longest time for which imports are kept, from the first that is missing.
pub const MAX_WAIT: SignedDuration = SignedDuration::from_hours(24);
/// The time from the label of an exporter until its imports have arrived, too: a dead watch is noticed within it.
pub const WATCH_DELAY: SignedDuration = SignedDuration::from_secs(15);

/// The imported objects that are to be deleted although a new leader may get their imports.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// The objects that await exporters.
    pub(super) targets: BTreeSet<ObjectRef>,
    /// The missing ones of exporters that have exported everything: these were withdrawn.
    pub(super) withdrawn: BTreeSet<ObjectRef>,
    /// The clusters that have not exported everything.
    pub(super) clusters: BTreeSet<String>,
}

/// Sorts the deletions in the plan of objects that are `missing` or that a new leader offers without the endpoints of
/// an exporter; `None` with a leader that is not new. It is recorded that the leader is not new for a cluster without
/// imports (`count`), and once all imports are there and the cluster's own exports have arrived, too.
pub(super) fn awaited(
    snapshot: &MemberSnapshot,
    set: &ClusterSet,
    membership: &ActiveMembership<'_>,
    (count, missing): (usize, &BTreeSet<ObjectRef>),
    plan: &mut Plan,
) -> Option<Awaited> {
    let uid = membership.announce.metadata.uid.as_deref()?;
    if membership_record::is_settled(snapshot, set, uid) {
        return None;
    }
    let complete = &membership.leader.complete_exports;
    let has_arrived = |exports: &CompleteExports| arrival(exports) <= snapshot.now;
    let mut awaited = Awaited::default();
    for target in missing.iter().filter(|target| target.kind != Kind::LabelIdentity) {
        let exporters = exporters(snapshot, target);
        let is_awaited = |cluster: &String| !complete.get(cluster).is_some_and(has_arrived);
        let is_of_administrators = exporters.is_empty();
        let clusters: BTreeSet<_> = exporters.into_iter().filter(is_awaited).collect();
        if is_of_administrators || !clusters.is_empty() {
            awaited.clusters.extend(clusters);
            awaited.targets.insert(target.clone());
        } else {
            awaited.withdrawn.insert(target.clone());
        }
    }
    let slices = plan.writes.iter().filter(|write| deletes_import(write));
    let slices = slices
        .map(|write| &write.target)
        .filter(|target| !missing.contains(target));
    for target in slices {
        if let Some(cluster) = absent_exporter(snapshot, membership, target) {
            awaited.clusters.insert(cluster);
            awaited.targets.insert(target.clone());
        }
    }
    // Lists are read one after the other: that of imports may be older than the announce.
    let own = complete.get(membership.cluster_id);
    let own_arrived = own.is_some_and(|own| own.announce == uid && has_arrived(own));
    let is_whole = own_arrived && missing.is_empty() && awaited.targets.is_empty();
    let is_pending = snapshot.label_identities.is_pending() || snapshot.policies.is_pending();
    if (count == 0 && !is_pending) || is_whole {
        membership_record::settle(snapshot, set, uid, plan);
    }
    let awaited_exports = awaited
        .clusters
        .iter()
        .filter_map(|cluster| complete.get(cluster));
    let arrivals = awaited_exports.chain(own).map(arrival);
    if let Some(next) = arrivals.filter(|arrival| *arrival > snapshot.now).min() {
        plan.requeue_at(next);
    }
    Some(awaited)
}

/// The time from which the imports of a cluster have arrived.
fn arrival(exports: &CompleteExports) -> Timestamp {
    exports.since.checked_add(WATCH_DELAY).unwrap_or(exports.since)
}

/// The exporter of a slice whose import the leader offers for other clusters only, if it has not joined: this
/// connection has seen neither its label nor endpoints of it in that import.
fn absent_exporter(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    target: &ObjectRef,
) -> Option<String> {
    if target.kind != Kind::EndpointSlice {
        return None;
    }
    let cluster = source_cluster(snapshot, target)?;
    let sources = source_imports(snapshot, target);
    let leader = membership.leader;
    let mut listed = sources
        .iter()
        .filter_map(|import| leader.listed_imports.get(import));
    let was_listed = listed.any(|clusters| clusters.contains(cluster));
    let has_joined = cluster == membership.cluster_id || leader.complete_exports.contains_key(cluster);
    (!was_listed && !has_joined).then(|| cluster.clone())
}

/// The cluster whose endpoints a slice has; `None` if the leader does not report it.
fn source_cluster<'a>(snapshot: &'a MemberSnapshot, target: &ObjectRef) -> Option<&'a String> {
    let slice = get(&snapshot.endpoint_slices, &target.namespace, &target.name)?;
    let cluster = slice.labels().get(names::LABEL_MCS_SOURCE_CLUSTER);
    cluster.filter(|cluster| !cluster.is_empty())
}

/// The clusters that exported an imported object; empty for a policy, which administrators of the leader cluster
/// export. All known ones if the object does not state them.
fn exporters(snapshot: &MemberSnapshot, target: &ObjectRef) -> BTreeSet<String> {
    let stated: BTreeSet<String> = match target.kind {
        Kind::ClusterNetworkPolicy => return BTreeSet::new(),
        Kind::ClusterInfoImport => {
            let info = get(&snapshot.cluster_infos, &target.namespace, &target.name);
            info.map(|info| info.spec.cluster_id.clone())
                .into_iter()
                .collect()
        }
        Kind::EndpointSlice => source_cluster(snapshot, target).cloned().into_iter().collect(),
        Kind::Service => names::exported_service(&target.name)
            .map(|service| clusters_of_service(snapshot, &target.namespace, service))
            .unwrap_or_default(),
        _ => clusters_of_service(snapshot, &target.namespace, &target.name),
    };
    if stated.is_empty() {
        known_clusters(snapshot)
    } else {
        stated
    }
}

/// The clusters in the status of a `ServiceImport`.
fn clusters_of_service(snapshot: &MemberSnapshot, namespace: &str, name: &str) -> BTreeSet<String> {
    let import = get(&snapshot.service_imports, namespace, name);
    let status = import.and_then(|import| import.status.as_ref());
    let clusters = status.into_iter().flat_map(|status| &status.clusters);
    clusters.map(|status| status.cluster.clone()).collect()
}

/// The clusters of all imported networks and endpoints.
fn known_clusters(snapshot: &MemberSnapshot) -> BTreeSet<String> {
    let networks = snapshot.cluster_infos.values();
    let networks = networks.map(|info| info.spec.cluster_id.clone());
    let slices = snapshot
        .endpoint_slices
        .values()
        .filter(|slice| is_own_slice(slice));
    let slices = slices.filter_map(|slice| slice.labels().get(names::LABEL_MCS_SOURCE_CLUSTER).cloned());
    networks.chain(slices).collect()
}
