//! The reason why a member is not ready.

use super::cluster_copy::ForeignMark;
use crate::cluster_id::ClusterIdError;

/// The reason why a member is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReadyReason {
    /// A field of the `ClusterSet` is invalid.
    #[error("{field}: {why}")]
    InvalidField {
        /// The field.
        field: &'static str,
        /// The error.
        why: String,
    },
    /// The cluster's ID is unknown or invalid.
    #[error(transparent)]
    ClusterId(#[from] ClusterIdError),
    /// The Secret does not exist.
    #[error("spec.leaders[0].secret: Secret \"{namespace}/{name}\" does not exist")]
    SecretNotFound {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A key of the Secret is missing or unusable.
    #[error("spec.leaders[0].secret: Secret \"{namespace}/{name}\" has no usable key {key:?}: {why}")]
    SecretIncomplete {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key.
        key: &'static str,
        /// The error.
        why: &'static str,
    },
    /// The list of Secrets is incomplete.
    #[error("reading Secret {name:?}")]
    SecretPending {
        /// Its name.
        name: String,
    },
    /// The last request to the leader failed.
    #[error("spec.leaders[0].server: {server:?}: {error}")]
    Disconnected {
        /// The URL.
        server: String,
        /// The error.
        error: String,
    },
    /// The first answer is outstanding.
    #[error("connecting to {server:?}")]
    Connecting {
        /// The URL.
        server: String,
    },
    /// Another cluster uses the ID of this one.
    #[error(
        "spec.clusterID: {cluster_id:?} is in use by another cluster, {mark}; imports are kept, nothing is exported"
    )]
    ClonedCluster {
        /// The ID.
        cluster_id: String,
        /// The difference between their announces.
        mark: ForeignMark,
    },
    /// The leader's controller has not processed the announce yet.
    #[error("the leader has not accepted this cluster yet")]
    NotAccepted,
    /// The leader's controller rejects this cluster.
    #[error("the leader rejects this cluster: {why}")]
    Rejected {
        /// The leader's reason.
        why: String,
    },
}

// === impl NotReadyReason ===

impl NotReadyReason {
    /// The reason of the condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ClusterId(error) if error.is_transient() => "Connecting",
            Self::InvalidField { .. } | Self::ClusterId(_) => "InvalidClusterSet",
            Self::SecretNotFound { .. } => "SecretNotFound",
            Self::SecretIncomplete { .. } => "SecretIncomplete",
            Self::SecretPending { .. } | Self::Connecting { .. } => "Connecting",
            Self::Disconnected { .. } => "Disconnected",
            Self::ClonedCluster { .. } => "ClonedCluster",
            Self::NotAccepted => "NotAccepted",
            Self::Rejected { .. } => "Refused",
        }
    }

    /// Whether the state is not known yet.
    #[must_use]
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::SecretPending { .. } | Self::Connecting { .. } | Self::NotAccepted => true,
            Self::ClusterId(error) => error.is_transient(),
            _ => false,
        }
    }
}
