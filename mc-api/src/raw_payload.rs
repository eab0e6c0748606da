//! Lists as base64 JSON in the field `raw` of a `ResourceExport`, which leaders of Antrea store and do not read.

use k8s_openapi::ByteString;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The limits of a list.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The noun for its items.
    pub(crate) of: &'static str,
    /// The longest payload before its encoding, in bytes.
    pub(crate) bytes: usize,
    /// The maximum number of items.
    pub(crate) count: usize,
}

/// A rejected payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawPayloadError {
    /// The field is absent or not base64 text.
    #[error("spec.raw.data is missing or not base64 text")]
    NoData,
    /// The payload is too long.
    #[error("spec.raw.data has {length} bytes, more than {max}")]
    TooLong {
        /// Its length.
        length: usize,
        /// The longest one.
        max: usize,
    },
    /// The payload has other fields.
    #[error("spec.raw.data is not a list of {of}: {cause}")]
    Malformed {
        /// The noun for the items.
        of: &'static str,
        /// The error of the decoder.
        cause: String,
    },
    /// There are too many items.
    #[error("spec.raw.data has {count} {of}, more than {max}")]
    TooMany {
        /// The noun for the items.
        of: &'static str,
        /// Their number.
        count: usize,
        /// The largest number.
        max: usize,
    },
}

/// The field `raw` with a payload.
pub(crate) fn encode(payload: &Value) -> Value {
    json!({ "data": ByteString(payload.to_string().into_bytes()) })
}

/// The items in a field `raw`, out of a payload `P`.
pub(crate) fn decode<P: DeserializeOwned + Into<Vec<T>>, T>(
    raw: Option<&Value>,
    limits: &Limits,
) -> Result<Vec<T>, RawPayloadError> {
    let data = raw.and_then(|raw| raw.get("data"));
    let data = data.and_then(|data| ByteString::deserialize(data).ok());
    let ByteString(data) = data.ok_or(RawPayloadError::NoData)?;
    let (of, length) = (limits.of, data.len());
    if length > limits.bytes {
        let max = limits.bytes;
        return Err(RawPayloadError::TooLong { length, max });
    }
    let payload: P = serde_json::from_slice(&data).map_err(|error| RawPayloadError::Malformed {
        of,
        cause: error.to_string(),
    })?;
    let items: Vec<T> = payload.into();
    let (count, max) = (items.len(), limits.count);
    if count > max {
        return Err(RawPayloadError::TooMany { of, count, max });
    }
    Ok(items)
}
