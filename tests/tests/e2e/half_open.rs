//! Connections to API servers that stay open while all their packets are dropped.

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use mc_tests::{
    fixture::is_long_run,
    process::{find_pod_process, run},
};
use serde_json::Value;

use crate::{
    clusters::{EAST, SHORT_TIMEOUT, WEST, agent_pid, on_node, try_on_node},
    workload::Namespace,
};

const WEST_NODE: &str = "west-n2";
/// The Node of the agent.
const EAST_NODE: &str = "east-n1";
/// Promised time until a client notices that its connection is dead.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(15);
/// A client that notices earlier was not cut off: the first ping follows 5 s after the last packet.
const MIN_NOTICE: Duration = Duration::from_secs(4);
const TABLE: &str = "mc_half_open";

/// The connections of a process to API servers.
struct Connections {
    pid: u32,
    /// Local ports.
    ports: BTreeSet<u16>,
}

/// Drops the packets of connections on some Nodes until it is dropped itself.
struct Cut {
    nodes: BTreeSet<String>,
}

#[test]
fn half_open_watches_are_noticed_within_fifteen_seconds() {
    let ns = Namespace::create("e2e-half-open");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    for trial in 0..if is_long_run() { 20 } else { 2 } {
        half_open(&ns, &format!("late-{trial}"));
    }
}

/// Cuts the connections of east's controller and of an agent; `late` is a Service that west exports meanwhile.
fn half_open(ns: &Namespace, late: &str) {
    let pod = EAST.controller_pod("kube-system");
    let text = |field: &str| pod.pointer(field).and_then(Value::as_str).expect("a field");
    let controller = find_pod_process("mc-controller", "POD_NAME", text("/metadata/name"));
    let old = [controller.expect("the controller"), agent_pid(EAST_NODE)].map(Connections::of);
    for connections in &old {
        assert!(
            !connections.ports.is_empty(),
            "PID {}: no connection",
            connections.pid
        );
    }
    let imported = uid(ns, "antrea-mc-web").expect("the imported Service");

    let [of_controller, of_agent] = &old;
    let _cut = Cut {
        nodes: [text("/spec/nodeName").to_owned(), EAST_NODE.to_owned()].into(),
    };
    let start = Instant::now();
    Cut::forwarded(
        text("/spec/nodeName"),
        text("/status/podIP"),
        &of_controller.ports,
    );
    Cut::local(EAST_NODE, &of_agent.ports);
    // An event of east's API server, and one of the leader's.
    EAST.kubectl(&["delete", "service", "antrea-mc-web", "-n", ns.0, "--wait=false"]);
    export_late(ns, late);
    for connections in &old {
        EAST.wait_for(
            "new connections",
            NOTICE_TIMEOUT.saturating_sub(start.elapsed()),
            || {
                let now = Connections::of(connections.pid).ports;
                if now.is_empty() || now.intersection(&connections.ports).next().is_some() {
                    Err(format!(
                        "PID {}: {now:?}, before {:?}",
                        connections.pid, connections.ports
                    ))
                } else {
                    Ok(())
                }
            },
        );
        let noticed = start.elapsed();
        println!(
            "PID {}: dead connections noticed after {noticed:?}",
            connections.pid
        );
        assert!(
            noticed >= MIN_NOTICE,
            "noticed after {noticed:?}: were packets dropped?"
        );
    }
    EAST.wait_for("both Services", SHORT_TIMEOUT, || {
        match (uid(ns, "antrea-mc-web"), uid(ns, &format!("antrea-mc-{late}"))) {
            (Some(web), Some(_)) if web != imported => Ok(()),
            seen => Err(format!("{seen:?}, before {imported}")),
        }
    });
    println!(
        "events of both API servers had an effect after {:?}",
        start.elapsed()
    );
}

/// West's export of a Service of the same Pods.
fn export_late(ns: &Namespace, name: &str) {
    WEST.apply(&format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{app: web}}
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {{name: {name}, namespace: {namespace}}}
",
        namespace = ns.0
    ));
}

fn uid(ns: &Namespace, service: &str) -> Option<String> {
    let service = EAST.get(ns.0, "service", service)?;
    service["metadata"]["uid"].as_str().map(str::to_owned)
}

// === impl Connections ===

impl Connections {
    fn of(pid: u32) -> Self {
        let owner = format!("pid={pid},");
        let target = pid.to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &target, "-n", "ss", "-Htnp", "state", "established"]);
        // A health probe is a connection from another port to the process.
        command.arg("( dport = :443 or dport = :6443 )");
        let list = run(&mut command).expect("ss");
        let local_port = |line: &str| {
            let address = line.split_whitespace().nth(2)?;
            address.rsplit(':').next()?.parse().ok()
        };
        let ports = list
            .lines()
            .filter(|line| line.contains(&owner))
            .filter_map(local_port);
        Self {
            pid,
            ports: ports.collect(),
        }
    }
}

// === impl Cut ===

impl Cut {
    /// Drops forwarded packets from and to ports of a Pod.
    fn forwarded(node: &str, pod_ip: &str, ports: &BTreeSet<u16>) {
        let ports = set(ports);
        Self::add(
            node,
            &format!(
                "chain pod {{ type filter hook forward priority 0; \
                 ip saddr {pod_ip} tcp sport {ports} drop; ip daddr {pod_ip} tcp dport {ports} drop; }};"
            ),
        );
    }

    /// Drops packets from and to ports of a Node.
    fn local(node: &str, ports: &BTreeSet<u16>) {
        let ports = set(ports);
        Self::add(
            node,
            &format!(
                "chain sent {{ type filter hook output priority 0; tcp sport {ports} drop; }}; \
                 chain received {{ type filter hook input priority 0; tcp dport {ports} drop; }};"
            ),
        );
    }

    fn add(node: &str, chains: &str) {
        on_node(node, "nft", &[&format!("table inet {TABLE} {{ {chains} }}")]);
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        for node in &self.nodes {
            if let Err(error) = try_on_node(node, "nft", &["delete", "table", "inet", TABLE]) {
                println!("{node}: {error}");
            }
        }
    }
}

fn set(ports: &BTreeSet<u16>) -> String {
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    format!("{{ {} }}", ports.join(", "))
}
