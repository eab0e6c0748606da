//! Where objects are: of which kind, in which Namespace, under which name.

use std::fmt;

use super::body::Kind;

/// Where objects are put.
pub(super) const SPACES: [&str; 2] = ["e2e-traces", "e2e-traces-a"];
/// A Namespace that is not there.
pub(super) const NOWHERE: &str = "e2e-traces-nowhere";
/// A Namespace that is being deleted.
pub(super) const GOING: &str = "e2e-traces-going";

/// One object, there or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) space: &'static str,
    pub(super) name: &'static str,
}

// === impl Place ===

impl Place {
    pub(super) fn new(kind: Kind, space: &'static str, name: &'static str) -> Self {
        Self { kind, space, name }
    }

    /// The path of its kind in its Namespace, or in all of them.
    pub(super) fn list(&self, everywhere: bool) -> String {
        let (root, plural) = (self.kind.root(), self.kind.plural());
        if everywhere {
            format!("{root}/{plural}")
        } else {
            format!("{root}/namespaces/{}/{plural}", self.space)
        }
    }

    /// The path of the object.
    pub(super) fn path(&self, status: bool) -> String {
        let end = if status { "/status" } else { "" };
        format!("{}/{}{end}", self.list(false), self.name)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.space, self.name)
    }
}
