//! Manifests with mistakes: each is named, and everything else goes on.

use mc_tests::topology::{Cluster, Place, Topology, Variant};

use crate::bed::{options, routes, wait_for_log};

const NODE: Place = Place::NodeEast;

fn bed(name: &str) -> Topology {
    let mut bed = Topology::create(options(name)).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// A gateway nobody has: addresses of TEST-NET-1 (RFC 5737).
const NORTH_GATEWAY: &str = "192.0.2.77";

/// A third cluster, announced to east.
fn announce(bed: &Topology, service_cidr: &str, pod_cidr: &str, gateway_ip: &str) {
    let text = format!(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\nmetadata:\n  name: north-clusterinfo\n  \
         namespace: kube-system\nspec:\n  clusterID: north\n  serviceCIDR: \"{service_cidr}\"\n  podCIDRs: [\"{pod_cidr}\"]\n  \
         gatewayInfos: [{{gatewayIP: \"{gateway_ip}\"}}]\n"
    );
    std::fs::write(bed.manifests_dir(Cluster::East).join("north.yaml"), text).expect("a manifest");
}

fn west_still_works(bed: &Topology) {
    let ping = bed
        .traffic()
        .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 1)
        .expect("ping");
    assert_eq!(ping.received, 1, "west is not reached any more");
}

#[test]
fn malformed_values_are_named_and_the_rest_is_used() {
    let mut bed = bed("values");
    for (cidr, words) in [
        ("10.300.0.0/16", ["podCIDRs", "10.300.0.0/16"]),
        ("::ffff:10.50.0.0/112", ["podCIDRs", "::ffff:10.50.0.0/112"]),
        ("fe80::/64", ["podCIDRs", "fe80::/64"]),
        ("0.0.0.0/0", ["podCIDRs", "0.0.0.0/0"]),
    ] {
        announce(&bed, "10.99.0.0/16", cidr, NORTH_GATEWAY);
        let line = wait_for_log(&mut bed, NODE, &words);
        assert!(line.contains("north"), "the object is not named: {line}");
        wait_for_route(&bed, "10.99.0.0/16");
    }
    west_still_works(&bed);
}

#[test]
fn an_ipv6_prefix_on_a_host_without_ipv6_is_named_and_ipv4_goes_on() {
    let mut bed = bed("nov6");
    announce(&bed, "10.99.0.0/16", "fd00:10::/48", NORTH_GATEWAY);
    let line = wait_for_log(&mut bed, NODE, &["fd00:10::/48", "IPv6 is turned off on mc0"]);
    assert!(line.contains(NODE.name()), "{line}");
    wait_for_route(&bed, "10.99.0.0/16");
    west_still_works(&bed);
}

#[test]
fn a_prefix_two_clusters_claim_stays_with_the_first() {
    let mut bed = bed("overlap");
    let west = Cluster::West.pod_cidr().to_string();
    announce(&bed, "10.99.0.0/16", &west, NORTH_GATEWAY);
    // Without creation times the name decides: "north" comes before "west", whose prefix is refused then.
    wait_for_log(&mut bed, NODE, &["overlaps", &west]);
    wait_for_route(&bed, "10.99.0.0/16");
}

#[test]
fn an_own_prefix_claimed_by_a_remote_cluster_is_refused() {
    let mut bed = bed("own");
    let own = Cluster::East.service_cidr().to_string();
    announce(&bed, &own, "10.98.0.0/16", NORTH_GATEWAY);
    let line = wait_for_log(&mut bed, NODE, &["serviceCIDR", &own]);
    assert!(line.contains("north"), "{line}");
    wait_for_route(&bed, "10.98.0.0/16");
    assert!(
        !routes(&bed, NODE).contains(&own),
        "the own Service CIDR is routed away"
    );
    west_still_works(&bed);
}

#[test]
fn a_gateway_address_two_clusters_claim_stays_with_the_first() {
    let mut bed = bed("twogw");
    let address = Cluster::West.gateway_net().addr().to_string();
    announce(&bed, "10.99.0.0/16", "10.98.0.0/16", &address);
    // By name "north" is first: its claim is not what west's gateway is judged by silently.
    wait_for_log(&mut bed, Place::GatewayEast, &["gatewayIP", &address]);
}

#[test]
fn a_missing_gateway_address_is_named() {
    let mut bed = bed("nogw");
    announce(&bed, "10.99.0.0/16", "10.98.0.0/16", "");
    wait_for_log(&mut bed, Place::GatewayEast, &["gatewayIP"]);
    west_still_works(&bed);
}

#[test]
fn malformed_yaml_keeps_what_was_known() {
    let mut bed = bed("yaml");
    let file = bed.manifests_dir(Cluster::East).join("west.yaml");
    let good = std::fs::read_to_string(&file).expect("a manifest");
    std::fs::write(&file, format!("{good}---\nkind: [unclosed\n")).expect("write");
    wait_for_log(&mut bed, NODE, &["west.yaml"]);
    assert!(
        routes(&bed, NODE).contains(&Cluster::West.pod_cidr().to_string()),
        "routes were lost"
    );
    west_still_works(&bed);
}

fn wait_for_route(bed: &Topology, prefix: &str) {
    mc_tests::wait::wait_for(&format!("a route to {prefix}"), crate::bed::SOON, || {
        let seen = routes(bed, NODE);
        if seen.contains(prefix) { Ok(()) } else { Err(seen) }
    })
    .expect("a route");
}
