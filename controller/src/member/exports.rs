//! The exports of this cluster's Services.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mc_api::{
    names,
    resource_export::{EndpointsExport, ResourceExportSpec, kind},
    service_export::ServiceExport,
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    export_payload::{ExportError, ExportPayload, payload},
    export_status::status,
    ip_families::ReachableFamilies,
    resource_exports::{apply_export, existing_export, export_names},
    slices::SliceIndex,
};
use crate::{
    name_conflict::{self, NameRequest},
    plan::{ApiServer, Plan},
    snapshot::MemberSnapshot,
};

/// Keeps two exports for each valid `ServiceExport`, none for the others, and the status of all.
pub fn plan(
    snapshot: &MemberSnapshot,
    membership: Option<&ActiveMembership<'_>>,
    slices: &SliceIndex<'_>,
    plan: &mut Plan,
) {
    if snapshot.service_cidrs.is_empty() {
        // Without the Service CIDR no address is known to be unreachable: nothing is withdrawn.
        return;
    }
    let reachable = ReachableFamilies::from_snapshot(snapshot);
    let payloads: Vec<_> = snapshot
        .service_exports
        .values()
        .filter(|e| e.metadata.deletion_timestamp.is_none())
        .map(|export| (export.as_ref(), payload(snapshot, &reachable, slices, export)))
        .collect();
    let owners = membership
        .map(|membership| name_owners(membership, &payloads))
        .unwrap_or_default();
    let mut desired = BTreeSet::new();
    for (export, payload) in payloads {
        let payload =
            payload.and_then(|payload| check_name_owner(&owners, membership, export).map(|()| payload));
        let mut written = membership.is_some();
        if let (Some(membership), Ok(payload)) = (membership, &payload) {
            for (name, spec) in specs(membership, export, payload) {
                written &= apply_export(membership, &name, spec.clone(), plan);
                desired.insert(name);
            }
        }
        status(
            snapshot,
            membership,
            export,
            payload.err().as_ref(),
            written,
            plan,
        );
    }
    let Some(membership) = membership else { return };
    for old in membership.leader.exports.values() {
        let ours = [kind::SERVICE, kind::ENDPOINTS].contains(&old.spec.kind.as_str())
            && old.spec.cluster_id == membership.cluster_id;
        if ours && !desired.contains(&old.name_any()) {
            plan.delete(ApiServer::Leader, old.as_ref());
        }
    }
}

/// The owner of each export name.
fn name_owners(
    membership: &ActiveMembership<'_>,
    payloads: &[(&ServiceExport, Result<ExportPayload, ExportError>)],
) -> BTreeMap<String, NamespacedName> {
    let valid = payloads.iter().filter(|(_, payload)| payload.is_ok());
    name_conflict::resolve_owners(valid.map(|(export, _)| {
        let service = NamespacedName::from(&export.metadata);
        let names = export_names(membership, &service);
        // One of the two may have been deleted.
        let mut existing = names.iter().filter_map(|name| existing_export(membership, name));
        let is_current_owner =
            existing.any(|e| (&e.spec.namespace, &e.spec.name) == (&service.namespace, &service.name));
        let [name, _] = names;
        let since = export.creation_timestamp();
        NameRequest {
            name,
            service,
            is_current_owner,
            since,
        }
    }))
}

fn check_name_owner(
    owners: &BTreeMap<String, NamespacedName>,
    membership: Option<&ActiveMembership<'_>>,
    export: &ServiceExport,
) -> Result<(), ExportError> {
    let service = NamespacedName::from(&export.metadata);
    let name = membership
        .map(|membership| names::service_export(membership.cluster_id, &service.namespace, &service.name));
    match name.and_then(|name| owners.get_key_value(&name)) {
        Some((name, owner)) if *owner != service => Err(ExportError::NameTaken {
            name: name.clone(),
            owner: owner.clone(),
        }),
        _ => Ok(()),
    }
}

fn specs(
    membership: &ActiveMembership<'_>,
    export: &ServiceExport,
    payload: &ExportPayload,
) -> [(String, ResourceExportSpec); 2] {
    let exported = NamespacedName::from(&export.metadata);
    let [service, endpoints] = export_names(membership, &exported);
    let NamespacedName { namespace, name } = exported;
    let base = ResourceExportSpec {
        cluster_id: membership.cluster_id.to_owned(),
        name,
        namespace,
        ..ResourceExportSpec::default()
    };
    [
        (
            service,
            ResourceExportSpec {
                kind: kind::SERVICE.to_owned(),
                service: Some(Box::new(payload.service.clone())),
                ..base.clone()
            },
        ),
        (
            endpoints,
            ResourceExportSpec {
                kind: kind::ENDPOINTS.to_owned(),
                endpoints: Some(EndpointsExport {
                    subsets: payload.subsets.clone(),
                }),
                ..base
            },
        ),
    ]
}
