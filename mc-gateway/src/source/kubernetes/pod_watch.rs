//! The watch of Pods: none, those of this Node, or all, as the other objects require.

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kube::Api;
use kube::runtime::watcher;
use tracing::info;

use super::cache::{ObjectCache, ObjectEvent};
use super::watch::{WatchEvent, watch};
use crate::config::{Config, PodLookup, PolicyEnforcement};
use crate::source::pod::{self, Pod, PodScope};

/// The current watch of Pods.
pub(super) struct PodWatch {
    api: Api<Pod>,
    node: String,
    lookup: PodLookup,
    enforcement: PolicyEnforcement,
    scope: PodScope,
    pub(super) events: BoxStream<'static, WatchEvent>,
}

impl PodWatch {
    pub(super) const KIND: &'static str = "Pod";

    /// Watches no Pods yet.
    pub(super) fn new(api: Api<Pod>, config: &Config) -> Self {
        Self {
            api,
            node: config.node_name.clone(),
            lookup: config.pod_lookup,
            enforcement: config.policy_enforcement,
            scope: PodScope::None,
            events: stream::pending().boxed(),
        }
    }

    /// Replaces the watch if the cached objects require other Pods.
    pub(super) fn update_scope(&mut self, cache: &ObjectCache) {
        let ObjectCache {
            nodes,
            gateways,
            pods,
            identities,
            ..
        } = cache;
        // A Node that is not listed yet would count as one without CIDRs.
        if !nodes.synced || !gateways.synced {
            return;
        }
        let scope = match self.enforcement {
            // Rules select senders by the labels of Pods on any Node.
            PolicyEnforcement::All => PodScope::Cluster,
            PolicyEnforcement::Off | PolicyEnforcement::ClusterSetOnly => pod::scope(
                self.lookup,
                self.scope,
                &self.node,
                &nodes.current,
                &gateways.current,
                !identities.current.is_empty() || self.enforcement != PolicyEnforcement::Off,
                pods.current.values(),
            ),
        };
        if scope == self.scope {
            return;
        }
        info!(?scope, "watching Pods");
        self.scope = scope;
        let selector = match scope {
            PodScope::None => return self.events = stream::pending().boxed(),
            PodScope::Node => format!("spec.nodeName={}", self.node),
            // The init containers of a pending Pod have its address.
            PodScope::Cluster => "status.phase!=Succeeded,status.phase!=Failed".to_owned(),
        };
        let config = watcher::Config::default().fields(&selector);
        self.events = watch(
            Self::KIND,
            self.api.clone(),
            config,
            &self.node,
            pod::convert,
            ObjectEvent::Pod,
        );
    }

    /// Whether the Pods required are listed. Without permission to watch Pods everything that does not need them
    /// is published, but policies do need them.
    pub(super) fn ready(&self, cache: &ObjectCache, failing: bool) -> bool {
        if cache.pods.synced {
            return true;
        }
        self.enforcement == PolicyEnforcement::Off
            && (self.scope == PodScope::None || (failing && self.lookup == PodLookup::Auto))
    }
}
