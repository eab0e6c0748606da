//! Gateways and `ClusterInfo`s.

use kube::ResourceExt;
use mc_api::{
    config::{GatewayIpPrecedence, GatewayMode},
    gateway::Gateway,
    node_key::NodeKey,
};

use super::*;
use crate::plan::{Kind, WriteOp};

#[test]
fn standby_mode_keeps_one_gateway_without_preemption() {
    let mut snapshot = snapshot();
    snapshot.config.gateway_mode = GatewayMode::ActiveStandby;
    insert(&mut snapshot.nodes, candidate("node-a", false, "172.18.0.1"));
    insert(&mut snapshot.nodes, candidate("node-b", true, "172.18.0.2"));
    insert(&mut snapshot.nodes, candidate("node-c", true, "172.18.0.3"));
    settle(&mut snapshot);
    assert_eq!(gateway_names(&snapshot), ["node-b"]);
    let gateway: Gateway = snapshot.gateways.values().next().unwrap().as_ref().clone();
    assert_eq!(
        (gateway.gateway_ip.as_str(), gateway.internal_ip.as_str()),
        ("172.18.0.2", "172.18.0.2")
    );
    assert_eq!(gateway.service_cidr, "10.20.0.0/16");
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    settle(&mut snapshot);
    assert_eq!(gateway_names(&snapshot), ["node-b"], "no preemption");
    insert(&mut snapshot.nodes, candidate("node-b", false, "172.18.0.2"));
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot),
        [("172.18.0.1".to_owned(), 1), ("172.18.0.2".to_owned(), 0)]
    );
    advance(&mut snapshot, 30);
    settle(&mut snapshot);
    assert_eq!(gateway_names(&snapshot), ["node-a"]);
    insert(&mut snapshot.nodes, candidate("node-a", false, "172.18.0.1"));
    insert(&mut snapshot.nodes, candidate("node-c", false, "172.18.0.3"));
    settle(&mut snapshot);
    advance(&mut snapshot, 3600);
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot),
        [("172.18.0.1".to_owned(), 1)],
        "no candidate is ready"
    );
    snapshot.nodes = ObjectMap::default();
    settle(&mut snapshot);
    advance(&mut snapshot, 30);
    settle(&mut snapshot);
    assert!(gateway_names(&snapshot).is_empty());
    let withdrawn = export(&snapshot, "east-clusterinfo")
        .unwrap()
        .metadata
        .deletion_timestamp
        .is_some();
    assert!(withdrawn, "the leader's finalizer delays the deletion");
}

#[test]
fn the_public_key_of_a_node_reaches_its_gateway_and_the_other_clusters() {
    let keys = |snapshot: &MemberSnapshot| -> Vec<String> {
        let exported = export(snapshot, "east-clusterinfo").unwrap();
        let info = exported.spec.cluster_info.as_ref().unwrap();
        info.gateway_infos
            .iter()
            .map(|gateway| gateway.public_key.clone())
            .collect()
    };
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    settle(&mut snapshot);
    assert_eq!(keys(&snapshot), [""]);
    let key = |node: &str, text: &str| {
        let mut key = NodeKey::of_node(node, "uid", text.to_owned());
        key.metadata.namespace = Some(snapshot.namespace.clone());
        key
    };
    let (own, mut other) = (key("node-a", "key of a"), key("node-a", "another key"));
    other.metadata.owner_references = None;
    insert(&mut snapshot.node_keys, other);
    settle(&mut snapshot);
    assert_eq!(keys(&snapshot), [""], "the Node does not own the key");
    insert(&mut snapshot.node_keys, own);
    settle(&mut snapshot);
    assert_eq!(keys(&snapshot), ["key of a"]);
    let gateway = snapshot.gateways.values().next().unwrap();
    assert_eq!(gateway.public_key, "key of a");
}

#[test]
fn without_a_drain_period_the_successor_is_created_first() {
    let mut snapshot = snapshot();
    snapshot.config.gateway_mode = GatewayMode::ActiveStandby;
    snapshot.config.drain_period = SignedDuration::ZERO;
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    insert(&mut snapshot.nodes, candidate("node-b", true, "172.18.0.2"));
    settle(&mut snapshot);
    insert(&mut snapshot.nodes, candidate("node-a", false, "172.18.0.1"));
    let plan = plan(&snapshot);
    let gateways: Vec<_> = plan
        .writes
        .iter()
        .filter(|a| a.target.kind == Kind::Gateway)
        .collect();
    assert!(
        matches!(gateways[0].op, WriteOp::Apply(_)) && matches!(gateways[1].op, WriteOp::Delete { .. }),
        "the successor is created first"
    );
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), [("172.18.0.2".to_owned(), 1)]);
}

#[test]
fn gateways_need_no_leader() {
    let mut snapshot = snapshot();
    snapshot.connection = LeaderConnectionState::Down {
        error: "no route to host".to_owned(),
    };
    snapshot.leader = None;
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    let local = plan(&snapshot)
        .writes
        .into_iter()
        .filter(|a| a.target.kind == Kind::Gateway)
        .count();
    assert_eq!(local, 1);
}

#[test]
fn failover_updates_the_cluster_info_in_place() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    insert(&mut snapshot.nodes, candidate("node-b", true, "172.18.0.2"));
    settle(&mut snapshot);
    insert(&mut snapshot.nodes, candidate("node-a", false, "172.18.0.1"));
    let plan = plan(&snapshot);
    let on_export: Vec<_> = plan
        .writes
        .iter()
        .filter(|a| a.target.kind == Kind::ResourceExport)
        .collect();
    assert!(
        matches!(
            on_export[..],
            [Write {
                op: WriteOp::Apply(_),
                ..
            }]
        ),
        "{on_export:?}"
    );
}

#[test]
fn a_node_without_a_usable_address_is_no_gateway_and_is_reported() {
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
            "\"0.0.0.0\" is not reachable from other",
        ),
        (
            annotated("fd00::1"),
            internal,
            GatewayIpPrecedence::Internal,
            "\"fd00::1\" is not IPv4",
        ),
    ];
    for (annotations, addresses, precedence, message) in cases {
        let mut snapshot = snapshot();
        snapshot.config.gateway_ip_precedence = precedence;
        insert(
            &mut snapshot.nodes,
            node("node-a", true, &annotations, &addresses),
        );
        assert_issue(&plan(&snapshot), message);
        assert_issue(&plan(&snapshot), "Node node-a");
        settle(&mut snapshot);
        assert!(snapshot.gateways.is_empty(), "{message}");
    }
}

#[test]
fn the_annotation_and_the_precedence_select_the_gateway_ip() {
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
        let mut snapshot = snapshot();
        snapshot.config.gateway_ip_precedence = precedence;
        insert(
            &mut snapshot.nodes,
            node("node-a", true, &annotations, &addresses),
        );
        settle(&mut snapshot);
        let gateway = snapshot.gateways.values().next().unwrap();
        assert_eq!(
            (gateway.gateway_ip.as_str(), gateway.internal_ip.as_str()),
            (wanted, "172.18.0.1")
        );
    }
}

#[test]
fn pod_cidrs_are_configured_or_aggregated_from_the_nodes() {
    let mut snapshot = snapshot();
    for name in ["aa", "bbb", "cccc"] {
        insert(&mut snapshot.nodes, candidate(name, true, "172.18.0.1"));
    }
    settle(&mut snapshot);
    let info = |w: &MemberSnapshot| {
        export(w, "east-clusterinfo")
            .unwrap()
            .spec
            .cluster_info
            .clone()
            .unwrap()
    };
    assert_eq!(info(&snapshot).pod_cidrs, ["10.11.2.0/23", "10.11.4.0/24"]);
    assert_eq!(info(&snapshot).service_cidr, "10.20.0.0/16");
    snapshot.config.pod_cidrs = vec!["10.11.0.0/16".parse().unwrap()];
    settle(&mut snapshot);
    assert_eq!(info(&snapshot).pod_cidrs, ["10.11.0.0/16"]);
}

#[test]
fn only_networks_of_other_clusters_are_imported() {
    let mut snapshot = snapshot();
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("east", "10.20.0.0/16", &["172.18.0.1"]),
    );
    settle(&mut snapshot);
    let names: Vec<_> = snapshot.cluster_infos.values().map(|c| c.name_any()).collect();
    assert_eq!(names, ["west-clusterinfo"]);
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert!(snapshot.cluster_infos.is_empty());
}

/// The condition `Ready` of a cluster's imported network: status, reason, message.
fn network_ready(snapshot: &MemberSnapshot, cluster: &str) -> (String, String, String) {
    let import = &snapshot.cluster_infos[&NamespacedName::new(NS, names::cluster_info(cluster))];
    let conditions = &import.status.as_ref().unwrap().conditions;
    assert_eq!((conditions.len(), conditions[0].type_.as_str()), (1, "Ready"));
    let ready = conditions[0].clone();
    (ready.status, ready.reason, ready.message)
}

#[test]
fn unusable_prefixes_are_reported() {
    let cases = [
        (
            "10.20.128.0/17",
            vec!["172.18.0.9"],
            "PrefixOverlap",
            "spec.serviceCIDR: 10.20.128.0/17 overlaps this cluster's Service CIDR, 10.20.0.0/16",
        ),
        (
            "10.30.0/16",
            vec!["172.18.0.9"],
            "InvalidField",
            "spec.serviceCIDR: \"10.30.0/16\" is not a CIDR",
        ),
        (
            "::ffff:10.0.0.0/104",
            vec!["172.18.0.9"],
            "InvalidField",
            "is an IPv4-mapped IPv6 value",
        ),
        ("10.40.0.0/16", vec![], "NoGateway", "spec.gatewayInfos is empty"),
        (
            "10.40.0.0/16",
            vec!["x"],
            "InvalidField",
            "spec.gatewayInfos[0].gatewayIP: \"x\" is not an IP address",
        ),
        (
            "10.30.0.0/16",
            vec!["172.18.0.9"],
            "PrefixOverlap",
            "overlaps spec.serviceCIDR of cluster \"south\", 10.30.0.0/16",
        ),
    ];
    for (cidr, gateways, reason, message) in cases {
        let mut snapshot = snapshot();
        insert(
            &mut leader(&mut snapshot).imports,
            import_info("south", "10.30.0.0/16", &["172.18.0.8"]),
        );
        insert(
            &mut leader(&mut snapshot).imports,
            import_info("west", cidr, &gateways),
        );
        assert_issue(&plan(&snapshot), message);
        assert_issue(&plan(&snapshot), "ClusterInfoImport west-clusterinfo");
        settle(&mut snapshot);
        assert_eq!(network_ready(&snapshot, "south").1, "Accepted");
        let ready = network_ready(&snapshot, "west");
        assert_eq!((ready.0.as_str(), ready.1.as_str()), ("False", reason));
        assert!(ready.2.contains(message), "{ready:?}");
        assert_eq!(
            snapshot.cluster_infos.len(),
            2,
            "the ClusterInfos are imported nevertheless"
        );
    }
}

#[test]
fn prefixes_that_the_leader_refuses_are_reported_on_the_cluster_set() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    settle(&mut snapshot);
    assert_eq!(plan(&snapshot).warning_events, []);
    let name = names::cluster_info("east");
    let mut refused = export(&snapshot, &name).unwrap().as_ref().clone();
    let why = "10.11.0.0/16 overlaps 10.0.0.0/8, which cluster \"west\" announced first";
    refused.status = Some(object(json!({ "conditions": [{
        "type": "Failure", "status": "False", "reason": "ConvergeFailure", "message": why,
    }]})));
    insert(&mut leader(&mut snapshot).exports, refused);
    let plan = plan(&snapshot);
    assert_issue(&plan, &format!("ClusterSet set: {why}"));
    let [event] = &plan.warning_events[..] else {
        panic!("{:?}", plan.warning_events);
    };
    assert_eq!(
        (event.reason.as_str(), event.message.as_str()),
        ("ClusterInfoRefused", why)
    );
    assert_eq!(plan.writes, []);
}
