//! Dual-stack Services and Pods: the MCS API's requirements (R7, O3 to O10 of its conformance suite), and packets of
//! both families. The members are dual-stack, IPv4 first.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    panic::{catch_unwind, resume_unwind},
};

use mc_tests::nslookup::Srv;
use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, SHORT_TIMEOUT, WEST, on_node, try_on_node},
    dns::{
        EXPORT, IMPORT, WEST_ID, assert_no_such_name, clients, cluster_local_name, clusterset_name,
        import_addresses, parse_ip, wait_addresses, wait_srv,
    },
    services::set_endpoint_type,
    specs,
    workload::{Client, Namespace},
};

/// Number of consecutive identical answers.
const REPEATS: u32 = 10;
const BOTH: [&str; 2] = ["IPv4", "IPv6"];

/// Spec of Service `web` with these families, TCP and UDP on the same port.
fn spec(families: &[&str]) -> Value {
    let port = |name: &str, protocol: &str| json!({ "name": name, "port": 42, "protocol": protocol, "targetPort": 8080 });
    let policy = if families.len() == 2 {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    json!({
        "selector": { "app": "web" }, "ports": [port("tcp", "TCP"), port("udp", "UDP")],
        "ipFamilyPolicy": policy, "ipFamilies": families,
    })
}

fn put_service(ns: &Namespace, cluster: Cluster, spec: &Value) {
    let metadata = json!({ "name": "web", "namespace": ns.0 });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec });
    cluster.apply(&service.to_string());
}

fn service_ips(ns: &Namespace, cluster: Cluster, name: &str) -> Vec<IpAddr> {
    let service = cluster.get(ns.0, "service", name).unwrap_or_default();
    let ips = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    ips.map(parse_ip).collect()
}

fn families(ips: &[IpAddr]) -> Vec<&'static str> {
    ips.iter().map(|ip| BOTH[usize::from(ip.is_ipv6())]).collect()
}

/// Waits for an import of exactly these families; returns its addresses in order.
fn wait_import(ns: &Namespace, cluster: Cluster, wanted: &[&str]) -> Vec<IpAddr> {
    cluster.wait_for(
        &format!("ServiceImport {}/web of {wanted:?}", ns.0),
        SHORT_TIMEOUT,
        || {
            let import = cluster.get(ns.0, IMPORT, "web").unwrap_or_default();
            let ips: Vec<_> = import["spec"]["ips"]
                .as_array()
                .into_iter()
                .flatten()
                .map(parse_ip)
                .collect();
            if import["spec"]["ipFamilies"] == json!(wanted) && families(&ips) == wanted {
                Ok(ips)
            } else {
                Err(import["spec"].to_string())
            }
        },
    )
}

/// Waits until the exporter's slices hold exactly these addresses, one address type per slice.
fn wait_slices(ns: &Namespace, cluster: Cluster, wanted: &BTreeSet<IpAddr>) {
    let selector = "multicluster.kubernetes.io/service-name=web";
    cluster.wait_for(&format!("slices with {wanted:?}"), SHORT_TIMEOUT, || {
        let slices = cluster.list(ns.0, "endpointslice", selector);
        let mut seen: BTreeSet<IpAddr> = BTreeSet::new();
        for slice in &slices {
            let labels = &slice["metadata"]["labels"];
            let manager = labels["endpointslice.kubernetes.io/managed-by"].as_str();
            let good = labels["multicluster.kubernetes.io/source-cluster"] == WEST_ID
                && manager.is_some_and(|by| by != "endpointslice-controller.k8s.io");
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            let addresses: Vec<_> = endpoints
                .flat_map(|e| e["addresses"].as_array().cloned().unwrap_or_default())
                .map(|ip| parse_ip(&ip))
                .collect();
            let family = slice["addressType"].as_str().unwrap_or_default();
            if !good || addresses.is_empty() || families(&addresses).iter().any(|f| *f != family) {
                return Err(slice.to_string());
            }
            seen.extend(addresses);
        }
        if seen == *wanted {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
}

fn url(ip: IpAddr, port: u16) -> String {
    format!("http://{}/", SocketAddr::new(ip, port))
}

/// Waits for answers of `web-…` that name the client's own address.
fn assert_reached(cluster: Cluster, client: &Client, ip: IpAddr, port: u16) {
    let url = url(ip, port);
    let own = format!(" {}", client.ip_like(ip));
    client.get(&url);
    // The gateway may receive the export after the importing cluster; until then its service proxy answers.
    cluster.wait_for(
        &format!("answers from {url} that name{own}"),
        SHORT_TIMEOUT,
        || {
            let answer = client.get(&url);
            answer.ends_with(&own).then_some(()).ok_or(answer)
        },
    );
    for answer in client.get_many(&url, REPEATS) {
        assert!(
            answer.starts_with("web-") && answer.ends_with(&own),
            "{cluster:?}: {url}: {answer}"
        );
    }
}

/// Expects answers; the exporting cluster's own proxy may change the client address.
fn assert_answered(client: &Client, ip: IpAddr, port: u16) {
    let url = url(ip, port);
    client.get(&url);
    for answer in client.get_many(&url, REPEATS) {
        assert!(answer.starts_with("web-"), "{url}: {answer}");
    }
}

fn assert_reachable(asking: &(Cluster, Client), ips: &[IpAddr], port: u16) {
    for ip in ips {
        if asking.0 == WEST {
            assert_answered(&asking.1, *ip, port);
        } else {
            assert_reached(asking.0, &asking.1, *ip, port);
        }
    }
}

fn all_ips(pods: &[(String, Vec<IpAddr>)]) -> BTreeSet<IpAddr> {
    pods.iter().flat_map(|(_, ips)| ips.clone()).collect()
}

#[test]
fn both_families_of_a_cluster_are_announced_and_routed() {
    let import = EAST
        .get(
            "kube-system",
            "clusterinfoimport",
            "test-cluster-west-clusterinfo",
        )
        .expect("west's ClusterInfoImport");
    let spec = &import["spec"];
    // The first Service CIDR is repeated in the singular field, for older readers.
    let services = spec["serviceCIDRs"].as_array().expect("serviceCIDRs");
    assert_eq!(spec["serviceCIDR"], services[0], "{spec}");
    let of_nodes = WEST.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].spec.podCIDRs[*]}"]);
    let of_nodes: BTreeSet<_> = of_nodes.split(' ').collect();
    let pods: BTreeSet<_> = spec["podCIDRs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(pods, of_nodes);
    let all: Vec<_> = services.iter().filter_map(Value::as_str).chain(pods).collect();
    let v6 = all.iter().filter(|net| net.contains(':')).count();
    assert_eq!((services.len(), all.len(), v6), (2, 6, 3), "{all:?}");
    for node in ["east-n1", "east-n2"] {
        let routes = ["-4", "-6"].map(|family| on_node(node, "ip", &[family, "route", "show", "dev", "mc0"]));
        let routes = routes.concat();
        for net in &all {
            assert!(
                routes.contains(&format!("{net} ")),
                "{node}: no route to {net} in\n{routes}"
            );
        }
    }
}

#[test]
fn a_dual_stack_service_has_an_address_of_each_family_in_every_cluster() {
    let ns = Namespace::create("e2e-dual");
    ns.servers(WEST, "west-n2", 1);
    put_service(&ns, WEST, &spec(&BOTH));
    let clients = clients(&ns);
    ns.export(WEST);
    let own = service_ips(&ns, WEST, "web");
    let pods = all_ips(&ns.pod_addresses(WEST, "app=web"));
    assert_eq!((own.len(), pods.len()), (2, 2), "{own:?} {pods:?}");
    let name = clusterset_name(&ns);
    for asking in &clients {
        let (cluster, client) = asking;
        let ips = wait_import(&ns, *cluster, &BOTH);
        assert_eq!(ips, service_ips(&ns, *cluster, "antrea-mc-web"));
        // In the exporting cluster the endpoints are its Pods.
        let endpoints = if *cluster == WEST {
            pods.clone()
        } else {
            own.iter().copied().collect()
        };
        wait_slices(&ns, *cluster, &endpoints);
        wait_addresses(*cluster, client, &name, &ips.iter().copied().collect());
        // One SRV record, although there are two ports and two addresses.
        let record = Srv {
            port: 42,
            target: name.clone(),
        };
        wait_srv(*cluster, client, &name, &BTreeSet::from([record]));
        assert_reachable(asking, &ips, 42);
        client.get(&format!("http://{name}:42/"));
        // The cluster-local name is unchanged.
        if *cluster == WEST {
            wait_addresses(
                *cluster,
                client,
                &cluster_local_name(&ns),
                &own.iter().copied().collect(),
            );
        } else {
            assert_no_such_name(*cluster, client, &cluster_local_name(&ns), 1);
        }
    }
    ns.unexport(WEST);
    for (cluster, _) in clients {
        cluster.wait_gone(ns.0, IMPORT, "web", SHORT_TIMEOUT);
        wait_slices(&ns, cluster, &BTreeSet::new());
    }
    specs::record(&[
        "an import has an address for each of its families",
        "each cluster has slices per exporting cluster with their own manager, removed with the export",
        "a name resolves to the addresses of its import",
        "ports of one number have one SRV record",
        "the cluster's own name is unchanged",
        "an exported Service answers in every cluster",
    ]);
}

#[test]
fn an_ipv6_service_of_dual_stack_clusters_is_ipv6_everywhere() {
    let ns = Namespace::create("e2e-dual-ipv6");
    ns.servers(WEST, "west-n2", 1);
    put_service(&ns, WEST, &spec(&["IPv6"]));
    let clients = clients(&ns);
    ns.export(WEST);
    for asking in &clients {
        let (cluster, client) = asking;
        let ips = wait_import(&ns, *cluster, &["IPv6"]);
        wait_addresses(
            *cluster,
            client,
            &clusterset_name(&ns),
            &ips.iter().copied().collect(),
        );
        assert_reachable(asking, &ips, 42);
    }
}

#[test]
fn a_headless_dual_stack_service_has_all_addresses_of_its_pods() {
    let ns = Namespace::create("e2e-dual-headless");
    let container = json!({
        "name": "web", "image": "mc-gateway/test:latest", "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/mc-traffic", "echo-server", "--port=8080"],
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "web", "namespace": ns.0 },
        "spec": {
            "serviceName": "web", "replicas": 2, "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "nodeName": "west-n2", "terminationGracePeriodSeconds": 0, "containers": [container] },
            },
        },
    });
    WEST.apply(&set.to_string());
    let mut headless = spec(&BOTH);
    headless["clusterIP"] = json!("None");
    put_service(&ns, WEST, &headless);
    let clients = clients(&ns);
    WEST.kubectl(&[
        "rollout",
        "status",
        "statefulset/web",
        "-n",
        ns.0,
        "--timeout=120s",
    ]);
    ns.export(WEST);
    let pods = ns.pod_addresses(WEST, "app=web");
    let all = all_ips(&pods);
    assert_eq!(all.len(), 4, "{pods:?}");
    let name = clusterset_name(&ns);
    for asking in &clients {
        let (cluster, client) = asking;
        wait_slices(&ns, *cluster, &all);
        wait_addresses(*cluster, client, &name, &all);
        let mut records = BTreeSet::new();
        for (pod, ips) in &pods {
            let target = format!("{pod}.{WEST_ID}.{name}");
            wait_addresses(*cluster, client, &target, &ips.iter().copied().collect());
            // Direct Pod address without translation.
            for ip in ips {
                assert_reached(*cluster, client, *ip, 8080);
            }
            // The SRV record has the Service's port.
            records.insert(Srv { port: 8080, target });
        }
        wait_srv(*cluster, client, &name, &records);
    }
    specs::record(&[
        "a headless Service's name resolves to its ready Pods",
        "a Pod of a headless Service has a name",
        "a headless Service has an SRV record for each Pod",
    ]);
}

#[test]
fn pod_endpoints_of_both_families_are_imported() {
    let ns = Namespace::create("e2e-dual-podip");
    set_endpoint_type("PodIP");
    let result = catch_unwind(|| {
        ns.servers(WEST, "west-n2", 2);
        put_service(&ns, WEST, &spec(&BOTH));
        let client = ns.client(EAST, "east-n2");
        ns.export(WEST);
        let ips = wait_import(&ns, EAST, &BOTH);
        wait_slices(&ns, EAST, &all_ips(&ns.pod_addresses(WEST, "app=web")));
        for ip in ips {
            assert_reached(EAST, &client, ip, 42);
        }
        // After a change to one family no endpoint of the other is left.
        put_service(&ns, WEST, &spec(&["IPv4"]));
        let ips = wait_import(&ns, EAST, &["IPv4"]);
        let mut v4 = all_ips(&ns.pod_addresses(WEST, "app=web"));
        v4.retain(IpAddr::is_ipv4);
        wait_slices(&ns, EAST, &v4);
        assert_reached(EAST, &client, ips[0], 42);
    });
    set_endpoint_type("ClusterIP");
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// On both kinds of Nodes: only the gateway has a direct route to the other cluster.
#[test]
fn host_clients_reach_both_families() {
    let ns = Namespace::create("e2e-dual-hosts");
    ns.servers(WEST, "west-n2", 1);
    put_service(&ns, WEST, &spec(&BOTH));
    // The CNI creates its bridge for the first Pod of a Node.
    let nodes = ["east-n1", "east-n2"];
    ns.client_named(EAST, nodes[0], "a");
    let client = ns.client_named(EAST, nodes[1], "b");
    ns.export(WEST);
    let services = wait_import(&ns, EAST, &BOTH);
    let (_, pods) = ns.pod_addresses(WEST, "app=web").remove(0);
    for (ip, port) in services
        .iter()
        .map(|ip| (*ip, 42))
        .chain(pods.iter().map(|ip| (*ip, 8080)))
    {
        let url = url(ip, port);
        client.get(&url);
        let program = std::env::var("MC_TRAFFIC").expect("MC_TRAFFIC");
        for node in nodes {
            // The service proxy of this Node may be later than that of the client's Node, and rejects until then.
            let answers = EAST.wait_for(&format!("answers at {node}"), SHORT_TIMEOUT, || {
                try_on_node(node, &program, &["get", &url, "--count", "10"])
            });
            let from: BTreeMap<_, _> = answers.lines().filter_map(|line| line.split_once(' ')).collect();
            assert!(
                answers.lines().count() == 10 && from.len() == 1,
                "{node}: {url}: {answers}"
            );
        }
    }
}

#[test]
fn an_import_follows_its_export_from_one_family_to_two_and_back() {
    let ns = Namespace::create("e2e-dual-follow");
    ns.servers(WEST, "west-n2", 1);
    put_service(&ns, WEST, &spec(&["IPv4"]));
    ns.export(WEST);
    let first = wait_import(&ns, EAST, &["IPv4"]);
    put_service(&ns, WEST, &spec(&BOTH));
    for cluster in [EAST, WEST] {
        let both = wait_import(&ns, cluster, &BOTH);
        assert!(
            cluster != EAST || both[0] == first[0],
            "the former address changed: {both:?}"
        );
    }
    put_service(&ns, WEST, &spec(&["IPv4"]));
    for cluster in [EAST, WEST] {
        let one = wait_import(&ns, cluster, &["IPv4"]);
        assert!(
            cluster != EAST || one == first,
            "the former address changed: {one:?}"
        );
    }
}

#[test]
fn a_family_conflict_is_reported_to_both_exporters() {
    let ns = Namespace::create("e2e-dual-conflict");
    for (cluster, node, families) in [(WEST, "west-n2", &BOTH[..]), (EAST, "east-n2", &["IPv4"][..])] {
        ns.servers(cluster, node, 1);
        put_service(&ns, cluster, &spec(families));
        ns.export(cluster);
        import_addresses(&ns, EAST);
    }
    for cluster in [EAST, WEST] {
        cluster.wait_for("condition Conflict", SHORT_TIMEOUT, || {
            let export = cluster.get(ns.0, EXPORT, "web").unwrap_or_default();
            let conditions = export["status"]["conditions"].as_array().into_iter().flatten();
            let mut conflicts = conditions.filter(|c| c["type"] == "Conflict" && c["status"] == "True");
            match conflicts.next() {
                Some(conflict) if conflict["reason"] == "IPFamilyConflict" => Ok(()),
                _ => Err(export["status"].to_string()),
            }
        });
        // The older exporter's families are used.
        wait_import(&ns, cluster, &BOTH);
    }
}
