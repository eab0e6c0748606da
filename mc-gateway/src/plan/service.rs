//! Changes of the Service maps, ordered so that a reader always finds the backend and lookup table of an entry.
//!
//! A Service has its past tables, and the flag for them, before its present table changes: a connection that a gateway
//! does not know has its backend in one of them at every moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mc_gateway_common::abi::service::{
    Backend, Maglev, SERVICE_AFFINITY, SERVICE_IDENTITY_LOST, SERVICE_PAST, SERVICE_STACK,
    SERVICE_TIMEOUT_SHIFT, Service, ServiceKey,
};

use super::maglev_tables::MaglevTables;
use super::slots::Slots;
use crate::desired::services::Services;

/// Contents of the Service maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceMaps {
    /// `mc_services`.
    pub services: BTreeMap<ServiceKey, Service>,
    /// `mc_maglev`.
    pub tables: BTreeMap<ServiceKey, Arc<Maglev>>,
    /// `mc_backends`.
    pub backends: BTreeMap<u64, Backend>,
}

/// One change of a Service map; none removes an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// An entry of `mc_backends`.
    Backend {
        /// Its ID.
        id: u64,
        /// Previous value.
        from: Option<Backend>,
        /// New value.
        to: Option<Backend>,
    },
    /// An entry of `mc_maglev`.
    Table {
        /// Address, port and protocol of its Service.
        key: ServiceKey,
        /// Previous value.
        from: Option<Arc<Maglev>>,
        /// New value.
        to: Option<Arc<Maglev>>,
    },
    /// An entry of `mc_services`.
    Service {
        /// Address, port and protocol.
        key: ServiceKey,
        /// Previous value.
        from: Option<Service>,
        /// New value.
        to: Option<Service>,
    },
}

impl ServiceAction {
    /// The inverse action.
    #[must_use]
    pub fn undo(&self) -> Self {
        match self.clone() {
            Self::Backend { id, from, to } => Self::Backend {
                id,
                from: to,
                to: from,
            },
            Self::Table { key, from, to } => Self::Table {
                key,
                from: to,
                to: from,
            },
            Self::Service { key, from, to } => Self::Service {
                key,
                from: to,
                to: from,
            },
        }
    }

    /// Applies the action to `maps`, a copy of the maps in memory.
    pub fn apply_to(&self, maps: &mut ServiceMaps) {
        fn entry<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match self.clone() {
            Self::Backend { id, to, .. } => entry(&mut maps.backends, id, to),
            Self::Table { key, to, .. } => entry(&mut maps.tables, key, to),
            Self::Service { key, to, .. } => entry(&mut maps.services, key, to),
        }
    }
}

impl fmt::Display for ServiceAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |exists: bool| if exists { "set" } else { "remove" };
        match self {
            Self::Backend { id, to, .. } => write!(f, "{} backend {id:#x}", verb(to.is_some())),
            Self::Table { key, to, .. } => {
                write!(f, "{} lookup table of {}", verb(to.is_some()), Port(key))
            }
            Self::Service { key, to, .. } => {
                write!(f, "{} Service {}", verb(to.is_some()), Port(key))
            }
        }
    }
}

struct Port<'a>(&'a ServiceKey);

impl fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceKey {
            addr, port, proto, ..
        } = self.0;
        let addr = std::net::Ipv6Addr::from(*addr).to_canonical();
        write!(f, "{addr} port {port} protocol {proto}")
    }
}

/// [`SERVICE_AFFINITY`] with a time-out in seconds, which is below a day.
const fn affinity_flags(timeout: Option<u32>) -> u32 {
    match timeout {
        Some(seconds) => SERVICE_AFFINITY | seconds << SERVICE_TIMEOUT_SHIFT,
        None => 0,
    }
}

const fn flag(on: bool, flag: u32) -> u32 {
    if on { flag } else { 0 }
}

/// The changes from `observed` to `wanted`: additions and updates in order, and removals in reverse order.
pub(super) fn plan(
    observed: &ServiceMaps,
    wanted: &Services,
    groups: &Slots,
    lookup: &mut MaglevTables,
) -> (Vec<ServiceAction>, Vec<ServiceAction>) {
    let (mut adds, mut removes) = (Vec::new(), Vec::new());
    for (id, backend) in &wanted.backends {
        let from = observed.backends.get(id).copied();
        let slot = groups.slot(backend.group);
        // In the map slot 0 is this node. Without an entry the service proxy gets the flows.
        let reachable = slot != 0 || backend.group == 0;
        let to = reachable.then_some(Backend {
            group: slot,
            ..*backend
        });
        if from != to {
            adds.push(ServiceAction::Backend { id: *id, from, to });
        }
    }
    adds.extend(past_tables(observed, wanted));
    let (mut tables, mut changed, mut new) = (Vec::new(), Vec::new(), Vec::new());
    for (key, service) in &wanted.services {
        let from = observed.tables.get(key);
        let to = lookup.table(&service.backends, from);
        if from != to.as_ref() {
            let from = from.cloned();
            tables.push(ServiceAction::Table { key: *key, from, to });
        }
        let from = observed.services.get(key).copied();
        let has_past = wanted.past.contains_key(&key.with_generation(1));
        let to = Some(Service {
            flags: affinity_flags(service.affinity)
                | flag(service.stack, SERVICE_STACK)
                | flag(service.identity_lost, SERVICE_IDENTITY_LOST)
                | flag(has_past, SERVICE_PAST),
            backends: u32::try_from(service.backends.len()).unwrap_or(u32::MAX),
        });
        if from != to {
            let actions = if from.is_some() { &mut changed } else { &mut new };
            actions.push(ServiceAction::Service { key: *key, from, to });
        }
    }
    lookup.retain(wanted.services.values().map(|service| &service.backends));
    adds.extend(changed.into_iter().chain(tables).chain(new));
    for (id, backend) in &observed.backends {
        if !wanted.backends.contains_key(id) {
            removes.push(ServiceAction::Backend {
                id: *id,
                from: Some(*backend),
                to: None,
            });
        }
    }
    for (key, table) in &observed.tables {
        if key.generation == 0 && !wanted.services.contains_key(key) {
            removes.push(ServiceAction::Table {
                key: *key,
                from: Some(Arc::clone(table)),
                to: None,
            });
        }
    }
    for (key, service) in &observed.services {
        if !wanted.services.contains_key(key) {
            removes.push(ServiceAction::Service {
                key: *key,
                from: Some(*service),
                to: None,
            });
        }
    }
    (adds, removes)
}

/// The changes of past tables. Those that are no longer wanted make room for the others: nothing depends on them.
fn past_tables(observed: &ServiceMaps, wanted: &Services) -> Vec<ServiceAction> {
    let old = observed.tables.iter().filter(|(key, _)| key.generation != 0);
    let removed = old.filter(|(key, _)| !wanted.past.contains_key(key));
    let removed = removed.map(|(key, table)| (key, Some(Arc::clone(table)), None));
    let set = wanted.past.iter().map(|(key, table)| {
        let from = observed.tables.get(key).cloned();
        (key, from, Some(Arc::clone(table)))
    });
    removed
        .chain(set.filter(|(_, from, to)| from != to))
        .map(|(key, from, to)| ServiceAction::Table { key: *key, from, to })
        .collect()
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::service::MAGLEV_ENTRIES;
    use mc_gateway_common::maglev;
    use proptest::collection::{btree_map, btree_set};
    use proptest::prelude::*;

    use super::*;
    use crate::desired::services;

    fn key(port: u16) -> ServiceKey {
        ServiceKey {
            addr: [1; 16],
            port,
            proto: 6,
            generation: 0,
        }
    }

    fn wanted() -> impl Strategy<Value = Services> {
        btree_map(
            1_u16..6,
            (proptest::option::of(1_u32..=86_400), btree_set(1_u64..20, 1..5)),
            0..4,
        )
        .prop_map(|ports| Services {
            backends: ports
                .iter()
                .flat_map(|(port, (_, ids))| ids.iter().map(move |id| (*port, *id)))
                .map(|(port, id)| {
                    let backend = Backend {
                        service_port: port,
                        ..Backend::default()
                    };
                    (u64::from(port) << 8 | id, backend)
                })
                .collect(),
            past: ports
                .iter()
                .filter(|(_, (_, ids))| ids.len() > 2)
                .map(|(port, (_, ids))| {
                    let ids = ids.iter().take(1).map(|id| u64::from(*port) << 8 | id).collect();
                    let table = maglev::table(&ids).unwrap();
                    (key(*port).with_generation(1), Arc::from(table))
                })
                .collect(),
            endpoints: BTreeMap::new(),
            proxied: BTreeMap::new(),
            services: ports
                .iter()
                .map(|(port, (affinity, ids))| {
                    let service = services::Service {
                        affinity: *affinity,
                        backends: ids.iter().map(|id| u64::from(*port) << 8 | id).collect(),
                        ..services::Service::default()
                    };
                    (key(*port), service)
                })
                .collect(),
        })
    }

    /// Whether every entry leads to existing backends.
    fn is_consistent(maps: &ServiceMaps) -> bool {
        maps.services.keys().all(|key| maps.tables.contains_key(key))
            && maps
                .tables
                .values()
                .flat_map(|table| table.backends.into_iter().take(MAGLEV_ENTRIES))
                .all(|id| maps.backends.contains_key(&id))
    }

    fn ordered(maps: &ServiceMaps, wanted: &Services) -> Vec<ServiceAction> {
        let (mut adds, removes) = plan(maps, wanted, &Slots::default(), &mut MaglevTables::default());
        adds.extend(removes.into_iter().rev());
        adds
    }

    #[test]
    fn past_tables_and_their_flag_precede_a_new_present_table() {
        let services = |ids: &[u64], past: Option<u64>| Services {
            backends: [1, 2].map(|id| (id, Backend::default())).into(),
            services: [(
                key(1),
                services::Service {
                    backends: ids.iter().copied().collect(),
                    ..services::Service::default()
                },
            )]
            .into(),
            past: past
                .map(|id| {
                    (
                        key(1).with_generation(1),
                        Arc::from(maglev::table(&[id].into()).unwrap()),
                    )
                })
                .into_iter()
                .collect(),
            ..Services::default()
        };
        let mut maps = ServiceMaps::default();
        for action in ordered(&maps, &services(&[1], None)) {
            action.apply_to(&mut maps);
        }
        let before = maps.tables[&key(1)].clone();
        let mut changed = false;
        for action in ordered(&maps, &services(&[2], Some(1))) {
            action.apply_to(&mut maps);
            if maps.tables[&key(1)] != before {
                changed = true;
                assert!(maps.tables.contains_key(&key(1).with_generation(1)));
                assert_eq!(maps.services[&key(1)].flags & SERVICE_PAST, SERVICE_PAST);
            }
        }
        assert!(changed);
    }

    #[test]
    fn a_backend_of_a_node_without_a_slot_is_no_backend_of_this_node() {
        let backend = |group| Backend {
            group,
            ..Backend::default()
        };
        let wanted = Services {
            backends: [(1, backend(0)), (2, backend(7)), (3, backend(8))].into(),
            ..Services::default()
        };
        let groups = Slots::assign("mc_nh_groups", 4, [(2, 7)].into_iter(), [7].into_iter()).unwrap();
        let mut maps = ServiceMaps::default();
        let (adds, removes) = plan(&maps, &wanted, &groups, &mut MaglevTables::default());
        assert_eq!(removes, []);
        for action in adds {
            action.apply_to(&mut maps);
        }
        assert_eq!(maps.backends, [(1, backend(0)), (2, backend(2))].into());
        assert_eq!(
            plan(&maps, &wanted, &groups, &mut MaglevTables::default()),
            (vec![], vec![])
        );
    }

    proptest! {
        #[test]
        fn every_step_is_consistent_and_the_next_plan_is_empty(first in wanted(), second in wanted()) {
            let mut maps = ServiceMaps::default();
            for wanted in [&first, &second] {
                for action in ordered(&maps, wanted) {
                    action.apply_to(&mut maps);
                    prop_assert!(is_consistent(&maps), "after {action}: {maps:?}");
                }
                prop_assert_eq!(ordered(&maps, wanted), vec![]);
                prop_assert_eq!(maps.backends.len(), wanted.backends.len());
                prop_assert_eq!(maps.services.len(), wanted.services.len());
                let past = maps.tables.iter().filter(|(key, _)| key.generation != 0);
                prop_assert_eq!(past.map(|(key, table)| (*key, Arc::clone(table))).collect::<BTreeMap<_, _>>(), wanted.past.clone());
                for (key, service) in &maps.services {
                    let has_past = wanted.past.contains_key(&key.with_generation(1));
                    prop_assert_eq!(service.flags & SERVICE_PAST != 0, has_past);
                }
            }
        }

        #[test]
        fn undo_restores_the_previous_maps(first in wanted(), second in wanted()) {
            let mut maps = ServiceMaps::default();
            for action in ordered(&maps, &first) {
                action.apply_to(&mut maps);
            }
            let before = maps.clone();
            let actions = ordered(&maps, &second);
            for action in &actions {
                action.apply_to(&mut maps);
            }
            for action in actions.iter().rev() {
                action.undo().apply_to(&mut maps);
            }
            prop_assert_eq!(maps, before);
        }
    }
}
