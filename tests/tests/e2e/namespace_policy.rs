//! `namespacePolicy: Strict` of a member: Services of other Namespaces than those allowed are neither imported nor
//! exported.

use serde_json::Value;

use crate::{
    clusters::{EAST, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

const WEST_NODE: &str = "west-n2";
const IMPORTED: &str = "antrea-mc-web";

#[test]
fn a_closed_namespace_exports_and_imports_nothing() {
    let ns = Namespace::create("e2e-closed");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    EAST.configure("namespacePolicy", "Strict");
    EAST.configure("allowedNamespaces", "[e2e-other]");
    EAST.wait_gone(ns.0, "service", IMPORTED, SHORT_TIMEOUT);
    ns.export(EAST);
    EAST.wait_for("the reason at the ServiceExport", SHORT_TIMEOUT, || {
        let export = EAST.get(ns.0, "serviceexports.multicluster.x-k8s.io", "web");
        let conditions = export.map(|export| export["status"]["conditions"].clone());
        let refused = |c: &Value| c["type"] == "Valid" && c["reason"] == "NamespaceNotAllowed";
        match conditions.as_ref().and_then(Value::as_array) {
            Some(all) if all.iter().any(refused) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    });
    assert!(
        WEST.get(ns.0, "service", IMPORTED).is_some(),
        "west has no such policy"
    );
    EAST.configure("allowedNamespaces", "[]");
    EAST.configure("namespacePolicy", "Open");
    EAST.wait_for("the Service returns", SHORT_TIMEOUT, || {
        EAST.get(ns.0, "service", IMPORTED)
            .map(drop)
            .ok_or_else(|| "none".to_owned())
    });
}
