//! What an API server makes of an object before it keeps it.

use serde_json::{Value, json};

use super::kinds::Resource;

/// Parts of `metadata` that are not kept when they are empty.
const PARTS: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];
/// What of a Service's spec stays as it is when a write does not mention it.
const ALLOCATED: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

/// Fills in what a write left open; `old` is the object before it, `address` makes a cluster IP.
pub(crate) fn fill(
    resource: &Resource,
    body: &mut Value,
    old: Option<&Value>,
    address: impl FnOnce() -> String,
) {
    if let Some(metadata) = body["metadata"].as_object_mut() {
        for part in PARTS {
            if metadata.get(part).is_some_and(is_empty) {
                metadata.remove(part);
            }
        }
    }
    match resource.1.as_str() {
        "services" => service(body, old, address),
        "endpointslices" => slice(body),
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

fn or(object: &mut Value, field: &str, default: Value) {
    if object[field].is_null() {
        object[field] = default;
    }
}

fn service(body: &mut Value, old: Option<&Value>, address: impl FnOnce() -> String) {
    if body["spec"].is_null() {
        body["spec"] = json!({});
    }
    let spec = &mut body["spec"];
    or(spec, "type", json!("ClusterIP"));
    or(spec, "sessionAffinity", json!("None"));
    if spec["publishNotReadyAddresses"] == false
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("publishNotReadyAddresses");
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        or(port, "protocol", json!("TCP"));
        let number = port["port"].clone();
        or(port, "targetPort", number);
    }
    if spec["ports"].as_array().is_none_or(Vec::is_empty)
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("ports");
    }
    if spec["type"] != "ExternalName" {
        or(spec, "internalTrafficPolicy", json!("Cluster"));
        for field in ALLOCATED {
            let before = old.map(|o| o["spec"][field].clone()).unwrap_or_default();
            if !before.is_null() {
                or(spec, field, before);
            }
        }
        if spec["clusterIP"].as_str().is_none_or(str::is_empty) {
            spec["clusterIP"] = json!(address());
        }
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
        or(spec, "ipFamilies", json!(["IPv4"]));
        or(spec, "ipFamilyPolicy", json!("SingleStack"));
    }
    if body["status"].is_null() {
        body["status"] = json!({ "loadBalancer": {} });
    }
}

/// An object as it is kept: lists of slices are null when they are empty, which whoever writes an empty one owns.
pub(crate) fn kept(resource: &Resource, mut body: Value) -> Value {
    if resource.1 == "endpointslices" {
        for list in ["endpoints", "ports"] {
            if is_empty(&body[list]) {
                body[list] = Value::Null;
            }
        }
    }
    body
}

fn slice(body: &mut Value) {
    for list in ["endpoints", "ports"] {
        or(body, list, Value::Null);
    }
    for port in body["ports"].as_array_mut().into_iter().flatten() {
        or(port, "name", json!(""));
        or(port, "protocol", json!("TCP"));
    }
}
