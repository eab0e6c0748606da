//! Lease renewal against an API server with faults.

use std::{
    convert::Infallible,
    future::ready,
    sync::{Arc, Mutex, PoisonError},
};

use controller::{
    lease::{RENEW_DEADLINE, RETRY_PERIOD},
    runtime::election::Election,
};
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::service_fn;

const ME: &str = "me";

/// A server with one Lease.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<LeaseState>>);

#[derive(Default)]
struct LeaseState {
    holder: &'static str,
    /// Number of writes to reject as conflicts.
    conflicts: u32,
    written: u32,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        Client::new(
            service_fn(move |request| ready(Ok::<_, Infallible>(server.answer(&request)))),
            "default",
        )
    }

    fn answer(&self, request: &Request<Body>) -> Response<Body> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (code, body) = match (request.method(), kept.holder) {
            (&Method::GET, "") => (StatusCode::NOT_FOUND, status(404, "NotFound")),
            (&Method::GET, holder) => (StatusCode::OK, lease(holder)),
            _ if kept.conflicts > 0 => {
                kept.conflicts -= 1;
                (StatusCode::CONFLICT, status(409, "Conflict"))
            }
            _ => {
                kept.holder = ME;
                kept.written += 1;
                (StatusCode::OK, lease(ME))
            }
        };
        let mut answer = Response::new(Body::from(body.to_string().into_bytes()));
        *answer.status_mut() = code;
        answer
    }
}

fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "lease", "namespace": "mc", "resourceVersion": "1"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T12:00:00.000000Z"},
    })
}

fn status(code: u16, reason: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": ""})
}

/// An election won on a controllable server.
async fn elected() -> (Server, Election) {
    let server = Server::default();
    let client = server.client();
    let mut election = Election::new(&client, "mc", "lease", ME.to_owned());
    election.acquire().await;
    (server, election)
}

/// A timed-out write can take effect later; the next one then conflicts although there is no other holder.
#[tokio::test(start_paused = true)]
async fn a_conflict_alone_does_not_lose_the_lease() {
    let (server, mut election) = elected().await;
    server.0.lock().expect("no panic").conflicts = 2;
    let kept = timeout(RENEW_DEADLINE * 2, election.renew_until_lost()).await;
    assert!(kept.is_err(), "given up: {kept:?}");
    assert!(election.fence().is_open());
    assert!(server.0.lock().expect("no panic").written > 1, "renewed");
}

/// A taken or expired Lease ends leadership.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_taken_or_not_renewed_is_lost() {
    let (server, mut election) = elected().await;
    server.0.lock().expect("no panic").conflicts = u32::MAX;
    let why = timeout(RENEW_DEADLINE + RETRY_PERIOD * 2, election.renew_until_lost())
        .await
        .expect("lost");
    assert!(why.contains("not renewed"), "{why}");
    assert!(!election.fence().is_open());

    let (server, mut election) = elected().await;
    server.0.lock().expect("no panic").holder = "other";
    let why = timeout(RETRY_PERIOD * 2, election.renew_until_lost())
        .await
        .expect("lost");
    assert!(why.contains("\"other\""), "{why}");
}
