//! The input of a plan: all objects of a controller's caches, its configuration and the time.

#[cfg(test)]
pub(crate) mod fake;
mod leader;
mod member;
mod member_namespaces;
mod membership;
mod pod_addresses;
mod status_times;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
pub use mc_kube::{NamespacedName, ObjectMap, OptionalKind};

pub use self::{
    leader::{LastHeartbeat, LeaderSnapshot, MemberPolicies},
    member::{CompleteExports, LeaderConnectionState, MemberSnapshot, RemoteObjects, SecretState},
    member_namespaces::{ExchangedObjects, MemberNamespace, MemberNamespaces},
    membership::{DeregistrationState, Instance, Membership, leader_namespace},
    pod_addresses::{PodAddresses, PodAttributes},
    status_times::StatusTimes,
};

/// The number of Pods per namespace and normalized labels.
pub type PodLabelCounts = Arc<BTreeMap<(String, Arc<str>), usize>>;

/// The object `name` in `namespace`.
#[must_use]
pub fn get<'a, K>(objects: &'a ObjectMap<K>, namespace: &str, name: &str) -> Option<&'a Arc<K>> {
    objects.get(&NamespacedName::new(namespace, name))
}

/// A time in the API's precision, whole seconds.
#[must_use]
pub fn api_time(timestamp: Timestamp) -> Time {
    Time(Timestamp::from_second(timestamp.as_second()).unwrap_or(timestamp))
}
