//! Defaulting and normalisation of written objects.

use serde_json::{Value, json};

use super::resources::Resource;

/// Parts of `metadata` that are dropped when empty.
const OMITTED_IF_EMPTY: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];
/// Service fields that keep their value when a write omits them.
const ALLOCATED: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

/// Sets the fields a write omits; `old` is the previous object, `address` allocates a cluster IP.
pub(super) fn set_defaults(
    resource: &Resource,
    body: &mut Value,
    old: Option<&Value>,
    address: impl FnOnce() -> String,
) {
    if let Some(metadata) = body["metadata"].as_object_mut() {
        for part in OMITTED_IF_EMPTY {
            if metadata.get(part).is_some_and(is_empty) {
                metadata.remove(part);
            }
        }
    }
    match resource.1.as_str() {
        "services" => set_service_defaults(body, old, address),
        "endpointslices" => set_slice_defaults(body),
        "leases" if body["spec"].is_null() => body["spec"] = json!({}),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn set_if_null(object: &mut Value, field: &str, default: Value) {
    if object[field].is_null() {
        object[field] = default;
    }
}

fn set_service_defaults(body: &mut Value, old: Option<&Value>, address: impl FnOnce() -> String) {
    if body["spec"].is_null() {
        body["spec"] = json!({});
    }
    let spec = &mut body["spec"];
    set_if_null(spec, "type", json!("ClusterIP"));
    set_if_null(spec, "sessionAffinity", json!("None"));
    if spec["publishNotReadyAddresses"] == false
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("publishNotReadyAddresses");
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        set_if_null(port, "protocol", json!("TCP"));
        let number = port["port"].clone();
        set_if_null(port, "targetPort", number);
    }
    if spec["ports"].as_array().is_none_or(Vec::is_empty)
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("ports");
    }
    if spec["type"] != "ExternalName" {
        set_if_null(spec, "internalTrafficPolicy", json!("Cluster"));
        for field in ALLOCATED {
            let before = old.map(|o| o["spec"][field].clone()).unwrap_or_default();
            if !before.is_null() {
                set_if_null(spec, field, before);
            }
        }
        if spec["clusterIP"].as_str().is_none_or(str::is_empty) {
            spec["clusterIP"] = json!(address());
        }
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
        set_if_null(spec, "ipFamilies", json!(["IPv4"]));
        set_if_null(spec, "ipFamilyPolicy", json!("SingleStack"));
    }
    if body["status"].is_null() {
        body["status"] = json!({ "loadBalancer": {} });
    }
}

/// The stored form: empty lists of an EndpointSlice are null, and owned by the writer of the empty list.
pub(super) fn normalize(resource: &Resource, mut body: Value) -> Value {
    if resource.1 == "endpointslices" {
        for list in ["endpoints", "ports"] {
            if is_empty(&body[list]) {
                body[list] = Value::Null;
            }
        }
    }
    body
}

fn set_slice_defaults(body: &mut Value) {
    for list in ["endpoints", "ports"] {
        set_if_null(body, list, Value::Null);
    }
    for port in body["ports"].as_array_mut().into_iter().flatten() {
        set_if_null(port, "name", json!(""));
        set_if_null(port, "protocol", json!("TCP"));
    }
}
