//! Pods of the agent's cache, and those that it watches.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use mc_api::label_identity::{LabelKeyFilter, join_labels};
use mc_gateway_common::packet::ip;
use mc_kube::pod::Pod;

use crate::cidr::parse_prefix;
use crate::config::PodLookup;
use crate::ids::stable_id;
use crate::objects::{GatewayInfo, NamedPort, NodeInfo, PodInfo};

/// Node and addresses of a Pod; no addresses while it has none of its own.
#[must_use]
pub fn convert(pod: &Pod) -> Arc<PodInfo> {
    let mut ips = Vec::new();
    // Otherwise the first address allocates memory for four.
    let addresses = pod.own_addresses();
    ips.reserve_exact(addresses.len());
    ips.extend(addresses.map(str::to_owned));
    let name = format!("{}/{}", pod.namespace(), pod.name());
    Arc::new(PodInfo {
        instance: stable_id(&format!("{name} {}", pod.uid())),
        name,
        node: pod.node().to_owned(),
        ips,
        labels: join_labels(pod.labels(), &LabelKeyFilter::default()).into(),
        service_account: pod.service_account().into(),
        ports: pod
            .ports()
            .filter_map(|port| named_port(&port.name, port.protocol(), port.number))
            .collect(),
    })
}

/// The port, if it has a name and a known protocol.
pub(super) fn named_port(name: &str, protocol: &str, number: u16) -> Option<NamedPort> {
    let protocol = match protocol {
        "TCP" => ip::TCP,
        "UDP" => ip::UDP,
        "SCTP" => ip::SCTP,
        _ => return None,
    };
    (!name.is_empty()).then(|| NamedPort {
        name: name.to_owned(),
        protocol,
        number,
    })
}

/// Pods that an agent watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PodScope {
    /// None.
    #[default]
    None,
    /// Those of the local Node.
    Node,
    /// All.
    Cluster,
}

/// Pods that the agent on Node `own` watches; `now` is its current scope. Every agent watches the Pods of its Node,
/// which show whether addresses are in Node CIDRs; if not, a gateway watches all from then on. Where the cluster has
/// label `identities` or policies are enforced, no agent can do without the `labels` of its Node's Pods.
pub(super) fn scope<'a>(
    lookup: PodLookup,
    now: PodScope,
    own: &str,
    nodes: &BTreeMap<String, NodeInfo>,
    gateways: &BTreeMap<String, GatewayInfo>,
    labels: bool,
    mut pods: impl Iterator<Item = &'a Arc<PodInfo>>,
) -> PodScope {
    let outside = |pod: &Arc<PodInfo>| {
        let nets = nodes.get(&pod.node).into_iter().flat_map(|node| &node.pod_cidrs);
        let nets: Vec<_> = nets.filter_map(|text| parse_prefix(text).ok()).collect();
        let mut ips = pod.ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok());
        ips.any(|ip| !nets.iter().any(|net| net.contains(&ip)))
    };
    match lookup {
        PodLookup::NodeCidr if labels => PodScope::Node,
        PodLookup::NodeCidr => PodScope::None,
        _ if !gateways.contains_key(own) => PodScope::Node,
        PodLookup::Pod => PodScope::Cluster,
        PodLookup::Auto if now == PodScope::Cluster => PodScope::Cluster,
        PodLookup::Auto if nodes.values().any(|node| node.pod_cidrs.is_empty()) => PodScope::Cluster,
        PodLookup::Auto if pods.any(outside) => PodScope::Cluster,
        PodLookup::Auto => PodScope::Node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(yaml: &str) -> Arc<PodInfo> {
        convert(&serde_yaml_ng::from_str(yaml).unwrap())
    }

    #[test]
    fn only_running_pods_with_their_own_address_are_used() {
        let running = pod(
            "{metadata: {name: p, namespace: n, labels: {c: d, a: b}}, spec: {nodeName: a, containers: []}, \
             status: {phase: Running, podIP: 10.9.0.1, podIPs: [{ip: 10.9.0.1}, {ip: 'fd00:9::1'}]}}",
        );
        assert_eq!((running.name.as_str(), running.node.as_str()), ("n/p", "a"));
        assert_eq!(running.ips, ["10.9.0.1", "fd00:9::1"]);
        assert_eq!(&*running.labels, "a=b,c=d");
        assert_eq!(&*running.service_account, "default");
        let named = pod("{metadata: {name: p}, spec: {nodeName: a, serviceAccountName: job}}");
        assert_eq!(&*named.service_account, "job");
        let ports = pod(
            "{metadata: {name: p}, spec: {nodeName: a, containers: [{ports: [{name: dns, containerPort: 53, protocol: UDP}, \
             {containerPort: 80}]}, {ports: [{name: http, containerPort: 8080}]}]}}",
        );
        let named = |name: &str, protocol, number| NamedPort {
            name: name.to_owned(),
            protocol,
            number,
        };
        assert_eq!(
            ports.ports,
            [named("dns", ip::UDP, 53), named("http", ip::TCP, 8080)]
        );
        for none in [
            "{metadata: {name: p}, spec: {nodeName: a, hostNetwork: true}, status: {podIP: 192.0.2.1}}",
            "{metadata: {name: p}, spec: {nodeName: a}, status: {phase: Succeeded, podIP: 10.9.0.1}}",
            "{metadata: {name: p}, spec: {}, status: {phase: Pending}}",
        ] {
            assert!(pod(none).ips.is_empty(), "{none}");
        }
    }

    #[test]
    fn another_pod_is_another_instance() {
        let of = |meta: &str| pod(&format!("{{metadata: {{{meta}}}, spec: {{nodeName: a}}}}")).instance;
        let first = of("name: p, uid: a, labels: {c: d}");
        assert_eq!(
            of("name: p, uid: a, labels: {c: e}"),
            first,
            "the Pod has other labels"
        );
        assert_ne!(of("name: p, uid: b, labels: {c: d}"), first);
        // Manifest files have no UID.
        assert_ne!(of("name: p"), of("name: q"));
    }

    #[test]
    fn all_pods_are_watched_only_on_a_gateway_that_needs_them() {
        use PodLookup::{Auto, NodeCidr, Pod};
        let nodes = |cidrs: &[&str]| {
            let node = NodeInfo {
                host_addresses: Vec::new(),
                name: "a".into(),
                pod_cidrs: cidrs.iter().map(ToString::to_string).collect(),
                ..NodeInfo::default()
            };
            BTreeMap::from([("a".to_owned(), node)])
        };
        let (with, without) = (nodes(&["10.1.0.0/24"]), nodes(&[]));
        let none = BTreeMap::new();
        let gateways = BTreeMap::from([("a".to_owned(), GatewayInfo::default())]);
        let of = |lookup, now, nodes, gateways, ip: &str| {
            let pod = PodInfo {
                name: "n/p".into(),
                node: "a".into(),
                ips: vec![ip.into()],
                ..PodInfo::default()
            };
            scope(lookup, now, "a", nodes, gateways, false, [Arc::new(pod)].iter())
        };
        let (inside, outside) = ("10.1.0.7", "10.9.0.1");
        let now = PodScope::None;
        assert_eq!(of(NodeCidr, now, &without, &gateways, outside), PodScope::None);
        assert_eq!(of(Auto, now, &without, &none, outside), PodScope::Node);
        assert_eq!(of(Pod, now, &with, &none, inside), PodScope::Node);
        assert_eq!(of(Pod, now, &with, &gateways, inside), PodScope::Cluster);
        assert_eq!(of(Auto, now, &without, &gateways, inside), PodScope::Cluster);
        assert_eq!(of(Auto, now, &with, &gateways, inside), PodScope::Node);
        assert_eq!(of(Auto, now, &with, &gateways, outside), PodScope::Cluster);
        assert_eq!(
            of(Auto, PodScope::Cluster, &with, &gateways, inside),
            PodScope::Cluster
        );
        let with_identities = scope(NodeCidr, now, "a", &with, &gateways, true, [].iter());
        assert_eq!(with_identities, PodScope::Node);
    }
}
