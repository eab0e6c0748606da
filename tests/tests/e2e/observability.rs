//! Observability of the controllers: probes, metrics, Events.

use mc_tests::prom_parser::Exposition;
use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, LEADER, SHORT_TIMEOUT, WEST, on_node},
    mcs::{export, serve},
    workload::Namespace,
};

/// The controllers with their Namespaces and roles.
const CONTROLLERS: [(Cluster, &str, &str); 3] = [
    (LEADER, "antrea-multicluster", "leader"),
    (EAST, "kube-system", "member"),
    (WEST, "kube-system", "member"),
];
const WEST_ID: &str = "test-cluster-west";

/// HTTP GET from a controller's Pod.
fn http_get(cluster: Cluster, namespace: &str, path: &str) -> String {
    let pod = cluster.controller_pod(namespace);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let url = format!("http://{}:8080{path}", text(&pod["status"]["podIP"]));
    let program = std::env::var("MC_TRAFFIC").expect("MC_TRAFFIC");
    on_node(&text(&pod["spec"]["nodeName"]), &program, &["get", &url])
}

fn metrics(cluster: Cluster, namespace: &str) -> Exposition {
    let text = http_get(cluster, namespace, "/metrics");
    Exposition::parse(&format!("{}\n", text.trim_end()))
        .unwrap_or_else(|error| panic!("{error:#} in\n{text}"))
}

/// Waits until the sum of samples satisfies the predicate.
fn wait_metric(
    (cluster, namespace): (Cluster, &str),
    name: &str,
    words: &[&str],
    wanted: impl Fn(f64) -> bool,
) -> f64 {
    cluster.wait_for(&format!("metric {name} {words:?}"), SHORT_TIMEOUT, || {
        let value = metrics(cluster, namespace).sum(name, words);
        if wanted(value) {
            Ok(value)
        } else {
            Err(value.to_string())
        }
    })
}

/// Reason and message of Warning Events of an object.
fn warnings(cluster: Cluster, namespace: &str, kind: &str, name: &str) -> Vec<(String, String)> {
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name},type=Warning");
    let out = cluster.kubectl(&[
        "get",
        "events",
        "-n",
        namespace,
        "--field-selector",
        &selector,
        "-o",
        "json",
    ]);
    let events: Value = serde_json::from_str(&out).expect("JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = events["items"].as_array().expect("items").iter();
    events
        .map(|e| (text(&e["reason"]), text(&e["message"])))
        .collect()
}

fn wait_warning(cluster: Cluster, namespace: &str, kind: &str, name: &str, reason: &str) -> String {
    cluster.wait_for(
        &format!("Event {reason} of {kind} {namespace}/{name}"),
        SHORT_TIMEOUT,
        || {
            let found = warnings(cluster, namespace, kind, name);
            match found.iter().find(|(r, _)| r == reason) {
                Some((_, message)) => Ok(message.clone()),
                None => Err(format!("{found:?}")),
            }
        },
    )
}

#[test]
fn probes_make_controllers_ready() {
    for (cluster, namespace, _) in CONTROLLERS {
        let pod = cluster.controller_pod(namespace);
        let container = &pod["spec"]["containers"][0];
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "health", "{probe}");
        }
        let status = &pod["status"]["containerStatuses"][0];
        assert_eq!(status["ready"], true, "{}: {status}", cluster.0);
        assert_eq!(http_get(cluster, namespace, "/healthz").trim(), "ok");
        assert_eq!(http_get(cluster, namespace, "/readyz").trim(), "ok");
    }
}

#[test]
fn metrics_of_leader_and_members_are_well_formed_and_accurate() {
    for (cluster, namespace, role) in CONTROLLERS {
        let metrics = metrics(cluster, namespace);
        let role = format!("role=\"{role}\"");
        assert!((metrics.sum("mccontroller_build_info", &[&role]) - 1.0).abs() < 0.1);
        for name in ["mccontroller_is_leader", "mccontroller_ready"] {
            assert!(
                (metrics.sum(name, &[]) - 1.0).abs() < 0.1,
                "{}: {name}",
                cluster.0
            );
        }
        assert!(metrics.sum("mccontroller_reconcile_duration_seconds_count", &[]) > 0.5);
        assert!(metrics.sum("mccontroller_last_reconcile_timestamp_seconds", &[]) > 1.7e9);
        assert!(metrics.sum("process_resident_memory_bytes", &[]) > 1e6);
        assert!(metrics.sum("process_cpu_seconds_total", &[]) > 0.0);
        // The Lease is renewed every 2 s.
        let age = metrics.sum("mccontroller_api_contact_age_seconds", &["server=\"local\""]);
        assert!(age < 15.0, "{}: {age}", cluster.0);
    }
    let leader = (LEADER, "antrea-multicluster");
    for member in ["east", "west"] {
        let cluster = format!("cluster=\"test-cluster-{member}\"");
        wait_metric(leader, "mccontroller_member_connected", &[&cluster], |v| v > 0.5);
        wait_metric(
            leader,
            "mccontroller_member_heartbeat_age_seconds",
            &[&cluster],
            |age| (0.0..20.0).contains(&age),
        );
        let kind = "kind=\"ClusterInfo\"";
        wait_metric(leader, "mccontroller_resource_exports", &[&cluster, kind], |v| {
            v > 0.5
        });
    }
    for cluster in [EAST, WEST] {
        let member = (cluster, "kube-system");
        wait_metric(member, "mccontroller_leader_connected", &[], |v| v > 0.5);
        wait_metric(member, "mccontroller_leader_accepted", &[], |v| v > 0.5);
        wait_metric(member, "mccontroller_heartbeat_age_seconds", &[], |age| {
            age < 20.0
        });
        wait_metric(member, "mccontroller_known_clusters", &[], |v| v > 0.5);
        // A heartbeat is written every 10 s.
        wait_metric(
            member,
            "mccontroller_writes_total",
            &[
                "server=\"leader\"",
                "kind=\"MemberClusterAnnounce\"",
                "result=\"done\"",
            ],
            |v| v > 0.5,
        );
    }
}

#[test]
fn a_missing_service_is_reported_on_the_service_export() {
    let ns = Namespace::create("e2e-seeing-missing");
    export(&ns, EAST, &json!({}));
    let message = wait_warning(EAST, ns.0, "ServiceExport", "web", "ServiceNotFound");
    assert_eq!(message, "Service does not exist");
    let described = EAST.kubectl(&["describe", "serviceexport", "web", "-n", ns.0]);
    assert!(
        described.contains("ServiceNotFound") && described.contains("serviceexport-controller"),
        "{described}"
    );
    wait_metric(
        (EAST, "kube-system"),
        "mccontroller_invalid_service_exports",
        &["reason=\"ServiceNotFound\""],
        |v| v > 0.5,
    );
    // A persisting condition has one Event.
    EAST.kubectl(&["annotate", "serviceexport", "web", "-n", ns.0, "looked=again"]);
    serve(
        &ns,
        EAST,
        &json!({ "ports": [{ "name": "a", "port": 42, "protocol": "TCP" }] }),
        "10.12.2.200",
    );
    wait_metric(
        (EAST, "kube-system"),
        "mccontroller_invalid_service_exports",
        &["reason=\"ServiceNotFound\""],
        |v| v < 0.5,
    );
    let warnings_seen = warnings(EAST, ns.0, "ServiceExport", "web");
    let missing = warnings_seen
        .iter()
        .filter(|(reason, _)| reason == "ServiceNotFound");
    assert_eq!(missing.count(), 1, "{warnings_seen:?}");
    ns.unexport(EAST);
}

#[test]
fn a_conflict_is_reported_in_both_clusters_and_by_the_leader() {
    let ns = Namespace::create("e2e-seeing-conflict");
    let spec = |port: u16| json!({ "ports": [{ "name": "a", "port": port, "protocol": "TCP" }] });
    serve(&ns, WEST, &spec(42), "10.13.2.200");
    export(&ns, WEST, &json!({}));
    wait_warning_free(&ns);
    serve(&ns, EAST, &spec(43), "10.12.2.200");
    export(&ns, EAST, &json!({}));
    for cluster in [EAST, WEST] {
        let message = wait_warning(cluster, ns.0, "ServiceExport", "web", "PortConflict");
        assert!(message.contains("port"), "{message}");
        let described = cluster.kubectl(&["describe", "serviceexport", "web", "-n", ns.0]);
        assert!(described.contains("PortConflict"), "{described}");
        wait_metric(
            (cluster, "kube-system"),
            "mccontroller_conflicting_service_exports",
            &["reason=\"PortConflict\""],
            |v| v > 0.5,
        );
    }
    let name = format!("{WEST_ID}-{}-web-service", ns.0);
    wait_warning(
        LEADER,
        "antrea-multicluster",
        "ResourceExport",
        &name,
        "PortConflict",
    );
    let leader = (LEADER, "antrea-multicluster");
    let cluster = format!("cluster=\"{WEST_ID}\"");
    let conflicts = "mccontroller_conflicting_resource_exports";
    wait_metric(leader, conflicts, &[&cluster], |v| v > 0.5);
    for cluster in [EAST, WEST] {
        ns.unexport(cluster);
    }
    wait_metric(leader, conflicts, &[&cluster], |v| v < 0.5);
}

/// Waits until the export is Ready and has no Warning.
fn wait_warning_free(ns: &Namespace) {
    WEST.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "serviceexport/web",
        "-n",
        ns.0,
        "--timeout=30s",
    ]);
    assert_eq!(warnings(WEST, ns.0, "ServiceExport", "web"), []);
}

#[test]
fn a_service_that_blocks_an_import_gets_an_event() {
    let ns = Namespace::create("e2e-seeing-way");
    let own = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "antrea-mc-web", "namespace": ns.0 },
        "spec": { "ports": [{ "port": 1 }] },
    });
    EAST.apply(&own.to_string());
    serve(
        &ns,
        WEST,
        &json!({ "ports": [{ "name": "a", "port": 42, "protocol": "TCP" }] }),
        "10.13.2.200",
    );
    export(&ns, WEST, &json!({}));
    let message = wait_warning(EAST, ns.0, "Service", "antrea-mc-web", "ServiceImportFailed");
    assert!(message.contains("is not an import"), "{message}");
    let warnings_of = ["kind=\"Service\"", "reason=\"ServiceImportFailed\""];
    wait_metric(
        (EAST, "kube-system"),
        "mccontroller_active_warning_events",
        &warnings_of,
        |v| v > 0.5,
    );
    ns.unexport(WEST);
}

/// The cells of the only object that `kubectl get` prints, by column.
fn printed(cluster: Cluster, namespace: &str, kind: &str, name: &str) -> Vec<(String, String)> {
    let out = cluster.kubectl(&["get", kind, name, "-n", namespace]);
    let lines: Vec<_> = out.lines().collect();
    let [header, row] = lines.as_slice() else {
        panic!("not one object:\n{out}")
    };
    // Cells are aligned, and names of columns contain single spaces.
    let names: Vec<_> = header
        .split("  ")
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .collect();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(names.len(), cells.len(), "{out}");
    let owned = |(name, cell): (&&str, &&str)| ((*name).to_owned(), (*cell).to_owned());
    names.iter().zip(&cells).map(owned).collect()
}

#[test]
fn kubectl_prints_the_outcome_of_exports_and_imports() {
    let ns = Namespace::create("e2e-columns");
    ns.serve(WEST, "west-n2", 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let exported = format!("{WEST_ID}-{}-web-service", ns.0);
    let check =
        |(cluster, namespace): (Cluster, &str), kind: &str, name: &str, columns: &str, cells: &[&str]| {
            cluster.wait_for(&format!("the columns of {kind}"), SHORT_TIMEOUT, || {
                let (names, row): (Vec<_>, Vec<_>) =
                    printed(cluster, namespace, kind, name).into_iter().unzip();
                if names.join(", ") == columns && row.iter().zip(cells).all(|(seen, wanted)| seen == wanted) {
                    Ok(())
                } else {
                    Err(format!("{names:?} {row:?}"))
                }
            });
        };
    check(
        (WEST, ns.0),
        "serviceexport",
        "web",
        "NAME, VALID, READY, CONFLICT, REASON, AGE",
        &["web", "True", "True", "False", "Succeed"],
    );
    check(
        (EAST, ns.0),
        "serviceimport",
        "web",
        "NAME, TYPE, IP, CLUSTERS, READY, AGE",
        &["web", "ClusterSetIP"],
    );
    check(
        (LEADER, "antrea-multicluster"),
        "resourceexport",
        &exported,
        "NAME, CLUSTER ID, KIND, NAMESPACE, NAME, OUTCOME, AGE",
        &[&exported, WEST_ID, "Service", ns.0, "web", "Succeeded"],
    );
    let import = printed(EAST, ns.0, "serviceimport", "web");
    let cell = |column: &str| {
        import
            .iter()
            .find(|(name, _)| name == column)
            .map(|(_, cell)| cell.as_str())
    };
    let clusters = format!("[{{\"cluster\":\"{WEST_ID}\"}}]");
    assert_eq!(cell("CLUSTERS"), Some(clusters.as_str()));
    assert_eq!(cell("READY"), Some("True"));
}
