//! Pods on their Node's network and processes on Nodes reach what other clusters export.

use std::panic::{catch_unwind, resume_unwind};

use crate::{
    clusters::{EAST, SOON, WEST, on_node},
    services::set_endpoint_type,
    workload::Namespace,
};

/// A regular node and the gateway.
const CLIENTS: [&str; 2] = ["east-n2", "east-n1"];

/// Address of the bridge the CNI makes on a Node.
fn bridge(node: &str) -> String {
    let listed = on_node(node, "ip", &["-4", "-oneline", "addr", "show", "dev", "cni0"]);
    let address = listed.split_whitespace().find(|word| word.contains('/'));
    let (address, _) = address
        .and_then(|net| net.split_once('/'))
        .expect("an address of cni0");
    address.to_owned()
}

/// Every kind of host client on both kinds of Nodes; the server sees what `seen` makes of the Node.
fn reach(ns: &Namespace, url: &str, seen: impl Fn(&str) -> Option<String>) {
    let program = std::env::var("MC_TRAFFIC").expect("MC_TRAFFIC");
    for node in CLIENTS {
        let client = ns.host_client(EAST, node);
        let mut answers = vec![client.get(url)];
        answers.extend(client.get_many(url, 10));
        answers.extend(
            on_node(node, &program, &["get", url, "--count", "10"])
                .lines()
                .map(str::to_owned),
        );
        for answer in answers {
            assert!(answer.starts_with("web-"), "{node}: {answer}");
            if let Some(address) = seen(node) {
                assert!(
                    answer.ends_with(&format!(" {address}")),
                    "{node}: {answer} does not name {address}"
                );
            }
        }
        EAST.kubectl(&["delete", "pod", "host-client", "-n", ns.0, "--now"]);
        EAST.wait_gone(ns.0, "pod", "host-client", SOON);
    }
}

#[test]
fn host_clients_reach_services_with_cluster_ip_endpoints() {
    let ns = Namespace::create("e2e-hosts");
    ns.serve(WEST, "west-n2", 1);
    // The CNI makes its bridge for the first Pod of a Node.
    let pods = CLIENTS.map(|node| ns.client_named(EAST, node, if node == CLIENTS[0] { "a" } else { "b" }));
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let url = pods[0].imported_url();
    pods[0].get(&url);
    // The gateway of the exporting cluster makes itself the source.
    reach(&ns, &url, |_| None);
}

#[test]
fn host_clients_reach_services_with_pod_endpoints() {
    let ns = Namespace::create("e2e-hosts-podip");
    set_endpoint_type("PodIP");
    let result = catch_unwind(|| {
        ns.serve(WEST, "west-n2", 2);
        let pods =
            CLIENTS.map(|node| ns.client_named(EAST, node, if node == CLIENTS[0] { "a" } else { "b" }));
        ns.export(WEST);
        ns.wait_imported(EAST, 2);
        let url = pods[0].imported_url();
        pods[0].get(&url);
        reach(&ns, &url, |node| Some(bridge(node)));
        // And Pods by their addresses.
        let url = format!("http://{}:8080/", ns.pod_ip(WEST, "app=web"));
        reach(&ns, &url, |node| Some(bridge(node)));
    });
    set_endpoint_type("ClusterIP");
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}
