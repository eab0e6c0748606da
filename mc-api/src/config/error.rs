//! Validation errors of the configuration file; each names the key and the value.

use jiff::SignedDuration;

use crate::{listen_addr::ListenAddrError, validation::ValidationError};

/// A rejected value of the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A malformed CIDR.
    #[error("{field}: {cause}")]
    Cidr {
        /// The key in the file.
        field: String,
        /// The validation error.
        cause: ValidationError,
    },
    /// A value outside an enumeration.
    #[error("{field}: {value:?} is not one of {accepted}")]
    UnknownValue {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// A malformed or negative duration.
    #[error("{field}: {value:?} is not a duration such as 30s or 1m30s")]
    Duration {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: String,
    },
    /// A malformed listen address.
    #[error("{field}: {cause}")]
    ListenAddr {
        /// The key in the file.
        field: &'static str,
        /// The parse error.
        cause: ListenAddrError,
    },
    /// A duration below the safe minimum.
    #[error("{field}: {value:?} is shorter than {min:#}")]
    TooShort {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: String,
        /// The minimum.
        min: SignedDuration,
    },
    /// A malformed label key or prefix.
    #[error("{field}: {value:?} is not a label key or a prefix of one followed by '*'")]
    LabelKey {
        /// The key in the file.
        field: String,
        /// The value in the file.
        value: String,
    },
    /// A malformed name of a Namespace.
    #[error("{field}: {value:?} is not the name of a Namespace or a prefix of one followed by '*'")]
    Namespace {
        /// The key in the file.
        field: String,
        /// The value in the file.
        value: String,
    },
    /// A list of Namespaces that has no effect.
    #[error("allowedNamespaces: {count} entries without namespacePolicy: Strict")]
    AllowedNamespaces {
        /// The length of the list.
        count: usize,
    },
    /// `apiVersion` or `kind` of another type.
    #[error("{field}: {value:?} instead of {expected:?}")]
    TypeMeta {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// Two Service CIDRs of one IP family.
    #[error(
        "serviceCIDR: {value:?} is more than one CIDR of an IP family; give one, or one IPv4 and one IPv6 CIDR"
    )]
    ServiceCidrs {
        /// The value in the file.
        value: String,
    },
}
