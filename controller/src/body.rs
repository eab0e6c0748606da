//! What is sent in a request, as the text that is sent: a tree of it takes some ten times as much memory, and there may
//! be thousands that wait.

use serde::{Serialize, Serializer};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

/// A JSON document, in the order of its keys.
#[derive(Clone, Debug, Default)]
pub struct Body(Box<RawValue>);

// === impl Body ===

impl Body {
    /// As JSON text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// As a tree, to look into it.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_default()
    }
}

impl From<Value> for Body {
    fn from(value: Value) -> Self {
        // A tree always has a text.
        Self(to_raw_value(&value).unwrap_or_default())
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_is_sent_as_the_tree_it_was() {
        let tree = json!({ "spec": { "ports": [80, null], "name": "\u{1F980}\"\n" }, "kind": "X" });
        let body = Body::from(tree.clone());
        assert_eq!(body.value(), tree);
        assert_eq!(serde_json::to_string(&body).unwrap(), tree.to_string());
        assert_eq!(body, Body::from(tree));
        assert_ne!(body, Body::default());
    }
}
