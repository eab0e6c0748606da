//! Payload of `ResourceExport`s of kind `ImportFailures`: the Services of the ClusterSet that the exporting cluster
//! cannot import, or imports in part.
//!
//! Superset. It is base64 text in the field `raw`, which leaders of Antrea store and do not read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::raw_payload::{self, Limits, RawPayloadError};

/// The maximum number of failures; further ones are left out.
pub const MAX_FAILURES: usize = 200;
/// The longest payload before its encoding, in bytes. Each member decodes those of all others at each reconcile.
pub const MAX_BYTES: usize = 64 * 1024;
/// The longest message, in bytes; longer ones are shortened.
pub const MAX_MESSAGE: usize = 256;

/// A Service that is not imported, or in part.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ImportFailure {
    /// The Namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The cause, in `CamelCase`.
    pub reason: String,
    /// The cause for people.
    pub message: String,
}

/// The failures of one cluster.
///
/// *Guarantees*: at most [`MAX_FAILURES`] and [`MAX_BYTES`]; one for each Service, sorted by Namespace and name;
/// messages of at most [`MAX_MESSAGE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportFailures(Vec<ImportFailure>);

/// The limits of a payload that is read.
const LIMITS: Limits = Limits {
    of: "failures",
    bytes: MAX_BYTES,
    count: MAX_FAILURES,
};

/// The encoded fields.
#[derive(Deserialize)]
struct Payload {
    failures: Vec<ImportFailure>,
}

/// The text, shortened to a number of bytes.
fn shortened(text: &str, most: usize) -> String {
    let ends = text
        .char_indices()
        .map(|(start, character)| start.saturating_add(character.len_utf8()));
    let end = ends.take_while(|end| *end <= most).last().unwrap_or_default();
    text.get(..end).unwrap_or_default().to_owned()
}

// === impl Payload ===

impl From<Payload> for Vec<ImportFailure> {
    fn from(payload: Payload) -> Self {
        payload.failures
    }
}

// === impl ImportFailures ===

impl ImportFailures {
    /// The first failure of each Service, by Namespace and name.
    #[must_use]
    pub fn new(failures: impl IntoIterator<Item = ImportFailure>) -> Self {
        let mut by_service = BTreeMap::new();
        for mut failure in failures {
            failure.message = shortened(&failure.message, MAX_MESSAGE);
            let key = (failure.namespace.clone(), failure.name.clone());
            by_service.entry(key).or_insert(failure);
        }
        let mut room = MAX_BYTES;
        let fits = |failure: &ImportFailure| {
            // With a comma and the envelope's share.
            let length = json!(failure).to_string().len().saturating_add(1);
            room = room.saturating_sub(length);
            room > r#"{"failures":[]}"#.len()
        };
        Self(
            by_service
                .into_values()
                .take(MAX_FAILURES)
                .take_while(fits)
                .collect(),
        )
    }

    /// The failures.
    #[must_use]
    pub fn failures(&self) -> &[ImportFailure] {
        &self.0
    }

    /// The field `raw` with these failures.
    #[must_use]
    pub fn to_raw(&self) -> Value {
        raw_payload::encode(&json!({ "failures": self.0 }))
    }

    /// The failures in a field `raw`.
    ///
    /// # Errors
    ///
    /// If it has another form, or is too long.
    pub fn from_raw(raw: Option<&Value>) -> Result<Self, RawPayloadError> {
        Ok(Self::new(raw_payload::decode::<Payload, _>(raw, &LIMITS)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failure(number: usize, message: &str) -> ImportFailure {
        ImportFailure {
            namespace: "shop".to_owned(),
            name: format!("web-{number:04}"),
            reason: "NamespaceNotFound".to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn each_service_has_its_first_failure() {
        let failures = ImportFailures::new([failure(2, "b"), failure(1, "a"), failure(2, "c")]);
        assert_eq!(failures.failures(), [failure(1, "a"), failure(2, "b")]);
    }

    #[test]
    fn a_payload_is_bounded() {
        let many = |count, message: &str| ImportFailures::new((0..count).map(|n| failure(n, message)));
        assert_eq!(many(MAX_FAILURES + 1, "a").failures().len(), MAX_FAILURES);
        // Three bytes each: none is cut.
        let long = many(1, &"€".repeat(MAX_MESSAGE));
        assert_eq!(long.failures()[0].message, "€".repeat(MAX_MESSAGE / 3));
        // JSON needs six bytes for each of these.
        let escaped = many(MAX_FAILURES, &"\u{1}".repeat(MAX_MESSAGE));
        assert!(escaped.failures().len() < MAX_FAILURES);
        assert_eq!(ImportFailures::from_raw(Some(&escaped.to_raw())), Ok(escaped));
    }

    #[test]
    fn another_payload_is_rejected_with_the_reason() {
        let encoded = |payload: &Value| Some(raw_payload::encode(payload));
        let one = json!(failure(1, "a"));
        let cases = [
            (None, "spec.raw.data is missing or not base64 text"),
            (
                Some(json!({ "data": "?" })),
                "spec.raw.data is missing or not base64 text",
            ),
            (encoded(&json!({ "other": [] })), "is not a list of failures"),
            (
                encoded(&json!({ "failures": [{ "name": 1 }] })),
                "is not a list of failures",
            ),
            (
                encoded(&json!({ "failures": vec![one; MAX_FAILURES + 1] })),
                "spec.raw.data has 201 failures, more than 200",
            ),
            (
                encoded(&json!({ "failures": "x".repeat(MAX_BYTES) })),
                "bytes, more than 65536",
            ),
        ];
        for (raw, message) in cases {
            let error = ImportFailures::from_raw(raw.as_ref()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    proptest! {
        /// A written payload can be read.
        #[test]
        fn a_payload_is_read_as_it_was_written(
            failures in proptest::collection::vec((0_usize..600, ".{0,300}"), 0..40),
        ) {
            let written = ImportFailures::new(failures.iter().map(|(n, message)| failure(*n, message)));
            prop_assert_eq!(ImportFailures::from_raw(Some(&written.to_raw())), Ok(written));
        }
    }
}
