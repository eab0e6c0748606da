//! Label identities, which represent Pods in policies of other clusters; and `LabelIdentity`, the imported kind.
//!
//! An identity is a normalised label (of a Namespace and a Pod) and its ID, the same in all clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha1::{Digest as _, Sha1};

/// The smallest ID.
pub const MIN_ID: u32 = 1;
/// The largest ID; the next one, the largest of 24 bits, means "unknown" in a packet.
pub const MAX_ID: u32 = 0xFF_FFFE;
/// The longest accepted normalised label, in bytes.
pub const MAX_LABEL: usize = 16 * 1024;
/// The maximum number of clusters of an identity.
pub const MAX_CLUSTERS: usize = 1000;

/// Label of every Namespace with its name. API servers before 1.21 do not set it.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// The field with the clusters of an imported identity.
const CLUSTERS_FIELD: &str = "spec.labelIdentity.clusters";

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// A normalised label and its ID.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.crd.antrea.io",
    version = "v1alpha1",
    kind = "LabelIdentity",
    plural = "labelidentities",
    derive = "Default",
    derive = "PartialEq",
    doc = "The labels of Pods in the ClusterSet and their ID.",
    printcolumn = r#"{"name":"Label","type":"string","jsonPath":".spec.label","description":"The normalised labels of Namespace and Pod"}"#,
    printcolumn = r#"{"name":"ID","type":"string","jsonPath":".spec.id","description":"The ID of the labels"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelIdentitySpec {
    /// The normalised labels of Namespace and Pod.
    pub label: String,
    /// The ID of the labels in all clusters of the set.
    #[schemars(range(min = 1, max = 16_777_214))]
    pub id: u32,
    /// Superset: the IDs of the exporting clusters, sorted; absent: unknown (an Antrea leader).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000), inner(length(min = 1)), extend("x-kubernetes-list-type" = "atomic"))]
    pub clusters: Option<Vec<String>>,
}

/// The payload of a `ResourceImport`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedIdentity<'a> {
    /// The normalised label.
    pub label: &'a str,
    /// Its ID.
    pub id: u32,
    /// The clusters that export the label; `None`: unknown.
    pub clusters: Option<BTreeSet<&'a str>>,
}

/// A rejected identity in a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelIdentityError {
    /// A field is absent or of another type.
    #[error("{field} is missing or not a {expected}")]
    Missing {
        /// The field.
        field: &'static str,
        /// Its type.
        expected: &'static str,
    },
    /// Not in the form of a normalised label.
    #[error("{label:?} is not a normalised label (ns:…&pod:…)")]
    Malformed {
        /// The value, truncated.
        label: String,
    },
    /// A label above the size limit.
    #[error("a label of {length} bytes is longer than {MAX_LABEL}")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// An ID outside the range of packets.
    #[error("{id} is not between {MIN_ID} and {MAX_ID}")]
    IdOutOfRange {
        /// The value.
        id: i64,
    },
    /// Clusters, or one of them, of another type or empty.
    #[error("{field}: {value} is not {expected}")]
    MalformedClusters {
        /// The field.
        field: String,
        /// Its value, truncated.
        value: String,
        /// Its type.
        expected: &'static str,
    },
    /// More clusters than the limit.
    #[error("{CLUSTERS_FIELD}: {count} entries are more than {MAX_CLUSTERS}")]
    TooManyClusters {
        /// Their number.
        count: usize,
    },
}

/// Label keys excluded from identities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelKeyFilter(Vec<KeyPattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPattern {
    Key(String),
    Prefix(String),
}

/// Schema of `labelIdentity` in a `ResourceExport`.
pub(crate) fn export_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true,
        "properties": { "normalizedLabel": { "type": "string" } },
    })
}

/// Schema of `labelIdentity` in a `ResourceImport`.
pub(crate) fn import_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "label": { "type": "string" },
            "id": { "type": "integer", "format": "int32" },
            "clusters": {
                "type": "array",
                "maxItems": MAX_CLUSTERS,
                "items": { "type": "string", "minLength": 1 },
                "x-kubernetes-list-type": "atomic",
            },
        },
    })
}

/// `key=value` pairs, sorted as strings and joined by commas.
#[must_use]
pub fn join_labels<'a>(
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
    filter: &LabelKeyFilter,
) -> String {
    let kept = labels.into_iter().filter(|(key, _)| !filter.excludes(key));
    let mut pairs: Vec<_> = kept.map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort_unstable();
    pairs.join(",")
}

/// The joined labels `joined` (from [`join_labels`]) without those that `filter` excludes. Keys and values contain
/// neither a comma nor an equals sign.
#[must_use]
pub fn without_excluded(joined: &str, filter: &LabelKeyFilter) -> String {
    let pairs = joined.split(',');
    let kept = pairs.filter(|pair| !filter.excludes(pair.split('=').next().unwrap_or(pair)));
    kept.collect::<Vec<_>>().join(",")
}

/// The normalised label of Pods with the labels `pod` (from [`join_labels`]) in a Namespace.
#[must_use]
pub fn normalize(
    name: &str,
    namespace: &BTreeMap<String, String>,
    pod: &Arc<str>,
    filter: &LabelKeyFilter,
) -> String {
    let name = (NAMESPACE_NAME.to_owned(), name.to_owned());
    let missing = (!namespace.contains_key(NAMESPACE_NAME)).then_some((&name.0, &name.1));
    format!(
        "ns:{}&pod:{pod}",
        join_labels(namespace.iter().chain(missing), filter)
    )
}

/// The SHA-1 of a label in hexadecimal: the name derived by other implementations, not a security measure.
#[must_use]
pub fn digest(label: &str) -> String {
    hex::encode(Sha1::digest(label))
}

/// The name of a label's `ResourceImport` and `LabelIdentity`: a prefix of its [`digest`].
#[must_use]
pub fn object_name(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

/// Parses the payload of a `ResourceExport`: the label.
pub fn parse_export(payload: Option<&Value>) -> Result<&str, LabelIdentityError> {
    parse_label(payload, "normalizedLabel", "spec.labelIdentity.normalizedLabel")
}

/// Parses the payload of a `ResourceImport`.
pub fn parse_import(payload: Option<&Value>) -> Result<ImportedIdentity<'_>, LabelIdentityError> {
    let label = parse_label(payload, "label", "spec.labelIdentity.label")?;
    let id =
        payload
            .and_then(|p| p.get("id"))
            .and_then(Value::as_i64)
            .ok_or(LabelIdentityError::Missing {
                field: "spec.labelIdentity.id",
                expected: "number",
            })?;
    let valid = u32::try_from(id).ok().filter(|id| (MIN_ID..=MAX_ID).contains(id));
    let clusters = payload.and_then(|p| p.get("clusters"));
    Ok(ImportedIdentity {
        label,
        id: valid.ok_or(LabelIdentityError::IdOutOfRange { id })?,
        clusters: clusters.map(parse_clusters).transpose()?,
    })
}

/// A list of cluster IDs. A null is malformed: it could mean "none" as well as "unknown".
fn parse_clusters(value: &Value) -> Result<BTreeSet<&str>, LabelIdentityError> {
    let malformed = |field: String, value: &Value, expected| LabelIdentityError::MalformedClusters {
        field,
        value: value.to_string().chars().take(80).collect(),
        expected,
    };
    let list = value
        .as_array()
        .ok_or_else(|| malformed(CLUSTERS_FIELD.to_owned(), value, "a list of cluster IDs"))?;
    if list.len() > MAX_CLUSTERS {
        return Err(LabelIdentityError::TooManyClusters { count: list.len() });
    }
    let entries = list.iter().enumerate().map(|(i, entry)| {
        let id = entry.as_str().filter(|id| !id.is_empty());
        id.ok_or_else(|| malformed(format!("{CLUSTERS_FIELD}[{i}]"), entry, "a cluster ID"))
    });
    entries.collect()
}

fn parse_label<'a>(
    payload: Option<&'a Value>,
    key: &str,
    field: &'static str,
) -> Result<&'a str, LabelIdentityError> {
    let label =
        payload
            .and_then(|p| p.get(key))
            .and_then(Value::as_str)
            .ok_or(LabelIdentityError::Missing {
                field,
                expected: "string",
            })?;
    validate(label)?;
    Ok(label)
}

/// Validates the form of a normalised label. The parts after `ns:` and `pod:` are opaque: old releases write `<none>`
/// for a Pod without labels.
pub fn validate(label: &str) -> Result<(), LabelIdentityError> {
    if label.len() > MAX_LABEL {
        return Err(LabelIdentityError::TooLong { length: label.len() });
    }
    let well_formed =
        label.starts_with("ns:") && label.contains("&pod:") && !label.chars().any(char::is_control);
    well_formed.then_some(()).ok_or_else(|| malformed(label))
}

/// Splits a normalised label: the joined labels of the Namespace and of the Pod.
pub fn split_normalized(label: &str) -> Result<(&str, &str), LabelIdentityError> {
    validate(label)?;
    label
        .strip_prefix("ns:")
        .and_then(|rest| rest.split_once("&pod:"))
        .ok_or_else(|| malformed(label))
}

/// Parses a normalised label: the labels of the Namespace and of the Pod. `<none>` of old releases has no labels.
pub fn parse_normalized(label: &str) -> Result<(Labels, Labels), LabelIdentityError> {
    let (namespace, pod) = split_normalized(label)?;
    split_labels(namespace)
        .zip(split_labels(pod))
        .ok_or_else(|| malformed(label))
}

// Neither keys nor values of labels contain ',', '=' or '&'.
fn split_labels(joined: &str) -> Option<Labels> {
    if matches!(joined, "" | "<none>") {
        return Some(Labels::new());
    }
    let mut labels = Labels::new();
    for pair in joined.split(',') {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty())?;
        if value.contains(['=', '&']) || labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return None;
        }
    }
    Some(labels)
}

fn malformed(label: &str) -> LabelIdentityError {
    LabelIdentityError::Malformed {
        label: label.chars().take(80).collect(),
    }
}

// === impl LabelKeyFilter ===

impl LabelKeyFilter {
    /// Whether labels with this key are excluded.
    #[must_use]
    pub fn excludes(&self, key: &str) -> bool {
        self.0.iter().any(|e| match e {
            KeyPattern::Key(k) => k == key,
            KeyPattern::Prefix(p) => key.starts_with(p.as_str()),
        })
    }

    /// Adds a key or, with a trailing `*`, a prefix; returns `false` if it is malformed.
    pub fn add(&mut self, pattern: &str) -> bool {
        let (text, prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
        if text.is_empty() || text.len() > 317 || !text.bytes().all(allowed) {
            return false;
        }
        self.0.push(if prefix {
            KeyPattern::Prefix(text.to_owned())
        } else {
            KeyPattern::Key(text.to_owned())
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
    fn names_match_other_implementations() {
        let namespace = labels(&[("purpose", "test"), (NAMESPACE_NAME, "us-west-1")]);
        let none = LabelKeyFilter::default();
        let pod: Arc<str> = join_labels(&labels(&[("app", "client")]), &none).into();
        let label = normalize("us-west-1", &namespace, &pod, &none);
        assert_eq!(
            label,
            "ns:kubernetes.io/metadata.name=us-west-1,purpose=test&pod:app=client"
        );
        assert_eq!(object_name(&digest(&label)), "c5d961e1f6175a5a");
        assert_eq!(
            digest("abc"),
            "a9993e364706816aba3e25717850c26c9cd0d89d",
            "FIPS 180-1, appendix A"
        );
    }

    #[test]
    fn the_label_has_the_namespace_name() {
        let none = LabelKeyFilter::default();
        let pod = Arc::from("");
        assert_eq!(
            normalize("shop", &labels(&[("a", "b")]), &pod, &none),
            "ns:a=b,kubernetes.io/metadata.name=shop&pod:"
        );
    }

    #[test]
    fn pairs_are_sorted_as_strings() {
        // '-' is before '=' and '0' before '=', so "a-b=1" precedes "a=1".
        let set = labels(&[("a", "1"), ("a-b", "1"), ("a0", "1"), ("B", "1")]);
        assert_eq!(
            join_labels(&set, &LabelKeyFilter::default()),
            "B=1,a-b=1,a0=1,a=1"
        );
    }

    #[test]
    fn filtered_keys_are_excluded() {
        let mut out = LabelKeyFilter::default();
        assert!(out.add("pod-template-hash") && out.add("batch.kubernetes.io/*"));
        for bad in ["", "*", "a b", "a*b", "ü", &"x".repeat(318)] {
            assert!(!out.add(bad), "{bad}");
        }
        let set = labels(&[
            ("app", "web"),
            ("pod-template-hash", "1"),
            ("batch.kubernetes.io/job-name", "x"),
        ]);
        assert_eq!(join_labels(&set, &out), "app=web");
        let joined = join_labels(&set, &LabelKeyFilter::default());
        assert_eq!(without_excluded(&joined, &out), "app=web");
        assert_eq!(without_excluded("", &out), "");
    }

    #[test]
    fn malformed_payloads_are_rejected() {
        let long = format!("ns:&pod:{}", "x".repeat(MAX_LABEL));
        for (payload, why) in [
            (json!(null), "spec.labelIdentity.label is missing or not a string"),
            (
                json!({ "label": 5, "id": 1 }),
                "spec.labelIdentity.label is missing or not a string",
            ),
            (
                json!({ "label": "ns:a&pod:b" }),
                "spec.labelIdentity.id is missing or not a number",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": "1" }),
                "spec.labelIdentity.id is missing",
            ),
            (
                json!({ "label": "app=web", "id": 1 }),
                "\"app=web\" is not a normalised label",
            ),
            (
                json!({ "label": "ns:a\n&pod:b", "id": 1 }),
                "is not a normalised label",
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
            (
                json!({ "label": "ns:a&pod:b", "id": 1, "clusters": "east" }),
                "spec.labelIdentity.clusters: \"east\" is not a list of cluster IDs",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": 1, "clusters": null }),
                "spec.labelIdentity.clusters: null is not a list of cluster IDs",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": 1, "clusters": ["east", 7] }),
                "spec.labelIdentity.clusters[1]: 7 is not a cluster ID",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": 1, "clusters": [""] }),
                "spec.labelIdentity.clusters[0]: \"\" is not a cluster ID",
            ),
            (
                json!({ "label": "ns:a&pod:b", "id": 1, "clusters": vec!["east"; MAX_CLUSTERS + 1] }),
                "spec.labelIdentity.clusters: 1001 entries are more than 1000",
            ),
        ] {
            let error = parse_import(Some(&payload)).unwrap_err().to_string();
            assert!(error.contains(why), "{payload}: {error}");
        }
        let good = json!({ "label": "ns:a&pod:<none>", "id": 16_777_214, "more": true });
        let identity = |clusters| ImportedIdentity {
            label: "ns:a&pod:<none>",
            id: MAX_ID,
            clusters,
        };
        assert_eq!(parse_import(Some(&good)).unwrap(), identity(None));
        for (clusters, parsed) in [
            (json!([]), BTreeSet::new()),
            (json!(["west", "east", "west"]), ["east", "west"].into()),
        ] {
            let payload = json!({ "label": "ns:a&pod:<none>", "id": MAX_ID, "clusters": clusters });
            assert_eq!(parse_import(Some(&payload)).unwrap(), identity(Some(parsed)));
        }
        assert!(parse_export(None).is_err());
        assert!(parse_export(Some(&json!({ "normalizedLabel": "ns:&pod:" }))).is_ok());
    }

    #[test]
    fn unknown_clusters_are_not_written() {
        let mut spec = LabelIdentitySpec {
            label: "ns:a&pod:b".to_owned(),
            id: 1,
            clusters: None,
        };
        let written = serde_json::to_value(&spec).unwrap();
        assert_eq!(written, json!({ "label": "ns:a&pod:b", "id": 1 }));
        spec.clusters = Some(vec![]);
        let written = serde_json::to_value(&spec).unwrap();
        assert_eq!(written, json!({ "label": "ns:a&pod:b", "id": 1, "clusters": [] }));
        let read: LabelIdentitySpec = serde_json::from_value(written).unwrap();
        assert_eq!(read, spec);
    }

    #[test]
    fn normalised_labels_are_parsed() {
        for none in ["", "<none>"] {
            let (namespace, pod) = parse_normalized(&format!("ns:{none}&pod:{none}")).unwrap();
            assert!(namespace.is_empty() && pod.is_empty(), "{none:?}");
        }
        for bad in [
            "ns:a=b",
            "ns:a&pod:",
            "ns:a=b,&pod:",
            "ns:=b&pod:",
            "ns:a=b&pod:a=b=c",
            "ns:&pod:a=1,a=2",
            "ns:&pod:a=1&pod:b=2",
        ] {
            assert!(
                matches!(parse_normalized(bad), Err(LabelIdentityError::Malformed { .. })),
                "{bad}"
            );
        }
    }

    proptest! {
        /// The order of labels is irrelevant, and normalised labels validate.
        #[test]
        fn normalisation_is_stable(pairs in proptest::collection::btree_map("[a-z./-]{1,9}", "[A-Za-z0-9._-]{0,9}", 0..9)) {
            let none = LabelKeyFilter::default();
            let backwards: Vec<_> = pairs.iter().rev().collect();
            prop_assert_eq!(join_labels(&pairs, &none), join_labels(backwards, &none));
            let label = normalize("x", &pairs, &Arc::from(join_labels(&pairs, &none)), &none);
            prop_assert!(validate(&label).is_ok(), "{}", label);
            let (namespace, pod) = parse_normalized(&label).unwrap();
            prop_assert_eq!(&pod, &pairs);
            let mut expected = pairs;
            expected.entry(NAMESPACE_NAME.to_owned()).or_insert_with(|| "x".to_owned());
            prop_assert_eq!(namespace, expected);
        }

        #[test]
        fn nothing_panics(text in ".{0,60}") {
            let mut out = LabelKeyFilter::default();
            let _ = (validate(&text).is_ok(), out.add(&text), digest(&text));
            let _ = (parse_normalized(&text).is_ok(), parse_normalized(&format!("ns:{text}&pod:{text}")).is_ok());
        }
    }
}
