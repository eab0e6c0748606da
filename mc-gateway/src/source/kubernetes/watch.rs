//! One watch: the events of a kind, converted as they arrive.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use mc_kube::{Backoff, error_chain, is_unknown_kind, jitter_seed};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tracing::info;

use super::absent_kinds::{AbsentKinds, MAX_DELAY, MIN_DELAY, kinds_of_group};
use super::cache::ObjectEvent;

/// Kind, and the event or the reason the watch fails.
pub(super) type WatchEvent = (&'static str, Result<ObjectEvent, String>);

/// Consecutive answers that a kind is absent before it counts as absent: an API server that starts may lack kinds for a
/// moment.
const ABSENT_ANSWERS: u32 = 2;

/// Watches the objects of a kind that `config` selects. [`mc_kube::watch`] retries with back-off and relists after
/// 410 Gone; the objects are converted one by one, because only a few fields of each are kept.
pub(super) fn watch<K, T: 'static>(
    kind: &'static str,
    api: Api<K>,
    config: watcher::Config,
    node: &str,
    convert: fn(&K) -> T,
    wrap: fn(Event<T>) -> ObjectEvent,
) -> BoxStream<'static, WatchEvent>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    mc_kube::watch(api, config, jitter_seed([node, kind]))
        .map(move |event| {
            let event = event.map_err(|error| error_chain(&error));
            (kind, event.map(|event| wrap(converted(event, convert))))
        })
        .boxed()
}

/// Watches the objects of a kind that `config` selects and whose CRD may be absent.
///
/// Guarantees: an absent kind has an empty list, also when its objects were listed before, and its objects are listed
/// within [`MAX_DELAY`] once the API server serves it. It is absent if the API server answers requests with 404 and its
/// discovery has no version of the kind, [`ABSENT_ANSWERS`] times in succession; `absent` waits for it then. Every
/// other failure is an error.
pub(super) fn watch_optional<K, T: 'static>(
    kind: &'static str,
    api: Api<K>,
    config: watcher::Config,
    node: &str,
    absent: &Arc<AbsentKinds>,
    convert: fn(&K) -> T,
    wrap: fn(Event<T>) -> ObjectEvent,
) -> BoxStream<'static, WatchEvent>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let seed = jitter_seed([node, kind]);
    let watch = OptionalWatch {
        kind,
        events: list_and_watch(&api, &config, seed),
        api,
        config,
        seed,
        absent: absent.clone(),
        absent_answers: 0,
        delays: Backoff::new(MIN_DELAY, MAX_DELAY, seed),
    };
    stream::unfold(watch, |mut watch| async move {
        let events = watch.next().await;
        Some((stream::iter(events), watch))
    })
    .flatten()
    .map(move |event| (kind, event.map(|event| wrap(converted(event, convert)))))
    .boxed()
}

fn converted<K, T>(event: Event<K>, convert: fn(&K) -> T) -> Event<T> {
    match event {
        Event::Apply(object) => Event::Apply(convert(&object)),
        Event::Delete(object) => Event::Delete(convert(&object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(convert(&object)),
        Event::InitDone => Event::InitDone,
    }
}

type Events<K> = BoxStream<'static, Result<Event<K>, watcher::Error>>;

fn list_and_watch<K>(api: &Api<K>, config: &watcher::Config, seed: u64) -> Events<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    mc_kube::watch(api.clone(), config.clone(), seed).boxed()
}

/// A watch of a kind that may be absent.
struct OptionalWatch<K> {
    kind: &'static str,
    api: Api<K>,
    config: watcher::Config,
    seed: u64,
    events: Events<K>,
    absent: Arc<AbsentKinds>,
    /// Consecutive answers that the kind is absent.
    absent_answers: u32,
    /// Delays before the next request for a kind whose absence is not confirmed.
    delays: Backoff,
}

impl<K> OptionalWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// The next events: one of the watch, or those of an empty list; none after an answer that proves nothing yet.
    async fn next(&mut self) -> Vec<Result<Event<K>, String>> {
        if self.absent_answers == ABSENT_ANSWERS {
            if let Err(error) = self.absent.wait_served(&K::plural(&())).await {
                return vec![Err(format!("discovery: {error}"))];
            }
            self.absent_answers = 0;
        }
        let event = match self.events.next().await {
            // It precedes the list request and proves nothing.
            Some(Ok(Event::Init)) => return vec![Ok(Event::Init)],
            Some(Err(error)) if is_unknown_kind(&error) => {
                match kinds_of_group(&self.api.clone().into_client(), &K::group(&())).await {
                    Ok(kinds) if !kinds.contains(&*K::plural(&())) => return self.confirm_absence().await,
                    // In another version, or since the answer.
                    Ok(_) => Err(error_chain(&error)),
                    Err(error) => Err(format!("discovery: {}", error_chain(&error))),
                }
            }
            Some(event) => event.map_err(|error| error_chain(&error)),
            None => return Vec::new(),
        };
        self.absent_answers = 0;
        self.delays.reset();
        vec![event]
    }

    async fn confirm_absence(&mut self) -> Vec<Result<Event<K>, String>> {
        self.absent_answers = self.absent_answers.saturating_add(1);
        // A watch from a version before the absence would not list the objects that the kind has later.
        self.events = list_and_watch(&self.api, &self.config, self.seed);
        if self.absent_answers < ABSENT_ANSWERS {
            sleep(self.delays.next_delay()).await;
            return Vec::new();
        }
        info!(
            kind = self.kind,
            "the API server does not serve this kind: no objects"
        );
        vec![Ok(Event::Init), Ok(Event::InitDone)]
    }
}
