//! The withdrawal of a Service without ready endpoints.

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{
    condition::{self, Condition},
    names,
    service_export::{ServiceExport, VALID, reason},
};

use super::{ActiveMembership, resource_exports::existing_export};
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
    let name = names::service_export(
        membership.cluster_id,
        &export.namespace().unwrap_or_default(),
        &export.name_any(),
    );
    let exported = existing_export(membership, &name)?;
    // A ServiceExport of another Namespace can have the same name in the leader cluster.
    let is_of_service = (exported.spec.namespace.as_str(), exported.spec.name.as_str())
        == (
            export.namespace().unwrap_or_default().as_str(),
            export.name_any().as_str(),
        );
    if !is_of_service || exported.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let now = api_time(snapshot.now).0;
    // A clock that was set back does not prolong it.
    let since = without_endpoints_since(export).map_or(now, |since| since.min(now));
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
