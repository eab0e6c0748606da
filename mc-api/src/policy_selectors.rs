//! Payload of `ResourceExport`s of kind `PolicySelectors`: the peers of scope `ClusterSet` in the exporting cluster's
//! own policies.
//!
//! Superset. It is base64 text in the field `raw`, which leaders of Antrea store and do not read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::raw_payload::{self, Limits, RawPayloadError};

/// The maximum number of peers.
pub const MAX_PEERS: usize = 256;
/// The longest payload before its encoding, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// The part of [`MAX_BYTES`] for the name of the field `peers`, its braces and brackets.
const ENVELOPE_BYTES: usize = 16;

/// The peers of scope `ClusterSet`, without the field `scope`. A cluster that exports label identities of selected Pods
/// only ([`crate::config::IdentityExport::Selected`]) includes the Pods that they match.
///
/// *Guarantees*: at most [`MAX_PEERS`] and [`MAX_BYTES`]; equal peers occur once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySelectors(Vec<Value>);

/// The limits of a payload that is read.
const LIMITS: Limits = Limits {
    of: "peers",
    bytes: MAX_BYTES,
    count: MAX_PEERS,
};

/// The encoded fields.
#[derive(Deserialize)]
struct Payload {
    peers: Vec<Value>,
}

// === impl Payload ===

impl From<Payload> for Vec<Value> {
    fn from(payload: Payload) -> Self {
        payload.peers
    }
}

// === impl PolicySelectors ===

impl PolicySelectors {
    /// The distinct peers; a single peer for all Pods if it is among them, or if they exceed a payload.
    #[must_use]
    pub fn new(peers: impl IntoIterator<Item = Value>) -> Self {
        let mut by_text = BTreeMap::new();
        let mut length = ENVELOPE_BYTES;
        for peer in peers {
            let text = peer.to_string();
            // With a comma.
            let added = text.len().saturating_add(1);
            let matches_all = peer.as_object().is_some_and(serde_json::Map::is_empty);
            if by_text.insert(text, peer).is_none() {
                length = length.saturating_add(added);
            }
            if matches_all || by_text.len() > MAX_PEERS || length > MAX_BYTES {
                return Self(vec![json!({})]);
            }
        }
        Self(by_text.into_values().collect())
    }

    /// The peers.
    #[must_use]
    pub fn peers(&self) -> &[Value] {
        &self.0
    }

    /// The field `raw` with these peers.
    #[must_use]
    pub fn to_raw(&self) -> Value {
        raw_payload::encode(&json!({ "peers": self.0 }))
    }

    /// The peers in a field `raw`.
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
    use k8s_openapi::ByteString;
    use proptest::prelude::*;

    use super::*;

    fn peer(number: usize, length: usize) -> Value {
        json!({ "podSelector": { "matchLabels": { "app": format!("{number}-{}", "x".repeat(length)) } } })
    }

    fn raw(text: &str) -> Value {
        json!({ "data": ByteString(text.as_bytes().to_vec()) })
    }

    #[test]
    fn equal_peers_occur_once() {
        let twice = PolicySelectors::new([peer(2, 0), peer(1, 0), peer(2, 0)]);
        assert_eq!(twice.peers(), [peer(1, 0), peer(2, 0)]);
    }

    #[test]
    fn too_many_peers_become_one_for_all_pods() {
        let all = [json!({})];
        let peers = |count: usize, length| PolicySelectors::new((0..count).map(|n| peer(n, length)));
        assert_eq!(peers(MAX_PEERS, 0).peers().len(), MAX_PEERS);
        assert_eq!(peers(MAX_PEERS + 1, 0).peers(), all);
        assert_eq!(peers(100, 1000).peers(), all);
        assert_eq!(
            PolicySelectors::new([peer(1, 0), json!({}), peer(2, 0)]).peers(),
            all
        );
    }

    #[test]
    fn a_payload_of_another_form_is_rejected_by_field() {
        for (raw, wanted) in [
            (None, "spec.raw.data is missing or not base64 text"),
            (
                Some(json!({ "data": "%" })),
                "spec.raw.data is missing or not base64 text",
            ),
            (
                Some(json!({ "data": 5 })),
                "spec.raw.data is missing or not base64 text",
            ),
            (
                Some(raw("[1]")),
                "spec.raw.data is not a list of peers: invalid type: integer `1`",
            ),
            (
                Some(raw("{}")),
                "spec.raw.data is not a list of peers: missing field `peers`",
            ),
            (
                Some(raw(&" ".repeat(MAX_BYTES + 1))),
                "spec.raw.data has 65537 bytes, more than 65536",
            ),
            (
                Some(raw(&json!({ "peers": vec![1; 257] }).to_string())),
                "spec.raw.data has 257 peers, more than 256",
            ),
        ] {
            let error = PolicySelectors::from_raw(raw.as_ref()).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_payload_is_read_as_it_was_written(
            peers in prop::collection::vec((0..400_usize, 0..400_usize), 0..300),
        ) {
            let written = PolicySelectors::new(peers.into_iter().map(|(n, length)| peer(n, length)));
            let raw = written.to_raw();
            prop_assert_eq!(PolicySelectors::from_raw(Some(&raw)), Ok(written));
        }
    }
}
