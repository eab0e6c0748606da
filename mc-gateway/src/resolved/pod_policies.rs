//! The devices of Pods and their guard, while policies are enforced on packets of the own cluster. Pure.

use super::pod_devices::{bypassed, pod_devices};
use super::pod_guard::pod_guard;
use super::{HostInputs, ResolvedState, Settings, prefix};
use crate::desired::DesiredState;
use crate::objects::FieldError;

/// Adds devices and guard of the Pods to the state. Returns the reason why policies may not be enforced on packets of
/// the own cluster, if so.
#[must_use]
pub(super) fn police_pods(
    state: &mut ResolvedState,
    desired: &DesiredState,
    inputs: &HostInputs,
    settings: &Settings<'_>,
    issues: &mut Vec<FieldError>,
) -> Option<FieldError> {
    let policies = &desired.policies;
    if !policies.polices_devices() && !policies.guards_pods() {
        return None;
    }
    let ranges = prefix::delivered(&desired.prefixes);
    let unselected = &policies.tables.unselected;
    let pods = pod_devices(&inputs.pod_links, &ranges, &policies.pods, unselected);
    if policies.guards_pods() {
        let (guard, unguarded) = pod_guard(desired, inputs, &pods.routed_to, settings.node_name);
        state.pod_guard = guard;
        issues.extend(unguarded);
    }
    if !policies.polices_devices() {
        return None;
    }
    issues.extend(pods.issues());
    state.pod_devices = pods.devices;
    inputs.pod_links.bypassed_by.as_deref().map(bypassed)
}
