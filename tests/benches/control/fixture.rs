//! The clusters: API access, server and client Pods.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Namespace, Pod, Service},
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use mc_test_kit::kube_clients;
use mc_tests::process::find_pod_process;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Namespace of all measured objects, in every cluster.
pub(crate) const NAMESPACE: &str = "bench-control";
/// Namespace of the exchanged objects in the leader cluster.
pub(crate) const LEADER_NAMESPACE: &str = "antrea-multicluster";
/// Namespace of a member's own objects.
pub(crate) const MEMBER_NAMESPACE: &str = "kube-system";
/// Timeout of a Pod start.
const START: Duration = Duration::from_mins(2);
/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A cluster with administrator rights.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
}

/// A namespaced kind.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
{
}

// === impl Cluster ===

impl Cluster {
    pub(crate) async fn connect(name: &'static str) -> Result<Self> {
        Self::connect_as(name, None).await
    }

    /// As a `ServiceAccount` (namespace, name).
    pub(crate) async fn connect_as(name: &'static str, account: Option<(&str, &str)>) -> Result<Self> {
        let client = kube_clients::connect(name, account).await?;
        Ok(Self { name, client })
    }

    pub(crate) fn api<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Applies an object; `apiVersion`, `kind` and name are added.
    pub(crate) async fn apply<K: Kind>(&self, namespace: &str, name: &str, mut object: Value) -> Result<K> {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"]["name"] = json!(name);
        let params = PatchParams::apply("bench").force();
        let api: Api<K> = self.api(namespace);
        let patch = Patch::Apply(object);
        api.patch(name, &params, &patch)
            .await
            .with_context(|| format!("{} {namespace}/{name} in {}", K::kind(&()), self.name))
    }

    pub(crate) async fn delete<K: Kind>(&self, namespace: &str, name: &str) -> Result<()> {
        let api: Api<K> = self.api(namespace);
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Number of objects, without reading them.
    pub(crate) async fn count<K: Kind>(&self, namespace: &str) -> Result<u64> {
        let api: Api<K> = self.api(namespace);
        let list = api.list_metadata(&ListParams::default().limit(1)).await?;
        let rest = list.metadata.remaining_item_count.unwrap_or_default();
        Ok(u64::try_from(list.items.len())? + u64::try_from(rest)?)
    }

    /// Number of objects with a true condition.
    pub(crate) async fn count_with<K: Kind>(&self, namespace: &str, condition: &str) -> Result<usize> {
        let api: Api<K> = self.api(namespace);
        let has = |object: K| {
            let object = serde_json::to_value(object).unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|c| c["type"] == condition && c["status"] == "True")
        };
        let all = api.list(&ListParams::default()).await?.items.into_iter();
        Ok(all.map(has).filter(|has| *has).count())
    }

    pub(crate) async fn namespace(&self, name: &str) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.patch(name, &PatchParams::apply("bench"), &Patch::Apply(namespace))
            .await?;
        Ok(())
    }

    /// Starts a Pod of the traffic program; returns its address and PID.
    pub(crate) async fn pod(&self, node: &str, name: &str, args: &[&str]) -> Result<(String, u32)> {
        let mut command = vec!["/usr/bin/mc-traffic"];
        command.extend(args);
        let container = json!({
            "name": name, "image": "mc-gateway/test:latest", "imagePullPolicy": "IfNotPresent", "command": command,
        });
        let spec = json!({
            "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
        });
        self.apply::<Pod>(NAMESPACE, name, json!({ "spec": spec }))
            .await?;
        let api: Api<Pod> = self.api(NAMESPACE);
        wait_until(&format!("Pod {name}"), START, async || {
            let status = api
                .get(name)
                .await
                .map_err(error_text)?
                .status
                .unwrap_or_default();
            let ready = status
                .conditions
                .iter()
                .flatten()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            let process = find_pod_process("mc-traffic", "HOSTNAME", name);
            match (status.pod_ip, process) {
                (Some(ip), Some(process)) if ready => Ok((ip, process)),
                seen => Err(format!("{seen:?}, phase {:?}", status.phase)),
            }
        })
        .await
    }

    /// A Service without selector and its endpoints: address, Node, readiness.
    pub(crate) async fn service(&self, name: &str, endpoints: &[(String, &str, bool)]) -> Result<()> {
        let spec =
            json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }] });
        self.apply::<Service>(NAMESPACE, name, json!({ "spec": spec }))
            .await?;
        self.endpoints(name, endpoints).await
    }

    /// Replaces the endpoints of a Service.
    pub(crate) async fn endpoints(&self, name: &str, endpoints: &[(String, &str, bool)]) -> Result<()> {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(ip, node, ready)| {
                json!({ "addresses": [ip], "nodeName": node, "conditions": { "ready": ready, "serving": ready } })
            })
            .collect();
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "bench" } },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        });
        self.apply::<EndpointSlice>(NAMESPACE, name, slice).await?;
        Ok(())
    }

    /// Waits for the address of an imported Service.
    pub(crate) async fn imported(&self, name: &str, deadline: Duration) -> Result<String> {
        let api: Api<Service> = self.api(NAMESPACE);
        let name = format!("antrea-mc-{name}");
        wait_until(&format!("Service {name}"), deadline, async || {
            let service = api.get_opt(&name).await.map_err(error_text)?;
            service
                .and_then(|s| s.spec?.cluster_ip)
                .ok_or_else(|| "none".to_owned())
        })
        .await
    }
}

pub(crate) fn error_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Polls until success; fails with the last state seen.
pub(crate) async fn wait_until<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let seen = match look().await {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if start.elapsed() > deadline {
            bail!("{what}: not within {deadline:?}, seen: {seen}");
        }
        sleep(POLL_INTERVAL).await;
    }
}
