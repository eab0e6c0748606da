//! JSON as base64 text in the field `raw` of a `ResourceExport`, which leaders of Antrea store and do not read.

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

/// The field `raw` with a payload.
pub(crate) fn encode(payload: &Value) -> Value {
    json!({ "data": ByteString(payload.to_string().into_bytes()) })
}

/// The bytes in a field `raw`; `None` if they are missing or not base64 text.
pub(crate) fn decode(raw: Option<&Value>) -> Option<Vec<u8>> {
    let ByteString(data) = ByteString::deserialize(raw?.get("data")?).ok()?;
    Some(data)
}
