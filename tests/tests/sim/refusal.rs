//! What an API server says no to, and how it says it.

use std::fmt;

use serde_json::{Value, json};

use crate::{kinds::Resource, store::Stored};

/// An answer that is not 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP.
    pub(crate) code: u16,
    /// In `CamelCase`.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
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
        }
    }

    /// As an API server says it.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if self.code == 429 {
            status["details"] = json!({ "retryAfterSeconds": 1 });
        }
        status
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

/// UID and resource version, where given.
pub(crate) fn precondition(old: &Stored, given: &Value) -> Result<(), Refusal> {
    for field in ["uid", "resourceVersion"] {
        let wanted = given[field].as_str().unwrap_or_default();
        if !wanted.is_empty() && old.meta(field) != wanted {
            return Err(Refusal::new(
                409,
                format!(
                    "Precondition failed: {field} in precondition: {wanted}, in object meta: {}",
                    old.meta(field)
                ),
            ));
        }
    }
    Ok(())
}

/// What an API server refuses of what the controllers could write.
pub(crate) fn valid(resource: &Resource, body: &Value) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::new(422, message));
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    let longest = if resource.1 == "services" { 63 } else { 253 };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if name.len() > longest || !name.bytes().all(plain) {
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
        "serviceimports" if body["spec"]["ips"].as_array().is_some_and(|ips| ips.len() > 2) => {
            refuse("spec.ips: Too many".to_owned())
        }
        "endpointslices" if body["endpoints"].as_array().is_some_and(|e| e.len() > 1000) => {
            refuse("endpoints: Too many".to_owned())
        }
        _ => Ok(()),
    }
}
