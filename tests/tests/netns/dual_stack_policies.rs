//! Network policies on Pods with addresses of both families: rules by labels, by address block, and `Reject`.

use std::net::SocketAddr;

use mc_tests::{
    topology::{Cluster, Family, Inner, Masquerade, Place, Topology, Variant},
    wait::wait_for,
};
use nix::errno::Errno;

use crate::{
    fixture::options,
    identities::{BOTH, pod_manifest, write, write_identities},
    pod_policies::datagram_error,
    policies::{
        PORT, TIMEOUT, enforce, get_url, wait_dropped_at, wait_refused, write_egress_policy, write_policy,
    },
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The Pod of a cluster with a label.
fn write_pod(bed: &Topology, cluster: Cluster, app: &str) {
    let ips = FAMILIES.map(|family| cluster.pod_addr(family));
    let text = pod_manifest("p", cluster.node(), &ips, app, "Running");
    write(bed, cluster, "pod.yaml", &text);
}

/// The answer to a request of the client to the server in a family.
fn get(bed: &Topology, family: Family) -> Result<String, String> {
    let server = SocketAddr::new(Cluster::West.pod_addr(family), PORT);
    get_url(bed, bed.netns(Place::PodEast), &format!("http://{server}/"))
}

fn wait_passing(bed: &Topology, what: &str) {
    for family in FAMILIES {
        let name = format!("requests pass in {family:?}: {what}");
        wait_for(&name, TIMEOUT, || get(bed, family)).expect("an answer");
    }
}

fn wait_dropped(bed: &Topology, place: Place, what: &str) {
    for family in FAMILIES {
        let what = format!("{family:?}, {what}");
        wait_dropped_at(bed, place, "policy", &what, || get(bed, family));
    }
}

/// Waits until a connection is refused at once and a datagram is answered with an ICMP error, in each family.
fn wait_rejected(bed: &Topology, what: &str) {
    for (family, error) in FAMILIES.into_iter().zip([Errno::EHOSTUNREACH, Errno::EACCES]) {
        wait_refused(&format!("{family:?}, {what}"), || get(bed, family));
        let found = datagram_error(bed.netns(Place::PodEast), Cluster::West.pod_addr(family), 100);
        assert_eq!(found, Some(error), "a datagram in {family:?}: {what}");
    }
}

/// A policy for the client with one egress rule about both addresses of the server.
fn write_egress(bed: &Topology, action: &str) {
    let blocks = [(Family::V4, 32), (Family::V6, 128)].map(|(family, len)| {
        format!(
            "{{ipBlock: {{cidr: \"{}/{len}\"}}}}",
            Cluster::West.pod_addr(family)
        )
    });
    let rules = format!("  - action: {action}\n    to: [{}]\n", blocks.join(", "));
    write_egress_policy(bed, Cluster::East, "client", &rules);
}

#[test]
fn policies_decide_on_both_addresses_of_a_pod() {
    let mut options = options("pol-dual");
    options.inner = Inner::Dual;
    options.masquerade = Masquerade::LeavingCluster;
    enforce(&mut options);
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    let server = bed
        .traffic()
        .echo_server(bed.netns(Place::PodWest), "pod-west", PORT);
    let _server = server.expect("a server");
    write_identities(&bed, BOTH);
    write_pod(&bed, Cluster::East, "client");
    write_pod(&bed, Cluster::West, "server");
    wait_passing(&bed, "without policies");

    let by_label = "  - action: Allow\n    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]\n  \
                    - action: ";
    write_policy(&bed, Cluster::West, &format!("{by_label}Drop\n"));
    write_pod(&bed, Cluster::East, "other");
    wait_dropped(&bed, Place::NodeWest, "another label");
    write_pod(&bed, Cluster::East, "client");
    wait_passing(&bed, "the label of the rule");
    write_pod(&bed, Cluster::East, "other");
    write_policy(&bed, Cluster::West, &format!("{by_label}Reject\n"));
    wait_rejected(&bed, "another label");

    write_pod(&bed, Cluster::East, "client");
    wait_passing(&bed, "the label again");
    write_egress(&bed, "Drop");
    wait_dropped(&bed, Place::NodeEast, "at the device of the client");
    write_egress(&bed, "Reject");
    wait_rejected(&bed, "at the device of the client");
}
