//! The exports of this cluster's Services.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mc_api::{
    exported_metadata::is_exchanged,
    names,
    resource_export::{EndpointsExport, ResourceExportSpec, kind},
    service_export::ServiceExport,
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    export_payload::{ExportError, ExportPayload, payload},
    export_status::status,
    failed_imports::ReportedFailures,
    ip_families::ReachableFamilies,
    resource_exports::{apply_export, existing_export, export_names, is_of},
    slices::SliceIndex,
    withdrawal::exported_until,
};
use crate::{
    name_conflict::{self, NameRequest},
    plan::{ApiServer, Plan},
    snapshot::MemberSnapshot,
};

/// Reason of the Event about exported metadata of a reserved domain.
const RESERVED_METADATA: &str = "ReservedMetadata";

/// A `ServiceExport` and the content of its exports.
struct Candidate<'a> {
    export: &'a ServiceExport,
    /// The content; `None` if the Service is not exported.
    payload: Option<ExportPayload>,
    /// The reason why the `ServiceExport` is not valid. A Service that has just lost its last ready endpoint has both a
    /// reason and a payload.
    error: Option<ExportError>,
}

/// Keeps two exports for each valid `ServiceExport` and for those that have just lost their endpoints, none for the
/// others, and the status of all.
pub(super) fn plan(
    snapshot: &MemberSnapshot,
    membership: Option<&ActiveMembership<'_>>,
    slices: &SliceIndex<'_>,
    reported: &ReportedFailures,
    plan: &mut Plan,
) {
    if snapshot.service_cidrs.is_empty() {
        // Without the Service CIDR no address is known to be unreachable: nothing is withdrawn.
        return;
    }
    let reachable = ReachableFamilies::from_snapshot(snapshot);
    let mut candidates: Vec<_> = snapshot
        .service_exports
        .values()
        .filter(|e| e.metadata.deletion_timestamp.is_none())
        .map(|export| {
            let payload = payload(snapshot, &reachable, slices, export);
            Candidate::new(snapshot, membership, export, payload)
        })
        .collect();
    let owners = membership
        .map(|membership| name_owners(membership, &candidates))
        .unwrap_or_default();
    let mut desired = BTreeSet::new();
    for candidate in &mut candidates {
        if candidate.payload.is_some()
            && let Err(taken) = check_name_owner(&owners, membership, candidate.export)
        {
            candidate.reject(taken);
        }
        warn_reserved(candidate.export, plan);
        let mut written = membership.is_some();
        if let (Some(membership), Some(payload)) = (membership, &candidate.payload) {
            for (name, spec) in specs(membership, candidate.export, payload) {
                written &= apply_export(membership, &name, spec.clone(), plan);
                desired.insert(name);
            }
        }
        if let Some(ExportError::WithoutEndpoints {
            exported_until: Some(until),
        }) = candidate.error
        {
            plan.requeue_at(until);
        }
        status(
            snapshot,
            membership,
            candidate.export,
            candidate.error.as_ref(),
            written,
            reported,
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

/// Reports keys that are not exchanged.
fn warn_reserved(export: &ServiceExport, plan: &mut Plan) {
    let spec = export.spec.iter();
    let reserved: Vec<_> = spec
        .flat_map(|spec| {
            let labels = spec.exported_labels.keys().map(|key| ("exportedLabels", key));
            labels.chain(
                spec.exported_annotations
                    .keys()
                    .map(|key| ("exportedAnnotations", key)),
            )
        })
        .filter(|(_, key)| !is_exchanged(key))
        .collect();
    let Some((field, key)) = reserved.first() else {
        return;
    };
    let more = match reserved.len() {
        1 => String::new(),
        len => format!(" and {} more", len.saturating_sub(1)),
    };
    let message = format!("spec.{field}: key {key:?}{more} of a reserved domain: not exported");
    plan.warning_event(ApiServer::Local, export, RESERVED_METADATA, message);
}

/// The owner of each export name.
fn name_owners(
    membership: &ActiveMembership<'_>,
    candidates: &[Candidate<'_>],
) -> BTreeMap<String, NamespacedName> {
    let exported = candidates.iter().filter(|c| c.payload.is_some());
    name_conflict::resolve_owners(exported.map(|candidate| {
        let export = candidate.export;
        let service = NamespacedName::from(&export.metadata);
        let names = export_names(membership, &service);
        // One of the two may have been deleted.
        let mut existing = names.iter().filter_map(|name| existing_export(membership, name));
        let is_current_owner = existing.any(|e| is_of(e, &service));
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

// === impl Candidate ===

impl<'a> Candidate<'a> {
    fn new(
        snapshot: &MemberSnapshot,
        membership: Option<&ActiveMembership<'_>>,
        export: &'a ServiceExport,
        payload: Result<ExportPayload, ExportError>,
    ) -> Self {
        let (payload, error) = match payload {
            Ok(payload) if payload.subsets.is_empty() => {
                let exported_until =
                    membership.and_then(|membership| exported_until(snapshot, membership, export));
                let error = ExportError::WithoutEndpoints { exported_until };
                (exported_until.map(|_| payload), Some(error))
            }
            Ok(payload) => (Some(payload), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            export,
            payload,
            error,
        }
    }

    /// Exports nothing, because of `error`.
    fn reject(&mut self, error: ExportError) {
        self.payload = None;
        self.error = Some(error);
    }
}
