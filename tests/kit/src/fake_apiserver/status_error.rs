//! Errors of the API server as `Status` objects.

use std::fmt;

use serde_json::{Value, json};

use super::{
    fields::{ApplyError, Path, display_path},
    resources::{Kind, Resource},
    schema,
    store::{Key, StoredObject, WriteScope},
};

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason; may be empty.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    /// Conflicting fields of a server-side apply.
    pub fields: Vec<String>,
}

// === impl Refusal ===

impl StatusError {
    /// An error with the usual reason of its code.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
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

    /// An error without a reason.
    pub fn without_reason(code: u16, message: impl Into<String>) -> Self {
        Self {
            reason: "",
            ..Self::new(code, message)
        }
    }

    /// The error response to a rejected apply.
    #[must_use]
    pub fn from_apply_error(error: &ApplyError) -> Self {
        match error {
            ApplyError::Conflicts(conflicts) => Self::conflicts(conflicts),
            ApplyError::DuplicateKey(path) => {
                let why = format!(
                    "failed to create typed patch object: {}: duplicate entries",
                    display_path(path)
                );
                Self::without_reason(500, why)
            }
        }
    }

    fn conflicts(conflicts: &[(Path, String)]) -> Self {
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let all: Vec<_> = conflicts
            .iter()
            .map(|(path, other)| format!("conflict with {other:?}: {}", display_path(path)))
            .collect();
        let message = format!(
            "Apply failed with {} conflict{plural}: {}",
            conflicts.len(),
            all.join("; ")
        );
        Self {
            fields: conflicts.iter().map(|(path, _)| display_path(path)).collect(),
            ..Self::new(409, message)
        }
    }

    /// The `Status` object.
    #[must_use]
    pub fn to_status(&self) -> Value {
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

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

/// Compares a UID or resource version precondition with the stored object.
pub fn check_precondition(old: &StoredObject, wanted: &Value, field: &str) -> Result<(), StatusError> {
    let wanted = wanted.as_str().unwrap_or_default();
    if wanted.is_empty() || old.meta(field) == wanted {
        return Ok(());
    }
    let have = old.meta(field);
    let why = format!("Precondition failed: {field} in precondition: {wanted}, in object meta: {have}");
    Err(StatusError::new(409, why))
}

/// Prunes unknown fields and validates the object. A write of both scopes (users only) skips the schema, as if it had
/// been written under an older CRD.
pub fn prune_and_validate(
    resource: &Resource,
    kind: &Kind,
    old: Option<&Value>,
    new: &mut Value,
    part: WriteScope,
) -> Result<(), StatusError> {
    if part != WriteScope::All {
        schema::prune_unknown(&kind.schema, new);
        if let Some(why) = schema::validation_error(&kind.schema, old, new) {
            return Err(StatusError::new(422, why));
        }
    }
    validate(resource, new)
}

/// The UID of an object is immutable.
pub fn check_same_uid(old: &StoredObject, patch: &Value) -> Result<(), StatusError> {
    let uid = &patch["metadata"]["uid"];
    if uid.is_null() || uid == old.meta("uid") {
        return Ok(());
    }
    let why = format!("metadata.uid: Invalid value: {uid}: field is immutable");
    Err(StatusError::new(422, why))
}

/// The error for a write with a UID to an object that does not exist.
#[must_use]
pub fn uid_mismatch(key: &Key) -> StatusError {
    let why = format!("{}: uid mismatch: no existing object was found", key.1);
    StatusError::new(409, why)
}

/// Validation beyond schemas, for the objects that controllers write.
fn validate(resource: &Resource, body: &Value) -> Result<(), StatusError> {
    let refuse = |message: String| Err(StatusError::new(422, message));
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    if !is_valid_name(resource, name) {
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

/// A DNS label for Services, a DNS subdomain for all other kinds.
fn is_valid_name(resource: &Resource, name: &str) -> bool {
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
