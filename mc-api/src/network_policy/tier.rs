//! Tiers: the order of policies.

use serde_json::Value;

use super::error::{FieldError, PolicyError};

/// The Tier of a policy that names none.
pub const DEFAULT_TIER: &str = "application";
/// The Tier after all others and after the policies of Kubernetes.
pub const BASELINE_TIER: &str = "baseline";
/// The Tiers of every cluster with their priorities, which no object changes.
pub const DEFAULT_TIERS: [(&str, u8); 6] = [
    ("emergency", 50),
    ("securityops", 100),
    ("networkops", 150),
    ("platform", 200),
    (DEFAULT_TIER, 250),
    (BASELINE_TIER, 253),
];

/// The Tier of a policy's spec.
#[must_use]
pub fn tier(spec: &Value) -> &str {
    spec.get("tier")
        .and_then(Value::as_str)
        .filter(|t| !t.is_empty())
        .unwrap_or(DEFAULT_TIER)
}

/// Parses the spec of a Tier: its priority, a smaller number first.
pub fn parse_tier(name: &str, spec: &Value) -> Result<u8, Box<FieldError>> {
    let value = spec.get("priority").unwrap_or(&Value::Null);
    value
        .as_u64()
        .and_then(|priority| u8::try_from(priority).ok())
        .filter(|priority| *priority > 0)
        .ok_or_else(|| {
            let object = format!("Tier {name}");
            FieldError::new(object, "spec.priority", value, PolicyError::TierPriority).into()
        })
}
