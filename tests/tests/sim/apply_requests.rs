//! Write requests of the controllers, recorded by a fake server.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use controller::{
    fence::Fence,
    plan::{ApiServer, Kind, ObjectRef, Write, WriteOp},
    runtime::{applier::Applier, election::Election},
};
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use mc_kube::CacheState;
use mc_test_kit::fake_apiserver::status_error::StatusError;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::service_fn;

use crate::transport::BoxError;

/// A recorded request.
#[derive(Clone, Debug, PartialEq)]
struct RecordedRequest {
    method: Method,
    path: String,
    body: Value,
}

/// A server that records requests and answers all with success or one error.
#[derive(Clone)]
struct Server {
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    error_code: Option<u16>,
}

// === impl Server ===

impl Server {
    fn new(error_code: Option<u16>) -> Self {
        Self {
            requests: Arc::default(),
            error_code,
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        Client::new(
            service_fn(move |request| server.clone().answer(request)),
            "default",
        )
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await?;
        let request = RecordedRequest {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        };
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
        let answer = self.error_code.map_or_else(
            || json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "resourceVersion": "7" } }),
            |code| StatusError::new(code, "no").to_status(),
        );
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(self.error_code.unwrap_or(200))?;
        Ok(response)
    }

    fn applier(&self, fence: Fence) -> Applier {
        Applier::new(self.client(), fence, Arc::default())
    }

    fn requests(&self) -> Vec<RecordedRequest> {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn write_to(kind: Kind, name: &str, op: WriteOp) -> Write {
    Write {
        target: ObjectRef {
            side: ApiServer::Local,
            kind,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        },
        op,
    }
}

fn write_web(op: WriteOp) -> Vec<Write> {
    vec![write_to(Kind::Service, "web", op)]
}

fn delete_op() -> WriteOp {
    WriteOp::Delete {
        uid: None,
        version: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_the_lease_writes_nothing() {
    let server = Server::new(None);
    let client = server.client();
    // Not elected.
    let fence = Election::new(&client, "mc", "lease", "me".to_owned()).fence();
    let mut applier = server.applier(fence);
    for op in [WriteOp::Apply(json!({}).into()), delete_op()] {
        applier.run(write_web(op)).await;
    }
    assert_eq!(server.requests(), []);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_carries_uid_and_version_preconditions() {
    let server = Server::new(None);
    let delete = WriteOp::Delete {
        uid: Some("u1".to_owned()),
        version: Some("5".to_owned()),
    };
    server.applier(Fence::open()).run(write_web(delete)).await;
    let [request] = &server.requests()[..] else {
        panic!("{:?}", server.requests())
    };
    assert_eq!(request.method, Method::DELETE);
    assert_eq!(request.path, "/api/v1/namespaces/shop/services/web");
    assert_eq!(
        request.body["preconditions"],
        json!({ "uid": "u1", "resourceVersion": "5" })
    );
}

/// Fields of other writers are kept.
#[tokio::test(start_paused = true)]
async fn a_change_is_sent_as_a_patch_of_the_difference() {
    let server = Server::new(None);
    let change = json!({ "metadata": { "resourceVersion": "5" }, "spec": { "ports": [] } });
    let patch = WriteOp::Patch(change.clone().into());
    server.applier(Fence::open()).run(write_web(patch)).await;
    let requests: Vec<_> = server
        .requests()
        .into_iter()
        .map(|a| (a.method, a.body))
        .collect();
    assert_eq!(requests, [(Method::PATCH, change)]);
}

/// A plan from state before the last write would repeat it.
#[tokio::test(start_paused = true)]
async fn no_plan_is_made_before_the_watch_shows_our_writes() {
    let mut applier = Server::new(None).applier(Fence::open());
    let see = |newest_version: u64, active: bool| {
        move |_: &ObjectRef| {
            Some(CacheState {
                newest_version,
                active,
            })
        }
    };
    // The response has resource version 7.
    applier.run(write_web(WriteOp::Apply(json!({}).into()))).await;
    assert!(!applier.cache_caught_up(see(6, true)));
    assert!(applier.cache_caught_up(see(7, true)));
    applier.run(write_web(delete_op())).await;
    assert!(!applier.cache_caught_up(see(7, true)));
    assert!(applier.cache_caught_up(see(7, false)));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_is_deleted_after_its_successor_exists() {
    for (error_code, most) in [(None, 2), (Some(500), 1)] {
        let server = Server::new(error_code);
        let new = write_to(Kind::Gateway, "n2", WriteOp::Apply(json!({}).into()));
        let old = write_to(Kind::Gateway, "n1", delete_op());
        // In any order.
        server.applier(Fence::open()).run(vec![old, new]).await;
        let requests: Vec<_> = server.requests().into_iter().map(|a| a.method).collect();
        let wanted = [Method::PATCH, Method::DELETE];
        assert_eq!(Some(&requests[..]), wanted.get(..most), "{error_code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_writes_back_off() {
    for code in [409, 422, 429, 500] {
        let server = Server::new(Some(code));
        let mut applier = server.applier(Fence::open());
        let start = Instant::now();
        // The write is planned all the time.
        while start.elapsed() < Duration::from_mins(1) {
            applier.run(write_web(WriteOp::Apply(json!({}).into()))).await;
            sleep(Duration::from_millis(10)).await;
        }
        // Retries after 20 ms, 40 ms, …, at last every 10 s; 429 carries its own delay.
        let most = if code == 429 { 61 } else { 20 };
        let times = server.requests().len();
        assert!((5..=most).contains(&times), "{code}: {times} times");
    }
}
