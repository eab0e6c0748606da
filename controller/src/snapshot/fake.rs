//! An API server of maps, for tests: applies a plan to the snapshot it was made from.

use std::sync::Arc;

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    plan::{WritableKind, Write, WriteOp},
    snapshot::{NamespacedName, ObjectMap},
};

/// The time in these tests.
pub(crate) const NOW: &str = "2026-01-01T12:00:00Z";

/// A typed object from JSON.
pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Inserts an object, as another writer would.
pub(crate) fn insert<K: Resource + Clone>(objects: &mut ObjectMap<K>, object: K) {
    let key = NamespacedName::from(object.meta());
    Arc::make_mut(objects).insert(key, Arc::new(object));
}

/// Removes an object, or marks it as deleted if it has finalizers.
pub(crate) fn delete<K: Resource + Clone>(objects: &mut ObjectMap<K>, key: &NamespacedName) {
    let map = Arc::make_mut(objects);
    let held = map
        .get(key)
        .is_some_and(|o| o.meta().finalizers.as_ref().is_some_and(|f| !f.is_empty()));
    if held {
        let object = Arc::make_mut(map.get_mut(key).unwrap());
        object.meta_mut().deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    } else {
        map.remove(key);
    }
}

/// Executes one write if its object is of kind `K`.
pub(crate) fn apply_write<K>(objects: &mut ObjectMap<K>, write: &Write)
where
    K: WritableKind + Clone + Serialize + DeserializeOwned,
{
    if write.target.kind != K::KIND {
        return;
    }
    let key = NamespacedName::new(write.target.namespace.as_str(), write.target.name.as_str());
    let old = objects
        .get(&key)
        .map(|o| serde_json::to_value(o.as_ref()).unwrap());
    let new = match (&write.op, old) {
        (WriteOp::Delete { .. }, _) => return delete(objects, &key),
        (WriteOp::Create(_), Some(old)) => old,
        (WriteOp::Create(body) | WriteOp::Apply(body), None) => born(&key, body.value()),
        (WriteOp::Apply(body), Some(old)) => applied(&old, body.value()),
        (WriteOp::Patch(patch) | WriteOp::Status(patch), Some(mut old)) => {
            merge(&mut old, &patch.value());
            old
        }
        (WriteOp::Patch(_) | WriteOp::Status(_), None) => panic!("{write:?} of a missing object"),
    };
    let object: K = serde_json::from_value(new).unwrap();
    let freed = object.meta().deletion_timestamp.is_some()
        && object.meta().finalizers.as_ref().is_none_or(Vec::is_empty);
    if freed {
        Arc::make_mut(objects).remove(&key);
    } else {
        insert(objects, object);
    }
}

fn born(key: &NamespacedName, mut body: Value) -> Value {
    merge(
        &mut body,
        &json!({ "metadata": { "uid": format!("uid-of-{}-{}", key.namespace, key.name), "creationTimestamp": NOW } }),
    );
    if body["kind"] == "Service" && body["spec"]["clusterIP"] != "None" {
        let (v4, v6) = ("10.20.0.77", "fd00:20::77");
        let (ips, families) = if body["spec"]["ipFamilies"] == json!(["IPv6"]) {
            (json!([v6]), json!(["IPv6"]))
        } else if body["spec"]["ipFamilyPolicy"] == "PreferDualStack" {
            (json!([v4, v6]), json!(["IPv4", "IPv6"]))
        } else {
            (json!([v4]), json!(["IPv4"]))
        };
        let given = json!({ "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families });
        merge(&mut body, &json!({ "spec": given }));
    }
    body
}

/// Server-side apply by the only writer of the spec.
fn applied(old: &Value, mut body: Value) -> Value {
    for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
        body["metadata"][field] = old["metadata"][field].clone();
    }
    if !old["status"].is_null() {
        body["status"] = old["status"].clone();
    }
    body
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
