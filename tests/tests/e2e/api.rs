//! API access without kubectl: tests poll hundreds of times, and a kubectl process takes longer than its request.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use http::{Method, Request, request};
use kube::{
    Api, Client,
    api::ListParams,
    client::Body,
    core::{ApiResource, DynamicObject},
    discovery::{Discovery, Scope},
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use mc_test_kit::kube_clients;

use crate::clusters::{Cluster, EAST};

/// In the token of a Pod (KEP-4193), as an HTTP header that impersonates.
const NODE_NAME: &str = "Impersonate-Extra-Authentication.kubernetes.io%2fnode-name";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
});

/// Cached discovery per cluster.
static DISCOVERY: Mutex<BTreeMap<&str, Arc<Discovery>>> = Mutex::new(BTreeMap::new());

/// Blocks on a future.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// A client with its own connection, because tests kill API servers.
pub(crate) async fn connect(cluster: Cluster) -> Client {
    connect_as(cluster, None).await
}

/// The same as a `ServiceAccount` (namespace, name).
pub(crate) async fn connect_as(cluster: Cluster, account: Option<(&str, &str)>) -> Client {
    let client = kube_clients::connect(cluster.0, account).await;
    client.unwrap_or_else(|error| panic!("{}: {error:#}", cluster.0))
}

/// Sends a request; returns status code and body.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<(&str, Value)>,
) -> (u16, Value) {
    send_request(client, Request::builder().method(method).uri(path), body).await
}

/// Sends a dry run to the cluster east as an account, whose token names a Node or none; returns status code and answer.
pub(crate) fn dry_run(
    account: &str,
    node: Option<&str>,
    method: &Method,
    path: &str,
    body: Option<(&'static str, Value)>,
) -> (u16, String) {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{path}?dryRun=All"))
        .header("Impersonate-User", account);
    if let Some(node) = node {
        request = request.header(NODE_NAME, node);
    }
    let (code, answer) = wait(async {
        let client = connect(EAST).await;
        send_request(&client, request, body).await
    });
    (code, answer.to_string())
}

/// The same for a request with further headers.
pub(crate) async fn send_request(
    client: &Client,
    request: request::Builder,
    body: Option<(&str, Value)>,
) -> (u16, Value) {
    let request = match body {
        Some((type_, body)) => request
            .header("content-type", type_)
            .body(Body::from(body.to_string().into_bytes())),
        None => request.body(Body::empty()),
    };
    let request = request.expect("a request");
    let path = request.uri().clone();
    let reply = async {
        let response = client.send(request).await?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await?;
        Ok::<_, kube::Error>((code, bytes))
    };
    let (code, bytes) = reply.await.unwrap_or_else(|error| panic!("{path}: {error}"));
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (code, serde_json::from_slice(&bytes).unwrap_or(json!(text)))
}

/// An object, or `None` if it does not exist; `kind` in kubectl's notation: singular or plural, optionally with group
/// and version.
pub(crate) fn get(
    cluster: Cluster,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Option<Value>, String> {
    wait(async {
        let (api, resource) = api(cluster, namespace, kind).await?;
        let object = api.get_opt(name).await.map_err(|error| error.to_string())?;
        Ok(object.map(|object| without_managed_fields(object, &resource)))
    })
}

/// All objects that match a label selector.
pub(crate) fn list(
    cluster: Cluster,
    namespace: &str,
    kind: &str,
    labels: &str,
) -> Result<Vec<Value>, String> {
    wait(async {
        let (api, resource) = api(cluster, namespace, kind).await?;
        let list = api.list(&ListParams::default().labels(labels)).await;
        let objects = list.map_err(|error| error.to_string())?.items.into_iter();
        Ok(objects
            .map(|object| without_managed_fields(object, &resource))
            .collect())
    })
}

async fn api(
    cluster: Cluster,
    namespace: &str,
    kind: &str,
) -> Result<(Api<DynamicObject>, ApiResource), String> {
    let client = connect(cluster).await;
    let known = || DISCOVERY.lock().unwrap_or_else(PoisonError::into_inner);
    let cached = known().get(cluster.0).cloned();
    let found = cached.and_then(|all| find_resource(&all, kind));
    let (resource, scope) = if let Some(found) = found {
        found
    } else {
        // The CRD may be newer than the cache.
        let all = Discovery::new(client.clone()).run().await;
        let all = Arc::new(all.map_err(|error| error.to_string())?);
        let found = find_resource(&all, kind);
        known().insert(cluster.0, all);
        found.ok_or_else(|| format!("{}: unknown kind {kind:?}", cluster.0))?
    };
    let api = match scope {
        Scope::Namespaced => Api::namespaced_with(client, namespace, &resource),
        Scope::Cluster => Api::all_with(client, &resource),
    };
    Ok((api, resource))
}

/// The resource type, in its preferred version unless one is named; the core group first.
fn find_resource(all: &Discovery, kind: &str) -> Option<(ApiResource, Scope)> {
    let (name, of) = kind.split_once('.').unwrap_or((kind, ""));
    let fits = |resource: &ApiResource| {
        let with_version = format!("{}.{}", resource.version, resource.group);
        (resource.plural == name || resource.kind.to_lowercase() == name)
            && (of.is_empty() || of == resource.group || of == with_version)
    };
    let groups = all.groups_alphabetical();
    let recommended = groups.iter().flat_map(|group| group.recommended_resources());
    let every = groups.iter().flat_map(|group| {
        let of = |version| group.versioned_resources(version);
        group.versions().flat_map(of).collect::<Vec<_>>()
    });
    recommended
        .chain(every)
        .find(|(resource, _)| fits(resource))
        .map(|(resource, capabilities)| (resource, capabilities.scope))
}

/// The object without managed fields, as kubectl shows it.
fn without_managed_fields(mut object: DynamicObject, resource: &ApiResource) -> Value {
    object.metadata.managed_fields = None;
    let mut object = serde_json::to_value(object).expect("JSON");
    object["apiVersion"] = json!(resource.api_version);
    object["kind"] = json!(resource.kind);
    object
}
