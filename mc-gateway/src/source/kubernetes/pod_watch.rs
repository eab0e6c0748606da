//! The watch of Pods: none, those of this Node, or all, as the other objects require.

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kube::Api;
use kube::runtime::watcher;
use mc_kube::pod::{NOT_ENDED, Pod};
use tracing::info;

use super::cache::{ObjectCache, ObjectEvent};
use super::watch::{WatchEvent, watch};
use crate::config::{Config, PodLookup};
use crate::policy::Mode;
use crate::source::address_groups;
use crate::source::pod::{self, PodScope};

/// The current watch of Pods.
pub(super) struct PodWatch {
    api: Api<Pod>,
    node: String,
    lookup: PodLookup,
    /// The last scope that the look-up of Pods required; it lacks Pods that only policies require.
    lookup_scope: PodScope,
    scope: PodScope,
    /// The watch of address groups, until policies need it.
    address_groups: Option<BoxStream<'static, WatchEvent>>,
    /// Whether address groups are needed and not listed yet.
    awaits_groups: bool,
    pub(super) events: BoxStream<'static, WatchEvent>,
}

impl PodWatch {
    pub(super) const KIND: &'static str = "Pod";

    /// Watches no Pods and no `address_groups` yet.
    pub(super) fn new(
        api: Api<Pod>,
        config: &Config,
        address_groups: BoxStream<'static, WatchEvent>,
    ) -> Self {
        Self {
            api,
            node: config.node_name.clone(),
            lookup: config.pod_lookup,
            lookup_scope: PodScope::None,
            scope: PodScope::None,
            address_groups: Some(address_groups),
            awaits_groups: false,
            events: stream::pending().boxed(),
        }
    }

    /// Replaces the watch if the cached objects require other Pods. Where policies are enforced, the Pods are unknown
    /// until the new watch has listed them: a rule that drops would lack senders. Complete address groups replace the
    /// Pods of other Nodes; all Pods are watched while there are none, or while their watch is failing before its first
    /// list. While no policy selects a Pod of this Node, the Pods of other Nodes are not needed.
    ///
    /// Returns the watch of address groups once policies need it. It does not end before the agent.
    #[must_use]
    pub(super) fn update_scope(
        &mut self,
        cache: &mut ObjectCache,
        groups_failing: bool,
    ) -> Option<BoxStream<'static, WatchEvent>> {
        let mode = cache.policy_mode().ok()?;
        // Rules select senders by the labels of Pods on any Node.
        let needs_peers = mode == Some(Mode::All) && (self.address_groups.is_none() || cache.needs_peers());
        let ObjectCache {
            nodes,
            gateways,
            pods,
            identities,
            address_groups,
            ..
        } = cache;
        // A Node that is not listed yet would count as one without CIDRs.
        if !nodes.synced || !gateways.synced {
            return None;
        }
        self.awaits_groups = needs_peers && !address_groups.synced && !groups_failing;
        if self.awaits_groups {
            return self.address_groups.take();
        }
        let scope = if needs_peers && !address_groups::are_complete(address_groups.current.values()) {
            PodScope::Cluster
        } else {
            self.lookup_scope = pod::scope(
                self.lookup,
                self.lookup_scope,
                &self.node,
                &nodes.current,
                &gateways.current,
                !identities.current.is_empty() || mode.is_some(),
                pods.current.values(),
            );
            self.lookup_scope
        };
        // An agent that watches all Pods has the newest state of each.
        cache.uses_address_groups = needs_peers && scope != PodScope::Cluster;
        if scope == self.scope {
            return None;
        }
        info!(?scope, "watching Pods");
        self.scope = scope;
        if mode.is_some() {
            cache.pods.synced = false;
        }
        let selector = match scope {
            PodScope::None => {
                self.events = stream::pending().boxed();
                return None;
            }
            PodScope::Node => format!("spec.nodeName={}", self.node),
            // The init containers of a pending Pod have its address.
            PodScope::Cluster => NOT_ENDED.to_owned(),
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
        None
    }

    /// Whether the Pods and groups required are listed. Without permission to watch Pods everything that does not need
    /// them is published, but policies do need them.
    pub(super) fn ready(&self, cache: &ObjectCache, failing: bool) -> bool {
        if self.awaits_groups {
            return false;
        }
        if cache.pods.synced {
            return true;
        }
        cache.policy_mode() == Ok(None)
            && (self.scope == PodScope::None || (failing && self.lookup == PodLookup::Auto))
    }
}
