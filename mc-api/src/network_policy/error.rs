//! Errors of policies, groups and Tiers.

use serde_json::Value;
use thiserror::Error;

use crate::{label_selector::SelectorError, validation::ValidationError};

/// Longest value in an error, in characters.
const MAX_VALUE: usize = 120;

/// A field that is rejected or not supported.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{object}: {field}: {value:?} {reason}")]
pub struct FieldError {
    /// Kind and name.
    pub object: String,
    /// Path of the field inside the object.
    pub field: String,
    /// Its value; JSON unless it is a string, and empty for an absent field.
    pub value: String,
    /// The cause.
    pub reason: PolicyError,
}

/// The cause of an error; the text completes "value …".
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PolicyError {
    /// A feature beyond layers 3 and 4, or one that this implementation lacks.
    #[error("is not supported")]
    Unsupported,
    /// A field that the API does not have.
    #[error("is in an unknown field")]
    UnknownField,
    /// A required field is absent.
    #[error("is missing")]
    Missing,
    /// A value of another type.
    #[error("is not {expected}")]
    Type {
        /// The expected type.
        expected: &'static str,
    },
    /// Two fields that exclude each other.
    #[error("excludes the field {other}")]
    Excludes {
        /// The other field.
        other: &'static str,
    },
    /// A field of cluster-scoped policies and groups.
    #[error("is not allowed in a namespaced object")]
    ClusterOnly,
    /// Peers with scope `ClusterSet` in a rule for egress.
    #[error("is not allowed in egress rules")]
    IngressOnly,
    /// A peer of the own cluster with scope `ClusterSet`.
    #[error("is not allowed with scope ClusterSet")]
    OwnCluster,
    /// An unknown action.
    #[error("is not Allow, Drop, Reject or Pass")]
    Action,
    /// An unknown name in the annotation of a policy.
    #[error("is not Enforce or Audit, so the policy is enforced")]
    EnforcementAction,
    /// An unknown scope.
    #[error("is not Cluster or ClusterSet")]
    Scope,
    /// A priority of a policy that is out of range.
    #[error("is not between 1 and 10000")]
    Priority,
    /// A priority of a Tier that is out of range.
    #[error("is not between 1 and 255")]
    TierPriority,
    /// An unknown protocol.
    #[error("is not TCP, UDP or SCTP")]
    Protocol,
    /// Neither the number nor the name of a port.
    #[error("is not a port (1 to 65535, or a name)")]
    Port,
    /// A range that ends before it starts.
    #[error("is smaller than the port {port}")]
    ReversedRange {
        /// The first port.
        port: u16,
    },
    /// An ICMP type or code beyond 8 bits.
    #[error("is not between 0 and 255")]
    Icmp,
    /// An invalid selector.
    #[error("is not a label selector: {0}")]
    Selector(#[from] SelectorError),
    /// An invalid CIDR.
    #[error("is rejected: {0}")]
    Cidr(#[from] ValidationError),
    /// An exception outside its block.
    #[error("is not inside {cidr}")]
    OutsideBlock {
        /// The block.
        cidr: ipnet::IpNet,
    },
}

/// The errors of one object.
#[derive(Debug)]
pub(super) struct Errors {
    object: String,
    list: Vec<FieldError>,
}

// === impl FieldError ===

impl FieldError {
    pub(super) fn new(object: String, path: &str, value: &Value, reason: PolicyError) -> Self {
        let text = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Self {
            object,
            field: path.to_owned(),
            value: text.chars().take(MAX_VALUE).collect(),
            reason,
        }
    }
}

// === impl Errors ===

impl Errors {
    pub(super) fn new(object: String) -> Self {
        Self {
            object,
            list: Vec::new(),
        }
    }

    /// Adds the error of the field at `path`.
    pub(super) fn add(&mut self, path: &str, value: &Value, reason: PolicyError) {
        self.list
            .push(FieldError::new(self.object.clone(), path, value, reason));
    }

    pub(super) fn into_list(self) -> Vec<FieldError> {
        self.list
    }
}
