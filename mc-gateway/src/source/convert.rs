//! From API objects to the few fields the data path needs, as written.

use controller::api::cluster_info::ClusterInfoImport;
use controller::api::gateway::Gateway;
use k8s_openapi::api::core::v1::Node;

use crate::objects::{GatewayInfo, NodeInfo, RemoteCluster, RemoteGateway};

/// API group of Gateways and ClusterInfoImports.
pub const GROUP: &str = controller::api::names::GROUP;

/// Annotations of a Node that hold an address of its own among the Pods': Calico's for its tunnel devices,
/// and ours for other CNIs whose Pods' addresses do not follow `spec.podCIDRs`.
const HOST_ADDRESSES: [&str; 7] = [
    "mc-gateway.io/host-ipv4",
    "mc-gateway.io/host-ipv6",
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
    "projectcalico.org/IPv6WireguardInterfaceAddr",
];

/// A Node's name, internal addresses, Pod CIDRs and addresses among Pods.
#[must_use]
pub fn node(node: &Node) -> NodeInfo {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let internal = addresses
        .into_iter()
        .flatten()
        .filter(|address| address.type_ == "InternalIP");
    let mut pod_cidrs = Vec::new();
    if let Some(spec) = &node.spec {
        pod_cidrs.clone_from(spec.pod_cidrs.as_ref().unwrap_or(&Vec::new()));
        // The API server keeps both equal; people who write a file fill in one.
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
        internal_ips: internal.map(|address| address.address.clone()).collect(),
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
    }
}

/// What a ClusterInfoImport says about another cluster.
#[must_use]
pub fn remote(import: &ClusterInfoImport) -> RemoteCluster {
    let spec = &import.spec;
    let created = import.metadata.creation_timestamp.as_ref();
    RemoteCluster {
        name: import.metadata.name.clone().unwrap_or_default(),
        // RFC 3339 in UTC with whole seconds, as the API server writes it: sorts as text.
        created: created.map(|time| time.0.to_string()),
        cluster_id: spec.cluster_id.clone(),
        service_cidr: spec.service_cidr.clone(),
        pod_cidrs: spec.pod_cidrs.clone(),
        gateways: spec
            .gateway_infos
            .iter()
            .map(|info| RemoteGateway {
                ip: info.gateway_ip.clone(),
                weight: info.weight(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_tunnel_device_of_its_cni() {
        let text = "{metadata: {name: n1, annotations: {projectcalico.org/IPv4VXLANTunnelAddr: 10.0.1.7, other: x}}}";
        let node = node(&serde_yaml_ng::from_str::<Node>(text).unwrap());
        let expected = ("projectcalico.org/IPv4VXLANTunnelAddr", "10.0.1.7".to_owned());
        assert_eq!(node.host_addresses, [expected]);
    }

    #[test]
    fn a_node_with_both_kinds_of_cidr_fields() {
        let parse = |yaml: &str| node(&serde_yaml_ng::from_str::<Node>(yaml).unwrap());
        let status =
            "status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 192.0.2.1}]}";
        let one = parse(&format!(
            "{{metadata: {{name: n1}}, spec: {{podCIDR: 10.0.1.0/24}}, {status}}}"
        ));
        assert_eq!(one.pod_cidrs, ["10.0.1.0/24"]);
        assert_eq!(one.internal_ips, ["192.0.2.1"]);
        let both = parse(
            "{metadata: {name: n1}, spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24, 'fd00::/64']}}",
        );
        assert_eq!(both.pod_cidrs, ["10.0.1.0/24", "fd00::/64"]);
    }
}
