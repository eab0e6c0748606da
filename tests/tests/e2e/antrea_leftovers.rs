//! Objects that Antrea's controllers left in a cluster.

use std::collections::BTreeSet;

use crate::{
    clusters::{EAST, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

const WEST_NODE: &str = "west-n2";
/// An address that no Pod has any more.
const STALE: &str = "192.0.2.7";

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
