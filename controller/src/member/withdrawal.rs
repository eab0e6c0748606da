//! The withdrawal of a Service without ready endpoints.

use jiff::Timestamp;
use mc_api::{
    condition::{self, Condition},
    service_export::{ServiceExport, VALID, reason},
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    resource_exports::{existing_export, export_names, is_of},
};
use crate::snapshot::{MemberSnapshot, api_time};

/// The time until which a Service without ready endpoints remains exported; `None` if it is not exported, or if that
/// time has passed.
///
/// Within it a restart of the only Pod changes neither UID nor cluster IP of the imported Service. The time begins with
/// the condition `Valid` of the `ServiceExport`, which outlives the controller.
pub(super) fn exported_until(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    export: &ServiceExport,
) -> Option<Timestamp> {
    let service = NamespacedName::from(&export.metadata);
    let [name, _] = export_names(membership, &service);
    existing_export(membership, &name)
        .filter(|exported| is_of(exported, &service) && exported.metadata.deletion_timestamp.is_none())?;
    let now = api_time(snapshot.now).0;
    end_of_waiting(snapshot, without_endpoints_since(export).unwrap_or(now))
}

/// Whether a Service may still be exported elsewhere although none of its endpoints is ready.
pub(super) fn is_kept(snapshot: &MemberSnapshot, export: &ServiceExport) -> bool {
    without_endpoints_since(export).is_some_and(|since| end_of_waiting(snapshot, since).is_some())
}

/// The time until which a Service is exported that has no ready endpoint since then; `None` if it has passed.
fn end_of_waiting(snapshot: &MemberSnapshot, since: Timestamp) -> Option<Timestamp> {
    // A clock that was set back does not prolong it.
    let since = since.min(api_time(snapshot.now).0);
    since
        .checked_add(snapshot.config.withdraw_after)
        .ok()
        .filter(|until| *until > snapshot.now)
}

/// The time since which the condition `Valid` states that no endpoint is ready.
fn without_endpoints_since(export: &ServiceExport) -> Option<Timestamp> {
    let conditions = export.status.iter().flat_map(|status| &status.conditions);
    let is_without_endpoints = |c: &&Condition| {
        c.type_ == VALID && c.status == condition::FALSE && c.reason == reason::WITHOUT_ENDPOINTS
    };
    let found = conditions.into_iter().find(is_without_endpoints)?;
    found.last_transition_time.as_ref().map(|time| time.0)
}
