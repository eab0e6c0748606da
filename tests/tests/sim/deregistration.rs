//! Deregistration from a former leader, request by request.

use std::{sync::Arc, time::Duration};

use controller::{
    fence::Fence,
    member::{connection_config::LeaderConnectionConfig, membership_record::LeaderEndpoint},
    runtime::{deregistration::Deregistrations, env::Environment, leader_connection::LeaderConnectionError},
    snapshot::{DeregistrationState, Membership},
};
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::{Api, Client, client::Body};
use mc_test_kit::fake_apiserver::status_error::StatusError;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tower::service_fn;

use crate::transport::BoxError;

/// A cluster with the Secret of a leader endpoint, and a leader without objects of this member.
#[derive(Clone)]
struct FakeServers(Client);

// === impl Servers ===

impl FakeServers {
    fn new() -> Self {
        let answer = |request| std::future::ready(Self::answer(&request));
        Self(Client::new(service_fn(answer), "default"))
    }

    fn answer(request: &Request<Body>) -> Result<Response<Body>, BoxError> {
        let path = request.uri().path();
        let text = |text: &str| ByteString(text.as_bytes().to_vec());
        let list = |items| json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items });
        let (code, answer) = if path.ends_with("/secrets/token") {
            let data = json!({ "ca.crt": text("-----BEGIN CERTIFICATE-----\n"), "token": text("a") });
            (200, json!({ "metadata": { "name": "token" }, "data": data }))
        } else if path.ends_with("/resourceexports") {
            (200, list(json!([])))
        } else {
            (404, StatusError::new(404, "none").to_status())
        };
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(code)?;
        Ok(response)
    }
}

impl Environment for FakeServers {
    fn instance(&self) -> String {
        "deregistration".to_owned()
    }

    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn connect<'a>(
        &'a self,
        _spec: &'a LeaderConnectionConfig,
    ) -> BoxFuture<'a, Result<Client, LeaderConnectionError>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}

/// Waits for a deregistration state.
async fn wait_state(
    deregistrations: &Deregistrations,
    membership: &Membership,
    wanted: impl Fn(&DeregistrationState) -> bool,
) {
    let start = Instant::now();
    loop {
        let state = deregistrations.states().get(membership).cloned();
        if state.as_ref().is_some_and(&wanted) {
            return;
        }
        assert!(start.elapsed() < Duration::from_mins(5), "{state:?}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Regression test for seed 7765: the ClusterSet was deleted before the record was observed, and the token replaced.
#[tokio::test(start_paused = true)]
async fn an_endpoint_recorded_late_is_used() {
    let servers = FakeServers::new();
    let env: Arc<dyn Environment> = Arc::new(servers.clone());
    let mut deregistrations = Deregistrations::new(Fence::open(), Arc::new(Notify::new()));
    let membership = Membership {
        cluster_set: "set".to_owned(),
        cluster_id: "west".to_owned(),
        namespace: "mc".to_owned(),
    };
    let secrets = || Api::namespaced(servers.0.clone(), "kube-system");
    deregistrations.start(&membership, None, None, secrets(), &env);
    let is_outstanding = |state: &DeregistrationState| matches!(state, DeregistrationState::Failing(_));
    wait_state(&deregistrations, &membership, is_outstanding).await;
    let endpoint = LeaderEndpoint {
        server: "https://leader.example:6443".to_owned(),
        secret: "token".to_owned(),
        settled_announce: None,
    };
    deregistrations.start(&membership, Some(&endpoint), None, secrets(), &env);
    wait_state(&deregistrations, &membership, |state| {
        *state == DeregistrationState::Confirmed
    })
    .await;
}
