//! Conversion of API objects to the fields of the data path, unvalidated.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mc_api::cluster_info::{ClusterInfo, ClusterInfoImport};
use mc_api::gateway::Gateway;
use mc_api::label_identity::{LabelIdentity, digest, object_name};
use mc_api::names;
use mc_api::node_key::NodeKey;
use mc_api::service_export::ServiceExport;
use mc_kube::NamespacedName;

use crate::identity_objects::{IdentityInfo, NamespaceInfo};
use crate::objects::{GatewayInfo, NodeInfo, NodeKeyInfo, RemoteCluster, RemoteGateway};
use crate::service_objects::{EndpointInfo, ServiceInfo, ServicePort, SliceInfo, SlicePort};

/// API group of Gateways and ClusterInfoImports.
pub const GROUP: &str = names::GROUP;

/// API group of ServiceExports.
pub const MCS_GROUP: &str = names::MCS_GROUP;
/// API group of EndpointSlices.
pub const DISCOVERY_GROUP: &str = "discovery.k8s.io";

/// API group of `NodeKey`s and `AddressGroupSlice`s.
pub const MC_GATEWAY_GROUP: &str = "mc-gateway.io";

/// Annotations of a Node with an address of its own in the Pod network: Calico's for its tunnel devices, and those for
/// other CNIs with Pod addresses outside `spec.podCIDRs`.
const HOST_ADDRESSES: [&str; 7] = [
    "mc-gateway.io/host-ipv4",
    "mc-gateway.io/host-ipv6",
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
    "projectcalico.org/IPv6WireguardInterfaceAddr",
];

/// A Node's name, internal addresses, Pod CIDRs and addresses in the Pod network.
#[must_use]
pub fn node(node: &Node) -> NodeInfo {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let of_type = |kind: &str| -> Vec<String> {
        let addresses = addresses.into_iter().flatten();
        let of_type = addresses.filter(|address| address.type_ == kind);
        of_type.map(|address| address.address.clone()).collect()
    };
    let mut pod_cidrs = Vec::new();
    if let Some(spec) = &node.spec {
        pod_cidrs.clone_from(spec.pod_cidrs.as_ref().unwrap_or(&Vec::new()));
        // The API server keeps both equal; manifest files may set one.
        if let Some(cidr) = spec.pod_cidr.as_ref().filter(|_| pod_cidrs.is_empty()) {
            pod_cidrs.push(cidr.clone());
        }
    }
    let annotations = node.metadata.annotations.as_ref();
    let host_addresses = HOST_ADDRESSES
        .into_iter()
        .filter_map(|name| Some((name, annotations?.get(name)?.clone())));
    NodeInfo {
        host_addresses: host_addresses.collect(),
        name: node.metadata.name.clone().unwrap_or_default(),
        internal_ips: of_type("InternalIP"),
        external_ips: of_type("ExternalIP"),
        pod_cidrs,
    }
}

/// A Gateway's addresses and Service CIDR.
#[must_use]
pub fn gateway(gateway: &Gateway) -> GatewayInfo {
    GatewayInfo {
        name: gateway.metadata.name.clone().unwrap_or_default(),
        gateway_ip: gateway.gateway_ip.clone(),
        internal_ip: gateway.internal_ip.clone(),
        service_cidr: gateway.service_cidr.clone(),
        weight: gateway.weight(),
        created: created(&gateway.metadata),
        primary: gateway.is_marked_primary(),
    }
}

/// A Namespace's name and labels.
#[must_use]
pub fn namespace(namespace: &Namespace) -> Arc<NamespaceInfo> {
    Arc::new(NamespaceInfo {
        name: namespace.metadata.name.clone().unwrap_or_default(),
        labels: namespace.metadata.labels.clone().unwrap_or_default(),
    })
}

/// The number of a `LabelIdentity`.
#[must_use]
pub fn label_identity(identity: &LabelIdentity) -> Arc<IdentityInfo> {
    Arc::new(IdentityInfo {
        name: identity.metadata.name.clone().unwrap_or_default(),
        label_name: object_name(&digest(&identity.spec.label)).to_owned(),
        id: identity.spec.id,
        label: identity.spec.label.clone(),
        clusters: identity.spec.clusters.as_deref().map(|clusters| {
            let names: BTreeSet<&String> = clusters.iter().collect();
            names.into_iter().cloned().collect()
        }),
    })
}

/// The public key in a `NodeKey`.
#[must_use]
pub fn node_key(key: &NodeKey) -> NodeKeyInfo {
    NodeKeyInfo {
        name: key.metadata.name.clone().unwrap_or_default(),
        owned: key.is_owned_by_node(),
        public_key: key.spec.public_key.clone(),
    }
}

/// RFC 3339 in UTC with whole seconds, as the API server writes it: the text sorts by time.
fn created(metadata: &ObjectMeta) -> Option<String> {
    let time = metadata.creation_timestamp.as_ref()?;
    Some(time.0.to_string())
}

/// The remote cluster of a ClusterInfoImport.
#[must_use]
pub fn remote(import: &ClusterInfoImport) -> Arc<RemoteCluster> {
    let spec = &import.spec;
    Arc::new(RemoteCluster {
        name: import.metadata.name.clone().unwrap_or_default(),
        created: created(&import.metadata),
        cluster_id: spec.cluster_id.clone(),
        service_cidr: service_cidrs(spec),
        pod_cidrs: spec.pod_cidrs.clone(),
        gateways: spec
            .gateway_infos
            .iter()
            .map(|info| RemoteGateway {
                ip: info.gateway_ip.clone(),
                weight: info.weight(),
                public_key: info.public_key.clone(),
            })
            .collect(),
    })
}

/// All Service CIDRs in one field, as in a dual-stack Gateway.
fn service_cidrs(info: &ClusterInfo) -> String {
    let cidrs: Vec<_> = info.service_cidrs().into_iter().map(|(_, cidr)| cidr).collect();
    cidrs.join(",")
}

fn namespaced(metadata: &ObjectMeta) -> NamespacedName {
    let mut name = NamespacedName::from(metadata);
    // The API server sets the namespace; manifest files may omit it.
    if name.namespace.is_empty() {
        "default".clone_into(&mut name.namespace);
    }
    name
}

/// A Service's addresses, ports and policies.
#[must_use]
pub fn service(service: &Service) -> ServiceInfo {
    let NamespacedName { namespace, name } = namespaced(&service.metadata);
    let mut info = ServiceInfo {
        namespace,
        name,
        ..ServiceInfo::default()
    };
    let (label, value) = crate::reservation_service::LABEL;
    let labels = service.metadata.labels.as_ref();
    info.reserves = labels
        .and_then(|labels| labels.get(label))
        .is_some_and(|is| is == value);
    let Some(spec) = &service.spec else { return info };
    info.cluster_ips = spec.cluster_ips.clone().unwrap_or_default();
    if info.cluster_ips.is_empty() {
        info.cluster_ips.extend(spec.cluster_ip.clone());
    }
    // A headless Service has the value "None".
    info.cluster_ips.retain(|ip| !ip.is_empty() && ip != "None");
    info.external_ips = spec.external_ips.clone().unwrap_or_default();
    let balancer = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    info.external_ips.extend(
        ingress
            .into_iter()
            .flatten()
            .filter_map(|ingress| ingress.ip.clone()),
    );
    info.affinity_seconds = affinity_seconds(spec);
    info.local_only = spec.internal_traffic_policy.as_deref() == Some("Local");
    let ports = spec.ports.iter().flatten();
    info.ports = ports
        .map(|port| ServicePort {
            name: port.name.clone().unwrap_or_default(),
            port: port.port,
            protocol: protocol(port.protocol.as_ref()),
            node_port: port.node_port.filter(|number| *number != 0),
        })
        .collect();
    info
}

/// Time-out of session affinity; without one the API server's default.
fn affinity_seconds(spec: &ServiceSpec) -> Option<i32> {
    const DEFAULT: i32 = 10_800;
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let client_ip = config.and_then(|config| config.client_ip.as_ref());
    Some(
        client_ip
            .and_then(|client_ip| client_ip.timeout_seconds)
            .unwrap_or(DEFAULT),
    )
}

/// An EndpointSlice's ports and endpoints; the Service name is empty without a Service.
#[must_use]
pub fn slice(slice: &EndpointSlice) -> SliceInfo {
    let NamespacedName { namespace, name } = namespaced(&slice.metadata);
    let labels = slice.metadata.labels.as_ref();
    let service = labels.and_then(|labels| labels.get(names::LABEL_SERVICE_NAME));
    let ports = slice.ports.iter().flatten();
    let endpoints = slice.endpoints.iter();
    SliceInfo {
        namespace,
        name,
        service: service.cloned().unwrap_or_default(),
        ports: ports
            .map(|port| SlicePort {
                name: port.name.clone().unwrap_or_default(),
                port: port.port,
                protocol: protocol(port.protocol.as_ref()),
            })
            .collect(),
        endpoints: endpoints
            .map(|endpoint| {
                let conditions = endpoint.conditions.clone().unwrap_or_default();
                // Unknown counts as ready, and serving follows ready (discovery.k8s.io/v1).
                let ready = conditions.ready.unwrap_or(true);
                EndpointInfo {
                    addresses: endpoint.addresses.clone(),
                    node: endpoint.node_name.clone(),
                    ready,
                    serving: conditions.serving.unwrap_or(ready),
                    terminating: conditions.terminating.unwrap_or(false),
                }
            })
            .collect(),
    }
}

/// The Service of a ServiceExport.
#[must_use]
pub fn export(export: &ServiceExport) -> NamespacedName {
    namespaced(&export.metadata)
}

fn protocol(value: Option<&String>) -> String {
    value.cloned().unwrap_or_else(|| "TCP".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses_are_read_from_annotations() {
        let text = "{metadata: {name: n1, annotations: {projectcalico.org/IPv4VXLANTunnelAddr: 10.0.1.7, other: x}}}";
        let node = node(&serde_yaml_ng::from_str::<Node>(text).unwrap());
        let expected = ("projectcalico.org/IPv4VXLANTunnelAddr", "10.0.1.7".to_owned());
        assert_eq!(node.host_addresses, [expected]);
    }

    #[test]
    fn pod_cidrs_take_precedence_over_pod_cidr() {
        let parse = |yaml: &str| node(&serde_yaml_ng::from_str::<Node>(yaml).unwrap());
        let status = "status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 192.0.2.1}, \
             {type: ExternalIP, address: 198.51.100.1}]}";
        let one = parse(&format!(
            "{{metadata: {{name: n1}}, spec: {{podCIDR: 10.0.1.0/24}}, {status}}}"
        ));
        assert_eq!(one.pod_cidrs, ["10.0.1.0/24"]);
        assert_eq!(one.internal_ips, ["192.0.2.1"]);
        assert_eq!(one.external_ips, ["198.51.100.1"]);
        let both = parse(
            "{metadata: {name: n1}, spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24, 'fd00::/64']}}",
        );
        assert_eq!(both.pod_cidrs, ["10.0.1.0/24", "fd00::/64"]);
    }

    #[test]
    fn services_and_slices_get_their_defaults() {
        let info = service(
            &serde_yaml_ng::from_str::<Service>(
                "{metadata: {name: web}, spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP, ports: [{port: 80}]}}",
            )
            .unwrap(),
        );
        assert_eq!((info.namespace.as_str(), info.name.as_str()), ("default", "web"));
        assert_eq!(info.cluster_ips, ["10.96.0.1"]);
        assert_eq!((info.affinity_seconds, info.local_only), (Some(10_800), false));
        assert_eq!(info.ports[0].protocol, "TCP");
        let short = service(
            &serde_yaml_ng::from_str::<Service>(
                "{metadata: {name: web}, spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP, \
                 sessionAffinityConfig: {clientIP: {timeoutSeconds: 30}}}}",
            )
            .unwrap(),
        );
        assert_eq!(short.affinity_seconds, Some(30));
        let external = service(
            &serde_yaml_ng::from_str::<Service>(
                "{metadata: {name: web}, spec: {clusterIP: 10.96.0.1, externalIPs: [192.0.2.7]}, \
                 status: {loadBalancer: {ingress: [{hostname: lb.example.com}, {ip: 198.51.100.7}]}}}",
            )
            .unwrap(),
        );
        assert_eq!(external.external_ips, ["192.0.2.7", "198.51.100.7"]);
        assert_eq!(external.cluster_ips, ["10.96.0.1"]);
        let headless = service(
            &serde_yaml_ng::from_str::<Service>(
                "{metadata: {name: web}, spec: {clusterIP: None, clusterIPs: [None]}}",
            )
            .unwrap(),
        );
        assert_eq!(headless.cluster_ips, [""; 0]);
        let slice = slice(
            &serde_yaml_ng::from_str::<EndpointSlice>(
                "{metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, \
                 ports: [{port: 8080}], endpoints: [{addresses: [10.1.0.5], nodeName: n1}, \
                 {addresses: [10.1.0.6], conditions: {ready: false, serving: true, terminating: true}}]}",
            )
            .unwrap(),
        );
        assert_eq!((slice.service.as_str(), slice.ports[0].port), ("web", Some(8080)));
        let [first, second] = &slice.endpoints[..] else {
            panic!("{slice:?}")
        };
        assert!(first.ready && first.serving && !first.terminating);
        assert_eq!(first.node.as_deref(), Some("n1"));
        assert!(!second.ready && second.serving && second.terminating);
    }
}
