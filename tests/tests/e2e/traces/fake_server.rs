//! The fake API server without delays and faults.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response};
use jiff::Timestamp;
use kube::{Client, client::Body};
use tower::service_fn;

use mc_test_kit::fake_apiserver::{
    handler::ApiResponse,
    request::{ApiRequest, Filter, Verb},
    resources::Scheme,
    status_error::StatusError,
    store::{Actor, Store},
};

/// Errors outside of HTTP.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A client of a new server.
pub(super) fn client() -> Client {
    let store = Store::new(Arc::new(Scheme::new()), 1);
    let store = Arc::new(Mutex::new(store));
    Client::new(
        service_fn(move |request| serve(store.clone(), request)),
        "default",
    )
}

async fn serve(store: Arc<Mutex<Store>>, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let request = ApiRequest::parse(&parts, &body.collect_bytes().await?)?;
    let (code, text) = match answer(&store, &request) {
        Ok(reply) => (reply.code, reply.text),
        Err(refusal) => (refusal.code, refusal.to_status().to_string()),
    };
    Ok(Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Body::from(text.into_bytes()))?)
}

fn answer(store: &Mutex<Store>, request: &ApiRequest) -> Result<ApiResponse, StatusError> {
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    match request.verb {
        Verb::List => store.list(request, u64::MAX, usize::MAX),
        Verb::Watch => Ok(ApiResponse {
            code: 200,
            text: watch_events(&store, request),
        }),
        _ => store.handle(request, Actor::User, Timestamp::now()),
    }
}

/// All events up to now.
fn watch_events(store: &Store, request: &ApiRequest) -> String {
    let filter = Filter::new(request);
    let mut position = request.query_number("resourceVersion").unwrap_or(0);
    let mut text = String::new();
    while let Some((line, version)) = store.next_event(request, &filter, &mut position) {
        text += &line;
        position = version;
    }
    text
}
