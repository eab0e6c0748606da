//! Pods, reduced to the fields that locate them: a cluster has many.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Deserialize, Serialize};

/// The field selector of Pods that have not ended.
pub const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// A `v1` Pod without unused fields: they are skipped while a list is decoded.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Pod {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    host_network: bool,
    service_account_name: String,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Container {
    ports: Vec<Port>,
}

/// A port of a container.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Port {
    /// Its name; empty without one.
    pub name: String,
    /// Its number.
    #[serde(rename = "containerPort")]
    pub number: u16,
    protocol: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

impl Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl Pod ===

impl Pod {
    /// `metadata.namespace`; manifest files may leave it out.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// `metadata.uid`; manifest files have none.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> impl Iterator<Item = (&String, &String)> {
        self.metadata.labels.iter().flatten()
    }

    /// `spec.nodeName`; empty before the Pod is scheduled.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.spec.node_name
    }

    /// `spec.serviceAccountName`. The API server sets the account; manifest files may leave it out.
    #[must_use]
    pub fn service_account(&self) -> &str {
        match self.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        }
    }

    /// `status.podIPs`, if they are those of the Pod alone: none in the network of the host, and none once it has
    /// ended.
    #[must_use]
    pub fn own_addresses(&self) -> impl ExactSizeIterator<Item = &str> {
        let ended = matches!(self.status.phase.as_str(), "Succeeded" | "Failed");
        let addresses = if ended || self.spec.host_network || self.spec.node_name.is_empty() {
            Vec::new()
        } else if self.status.pod_ips.is_empty() && !self.status.pod_ip.is_empty() {
            // The API server sets both fields; manifest files may set one.
            vec![self.status.pod_ip.as_str()]
        } else {
            self.status.pod_ips.iter().map(|ip| ip.ip.as_str()).collect()
        };
        addresses.into_iter()
    }

    /// The ports of all containers.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.spec.containers.iter().flat_map(|container| &container.ports)
    }
}

// === impl Port ===

impl Port {
    /// Its protocol, `TCP` by default.
    #[must_use]
    pub fn protocol(&self) -> &str {
        match self.protocol.as_str() {
            "" => "TCP",
            name => name,
        }
    }
}
