//! One watch: events of a kind, converted, retried with back-off and relisted after 410 Gone.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::cache::ObjectEvent;
use crate::error_chain;

/// Kind, and the event or the reason the watch fails.
pub(super) type WatchEvent = (&'static str, Result<ObjectEvent, String>);

/// Watches the objects of a kind that `config` selects.
pub(super) fn watch<K, T: 'static>(
    kind: &'static str,
    api: Api<K>,
    config: watcher::Config,
    convert: fn(&K) -> T,
    wrap: fn(Event<T>) -> ObjectEvent,
) -> BoxStream<'static, WatchEvent>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let start = move || watcher(api.clone(), config.clone()).boxed();
    relist_when_gone(start)
        .backoff(WatchBackoff::default())
        .map(move |event| {
            let event = event.map_err(|error| error_chain(&error)).map(|event| {
                wrap(match event {
                    Event::Apply(object) => Event::Apply(convert(&object)),
                    Event::Delete(object) => Event::Delete(convert(&object)),
                    Event::Init => Event::Init,
                    Event::InitApply(object) => Event::InitApply(convert(&object)),
                    Event::InitDone => Event::InitDone,
                })
            });
            (kind, event)
        })
        .boxed()
}

/// The events of the watch that `start` opens, opened anew, with a new list, after 410 Gone.
///
/// kube-runtime relists after an ERROR event with code 410. When the watch request itself is answered with 410 it
/// requests the same resourceVersion again, forever.
fn relist_when_gone<K>(
    start: impl Fn() -> BoxStream<'static, watcher::Result<Event<K>>> + Send + 'static,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Send + 'static,
{
    stream::unfold((start(), start), |(mut events, start)| async move {
        let event = events.next().await?;
        if matches!(&event, Err(error) if is_gone(error)) {
            events = start();
        }
        Some((event, (events, start)))
    })
}

/// Whether the API server no longer has the resourceVersion of the watch.
fn is_gone(error: &watcher::Error) -> bool {
    const GONE: u16 = 410;
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code == GONE,
        _ => false,
    }
}

/// Delay before a failed watch is retried: short, because the list is small and another cluster's traffic may
/// depend on it. kube's own back-off begins at 800 ms and ends at 30 s.
#[derive(Debug)]
struct WatchBackoff(Duration);

impl WatchBackoff {
    const MIN: Duration = Duration::from_millis(200);
    const MAX: Duration = Duration::from_secs(5);
}

impl Default for WatchBackoff {
    fn default() -> Self {
        Self(Self::MIN)
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = self.0;
        self.0 = delay.saturating_mul(2).min(Self::MAX);
        Some(delay)
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Node;
    use kube::core::Status;

    use super::*;

    fn start_failed(code: u16) -> watcher::Error {
        let status = Status::failure("too old resource version", "Expired").with_code(code);
        watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
    }

    /// How often the watch is opened when its first request is answered with `code`, and the events after that.
    async fn opened(code: u16) -> (usize, Vec<String>) {
        let count = Arc::new(AtomicUsize::new(0));
        let start = {
            let count = Arc::clone(&count);
            move || -> BoxStream<'static, watcher::Result<Event<Node>>> {
                match count.fetch_add(1, Ordering::Relaxed) {
                    // As kube-runtime: the same request again and again.
                    0 => stream::repeat_with(move || Err(start_failed(code))).boxed(),
                    _ => stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).boxed(),
                }
            }
        };
        let events: Vec<_> = relist_when_gone(start).take(3).collect().await;
        let names = events.iter().map(|event| match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(_) => "other".to_owned(),
            Err(_) => "error".to_owned(),
        });
        (count.load(Ordering::Relaxed), names.collect())
    }

    #[tokio::test]
    async fn a_watch_request_answered_with_410_is_followed_by_a_new_list() {
        let (opened_times, events) = opened(410).await;
        assert_eq!(
            (opened_times, events),
            (2, ["error", "init", "done"].map(String::from).to_vec())
        );
    }

    #[tokio::test]
    async fn other_errors_keep_the_watch() {
        let (opened_times, events) = opened(500).await;
        assert_eq!(
            (opened_times, events),
            (1, ["error", "error", "error"].map(String::from).to_vec())
        );
    }

    #[test]
    fn retry_delays_double_up_to_the_maximum_and_are_reset() {
        let mut backoff = WatchBackoff::default();
        let delays: Vec<u128> = backoff.by_ref().take(7).map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.reset();
        assert_eq!(backoff.next(), Some(WatchBackoff::MIN));
    }
}
