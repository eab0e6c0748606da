//! What an API server says no to, and how it says it.

use std::fmt;

use serde_json::{Value, json};

use super::{
    fields::{Hindrance, Path, show},
    kinds::{Kind, Resource},
    schema,
    store::{Key, Part, Stored},
};

/// An answer that is not 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP.
    pub(crate) code: u16,
    /// In `CamelCase`.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
    /// The fields others own, of a conflict between appliers.
    pub(crate) fields: Vec<String>,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal of that kind.
    pub(crate) fn new(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            _ => "InternalError",
        };
        Self {
            code,
            reason,
            message: message.into(),
            fields: vec![],
        }
    }

    /// A refusal that has no reason for programs.
    pub(crate) fn unnamed(code: u16, message: impl Into<String>) -> Self {
        Self {
            reason: "",
            ..Self::new(code, message)
        }
    }

    /// What an applier is told.
    pub(crate) fn hindrance(hindrance: &Hindrance) -> Self {
        match hindrance {
            Hindrance::Conflicts(conflicts) => Self::conflicts(conflicts),
            Hindrance::Twice(path) => {
                let why = format!(
                    "failed to create typed patch object: {}: duplicate entries",
                    show(path)
                );
                Self::unnamed(500, why)
            }
        }
    }

    fn conflicts(conflicts: &[(Path, String)]) -> Self {
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let all: Vec<_> = conflicts
            .iter()
            .map(|(path, other)| format!("conflict with {other:?}: {}", show(path)))
            .collect();
        let message = format!(
            "Apply failed with {} conflict{plural}: {}",
            conflicts.len(),
            all.join("; ")
        );
        Self {
            fields: conflicts.iter().map(|(path, _)| show(path)).collect(),
            ..Self::new(409, message)
        }
    }

    /// As an API server says it.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if self.reason.is_empty()
            && let Some(status) = status.as_object_mut()
        {
            status.remove("reason");
        }
        if self.code == 429 {
            status["details"] = json!({ "retryAfterSeconds": 1 });
        }
        if !self.fields.is_empty() {
            let cause =
                |field| json!({ "reason": "FieldManagerConflict", "message": "conflict", "field": field });
            let causes: Value = self.fields.iter().map(cause).collect();
            status["details"] = json!({ "causes": causes });
        }
        status
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

/// What a write asks to be as it was: UID or resource version.
pub(crate) fn precondition(old: &Stored, wanted: &Value, field: &str) -> Result<(), Refusal> {
    let wanted = wanted.as_str().unwrap_or_default();
    if wanted.is_empty() || old.meta(field) == wanted {
        return Ok(());
    }
    let have = old.meta(field);
    let why = format!("Precondition failed: {field} in precondition: {wanted}, in object meta: {have}");
    Err(Refusal::new(409, why))
}

/// Drops what a schema does not know and refuses what it does not allow; who writes both parts at once is not asked,
/// as if the schema had been another one then.
pub(crate) fn check(
    resource: &Resource,
    kind: &Kind,
    old: Option<&Value>,
    new: &mut Value,
    part: Part,
) -> Result<(), Refusal> {
    if part != Part::Both {
        schema::pruned(&kind.schema, new);
        if let Some(why) = schema::wrong(&kind.schema, old, new) {
            return Err(Refusal::new(422, why));
        }
    }
    valid(resource, new)
}

/// A patch cannot change whose UID it is.
pub(crate) fn same_uid(old: &Stored, patch: &Value) -> Result<(), Refusal> {
    let uid = &patch["metadata"]["uid"];
    if uid.is_null() || uid == old.meta("uid") {
        return Ok(());
    }
    let why = format!("metadata.uid: Invalid value: {uid}: field is immutable");
    Err(Refusal::new(422, why))
}

/// What names a UID is not created.
pub(crate) fn no_such_uid(key: &Key) -> Refusal {
    let why = format!("{}: uid mismatch: no existing object was found", key.1);
    Refusal::new(409, why)
}

/// What an API server refuses of what the controllers could write, beside what schemas say.
fn valid(resource: &Resource, body: &Value) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::new(422, message));
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    if !is_name(resource, name) {
        return refuse(format!("metadata.name: Invalid value: {name:?}"));
    }
    if let Some(labels) = body["metadata"]["labels"].as_object()
        && let Some((label, value)) = labels
            .iter()
            .find(|(_, v)| v.as_str().is_none_or(|v| v.len() > 63))
    {
        return refuse(format!(
            "metadata.labels: Invalid value: {label}={value}: must be no more than 63 bytes"
        ));
    }
    match resource.1.as_str() {
        "services" => {
            let no_ports = vec![];
            let ports = body["spec"]["ports"].as_array().unwrap_or(&no_ports);
            let mut names: Vec<_> = ports.iter().map(|p| p["name"].to_string()).collect();
            names.sort();
            names.dedup();
            let mut numbers: Vec<_> = ports
                .iter()
                .map(|p| (p["port"].to_string(), p["protocol"].to_string()))
                .collect();
            numbers.sort();
            numbers.dedup();
            if names.len() != ports.len() || numbers.len() != ports.len() {
                return refuse("spec.ports: Duplicate value".to_owned());
            }
            if ports.is_empty()
                && body["spec"]["type"] != "ExternalName"
                && body["spec"]["clusterIP"] != "None"
            {
                return refuse("spec.ports: Required value".to_owned());
            }
            Ok(())
        }
        "endpointslices" if body["endpoints"].as_array().is_some_and(|e| e.len() > 1000) => {
            refuse("endpoints: Too many".to_owned())
        }
        _ => Ok(()),
    }
}

/// A DNS label for Services, a DNS subdomain for everything else.
fn is_name(resource: &Resource, name: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        label.bytes().all(|b| word(b) || b == b'-')
            && label.bytes().next().is_some_and(word)
            && label.bytes().next_back().is_some_and(word)
    };
    if resource.1 == "services" {
        let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        return name.len() <= 63 && begins && label(name);
    }
    name.len() <= 253 && name.split('.').all(label)
}
