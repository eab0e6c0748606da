//! The content of exports: spec and endpoints of a Service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, ServicePort, ServiceSpec};
use kube::ResourceExt;
use mc_api::{
    config::EndpointIpType,
    exported_metadata::exchanged,
    names,
    resource_export::ServiceExportPayload,
    service_export::{ServiceExport, reason},
    service_import::{NO_CLUSTER_IP, is_headless},
    validation,
};
use mc_kube::NamespacedName;

use super::{
    imported_service::{MAX_SERVICE_NAME, is_imported},
    ip_families::{IpFamily, ReachableFamilies},
    slices::{self, SliceIndex},
};
use crate::snapshot::{MemberSnapshot, get};

/// A Service cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The Service does not exist.
    #[error("Service does not exist")]
    NotFound,
    /// The Service is of type `ExternalName`.
    #[error("Service of ExternalName type is not supported")]
    TypeNotSupported,
    /// No cluster IP is assigned yet, or none of an IP family with a known Service CIDR.
    #[error("Service does not have a valid ClusterIP")]
    NoClusterIp,
    /// No endpoint is ready.
    #[error("Service has no Endpoints{}", until(*.exported_until))]
    WithoutEndpoints {
        /// The time of the withdrawal, if the Service is still exported.
        exported_until: Option<Timestamp>,
    },
    /// The Service is an import itself.
    #[error("The Service is imported, not allowed to export")]
    Imported,
    /// No cluster can import a Service of that name.
    #[error(
        "metadata.name {name:?}: no Service can be named {:?}: {cause}",
        names::imported_service(name)
    )]
    NameNotImportable {
        /// The name of the Service.
        name: String,
        /// The cause.
        cause: validation::ValidationError,
    },
    /// The configuration closes the Namespace.
    #[error(
        "metadata.namespace {namespace:?}: namespacePolicy in the controller's configuration does not allow it"
    )]
    NamespaceNotAllowed {
        /// The Namespace.
        namespace: String,
    },
    /// Another `ServiceExport` with the same derived name in the leader cluster owns it.
    #[error("the name {name:?} in the leader cluster is taken by ServiceExport {owner}")]
    NameTaken {
        /// The name of the `ResourceExport`.
        name: String,
        /// The other `ServiceExport`.
        owner: NamespacedName,
    },
    /// Exported labels or annotations are invalid.
    #[error("spec.{field}: {cause}")]
    Metadata {
        /// The field.
        field: &'static str,
        /// The cause.
        cause: validation::ValidationError,
    },
}

/// The content of an export.
pub(super) struct ExportPayload {
    pub(super) service: ServiceExportPayload,
    /// Empty if no endpoint is ready.
    pub(super) subsets: Vec<EndpointSubset>,
}

// === impl ExportError ===

impl ExportError {
    /// The reason of the condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NotFound => reason::NOT_FOUND,
            Self::TypeNotSupported => reason::TYPE_NOT_SUPPORTED,
            Self::NoClusterIp => reason::NO_CLUSTER_IP,
            Self::WithoutEndpoints { .. } => reason::WITHOUT_ENDPOINTS,
            Self::Imported => reason::IMPORTED,
            Self::NameNotImportable { .. } => reason::NAME_NOT_IMPORTABLE,
            Self::NamespaceNotAllowed { .. } => reason::NAMESPACE_NOT_ALLOWED,
            Self::NameTaken { .. } => reason::NAME_TAKEN,
            Self::Metadata { .. } => reason::INVALID_METADATA,
        }
    }
}

fn until(exported_until: Option<Timestamp>) -> String {
    exported_until.map_or_else(String::new, |until| {
        format!(" and remains exported until {until}")
    })
}

/// The content of an export.
pub(super) fn payload(
    snapshot: &MemberSnapshot,
    reachable: &ReachableFamilies,
    slices: &SliceIndex<'_>,
    export: &ServiceExport,
) -> Result<ExportPayload, ExportError> {
    let (namespace, name) = (export.namespace().unwrap_or_default(), export.name_any());
    if !snapshot
        .config
        .namespace_policy
        .allows(&namespace, &snapshot.namespace)
    {
        return Err(ExportError::NamespaceNotAllowed { namespace });
    }
    let service = get(&snapshot.services, &namespace, &name)
        .filter(|s| s.metadata.deletion_timestamp.is_none())
        .ok_or(ExportError::NotFound)?;
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return Err(ExportError::TypeNotSupported);
    }
    if is_imported(service) {
        return Err(ExportError::Imported);
    }
    validation::dns_label(&names::imported_service(&name), MAX_SERVICE_NAME).map_err(|cause| {
        ExportError::NameNotImportable {
            name: name.clone(),
            cause,
        }
    })?;
    let metadata = export.spec.clone().unwrap_or_default();
    validation::exported_metadata(&metadata.exported_labels, &metadata.exported_annotations)
        .map_err(|(field, cause)| ExportError::Metadata { field, cause })?;
    let headless = is_headless(&spec);
    let by_pods = headless || snapshot.config.endpoint_ip_type == EndpointIpType::PodIp;
    let cluster_ips = cluster_ips(&spec, &reachable.services);
    if !headless && cluster_ips.is_empty() {
        return Err(ExportError::NoClusterIp);
    }
    let pods = pod_subsets(slices, reachable, &namespace, &name, headless);
    let subsets = if by_pods || pods.is_empty() {
        pods
    } else {
        vec![EndpointSubset {
            addresses: Some(cluster_ips.iter().map(|ip| address(ip.to_string())).collect()),
            not_ready_addresses: None,
            ports: Some(spec.ports.iter().flatten().map(endpoint_port).collect()),
        }]
    };
    let service = ServiceExportPayload {
        service_spec: exported_spec(&spec, headless, &cluster_ips),
        exported_labels: exchanged(&metadata.exported_labels),
        exported_annotations: exchanged(&metadata.exported_annotations),
    };
    Ok(ExportPayload { service, subsets })
}

/// The fields of the Service that imports contain.
fn exported_spec(spec: &ServiceSpec, headless: bool, cluster_ips: &[IpAddr]) -> ServiceSpec {
    // Families without an address reachable from other clusters are left out.
    let families = spec.ip_families.as_ref().map(|families| {
        let reachable = |family: &&String| {
            headless
                || cluster_ips
                    .iter()
                    .any(|ip| IpFamily::from_addr(*ip).name() == family.as_str())
        };
        families.iter().filter(reachable).cloned().collect()
    });
    ServiceSpec {
        ports: Some(spec.ports.iter().flatten().map(exported_port).collect()),
        cluster_ip: headless.then(|| NO_CLUSTER_IP.to_owned()),
        ip_families: families,
        session_affinity: spec.session_affinity.clone(),
        session_affinity_config: spec.session_affinity_config.clone(),
        internal_traffic_policy: spec.internal_traffic_policy.clone(),
        traffic_distribution: spec.traffic_distribution.clone(),
        ..ServiceSpec::default()
    }
}

/// The cluster IPs reachable from other clusters, at most one of each family.
fn cluster_ips(spec: &ServiceSpec, reachable: &BTreeSet<IpFamily>) -> Vec<IpAddr> {
    let many = spec.cluster_ips.iter().flatten();
    let mut seen = BTreeSet::new();
    many.chain(&spec.cluster_ip)
        .filter_map(|ip| validation::ip(ip).ok())
        .filter(|ip| reachable.contains(&IpFamily::from_addr(*ip)) && seen.insert(IpFamily::from_addr(*ip)))
        .collect()
}

fn address(ip: String) -> EndpointAddress {
    EndpointAddress {
        ip,
        ..EndpointAddress::default()
    }
}

/// A port without its node port, which is local to this cluster.
fn exported_port(port: &ServicePort) -> ServicePort {
    ServicePort {
        node_port: None,
        ..port.clone()
    }
}

fn endpoint_port(port: &ServicePort) -> EndpointPort {
    EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: port.name.clone().filter(|n| !n.is_empty()),
        port: port.port,
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
    }
}

/// The ready endpoints of a Service in the reachable IP families, one subset for each set of ports. Those of a headless
/// Service have host names.
fn pod_subsets(
    slices: &SliceIndex<'_>,
    reachable: &ReachableFamilies,
    namespace: &str,
    name: &str,
    headless: bool,
) -> Vec<EndpointSubset> {
    type Port = (Option<String>, i32, String, Option<String>);
    let mut by_ports: BTreeMap<Vec<Port>, BTreeMap<String, Option<String>>> = BTreeMap::new();
    for slice in slices.for_service(namespace, name) {
        if !reachable.pods.iter().any(|f| f.name() == slice.address_type) {
            continue;
        }
        let ports = slice.ports.iter().flatten().filter_map(|p| {
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some((
                p.name.clone().filter(|n| !n.is_empty()),
                p.port?,
                protocol,
                p.app_protocol.clone(),
            ))
        });
        let mut ports: Vec<_> = ports.collect();
        ports.sort();
        let ready = slice.endpoints.iter().filter(|e| slices::is_ready(e));
        by_ports.entry(ports).or_default().extend(ready.filter_map(|e| {
            Some((
                e.addresses.first()?.clone(),
                e.hostname.clone().filter(|_| headless),
            ))
        }));
    }
    let subset = |(ports, ips): (Vec<Port>, BTreeMap<String, Option<String>>)| EndpointSubset {
        addresses: Some(
            ips.into_iter()
                .map(|(ip, hostname)| EndpointAddress {
                    hostname,
                    ..address(ip)
                })
                .collect(),
        ),
        not_ready_addresses: None,
        ports: Some(
            ports
                .into_iter()
                .map(|(name, port, protocol, app_protocol)| EndpointPort {
                    app_protocol,
                    name,
                    port,
                    protocol: Some(protocol),
                })
                .collect(),
        ),
    };
    // A headless Service may have no ports.
    by_ports
        .into_iter()
        .filter(|(ports, ips)| (headless || !ports.is_empty()) && !ips.is_empty())
        .map(subset)
        .collect()
}
