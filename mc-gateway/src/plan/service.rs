//! Changes of the Service maps: a reader never meets a backend or lookup table that is not there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mc_gateway_common::abi::service::{Backend, Maglev, SERVICE_AFFINITY, Service, ServiceKey};
use mc_gateway_common::maglev;

use super::slots::Slots;
use crate::desired::services::Services;

/// What the Service maps hold.
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
        /// Its id.
        id: u64,
        /// Before.
        from: Option<Backend>,
        /// After.
        to: Option<Backend>,
    },
    /// An entry of `mc_maglev`.
    Table {
        /// Whose table.
        key: ServiceKey,
        /// Before.
        from: Option<Arc<Maglev>>,
        /// After.
        to: Option<Arc<Maglev>>,
    },
    /// An entry of `mc_services`.
    Service {
        /// Address, port and protocol.
        key: ServiceKey,
        /// Before.
        from: Option<Service>,
        /// After.
        to: Option<Service>,
    },
}

impl ServiceAction {
    /// What takes this action back.
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

    /// Does to `maps` what the action does to the kernel's maps.
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
        let what = |exists: bool| if exists { "set" } else { "remove" };
        match self {
            Self::Backend { id, to, .. } => write!(f, "{} backend {id:#x}", what(to.is_some())),
            Self::Table { key, to, .. } => {
                write!(f, "{} lookup table of {}", what(to.is_some()), Port(key))
            }
            Self::Service { key, to, .. } => {
                write!(f, "{} Service {}", what(to.is_some()), Port(key))
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

/// The changes from `observed` to `wanted`: those that add or change in their order, and those that remove
/// in the opposite order.
pub(super) fn plan(
    observed: &ServiceMaps,
    wanted: &Services,
    groups: &Slots,
) -> (Vec<ServiceAction>, Vec<ServiceAction>) {
    let (mut adds, mut removes) = (Vec::new(), Vec::new());
    for (id, backend) in &wanted.backends {
        let from = observed.backends.get(id).copied();
        let to = Some(Backend {
            group: groups.slot(backend.group),
            ..*backend
        });
        if from != to {
            adds.push(ServiceAction::Backend { id: *id, from, to });
        }
    }
    for (key, service) in &wanted.services {
        let from = observed.tables.get(key).cloned();
        let to = maglev::table(&service.backends).map(Arc::from);
        if from != to {
            adds.push(ServiceAction::Table { key: *key, from, to });
        }
    }
    for (key, service) in &wanted.services {
        let from = observed.services.get(key).copied();
        let to = Some(Service {
            flags: if service.affinity { SERVICE_AFFINITY } else { 0 },
            backends: u32::try_from(service.backends.len()).unwrap_or(u32::MAX),
        });
        if from != to {
            adds.push(ServiceAction::Service { key: *key, from, to });
        }
    }
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
        if !wanted.services.contains_key(key) {
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

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::service::MAGLEV_ENTRIES;
    use proptest::collection::{btree_map, btree_set};
    use proptest::prelude::*;

    use super::*;
    use crate::desired::services;

    fn key(port: u16) -> ServiceKey {
        ServiceKey {
            addr: [1; 16],
            port,
            proto: 6,
            pad: 0,
        }
    }

    fn wanted() -> impl Strategy<Value = Services> {
        btree_map(1_u16..6, (any::<bool>(), btree_set(1_u64..20, 1..5)), 0..4).prop_map(|ports| Services {
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
            services: ports
                .iter()
                .map(|(port, (affinity, ids))| {
                    let service = services::Service {
                        affinity: *affinity,
                        backends: ids.iter().map(|id| u64::from(*port) << 8 | id).collect(),
                    };
                    (key(*port), service)
                })
                .collect(),
        })
    }

    /// Whatever a reader starts with leads to a backend.
    fn sound(maps: &ServiceMaps) -> bool {
        maps.services.keys().all(|key| maps.tables.contains_key(key))
            && maps
                .tables
                .values()
                .flat_map(|table| table.backends.into_iter().take(MAGLEV_ENTRIES))
                .all(|id| maps.backends.contains_key(&id))
    }

    fn ordered(maps: &ServiceMaps, wanted: &Services) -> Vec<ServiceAction> {
        let (mut adds, removes) = plan(maps, wanted, &Slots::default());
        adds.extend(removes.into_iter().rev());
        adds
    }

    proptest! {
        #[test]
        fn every_step_is_sound_and_the_next_plan_empty(first in wanted(), second in wanted()) {
            let mut maps = ServiceMaps::default();
            for wanted in [&first, &second] {
                for action in ordered(&maps, wanted) {
                    action.apply_to(&mut maps);
                    prop_assert!(sound(&maps), "after {action}: {maps:?}");
                }
                prop_assert_eq!(ordered(&maps, wanted), vec![]);
                prop_assert_eq!(maps.backends.len(), wanted.backends.len());
                prop_assert_eq!(maps.services.len(), wanted.services.len());
            }
        }

        #[test]
        fn undoing_restores_what_was_there(first in wanted(), second in wanted()) {
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
