//! The `WireGuard` key of a cluster or gateway.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A `WireGuard` peer.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WireGuardInfo {
    /// The public key, base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_key: String,
}
