//! Gateway addresses inside prefixes of other clusters.

use super::*;

/// Found by the fuzz target `cluster_info`: packets to one cluster's gateway were routed to another cluster.
#[test]
fn a_gateway_inside_a_prefix_of_another_cluster_is_rejected() {
    let north = |gateway: &str, pods: &str| remote("north", None, gateway, "10.98.0.0/16", &[pods]);
    let (desired, error) = rejected_on_gateway(|objects| {
        let mut late = north("10.2.0.7", "10.3.0.0/16");
        late.name = "x-clusterinfo".into();
        late.gateways.push(peer_gateway("203.0.113.8"));
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
