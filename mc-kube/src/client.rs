//! Client construction.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::{
    Multiplexing,
    bound_token::{BoundToken, TokenAccount},
    error_chain, transport,
};

/// Source of a client's configuration.
#[derive(Clone, Copy, Debug)]
pub enum ConfigSource<'a> {
    /// A kubeconfig file.
    Kubeconfig(&'a Path),
    /// The service account of the Pod.
    InCluster,
    /// The service account of the Pod, else kubectl's configuration.
    Infer,
}

/// A client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file is unusable.
    #[error("kubeconfig {}: {cause}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The error with its causes.
        cause: String,
    },
    /// The configuration is unusable.
    #[error("{cause}")]
    Config {
        /// The error with its causes.
        cause: String,
    },
}

// === impl ClientError ===

impl ClientError {
    fn config(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Config {
            cause: error_chain(error),
        }
    }
}

/// Builds a client; an unreachable API server is no error here.
pub async fn client(source: ConfigSource<'_>, multiplexing: Multiplexing) -> Result<Client, ClientError> {
    let config = match source {
        ConfigSource::Kubeconfig(path) => {
            let failed = |error: &(dyn std::error::Error + 'static)| ClientError::Kubeconfig {
                path: path.to_owned(),
                cause: error_chain(error),
            };
            let file = Kubeconfig::read_from(path).map_err(|e| failed(&e))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|e| failed(&e))?
        }
        ConfigSource::InCluster => Config::incluster().map_err(|e| ClientError::config(&e))?,
        ConfigSource::Infer => Config::infer().await.map_err(|e| ClientError::config(&e))?,
    };
    transport::connect(config, multiplexing).map_err(|e| ClientError::config(&e))
}

/// Builds a client of `server` from a CA bundle (PEM) and a bearer token.
pub async fn client_with_token(server: &str, ca: &[u8], token: &str) -> Result<Client, ClientError> {
    let config = config(server, ca, &json!({ "token": token })).await?;
    transport::connect(config, Multiplexing::Shared).map_err(|e| ClientError::config(&e))
}

/// Builds a client of `server` from a CA bundle (PEM), with short-lived tokens of `account`. They are requested with
/// the `bootstrap` token, and replaced before they expire and after the server has rejected one.
///
/// Requests wait for the first token, and fail with the cause while there is none.
pub async fn client_with_bound_token(
    server: &str,
    ca: &[u8],
    bootstrap: &str,
    account: &TokenAccount,
) -> Result<Client, ClientError> {
    let requests = client_with_token(server, ca, bootstrap).await?;
    let config = config(server, ca, &json!({})).await?;
    let token = BoundToken::new(requests, account);
    transport::connect_with_bound_token(config, Multiplexing::Shared, token)
        .map_err(|e| ClientError::config(&e))
}

async fn config(server: &str, ca: &[u8], user: &Value) -> Result<Config, ClientError> {
    let kubeconfig = json!({
        "clusters": [{ "name": "server", "cluster": {
            "server": server,
            "certificate-authority-data": ByteString(ca.to_vec()),
        }}],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "context", "context": { "cluster": "server", "user": "user" } }],
        "current-context": "context",
    });
    let file: Kubeconfig = serde_json::from_value(kubeconfig).map_err(|e| ClientError::config(&e))?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|e| ClientError::config(&e))
}
