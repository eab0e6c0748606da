//! A cluster that cannot import a Service is named at the `ServiceExport` of the exporter.

use serde_json::Value;

use crate::{
    clusters::{EAST, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

/// The message of the condition `ImportFailed`; `None` without one.
fn import_failed(namespace: &str) -> Option<String> {
    let export = EAST.get(namespace, "serviceexports.multicluster.x-k8s.io", "web")?;
    let conditions = export["status"]["conditions"].as_array()?;
    let failed = conditions
        .iter()
        .find(|c| c["type"] == "ImportFailed" && c["status"] == "True")?;
    failed["message"].as_str().map(str::to_owned)
}

#[test]
fn a_missing_namespace_is_named_at_the_export_until_it_exists() {
    let ns = Namespace::create_in("e2e-failed-import", &[EAST]);
    ns.serve(EAST, "east-n2", 1);
    ns.export(EAST);
    let cause = "cluster \"test-cluster-west\": NamespaceNotFound: spec.namespace: Namespace \"e2e-failed-import\" does not \
                 exist in this cluster; not imported";
    EAST.wait_for("the failure of west", SHORT_TIMEOUT, || {
        match import_failed(ns.0) {
            Some(message) if message == cause => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    });
    let events = EAST.list(ns.0, "events", "");
    let reasons: Vec<_> = events
        .iter()
        .map(|event| event["reason"].as_str().unwrap_or_default())
        .collect();
    assert!(
        !reasons.contains(&"ServiceImportFailed"),
        "east imports it: {reasons:?}"
    );

    let _in_west = Namespace::create_in("e2e-failed-import", &[WEST]);
    WEST.wait_for("the imported Service", SHORT_TIMEOUT, || {
        let service: Option<Value> = WEST.get(ns.0, "service", "antrea-mc-web");
        service.map(drop).ok_or_else(|| "none".to_owned())
    });
    EAST.wait_for(
        "the end of the condition",
        SHORT_TIMEOUT,
        || match import_failed(ns.0) {
            None => Ok(()),
            Some(message) => Err(message),
        },
    );
    ns.unexport(EAST);
}
