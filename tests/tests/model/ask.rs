//! Requests, as an API server reads them.

use std::collections::BTreeMap;

use http::{Method, request::Parts};
use serde_json::Value;

use super::{
    kinds::Resource,
    store::{Change, Key, Stored},
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// One object.
    Get,
    /// All objects, or those that fit a selector.
    List,
    /// What happens from now on.
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

/// A request, understood.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// What for.
    pub(crate) verb: Verb,
    /// Of which kind.
    pub(crate) resource: Resource,
    /// In which version of its group.
    pub(crate) version: String,
    /// Empty: all of them, or none.
    pub(crate) namespace: String,
    /// Empty: none.
    pub(crate) name: String,
    /// Whether it is about the status.
    pub(crate) status: bool,
    /// The query's parameters.
    pub(crate) query: BTreeMap<String, String>,
    /// The body; null: none.
    pub(crate) body: Value,
}

/// Which objects a list or watch is about.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    namespace: String,
    labels: Vec<(String, String)>,
    name: Option<String>,
}

// === impl Ask ===

impl Ask {
    /// Reads a request; `Err` is what is not modelled.
    pub(crate) fn read(parts: &Parts, body: &[u8]) -> Result<Self, &'static str> {
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
            .map(|(k, v)| (plain(k), plain(v)))
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

    /// A parameter that is a number.
    pub(crate) fn number<T: std::str::FromStr>(&self, parameter: &str) -> Option<T> {
        self.query.get(parameter)?.parse().ok()
    }

    /// As in `apiVersion`.
    pub(crate) fn version(&self) -> String {
        if self.resource.0.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.resource.0, self.version)
        }
    }

    /// Which object it is about.
    pub(crate) fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Percent-decoding, as forms do it.
fn plain(text: &str) -> String {
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
    /// The objects a request is about.
    pub(crate) fn new(ask: &Ask) -> Self {
        let pairs = |text: Option<&String>| -> Vec<(String, String)> {
            let text = text.map_or("", String::as_str);
            text.split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.to_owned(), v.trim_start_matches('=').to_owned()))
                .collect()
        };
        let fields = pairs(ask.query.get("fieldSelector"));
        Self {
            namespace: ask.namespace.clone(),
            labels: pairs(ask.query.get("labelSelector")),
            name: fields
                .into_iter()
                .find(|(k, _)| k == "metadata.name")
                .map(|(_, v)| v),
        }
    }

    /// Whether an object is one of them.
    pub(crate) fn takes(&self, key: &Key, stored: &Stored) -> bool {
        (self.namespace.is_empty() || key.0 == self.namespace)
            && self.name.as_ref().is_none_or(|n| *n == key.1)
            && self.labels.iter().all(|(k, v)| stored.label(k) == Some(v))
    }

    /// How a watch with this filter sees a change.
    pub(crate) fn event(&self, change: &Change) -> Option<&'static str> {
        let before = change.old.as_ref().is_some_and(|o| self.takes(&change.key, o));
        let after = !change.deleted && self.takes(&change.key, &change.new);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
        }
    }
}
