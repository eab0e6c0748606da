//! Exporters that differ in more than their ports, and the removal of the last one.

use serde_json::{Value, json};

use super::{IMPORT, export, ports_of_all_protocols, serve, wait_condition, wait_import};
use crate::{
    clusters::{Cluster, EAST, SHORT_TIMEOUT, WEST},
    specs,
    workload::Namespace,
};

const OF_WEB: &str = "multicluster.kubernetes.io/service-name=web";

/// The slices of the import, once there are some.
fn slices(ns: &Namespace, cluster: Cluster) -> Vec<Value> {
    cluster.wait_for("slices", SHORT_TIMEOUT, || {
        let slices = cluster.list(ns.0, "endpointslice", OF_WEB);
        (!slices.is_empty())
            .then_some(slices)
            .ok_or_else(|| "none".to_owned())
    })
}

#[test]
fn labels_and_annotations_are_those_of_the_oldest_export() {
    let ns = Namespace::create("e2e-mcs-labels");
    // Each exporter has a key of its own, too: labels and annotations of two exporters are not merged.
    let export_spec = |cluster: &str| {
        json!({
            "exportedLabels": { "of": cluster, (format!("only-{cluster}")): "x" },
            "exportedAnnotations": { "by": cluster, (format!("only-{cluster}")): "x" },
        })
    };
    let has = |cluster: &'static str, other: &'static str| {
        move |import: &Value| {
            let complete = |field: &str, key: &str| {
                let all = &import["metadata"][field];
                all[key] == cluster
                    && all[format!("only-{cluster}")] == "x"
                    && all[format!("only-{other}")].is_null()
            };
            complete("labels", "of") && complete("annotations", "by")
        }
    };
    serve(
        &ns,
        WEST,
        &json!({ "ports": ports_of_all_protocols() }),
        "10.12.2.200",
    );
    export(&ns, WEST, &export_spec("west"));
    wait_import(&ns, EAST, has("west", "east"));
    serve(
        &ns,
        EAST,
        &json!({ "ports": ports_of_all_protocols() }),
        "10.11.2.200",
    );
    export(&ns, EAST, &export_spec("east"));
    for cluster in [EAST, WEST] {
        let reason = wait_condition(&ns, cluster, "Conflict", "True");
        assert!(
            reason.contains("LabelsConflict") && reason.contains("AnnotationsConflict"),
            "{reason}"
        );
        wait_import(&ns, cluster, has("west", "east"));
    }
    ns.unexport(WEST);
    wait_import(&ns, WEST, has("east", "west"));
    specs::record(&["the oldest export decides labels and annotations, and all exporters report a conflict"]);
}

#[test]
fn a_younger_headless_export_does_not_take_the_address() {
    let ns = Namespace::create("e2e-mcs-types");
    serve(
        &ns,
        WEST,
        &json!({ "ports": ports_of_all_protocols() }),
        "10.12.2.200",
    );
    export(&ns, WEST, &json!({}));
    let with_address = |i: &Value| i["spec"]["type"] == "ClusterSetIP" && i["spec"]["ips"][0].is_string();
    wait_import(&ns, EAST, with_address);
    let headless = json!({ "clusterIP": "None", "ports": ports_of_all_protocols() });
    serve(&ns, EAST, &headless, "10.11.2.200");
    export(&ns, EAST, &json!({}));
    for cluster in [EAST, WEST] {
        assert_eq!(wait_condition(&ns, cluster, "Conflict", "True"), "TypeConflict");
        wait_import(&ns, cluster, with_address);
    }
    specs::record(&[
        "the oldest export decides between an address and headless, and all exporters report a conflict",
    ]);
}

#[test]
fn a_headless_import_is_removed_with_its_export() {
    let ns = Namespace::create("e2e-mcs-headless-goes");
    let headless = json!({ "clusterIP": "None", "ports": ports_of_all_protocols() });
    serve(&ns, WEST, &headless, "10.12.2.200");
    export(&ns, WEST, &json!({}));
    for cluster in [EAST, WEST] {
        wait_import(&ns, cluster, |i| i["spec"]["type"] == "Headless");
    }
    ns.unexport(WEST);
    for cluster in [EAST, WEST] {
        cluster.wait_gone(ns.0, IMPORT, "web", SHORT_TIMEOUT);
    }
    specs::record(&["a headless export's import is headless, and is removed with it"]);
}

#[test]
fn slices_name_their_cluster_and_are_removed_with_the_export() {
    let ns = Namespace::create("e2e-mcs-slices");
    serve(
        &ns,
        WEST,
        &json!({ "ports": ports_of_all_protocols() }),
        "10.12.2.200",
    );
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
        cluster.wait_for("no slices", SHORT_TIMEOUT, || {
            let left = cluster.list(ns.0, "endpointslice", OF_WEB);
            left.is_empty().then_some(()).ok_or_else(|| format!("{left:?}"))
        });
    }
    specs::record(&[
        "each cluster has slices per exporting cluster with their own manager, removed with the export",
    ]);
}
