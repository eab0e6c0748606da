//! How a member says goodbye, request by request.

use std::{sync::Arc, time::Duration};

use controller::{
    member::{
        membership::LinkSpec,
        parting::{Goodbye, Membership, Way},
    },
    shell::{election::Fence, goodbye::Goodbyes, link::LinkError, outside::Outside},
};
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::{Api, Client, client::Body};
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tower::service_fn;

use crate::{model::refusal::Refusal, wire::BoxError};

/// A cluster with the Secret of a way, and a leader without anything of this member.
#[derive(Clone)]
struct Servers(Client);

// === impl Servers ===

impl Servers {
    fn new() -> Self {
        let answer = |request| std::future::ready(Self::answer(&request));
        Self(Client::new(service_fn(answer), "default"))
    }

    fn answer(request: &Request<Body>) -> Result<Response<Body>, BoxError> {
        let path = request.uri().path();
        let text = |text: &str| ByteString(text.as_bytes().to_vec());
        let list = |items| json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items });
        let (code, answer) = if path.ends_with("/secrets") {
            let data = json!({ "ca.crt": text("-----BEGIN CERTIFICATE-----\n"), "token": text("a") });
            (
                200,
                list(json!([{ "metadata": { "name": "token" }, "data": data }])),
            )
        } else if path.ends_with("/resourceexports") {
            (200, list(json!([])))
        } else {
            (404, Refusal::new(404, "none").status())
        };
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(code)?;
        Ok(response)
    }
}

impl Outside for Servers {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn connect<'a>(&'a self, _spec: &'a LinkSpec) -> BoxFuture<'a, Result<Client, LinkError>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}

/// Waits until it goes as `wanted` says.
async fn wait(goodbyes: &Goodbyes, membership: &Membership, wanted: impl Fn(&Goodbye) -> bool) {
    let start = Instant::now();
    loop {
        let state = goodbyes.states().get(membership).cloned();
        if state.as_ref().is_some_and(&wanted) {
            return;
        }
        assert!(start.elapsed() < Duration::from_mins(5), "{state:?}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Seed 7765: the `ClusterSet` was deleted before the record was seen, and the token replaced.
#[tokio::test(start_paused = true)]
async fn a_way_that_comes_on_record_late_is_taken() {
    let servers = Servers::new();
    let outside: Arc<dyn Outside> = Arc::new(servers.clone());
    let mut goodbyes = Goodbyes::new(Fence::open(), Arc::new(Notify::new()));
    let membership = Membership {
        cluster_set: "set".to_owned(),
        cluster_id: "west".to_owned(),
        namespace: "mc".to_owned(),
    };
    let secrets = || Api::namespaced(servers.0.clone(), "kube-system");
    goodbyes.say(&membership, None, None, secrets(), &outside);
    let is_outstanding = |state: &Goodbye| matches!(state, Goodbye::Outstanding(_));
    wait(&goodbyes, &membership, is_outstanding).await;
    let way = Way {
        server: "https://leader.example:6443".to_owned(),
        secret: "token".to_owned(),
    };
    goodbyes.say(&membership, Some(&way), None, secrets(), &outside);
    wait(&goodbyes, &membership, |state| *state == Goodbye::Said).await;
}
