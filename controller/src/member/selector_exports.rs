//! The exchange of policy peers: the export of those in this cluster's own policies, and those of the other clusters.
//!
//! Pure. Replicated policies are known in all clusters and are not exported. With a leader that admits no such export,
//! other clusters lack the peers.

use kube::ResourceExt;
use mc_api::{
    names,
    policy_selectors::PolicySelectors,
    resource_export::{ResourceExport, ResourceExportSpec, kind},
};
use serde_json::Value;

use super::{
    ActiveMembership, is_replicated,
    policy_selectors::{cluster_set_peers, exported_peer},
    resource_exports::{apply_export, existing_export},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::MemberSnapshot,
};

/// Keeps the export of this cluster's peers, or deletes it where there are none.
pub fn plan(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let Some(selectors) = own_selectors(snapshot) else {
        return;
    };
    let name = names::policy_selectors_export(membership.cluster_id);
    if !selectors.peers().is_empty() && snapshot.config.stretched_network_policy {
        let spec = ResourceExportSpec {
            cluster_id: membership.cluster_id.to_owned(),
            kind: kind::POLICY_SELECTORS.to_owned(),
            raw: Some(selectors.to_raw()),
            ..ResourceExportSpec::default()
        };
        apply_export(membership, &name, spec, plan);
    } else if let Some(old) = existing_export(membership, &name) {
        plan.delete(ApiServer::Leader, old);
    }
}

/// The peers of the other clusters' policies; `None` while their list is incomplete.
pub(super) fn offered_peers(membership: &ActiveMembership<'_>, plan: &mut Plan) -> Option<Vec<Value>> {
    let exports = membership.leader.policy_selectors.as_ref()?;
    let mut peers = vec![];
    let mut bad = vec![];
    let active = exports.values().filter(|export| {
        export.metadata.deletion_timestamp.is_none()
            && export.spec.kind == kind::POLICY_SELECTORS
            && export.spec.cluster_id != membership.cluster_id
    });
    for export in active {
        match selectors(export) {
            Ok(selectors) => peers.extend_from_slice(selectors.peers()),
            Err(why) => bad.push((
                format!("ResourceExport {}", export.name_any()),
                format!("its policy peers are ignored: {why}"),
            )),
        }
    }
    plan.issues(
        IssueCode::InvalidReport,
        "ResourceExports of kind PolicySelectors",
        bad,
    );
    Some(peers)
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

/// The peers of an export, or the reason to ignore it.
fn selectors(export: &ResourceExport) -> Result<PolicySelectors, String> {
    let wanted = names::policy_selectors_export(&export.spec.cluster_id);
    if export.name_any() != wanted {
        return Err(format!(
            "spec.clusterID {:?}: the name of its export is {wanted:?}",
            export.spec.cluster_id
        ));
    }
    PolicySelectors::from_raw(export.spec.raw.as_ref()).map_err(|error| error.to_string())
}
