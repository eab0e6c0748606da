//! Exported Services as backends of gateways and regular Nodes.

use mc_gateway_common::abi::Addr;
use mc_gateway_common::maglev;

use super::*;
use crate::service_objects::{SliceInfo, SlicePort};

fn endpoint(addr: &str, node: &str, ready: bool) -> EndpointInfo {
    EndpointInfo {
        addresses: vec![addr.into()],
        node: (!node.is_empty()).then(|| node.to_owned()),
        ready,
        serving: ready,
        terminating: false,
    }
}

fn web(endpoints: Vec<EndpointInfo>) -> ExportedService {
    let service = ServiceInfo {
        namespace: "shop".into(),
        name: "web".into(),
        cluster_ips: vec!["10.96.0.10".into(), "fd00:96::10".into()],
        ports: vec![
            ServicePort {
                name: "http".into(),
                port: 80,
                protocol: "TCP".into(),
                node_port: None,
            },
            ServicePort {
                name: "dns".into(),
                port: 53,
                protocol: "UDP".into(),
                node_port: None,
            },
        ],
        ..ServiceInfo::default()
    };
    let port = |name: &str, port, protocol: &str| SlicePort {
        name: name.into(),
        port: Some(port),
        protocol: protocol.into(),
    };
    let slice = SliceInfo {
        namespace: "shop".into(),
        name: "web-1".into(),
        service: "web".into(),
        ports: vec![port("http", 8080, "TCP"), port("dns", 5353, "UDP")],
        endpoints,
    };
    ExportedService {
        service,
        slices: vec![slice],
    }
}

fn key(addr: &str, port: u16, proto: u8) -> ServiceKey {
    ServiceKey {
        addr: to_abi_addr(addr.parse().unwrap()),
        port,
        proto,
        generation: 0,
    }
}

/// As gateway `gw` of a cluster with a regular Node `n`, or as that Node.
fn read_at(node: &str, exported: &[ExportedService]) -> (Services, Vec<String>) {
    let nets = [["10.1.0.0/24".parse().unwrap()], ["10.1.1.0/24".parse().unwrap()]];
    let group = |name: &str| Some(if name == node { 0 } else { 77 });
    let homes = [
        NodeRef {
            name: "gw",
            pod_cidrs: &nets[0],
            group: group("gw"),
        },
        NodeRef {
            name: "n",
            pod_cidrs: &nets[1],
            group: group("n"),
        },
        NodeRef {
            name: "lost",
            pod_cidrs: &[],
            group: None,
        },
    ];
    let homes = homes.into_iter().collect();
    let (services, rejected) = build(exported, &homes, node == "gw");
    (services, rejected.iter().map(ToString::to_string).collect())
}

/// The ports that are not left to the service proxy.
fn translated(services: &Services) -> BTreeMap<ServiceKey, Service> {
    let ports = services.services.iter().filter(|(_, port)| !port.stack);
    ports.map(|(key, port)| (*key, port.clone())).collect()
}

#[test]
fn a_gateway_gets_every_port_with_its_ready_endpoints() {
    let exported = web(vec![
        endpoint("10.1.1.5", "n", true),
        endpoint("10.1.0.5", "gw", true),
        endpoint("10.1.1.6", "n", false),
    ]);
    let (services, rejected) = read_at("gw", &[exported]);
    assert_eq!(rejected, [""; 0]);
    let keys: Vec<_> = translated(&services).into_keys().collect();
    assert_eq!(keys, [key("10.96.0.10", 53, 17), key("10.96.0.10", 80, 6)]);
    let http = &services.services[&keys[1]];
    assert_eq!(http.backends.len(), 2, "the third one is not ready");
    assert_eq!(services.backends.len(), 6, "but keeps its existing flows");
    let groups: Vec<u32> = http
        .backends
        .iter()
        .map(|id| services.backends[id].group)
        .collect();
    assert!(groups.contains(&0) && groups.contains(&77), "{groups:?}");
    let backend = services.backends[http.backends.first().unwrap()];
    assert_eq!((backend.service_port, backend.pod_port), (80, 8080));
}

#[test]
fn a_regular_node_gets_its_own_pods_ready_or_not() {
    let exported = web(vec![
        endpoint("10.1.1.5", "n", false),
        endpoint("10.1.1.7", "", true),
        endpoint("10.1.0.5", "gw", true),
        endpoint("10.9.9.9", "lost", true),
    ]);
    let (services, rejected) = read_at("n", &[exported]);
    assert_eq!(services.services, BTreeMap::new());
    assert_eq!(
        services.backends.len(),
        4,
        "two Pods with two ports: {services:?}"
    );
    assert!(services.backends.values().all(|backend| backend.group == 0));
    assert_eq!(rejected, [""; 0], "only gateways report rejections");
}

#[test]
fn gateways_and_nodes_give_a_backend_the_same_id() {
    let exported = [web(vec![endpoint("10.1.1.5", "n", true)])];
    let ids = |node| {
        read_at(node, &exported)
            .0
            .backends
            .into_keys()
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("gw"), ids("n"));
    assert!(ids("gw").iter().all(|id| *id != 0 && *id >> 40 == 0));
}

#[test]
fn terminating_pods_are_used_if_no_pod_is_ready() {
    let mut ending = endpoint("10.1.1.5", "n", false);
    ending.serving = true;
    ending.terminating = true;
    let (services, _) = read_at("gw", &[web(vec![ending.clone()])]);
    assert_eq!(services.services[&key("10.96.0.10", 80, 6)].backends.len(), 1);
    let (services, _) = read_at("gw", &[web(vec![ending, endpoint("10.1.1.6", "n", true)])]);
    let http = &services.services[&key("10.96.0.10", 80, 6)];
    let pods: Vec<Addr> = http.backends.iter().map(|id| services.backends[id].pod).collect();
    assert_eq!(pods, [to_abi_addr("10.1.1.6".parse().unwrap())]);
}

/// The entry was removed, and open connections were rejected by the service proxy.
#[test]
fn a_port_without_ready_endpoints_serves_existing_flows() {
    let (services, rejected) = read_at("gw", &[web(vec![endpoint("10.1.1.5", "n", false)])]);
    let http = &services.services[&key("10.96.0.10", 80, 6)];
    assert_eq!(http.backends, BTreeSet::new());
    assert_eq!(services.backends.len(), 2, "one per port");
    assert_eq!(rejected, [""; 0], "not an error");
    let (services, _) = read_at("gw", &[web(vec![])]);
    assert!(translated(&services).is_empty(), "no flow can exist");
    assert_eq!(
        services.services.len(),
        4,
        "the service proxy rejects connections"
    );
}

/// One endpoint on an unknown Node removed the whole port, with its established connections.
#[test]
fn an_endpoint_on_no_reachable_node_is_left_out_alone() {
    let lost = web(vec![
        endpoint("10.1.1.5", "n", true),
        endpoint("10.9.9.9", "lost", true),
    ]);
    let (services, rejected) = read_at("gw", &[lost]);
    let http = &services.services[&key("10.96.0.10", 80, 6)];
    let pods: Vec<Addr> = http.backends.iter().map(|id| services.backends[id].pod).collect();
    assert_eq!(pods, [to_abi_addr("10.1.1.5".parse().unwrap())]);
    assert!(
        rejected[0].contains("\"10.9.9.9\" is an endpoint on no reachable Node: it gets no flows"),
        "{rejected:?}"
    );
}

#[test]
fn untranslatable_ports_are_rejected_with_a_reason() {
    let mut local = web(vec![endpoint("10.1.1.5", "n", true)]);
    local.service.local_only = true;
    local.service.cluster_ips.truncate(1);
    let (services, rejected) = read_at("gw", &[local]);
    assert!(translated(&services).is_empty());
    assert_eq!(
        services.services.len(),
        2,
        "both ports are exported: {services:?}"
    );
    let keeps = services.backends.values().all(|backend| backend.flags == 0);
    assert!(
        keeps && services.backends.len() == 2,
        "existing connections: {services:?}"
    );
    assert_eq!(
        rejected,
        [
            "Service shop/web: spec.internalTrafficPolicy: \"Local\" keeps requests on the node they arrive at: \
          left to the service proxy, which hides the client's address"
        ]
    );

    let mut sctp = web(vec![endpoint("10.1.1.5", "n", true)]);
    sctp.service.ports[1].protocol = "SCTP".into();
    sctp.slices[0].ports[1].protocol = "SCTP".into();
    let (services, rejected) = read_at("gw", &[sctp]);
    assert_eq!(translated(&services).len(), 1, "the other port is translated");
    assert!(
        services.services[&key("10.96.0.10", 53, 132)].stack,
        "{services:?}"
    );
    assert!(
        rejected[0].contains("spec.ports[dns]: \"SCTP 53\" is neither TCP nor UDP"),
        "{rejected:?}"
    );

    let lost = web(vec![endpoint("10.9.9.9", "lost", true)]);
    let (services, rejected) = read_at("gw", &[lost]);
    assert!(translated(&services).is_empty());
    assert!(
        rejected[0].contains("\"10.9.9.9\" is an endpoint on no reachable Node: left to"),
        "{rejected:?}"
    );
}

/// `n` endpoints on the gateway.
fn endpoints_at_gateway(n: u32) -> Vec<EndpointInfo> {
    let first = u32::from(std::net::Ipv4Addr::new(10, 16, 0, 0));
    let addr = |n: u32| std::net::Ipv4Addr::from(first + n).to_string();
    (0..n).map(|n| endpoint(&addr(n), "gw", true)).collect()
}

#[test]
fn more_endpoints_than_lookup_table_entries_are_reported() {
    let many = u32::try_from(MAGLEV_ENTRIES).unwrap() + 1;
    let mut exported = web(endpoints_at_gateway(many));
    exported.service.ports.truncate(1);
    let (services, rejected) = read_at("gw", &[exported]);
    assert_eq!(services.services[&key("10.96.0.10", 80, 6)].backends.len(), 510);
    assert_eq!(
        rejected,
        [
            "Service shop/web: spec.ports[http]: \"80\" has 510 ready endpoints, of which 509 get flows from other clusters"
        ]
    );
}

/// The endpoints that are left out depend on the Service: no Pod is unused by all its Services.
#[test]
fn services_with_too_many_endpoints_leave_out_different_ones() {
    let many = u32::try_from(MAGLEV_ENTRIES).unwrap() + 91;
    let mut exported = web(endpoints_at_gateway(many));
    exported.service.cluster_ips = vec!["10.96.0.10".into(), "10.96.0.11".into()];
    exported.service.ports.truncate(1);
    let (services, _) = read_at("gw", &[exported]);
    let unused = |address: &str| -> BTreeSet<Addr> {
        let ids = &services.services[&key(address, 80, 6)].backends;
        let served: BTreeSet<u64> = maglev::served(ids).collect();
        ids.difference(&served)
            .map(|id| services.backends[id].pod)
            .collect()
    };
    let (first, second) = (unused("10.96.0.10"), unused("10.96.0.11"));
    assert_eq!((first.len(), second.len()), (91, 91));
    let both = first.intersection(&second).count();
    println!("{both} of 600 endpoints are unused by both Services, 14 expected");
    assert!(both < 40, "{both}");
}

#[test]
fn a_port_beyond_the_capacity_is_rejected_alone() {
    let mut huge = web(endpoints_at_gateway(MAX_BACKENDS));
    huge.service.ports.truncate(1);
    let mut small = web(vec![endpoint("10.1.1.5", "n", true)]);
    small.service.name = "small".into();
    small.service.cluster_ips = vec!["10.96.0.11".into()];
    let (services, rejected) = read_at("gw", &[small, huge]);
    assert_eq!(translated(&services).len(), 2, "both ports of the small one");
    let [error] = &rejected[..] else {
        panic!("{rejected:?}")
    };
    assert!(
        error.contains("exceeds the capacity") && error.contains("left to the service proxy"),
        "{error}"
    );
}

#[test]
fn client_ip_affinity_is_kept_with_its_timeout() {
    let mut exported = web(vec![endpoint("10.1.1.5", "n", true)]);
    exported.service.affinity_seconds = Some(30);
    let (services, rejected) = read_at("gw", &[exported]);
    assert_eq!(rejected, [""; 0]);
    assert!(
        translated(&services)
            .values()
            .all(|service| service.affinity == Some(30))
    );
}

#[test]
fn a_timeout_that_the_api_server_refuses_is_reported_and_replaced() {
    for (stated, used) in [(0, 1), (-5, 1), (100_000, 86_400)] {
        let mut exported = web(vec![endpoint("10.1.1.5", "n", true)]);
        exported.service.affinity_seconds = Some(stated);
        let (services, rejected) = read_at("gw", &[exported]);
        assert!(
            translated(&services)
                .values()
                .all(|service| service.affinity == Some(used))
        );
        assert!(
            rejected[0].contains(&format!(
                "\"{stated}\" is not between 1 and 86400: {used} instead"
            )),
            "{rejected:?}"
        );
    }
}

/// Ports that the programs do not translate were unknown to them, like ports that are not exported.
#[test]
fn every_exported_port_is_known_at_a_gateway() {
    let mut exported = web(vec![
        endpoint("10.1.1.5", "n", true),
        endpoint("10.9.9.9", "lost", true),
    ]);
    exported.service.ports[1].protocol = "SCTP".into();
    let (services, _) = read_at("gw", &[exported.clone()]);
    let keys: Vec<_> = services.services.keys().copied().collect();
    let expected = ["10.96.0.10", "fd00:96::10"].map(|addr| [key(addr, 53, 132), key(addr, 80, 6)]);
    assert_eq!(keys, expected.concat());
    let mut unknown = exported;
    unknown.service.ports[1].protocol = "UDPLITE".into();
    let (services, rejected) = read_at("gw", &[unknown]);
    assert_eq!(services.services.len(), 2);
    assert!(
        rejected[1].contains("\"UDPLITE 53\" is no port of TCP, UDP or SCTP: dropped"),
        "{rejected:?}"
    );
}

#[test]
fn a_port_beyond_the_capacity_of_services_is_reported_as_dropped() {
    let capacity = u16::try_from(MAX_SERVICES).unwrap();
    let mut huge = web(vec![]);
    huge.service.cluster_ips.truncate(1);
    let port = |port: u16| ServicePort {
        name: port.to_string(),
        port: port.into(),
        protocol: "TCP".into(),
        node_port: None,
    };
    huge.service.ports = (1..=capacity + 1).map(port).collect();
    let (services, rejected) = read_at("gw", &[huge]);
    assert_eq!(services.services.len(), usize::from(capacity));
    assert_eq!(
        rejected,
        [
            "Service shop/web: spec.ports[16385]: \"16385\" exceeds the capacity of 16384 Service ports: dropped"
        ]
    );
}
