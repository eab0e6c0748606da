//! One watch: the events of a kind, converted as they arrive.

use std::fmt::Debug;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use mc_kube::error_chain;
use serde::de::DeserializeOwned;

use super::cache::ObjectEvent;

/// Kind, and the event or the reason the watch fails.
pub(super) type WatchEvent = (&'static str, Result<ObjectEvent, String>);

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
    mc_kube::watch(api, config, mc_kube::jitter_seed([node, kind]))
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
