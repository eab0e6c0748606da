//! The addresses of the cluster's Pods, and the attributes by which policies select them.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use mc_api::address_group_slice::AddressGroupPort;

/// The attributes of each address; shared by Pods with equal ones. Of several Pods with one address the first by
/// Namespace and name counts.
pub type PodAddresses = Arc<BTreeMap<IpAddr, Arc<PodAttributes>>>;

/// The attributes of Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodAttributes {
    /// The Namespace.
    pub namespace: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// Name of the `ServiceAccount`.
    pub service_account: String,
    /// The named ports of the containers.
    pub ports: Vec<AddressGroupPort>,
}

// === impl PodAttributes ===

impl PodAttributes {
    /// The approximate size as JSON, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let labels = self.labels.iter().map(|(key, value)| key.len() + value.len() + 6);
        let ports = self.ports.iter().map(|port| port.name.len() + 48);
        // The names of the fields.
        80 + self.namespace.len() + self.service_account.len() + labels.chain(ports).sum::<usize>()
    }
}
