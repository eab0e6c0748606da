//! Services that are left to the service proxy of a gateway, which hides their clients from network policies.

use std::fs;

use mc_tests::{
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

use crate::{
    fixture::web_service,
    policies::{TIMEOUT, enforcing, get_url, wait_dropped, wait_dropped_at, wait_passing, write_policy},
    services::{SERVICE, start_service_proxy},
};

const DENY_CLIENTS: &str = "  \
  - action: Drop
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
";

const ALLOW_CLIENTS: &str = "  \
  - action: Allow
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
";

fn get(bed: &Topology) -> Result<String, String> {
    get_url(bed, bed.netns(Place::PodEast), &format!("http://{SERVICE}/"))
}

fn wait_served(bed: &Topology, what: &str) {
    wait_for(&format!("the Service answers: {what}"), TIMEOUT, || get(bed)).expect("an answer");
}

/// Waits until the gateway of the Service drops requests because the service proxy would hide their sender.
fn wait_closed(bed: &Topology, what: &str) {
    wait_dropped_at(bed, Place::GatewayWest, "identity-lost", what, || get(bed));
}

/// The gateway was the sender of such a packet, so that a client that a rule denies passed.
#[test]
fn the_service_proxy_does_not_hide_a_client_from_policies() {
    let (bed, _server) = enforcing("hidden");
    start_service_proxy(&bed);
    // No Node has this name, so gateways cannot translate the Service.
    let service = web_service(SERVICE, "None", &[(Cluster::West.pod_ip(), "unknown")]);
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), service).expect("a manifest");
    wait_served(&bed, "without policies");
    write_policy(&bed, Cluster::West, DENY_CLIENTS);
    wait_dropped(&bed, "policy", "a denied client, without the Service");
    wait_closed(&bed, "a Pod that a policy protects");
    write_policy(&bed, Cluster::West, ALLOW_CLIENTS);
    wait_passing(&bed, "a policy that denies nothing");
    wait_served(&bed, "a policy that denies nothing");
    write_policy(&bed, Cluster::West, "  - action: Drop\n");
    wait_closed(&bed, "every client is denied");
    let other = fs::read_to_string(bed.manifests_dir(Cluster::West).join("policy.yaml")).expect("the policy");
    let other = other.replace("app: server", "app: other");
    fs::write(bed.manifests_dir(Cluster::West).join("policy.yaml"), other).expect("a manifest");
    wait_served(&bed, "a policy for other Pods");
}
