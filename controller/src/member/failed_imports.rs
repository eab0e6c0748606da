//! The Services that this cluster cannot import, for their exporters, and those of this cluster that others cannot
//! import.
//!
//! A member exports its failures; the leader does not read them. With a leader that admits no such export, as Antrea's,
//! exporters lack them.

use std::collections::BTreeMap;

use kube::ResourceExt;
use mc_api::{
    condition::{self, Condition},
    import_failures::{ImportFailure, ImportFailures},
    names,
    resource_export::{ResourceExport, ResourceExportSpec, kind},
    service_export::IMPORT_FAILED,
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    resource_exports::{apply_export, existing_export},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::MemberSnapshot,
};

/// The reason of the condition.
const REPORTED_BY_CLUSTERS: &str = "ReportedByClusters";
/// The number of clusters that a condition names.
const MAX_NAMED: usize = 5;

/// The reasons of failures.
pub(super) mod reason {
    /// The name of the imported Service would be too long.
    pub(crate) const INVALID_NAME: &str = "InvalidName";
    /// The importing cluster's configuration closes the Namespace.
    pub(crate) const NAMESPACE_NOT_ALLOWED: &str = "NamespaceNotAllowed";
    /// The importing cluster has no such Namespace.
    pub(crate) const NAMESPACE_NOT_FOUND: &str = "NamespaceNotFound";
    /// A Service or `ServiceImport` of the name belongs to another owner.
    pub(crate) const NAME_TAKEN: &str = "NameTaken";
    /// The importing cluster's API server rejects the Service.
    pub(crate) const REJECTED: &str = "Rejected";
    /// Endpoints outside of their cluster's ranges are left out.
    pub(crate) const ENDPOINTS_LEFT_OUT: &str = "EndpointsLeftOut";
}

/// The failures of this cluster, the first of each Service.
#[derive(Debug, Default)]
pub(super) struct FailedImports(Vec<ImportFailure>);

/// The failures of other clusters by exported Service; `None` while their list is incomplete.
#[derive(Debug)]
pub(super) struct ReportedFailures(Option<BTreeMap<NamespacedName, Vec<(String, ImportFailure)>>>);

/// Keeps the export of this cluster's failures, or deletes it where there are none.
pub(super) fn export(membership: &ActiveMembership<'_>, failed: FailedImports, plan: &mut Plan) {
    let name = names::import_failures_export(membership.cluster_id);
    let failures = ImportFailures::new(failed.0);
    if !failures.failures().is_empty() {
        let spec = ResourceExportSpec {
            cluster_id: membership.cluster_id.to_owned(),
            kind: kind::IMPORT_FAILURES.to_owned(),
            raw: Some(failures.to_raw()),
            ..ResourceExportSpec::default()
        };
        apply_export(membership, &name, spec, plan);
    } else if let Some(old) = existing_export(membership, &name) {
        plan.delete(ApiServer::Leader, old);
    }
}

/// The failures that the other clusters report about Services that this cluster exports.
pub(super) fn reported(
    snapshot: &MemberSnapshot,
    membership: Option<&ActiveMembership<'_>>,
    plan: &mut Plan,
) -> ReportedFailures {
    let Some((membership, exports)) =
        membership.and_then(|membership| Some((membership, membership.leader.import_failures.as_ref()?)))
    else {
        return ReportedFailures(None);
    };
    let mut by_service: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut bad = vec![];
    let active = exports.values().filter(|export| {
        export.metadata.deletion_timestamp.is_none()
            && export.spec.kind == kind::IMPORT_FAILURES
            && export.spec.cluster_id != membership.cluster_id
    });
    for export in active {
        match failures(export) {
            Ok(failures) => {
                for failure in failures.failures() {
                    let key = NamespacedName::new(failure.namespace.as_str(), failure.name.as_str());
                    if !snapshot.service_exports.contains_key(&key) {
                        continue;
                    }
                    let report = (export.spec.cluster_id.clone(), failure.clone());
                    by_service.entry(key).or_default().push(report);
                }
            }
            Err(why) => bad.push((
                format!("ResourceExport {}", export.name_any()),
                format!("its failed imports are ignored: {why}"),
            )),
        }
    }
    plan.issues(
        IssueCode::InvalidReport,
        "ResourceExports of kind ImportFailures",
        bad,
    );
    ReportedFailures(Some(by_service))
}

/// The failures of an export, or the reason to ignore it.
fn failures(export: &ResourceExport) -> Result<ImportFailures, String> {
    let wanted = names::import_failures_export(&export.spec.cluster_id);
    if export.name_any() != wanted {
        return Err(format!(
            "spec.clusterID {:?}: the name of its export is {wanted:?}",
            export.spec.cluster_id
        ));
    }
    ImportFailures::from_raw(export.spec.raw.as_ref()).map_err(|error| error.to_string())
}

// === impl FailedImports ===

impl FailedImports {
    /// Adds a failure.
    pub(super) fn add(&mut self, service: &NamespacedName, reason: &str, message: impl Into<String>) {
        self.0.push(ImportFailure {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            reason: reason.to_owned(),
            message: message.into(),
        });
    }
}

// === impl ReportedFailures ===

impl ReportedFailures {
    /// Sets the condition of a Service that other clusters cannot import, and removes that of another one. Reason and
    /// type are ours: the API server would reject a status with those that another cluster invents.
    pub(super) fn update(
        &self,
        service: &NamespacedName,
        conditions: &mut Vec<Condition>,
    ) -> Option<Condition> {
        let by_service = self.0.as_ref()?;
        let Some(reports) = by_service.get(service) else {
            conditions.retain(|condition| condition.type_ != IMPORT_FAILED);
            return None;
        };
        let named = reports.iter().take(MAX_NAMED).map(|(cluster, failure)| {
            let (reason, message) = (&failure.reason, &failure.message);
            format!("cluster {cluster:?}: {reason}: {message}")
        });
        let mut message = named.collect::<Vec<_>>().join("; ");
        if let Some(more @ 1..) = reports.len().checked_sub(MAX_NAMED) {
            message = format!("{message}; and {more} more clusters");
        }
        Some(Condition::new(
            IMPORT_FAILED,
            condition::TRUE,
            REPORTED_BY_CLUSTERS,
            message,
        ))
    }
}
