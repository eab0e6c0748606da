//! Export, import and withdrawal of Services with both endpoint types.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::{
    clusters::{EAST, LEADER, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

/// Regular Nodes; the first Nodes are the gateways.
const EAST_NODE: &str = "east-n2";
const WEST_NODE: &str = "west-n2";

/// Promised time until a withdrawn Service is gone.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn a_service_with_cluster_ip_endpoints_is_reached_from_a_regular_node() {
    let ns = Namespace::create("e2e-clusterip");
    ns.serve(WEST, WEST_NODE, 1);
    let client = ns.client(EAST, EAST_NODE);
    ns.export(WEST);
    let start = Instant::now();
    let endpoints = ns.wait_imported(EAST, 1);
    println!("imported after {:?}", start.elapsed());
    let service = WEST.kubectl(&[
        "get",
        "service",
        "web",
        "-n",
        ns.0,
        "-o",
        "jsonpath={.spec.clusterIP}",
    ]);
    assert_eq!(
        endpoints,
        BTreeSet::from([service]),
        "the endpoint is west's Service address"
    );
    let answer = client.get(&client.imported_url());
    assert!(answer.starts_with("web-"), "{answer}");
    // The gateway may receive the export after the importing cluster; until then its service proxy answers.
    let kept = format!(" {}", client.ip());
    WEST.wait_for(
        "answers that name the client's own address",
        SHORT_TIMEOUT,
        || {
            let answer = client.get(&client.imported_url());
            if answer.ends_with(&kept) {
                Ok(())
            } else {
                Err(answer)
            }
        },
    );
    for answer in client.get_many(&client.imported_url(), 20) {
        assert!(answer.starts_with("web-") && answer.ends_with(&kept), "{answer}");
    }
    let import = EAST.get(ns.0, "serviceimport", "web").expect("a ServiceImport");
    assert_eq!(import["spec"]["type"], "ClusterSetIP");
    // The objects that Antrea users inspect in the leader cluster.
    for (kind, name) in [
        ("resourceexport", "test-cluster-west-e2e-clusterip-web-service"),
        ("resourceexport", "test-cluster-west-e2e-clusterip-web-endpoints"),
        ("resourceimport", "e2e-clusterip-web-service"),
        ("resourceimport", "e2e-clusterip-web-endpoints"),
    ] {
        assert!(
            LEADER.get("antrea-multicluster", kind, name).is_some(),
            "no {kind} {name}"
        );
    }
    let local = ns.client(WEST, WEST_NODE);
    ns.wait_imported(WEST, 1);
    let answer = local.get(&local.imported_url());
    assert!(
        answer.starts_with("web-"),
        "the exporting cluster does not reach its own export: {answer}"
    );
}

#[test]
fn both_exporters_of_a_service_receive_requests() {
    let ns = Namespace::create("e2e-both");
    ns.serve(WEST, WEST_NODE, 1);
    ns.serve(EAST, "east-n1", 1);
    let client = ns.client(EAST, EAST_NODE);
    ns.export(WEST);
    ns.export(EAST);
    ns.wait_imported(EAST, 2);
    client.get(&client.imported_url());
    // The service proxy receives the second endpoint some time after it exists.
    EAST.wait_for("answers of both exporters", SHORT_TIMEOUT, || {
        let answers = client.get_many(&client.imported_url(), 20);
        let servers: BTreeSet<&str> = answers
            .iter()
            .filter_map(|answer| answer.split(' ').next())
            .collect();
        if servers.len() == 2 {
            Ok(())
        } else {
            Err(format!("{servers:?}"))
        }
    });
}

#[test]
fn deleting_the_export_withdraws_the_service() {
    let ns = Namespace::create("e2e-withdraw");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    ns.unexport(WEST);
    let took = EAST.wait_gone(ns.0, "service", "antrea-mc-web", WITHDRAWAL_TIMEOUT);
    println!("Service gone after {took:?}");
    EAST.wait_gone(ns.0, "serviceimport", "web", WITHDRAWAL_TIMEOUT);
    WEST.wait_gone(ns.0, "service", "antrea-mc-web", WITHDRAWAL_TIMEOUT);
    LEADER.wait_gone(
        "antrea-multicluster",
        "resourceexport",
        "test-cluster-west-e2e-withdraw-web-service",
        WITHDRAWAL_TIMEOUT,
    );
}

#[test]
fn a_users_own_service_of_the_imported_name_is_left_alone() {
    let ns = Namespace::create("e2e-own");
    EAST.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: antrea-mc-web, namespace: {}}}\nspec: {{ports: [{{port: 1234}}]}}\n",
        ns.0
    ));
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(WEST, 1);
    ns.unexport(WEST);
    WEST.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
    let own = EAST
        .get(ns.0, "service", "antrea-mc-web")
        .expect("the user's Service");
    assert_eq!(own["spec"]["ports"][0]["port"], 1234);
}

#[test]
fn a_service_with_pod_endpoints_keeps_the_clients_address() {
    let ns = Namespace::create("e2e-podip");
    set_endpoint_type("PodIP");
    let result = std::panic::catch_unwind(|| {
        ns.serve(WEST, WEST_NODE, 2);
        let client = ns.client(EAST, EAST_NODE);
        ns.export(WEST);
        ns.wait_imported(EAST, 2);
        let answer = client.get(&client.imported_url());
        assert!(
            answer.ends_with(&format!(" {}", client.ip())),
            "{answer} does not name {}",
            client.ip()
        );
        // Pod to Pod, by address.
        let server = ns.pod_ip(WEST, "app=web");
        let answer = client.get(&format!("http://{server}:8080/"));
        assert!(
            answer.ends_with(&format!(" {}", client.ip())),
            "{answer} does not name {}",
            client.ip()
        );
    });
    set_endpoint_type("ClusterIP");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn set_endpoint_type(kind: &str) {
    for cluster in [EAST, WEST] {
        cluster.configure("endpointIPType", kind);
    }
}
