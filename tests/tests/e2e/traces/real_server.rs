//! The real server: the leader cluster's, where no controller watches these Namespaces.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use http::Method;
use kube::Client;
use mc_api::{crd, names};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    body::KINDS,
    object_ref::{NAMESPACES, ObjectRef, TERMINATING_NAMESPACE},
};
use crate::{
    api::{connect, send},
    clusters::{LEADER, LONG_TIMEOUT, SHORT_TIMEOUT},
};

const NAMESPACES_PATH: &str = "/api/v1/namespaces";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Finalizer that keeps the Namespace terminating.
const HOLD: &str = "mc.test/hold";
/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(50);

/// A real server with the CRDs and Namespaces of traces.
pub(super) struct Server {
    pub(super) client: Client,
    /// UIDs of Namespaces.
    pub(super) namespaces: BTreeMap<String, String>,
    /// CRDs that were installed for the traces.
    crds: Vec<String>,
}

// === impl Server ===

impl Server {
    /// Installs the CRDs and empty Namespaces of traces.
    pub(super) async fn open() -> Self {
        let client = connect(LEADER).await;
        let mut crds = vec![];
        for crd in crd::leader().into_iter().chain(crd::member()) {
            let is_used = |plural: &str| KINDS.iter().any(|kind| kind.plural() == plural);
            if !is_used(&crd.spec.names.plural) {
                continue;
            }
            let name = crd.metadata.name.clone().expect("CRDs have names");
            let crd = serde_json::to_value(&crd).expect("JSON");
            let (code, reply) = send(&client, Method::POST, CRDS, Some(("application/json", crd))).await;
            match code {
                201 => crds.push(name),
                409 => {}
                _ => panic!("{name}: {reply}"),
            }
        }
        for kind in KINDS {
            let path = ObjectRef::new(kind, NAMESPACES[0], "").list(false);
            until(SHORT_TIMEOUT, &client, &path, |code, _| code == 200).await;
        }
        let namespaces = create_namespaces(&client).await;
        for namespace in NAMESPACES {
            // Without the identity ConfigMap the admission policies reject ResourceExports.
            let identities = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": names::SERVICE_ACCOUNT_BINDINGS },
            });
            let path = format!("{NAMESPACES_PATH}/{namespace}/configmaps");
            let (code, reply) = send(
                &client,
                Method::POST,
                &path,
                Some(("application/json", identities)),
            )
            .await;
            assert!(code == 201 || code == 409, "{namespace}: {reply}");
        }
        let server = Self {
            client,
            namespaces,
            crds,
        };
        server.clear().await;
        server
    }

    /// Deletes the objects of a trace.
    pub(super) async fn clear(&self) {
        for kind in KINDS {
            for namespace in NAMESPACES {
                let path = ObjectRef::new(kind, namespace, "").list(false);
                let (_, list) = send(&self.client, Method::GET, &path, None).await;
                for item in list["items"].as_array().into_iter().flatten() {
                    let name = item["metadata"]["name"].as_str().unwrap_or_default();
                    remove(&self.client, &format!("{path}/{name}")).await;
                }
            }
        }
    }

    /// Deletes everything and waits until it is gone.
    pub(super) async fn close(&self) {
        self.clear().await;
        let namespaces = NAMESPACES
            .iter()
            .chain([&TERMINATING_NAMESPACE])
            .map(|s| format!("{NAMESPACES_PATH}/{s}"));
        let crds = self.crds.iter().map(|c| format!("{CRDS}/{c}"));
        // Namespace deletion needs all its kinds.
        for paths in [namespaces.collect::<Vec<_>>(), crds.collect()] {
            for path in &paths {
                remove(&self.client, path).await;
            }
            for path in &paths {
                until(LONG_TIMEOUT, &self.client, path, |code, _| code == 404).await;
            }
        }
    }
}

/// Creates the Namespaces of traces if missing; returns their UIDs.
pub(super) async fn create_namespaces(client: &Client) -> BTreeMap<String, String> {
    let mut uids = BTreeMap::new();
    for namespace in NAMESPACES.into_iter().chain([TERMINATING_NAMESPACE]) {
        let body = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": namespace, "finalizers": if namespace == TERMINATING_NAMESPACE { vec![HOLD] } else { vec![] } },
        });
        let path = format!("{NAMESPACES_PATH}/{namespace}");
        let (code, reply) = send(
            client,
            Method::POST,
            NAMESPACES_PATH,
            Some(("application/json", body)),
        )
        .await;
        assert!(code < 300 || code == 409, "{namespace}: {reply}");
        if namespace == TERMINATING_NAMESPACE {
            send(client, Method::DELETE, &path, None).await;
        }
        let phase = if namespace == TERMINATING_NAMESPACE {
            "Terminating"
        } else {
            "Active"
        };
        let there = until(SHORT_TIMEOUT, client, &path, |_, reply| {
            reply["status"]["phase"] == phase
        })
        .await;
        uids.insert(
            namespace.to_owned(),
            there["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        );
    }
    uids
}

/// Removes finalizers and deletes an object.
async fn remove(client: &Client, path: &str) {
    let free = json!({ "metadata": { "finalizers": null } });
    let freed = Some(("application/merge-patch+json", free));
    send(client, Method::PATCH, path, freed).await;
    send(client, Method::DELETE, path, None).await;
}

/// Polls until a response satisfies the predicate.
async fn until(
    deadline: Duration,
    client: &Client,
    path: &str,
    right: impl Fn(u16, &Value) -> bool,
) -> Value {
    let start = Instant::now();
    loop {
        let (code, reply) = send(client, Method::GET, path, None).await;
        if right(code, &reply) {
            return reply;
        }
        assert!(
            start.elapsed() < deadline,
            "{path}: not right within {deadline:?}; last seen: {code} {reply}"
        );
        sleep(INTERVAL).await;
    }
}
