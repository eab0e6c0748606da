//! The status of `ServiceExport`s.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{
    condition::{self, Condition},
    resource_export::{FAILURE, SUCCEEDED},
    service_export::{
        CONFLICT, IMPORT_FAILED, READY, ServiceExport, ServiceExportStatus, VALID, conflict, ready, reason,
    },
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    export_payload::ExportError,
    failed_imports::ReportedFailures,
    resource_exports::{existing_export, export_names},
};
use crate::{
    plan::{ApiServer, Kind, ObjectRef, Plan},
    snapshot::{MemberSnapshot, api_time},
};

/// The time a new export waits for the leader's first condition before its status is written.
const LEADER_CONDITION_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes the status of a `ServiceExport`; `written` means that the leader has its exports.
pub(super) fn status(
    snapshot: &MemberSnapshot,
    membership: Option<&ActiveMembership<'_>>,
    export: &ServiceExport,
    invalid: Option<&ExportError>,
    written: bool,
    reported: &ReportedFailures,
    plan: &mut Plan,
) {
    let now = api_time(snapshot.now);
    let old = export.status.clone().unwrap_or_default();
    let mut new = old.clone();
    let rejected = membership.and_then(|membership| rejection(snapshot, membership, export));
    if invalid.is_none()
        && rejected.is_none()
        && let Some(until) = status_deferred_until(snapshot, membership, export)
    {
        plan.requeue_at(until);
        return;
    }
    if let Some(why) = rejected.as_ref().filter(|_| invalid.is_none() && !written) {
        plan.warning_event(ApiServer::Local, export, ready::FAILED, why.as_str());
    }
    let mut set = |condition| condition::upsert(&mut new.conditions, condition, &now);
    match invalid {
        Some(why) => {
            let why = (why.reason(), why.to_string());
            plan.warning_event(ApiServer::Local, export, why.0, why.1.clone());
            set(Condition::new(VALID, condition::FALSE, why.0, why.1.clone()));
            set(Condition::new(READY, condition::FALSE, ready::FAILED, why.1));
        }
        // Exported means that the leader has it; the old condition remains until then.
        None if written => {
            let message = "The Service is exported successfully";
            set(Condition::new(VALID, condition::TRUE, reason::SUCCEED, message));
            set(
                match membership.and_then(|membership| import_failure(membership, export)) {
                    Some(why) => Condition::new(READY, condition::FALSE, ready::FAILED, why),
                    None => Condition::new(READY, condition::TRUE, ready::EXPORTED, message),
                },
            );
        }
        None if rejected.is_some() => {
            set(Condition::new(
                READY,
                condition::FALSE,
                ready::FAILED,
                rejected.unwrap_or_default(),
            ));
        }
        None if old.conditions.iter().all(|c| c.type_ != READY) => {
            let message = "The leader does not have it yet";
            set(Condition::new(READY, condition::FALSE, ready::PENDING, message));
        }
        None => {}
    }
    if let Some(membership) = membership {
        match invalid
            .is_none()
            .then(|| conflict_condition(membership, export))
            .flatten()
        {
            Some(conflict) => {
                plan.warning_event(
                    ApiServer::Local,
                    export,
                    conflict.reason.clone(),
                    conflict.message.clone(),
                );
                set(conflict);
            }
            None if invalid.is_none() && leader_condition(membership, export, SUCCEEDED).is_some() => {
                set(Condition::new(
                    CONFLICT,
                    condition::FALSE,
                    conflict::NONE,
                    "No cluster contradicts it",
                ));
            }
            None => new.conditions.retain(|c| c.type_ != CONFLICT),
        }
    }
    let service = NamespacedName::from(&export.metadata);
    if let Some(message) = reported.update(&service, &mut new.conditions, &now) {
        plan.warning_event(ApiServer::Local, export, IMPORT_FAILED, message);
    }
    // Conditions of other writers are last.
    let order = [VALID, READY, CONFLICT, IMPORT_FAILED];
    new.conditions
        .sort_by_key(|c| order.iter().position(|t| *t == c.type_).unwrap_or(order.len()));
    if new != old {
        plan.status(
            ApiServer::Local,
            export,
            &ServiceExportStatus {
                conditions: new.conditions,
            },
        );
    }
}

/// The time until which no status is written for a new export without a condition from the leader: the condition
/// follows within moments, and one write suffices.
fn status_deferred_until(
    snapshot: &MemberSnapshot,
    membership: Option<&ActiveMembership<'_>>,
    export: &ServiceExport,
) -> Option<Timestamp> {
    let conditions = export.status.iter().flat_map(|s| &s.conditions);
    let has_ready = conditions.into_iter().any(|c| c.type_ == READY);
    let membership = membership?;
    let has_condition = [SUCCEEDED, FAILURE]
        .iter()
        .any(|type_| leader_condition(membership, export, type_).is_some());
    if has_ready || has_condition {
        return None;
    }
    let created = export.creation_timestamp()?.0;
    let until = created.checked_add(LEADER_CONDITION_TIMEOUT).ok()?;
    // No deferral if this clock is behind the API server's.
    (created <= snapshot.now && snapshot.now < until).then_some(until)
}

/// The leader's rejection of one of the two exports of the Service.
fn rejection(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    export: &ServiceExport,
) -> Option<String> {
    export_names(membership, &NamespacedName::from(&export.metadata))
        .into_iter()
        .find_map(|name| {
            let target = ObjectRef {
                side: ApiServer::Leader,
                kind: Kind::ResourceExport,
                namespace: membership.leader_namespace.to_owned(),
                name,
            };
            let why = snapshot.persistent_failures.get(&target)?;
            Some(format!(
                "The leader cluster rejects ResourceExport {}: {why}",
                target.name
            ))
        })
}

/// The leader's condition of that type on the export of the Service.
fn leader_condition<'a>(
    membership: &ActiveMembership<'a>,
    export: &ServiceExport,
    type_: &str,
) -> Option<&'a Condition> {
    let [service, _] = export_names(membership, &NamespacedName::from(&export.metadata));
    condition_of(membership, &service, type_)
}

/// The leader's condition of that type on an export of this cluster.
pub(super) fn condition_of<'a>(
    membership: &ActiveMembership<'a>,
    name: &str,
    type_: &str,
) -> Option<&'a Condition> {
    let status = existing_export(membership, name)?.status.as_ref()?;
    status.conditions.iter().find(|c| c.type_ == type_)
}

/// The leader's reason not to offer the Service to other clusters, or the endpoints of one that it imports.
fn import_failure(membership: &ActiveMembership<'_>, export: &ServiceExport) -> Option<String> {
    let [service, endpoints] = export_names(membership, &NamespacedName::from(&export.metadata));
    let name = match condition_of(membership, &service, SUCCEEDED) {
        Some(_) => &endpoints,
        None => &service,
    };
    condition_of(membership, name, FAILURE).map(|c| c.message.clone())
}

/// The conflict with other clusters' exports, from the leader's conditions. Antrea's leader reports failures only.
fn conflict_condition(membership: &ActiveMembership<'_>, export: &ServiceExport) -> Option<Condition> {
    if let Some(found) = leader_condition(membership, export, CONFLICT) {
        return Some(Condition::new(
            CONFLICT,
            condition::TRUE,
            &found.reason,
            found.message.clone(),
        ));
    }
    let why = leader_condition(membership, export, FAILURE)?.message.clone();
    Some(Condition::new(
        CONFLICT,
        condition::TRUE,
        conflict::UNSPECIFIED,
        why,
    ))
}
