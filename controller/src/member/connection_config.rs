//! The configuration of the connection to the leader, from `ClusterSet` and Secret.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, names, validation};

use super::not_ready_reason::NotReadyReason;
use crate::snapshot::{Membership, SecretState, leader_namespace};

/// The configuration of a connection to the leader; a change of any field opens a new one.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaderConnectionConfig {
    /// The ID of the set.
    pub cluster_set: String,
    /// The ID of the local cluster.
    pub cluster_id: String,
    /// The namespace of the exchanged objects in the leader cluster.
    pub namespace: String,
    /// The URL of the leader's API server.
    pub server: String,
    /// The CA bundle, PEM.
    pub ca: Vec<u8>,
    /// The bearer token and its use.
    pub credentials: Credentials,
}

/// The credentials of a member in the leader cluster.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A token that authorizes each request, as in Antrea.
    Token(String),
    /// A token that obtains short-lived tokens of another account, which authorize all other requests.
    Bootstrap {
        /// The token, of `ServiceAccount` [`names::bootstrap_account`].
        token: String,
        /// The name of the `ServiceAccount` of the short-lived tokens.
        account: String,
    },
}

/// The key of a Secret with the name of the account of short-lived tokens.
const KEY_SERVICE_ACCOUNT: &str = "serviceAccount";

// === impl LeaderConnectionConfig ===

impl From<&LeaderConnectionConfig> for Membership {
    fn from(config: &LeaderConnectionConfig) -> Self {
        Self {
            cluster_set: config.cluster_set.clone(),
            cluster_id: config.cluster_id.clone(),
            namespace: config.namespace.clone(),
        }
    }
}

/// The Secret that a `ClusterSet` refers to.
#[must_use]
pub fn secret_name(set: &ClusterSet) -> Option<&str> {
    set.spec
        .leaders
        .first()
        .map(|l| l.secret.as_str())
        .filter(|s| !s.is_empty())
}

/// The configuration of the connection to the leader.
pub fn connection_config(
    set: &ClusterSet,
    secret: &SecretState,
) -> Result<LeaderConnectionConfig, NotReadyReason> {
    let field = |field, why: &str| NotReadyReason::InvalidField {
        field,
        why: why.to_owned(),
    };
    // The ID is used as a label value, which has at most 63 characters.
    validation::dns_label(&set.spec.cluster_id, 63).map_err(|e| field("spec.clusterID", &e.to_string()))?;
    let leader = set
        .spec
        .leaders
        .first()
        .ok_or_else(|| field("spec.leaders", "is empty"))?;
    if leader.server.is_empty() {
        return Err(field("spec.leaders[0].server", "is empty"));
    }
    if !leader.server.starts_with("https://") {
        return Err(field(
            "spec.leaders[0].server",
            &format!("{:?} is not an https:// URL", leader.server),
        ));
    }
    let name = secret_name(set).ok_or_else(|| field("spec.leaders[0].secret", "is empty"))?;
    let namespace = set.namespace().unwrap_or_default();
    let secret = match secret {
        SecretState::Pending => {
            return Err(NotReadyReason::SecretPending {
                name: name.to_owned(),
            });
        }
        SecretState::Missing => {
            return Err(NotReadyReason::SecretNotFound {
                namespace,
                name: name.to_owned(),
            });
        }
        SecretState::Present(secret) => secret,
    };
    let (ca, credentials) = credentials(secret)?;
    Ok(LeaderConnectionConfig {
        cluster_set: set.name_any(),
        cluster_id: set.spec.cluster_id.clone(),
        namespace: leader_namespace(set).to_owned(),
        server: leader.server.clone(),
        ca,
        credentials,
    })
}

/// Whether a connection with this configuration is that of another membership than that of `set`.
#[must_use]
pub fn is_obsolete(config: &LeaderConnectionConfig, set: &ClusterSet) -> bool {
    Membership::from(config).has_ended(Some(set))
}

/// The CA bundle and the credentials of a Secret.
pub fn credentials(secret: &Secret) -> Result<(Vec<u8>, Credentials), NotReadyReason> {
    let ca = key(secret, "ca.crt")?;
    if !ca.starts_with(b"-----BEGIN CERTIFICATE-----") {
        return Err(incomplete(secret, "ca.crt", "not a PEM certificate"));
    }
    let token =
        String::from_utf8(key(secret, "token")?).map_err(|_| incomplete(secret, "token", "not text"))?;
    let token = token.trim().to_owned();
    if secret
        .data
        .as_ref()
        .is_none_or(|data| !data.contains_key(KEY_SERVICE_ACCOUNT))
    {
        return Ok((ca, Credentials::Token(token)));
    }
    let account = String::from_utf8(key(secret, KEY_SERVICE_ACCOUNT)?)
        .ok()
        .filter(|account| validation::dns_subdomain(&names::bootstrap_account(account), 253).is_ok())
        .ok_or_else(|| incomplete(secret, KEY_SERVICE_ACCOUNT, "not the name of a ServiceAccount"))?;
    Ok((ca, Credentials::Bootstrap { token, account }))
}

fn key(secret: &Secret, key: &'static str) -> Result<Vec<u8>, NotReadyReason> {
    match secret.data.as_ref().and_then(|d| d.get(key)) {
        None => Err(incomplete(secret, key, "it is absent")),
        Some(value) if value.0.trim_ascii().is_empty() => Err(incomplete(secret, key, "it is empty")),
        Some(value) => Ok(value.0.trim_ascii().to_owned()),
    }
}

fn incomplete(secret: &Secret, key: &'static str, why: &'static str) -> NotReadyReason {
    NotReadyReason::SecretIncomplete {
        namespace: secret.namespace().unwrap_or_default(),
        name: secret.name_any(),
        key,
        why,
    }
}
