//! Gateways, and what the clusters tell each other of their networks.

use kube::ResourceExt;

use super::*;
use crate::{
    api::{
        config::{GatewayIpPrecedence, GatewayMode},
        gateway::Gateway,
    },
    plan::{Kind, Op},
};

#[test]
fn one_of_several_is_gateway_in_standby_mode_and_stays_it() {
    let mut world = world();
    world.config.gateway_mode = GatewayMode::ActiveStandby;
    insert(&mut world.nodes, candidate("node-a", false, "172.18.0.1"));
    insert(&mut world.nodes, candidate("node-b", true, "172.18.0.2"));
    insert(&mut world.nodes, candidate("node-c", true, "172.18.0.3"));
    settle(&mut world);
    assert_eq!(gateway_names(&world), ["node-b"]);
    let gateway: Gateway = world.gateways.values().next().unwrap().as_ref().clone();
    assert_eq!(
        (gateway.gateway_ip.as_str(), gateway.internal_ip.as_str()),
        ("172.18.0.2", "172.18.0.2")
    );
    assert_eq!(gateway.service_cidr, "10.20.0.0/16");
    insert(&mut world.nodes, candidate("node-a", true, "172.18.0.1"));
    settle(&mut world);
    assert_eq!(gateway_names(&world), ["node-b"], "no preemption");
    insert(&mut world.nodes, candidate("node-b", false, "172.18.0.2"));
    settle(&mut world);
    assert_eq!(
        announced(&world),
        [("172.18.0.1".to_owned(), 1), ("172.18.0.2".to_owned(), 0)]
    );
    pass(&mut world, 30);
    settle(&mut world);
    assert_eq!(gateway_names(&world), ["node-a"]);
    insert(&mut world.nodes, candidate("node-a", false, "172.18.0.1"));
    insert(&mut world.nodes, candidate("node-c", false, "172.18.0.3"));
    settle(&mut world);
    pass(&mut world, 3600);
    settle(&mut world);
    assert_eq!(announced(&world), [("172.18.0.1".to_owned(), 1)], "nobody better");
    world.nodes = Objects::default();
    settle(&mut world);
    pass(&mut world, 30);
    settle(&mut world);
    assert!(gateway_names(&world).is_empty());
    let withdrawn = export(&world, "east-clusterinfo")
        .unwrap()
        .metadata
        .deletion_timestamp
        .is_some();
    assert!(withdrawn, "what is left waits for the leader's finalizer");
}

#[test]
fn without_a_drain_period_the_next_gateway_is_there_before_the_last_one_goes() {
    let mut world = world();
    world.config.gateway_mode = GatewayMode::ActiveStandby;
    world.config.drain_period = SignedDuration::ZERO;
    insert(&mut world.nodes, candidate("node-a", true, "172.18.0.1"));
    insert(&mut world.nodes, candidate("node-b", true, "172.18.0.2"));
    settle(&mut world);
    insert(&mut world.nodes, candidate("node-a", false, "172.18.0.1"));
    let plan = plan(&world);
    let gateways: Vec<_> = plan
        .actions
        .iter()
        .filter(|a| a.target.kind == Kind::Gateway)
        .collect();
    assert!(
        matches!(gateways[0].op, Op::Apply(_)) && matches!(gateways[1].op, Op::Delete { .. }),
        "add first"
    );
    settle(&mut world);
    assert_eq!(announced(&world), [("172.18.0.2".to_owned(), 1)]);
}

#[test]
fn gateways_need_no_leader() {
    let mut world = world();
    world.link = Link::Down {
        error: "no route to host".to_owned(),
    };
    world.leader = None;
    insert(&mut world.nodes, candidate("node-a", true, "172.18.0.1"));
    let local = plan(&world)
        .actions
        .into_iter()
        .filter(|a| a.target.kind == Kind::Gateway)
        .count();
    assert_eq!(local, 1);
}

#[test]
fn failover_updates_the_cluster_info_in_place() {
    let mut world = world();
    insert(&mut world.nodes, candidate("node-a", true, "172.18.0.1"));
    insert(&mut world.nodes, candidate("node-b", true, "172.18.0.2"));
    settle(&mut world);
    insert(&mut world.nodes, candidate("node-a", false, "172.18.0.1"));
    let plan = plan(&world);
    let on_export: Vec<_> = plan
        .actions
        .iter()
        .filter(|a| a.target.kind == Kind::ResourceExport)
        .collect();
    assert!(
        matches!(on_export[..], [Action { op: Op::Apply(_), .. }]),
        "{on_export:?}"
    );
}

#[test]
fn a_node_without_a_usable_address_is_no_gateway_and_the_log_says_why() {
    let annotated = |value: &'static str| {
        vec![
            (names::ANNOTATION_GATEWAY, ""),
            (names::ANNOTATION_GATEWAY_IP, value),
        ]
    };
    let internal = vec![("InternalIP", "172.18.0.1")];
    let only = |t: &'static str, a: &'static str| vec![(t, a)];
    let candidate = vec![(names::ANNOTATION_GATEWAY, "true")];
    let cases = [
        (
            candidate.clone(),
            only("Hostname", "node"),
            GatewayIpPrecedence::Internal,
            "no IPv4 InternalIP",
        ),
        (
            candidate.clone(),
            only("InternalIP", "fd00::1"),
            GatewayIpPrecedence::Internal,
            "no IPv4 InternalIP",
        ),
        (
            candidate.clone(),
            internal.clone(),
            GatewayIpPrecedence::External,
            "no IPv4 ExternalIP",
        ),
        (
            annotated("172.18.0"),
            internal.clone(),
            GatewayIpPrecedence::Internal,
            "gateway-ip: \"172.18.0\" is not an IP",
        ),
        (
            annotated("::ffff:10.0.0.1"),
            internal.clone(),
            GatewayIpPrecedence::Internal,
            "\"::ffff:10.0.0.1\" is an IPv4-mapped",
        ),
        (
            annotated("0.0.0.0"),
            internal.clone(),
            GatewayIpPrecedence::Internal,
            "\"0.0.0.0\" is not an address another",
        ),
        (
            annotated("fd00::1"),
            internal,
            GatewayIpPrecedence::Internal,
            "\"fd00::1\" is not IPv4",
        ),
    ];
    for (annotations, addresses, precedence, message) in cases {
        let mut world = world();
        world.config.precedence = precedence;
        insert(&mut world.nodes, node("node-a", true, &annotations, &addresses));
        says(&plan(&world), message);
        says(&plan(&world), "Node node-a");
        settle(&mut world);
        assert!(world.gateways.is_empty(), "{message}");
    }
}

#[test]
fn the_annotation_and_the_precedence_choose_the_gateway_ip() {
    let addresses = [("InternalIP", "172.18.0.1"), ("ExternalIP", "203.0.113.1")];
    for (extra, precedence, wanted) in [
        (None, GatewayIpPrecedence::Internal, "172.18.0.1"),
        (None, GatewayIpPrecedence::External, "203.0.113.1"),
        (
            Some("198.51.100.1"),
            GatewayIpPrecedence::External,
            "198.51.100.1",
        ),
    ] {
        let mut annotations = vec![(names::ANNOTATION_GATEWAY, "true")];
        annotations.extend(extra.map(|ip| (names::ANNOTATION_GATEWAY_IP, ip)));
        let mut world = world();
        world.config.precedence = precedence;
        insert(&mut world.nodes, node("node-a", true, &annotations, &addresses));
        settle(&mut world);
        let gateway = world.gateways.values().next().unwrap();
        assert_eq!(
            (gateway.gateway_ip.as_str(), gateway.internal_ip.as_str()),
            (wanted, "172.18.0.1")
        );
    }
}

#[test]
fn pod_cidrs_are_configured_or_those_of_the_nodes_joined() {
    let mut world = world();
    for name in ["aa", "bbb", "cccc"] {
        insert(&mut world.nodes, candidate(name, true, "172.18.0.1"));
    }
    settle(&mut world);
    let info = |w: &MemberWorld| {
        export(w, "east-clusterinfo")
            .unwrap()
            .spec
            .cluster_info
            .clone()
            .unwrap()
    };
    assert_eq!(info(&world).pod_cidrs, ["10.11.2.0/23", "10.11.4.0/24"]);
    assert_eq!(info(&world).service_cidr, "10.20.0.0/16");
    world.config.pod_cidrs = vec!["10.11.0.0/16".parse().unwrap()];
    settle(&mut world);
    assert_eq!(info(&world).pod_cidrs, ["10.11.0.0/16"]);
}

#[test]
fn other_clusters_are_imported_and_our_own_is_not() {
    let mut world = world();
    insert(
        &mut leader(&mut world).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    insert(
        &mut leader(&mut world).imports,
        import_info("east", "10.20.0.0/16", &["172.18.0.1"]),
    );
    settle(&mut world);
    let names: Vec<_> = world.cluster_infos.values().map(|c| c.name_any()).collect();
    assert_eq!(names, ["west-clusterinfo"]);
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    assert!(world.cluster_infos.is_empty());
}

#[test]
fn prefixes_that_cannot_be_used_are_named() {
    let cases = [
        (
            "10.20.128.0/17",
            vec!["172.18.0.9"],
            "spec.serviceCIDR: 10.20.128.0/17 overlaps this cluster's Service CIDR, 10.20.0.0/16",
        ),
        (
            "10.30.0/16",
            vec!["172.18.0.9"],
            "spec.serviceCIDR: \"10.30.0/16\" is not a CIDR",
        ),
        (
            "::ffff:10.0.0.0/104",
            vec!["172.18.0.9"],
            "is an IPv4-mapped IPv6 value",
        ),
        ("10.40.0.0/16", vec![], "spec.gatewayInfos is empty"),
        (
            "10.40.0.0/16",
            vec!["x"],
            "spec.gatewayInfos[0].gatewayIP: \"x\" is not an IP address",
        ),
        (
            "10.30.0.0/16",
            vec!["172.18.0.9"],
            "overlaps spec.serviceCIDR of cluster \"south\", 10.30.0.0/16",
        ),
    ];
    for (cidr, gateways, message) in cases {
        let mut world = world();
        insert(
            &mut leader(&mut world).imports,
            import_info("south", "10.30.0.0/16", &["172.18.0.8"]),
        );
        insert(
            &mut leader(&mut world).imports,
            import_info("west", cidr, &gateways),
        );
        says(&plan(&world), message);
        says(&plan(&world), "ClusterInfoImport west-clusterinfo");
        settle(&mut world);
        assert_eq!(world.cluster_infos.len(), 2, "the gateways are told all the same");
    }
}
