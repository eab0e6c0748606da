//! Individually routed Pods.

use super::*;

fn pod(name: &str, node: &str, ips: &[&str]) -> Arc<PodInfo> {
    Arc::new(PodInfo {
        name: format!("default/{name}"),
        node: node.into(),
        ips: ips.iter().map(ToString::to_string).collect(),
        ..PodInfo::default()
    })
}

/// As with a cloud CNI: Pod addresses are independent of Nodes.
fn cloud() -> Objects {
    let mut objects = objects();
    for node in &mut objects.nodes {
        node.pod_cidrs.clear();
    }
    objects.pods = vec![
        pod("on-a", "a", &["10.9.0.1", "fd00:9::1"]),
        pod("on-b", "b", &["10.9.0.2"]),
        pod("elsewhere", "unknown", &["10.9.0.3"]),
    ];
    objects
}

#[test]
fn pods_without_node_cidrs_are_routed_individually() {
    let (gateway, rejected) = on("a", &cloud());
    assert_eq!(rejected, []);
    let here = [net("10.9.0.1/32"), net("fd00:9::1/128")];
    assert!(here.iter().all(|prefix| gateway.prefixes[prefix].deliver));
    let to_b = gateway.prefixes[&net("10.9.0.2/32")];
    assert_eq!((to_b.group, to_b.deliver), (stable_id("node/b"), false));
    assert!(!gateway.prefixes.contains_key(&net("10.9.0.3/32")));
    // A regular Node routes its own Pods.
    let (b, _) = on("b", &cloud());
    assert!(b.prefixes[&net("10.9.0.2/32")].deliver);
    assert!(!b.prefixes.contains_key(&net("10.9.0.1/32")));
}

#[test]
fn pods_outside_their_node_cidr_are_routed_individually() {
    let mut objects = objects();
    objects.pods = vec![
        pod("inside", "b", &["10.1.1.7"]),
        // An address in Node a's CIDR on Node b.
        pod("moved", "b", &["10.1.0.7"]),
    ];
    let (gateway, _) = on("a", &objects);
    assert!(!gateway.prefixes.contains_key(&net("10.1.1.7/32")));
    assert_eq!(gateway.prefixes[&net("10.1.0.7/32")].group, stable_id("node/b"));
    let with = |pod_lookup| {
        let me = LocalNode {
            node_name: "a".into(),
            pod_lookup,
            ..LocalNode::default()
        };
        first(&objects, &me).unwrap().0.prefixes
    };
    assert!(with(PodLookup::Pod).contains_key(&net("10.1.1.7/32")));
    assert!(!with(PodLookup::NodeCidr).contains_key(&net("10.1.0.7/32")));
}

#[test]
fn a_pod_address_has_one_owner_and_is_in_no_remote_prefix() {
    let mut objects = cloud();
    objects
        .pods
        .push(pod("thief", "b", &["10.9.0.1", "192.0.2.1", "nonsense"]));
    west(&mut objects).pod_cidrs.push("10.9.0.0/24".into());
    let (gateway, rejected) = on("a", &objects);
    let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "ClusterInfoImport west-clusterinfo: spec.podCIDRs[1]: \"10.9.0.0/24\" contains the address 10.9.0.1 of Pod default/on-a",
            "Pod default/thief: status.podIPs[0]: \"10.9.0.1\" is already the address of Pod default/on-a",
            "Pod default/thief: status.podIPs[1]: \"192.0.2.1\" is the address of Node a",
            "Pod default/thief: status.podIPs[2]: \"nonsense\" is not an IP address",
        ]
    );
    assert!(gateway.prefixes[&net("10.9.0.1/32")].deliver);
}

#[test]
fn ten_thousand_pods_are_processed_quickly() {
    let mut objects = cloud();
    objects.pods = (0..10_000_u32)
        .map(|n| {
            let [_, _, high, low] = n.to_be_bytes();
            pod(
                &format!("p{n}"),
                if n % 2 == 0 { "a" } else { "b" },
                &[&format!("10.50.{high}.{low}")],
            )
        })
        .collect();
    let (gateway, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    assert_eq!(gateway.prefixes.len(), 10_000 + 3);
}

#[test]
fn a_host_address_in_the_pod_network_is_routed_to_its_node() {
    const CALICO: &str = "projectcalico.org/IPv4VXLANTunnelAddr";
    let mut objects = objects();
    let own = |addr: &str| vec![(CALICO, addr.to_owned())];
    objects.nodes[1].host_addresses = own("10.1.77.1");
    let (gateway, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    let route = gateway.prefixes[&net("10.1.77.1/32")];
    assert_eq!(
        (route.group, route.deliver),
        (gateway.prefixes[&net("10.1.1.0/24")].group, false)
    );
    assert!(gateway.host_addresses.is_empty());
    let (node, _) = on("b", &objects);
    assert!(node.prefixes[&net("10.1.77.1/32")].deliver);
    assert_eq!(node.host_addresses, [net("10.1.77.1/32")].into());
    // In the Node's CIDR.
    objects.nodes[1].host_addresses = own("10.1.1.1");
    let (node, rejected) = on("b", &objects);
    assert_eq!((node.host_addresses.len(), rejected), (0, vec![]));
    // Of another owner.
    for (addr, reason) in [
        ("10.1.0.9", "is an address of Node a"),
        ("192.0.2.1", "is an address of Node a"),
        ("10.1.77", "is not an IP address"),
    ] {
        objects.nodes[1].host_addresses = own(addr);
        let (node, rejected) = on("b", &objects);
        assert_eq!(node.host_addresses.len(), 0, "{addr}");
        assert_eq!(rejected.len(), 1, "{addr}");
        assert_eq!(
            (rejected[0].object.as_str(), rejected[0].reason.as_str()),
            ("Node b", reason)
        );
        assert_eq!(rejected[0].field, format!("metadata.annotations[{CALICO}]"));
    }
}

#[test]
fn the_network_address_of_a_pod_cidr_is_a_fallback_if_pods_are_found_by_cidr() {
    let mut objects = objects();
    objects.nodes[1].pod_cidrs = ["10.1.1.0/24", "fd00:1::/64", "10.1.2.0/24"]
        .map(Into::into)
        .to_vec();
    let spare = |objects: &Objects, pod_lookup| {
        let me = LocalNode {
            node_name: "b".into(),
            pod_lookup,
            ..LocalNode::default()
        };
        let (desired, rejected) = first(objects, &me).unwrap();
        assert_eq!(rejected, []);
        let texts: Vec<String> = desired
            .fallback_addrs
            .iter()
            .map(|addr| addr.to_string())
            .collect();
        texts
    };
    let both = ["10.1.1.0", "fd00:1::"];
    assert_eq!(spare(&objects, PodLookup::Auto), both);
    assert_eq!(spare(&objects, PodLookup::NodeCidr), both);
    assert!(spare(&objects, PodLookup::Pod).is_empty());
    objects.pods = vec![pod("inside", "b", &["10.1.1.7"])];
    assert_eq!(spare(&objects, PodLookup::Auto), both);
    // Its IPv4 Pods are outside the CIDR, and the network address may belong to a Pod.
    objects.pods.push(pod("outside", "b", &["10.9.0.7", "fd00:1::7"]));
    assert_eq!(spare(&objects, PodLookup::Auto), ["fd00:1::"]);
    assert_eq!(spare(&objects, PodLookup::NodeCidr), both);
    objects.pods = vec![pod("elsewhere", "a", &["10.1.1.0"])];
    assert_eq!(spare(&objects, PodLookup::Auto), ["fd00:1::"]);
    objects.nodes[1].pod_cidrs = ["10.1.1.0/31", "fd00:1::7/128"].map(Into::into).to_vec();
    assert!(spare(&objects, PodLookup::NodeCidr).is_empty());
}

/// A Service that reserves an address for a Node.
fn reservation(node: &str, ips: &[&str]) -> crate::service_objects::ServiceInfo {
    crate::service_objects::ServiceInfo {
        namespace: "kube-system".into(),
        name: crate::reservation_service::service_name(node),
        cluster_ips: ips.iter().map(ToString::to_string).collect(),
        reserves: true,
        ..Default::default()
    }
}

#[test]
fn a_reserved_address_is_routed_to_its_node() {
    let mut objects = cloud();
    objects.gateways[0].service_cidr = "10.96.0.0/16,fd00:96::/108".into();
    objects.reservations = vec![
        reservation("b", &["10.96.0.77", "fd00:96::77"]),
        reservation("a", &["10.96.0.78"]),
        reservation("gone", &["10.96.0.79"]),
    ];
    let (gateway, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    for prefix in ["10.96.0.77/32", "fd00:96::77/128"] {
        let route = gateway.prefixes[&net(prefix)];
        assert_eq!((route.group, route.deliver), (stable_id("node/b"), false));
    }
    assert!(gateway.prefixes[&net("10.96.0.78/32")].deliver);
    assert!(!gateway.prefixes.contains_key(&net("10.96.0.79/32")));
    assert_eq!(gateway.fallback_addrs.v4, Some([10, 96, 0, 78].into()));
    let (b, _) = on("b", &objects);
    assert!(b.prefixes[&net("10.96.0.77/32")].deliver && b.prefixes[&net("fd00:96::77/128")].deliver);
    assert!(!b.prefixes.contains_key(&net("10.96.0.78/32")));
    assert_eq!(b.fallback_addrs.iter().count(), 2);
    assert!(b.host_addresses.is_empty(), "it is on no device of the CNI's");
    // The network address of the Node's Pod CIDR takes precedence.
    objects.nodes[1].pod_cidrs = vec!["10.1.1.0/24".into()];
    objects.pods.clear();
    let (b, _) = on("b", &objects);
    assert_eq!(b.fallback_addrs.v4, Some([10, 1, 1, 0].into()));
}

#[test]
fn reserved_addresses_are_in_the_service_range_and_of_unexported_services() {
    let mut objects = cloud();
    objects.reservations = vec![reservation("b", &["10.9.9.9", "nonsense", "10.96.0.7"])];
    let (gateway, rejected) = on("a", &objects);
    let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "Service kube-system/mc-node-b: spec.clusterIPs[0]: \"10.9.9.9\" is in no serviceCIDR of a Gateway",
            "Service kube-system/mc-node-b: spec.clusterIPs[1]: \"nonsense\" is not an IP address",
        ]
    );
    assert!(gateway.prefixes.contains_key(&net("10.96.0.7/32")));
    let exported = crate::service_objects::ExportedService {
        service: objects.reservations[0].clone(),
        slices: vec![],
    };
    objects.services = Some(vec![exported]);
    let (gateway, rejected) = on("a", &objects);
    assert!(!gateway.prefixes.contains_key(&net("10.96.0.7/32")));
    assert!(
        rejected
            .iter()
            .any(|error| error.reason.contains("must not be exported"))
    );
}
