//! The model as a server: nothing comes late, nothing gets lost.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response};
use jiff::Timestamp;
use kube::{Client, client::Body};
use tower::service_fn;

use crate::model::{
    ask::{Ask, Filter, Verb},
    kinds::Kinds,
    refusal::Refusal,
    serve::Said,
    store::{Actor, Store},
};

/// What goes wrong outside of HTTP.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A client of a new server.
pub(super) fn client() -> Client {
    let store = Store::new(Arc::new(Kinds::new()), 1);
    let store = Arc::new(Mutex::new(store));
    Client::new(
        service_fn(move |request| serve(store.clone(), request)),
        "default",
    )
}

async fn serve(store: Arc<Mutex<Store>>, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let ask = Ask::read(&parts, &body.collect_bytes().await?)?;
    let (code, text) = match answer(&store, &ask) {
        Ok(said) => (said.code, said.text),
        Err(refusal) => (refusal.code, refusal.status().to_string()),
    };
    Ok(Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Body::from(text.into_bytes()))?)
}

fn answer(store: &Mutex<Store>, ask: &Ask) -> Result<Said, Refusal> {
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    match ask.verb {
        Verb::List => store.list(ask, u64::MAX, usize::MAX),
        Verb::Watch => Ok(Said {
            code: 200,
            text: until_now(&store, ask),
        }),
        _ => store.serve(ask, Actor::User, Timestamp::now()),
    }
}

/// A watch that ends with what there is.
fn until_now(store: &Store, ask: &Ask) -> String {
    let filter = Filter::new(ask);
    let mut position = ask.number("resourceVersion").unwrap_or(0);
    let mut text = String::new();
    while let Some((line, version)) = store.event(ask, &filter, &mut position) {
        text += &line;
        position = version;
    }
    text
}
