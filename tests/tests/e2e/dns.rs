//! Names of `clusterset.local`, asked for in Pods with the Pods' own resolver, and who answers behind them: what the MCS
//! API's conformance suite asks of DNS and connectivity.

use std::{collections::BTreeSet, net::IpAddr};

use mc_tests::lookup::Srv;
use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, LATER, SOON, WEST},
    specs,
    workload::{Client, Namespace},
};

const EAST_ID: &str = "test-cluster-east";
pub(crate) const WEST_ID: &str = "test-cluster-west";
pub(crate) const IMPORT: &str = "serviceimports.v1beta1.multicluster.x-k8s.io";
pub(crate) const EXPORT: &str = "serviceexports.v1beta1.multicluster.x-k8s.io";
/// In how many answers a thing has to be the same.
const TIMES: u32 = 10;

/// The members, each with its regular node.
const MEMBERS: [(Cluster, &str); 2] = [(EAST, "east-n2"), (WEST, "west-n2")];

/// The names of Service `web`.
pub(crate) fn of_set(ns: &Namespace) -> String {
    format!("web.{}.svc.clusterset.local", ns.0)
}

pub(crate) fn of_cluster(ns: &Namespace) -> String {
    format!("web.{}.svc.cluster.local", ns.0)
}

fn port(name: &str, number: u16, protocol: &str) -> Value {
    json!({ "name": name, "port": number, "protocol": protocol, "targetPort": 8080 })
}

/// Service `web` with those ports; clients stay where they were for a while, as in the conformance suite.
fn set_ports(ns: &Namespace, cluster: Cluster, ports: &Value) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": ns.0 },
        "spec": {
            "selector": { "app": "web" }, "ports": ports, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10 } },
        },
    });
    cluster.apply(&service.to_string());
}

pub(crate) fn clients(ns: &Namespace) -> [(Cluster, Client); 2] {
    MEMBERS.map(|(cluster, node)| (cluster, ns.client(cluster, node)))
}

/// Waits until the name has exactly these addresses for the client, those of one family as A records and those of the
/// other as AAAA records.
pub(crate) fn wait_addresses(cluster: Cluster, client: &Client, name: &str, wanted: &BTreeSet<IpAddr>) {
    let dotted = format!("{name}.");
    for (kind, v6) in [("a", false), ("aaaa", true)] {
        let wanted: BTreeSet<_> = wanted.iter().filter(|ip| ip.is_ipv6() == v6).copied().collect();
        cluster.wait_for(&format!("{kind} of {name} to be {wanted:?}"), SOON, || {
            let seen = client.lookup(kind, &dotted, 1)?.only_addresses()?;
            if seen == wanted {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        });
    }
}

pub(crate) fn wait_services(cluster: Cluster, client: &Client, name: &str, wanted: &BTreeSet<Srv>) {
    cluster.wait_for(&format!("SRV of {name} to be {wanted:?}"), SOON, || {
        let seen = client.lookup("srv", &format!("{name}."), 1)?.only_services()?;
        if seen == *wanted {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
}

pub(crate) fn assert_no_such_name(cluster: Cluster, client: &Client, name: &str, times: u32) {
    let answer = client.lookup("a", &format!("{name}."), times).expect("an answer");
    let refused = vec!["NXDOMAIN".to_owned(); times as usize];
    assert!(
        answer.addresses.is_empty() && answer.refusals == refused,
        "{cluster:?}: {name}: {answer:?}"
    );
}

/// The addresses of the import in that cluster, once it has some.
pub(crate) fn set_addresses(ns: &Namespace, cluster: Cluster) -> BTreeSet<IpAddr> {
    cluster.wait_for(&format!("addresses of ServiceImport {}/web", ns.0), SOON, || {
        let import = cluster.get(ns.0, IMPORT, "web").unwrap_or_default();
        let ips = import["spec"]["ips"].as_array().cloned().unwrap_or_default();
        if ips.is_empty() {
            return Err(import.to_string());
        }
        Ok(ips.iter().map(address).collect())
    })
}

pub(crate) fn address(text: &Value) -> IpAddr {
    text.as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no address: {text}"))
}

/// The Pods `web` of a cluster: name and address.
fn pods(ns: &Namespace, cluster: Cluster) -> Vec<(String, IpAddr)> {
    let pods = cluster.list(ns.0, "pods", "app=web");
    pods.iter()
        .map(|pod| {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            (name.to_owned(), address(&pod["status"]["podIP"]))
        })
        .collect()
}

/// Waits for an answer at that port of the name, then wants as many in a row from Pods of one cluster only.
fn assert_served_by(ns: &Namespace, (cluster, client): (Cluster, Client), port: u16, server: Cluster) {
    let servers: Vec<String> = pods(ns, server).into_iter().map(|(name, _)| name).collect();
    let url = format!("http://{}:{port}/", of_set(ns));
    let first = client.get(&url);
    for answer in client.get_many(&url, TIMES).iter().chain([&first]) {
        let by = answer.split(' ').next().unwrap_or_default();
        assert!(
            servers.iter().any(|name| name == by),
            "{cluster:?} asked {url} and was answered `{answer}`, not by one of {servers:?}"
        );
    }
}

fn wait_conflict(ns: &Namespace, cluster: Cluster) {
    cluster.wait_for("condition Conflict=True", SOON, || {
        let export = cluster.get(ns.0, EXPORT, "web").unwrap_or_default();
        let conditions = export["status"]["conditions"].as_array().cloned();
        let conflict = conditions
            .iter()
            .flatten()
            .any(|c| c["type"] == "Conflict" && c["status"] == "True");
        conflict.then_some(()).ok_or_else(|| export["status"].to_string())
    });
}

/// Waits until the import has ports of these numbers.
fn wait_ports(ns: &Namespace, cluster: Cluster, wanted: &[u64]) {
    cluster.wait_for(&format!("ports {wanted:?}"), SOON, || {
        let import = cluster.get(ns.0, IMPORT, "web").unwrap_or_default();
        let ports = import["spec"]["ports"].as_array().cloned().unwrap_or_default();
        let numbers: BTreeSet<_> = ports.iter().filter_map(|p| p["port"].as_u64()).collect();
        if numbers == wanted.iter().copied().collect() {
            Ok(())
        } else {
            Err(format!("{ports:?}"))
        }
    });
}

#[test]
fn only_an_exported_service_has_a_name_in_the_set() {
    let ns = Namespace::create("e2e-dns-unexported");
    ns.serve(WEST, "west-n2", 1);
    let clients = clients(&ns);
    let (_, local) = clients[1];
    let service = WEST.get(ns.0, "service", "web").expect("the Service");
    // The DNS knows it, and yet:
    let own = BTreeSet::from([address(&service["spec"]["clusterIP"])]);
    wait_addresses(WEST, &local, &of_cluster(&ns), &own);
    for (cluster, client) in &clients {
        assert_no_such_name(*cluster, client, &of_set(&ns), 2 * TIMES);
    }
    ns.export(WEST);
    for (cluster, client) in &clients {
        wait_addresses(*cluster, client, &of_set(&ns), &set_addresses(&ns, *cluster));
    }
    ns.unexport(WEST);
    for (cluster, client) in &clients {
        cluster.wait_for("the name to be gone", SOON, || {
            let answer = client.lookup("a", &format!("{}.", of_set(&ns)), 1)?;
            (answer.refusals == ["NXDOMAIN"])
                .then_some(())
                .ok_or_else(|| format!("{answer:?}"))
        });
    }
    specs::hold(&["a Service that is not exported has no name in the set"]);
}

#[test]
fn an_exported_service_has_one_name_and_its_address_in_every_cluster() {
    let ns = Namespace::create("e2e-dns-clusterip");
    ns.servers(WEST, "west-n2", 1);
    // TCP and UDP at the same number.
    set_ports(
        &ns,
        WEST,
        &json!([port("tcp", 42, "TCP"), port("udp", 42, "UDP")]),
    );
    let clients = clients(&ns);
    ns.export(WEST);
    let service = WEST.get(ns.0, "service", "web").expect("the Service");
    let own = address(&service["spec"]["clusterIP"]);
    let name = of_set(&ns);
    for (cluster, client) in clients {
        let ips = set_addresses(&ns, cluster);
        assert_eq!(ips.len(), 1, "{cluster:?}: {ips:?}");
        assert!(
            !ips.contains(&own),
            "{cluster:?}: the set's address is the cluster's"
        );
        wait_addresses(cluster, &client, &name, &ips);
        // Two ports of one number, one answer.
        let record = Srv {
            port: 42,
            target: name.clone(),
        };
        wait_services(cluster, &client, &name, &BTreeSet::from([record.clone()]));
        for protocol in ["tcp", "udp"] {
            let of_port = format!("_{protocol}._{protocol}.{name}");
            wait_services(cluster, &client, &of_port, &BTreeSet::from([record.clone()]));
        }
        // What the cluster calls so itself is its own.
        if cluster == WEST {
            wait_addresses(cluster, &client, &of_cluster(&ns), &BTreeSet::from([own]));
        } else {
            assert_no_such_name(cluster, &client, &of_cluster(&ns), 1);
        }
        assert_served_by(&ns, (cluster, client), 42, WEST);
    }
    specs::hold(&[
        "a name stands for the addresses of its import",
        "ports of one number have one SRV record",
        "the cluster's own name is what it was",
        "an exported Service answers in every cluster",
    ]);
}

/// A headless Service `web` of three Pods with names of their own, the last of which is not ready.
fn serve_by_name(ns: &Namespace, cluster: Cluster, node: &str) {
    let script =
        "case $HOSTNAME in web-2) ;; *) touch /tmp/ready ;; esac; exec mc-traffic echo-server --port=8080";
    let container = json!({
        "name": "web", "image": "mc-gateway/test:latest", "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
        "readinessProbe": { "exec": { "command": ["test", "-e", "/tmp/ready"] }, "periodSeconds": 1 },
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "web", "namespace": ns.0 },
        "spec": {
            "serviceName": "web", "replicas": 3, "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container] },
            },
        },
    });
    cluster.apply(&set.to_string());
    headless(ns, cluster);
    cluster.wait_for("two ready Pods of three", LATER, || {
        let set = cluster.get(ns.0, "statefulset", "web").unwrap_or_default();
        let pods = cluster.list(ns.0, "pods", "app=web");
        let have_addresses = pods
            .iter()
            .filter(|pod| pod["status"]["podIP"].is_string())
            .count()
            == 3;
        if set["status"]["readyReplicas"] == 2 && have_addresses {
            Ok(())
        } else {
            Err(set["status"].to_string())
        }
    });
}

fn headless(ns: &Namespace, cluster: Cluster) {
    let ports = json!([port("tcp", 8080, "TCP"), port("udp", 8080, "UDP")]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": ns.0 },
        "spec": { "clusterIP": "None", "selector": { "app": "web" }, "ports": ports },
    });
    cluster.apply(&service.to_string());
}

#[test]
fn a_headless_service_has_the_names_and_addresses_of_its_ready_pods() {
    let ns = Namespace::create("e2e-dns-headless");
    serve_by_name(&ns, WEST, "west-n2");
    let clients = clients(&ns);
    ns.export(WEST);
    let name = of_set(&ns);
    let all = pods(&ns, WEST);
    let of = |names: &[&str]| -> BTreeSet<IpAddr> {
        let found = all.iter().filter(|(pod, _)| names.contains(&pod.as_str()));
        found.map(|(_, ip)| *ip).collect()
    };
    let served_by = |pods: &[&str]| -> BTreeSet<Srv> {
        let target = |pod: &&str| format!("{pod}.{WEST_ID}.{name}");
        let record = |pod| Srv {
            port: 8080,
            target: target(pod),
        };
        pods.iter().map(record).collect()
    };
    let ready = ["web-0", "web-1"];
    for (cluster, client) in &clients {
        wait_addresses(*cluster, client, &name, &of(&ready));
        // One Pod by its name.
        for pod in ready {
            let one = format!("{pod}.{WEST_ID}.{name}");
            wait_addresses(*cluster, client, &one, &of(&[pod]));
            let answer = client.get(&format!("http://{one}:8080/"));
            assert!(answer.starts_with(&format!("{pod} ")), "{one}: {answer}");
        }
        for nobody in ["web-2", "web-3"] {
            assert_no_such_name(*cluster, client, &format!("{nobody}.{WEST_ID}.{name}"), 1);
        }
        assert_no_such_name(*cluster, client, &format!("web-0.{EAST_ID}.{name}"), 1);
        wait_services(*cluster, client, &name, &served_by(&ready));
    }
    WEST.kubectl(&["exec", "-n", ns.0, "web-2", "--", "touch", "/tmp/ready"]);
    let all_three = ["web-0", "web-1", "web-2"];
    for (cluster, client) in &clients {
        wait_addresses(*cluster, client, &name, &of(&all_three));
        wait_services(*cluster, client, &name, &served_by(&all_three));
    }
    specs::hold(&[
        "a headless Service's name stands for its ready Pods",
        "a Pod of a headless Service has a name",
    ]);
}

#[test]
fn pods_without_names_are_called_by_their_addresses() {
    let ns = Namespace::create("e2e-dns-nameless");
    let name = of_set(&ns);
    let mut wanted = (BTreeSet::new(), BTreeSet::new());
    for ((cluster, node), id) in MEMBERS.into_iter().zip([EAST_ID, WEST_ID]) {
        headless(&ns, cluster);
        ns.servers(cluster, node, 2);
        for (_, ip) in pods(&ns, cluster) {
            wanted.0.insert(ip);
            let dashed = ip.to_string().replace('.', "-");
            wanted.1.insert(Srv {
                port: 8080,
                target: format!("{dashed}.{id}.{name}"),
            });
        }
        ns.export(cluster);
    }
    // Those of all exporters.
    assert_eq!(wanted.0.len(), 4, "{wanted:?}");
    for (cluster, client) in clients(&ns) {
        wait_addresses(cluster, &client, &name, &wanted.0);
        wait_services(cluster, &client, &name, &wanted.1);
    }
    specs::hold(&["a headless Service has an SRV record for each Pod"]);
}

#[test]
fn the_exporter_alone_serves_a_service_that_others_have_too() {
    let ns = Namespace::create("e2e-dns-one-of-two");
    for (cluster, node) in MEMBERS {
        ns.servers(cluster, node, 1);
        set_ports(&ns, cluster, &json!([port("tcp", 42, "TCP")]));
    }
    ns.export(WEST);
    for (cluster, client) in clients(&ns) {
        assert_served_by(&ns, (cluster, client), 42, WEST);
        // Its own is still there under its own name.
        let local = client.get(&format!("http://{}:42/", of_cluster(&ns)));
        let servers = pods(&ns, cluster);
        assert!(servers.iter().any(|(pod, _)| local.starts_with(pod)), "{local}");
    }
    specs::hold(&["only exporters serve"]);
}

#[test]
fn a_port_two_clusters_disagree_on_is_the_older_exporters() {
    let ns = Namespace::create("e2e-dns-disagree");
    for (cluster, node) in MEMBERS {
        ns.servers(cluster, node, 1);
    }
    set_ports(&ns, WEST, &json!([port("tcp", 42, "TCP")]));
    set_ports(&ns, EAST, &json!([port("tcp", 4242, "TCP")]));
    ns.export(WEST);
    wait_ports(&ns, EAST, &[42]);
    ns.export(EAST);
    for (cluster, _) in MEMBERS {
        wait_conflict(&ns, cluster);
        wait_ports(&ns, cluster, &[42]);
    }
    for asking in clients(&ns) {
        assert_served_by(&ns, asking, 42, WEST);
    }
    specs::hold(&["of one port with two numbers only the oldest export's is served"]);
}

#[test]
fn each_port_is_served_by_the_clusters_that_export_it() {
    let ns = Namespace::create("e2e-dns-ports");
    for (cluster, node) in MEMBERS {
        ns.servers(cluster, node, 1);
    }
    set_ports(&ns, WEST, &json!([port("of-west", 42, "TCP")]));
    set_ports(&ns, EAST, &json!([port("of-east", 4242, "TCP")]));
    ns.export(WEST);
    wait_ports(&ns, EAST, &[42]);
    ns.export(EAST);
    for (cluster, _) in MEMBERS {
        wait_conflict(&ns, cluster);
        wait_ports(&ns, cluster, &[42, 4242]);
    }
    let name = of_set(&ns);
    for asking in clients(&ns) {
        assert_served_by(&ns, asking, 42, WEST);
        assert_served_by(&ns, asking, 4242, EAST);
        let record = |port| Srv {
            port,
            target: name.clone(),
        };
        wait_services(asking.0, &asking.1, &name, &[42, 4242].map(record).into());
    }
    specs::hold(&["each port is served by those who export it"]);
}
