//! Services that are left to the service proxy of a gateway, which hides their clients from network policies.

use std::fs;

use mc_tests::{
    counters::Counters,
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

use crate::{
    fixture::web_service,
    policies::{TIMEOUT, enforcing, wait_dropped, wait_passing, write_policy},
};

const SERVICE: &str = "10.102.0.10";

const DENY_CLIENTS: &str = "  \
  - action: Drop
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
";

const ALLOW_CLIENTS: &str = "  \
  - action: Allow
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
";

fn get(bed: &Topology) -> Result<String, String> {
    let url = format!("http://{SERVICE}/");
    let answer = bed
        .traffic()
        .run(bed.netns(Place::PodEast), &["get", "--timeout", "0.5", &url]);
    answer.map_err(|error| format!("{error:#}"))
}

fn wait_served(bed: &Topology, what: &str) {
    wait_for(&format!("the Service answers: {what}"), TIMEOUT, || get(bed)).expect("an answer");
}

/// Waits until the gateway of the Service drops requests because the service proxy would hide their sender.
fn wait_closed(bed: &Topology, what: &str) {
    let drops = || {
        let counters = Counters::read(&bed.bpf_dir(Place::GatewayWest)).expect("counters");
        counters.drops.get("identity-lost").copied().unwrap_or_default()
    };
    wait_for(&format!("the Service is closed: {what}"), TIMEOUT, || {
        let before = drops();
        match get(bed) {
            Ok(answer) => Err(format!("answered: {answer}")),
            Err(_) if drops() > before => Ok(()),
            Err(error) => Err(format!("{error}; identity-lost is not counted")),
        }
    })
    .expect("drops");
}

/// The gateway was the sender of such a packet, so that a client that a rule denies passed.
#[test]
fn the_service_proxy_does_not_hide_a_client_from_policies() {
    let (bed, _server) = enforcing("hidden");
    bed.netns(Place::GatewayWest)
        .nft(&format!(
            "table ip proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
             ip daddr {SERVICE} tcp dport 80 dnat to {}:8080; }}; }}",
            Cluster::West.pod_ip()
        ))
        .expect("a service proxy");
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
