//! The member's plan: exports to the leader, imports from it, gateways.
//!
//! Pure: the plan of a snapshot that a plan was applied to is empty. An unreachable leader removes nothing: incomplete
//! lists have no effect.

pub mod address_groups;
mod address_slices;
pub mod announce;
mod antrea_endpoints;
pub mod awaited_exporters;
pub mod cluster_copy;
pub mod cluster_info;
pub mod connection_config;
pub mod data_path_status;
pub mod default_tiers;
pub mod deletion_guard;
pub mod deregistration;
mod export_completeness;
pub mod export_payload;
mod export_status;
pub mod exports;
mod failed_imports;
pub mod gateway_candidates;
pub mod gateways;
pub mod group_status;
mod import_failure;
mod import_owner;
mod imported_endpoints;
mod imported_objects;
pub mod imported_service;
pub mod imports;
pub mod instance;
pub mod ip_families;
pub mod label_identities;
mod leader_account;
pub mod mass_deletion;
mod member_exports;
pub mod membership;
pub mod membership_record;
mod network_problems;
mod node_owner;
pub mod not_ready_reason;
mod pod_cidrs;
pub mod policies;
mod policy_reports;
pub mod policy_selectors;
pub mod policy_status;
mod reachability;
mod resource_exports;
pub mod selector_exports;
mod service_imports;
pub mod slices;
mod traffic_stats;
pub mod unreadable_imports;
mod withdrawal;
pub mod without_cluster_set;

use kube::ResourceExt;
use mc_api::{
    cluster_set::ClusterSet, config::EndpointIpType, member_cluster_announce::MemberClusterAnnounce, names,
    network_policy::ClusterNetworkPolicy,
};

use self::slices::SliceIndex;
use crate::{
    cluster_id,
    plan::Plan,
    snapshot::{MemberSnapshot, RemoteObjects},
};

/// A membership accepted by the leader.
#[derive(Clone, Copy, Debug)]
pub struct ActiveMembership<'a> {
    /// The ID of the local cluster.
    pub cluster_id: &'a str,
    /// The namespace of the exchanged objects in the leader cluster.
    pub leader_namespace: &'a str,
    /// The leader's objects; the lists are complete.
    pub leader: &'a RemoteObjects,
    /// The announce of this cluster.
    pub announce: &'a MemberClusterAnnounce,
    /// The addresses exported as endpoints.
    pub endpoint_ip_type: EndpointIpType,
}

/// The writes, issues and Events for a snapshot.
pub fn plan(snapshot: &MemberSnapshot) -> Plan {
    let mut plan = Plan::default();
    if unreadable_imports::is_membership_hidden(snapshot) {
        unreadable_imports::report_cluster_sets(snapshot, &mut plan);
        return plan;
    }
    default_tiers::plan(snapshot, &mut plan);
    policy_status::plan(snapshot, &mut plan);
    group_status::plan(snapshot, &mut plan);
    address_groups::plan(snapshot, &mut plan);
    let Some(set) = membership::active_cluster_set(snapshot) else {
        without_cluster_set::plan(snapshot, &mut plan);
        return plan;
    };
    cluster_id::plan(set, &snapshot.cluster_claims, &mut plan);
    membership_record::plan(snapshot, set, &mut plan);
    membership::plan(snapshot, set, &mut plan);
    let gateways = gateways::plan(snapshot, &mut plan);
    let membership = active_membership(snapshot, set);
    let slices = SliceIndex::new(snapshot);
    let reported = failed_imports::reported(snapshot, membership.as_ref(), &mut plan);
    exports::plan(snapshot, membership.as_ref(), &slices, &reported, &mut plan);
    if let Some(membership) = membership {
        cluster_info::export(snapshot, &membership, &gateways, &mut plan);
        cluster_info::import(snapshot, &membership, &mut plan);
        let failed = imports::plan(snapshot, &membership, &slices, &mut plan);
        antrea_endpoints::plan(snapshot, &mut plan);
        selector_exports::plan(snapshot, &membership, &mut plan);
        label_identities::plan(snapshot, &membership, &mut plan);
        policies::plan(snapshot, &membership, &mut plan);
        // After all other exports.
        failed_imports::export(snapshot, &membership, failed, &mut plan);
        unreadable_imports::keep_imports(snapshot, &mut plan);
        // Before the guard, which removes all deletions: without any the brake would be released.
        mass_deletion::brake(snapshot, set, &membership, &mut plan);
        if let Some(until) = membership.leader.suppress_deletions_until {
            deletion_guard::suppress_deletions(&mut plan, until);
        }
    }
    plan
}

/// Whether exports and imports are planned.
#[must_use]
pub fn is_active(snapshot: &MemberSnapshot) -> bool {
    membership::active_cluster_set(snapshot).is_some_and(|set| active_membership(snapshot, set).is_some())
}

/// The membership, if the leader has accepted it, its lists are complete, and no other cluster has its ID.
fn active_membership<'a>(snapshot: &'a MemberSnapshot, set: &'a ClusterSet) -> Option<ActiveMembership<'a>> {
    let leader = snapshot.leader.as_ref().filter(|l| l.synced)?;
    let announce = announce::announce(leader, set)?;
    let accepted = membership::acceptance(leader, set) == membership::Acceptance::Accepted;
    let is_copy = cluster_copy::other_cluster(snapshot, leader, set).is_some();
    let is_waiting = snapshot.instance.writes_in.is_some();
    (accepted && !is_copy && !is_waiting).then_some(ActiveMembership {
        cluster_id: &set.spec.cluster_id,
        leader_namespace: membership::leader_namespace(set),
        leader,
        announce,
        endpoint_ip_type: snapshot.config.endpoint_ip_type,
    })
}

/// Whether an object is labelled as written by this controller.
fn is_managed<K: ResourceExt>(object: &K) -> bool {
    let manager = object.labels().get(names::LABEL_APP_MANAGED_BY);
    manager.is_some_and(|manager| manager == names::MANAGED_BY)
}

/// Whether a policy was imported from the leader.
fn is_replicated(policy: &ClusterNetworkPolicy) -> bool {
    policy
        .annotations()
        .contains_key(names::ANNOTATION_IMPORTED_POLICY)
}

/// Labels an object as written by this controller.
fn set_managed<K: ResourceExt>(object: &mut K) {
    object.labels_mut().insert(
        names::LABEL_APP_MANAGED_BY.to_owned(),
        names::MANAGED_BY.to_owned(),
    );
}

#[cfg(test)]
mod tests;
