//! The real server: that of the leader cluster, where no controller looks at what is written here.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use controller::api::{crd, names};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    body::KINDS,
    place::{GOING, Place, SPACES},
};
use crate::{
    api::{connect, send},
    clusters::{LATER, LEADER, SOON},
};

const NAMESPACES: &str = "/api/v1/namespaces";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Keeps a Namespace from being gone.
const HOLD: &str = "mc.test/hold";
/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// A real server with what traces need.
pub(super) struct Server {
    pub(super) client: Client,
    /// UIDs of Namespaces.
    pub(super) spaces: BTreeMap<String, String>,
    /// CRDs that were not there.
    crds: Vec<String>,
}

// === impl Server ===

impl Server {
    /// Adds the kinds and Namespaces of traces, which are empty then.
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
            let (code, said) = send(&client, Method::POST, CRDS, Some(("application/json", crd))).await;
            match code {
                201 => crds.push(name),
                409 => {}
                _ => panic!("{name}: {said}"),
            }
        }
        for kind in KINDS {
            let path = Place::new(kind, SPACES[0], "").list(false);
            until(SOON, &client, &path, |code, _| code == 200).await;
        }
        let spaces = furnish(&client).await;
        for space in SPACES {
            // The admission policies do not take ResourceExports where nobody has said which account is which cluster.
            let identities = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": names::MEMBER_IDENTITIES },
            });
            let path = format!("{NAMESPACES}/{space}/configmaps");
            let (code, said) = send(
                &client,
                Method::POST,
                &path,
                Some(("application/json", identities)),
            )
            .await;
            assert!(code == 201 || code == 409, "{space}: {said}");
        }
        let server = Self { client, spaces, crds };
        server.clear().await;
        server
    }

    /// Removes what a trace left.
    pub(super) async fn clear(&self) {
        for kind in KINDS {
            for space in SPACES {
                let path = Place::new(kind, space, "").list(false);
                let (_, list) = send(&self.client, Method::GET, &path, None).await;
                for item in list["items"].as_array().into_iter().flatten() {
                    let name = item["metadata"]["name"].as_str().unwrap_or_default();
                    remove(&self.client, &format!("{path}/{name}")).await;
                }
            }
        }
    }

    /// Removes everything, and waits until it is gone.
    pub(super) async fn close(&self) {
        self.clear().await;
        let spaces = SPACES.iter().chain([&GOING]).map(|s| format!("{NAMESPACES}/{s}"));
        let crds = self.crds.iter().map(|c| format!("{CRDS}/{c}"));
        // The end of a Namespace looks at all kinds there are.
        for paths in [spaces.collect::<Vec<_>>(), crds.collect()] {
            for path in &paths {
                remove(&self.client, path).await;
            }
            for path in &paths {
                until(LATER, &self.client, path, |code, _| code == 404).await;
            }
        }
    }
}

/// Adds the Namespaces of traces, where they are not there, and tells their UIDs.
pub(super) async fn furnish(client: &Client) -> BTreeMap<String, String> {
    let mut uids = BTreeMap::new();
    for space in SPACES.into_iter().chain([GOING]) {
        let body = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": space, "finalizers": if space == GOING { vec![HOLD] } else { vec![] } },
        });
        let path = format!("{NAMESPACES}/{space}");
        let (code, said) = send(client, Method::POST, NAMESPACES, Some(("application/json", body))).await;
        assert!(code < 300 || code == 409, "{space}: {said}");
        if space == GOING {
            send(client, Method::DELETE, &path, None).await;
        }
        let phase = if space == GOING { "Terminating" } else { "Active" };
        let there = until(SOON, client, &path, |_, said| said["status"]["phase"] == phase).await;
        uids.insert(
            space.to_owned(),
            there["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        );
    }
    uids
}

/// Takes away what holds an object, and the object.
async fn remove(client: &Client, path: &str) {
    let free = json!({ "metadata": { "finalizers": null } });
    let freed = Some(("application/merge-patch+json", free));
    send(client, Method::PATCH, path, freed).await;
    send(client, Method::DELETE, path, None).await;
}

/// Looks until an answer is right.
async fn until(
    deadline: Duration,
    client: &Client,
    path: &str,
    right: impl Fn(u16, &Value) -> bool,
) -> Value {
    let start = Instant::now();
    loop {
        let (code, said) = send(client, Method::GET, path, None).await;
        if right(code, &said) {
            return said;
        }
        assert!(
            start.elapsed() < deadline,
            "{path}: not right within {deadline:?}; last seen: {code} {said}"
        );
        sleep(INTERVAL).await;
    }
}
