//! The Services that this cluster cannot import, for their exporters, and those of this cluster that others cannot
//! import.
//!
//! A member exports its failures; the leader does not read them. With a leader that admits no such export, as Antrea's,
//! exporters lack them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mc_api::{
    condition::{self, Condition},
    import_failures::{ImportFailure, ImportFailures},
    names,
    resource_export::kind,
    service_export::IMPORT_FAILED,
};
use mc_kube::NamespacedName;

use super::{ActiveMembership, export_completeness, member_exports::MemberExport};
use crate::{plan::Plan, snapshot::MemberSnapshot};

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

/// The exports of failures.
const EXPORT: MemberExport<ImportFailures> = MemberExport {
    kind: kind::IMPORT_FAILURES,
    name: names::import_failures_export,
    content: "failed imports",
    decode: ImportFailures::from_raw,
};

/// Keeps the export of this cluster's failures, or deletes it where there are none. Its label states that the other
/// exports of this cluster are complete, if the plan so far and the leader's objects show that.
pub(super) fn export(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    failed: FailedImports,
    plan: &mut Plan,
) {
    let failures = ImportFailures::new(failed.0);
    let complete = export_completeness::label(snapshot, membership, plan);
    let raw = (complete.is_some() || !failures.failures().is_empty()).then(|| failures.to_raw());
    EXPORT.keep(membership, raw, complete.into_iter().collect(), plan);
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
    for (cluster, failures) in EXPORT.of_others(membership, exports, plan) {
        for failure in failures.failures() {
            let key = NamespacedName::new(failure.namespace.as_str(), failure.name.as_str());
            if snapshot.service_exports.contains_key(&key) {
                let report = (cluster.to_owned(), failure.clone());
                by_service.entry(key).or_default().push(report);
            }
        }
    }
    ReportedFailures(Some(by_service))
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
    /// Sets the condition of a Service that other clusters cannot import, and removes that of another one. Returns the
    /// message of the former. Reason and type are ours: the API server would reject a status with those that another
    /// cluster invents.
    pub(super) fn update(
        &self,
        service: &NamespacedName,
        conditions: &mut Vec<Condition>,
        now: &Time,
    ) -> Option<String> {
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
        let failed = Condition::new(
            IMPORT_FAILED,
            condition::TRUE,
            REPORTED_BY_CLUSTERS,
            message.as_str(),
        );
        condition::upsert(conditions, failed, now);
        Some(message)
    }
}
