//! The watch driver: `kube`'s watcher with back-off, started over when its resource version has expired.
//!
//! `kube::runtime::watcher` relists on a 410 inside an established watch, and repeats a watch request that is itself
//! answered with 410 from the same version for ever (docs/upstream.md). `WatchStreamExt::backoff` resets its delay on
//! `Event::Init`, which precedes every list request, failed ones included, so its delay never grows.

use std::{fmt::Debug, time::Duration};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::Backoff;

/// The shortest delay between two attempts, without jitter.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest delay between two attempts, jitter included.
pub const MAX_BACKOFF: Duration = Duration::from_secs(3);

struct Watch<K> {
    api: Api<K>,
    config: watcher::Config,
    events: BoxStream<'static, Result<Event<K>, watcher::Error>>,
    backoff: Backoff,
    /// The delay before the next attempt.
    delay: Option<Duration>,
}

/// Watches the objects of `api`, without end.
///
/// Guarantees: after an error the next attempt is delayed, by [`MAX_BACKOFF`] at most; the delay grows until an object
/// or a complete list has been received; an expired resource version leads to a new list, wherever the API server
/// reports it. `seed` spreads the retries of different clients ([`crate::jitter_seed`]).
pub fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    seed: u64,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let watch = Watch {
        events: watcher(api.clone(), config.clone()).boxed(),
        api,
        config,
        backoff: Backoff::new(MIN_BACKOFF, MAX_BACKOFF, seed),
        delay: None,
    };
    stream::unfold(watch, |mut watch| async move {
        let item = watch.next().await;
        Some((item, watch))
    })
}

// === impl Watch ===

impl<K> Watch<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> Result<Event<K>, watcher::Error> {
        if let Some(delay) = self.delay.take() {
            sleep(delay).await;
        }
        loop {
            match self.events.next().await {
                Some(Ok(event)) => {
                    // Init precedes the list request and proves nothing.
                    if !matches!(event, Event::Init) {
                        self.backoff.reset();
                    }
                    return Ok(event);
                }
                Some(Err(error)) => {
                    if is_expired(&error) {
                        self.restart();
                    }
                    self.delay = Some(self.backoff.next_delay());
                    return Err(error);
                }
                None => self.restart(),
            }
        }
    }

    fn restart(&mut self) {
        self.events = watcher(self.api.clone(), self.config.clone()).boxed();
    }
}

/// Whether the resource version of the watch has expired (410 Gone), so that a new list is required.
#[must_use]
pub fn is_expired(error: &watcher::Error) -> bool {
    status_code(error) == Some(410)
}

/// Whether the API server does not serve the kind.
#[must_use]
pub fn is_unknown_kind(error: &watcher::Error) -> bool {
    status_code(error) == Some(404)
}

fn status_code(error: &watcher::Error) -> Option<u16> {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        WatchError(status)
        | InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => Some(status.code),
        InitialListFailed(_) | WatchStartFailed(_) | WatchFailed(_) | NoResourceVersion => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body, core::Status};
    use serde_json::json;
    use tokio::time::{Instant, timeout};
    use tower::service_fn;

    use super::*;

    /// Requests received by a fake API server.
    #[derive(Clone, Default)]
    struct Requests {
        lists: Arc<AtomicUsize>,
        watches: Arc<AtomicUsize>,
    }

    impl Requests {
        fn lists(&self) -> usize {
            self.lists.load(Ordering::Relaxed)
        }
    }

    fn response(code: u16, body: &serde_json::Value) -> Response<Body> {
        let mut response = Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = code.try_into().unwrap();
        response
    }

    /// A server that lists `list_code` and answers every watch request with 410.
    fn expired_server(list_code: u16) -> (Api<ConfigMap>, Requests) {
        let requests = Requests::default();
        let counted = requests.clone();
        let answer = move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|q| q.contains("watch=true"));
            let failure = |code: u16, reason: &str| {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": reason, "reason": reason, "code": code,
                });
                response(code, &status)
            };
            let answer = if is_watch {
                counted.watches.fetch_add(1, Ordering::Relaxed);
                failure(410, "Expired")
            } else {
                counted.lists.fetch_add(1, Ordering::Relaxed);
                if list_code == 200 {
                    let list = json!({
                        "kind": "ConfigMapList", "apiVersion": "v1",
                        "metadata": { "resourceVersion": "5" }, "items": [],
                    });
                    response(200, &list)
                } else {
                    failure(list_code, "ServiceUnavailable")
                }
            };
            std::future::ready(Ok::<_, std::convert::Infallible>(answer))
        };
        let client = Client::new(service_fn(answer), "default");
        (Api::all(client), requests)
    }

    /// Polls `events` for a virtual minute.
    async fn poll<K>(events: impl Stream<Item = Result<Event<K>, watcher::Error>>, pause: Duration) {
        let mut events = std::pin::pin!(events);
        let polled = async {
            while let Some(event) = events.next().await {
                if event.is_err() {
                    sleep(pause).await;
                }
            }
        };
        let _elapsed = timeout(Duration::from_mins(1), polled).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_request_answered_with_410_leads_to_a_new_list() {
        let (api, requests) = expired_server(200);
        poll(watch(api, watcher::Config::default(), 1), Duration::ZERO).await;
        assert!(requests.lists() > 1, "{} lists", requests.lists());
    }

    /// The defect of kube-runtime 5.0.0 that [`watch`] works around: once this fails, the restart can go.
    #[tokio::test(start_paused = true)]
    async fn kube_runtime_repeats_an_expired_watch_request() {
        let (api, requests) = expired_server(200);
        poll(watcher(api, watcher::Config::default()), Duration::from_secs(1)).await;
        assert_eq!(requests.lists(), 1);
        assert!(requests.watches.load(Ordering::Relaxed) > 50);
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_grows_while_lists_fail() {
        let (api, requests) = expired_server(503);
        poll(watch(api, watcher::Config::default(), 1), Duration::ZERO).await;
        // A constant delay of 200 ms at most would make 300 requests.
        assert!((20..40).contains(&requests.lists()), "{} lists", requests.lists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_is_delayed() {
        let (api, _) = expired_server(503);
        let mut events = std::pin::pin!(watch(api, watcher::Config::default(), 1));
        let start = Instant::now();
        let mut errors = 0;
        while errors < 2 {
            errors += usize::from(events.next().await.is_some_and(|event| event.is_err()));
        }
        assert!(start.elapsed() >= MIN_BACKOFF, "{:?}", start.elapsed());
    }

    #[test]
    fn an_unknown_kind_is_distinguished_from_other_failures() {
        let api = |code| kube::Error::Api(Status::failure("no", "no").with_code(code).boxed());
        assert!(is_unknown_kind(&watcher::Error::InitialListFailed(api(404))));
        assert!(is_unknown_kind(&watcher::Error::WatchStartFailed(api(404))));
        assert!(!is_unknown_kind(&watcher::Error::InitialListFailed(api(403))));
        assert!(!is_unknown_kind(&watcher::Error::NoResourceVersion));
    }

    #[test]
    fn an_expired_version_is_recognised_in_answers_and_events() {
        for (code, expired) in [(410, true), (500, false)] {
            let status = || Status::failure("why", "Expired").with_code(code).boxed();
            assert_eq!(is_expired(&watcher::Error::WatchError(status())), expired);
            let start = watcher::Error::WatchStartFailed(kube::Error::Api(status()));
            assert_eq!(is_expired(&start), expired);
        }
    }
}
