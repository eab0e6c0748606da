//! Gateway addresses inside prefixes of other clusters.

use super::*;

/// Found by the fuzz target `cluster_info`: packets to one cluster's gateway were routed to another cluster.
#[test]
fn a_gateway_inside_a_prefix_of_another_cluster_is_rejected() {
    let north = |gateway: &str, pods: &str| remote("north", None, gateway, "10.98.0.0/16", &[pods]);
    let (desired, error) = rejected_on_gateway(|objects| {
        let mut late = north("10.2.0.7", "10.3.0.0/16");
        let changed = Arc::make_mut(&mut late);
        changed.name = "x-clusterinfo".into();
        changed.gateways.push(peer_gateway("203.0.113.8"));
        objects.remotes.push(late);
    });
    assert!(
        error.contains("gatewayInfos[0].gatewayIP")
            && error.contains("10.2.0.0/16 of ClusterInfoImport west"),
        "{error}"
    );
    assert!(!desired.peers.contains_key(&IpAddr::from([10, 2, 0, 7])));
    // The cluster that is read first wins: here the one with the gateway.
    let (desired, error) =
        rejected_on_gateway(|objects| objects.remotes.push(north("10.2.0.7", "10.3.0.0/16")));
    assert!(
        error.contains("podCIDRs[0]") && error.contains("10.2.0.7 of ClusterInfoImport north"),
        "{error}"
    );
    assert!(!desired.routes.contains(&net("10.2.0.0/16")) && desired.routes.contains(&net("10.97.0.0/16")));
}

/// The decision which clusters are validated again.
#[test]
fn clusters_are_independent_until_statements_exclude_each_other() {
    let me = LocalNode {
        node_name: "a".into(),
        cluster_id: Some("east".into()),
        ..LocalNode::default()
    };
    let mut cache = DesiredCache::default();
    let mut is_independent = |objects: &Objects| {
        let (desired, rejected) = compute(objects, &me, &Established::default(), &mut cache).unwrap();
        let full = first(objects, &me);
        assert_eq!((desired, rejected), full.unwrap());
        cache.has_independent_clusters()
    };
    let mut changed = objects();
    assert!(is_independent(&changed));
    west(&mut changed).pod_cidrs.push("10.3.0.0/16".into());
    assert!(is_independent(&changed));
    changed
        .remotes
        .push(remote("north", None, "203.0.113.8", "10.98.0.0/16", &[]));
    assert!(is_independent(&changed));
    // A prefix of both clusters, a Node, a gateway and a Pod in a prefix of a cluster.
    let conflicts: [fn(&mut Objects); 4] = [
        |objects| west(objects).pod_cidrs.push("10.98.7.0/24".into()),
        |objects| objects.nodes.push(node("c", "192.0.2.3", "10.2.7.0/24")),
        |objects| west(objects).gateways.push(peer_gateway("10.98.0.7")),
        |objects| {
            let pod = PodInfo {
                name: "shop/p".into(),
                node: "b".into(),
                ips: vec!["10.2.9.9".into()],
                ..PodInfo::default()
            };
            objects.pods.push(pod.into());
        },
    ];
    for conflict in conflicts {
        let mut conflicting = changed.clone();
        conflict(&mut conflicting);
        assert!(!is_independent(&conflicting));
        assert!(is_independent(&changed));
    }
}
