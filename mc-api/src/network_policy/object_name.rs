//! Names of policies, groups and other objects.

use std::fmt;

/// Name of a policy, a group or another object, with its Namespace unless its kind is cluster-scoped.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// The Namespace.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

// === impl ObjectName ===

impl ObjectName {
    /// A cluster-scoped name.
    #[must_use]
    pub fn cluster(name: &str) -> Self {
        Self {
            namespace: None,
            name: name.to_owned(),
        }
    }

    /// A name in a Namespace.
    #[must_use]
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    /// `KIND NAME` or `KIND NAMESPACE/NAME`, by one of two kinds.
    pub(super) fn with_kind(&self, cluster: &str, namespaced: &str) -> String {
        match self.namespace {
            None => format!("{cluster} {self}"),
            Some(_) => format!("{namespaced} {self}"),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            None => f.write_str(&self.name),
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
        }
    }
}
