//! The Namespaces with Services that a member exports and imports.

use super::ConfigError;
use crate::validation;

/// Prefix of the Namespaces that Kubernetes reserves for itself.
const SYSTEM_PREFIX: &str = "kube-";

/// The Namespaces with Services that a member exports and imports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespacePolicy {
    /// All.
    #[default]
    Open,
    /// Those that a pattern matches, without patterns all; system Namespaces only by their name.
    Strict {
        /// Names and prefixes.
        allowed: Vec<NamespacePattern>,
    },
}

/// The name of a Namespace, or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespacePattern {
    /// This name.
    Name(String),
    /// Names that begin with this text, which may be empty.
    Prefix(String),
}

// === impl NamespacePolicy ===

impl NamespacePolicy {
    /// The policy of `namespacePolicy` and `allowedNamespaces`; an empty mode is `Open`.
    pub(super) fn new(mode: &str, allowed: &[String]) -> Result<Self, ConfigError> {
        let patterns = allowed.iter().enumerate().map(|(i, value)| {
            NamespacePattern::parse(value).ok_or_else(|| ConfigError::Namespace {
                field: format!("allowedNamespaces[{i}]"),
                value: value.clone(),
            })
        });
        let allowed = patterns.collect::<Result<Vec<_>, _>>()?;
        match mode {
            "" | "Open" if allowed.is_empty() => Ok(Self::Open),
            "" | "Open" => Err(ConfigError::AllowedNamespaces { count: allowed.len() }),
            "Strict" => Ok(Self::Strict { allowed }),
            _ => Err(ConfigError::UnknownValue {
                field: "namespacePolicy",
                value: mode.to_owned(),
                accepted: "Open, Strict",
            }),
        }
    }

    /// Whether Services of this Namespace are exported and imported by a controller in the Namespace `own`.
    #[must_use]
    pub fn allows(&self, namespace: &str, own: &str) -> bool {
        let Self::Strict { allowed } = self else {
            return true;
        };
        let is_named = |pattern: &NamespacePattern| *pattern == NamespacePattern::Name(namespace.to_owned());
        if allowed.iter().any(is_named) {
            return true;
        }
        let is_system = namespace == own || namespace.starts_with(SYSTEM_PREFIX);
        let matches = |pattern: &NamespacePattern| match pattern {
            NamespacePattern::Name(_) => false,
            NamespacePattern::Prefix(prefix) => namespace.starts_with(prefix.as_str()),
        };
        !is_system && (allowed.is_empty() || allowed.iter().any(matches))
    }
}

// === impl NamespacePattern ===

impl NamespacePattern {
    /// A name, or a prefix with a trailing `*`.
    fn parse(value: &str) -> Option<Self> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        match value.strip_suffix('*') {
            Some(prefix) => {
                let is_valid = prefix.len() <= 63 && prefix.bytes().all(inner) && !prefix.starts_with('-');
                is_valid.then(|| Self::Prefix(prefix.to_owned()))
            }
            None => validation::dns_label(value, 63)
                .ok()
                .map(|name| Self::Name(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: &str, allowed: &[&str]) -> Result<NamespacePolicy, String> {
        let allowed: Vec<_> = allowed.iter().map(|&text| text.to_owned()).collect();
        NamespacePolicy::new(mode, &allowed).map_err(|error| error.to_string())
    }

    #[test]
    fn system_namespaces_are_open_by_their_names_only() {
        for (mode, allowed, open, closed) in [
            ("", &[][..], &["shop", "kube-system", "mc"][..], &[][..]),
            ("Open", &[], &["shop", "kube-system", "mc"], &[]),
            (
                "Strict",
                &[],
                &["shop", "kubernetes"],
                &["kube-system", "kube-public", "mc"],
            ),
            ("Strict", &["*"], &["shop"], &["kube-system", "mc"]),
            ("Strict", &["kube-*"], &[], &["kube-system", "shop"]),
            (
                "Strict",
                &["kube-system", "mc"],
                &["kube-system", "mc"],
                &["kube-public", "shop"],
            ),
            (
                "Strict",
                &["shop-*", "web"],
                &["shop-eu", "web"],
                &["shop", "web-2", "kube-system"],
            ),
        ] {
            let policy = policy(mode, allowed).unwrap();
            for namespace in open {
                assert!(policy.allows(namespace, "mc"), "{policy:?} {namespace}");
            }
            for namespace in closed {
                assert!(!policy.allows(namespace, "mc"), "{policy:?} {namespace}");
            }
        }
    }

    #[test]
    fn bad_values_are_rejected_with_their_field() {
        for (mode, allowed, error) in [
            (
                "strict",
                &[][..],
                "namespacePolicy: \"strict\" is not one of Open, Strict",
            ),
            (
                "Open",
                &["shop"],
                "allowedNamespaces: 1 entries without namespacePolicy: Strict",
            ),
            (
                "Strict",
                &["shop", "Shop"],
                "allowedNamespaces[1]: \"Shop\" is not the name of a Namespace or a prefix of one followed by '*'",
            ),
            ("Strict", &[""], "allowedNamespaces[0]: \"\" is not the name"),
            ("Strict", &["-*"], "allowedNamespaces[0]: \"-*\" is not the name"),
        ] {
            let found = policy(mode, allowed).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }
}
