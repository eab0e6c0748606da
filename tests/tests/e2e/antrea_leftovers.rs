//! Objects that Antrea's controllers left in a cluster.

use std::collections::BTreeSet;

use serde_json::json;

use crate::{
    clusters::{EAST, LEADER, LEADER_NAMESPACE, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

const WEST_NODE: &str = "west-n2";
/// An address that no Pod has any more.
const STALE: &str = "192.0.2.7";
/// A member that has vanished, and the finalizers of Antrea's versions on its exports.
const VANISHED: &str = "e2e-vanished";
const FINALIZERS: [&str; 2] = [
    "resourceexport.antrea.io/finalizer",
    "resourceexport.finalizers.antrea.io",
];

/// Kubernetes mirrors the Endpoints into a slice, by which the controller finds them.
#[test]
fn leftover_endpoints_of_an_imported_service_disappear() {
    let ns = Namespace::create("e2e-leftovers");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    let endpoints = ns.wait_imported(EAST, 1);
    EAST.apply(&format!(
        "apiVersion: v1
kind: Endpoints
metadata:
  name: antrea-mc-web
  namespace: {namespace}
  annotations: {{multicluster.antrea.io/imported-service: \"true\"}}
subsets:
- addresses: [{{ip: {STALE}}}]
  ports: [{{name: http, port: 80}}]
---
apiVersion: v1
kind: Endpoints
metadata: {{name: of-a-user, namespace: {namespace}}}
subsets:
- addresses: [{{ip: {STALE}}}]
",
        namespace = ns.0
    ));
    EAST.wait_gone(ns.0, "endpoints", "antrea-mc-web", SHORT_TIMEOUT);
    assert_eq!(ns.wait_imported(EAST, 1), endpoints);
    assert!(!endpoints.contains(STALE), "{endpoints:?}");
    let kept: BTreeSet<_> = EAST
        .list(ns.0, "endpoints", "")
        .iter()
        .filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(kept, BTreeSet::from(["of-a-user".to_owned()]));
}

/// The step of the guides before the CRDs are deleted ("Known Issue"), for the exports of one member: it ends, because
/// the leader controller removes Antrea's finalizers.
#[test]
fn leftover_exports_can_be_deleted_as_in_the_guides() {
    let exports: Vec<_> = FINALIZERS
        .iter()
        .enumerate()
        .map(|(i, finalizer)| {
            let name = format!("web-{i}");
            json!({
                "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
                "metadata": {
                    "name": format!("{VANISHED}-shop-{name}-service"), "namespace": LEADER_NAMESPACE,
                    "labels": { "sourceClusterID": VANISHED }, "finalizers": [finalizer],
                },
                "spec": {
                    "clusterID": VANISHED, "kind": "Service", "namespace": "shop", "name": name,
                    "service": { "serviceSpec": { "ports": [{ "port": 80, "protocol": "TCP" }] } },
                },
            })
            .to_string()
        })
        .collect();
    LEADER.apply(&exports.join("\n---\n"));
    let selector = format!("sourceClusterID={VANISHED}");
    let names = "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}";
    let listed = LEADER.kubectl(&["get", "resourceexport", "-A", "-l", &selector, "-o", names]);
    let mut deleted = 0;
    for (namespace, name) in listed.lines().filter_map(|line| line.split_once(' ')) {
        let export = format!("resourceexport/{name}");
        LEADER.kubectl(&["delete", "-n", namespace, &export, "--timeout=30s"]);
        deleted += 1;
    }
    assert_eq!(deleted, FINALIZERS.len(), "{listed}");
    assert!(
        LEADER
            .list(LEADER_NAMESPACE, "resourceexports", &selector)
            .is_empty()
    );
}
