//! `RawJson`: a request body kept as serialized text. A `serde_json::Value` takes some ten times as much memory, and
//! thousands of writes may be pending.

use serde::{Serialize, Serializer};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

/// A serialized JSON document; object keys are sorted.
#[derive(Clone, Debug, Default)]
pub struct RawJson(Box<RawValue>);

// === impl RawJson ===

impl RawJson {
    /// The JSON text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the document.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_default()
    }
}

impl From<Value> for RawJson {
    fn from(value: Value) -> Self {
        // Serializing a `Value` does not fail: all keys are strings.
        Self(to_raw_value(&value).unwrap_or_default())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_round_trips() {
        let tree = json!({ "spec": { "ports": [80, null], "name": "\u{1F980}\"\n" }, "kind": "X" });
        let raw = RawJson::from(tree.clone());
        assert_eq!(raw.value(), tree);
        assert_eq!(serde_json::to_string(&raw).unwrap(), tree.to_string());
        assert_eq!(raw, RawJson::from(tree));
        assert_ne!(raw, RawJson::default());
    }
}
