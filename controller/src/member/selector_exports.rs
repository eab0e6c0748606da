//! The exchange of policy peers: the export of those in this cluster's own policies, and those of the other clusters.
//!
//! Pure. Replicated policies are known in all clusters and are not exported. With a leader that admits no such export,
//! other clusters lack the peers.

use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    names,
    policy_selectors::PolicySelectors,
    resource_export::{ResourceExport, ResourceExportSpec, kind},
};
use serde_json::Value;

use super::{
    ActiveMembership, is_replicated,
    policy_selectors::{cluster_set_peers, exported_peer},
    resource_exports::existing_export,
};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, OptionalKind},
};

/// Keeps the export of this cluster's peers, or deletes it where there are none.
pub fn plan(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let Some(selectors) = own_selectors(snapshot) else {
        return;
    };
    let name = names::policy_selectors_export(membership.cluster_id);
    let old = existing_export(membership, &name);
    let is_empty = selectors.peers().is_empty() || !snapshot.config.stretched_network_policy;
    match old {
        Some(old) if old.metadata.deletion_timestamp.is_some() => {}
        Some(old) if is_empty => plan.delete(ApiServer::Leader, old),
        None if is_empty => {}
        _ => {
            let new = export(membership, &name, &selectors);
            if old.is_none_or(|old| !is_same(old, &new)) {
                plan.apply(ApiServer::Leader, &new);
            }
        }
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
    plan.issues("ResourceExports of kind PolicySelectors", bad);
    Some(peers)
}

/// The peers in the cluster's own policies; `None` while a list is incomplete.
fn own_selectors(snapshot: &MemberSnapshot) -> Option<PolicySelectors> {
    if matches!(snapshot.policies, OptionalKind::Pending)
        || matches!(snapshot.network_policies, OptionalKind::Pending)
    {
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

/// The export; without a finalizer, because nothing in the leader cluster depends on it.
fn export(membership: &ActiveMembership<'_>, name: &str, selectors: &PolicySelectors) -> ResourceExport {
    let labels = [
        (names::LABEL_SOURCE_KIND, kind::POLICY_SELECTORS),
        (names::LABEL_SOURCE_CLUSTER_ID, membership.cluster_id),
    ];
    ResourceExport {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(membership.leader_namespace.to_owned()),
            labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: ResourceExportSpec {
            cluster_id: membership.cluster_id.to_owned(),
            kind: kind::POLICY_SELECTORS.to_owned(),
            raw: Some(selectors.to_raw()),
            ..ResourceExportSpec::default()
        },
        status: None,
    }
}

fn is_same(old: &ResourceExport, new: &ResourceExport) -> bool {
    let labels = new.labels();
    old.spec == new.spec
        && labels
            .iter()
            .all(|(key, value)| old.labels().get(key) == Some(value))
}
