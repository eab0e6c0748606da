//! Normalisation of server-generated values: UIDs, versions, addresses and times are replaced by names in order of
//! appearance, so that equal objects compare equal on both servers.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Value, json};

/// Names of the values of one server.
#[derive(Debug, Default)]
pub(super) struct Normalizer {
    uids: BTreeMap<String, String>,
    versions: BTreeMap<u64, usize>,
    addresses: BTreeMap<String, usize>,
}

impl Normalizer {
    /// Sets the name of a UID.
    pub(super) fn name_uid(&mut self, uid: &str, name: &str) {
        self.uids.insert(uid.to_owned(), name.to_owned());
    }

    /// The name of a version.
    pub(super) fn version(&mut self, version: &str) -> Value {
        let next = self.versions.len();
        version.parse().map_or(Value::Null, |number| {
            let number = *self.versions.entry(number).or_insert(next);
            json!(format!("v{number}"))
        })
    }

    /// The newest version so far.
    pub(super) fn newest(&self) -> u64 {
        self.versions.keys().next_back().copied().unwrap_or(0)
    }

    /// The names of all versions, oldest version first.
    pub(super) fn order(&self) -> Vec<usize> {
        self.versions.values().copied().collect()
    }

    fn uid(&mut self, uid: &str) -> Value {
        let next = format!("u{}", self.uids.len());
        json!(self.uids.entry(uid.to_owned()).or_insert(next))
    }

    fn address(&mut self, value: &mut Value) {
        if let Some(address) = value.as_str().filter(|a| a.parse::<IpAddr>().is_ok()) {
            let next = self.addresses.len();
            let number = *self.addresses.entry(address.to_owned()).or_insert(next);
            *value = json!(format!("ip{number}"));
        }
    }

    /// A normalised object.
    pub(super) fn object(&mut self, mut object: Value) -> Value {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return object;
        };
        metadata.remove("managedFields");
        if let Some(uid) = metadata.get_mut("uid") {
            *uid = self.uid(uid.as_str().unwrap_or_default());
        }
        if let Some(version) = metadata.get_mut("resourceVersion") {
            *version = self.version(version.as_str().unwrap_or_default());
        }
        for field in ["creationTimestamp", "deletionTimestamp"] {
            if let Some(time) = metadata.get_mut(field) {
                *time = json!("then");
            }
        }
        let owners = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten() {
            let uid = owner["uid"].as_str().unwrap_or_default().to_owned();
            owner["uid"] = self.uid(&uid);
        }
        if let Some(address) = object.pointer_mut("/spec/clusterIP") {
            self.address(address);
        }
        let addresses = object
            .pointer_mut("/spec/clusterIPs")
            .and_then(Value::as_array_mut);
        for address in addresses.into_iter().flatten() {
            self.address(address);
        }
        object
    }

    /// The machine-readable part of a `Status`.
    pub(super) fn status(&mut self, status: &Value) -> Value {
        let details = &status["details"];
        if status["status"] == "Success" {
            let uid = self.uid(details["uid"].as_str().unwrap_or_default());
            return json!({ "done": [details["group"], details["kind"], details["name"], uid] });
        }
        let mut reply = json!({ "refused": status["reason"] });
        // Messages differ; conflicts are compared by field.
        if status["reason"] == "Conflict" {
            let causes = details["causes"].as_array().into_iter().flatten();
            let mut fields: Vec<_> = causes.map(|cause| cause["field"].to_string()).collect();
            fields.sort();
            reply["fields"] = json!(fields);
        }
        reply
    }
}
