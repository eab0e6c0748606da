//! Exporters that differ in more than their ports, and what goes with the last of them.

use serde_json::{Value, json};

use super::{IMPORT, export, serve, two_ports, wait_condition, wait_import};
use crate::{
    clusters::{Cluster, EAST, SOON, WEST},
    specs,
    workload::Namespace,
};

const OF_WEB: &str = "multicluster.kubernetes.io/service-name=web";

/// The slices of the import that another cluster exports, once there are some.
fn slices(ns: &Namespace, cluster: Cluster) -> Vec<Value> {
    cluster.wait_for("slices", SOON, || {
        let slices = cluster.list(ns.0, "endpointslice", OF_WEB);
        (!slices.is_empty())
            .then_some(slices)
            .ok_or_else(|| "none".to_owned())
    })
}

#[test]
fn labels_and_annotations_are_those_of_the_oldest_export() {
    let ns = Namespace::create("e2e-mcs-labels");
    let say = |who: &str| json!({ "exportedLabels": { "of": who }, "exportedAnnotations": { "by": who } });
    let has = |who: &'static str| {
        move |import: &Value| {
            let metadata = &import["metadata"];
            metadata["labels"]["of"] == who && metadata["annotations"]["by"] == who
        }
    };
    serve(&ns, WEST, &json!({ "ports": two_ports() }), "10.12.2.200");
    export(&ns, WEST, &say("west"));
    wait_import(&ns, EAST, has("west"));
    serve(&ns, EAST, &json!({ "ports": two_ports() }), "10.11.2.200");
    export(&ns, EAST, &say("east"));
    for cluster in [EAST, WEST] {
        let reason = wait_condition(&ns, cluster, "Conflict", "True");
        assert!(
            reason.contains("LabelsConflict") && reason.contains("AnnotationsConflict"),
            "{reason}"
        );
        wait_import(&ns, cluster, has("west"));
    }
    ns.unexport(WEST);
    wait_import(&ns, WEST, has("east"));
    specs::hold(&[
        "of labels and annotations that differ the oldest export's are used, and all exporters are told",
    ]);
}

#[test]
fn an_address_is_not_taken_by_a_younger_headless_service() {
    let ns = Namespace::create("e2e-mcs-types");
    serve(&ns, WEST, &json!({ "ports": two_ports() }), "10.12.2.200");
    export(&ns, WEST, &json!({}));
    let with_address = |i: &Value| i["spec"]["type"] == "ClusterSetIP" && i["spec"]["ips"][0].is_string();
    wait_import(&ns, EAST, with_address);
    let headless = json!({ "clusterIP": "None", "ports": two_ports() });
    serve(&ns, EAST, &headless, "10.11.2.200");
    export(&ns, EAST, &json!({}));
    for cluster in [EAST, WEST] {
        assert_eq!(wait_condition(&ns, cluster, "Conflict", "True"), "TypeConflict");
        wait_import(&ns, cluster, with_address);
    }
    specs::hold(&[
        "of a Service with an address and a headless one the oldest export's type is used, and all exporters are told",
    ]);
}

#[test]
fn a_headless_import_goes_with_its_export() {
    let ns = Namespace::create("e2e-mcs-headless-goes");
    let headless = json!({ "clusterIP": "None", "ports": two_ports() });
    serve(&ns, WEST, &headless, "10.12.2.200");
    export(&ns, WEST, &json!({}));
    for cluster in [EAST, WEST] {
        wait_import(&ns, cluster, |i| i["spec"]["type"] == "Headless");
    }
    ns.unexport(WEST);
    for cluster in [EAST, WEST] {
        cluster.wait_gone(ns.0, IMPORT, "web", SOON);
    }
    specs::hold(&["a headless export's import is headless, and goes with it"]);
}

#[test]
fn slices_say_whose_they_are_and_go_with_the_export() {
    let ns = Namespace::create("e2e-mcs-slices");
    serve(&ns, WEST, &json!({ "ports": two_ports() }), "10.12.2.200");
    export(&ns, WEST, &json!({}));
    for cluster in [EAST, WEST] {
        for slice in slices(&ns, cluster) {
            let labels = &slice["metadata"]["labels"];
            assert_eq!(
                labels["multicluster.kubernetes.io/source-cluster"],
                "test-cluster-west"
            );
            let keeper = labels["endpointslice.kubernetes.io/managed-by"]
                .as_str()
                .unwrap_or_default();
            assert!(
                !["", "endpointslice-controller.k8s.io"].contains(&keeper),
                "{keeper:?}"
            );
            assert_eq!(slice["addressType"], "IPv4");
        }
    }
    ns.unexport(WEST);
    for cluster in [EAST, WEST] {
        cluster.wait_for("no slices", SOON, || {
            let left = cluster.list(ns.0, "endpointslice", OF_WEB);
            left.is_empty().then_some(()).ok_or_else(|| format!("{left:?}"))
        });
    }
    specs::hold(&[
        "each cluster has slices by exporting cluster that nobody else keeps, and they go with the export",
    ]);
}
