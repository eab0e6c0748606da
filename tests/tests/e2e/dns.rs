//! DNS of `clusterset.local` with the Pods' own resolver, and connectivity by these names: the DNS and connectivity
//! specs of the MCS API's conformance suite.

use std::{collections::BTreeSet, net::IpAddr};

use mc_tests::nslookup::Srv;
use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, LONG_TIMEOUT, SHORT_TIMEOUT, WEST},
    specs,
    workload::{Client, Namespace},
};

const EAST_ID: &str = "test-cluster-east";
pub(crate) const WEST_ID: &str = "test-cluster-west";
pub(crate) const IMPORT: &str = "serviceimports.v1beta1.multicluster.x-k8s.io";
pub(crate) const EXPORT: &str = "serviceexports.v1beta1.multicluster.x-k8s.io";
/// Number of consecutive identical answers.
const REPEATS: u32 = 10;

/// The members, each with its regular Node.
const MEMBERS: [(Cluster, &str); 2] = [(EAST, "east-n2"), (WEST, "west-n2")];

/// The clusterset name of Service `web`.
pub(crate) fn clusterset_name(ns: &Namespace) -> String {
    format!("web.{}.svc.clusterset.local", ns.0)
}

pub(crate) fn cluster_local_name(ns: &Namespace) -> String {
    format!("web.{}.svc.cluster.local", ns.0)
}

fn port(name: &str, number: u16, protocol: &str) -> Value {
    json!({ "name": name, "port": number, "protocol": protocol, "targetPort": 8080 })
}

/// Applies Service `web` with these ports and client affinity, as in the conformance suite.
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

/// Waits until the name resolves to exactly these addresses: IPv4 in A records, IPv6 in AAAA records.
pub(crate) fn wait_addresses(cluster: Cluster, client: &Client, name: &str, wanted: &BTreeSet<IpAddr>) {
    let dotted = format!("{name}.");
    for (kind, v6) in [("a", false), ("aaaa", true)] {
        let wanted: BTreeSet<_> = wanted.iter().filter(|ip| ip.is_ipv6() == v6).copied().collect();
        cluster.wait_for(
            &format!("{kind} of {name} to be {wanted:?}"),
            SHORT_TIMEOUT,
            || {
                let seen = client.lookup(kind, &dotted, 1)?.only_addresses()?;
                if seen == wanted {
                    Ok(())
                } else {
                    Err(format!("{seen:?}"))
                }
            },
        );
    }
}

pub(crate) fn wait_srv(cluster: Cluster, client: &Client, name: &str, wanted: &BTreeSet<Srv>) {
    cluster.wait_for(&format!("SRV of {name} to be {wanted:?}"), SHORT_TIMEOUT, || {
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
        answer.addresses.is_empty() && answer.error_codes == refused,
        "{cluster:?}: {name}: {answer:?}"
    );
}

/// The addresses of the import in a cluster, once it has some.
pub(crate) fn import_addresses(ns: &Namespace, cluster: Cluster) -> BTreeSet<IpAddr> {
    cluster.wait_for(
        &format!("addresses of ServiceImport {}/web", ns.0),
        SHORT_TIMEOUT,
        || {
            let import = cluster.get(ns.0, IMPORT, "web").unwrap_or_default();
            let ips = import["spec"]["ips"].as_array().cloned().unwrap_or_default();
            if ips.is_empty() {
                return Err(import.to_string());
            }
            Ok(ips.iter().map(parse_ip).collect())
        },
    )
}

pub(crate) fn parse_ip(text: &Value) -> IpAddr {
    text.as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no address: {text}"))
}

/// Name and address of the Pods `web` of a cluster.
fn pod_ips(ns: &Namespace, cluster: Cluster) -> Vec<(String, IpAddr)> {
    let pods = cluster.list(ns.0, "pods", "app=web");
    pods.iter()
        .map(|pod| {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            (name.to_owned(), parse_ip(&pod["status"]["podIP"]))
        })
        .collect()
}

/// Waits for a first answer, then expects only answers from Pods of one cluster.
fn assert_served_by(ns: &Namespace, (cluster, client): (Cluster, Client), port: u16, server: Cluster) {
    let servers: Vec<String> = pod_ips(ns, server).into_iter().map(|(name, _)| name).collect();
    let url = format!("http://{}:{port}/", clusterset_name(ns));
    let first = client.get(&url);
    for answer in client.get_many(&url, REPEATS).iter().chain([&first]) {
        let by = answer.split(' ').next().unwrap_or_default();
        assert!(
            servers.iter().any(|name| name == by),
            "{cluster:?} requested {url} and got `{answer}`, not from one of {servers:?}"
        );
    }
}

fn wait_conflict(ns: &Namespace, cluster: Cluster) {
    cluster.wait_for("condition Conflict=True", SHORT_TIMEOUT, || {
        let export = cluster.get(ns.0, EXPORT, "web").unwrap_or_default();
        let conditions = export["status"]["conditions"].as_array().cloned();
        let conflict = conditions
            .iter()
            .flatten()
            .any(|c| c["type"] == "Conflict" && c["status"] == "True");
        conflict.then_some(()).ok_or_else(|| export["status"].to_string())
    });
}

/// Waits until the import has exactly these port numbers.
fn wait_ports(ns: &Namespace, cluster: Cluster, wanted: &[u64]) {
    cluster.wait_for(&format!("ports {wanted:?}"), SHORT_TIMEOUT, || {
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
    // The cluster-local name resolves in the exporting cluster.
    let own = BTreeSet::from([parse_ip(&service["spec"]["clusterIP"])]);
    wait_addresses(WEST, &local, &cluster_local_name(&ns), &own);
    for (cluster, client) in &clients {
        assert_no_such_name(*cluster, client, &clusterset_name(&ns), 2 * REPEATS);
    }
    ns.export(WEST);
    for (cluster, client) in &clients {
        wait_addresses(
            *cluster,
            client,
            &clusterset_name(&ns),
            &import_addresses(&ns, *cluster),
        );
    }
    ns.unexport(WEST);
    for (cluster, client) in &clients {
        cluster.wait_for("NXDOMAIN", SHORT_TIMEOUT, || {
            let answer = client.lookup("a", &format!("{}.", clusterset_name(&ns)), 1)?;
            (answer.error_codes == ["NXDOMAIN"])
                .then_some(())
                .ok_or_else(|| format!("{answer:?}"))
        });
    }
    specs::record(&["a Service that is not exported has no name in the set"]);
}

#[test]
fn an_exported_service_has_one_name_and_its_address_in_every_cluster() {
    let ns = Namespace::create("e2e-dns-clusterip");
    ns.servers(WEST, "west-n2", 1);
    // TCP and UDP with the same port number.
    set_ports(
        &ns,
        WEST,
        &json!([port("tcp", 42, "TCP"), port("udp", 42, "UDP")]),
    );
    let clients = clients(&ns);
    ns.export(WEST);
    let service = WEST.get(ns.0, "service", "web").expect("the Service");
    let own = parse_ip(&service["spec"]["clusterIP"]);
    let name = clusterset_name(&ns);
    for (cluster, client) in clients {
        let ips = import_addresses(&ns, cluster);
        assert_eq!(ips.len(), 1, "{cluster:?}: {ips:?}");
        assert!(
            !ips.contains(&own),
            "{cluster:?}: the set's address is the cluster's"
        );
        wait_addresses(cluster, &client, &name, &ips);
        // Two ports with one number share an SRV record.
        let record = Srv {
            port: 42,
            target: name.clone(),
        };
        wait_srv(cluster, &client, &name, &BTreeSet::from([record.clone()]));
        for protocol in ["tcp", "udp"] {
            let of_port = format!("_{protocol}._{protocol}.{name}");
            wait_srv(cluster, &client, &of_port, &BTreeSet::from([record.clone()]));
        }
        // The cluster-local name is unchanged.
        if cluster == WEST {
            wait_addresses(cluster, &client, &cluster_local_name(&ns), &BTreeSet::from([own]));
        } else {
            assert_no_such_name(cluster, &client, &cluster_local_name(&ns), 1);
        }
        assert_served_by(&ns, (cluster, client), 42, WEST);
    }
    specs::record(&[
        "a name resolves to the addresses of its import",
        "ports of one number have one SRV record",
        "the cluster's own name is unchanged",
        "an exported Service answers in every cluster",
    ]);
}

/// A headless Service `web` with three named Pods, the last not ready.
fn serve_stateful_set(ns: &Namespace, cluster: Cluster, node: &str) {
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
    put_headless_service(ns, cluster);
    cluster.wait_for("two ready Pods of three", LONG_TIMEOUT, || {
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

fn put_headless_service(ns: &Namespace, cluster: Cluster) {
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
    serve_stateful_set(&ns, WEST, "west-n2");
    let clients = clients(&ns);
    ns.export(WEST);
    let name = clusterset_name(&ns);
    let all = pod_ips(&ns, WEST);
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
        // Each Pod by its hostname.
        for pod in ready {
            let one = format!("{pod}.{WEST_ID}.{name}");
            wait_addresses(*cluster, client, &one, &of(&[pod]));
            let answer = client.get(&format!("http://{one}:8080/"));
            assert!(answer.starts_with(&format!("{pod} ")), "{one}: {answer}");
        }
        for missing in ["web-2", "web-3"] {
            assert_no_such_name(*cluster, client, &format!("{missing}.{WEST_ID}.{name}"), 1);
        }
        assert_no_such_name(*cluster, client, &format!("web-0.{EAST_ID}.{name}"), 1);
        wait_srv(*cluster, client, &name, &served_by(&ready));
    }
    WEST.kubectl(&["exec", "-n", ns.0, "web-2", "--", "touch", "/tmp/ready"]);
    let all_three = ["web-0", "web-1", "web-2"];
    for (cluster, client) in &clients {
        wait_addresses(*cluster, client, &name, &of(&all_three));
        wait_srv(*cluster, client, &name, &served_by(&all_three));
    }
    specs::record(&[
        "a headless Service's name resolves to its ready Pods",
        "a Pod of a headless Service has a name",
    ]);
}

#[test]
fn pods_without_hostnames_are_named_by_address() {
    let ns = Namespace::create("e2e-dns-nameless");
    let name = clusterset_name(&ns);
    let mut wanted = (BTreeSet::new(), BTreeSet::new());
    for ((cluster, node), id) in MEMBERS.into_iter().zip([EAST_ID, WEST_ID]) {
        put_headless_service(&ns, cluster);
        ns.servers(cluster, node, 2);
        for (_, ip) in pod_ips(&ns, cluster) {
            wanted.0.insert(ip);
            let dashed = ip.to_string().replace('.', "-");
            wanted.1.insert(Srv {
                port: 8080,
                target: format!("{dashed}.{id}.{name}"),
            });
        }
        ns.export(cluster);
    }
    // The Pods of all exporters.
    assert_eq!(wanted.0.len(), 4, "{wanted:?}");
    for (cluster, client) in clients(&ns) {
        wait_addresses(cluster, &client, &name, &wanted.0);
        wait_srv(cluster, &client, &name, &wanted.1);
    }
    specs::record(&["a headless Service has an SRV record for each Pod"]);
}

#[test]
fn only_the_exporter_serves_a_service_that_others_also_have() {
    let ns = Namespace::create("e2e-dns-one-of-two");
    for (cluster, node) in MEMBERS {
        ns.servers(cluster, node, 1);
        set_ports(&ns, cluster, &json!([port("tcp", 42, "TCP")]));
    }
    ns.export(WEST);
    for (cluster, client) in clients(&ns) {
        assert_served_by(&ns, (cluster, client), 42, WEST);
        // The cluster-local name still resolves to the local Service.
        let local = client.get(&format!("http://{}:42/", cluster_local_name(&ns)));
        let servers = pod_ips(&ns, cluster);
        assert!(servers.iter().any(|(pod, _)| local.starts_with(pod)), "{local}");
    }
    specs::record(&["only exporters serve"]);
}

#[test]
fn the_oldest_exporter_decides_a_conflicting_port() {
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
    specs::record(&["only the oldest export's number of a port is served"]);
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
    let name = clusterset_name(&ns);
    for asking in clients(&ns) {
        assert_served_by(&ns, asking, 42, WEST);
        assert_served_by(&ns, asking, 4242, EAST);
        let record = |port| Srv {
            port,
            target: name.clone(),
        };
        wait_srv(asking.0, &asking.1, &name, &[42, 4242].map(record).into());
    }
    specs::record(&["each port is served by its exporters"]);
}
