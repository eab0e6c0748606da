//! Objects that the agent writes for its Node.

use std::fmt::Debug;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::client;
use crate::config::{Config, ObjectSource};

/// An object was not written.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
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

    /// A client for the API server.
    pub(crate) async fn client(&self) -> Result<Client, WriteError> {
        Ok(client(self.kubeconfig.as_deref()).await?)
    }

    /// The UID of the Node.
    pub(crate) async fn uid(&self, client: Client) -> Result<String, WriteError> {
        let node = Api::<Node>::all(client).get(&self.node).await?;
        Ok(node.metadata.uid.unwrap_or_default())
    }

    /// The parameters of a write.
    pub(crate) fn post_params() -> PostParams {
        PostParams {
            field_manager: Some("mc-gateway".to_owned()),
            ..PostParams::default()
        }
    }

    /// Creates the object for the name and the UID of the Node, in the agent's Namespace; false if it exists.
    pub(crate) async fn create<K>(
        &self,
        object: impl FnOnce(&str, &str) -> Result<K, WriteError>,
    ) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        let client = self.client().await?;
        let object = object(&self.node, &self.uid(client.clone()).await?)?;
        match Api::<K>::namespaced(client, &self.namespace)
            .create(&Self::post_params(), &object)
            .await
        {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
