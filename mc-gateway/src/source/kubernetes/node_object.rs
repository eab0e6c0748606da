//! Objects that the agent creates for its Node.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::client;
use crate::config::{Config, ObjectSource};

/// An object was not created.
#[derive(Debug, Error)]
pub(crate) enum CreateError {
    /// No client for the API server.
    #[error(transparent)]
    Source(#[from] crate::source::SourceError),
    /// An error of the API server.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// An invalid manifest.
    #[error(transparent)]
    Manifest(#[from] serde_json::Error),
}

/// This Node, and the API server of its cluster.
#[derive(Clone, Debug)]
pub(crate) struct NodeObjects {
    /// The agent's Namespace.
    pub(crate) namespace: String,
    /// Name of the Node.
    pub(crate) node: String,
    kubeconfig: Option<PathBuf>,
}

impl NodeObjects {
    /// None for an agent without an API server.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let ObjectSource::Kubernetes {
            namespace,
            kubeconfig,
        } = &config.source
        else {
            return None;
        };
        Some(Self {
            namespace: namespace.clone(),
            node: config.node_name.clone(),
            kubeconfig: kubeconfig.clone(),
        })
    }

    /// The file with the access to the API server, if there is one.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    /// Creates the object for the name and the UID of the Node, in the agent's Namespace; false if it exists.
    pub(crate) async fn create<K>(
        &self,
        object: impl FnOnce(&str, &str) -> Result<K, CreateError>,
    ) -> Result<bool, CreateError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        let client = client(self.kubeconfig.as_deref()).await?;
        let found = Api::<Node>::all(client.clone()).get(&self.node).await?;
        let object = object(&self.node, &found.metadata.uid.unwrap_or_default())?;
        let by = PostParams {
            field_manager: Some("mc-gateway".to_owned()),
            ..PostParams::default()
        };
        match Api::<K>::namespaced(client, &self.namespace)
            .create(&by, &object)
            .await
        {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
