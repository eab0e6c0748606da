//! Exported Services and their endpoints, reduced to the fields the data path needs.
//!
//! Values are unvalidated: [`crate::desired`] validates them. Services without an export are left out, so that their
//! changes cause no reconcile.

use std::collections::{BTreeMap, BTreeSet};

use mc_kube::NamespacedName;

/// A `v1` Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceInfo {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.clusterIPs`, else `spec.clusterIP`; empty for a headless Service.
    pub cluster_ips: Vec<String>,
    /// `spec.externalIPs`, and the addresses in `status.loadBalancer.ingress`.
    pub external_ips: Vec<String>,
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds` if `spec.sessionAffinity` is `ClientIP`.
    pub affinity_seconds: Option<i32>,
    /// `spec.internalTrafficPolicy` is `Local`.
    pub local_only: bool,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// Whether it reserves addresses for a Node.
    pub reserves: bool,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty for a single port.
    pub name: String,
    /// The port.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The port at the addresses of Nodes, if it has one.
    pub node_port: Option<i32>,
}

/// A `discovery.k8s.io/v1` EndpointSlice of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceInfo {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// Name of the Service.
    pub service: String,
    /// `ports`.
    pub ports: Vec<SlicePort>,
    /// `endpoints`.
    pub endpoints: Vec<EndpointInfo>,
}

/// A port of the endpoints of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlicePort {
    /// The Service port's name.
    pub name: String,
    /// Port of the Pods; none for all ports.
    pub port: Option<i32>,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// One endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Its addresses.
    pub addresses: Vec<String>,
    /// `nodeName`, if set.
    pub node: Option<String>,
    /// Accepts new connections.
    pub ready: bool,
    /// Would accept them if it were not terminating.
    pub serving: bool,
    /// Its Pod is terminating.
    pub terminating: bool,
}

/// An exported Service with its slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportedService {
    /// The Service.
    pub service: ServiceInfo,
    /// Its EndpointSlices, sorted by name.
    pub slices: Vec<SliceInfo>,
}

/// The exported Services, sorted by namespace and name.
#[must_use]
pub fn exported_services<'a>(
    services: impl IntoIterator<Item = &'a ServiceInfo>,
    slices: impl IntoIterator<Item = &'a SliceInfo>,
    exports: &BTreeSet<NamespacedName>,
) -> Vec<ExportedService> {
    let mut found: BTreeMap<NamespacedName, ExportedService> = services
        .into_iter()
        .map(|service| (NamespacedName::new(&service.namespace, &service.name), service))
        .filter(|(key, _)| exports.contains(key))
        .map(|(key, service)| {
            let service = ExportedService {
                service: service.clone(),
                slices: Vec::new(),
            };
            (key, service)
        })
        .collect();
    for slice in slices {
        if let Some(service) = found.get_mut(&NamespacedName::new(&slice.namespace, &slice.service)) {
            service.slices.push(slice.clone());
        }
    }
    let mut found: Vec<ExportedService> = found.into_values().collect();
    for service in &mut found {
        service.slices.sort_by(|a, b| a.name.cmp(&b.name));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str) -> ServiceInfo {
        ServiceInfo {
            namespace: namespace.into(),
            name: name.into(),
            ..ServiceInfo::default()
        }
    }

    fn slice(namespace: &str, name: &str, service: &str) -> SliceInfo {
        SliceInfo {
            namespace: namespace.into(),
            name: name.into(),
            service: service.into(),
            ..SliceInfo::default()
        }
    }

    #[test]
    fn only_services_with_an_export_in_their_namespace_are_exported() {
        let services = [service("b", "web"), service("a", "web"), service("a", "db")];
        let slices = [
            slice("a", "web-2", "web"),
            slice("a", "web-1", "web"),
            slice("a", "db-1", "db"),
            slice("c", "web-3", "web"),
        ];
        let exports = ["a", "c"]
            .map(|namespace| NamespacedName::new(namespace, "web"))
            .into();
        let found = exported_services(&services, &slices, &exports);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].service, services[1]);
        let names: Vec<&str> = found[0].slices.iter().map(|slice| slice.name.as_str()).collect();
        assert_eq!(names, ["web-1", "web-2"]);
    }
}
