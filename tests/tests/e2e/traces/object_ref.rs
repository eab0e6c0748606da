//! References to objects: kind, Namespace, name.

use std::fmt;

use super::body::Kind;

/// Namespaces of objects.
pub(super) const NAMESPACES: [&str; 2] = ["e2e-traces", "e2e-traces-a"];
/// A Namespace that does not exist.
pub(super) const MISSING_NAMESPACE: &str = "e2e-traces-nowhere";
/// A Namespace that is being deleted.
pub(super) const TERMINATING_NAMESPACE: &str = "e2e-traces-going";

/// One object, which may not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectRef {
    pub(super) kind: Kind,
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
}

// === impl Place ===

impl ObjectRef {
    pub(super) fn new(kind: Kind, namespace: &'static str, name: &'static str) -> Self {
        Self {
            kind,
            namespace,
            name,
        }
    }

    /// The path of its kind in its Namespace, or in all.
    pub(super) fn list(&self, everywhere: bool) -> String {
        let (root, plural) = (self.kind.root(), self.kind.plural());
        if everywhere {
            format!("{root}/{plural}")
        } else {
            format!("{root}/namespaces/{}/{plural}", self.namespace)
        }
    }

    /// The path of the object.
    pub(super) fn path(&self, status: bool) -> String {
        let end = if status { "/status" } else { "" };
        format!("{}/{}{end}", self.list(false), self.name)
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.namespace, self.name)
    }
}
