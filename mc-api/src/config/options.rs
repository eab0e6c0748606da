//! Enumerated options of the configuration file; an empty value is the default.

use std::str::FromStr;

use super::ConfigError;

/// Treatment of stale members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleMemberPolicy {
    /// Reported as not Ready.
    #[default]
    Keep,
    /// Removed with all its exports after the timeout.
    Remove,
}

/// Cluster IDs of `ServiceAccount`s without the annotation `multicluster.antrea.io/cluster-id`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccountBinding {
    /// That of the first cluster which joins with the account.
    #[default]
    OnFirstUse,
    /// None, unless it is bound already: such an account may write nothing.
    Required,
    /// Any to which no other account is bound.
    Shared,
}

/// Namespaces of the members in the leader cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All members share the leader's Namespace, as in Antrea, and can read each other's exports there.
    #[default]
    Common,
    /// A member may have a Namespace of its own, with its exports and copies of the imports.
    Namespace,
}

/// Pods whose label identities are exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityExport {
    /// All Pods.
    #[default]
    All,
    /// Pods matched by a selector of scope `ClusterSet` in a replicated policy.
    Selected,
}

/// Node address type of the gateway IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayIpPrecedence {
    /// `InternalIP`.
    #[default]
    Internal,
    /// `ExternalIP`.
    External,
}

/// Endpoint addresses of an exported Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointIpType {
    /// The cluster IP of the Service.
    #[default]
    ClusterIp,
    /// The addresses of its ready Pods.
    PodIp,
}

/// Number of active gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayMode {
    /// Every eligible Node.
    #[default]
    ActiveActive,
    /// One; the others are standbys.
    ActiveStandby,
}

fn unknown<T>(field: &'static str, value: &str, accepted: &'static str) -> Result<T, ConfigError> {
    Err(ConfigError::UnknownValue {
        field,
        value: value.to_owned(),
        accepted,
    })
}

// === impl StaleMemberPolicy ===

impl FromStr for StaleMemberPolicy {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "Keep" => Ok(Self::Keep),
            "Remove" => Ok(Self::Remove),
            _ => unknown("staleMemberPolicy", value, "Keep, Remove"),
        }
    }
}

// === impl AccountBinding ===

impl AccountBinding {
    /// The value in the configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnFirstUse => "OnFirstUse",
            Self::Required => "Required",
            Self::Shared => "Shared",
        }
    }
}

impl FromStr for AccountBinding {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "OnFirstUse" => Ok(Self::OnFirstUse),
            "Required" => Ok(Self::Required),
            "Shared" => Ok(Self::Shared),
            _ => unknown("accountBinding", value, "OnFirstUse, Required, Shared"),
        }
    }
}

// === impl Isolation ===

impl FromStr for Isolation {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "Common" => Ok(Self::Common),
            "Namespace" => Ok(Self::Namespace),
            _ => unknown("isolation", value, "Common, Namespace"),
        }
    }
}

// === impl IdentityExport ===

impl FromStr for IdentityExport {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "All" => Ok(Self::All),
            "Selected" => Ok(Self::Selected),
            _ => unknown("labelIdentityExport", value, "All, Selected"),
        }
    }
}

// === impl GatewayIpPrecedence ===

impl FromStr for GatewayIpPrecedence {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "private" | "internal" => Ok(Self::Internal),
            "public" | "external" => Ok(Self::External),
            _ => unknown(
                "gatewayIPPrecedence",
                value,
                "internal, private, external, public",
            ),
        }
    }
}

// === impl EndpointIpType ===

impl FromStr for EndpointIpType {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "ClusterIP" => Ok(Self::ClusterIp),
            "PodIP" => Ok(Self::PodIp),
            _ => unknown("endpointIPType", value, "ClusterIP, PodIP"),
        }
    }
}

// === impl GatewayMode ===

impl FromStr for GatewayMode {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "ActiveActive" => Ok(Self::ActiveActive),
            "ActiveStandby" => Ok(Self::ActiveStandby),
            _ => unknown("gatewayMode", value, "ActiveActive, ActiveStandby"),
        }
    }
}
