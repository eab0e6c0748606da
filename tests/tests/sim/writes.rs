//! How the controllers write, request by request: to a server that notes what it is asked.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use controller::{
    plan::{Action, Kind, Op, Side, Target},
    shell::{
        apply::Applier,
        election::{Election, Fence},
        watch::Sight,
    },
};
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::service_fn;

use crate::{model::refusal::Refusal, wire::BoxError};

/// A request, as far as it matters here.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    method: Method,
    path: String,
    body: Value,
}

/// A server that notes what it is asked, and takes it or not.
#[derive(Clone)]
struct Server {
    asked: Arc<Mutex<Vec<Asked>>>,
    refuses: Option<u16>,
}

// === impl Server ===

impl Server {
    fn new(refuses: Option<u16>) -> Self {
        Self {
            asked: Arc::default(),
            refuses,
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
        let asked = Asked {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        };
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(asked);
        let answer = self.refuses.map_or_else(
            || json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "resourceVersion": "7" } }),
            |code| Refusal::new(code, "no").status(),
        );
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(self.refuses.unwrap_or(200))?;
        Ok(response)
    }

    fn applier(&self, fence: Fence) -> Applier {
        Applier::new(self.client(), fence, Arc::default())
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn on(kind: Kind, name: &str, op: Op) -> Action {
    Action {
        target: Target {
            side: Side::Local,
            kind,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        },
        op,
    }
}

fn on_web(op: Op) -> Vec<Action> {
    vec![on(Kind::Service, "web", op)]
}

fn deletion() -> Op {
    Op::Delete {
        uid: None,
        version: None,
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_hold_the_lease_writes_nothing() {
    let server = Server::new(None);
    let client = server.client();
    // Never won.
    let fence = Election::new(&client, "mc", "lease", "me".to_owned()).fence();
    let mut applier = server.applier(fence);
    for op in [Op::Apply(json!({}).into()), deletion()] {
        applier.run(on_web(op)).await;
    }
    assert_eq!(server.asked(), []);
}

#[tokio::test(start_paused = true)]
async fn only_the_object_that_was_seen_is_deleted() {
    let server = Server::new(None);
    let delete = Op::Delete {
        uid: Some("u1".to_owned()),
        version: Some("5".to_owned()),
    };
    server.applier(Fence::open()).run(on_web(delete)).await;
    let [asked] = &server.asked()[..] else {
        panic!("{:?}", server.asked())
    };
    assert_eq!(asked.method, Method::DELETE);
    assert_eq!(asked.path, "/api/v1/namespaces/shop/services/web");
    assert_eq!(
        asked.body["preconditions"],
        json!({ "uid": "u1", "resourceVersion": "5" })
    );
}

/// What others write beside it stays.
#[tokio::test(start_paused = true)]
async fn a_change_is_sent_as_what_changes_and_nothing_else() {
    let server = Server::new(None);
    let change = json!({ "metadata": { "resourceVersion": "5" }, "spec": { "ports": [] } });
    let patch = Op::Patch(change.clone().into());
    server.applier(Fence::open()).run(on_web(patch)).await;
    let asked: Vec<_> = server.asked().into_iter().map(|a| (a.method, a.body)).collect();
    assert_eq!(asked, [(Method::PATCH, change)]);
}

/// What was decided before would be decided again.
#[tokio::test(start_paused = true)]
async fn nothing_is_decided_before_the_watch_shows_what_was_written() {
    let mut applier = Server::new(None).applier(Fence::open());
    let see = |newest: u64, alive: bool| move |_: &Target| Some(Sight { newest, alive });
    // The server says that this is version 7.
    applier.run(on_web(Op::Apply(json!({}).into()))).await;
    assert!(!applier.settled(see(6, true)));
    assert!(applier.settled(see(7, true)));
    applier.run(on_web(deletion())).await;
    assert!(!applier.settled(see(7, true)));
    assert!(applier.settled(see(7, false)));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_stays_until_the_next_one_is_there() {
    for (refuses, most) in [(None, 2), (Some(500), 1)] {
        let server = Server::new(refuses);
        let new = on(Kind::Gateway, "n2", Op::Apply(json!({}).into()));
        let old = on(Kind::Gateway, "n1", deletion());
        // In any order.
        server.applier(Fence::open()).run(vec![old, new]).await;
        let asked: Vec<_> = server.asked().into_iter().map(|a| a.method).collect();
        let wanted = [Method::PATCH, Method::DELETE];
        assert_eq!(Some(&asked[..]), wanted.get(..most), "{refuses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_less_and_less_often() {
    for code in [409, 422, 429, 500] {
        let server = Server::new(Some(code));
        let mut applier = server.applier(Fence::open());
        let start = Instant::now();
        // Asked for all the time.
        while start.elapsed() < Duration::from_mins(1) {
            applier.run(on_web(Op::Apply(json!({}).into()))).await;
            sleep(Duration::from_millis(10)).await;
        }
        // After 20 ms, 40 ms, …, and every 10 s in the end; 429 says itself how long.
        let most = if code == 429 { 61 } else { 20 };
        let times = server.asked().len();
        assert!((5..=most).contains(&times), "{code}: {times} times");
    }
}
