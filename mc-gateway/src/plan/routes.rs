//! Changes of the routes into `mc0`.
//!
//! *Guarantees*: the changes do not depend on earlier plans.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Action, ObservedState};
use crate::desired::SourceAddrs;
use crate::resolved::{ResolvedState, RouteKey};
use crate::shared_map::SharedMap;
use crate::shared_set::SharedSet;

/// The routes of an earlier plan without a change: a later plan compares only what differs from them.
#[derive(Clone, Debug, Default)]
pub(super) struct UnchangedRoutes {
    resolved: SharedSet<IpNet>,
    sources: SourceAddrs,
    observed: SharedMap<RouteKey, Option<IpAddr>>,
}

impl UnchangedRoutes {
    /// The actions that add or change routes, and those that remove some.
    pub(super) fn plan(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
    ) -> (Vec<Action>, Vec<Action>) {
        let sources = resolved.masquerade.sources;
        if self.sources != sources {
            *self = Self::default();
        }
        let nets = self.resolved.changes(&resolved.routes);
        let of_nets = nets.flat_map(|net| RouteKey::both(*net));
        let of_node = self.observed.changes(&observed.routes).copied();
        let mut keys: Vec<RouteKey> = of_nets.chain(of_node).collect();
        keys.sort();
        keys.dedup();
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        for key in keys {
            let from = observed.routes.get(&key).copied();
            let to = resolved.host_route(key);
            if from != to {
                let actions = if to.is_some() { &mut adds } else { &mut removes };
                actions.push(Action::SetRoute { key, from, to });
            }
        }
        if adds.is_empty() && removes.is_empty() {
            *self = Self {
                resolved: resolved.routes.clone(),
                sources,
                observed: observed.routes.clone(),
            };
        }
        (adds, removes)
    }
}
