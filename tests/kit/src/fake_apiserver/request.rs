//! API requests, parsed from HTTP.

use std::collections::BTreeMap;

use http::{Method, request::Parts};
use serde_json::Value;

use super::{
    resources::Resource,
    store::{Change, Key, StoredObject},
};

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read of one object.
    Get,
    /// Read of all objects that match the selectors.
    List,
    /// Stream of changes.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Replace,
    /// JSON merge patch.
    Merge,
    /// Server-side apply.
    Apply,
    /// DELETE.
    Delete,
}

/// A parsed request.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// Operation.
    pub verb: Verb,
    /// Group and plural name.
    pub resource: Resource,
    /// Version of the group.
    pub version: String,
    /// Namespace; empty for cluster-scoped kinds and lists of all namespaces.
    pub namespace: String,
    /// Object name; empty for collections.
    pub name: String,
    /// True for the `status` subresource.
    pub status: bool,
    /// Query parameters.
    pub query: BTreeMap<String, String>,
    /// Body; null if empty.
    pub body: Value,
}

/// Selectors of a list or watch.
#[derive(Clone, Debug)]
pub struct Filter {
    namespace: String,
    labels: Vec<(String, String)>,
    name: Option<String>,
}

// === impl ApiRequest ===

impl ApiRequest {
    /// Parses a request; fails on requests that are not modelled.
    pub fn parse(parts: &Parts, body: &[u8]) -> Result<Self, &'static str> {
        let path: Vec<_> = parts.uri.path().split('/').filter(|s| !s.is_empty()).collect();
        let (group, version, rest) = match path.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err("no such path"),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && rest != ["status"] => {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let (plural, name, status) = match rest {
            [plural] => (*plural, "", false),
            [plural, name] => (*plural, *name, false),
            [plural, name, "status"] => (*plural, *name, true),
            _ => return Err("no such path"),
        };
        let query: BTreeMap<_, _> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (percent_decode(k), percent_decode(v)))
            .collect();
        let kind = parts
            .headers
            .get("content-type")
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        let verb = match (&parts.method, name.is_empty()) {
            (&Method::GET, false) => Verb::Get,
            (&Method::GET, true) if query.get("watch").is_some_and(|w| w == "true") => Verb::Watch,
            (&Method::GET, true) => Verb::List,
            (&Method::POST, true) => Verb::Create,
            (&Method::PUT, false) => Verb::Replace,
            (&Method::PATCH, false) if kind == "application/merge-patch+json" => Verb::Merge,
            (&Method::PATCH, false) if kind.starts_with("application/apply-patch") => Verb::Apply,
            (&Method::DELETE, false) => Verb::Delete,
            _ => return Err("not modelled"),
        };
        Ok(Self {
            verb,
            resource: (group.to_owned(), plural.to_owned()),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status,
            query,
            body: if body.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(body).map_err(|_| "no JSON")?
            },
        })
    }

    /// A numeric query parameter.
    #[must_use]
    pub fn query_number<T: std::str::FromStr>(&self, parameter: &str) -> Option<T> {
        self.query.get(parameter)?.parse().ok()
    }

    /// The requested `apiVersion`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.resource.0.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.resource.0, self.version)
        }
    }

    /// Namespace and name.
    #[must_use]
    pub fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Decodes `application/x-www-form-urlencoded` text.
fn percent_decode(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut out = vec![];
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let hex: Vec<_> = bytes.by_ref().take(2).collect();
                let hex = String::from_utf8_lossy(&hex).into_owned();
                out.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            b'+' => out.push(b' '),
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

// === impl Filter ===

impl Filter {
    /// The selectors of a request.
    #[must_use]
    pub fn new(request: &ApiRequest) -> Self {
        let pairs = |text: Option<&String>| -> Vec<(String, String)> {
            let text = text.map_or("", String::as_str);
            text.split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.to_owned(), v.trim_start_matches('=').to_owned()))
                .collect()
        };
        let fields = pairs(request.query.get("fieldSelector"));
        Self {
            namespace: request.namespace.clone(),
            labels: pairs(request.query.get("labelSelector")),
            name: fields
                .into_iter()
                .find(|(k, _)| k == "metadata.name")
                .map(|(_, v)| v),
        }
    }

    /// True if the object matches.
    #[must_use]
    pub fn matches(&self, key: &Key, stored: &StoredObject) -> bool {
        (self.namespace.is_empty() || key.0 == self.namespace)
            && self.name.as_ref().is_none_or(|n| *n == key.1)
            && self.labels.iter().all(|(k, v)| stored.label(k) == Some(v))
    }

    /// The event type of a change for a watch with these selectors.
    #[must_use]
    pub fn event_type(&self, change: &Change) -> Option<&'static str> {
        let before = change.old.as_ref().is_some_and(|o| self.matches(&change.key, o));
        let after = !change.deleted && self.matches(&change.key, &change.new);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
        }
    }
}
