//! Host-network Pods and Node processes reach exported Services.

use std::{
    panic::{catch_unwind, resume_unwind},
    process::{Child, Command, Stdio},
};

use crate::{
    clusters::{EAST, LONG_TIMEOUT, SHORT_TIMEOUT, WEST, on_node},
    services::set_endpoint_type,
    workload::Namespace,
};

/// A regular Node and the gateway.
const CLIENTS: [&str; 2] = ["east-n2", "east-n1"];

/// Address of the CNI's bridge on a Node.
fn bridge(node: &str) -> String {
    let listed = on_node(node, "ip", &["-4", "-oneline", "addr", "show", "dev", "cni0"]);
    let address = listed.split_whitespace().find(|word| word.contains('/'));
    let (address, _) = address
        .and_then(|net| net.split_once('/'))
        .expect("an address of cni0");
    address.to_owned()
}

/// Sends requests from every kind of host client on both kinds of Nodes; `seen` is the expected client address.
fn assert_reachable(ns: &Namespace, url: &str, seen: impl Fn(&str) -> Option<String>) {
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
        EAST.wait_gone(ns.0, "pod", "host-client", SHORT_TIMEOUT);
    }
}

#[test]
fn host_clients_reach_services_with_cluster_ip_endpoints() {
    let ns = Namespace::create("e2e-hosts");
    ns.serve(WEST, "west-n2", 1);
    // The CNI creates its bridge for the first Pod of a Node.
    let pods = CLIENTS.map(|node| ns.client_named(EAST, node, if node == CLIENTS[0] { "a" } else { "b" }));
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let url = pods[0].imported_url();
    pods[0].get(&url);
    // The exporting cluster's gateway changes the source address.
    assert_reachable(&ns, &url, |_| None);
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
        assert_reachable(&ns, &url, |node| Some(bridge(node)));
        // Pods by their addresses.
        let url = format!("http://{}:8080/", ns.pod_ip(WEST, "app=web"));
        assert_reachable(&ns, &url, |node| Some(bridge(node)));
    });
    set_endpoint_type("ClusterIP");
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// Starts the traffic program in the network namespace of a Node.
fn spawn_on_node(node: &str, args: &[&str]) -> Child {
    let program = std::env::var("MC_TRAFFIC").expect("MC_TRAFFIC");
    Command::new("ip")
        .args(["netns", "exec", &format!("mc-{node}"), &program])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .expect("ip netns exec")
}

/// The address reserved for a Node by a Service; waits until the Node routes use it.
fn wait_reserved_address(node: &str) -> String {
    let name = format!("mc-node-{node}");
    let service = EAST.wait_for(&name, LONG_TIMEOUT, || {
        EAST.get("kube-system", "service", &name)
            .ok_or_else(|| "no Service".to_owned())
    });
    let metadata = &service["metadata"];
    assert_eq!(metadata["ownerReferences"][0]["kind"], "Node", "{metadata}");
    let address = service["spec"]["clusterIP"]
        .as_str()
        .expect("an address")
        .to_owned();
    EAST.wait_for(&format!("routes from {address}"), SHORT_TIMEOUT, || {
        let routes = on_node(node, "ip", &["route", "show", "proto", "109"]);
        let good = routes.contains(&format!(" src {address} "));
        if good { Ok(()) } else { Err(routes) }
    });
    address
}

#[test]
fn nodes_without_a_pod_network_address_get_one_reserved() {
    let ns = Namespace::create("e2e-hosts-reserved");
    let bridges = CLIENTS.map(|node| {
        let listed = on_node(node, "ip", &["-4", "-oneline", "addr", "show"]);
        let bridge = listed.lines().find(|line| line.contains(" cni0 "));
        let net = bridge.and_then(|line| line.split_whitespace().find(|word| word.contains('/')));
        (node, net.map(str::to_owned))
    });
    let result = catch_unwind(|| {
        ns.serve(WEST, "west-n2", 1);
        ns.export(WEST);
        ns.wait_imported(EAST, 1);
        let service = EAST
            .get(ns.0, "service", "antrea-mc-web")
            .expect("an imported Service");
        let url = format!(
            "http://{}:80/",
            service["spec"]["clusterIP"].as_str().expect("an address")
        );
        let pod = format!("http://{}:8080/", ns.pod_ip(WEST, "app=web"));
        // CNIs whose Pod addresses are not per Node and that assign the Node none.
        EAST.set_agent_flag("--pod-lookup=pod", true);
        for (node, net) in &bridges {
            if let Some(net) = net {
                on_node(node, "ip", &["addr", "del", net, "dev", "cni0"]);
            }
        }
        for node in CLIENTS {
            let address = wait_reserved_address(node);
            let answer = EAST.wait_for(&format!("an answer to {node}"), SHORT_TIMEOUT, || {
                let out = spawn_on_node(node, &["get", &pod]).wait_with_output();
                let out = out.map_err(|error| error.to_string())?;
                let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
                if out.status.success() { Ok(text) } else { Err(text) }
            });
            assert!(answer.ends_with(&format!(" {address}")), "{node}: {answer}");
        }
        // A restart of the agents keeps the addresses.
        let requests =
            CLIENTS.map(|node| spawn_on_node(node, &["get", &url, "--count=400", "--interval=0.02"]));
        EAST.kubectl(&["rollout", "restart", "daemonset/mc-gateway", "-n", "kube-system"]);
        EAST.wait_agents();
        for (node, requests) in CLIENTS.into_iter().zip(requests) {
            let out = requests.wait_with_output().expect("requests");
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let answers = text.lines().filter(|line| line.starts_with("web-")).count();
            assert_eq!(answers, 400, "{node}");
        }
    });
    for (node, net) in &bridges {
        if let Some(net) = net {
            on_node(node, "ip", &["addr", "replace", net, "dev", "cni0"]);
        }
        let name = format!("mc-node-{node}");
        EAST.kubectl(&[
            "delete",
            "service",
            &name,
            "-n",
            "kube-system",
            "--ignore-not-found",
        ]);
    }
    EAST.set_agent_flag("--pod-lookup=pod", false);
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}
