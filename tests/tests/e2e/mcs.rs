//! The MCS API's (KEP-1645, v1beta1) requirements on objects and conditions, on real API servers. The endpoints are
//! written by hand, without Pods.

mod differences;

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, SHORT_TIMEOUT, WEST},
    specs,
    workload::Namespace,
};

const EXPORT: &str = "serviceexports.v1beta1.multicluster.x-k8s.io";
/// Period in which a negative result must hold: several passes of leader and member.
const STABLE: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const IMPORT: &str = "serviceimports.v1beta1.multicluster.x-k8s.io";

/// A port number with all protocols, once with an appProtocol.
fn ports_of_all_protocols() -> Value {
    json!([
        { "name": "tcp", "port": 42, "protocol": "TCP", "appProtocol": "example.com/echo" },
        { "name": "udp", "port": 42, "protocol": "UDP" },
        { "name": "sctp", "port": 42, "protocol": "SCTP" },
    ])
}

fn apply(cluster: Cluster, object: &Value) {
    cluster.apply(&object.to_string());
}

/// Applies Service `web` with this spec and one ready endpoint.
pub(crate) fn serve(ns: &Namespace, cluster: Cluster, spec: &Value, address: &str) {
    let metadata = |name: &str| json!({ "name": name, "namespace": ns.0 });
    apply(
        cluster,
        &json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata("web"), "spec": spec }),
    );
    let ports: Vec<Value> = spec["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| json!({ "name": port["name"], "port": port["port"], "protocol": port["protocol"] }))
        .collect();
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata("web-by-hand"),
        "addressType": "IPv4", "ports": ports,
        "endpoints": [{ "addresses": [address], "hostname": "web-0", "conditions": { "ready": true } }],
    });
    slice["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "web" });
    apply(cluster, &slice);
}

pub(crate) fn export(ns: &Namespace, cluster: Cluster, spec: &Value) {
    let export = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": { "name": "web", "namespace": ns.0 }, "spec": spec,
    });
    apply(cluster, &export);
}

/// Checks for [`STABLE`] that a cluster has no import.
fn assert_no_import(ns: &Namespace, cluster: Cluster) {
    assert_stable(ns, cluster, |import| import.is_none());
}

/// Checks for [`STABLE`] that the import satisfies the predicate.
fn assert_stable(ns: &Namespace, cluster: Cluster, expected: impl Fn(Option<&Value>) -> bool) {
    let start = Instant::now();
    while start.elapsed() < STABLE {
        let import = cluster.get(ns.0, IMPORT, "web");
        assert!(expected(import.as_ref()), "{}: {import:?}", cluster.0);
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits for the condition; returns its reason.
fn wait_condition(ns: &Namespace, cluster: Cluster, type_: &str, status: &str) -> String {
    cluster.wait_for(
        &format!("condition {type_}={status} in {}", ns.0),
        SHORT_TIMEOUT,
        || {
            let export = cluster.get(ns.0, EXPORT, "web").unwrap_or_default();
            let conditions = export["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let found = conditions
                .iter()
                .find(|c| c["type"] == type_ && c["status"] == status);
            found
                .map(|c| c["reason"].as_str().unwrap_or_default().to_owned())
                .ok_or_else(|| export["status"].to_string())
        },
    )
}

/// Waits until the import satisfies the predicate.
fn wait_import(ns: &Namespace, cluster: Cluster, wanted: impl Fn(&Value) -> bool) -> Value {
    cluster.wait_for(&format!("ServiceImport {}/web", ns.0), SHORT_TIMEOUT, || {
        let import = cluster.get(ns.0, IMPORT, "web").unwrap_or_default();
        if wanted(&import) {
            Ok(import)
        } else {
            Err(import.to_string())
        }
    })
}

fn ports(import: &Value) -> Vec<(String, i64)> {
    let ports = import["spec"]["ports"].as_array().into_iter().flatten();
    ports
        .map(|p| {
            (
                p["name"].as_str().unwrap_or_default().to_owned(),
                p["port"].as_i64().unwrap_or_default(),
            )
        })
        .collect()
}

fn port_list(ports: &[(&str, i64)]) -> Vec<(String, i64)> {
    ports
        .iter()
        .map(|(name, port)| ((*name).to_owned(), *port))
        .collect()
}

#[test]
fn an_import_mirrors_its_export() {
    let ns = Namespace::create("e2e-mcs-import");
    let spec = json!({
        "ports": ports_of_all_protocols(), "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10 } },
        "internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose",
    });
    serve(&ns, WEST, &spec, "10.13.2.200");
    // Only the export's exportedLabels and exportedAnnotations reach the import, not these.
    for verb in ["label", "annotate"] {
        WEST.kubectl(&[verb, "service", "web", "-n", ns.0, "private=service"]);
    }
    let private = json!({ "private": "export" });
    let object = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": { "name": "web", "namespace": ns.0, "labels": private, "annotations": private },
        "spec": { "exportedLabels": { "team": "web" }, "exportedAnnotations": { "note": "of any kind" } },
    });
    apply(WEST, &object);
    assert_eq!(wait_condition(&ns, WEST, "Valid", "True"), "Succeed");
    assert_eq!(wait_condition(&ns, WEST, "Ready", "True"), "Exported");
    for cluster in [EAST, WEST] {
        let import = wait_import(&ns, cluster, |i| i["status"]["conditions"][0]["status"] == "True");
        let have = &import["spec"];
        assert_eq!(have["type"], "ClusterSetIP");
        for field in [
            "sessionAffinity",
            "sessionAffinityConfig",
            "internalTrafficPolicy",
            "trafficDistribution",
        ] {
            assert_eq!(have[field], spec[field], "{field}");
        }
        assert_eq!(have["ports"], ports_of_all_protocols());
        let ips = have["ips"].as_array().expect("ips");
        assert_eq!(
            ips.len(),
            have["ipFamilies"].as_array().expect("ipFamilies").len()
        );
        let service = cluster.get(ns.0, "service", "antrea-mc-web").expect("a Service");
        assert_eq!(have["ips"], service["spec"]["clusterIPs"]);
        assert_eq!(
            service["spec"]["sessionAffinityConfig"],
            spec["sessionAffinityConfig"]
        );
        assert_eq!(import["metadata"]["labels"]["team"], "web");
        assert_eq!(import["metadata"]["annotations"]["note"], "of any kind");
        for field in ["labels", "annotations"] {
            assert_eq!(import["metadata"][field]["private"], Value::Null, "{field}");
        }
        assert_eq!(
            import["status"]["clusters"],
            json!([{ "cluster": "test-cluster-west" }])
        );
    }
    // The older version shows the same object.
    let old = WEST
        .get(ns.0, "serviceimports.v1alpha1.multicluster.x-k8s.io", "web")
        .expect("v1alpha1");
    assert_eq!(old["spec"]["type"], "ClusterSetIP");
    ns.unexport(WEST);
    for cluster in [EAST, WEST] {
        cluster.wait_gone(ns.0, IMPORT, "web", SHORT_TIMEOUT);
    }
    specs::record(&[
        "an export is valid, and its import of type ClusterSetIP exists as long as it",
        "an import has the session affinity of the Service",
        "an import has the internalTrafficPolicy of the Service",
        "an import has the trafficDistribution of the Service",
        "an import has an address for each of its families",
        "an import has the ports of the Service",
        "an import has the exported labels and annotations",
    ]);
}

#[test]
fn an_import_exists_while_one_cluster_exports() {
    let ns = Namespace::create("e2e-mcs-last");
    for (cluster, address) in [(EAST, "10.12.2.200"), (WEST, "10.13.2.200")] {
        serve(
            &ns,
            cluster,
            &json!({ "ports": ports_of_all_protocols() }),
            address,
        );
        export(&ns, cluster, &json!({}));
    }
    let clusters = |count: usize| {
        move |import: &Value| {
            import["status"]["clusters"]
                .as_array()
                .is_some_and(|c| c.len() == count)
        }
    };
    wait_import(&ns, EAST, clusters(2));
    ns.unexport(EAST);
    wait_import(&ns, EAST, clusters(1));
    ns.unexport(WEST);
    EAST.wait_gone(ns.0, IMPORT, "web", SHORT_TIMEOUT);
    specs::record(&["an import exists while one cluster exports"]);
}

#[test]
fn different_ports_are_merged_and_both_exporters_report_a_conflict() {
    let ns = Namespace::create("e2e-mcs-ports");
    let spec = |ports: Value| json!({ "ports": ports });
    let tcp = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP" });
    serve(
        &ns,
        WEST,
        &spec(json!([tcp("a", 42), tcp("b", 43)])),
        "10.13.2.200",
    );
    export(&ns, WEST, &json!({}));
    wait_import(&ns, EAST, |i| ports(i) == port_list(&[("a", 42), ("b", 43)]));
    // An additional port, and one that contradicts the older export.
    serve(
        &ns,
        EAST,
        &spec(json!([tcp("b", 4343), tcp("c", 44)])),
        "10.12.2.200",
    );
    export(&ns, EAST, &json!({}));
    for cluster in [EAST, WEST] {
        assert_eq!(wait_condition(&ns, cluster, "Conflict", "True"), "PortConflict");
        wait_import(&ns, cluster, |i| {
            ports(i) == port_list(&[("a", 42), ("b", 43), ("c", 44)])
        });
    }
    // A cluster has endpoints only for ports it serves.
    let wanted = json!({ "test-cluster-east": ["c"], "test-cluster-west": ["a", "b"] });
    EAST.wait_for("ports by cluster", SHORT_TIMEOUT, || {
        let mut seen = json!({});
        for slice in EAST.list(
            ns.0,
            "endpointslice",
            "multicluster.kubernetes.io/service-name=web",
        ) {
            let cluster = &slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"];
            let mut names: Vec<_> = slice["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|p| p["name"].to_string())
                .collect();
            names.sort();
            seen[cluster.as_str().unwrap_or_default()] = names
                .iter()
                .map(|n| serde_json::from_str::<Value>(n).expect("a string"))
                .collect();
        }
        if seen == wanted {
            Ok(())
        } else {
            Err(seen.to_string())
        }
    });
    ns.unexport(WEST);
    assert_eq!(wait_condition(&ns, EAST, "Conflict", "False"), "NoConflicts");
    wait_import(&ns, EAST, |i| ports(i) == port_list(&[("b", 4343), ("c", 44)]));
    specs::record(&[
        "different ports are merged, and all exporters report a conflict",
        "the oldest export decides the number of a port, and all exporters report a conflict",
    ]);
}

#[test]
fn a_headless_import_has_hostnames_and_no_address() {
    let ns = Namespace::create("e2e-mcs-headless");
    let headless = json!({ "clusterIP": "None", "ports": ports_of_all_protocols() });
    serve(&ns, WEST, &headless, "10.13.2.200");
    export(&ns, WEST, &json!({}));
    for cluster in [EAST, WEST] {
        let import = wait_import(&ns, cluster, |i| i["spec"]["type"] == "Headless");
        assert_eq!(import["spec"]["ips"], Value::Null);
        assert_stable(&ns, cluster, |import| {
            import.is_some_and(|i| i["spec"]["type"] == "Headless" && i["spec"]["ips"].is_null())
        });
        let slices = cluster.wait_for("slices", SHORT_TIMEOUT, || {
            let slices = cluster.list(
                ns.0,
                "endpointslice",
                "multicluster.kubernetes.io/service-name=web",
            );
            if slices.is_empty() {
                Err("none".to_owned())
            } else {
                Ok(slices)
            }
        });
        assert_eq!(slices[0]["endpoints"][0]["hostname"], "web-0");
        for slice in &slices {
            assert_eq!(
                slice["endpoints"][0]["addresses"],
                json!(["10.13.2.200"]),
                "{slice}"
            );
        }
    }
    // The younger export has another type: it is ignored, and both exporters report the conflict.
    serve(
        &ns,
        EAST,
        &json!({ "ports": ports_of_all_protocols() }),
        "10.12.2.200",
    );
    export(&ns, EAST, &json!({}));
    for cluster in [EAST, WEST] {
        assert_eq!(wait_condition(&ns, cluster, "Conflict", "True"), "TypeConflict");
        wait_import(&ns, cluster, |i| i["spec"]["type"] == "Headless");
    }
    ns.unexport(WEST);
    wait_import(&ns, WEST, |i| {
        i["spec"]["type"] == "ClusterSetIP" && i["spec"]["ips"][0].is_string()
    });
    specs::record(&["a headless import has no address"]);
}

#[test]
fn an_external_name_service_is_not_exported() {
    let ns = Namespace::create("e2e-mcs-external");
    let spec = json!({ "type": "ExternalName", "externalName": "example.com" });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": ns.0 }, "spec": spec,
    });
    apply(WEST, &service);
    export(&ns, WEST, &json!({}));
    assert_eq!(
        wait_condition(&ns, WEST, "Valid", "False"),
        "ServiceTypeNotSupported"
    );
    assert_eq!(wait_condition(&ns, WEST, "Ready", "False"), "Failed");
    for cluster in [EAST, WEST] {
        assert_no_import(&ns, cluster);
    }
    specs::record(&["an ExternalName is not valid and has no import"]);
}
