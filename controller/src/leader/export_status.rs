//! The status of `ResourceExport`s: success or failure, and conflicts between clusters.

use kube::ResourceExt;
use mc_api::{
    condition::{self, Condition},
    resource_export::{CONVERGE_FAILURE, FAILURE, ResourceExport, ResourceExportStatus, SUCCEEDED},
    service_export::CONFLICT,
};

use super::{merge::Conflicts, resources::is_active};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, api_time},
};

/// The prefix of the message of every failed export, as in Antrea.
const NOT_CONVERGED: &str = "ResourceExport can't be converged to ResourceImport";

/// The failure of an endpoints export whose Service export has failed; its cause is in the status of that one.
pub(super) const SERVICE_EXPORT_FAILED: &str =
    "the export of the Service itself is missing or did not converge";

/// Writes the status of an active export of a kind without conflicts.
pub(super) fn write(
    snapshot: &LeaderSnapshot,
    export: &ResourceExport,
    failure: Option<&str>,
    plan: &mut Plan,
) {
    write_with_conflicts(snapshot, export, failure, &Conflicts::default(), plan);
}

/// Writes the status of an active export.
pub(super) fn write_with_conflicts(
    snapshot: &LeaderSnapshot,
    export: &ResourceExport,
    failure: Option<&str>,
    conflicts: &Conflicts,
    plan: &mut Plan,
) {
    if !is_active(export) {
        return;
    }
    let outcome = match failure {
        None => Condition::new(SUCCEEDED, condition::TRUE, "", ""),
        Some(reason) => {
            plan.issue(
                IssueCode::ExportRefused,
                format!("ResourceExport {}", export.name_any()),
                reason,
            );
            if reason != SERVICE_EXPORT_FAILED {
                plan.warning_event(ApiServer::Local, export, CONVERGE_FAILURE, reason);
            }
            let message = format!("{NOT_CONVERGED}: {reason}");
            Condition::new(FAILURE, condition::FALSE, CONVERGE_FAILURE, message)
        }
    };
    let conflict = (!conflicts.is_empty()).then(|| {
        let (reason, message) = (conflicts.reason(), conflicts.message());
        // The Event of a failed export has the conflict in its message.
        if failure.is_none() {
            plan.warning_event(ApiServer::Local, export, reason.as_str(), message.as_str());
        }
        Condition::new(CONFLICT, condition::TRUE, &reason, message)
    });
    let old = export
        .status
        .as_ref()
        .map(|s| s.conditions.as_slice())
        .unwrap_or_default();
    let now = api_time(snapshot.now);
    let new: Vec<_> = [Some(outcome), conflict]
        .into_iter()
        .flatten()
        .map(|new| {
            // An unchanged condition keeps its transition time.
            let unchanged = old.iter().find(|c| {
                let timeless = Condition {
                    last_transition_time: None,
                    ..(*c).clone()
                };
                timeless == new && c.last_transition_time.is_some()
            });
            unchanged
                .cloned()
                .unwrap_or_else(|| new.with_transition_time(&now))
        })
        .collect();
    if *old != *new {
        plan.status(
            ApiServer::Local,
            export,
            &ResourceExportStatus { conditions: new },
        );
    }
}
