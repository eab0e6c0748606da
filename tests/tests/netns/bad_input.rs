//! Invalid manifests: errors are reported, and the rest is applied.

use mc_tests::topology::{Cluster, Place, Topology, Variant};

use crate::fixture::{options, routes, wait_for_log};

const NODE: Place = Place::NodeEast;

fn connected(name: &str) -> Topology {
    let mut bed = Topology::create(options(name)).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// A non-existent gateway in TEST-NET-1 (RFC 5737).
const NORTH_GATEWAY: &str = "192.0.2.77";

/// Announces a third cluster to east.
fn announce(bed: &Topology, service_cidr: &str, pod_cidr: &str, gateway_ip: &str) {
    let text = format!(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\nmetadata:\n  name: north-clusterinfo\n  \
         namespace: kube-system\nspec:\n  clusterID: north\n  serviceCIDR: \"{service_cidr}\"\n  podCIDRs: [\"{pod_cidr}\"]\n  \
         gatewayInfos: [{{gatewayIP: \"{gateway_ip}\"}}]\n"
    );
    std::fs::write(bed.manifests_dir(Cluster::East).join("north.yaml"), text).expect("a manifest");
}

fn assert_west_reachable(bed: &Topology) {
    let ping = bed
        .traffic()
        .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 1)
        .expect("ping");
    assert_eq!(ping.received, 1, "west is unreachable");
}

#[test]
fn malformed_values_are_reported_and_the_rest_is_applied() {
    let mut bed = connected("values");
    for (cidr, words) in [
        ("10.300.0.0/16", ["podCIDRs", "10.300.0.0/16"]),
        ("::ffff:10.50.0.0/112", ["podCIDRs", "::ffff:10.50.0.0/112"]),
        ("fe80::/64", ["podCIDRs", "fe80::/64"]),
        ("0.0.0.0/0", ["podCIDRs", "0.0.0.0/0"]),
    ] {
        announce(&bed, "10.99.0.0/16", cidr, NORTH_GATEWAY);
        let line = wait_for_log(&mut bed, NODE, &words);
        assert!(line.contains("north"), "no object name in {line}");
        wait_for_route(&bed, "10.99.0.0/16");
    }
    assert_west_reachable(&bed);
}

#[test]
fn an_ipv6_prefix_on_a_host_without_ipv6_is_reported_and_ipv4_works() {
    let mut bed = connected("nov6");
    announce(&bed, "10.99.0.0/16", "fd00:10::/48", NORTH_GATEWAY);
    let line = wait_for_log(&mut bed, NODE, &["fd00:10::/48", "IPv6 is turned off on mc0"]);
    assert!(line.contains(NODE.name()), "{line}");
    wait_for_route(&bed, "10.99.0.0/16");
    assert_west_reachable(&bed);
}

#[test]
fn a_prefix_announced_twice_belongs_to_the_first_cluster() {
    let mut bed = connected("overlap");
    let west = Cluster::West.pod_cidr().to_string();
    announce(&bed, "10.99.0.0/16", &west, NORTH_GATEWAY);
    // Without creation times names decide: "north" precedes "west", whose prefix is rejected.
    wait_for_log(&mut bed, NODE, &["overlaps", &west]);
    wait_for_route(&bed, "10.99.0.0/16");
}

#[test]
fn a_local_prefix_announced_by_a_remote_cluster_is_rejected() {
    let mut bed = connected("own");
    let own = Cluster::East.service_cidr().to_string();
    announce(&bed, &own, "10.98.0.0/16", NORTH_GATEWAY);
    let line = wait_for_log(&mut bed, NODE, &["serviceCIDR", &own]);
    assert!(line.contains("north"), "{line}");
    wait_for_route(&bed, "10.98.0.0/16");
    assert!(
        !routes(&bed, NODE).contains(&own),
        "the local Service CIDR is routed to another cluster"
    );
    assert_west_reachable(&bed);
}

#[test]
fn a_gateway_address_announced_twice_belongs_to_the_first_cluster() {
    let mut bed = connected("twogw");
    let address = Cluster::West.gateway_net().addr().to_string();
    announce(&bed, "10.99.0.0/16", "10.98.0.0/16", &address);
    // "north" precedes "west" by name; the conflict is logged.
    wait_for_log(&mut bed, Place::GatewayEast, &["gatewayIP", &address]);
}

#[test]
fn a_missing_gateway_address_is_reported() {
    let mut bed = connected("nogw");
    announce(&bed, "10.99.0.0/16", "10.98.0.0/16", "");
    wait_for_log(&mut bed, Place::GatewayEast, &["gatewayIP"]);
    assert_west_reachable(&bed);
}

#[test]
fn malformed_yaml_keeps_the_last_good_state() {
    let mut bed = connected("yaml");
    let file = bed.manifests_dir(Cluster::East).join("west.yaml");
    let good = std::fs::read_to_string(&file).expect("a manifest");
    std::fs::write(&file, format!("{good}---\nkind: [unclosed\n")).expect("write");
    wait_for_log(&mut bed, NODE, &["west.yaml"]);
    assert!(
        routes(&bed, NODE).contains(&Cluster::West.pod_cidr().to_string()),
        "routes were removed"
    );
    assert_west_reachable(&bed);
}

fn wait_for_route(bed: &Topology, prefix: &str) {
    mc_tests::wait::wait_for(&format!("a route to {prefix}"), crate::fixture::TIMEOUT, || {
        let seen = routes(bed, NODE);
        if seen.contains(prefix) { Ok(()) } else { Err(seen) }
    })
    .expect("a route");
}
