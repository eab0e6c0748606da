//! The exchange of policy peers: the export of those in this cluster's own policies, and those of the other clusters.
//!
//! Pure. Replicated policies are known in all clusters and are not exported. With a leader that admits no such export,
//! other clusters lack the peers.

use std::collections::BTreeMap;

use kube::ResourceExt;
use mc_api::{names, policy_selectors::PolicySelectors, resource_export::kind};
use serde_json::Value;

use super::{
    ActiveMembership, is_replicated,
    member_exports::MemberExport,
    policy_selectors::{cluster_set_peers, exported_peer},
};
use crate::{plan::Plan, snapshot::MemberSnapshot};

/// The exports of peers.
const EXPORT: MemberExport<PolicySelectors> = MemberExport {
    kind: kind::POLICY_SELECTORS,
    name: names::policy_selectors_export,
    content: "policy peers",
    decode: PolicySelectors::from_raw,
};

/// Keeps the export of this cluster's peers, or deletes it where there are none.
pub fn plan(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let Some(selectors) = own_selectors(snapshot) else {
        return;
    };
    let is_exported = !selectors.peers().is_empty() && snapshot.config.stretched_network_policy;
    let raw = is_exported.then(|| selectors.to_raw());
    EXPORT.keep(membership, raw, BTreeMap::new(), plan);
}

/// The peers of the other clusters' policies; `None` while their list is incomplete.
pub(super) fn offered_peers(membership: &ActiveMembership<'_>, plan: &mut Plan) -> Option<Vec<Value>> {
    let exports = membership.leader.policy_selectors.as_ref()?;
    let selectors = EXPORT.of_others(membership, exports, plan).into_iter();
    Some(
        selectors
            .flat_map(|(_, selectors)| selectors.peers().to_vec())
            .collect(),
    )
}

/// The peers in the cluster's own policies; `None` while a list is incomplete.
fn own_selectors(snapshot: &MemberSnapshot) -> Option<PolicySelectors> {
    if snapshot.policies.is_pending() || snapshot.network_policies.is_pending() {
        return None;
    }
    let of_cluster = snapshot
        .policies
        .objects()
        .into_iter()
        .flat_map(|all| all.values());
    let of_cluster = of_cluster
        .filter(|policy| !is_replicated(policy))
        .flat_map(|policy| cluster_set_peers(&policy.spec))
        .map(|peer| exported_peer(peer, None));
    let namespaced = snapshot
        .network_policies
        .objects()
        .into_iter()
        .flat_map(|all| all.values());
    let namespaced = namespaced.flat_map(|policy| {
        let namespace = policy.namespace();
        cluster_set_peers(&policy.spec).map(move |peer| exported_peer(peer, namespace.as_deref()))
    });
    Some(PolicySelectors::new(of_cluster.chain(namespaced)))
}
