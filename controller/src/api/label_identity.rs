//! Label identities: what Pods are to policies of other clusters; and `LabelIdentity`, what a member was told of one.
//!
//! An identity is a normalised label (of a Namespace and a Pod) and a number that means it in all clusters.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha1::{Digest as _, Sha1};

/// The smallest number.
pub const MIN_ID: u32 = 1;
/// The largest number; the one above, the largest of 24 bits, means "unknown" in a packet.
pub const MAX_ID: u32 = 0xFF_FFFE;
/// The longest normalised label that is passed on, in bytes.
pub const MAX_LABEL: usize = 16 * 1024;

/// On every Namespace: its name. An API server before 1.21 does not set it.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A label and the number that means it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.crd.antrea.io",
    version = "v1alpha1",
    kind = "LabelIdentity",
    plural = "labelidentities",
    derive = "Default",
    derive = "PartialEq",
    doc = "The labels of Pods somewhere in the ClusterSet, and the number that stands for them.",
    printcolumn = r#"{"name":"Label","type":"string","jsonPath":".spec.label","description":"The normalised labels of Namespace and Pod"}"#,
    printcolumn = r#"{"name":"ID","type":"string","jsonPath":".spec.id","description":"The number that stands for them"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelIdentitySpec {
    /// The normalised labels of Namespace and Pod.
    pub label: String,
    /// The number that stands for them, in all clusters of the set.
    #[schemars(range(min = 1, max = 16_777_214))]
    pub id: u32,
}

/// Why a payload says no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A field is absent, or not of its type.
    #[error("{field} is missing or no {wanted}")]
    Missing {
        /// Which.
        field: &'static str,
        /// What it has to be.
        wanted: &'static str,
    },
    /// Not of the form of a normalised label.
    #[error("{label:?} is no normalised label (ns:…&pod:…)")]
    Shape {
        /// As given, shortened.
        label: String,
    },
    /// Nobody should have to keep such a label.
    #[error("a label of {length} bytes is longer than {MAX_LABEL}")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// Not a number packets can carry.
    #[error("{id} is not between {MIN_ID} and {MAX_ID}")]
    Number {
        /// As given.
        id: i64,
    },
}

/// Keys of labels that make no identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclusions(Vec<Exclusion>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Exclusion {
    Key(String),
    Prefix(String),
}

/// What `labelIdentity` is in a `ResourceExport`.
pub(super) fn export_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true,
        "properties": { "normalizedLabel": { "type": "string" } },
    })
}

/// What `labelIdentity` is in a `ResourceImport`.
pub(super) fn import_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true,
        "properties": { "label": { "type": "string" }, "id": { "type": "integer", "format": "int32" } },
    })
}

/// `key=value`s, sorted as texts and joined by commas.
#[must_use]
pub fn sorted<'a>(
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
    exclusions: &Exclusions,
) -> String {
    let kept = labels.into_iter().filter(|(key, _)| !exclusions.excludes(key));
    let mut pairs: Vec<_> = kept.map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort_unstable();
    pairs.join(",")
}

/// The identity of Pods with the labels `pod` (as [`sorted`] has them) in a Namespace.
#[must_use]
pub fn normalized(
    name: &str,
    namespace: &BTreeMap<String, String>,
    pod: &Arc<str>,
    exclusions: &Exclusions,
) -> String {
    let named = (NAMESPACE_NAME.to_owned(), name.to_owned());
    let missing = (!namespace.contains_key(NAMESPACE_NAME)).then_some((&named.0, &named.1));
    format!(
        "ns:{}&pod:{pod}",
        sorted(namespace.iter().chain(missing), exclusions)
    )
}

/// The SHA-1 of a label, in hexadecimal. Nothing secret or signed depends on it: it is the name peers derive.
#[must_use]
pub fn digest(label: &str) -> String {
    Sha1::digest(label).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "{written:?}");
        text
    })
}

/// The name of a label's `ResourceImport` and `LabelIdentity`: the beginning of its [`digest`].
#[must_use]
pub fn name_of(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

/// The label of a `ResourceExport`'s payload.
pub fn exported(payload: Option<&Value>) -> Result<&str, Invalid> {
    text(payload, "normalizedLabel", "spec.labelIdentity.normalizedLabel")
}

/// Label and number of a `ResourceImport`'s payload.
pub fn imported(payload: Option<&Value>) -> Result<(&str, u32), Invalid> {
    let label = text(payload, "label", "spec.labelIdentity.label")?;
    let id = payload
        .and_then(|p| p.get("id"))
        .and_then(Value::as_i64)
        .ok_or(Invalid::Missing {
            field: "spec.labelIdentity.id",
            wanted: "number",
        })?;
    let number = u32::try_from(id).ok().filter(|id| (MIN_ID..=MAX_ID).contains(id));
    Ok((label, number.ok_or(Invalid::Number { id })?))
}

fn text<'a>(payload: Option<&'a Value>, key: &str, field: &'static str) -> Result<&'a str, Invalid> {
    let label = payload
        .and_then(|p| p.get(key))
        .and_then(Value::as_str)
        .ok_or(Invalid::Missing {
            field,
            wanted: "text",
        })?;
    check(label)?;
    Ok(label)
}

/// Whether a text can be a normalised label. What is between the two words is its maker's business: old
/// releases write `<none>` for a Pod without labels.
pub fn check(label: &str) -> Result<(), Invalid> {
    if label.len() > MAX_LABEL {
        return Err(Invalid::TooLong { length: label.len() });
    }
    let shaped = label.starts_with("ns:") && label.contains("&pod:") && !label.chars().any(char::is_control);
    shaped.then_some(()).ok_or_else(|| Invalid::Shape {
        label: label.chars().take(80).collect(),
    })
}

// === impl Exclusions ===

impl Exclusions {
    /// Whether labels with this key are left out.
    #[must_use]
    pub fn excludes(&self, key: &str) -> bool {
        self.0.iter().any(|e| match e {
            Exclusion::Key(k) => k == key,
            Exclusion::Prefix(p) => key.starts_with(p.as_str()),
        })
    }

    /// Adds a key, or with a `*` at its end all keys that begin so; says whether that is one.
    pub fn add(&mut self, pattern: &str) -> bool {
        let (text, prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
        if text.is_empty() || text.len() > 317 || !text.bytes().all(known) {
            return false;
        }
        self.0.push(if prefix {
            Exclusion::Prefix(text.to_owned())
        } else {
            Exclusion::Key(text.to_owned())
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn names_are_those_other_implementations_derive() {
        let namespace = labels(&[("purpose", "test"), (NAMESPACE_NAME, "us-west-1")]);
        let none = Exclusions::default();
        let pod: Arc<str> = sorted(&labels(&[("app", "client")]), &none).into();
        let label = normalized("us-west-1", &namespace, &pod, &none);
        assert_eq!(
            label,
            "ns:kubernetes.io/metadata.name=us-west-1,purpose=test&pod:app=client"
        );
        assert_eq!(name_of(&digest(&label)), "c5d961e1f6175a5a");
        assert_eq!(
            digest("abc"),
            "a9993e364706816aba3e25717850c26c9cd0d89d",
            "FIPS 180-1, appendix A"
        );
    }

    #[test]
    fn a_namespace_is_always_named() {
        let none = Exclusions::default();
        let pod = Arc::from("");
        assert_eq!(
            normalized("shop", &labels(&[("a", "b")]), &pod, &none),
            "ns:a=b,kubernetes.io/metadata.name=shop&pod:"
        );
    }

    #[test]
    fn pairs_are_sorted_as_whole_texts() {
        // '-' is before '=' and '0' before '=', so "a-b=1" stands before "a=1".
        let set = labels(&[("a", "1"), ("a-b", "1"), ("a0", "1"), ("B", "1")]);
        assert_eq!(sorted(&set, &Exclusions::default()), "B=1,a-b=1,a0=1,a=1");
    }

    #[test]
    fn keys_are_left_out() {
        let mut out = Exclusions::default();
        assert!(out.add("pod-template-hash") && out.add("batch.kubernetes.io/*"));
        for bad in ["", "*", "a b", "a*b", "ü", &"x".repeat(318)] {
            assert!(!out.add(bad), "{bad}");
        }
        let set = labels(&[
            ("app", "web"),
            ("pod-template-hash", "1"),
            ("batch.kubernetes.io/job-name", "x"),
        ]);
        assert_eq!(sorted(&set, &out), "app=web");
    }

    #[test]
    fn bad_payloads_are_told_apart() {
        let long = format!("ns:&pod:{}", "x".repeat(MAX_LABEL));
        for (payload, why) in [
            (json!(null), "spec.labelIdentity.label is missing or no text"),
            (
                json!({ "label": 5, "id": 1 }),
                "spec.labelIdentity.label is missing or no text",
            ),
            (
                json!({ "label": "ns:a&pod:b" }),
                "spec.labelIdentity.id is missing or no number",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": "1" }),
                "spec.labelIdentity.id is missing",
            ),
            (
                json!({ "label": "app=web", "id": 1 }),
                "\"app=web\" is no normalised label",
            ),
            (
                json!({ "label": "ns:a\n&pod:b", "id": 1 }),
                "is no normalised label",
            ),
            (
                json!({ "label": long, "id": 1 }),
                "a label of 16392 bytes is longer than 16384",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": 0 }),
                "0 is not between 1 and 16777214",
            ),
            (json!({ "label": "ns:a&pod:b", "id": -1 }), "-1 is not between"),
            (
                json!({ "label": "ns:a&pod:b", "id": 16_777_215 }),
                "16777215 is not between",
            ),
        ] {
            let error = imported(Some(&payload)).unwrap_err().to_string();
            assert!(error.contains(why), "{payload}: {error}");
        }
        let good = json!({ "label": "ns:a&pod:<none>", "id": 16_777_214, "more": true });
        assert_eq!(imported(Some(&good)).unwrap(), ("ns:a&pod:<none>", MAX_ID));
        assert!(exported(None).is_err());
        assert!(exported(Some(&json!({ "normalizedLabel": "ns:&pod:" }))).is_ok());
    }

    proptest! {
        /// The order in which labels come does not matter, and what we normalise we accept.
        #[test]
        fn normalising_is_stable(pairs in proptest::collection::btree_map("[a-z./-]{1,9}", "[A-Za-z0-9._-]{0,9}", 0..9)) {
            let none = Exclusions::default();
            let backwards: Vec<_> = pairs.iter().rev().collect();
            prop_assert_eq!(sorted(&pairs, &none), sorted(backwards, &none));
            let label = normalized("x", &pairs, &Arc::from(sorted(&pairs, &none)), &none);
            prop_assert!(check(&label).is_ok(), "{}", label);
        }

        #[test]
        fn nothing_panics(text in ".{0,60}") {
            let mut out = Exclusions::default();
            let _ = (check(&text).is_ok(), out.add(&text), digest(&text));
        }
    }
}
