//! Earlier ready backends of each Service port, for flows that another gateway has opened.
//!
//! Every Node keeps the sets of ready backends, since it may become a gateway; tables are computed at gateways. The
//! tables in the pinned maps are the history of an agent that starts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mc_gateway_common::abi::service::{MAX_SERVICES, MAX_TABLES, Maglev, PAST_TABLES, ServiceKey};
use mc_gateway_common::maglev;
use mc_gateway_common::packet::ip;

use crate::desired::services::{Endpoints, Services};
use crate::past_tables::past_tables;

/// Sets of ready backends of a port that are kept as sets. Older ones are merged into tables.
const SETS: usize = 8;
/// Number of past tables of all ports: the map has room for them beside all present tables.
const MOST_PAST_TABLES: u32 = MAX_TABLES - MAX_SERVICES;

/// The history of all Service ports.
#[derive(Debug, Default)]
pub struct ServiceHistory {
    ports: BTreeMap<ServiceKey, PortHistory>,
}

/// The history of a Service port.
#[derive(Debug, Default)]
struct PortHistory {
    /// The last distinct sets of ready backends, newest first.
    sets: VecDeque<ReadySet>,
    /// Earlier tables, newest first.
    older: Vec<Arc<Maglev>>,
    /// IDs of the endpoints that may have flows from before.
    existing: BTreeSet<u64>,
    /// Past tables for the present set, until the history changes.
    past: Option<(BTreeSet<u64>, Vec<Arc<Maglev>>)>,
}

/// A set of ready backends with its table, once it is needed.
#[derive(Debug, Default)]
struct ReadySet {
    ready: BTreeSet<u64>,
    table: Option<Arc<Maglev>>,
}

impl ReadySet {
    fn table(&mut self) -> Option<Arc<Maglev>> {
        if self.table.is_none() {
            self.table = maglev::table(&self.ready).map(Arc::from);
        }
        self.table.clone()
    }
}

impl ServiceHistory {
    /// The history in the tables of an earlier agent, present and past ones.
    #[must_use]
    pub fn adopt(tables: &BTreeMap<ServiceKey, Arc<Maglev>>) -> Self {
        let mut history = Self::default();
        // In the order of the keys, which is that of the generations.
        for (key, table) in tables {
            let port = history.ports.entry(key.with_generation(0)).or_default();
            port.older.push(Arc::clone(table));
        }
        history
    }

    /// Adds the present endpoints of every port. Ports that no longer exist are forgotten.
    pub fn record(&mut self, present: &BTreeMap<ServiceKey, Endpoints>) {
        self.ports.retain(|key, _| present.contains_key(key));
        for (key, endpoints) in present {
            let port = self.ports.entry(*key).or_default();
            // Datagrams leave a Pod that is not ready while another one is.
            let existing = if key.proto == ip::UDP && !endpoints.ready.is_empty() {
                &endpoints.ready
            } else {
                &endpoints.all
            };
            port.record(&endpoints.ready, existing);
        }
    }

    /// The past tables of the ports of `services` by key, as many as fit: the newest tables of all ports first.
    #[must_use]
    pub fn past_tables(&mut self, services: &Services) -> BTreeMap<ServiceKey, Arc<Maglev>> {
        let mut tables = Vec::new();
        for (key, service) in services.services.iter().filter(|(_, service)| !service.stack) {
            let Some(port) = self.ports.get_mut(key) else {
                continue;
            };
            for (generation, table) in (1..=PAST_TABLES).zip(port.past_tables(&service.backends)) {
                tables.push((generation, key.with_generation(generation), table));
            }
        }
        tables.sort_by_key(|(generation, key, _)| (*generation, *key));
        tables.truncate(usize::try_from(MOST_PAST_TABLES).unwrap_or(usize::MAX));
        tables.into_iter().map(|(_, key, table)| (key, table)).collect()
    }
}

impl PortHistory {
    fn record(&mut self, ready: &BTreeSet<u64>, existing: &BTreeSet<u64>) {
        if self.existing != *existing {
            self.existing.clone_from(existing);
            self.past = None;
        }
        let known = self.sets.front().is_some_and(|newest| newest.ready == *ready);
        // Without a ready Pod there is no table that could have opened a connection.
        if known || ready.is_empty() {
            return;
        }
        self.past = None;
        self.sets.retain(|set| set.ready != *ready);
        self.sets.push_front(ReadySet {
            ready: ready.clone(),
            table: None,
        });
        while self.sets.len() > SETS {
            let oldest = self.sets.pop_back().and_then(|mut set| set.table());
            let merged = oldest.iter().chain(&self.older).map(|table| &**table);
            self.older = past_tables(None, merged, &self.existing);
        }
    }

    /// The past tables while these backends are ready.
    fn past_tables(&mut self, ready: &BTreeSet<u64>) -> Vec<Arc<Maglev>> {
        if let Some((of, tables)) = &self.past
            && of == ready
        {
            return tables.clone();
        }
        let is_present = self.sets.front().is_some_and(|newest| newest.ready == *ready);
        // Most Services have had one set only.
        let tables = if self.older.is_empty() && self.sets.len() == 1 && is_present {
            Vec::new()
        } else {
            let earlier: Vec<Arc<Maglev>> = self.sets.iter_mut().filter_map(ReadySet::table).collect();
            let present = maglev::table(ready);
            let earlier = earlier.iter().chain(&self.older).map(|table| &**table);
            past_tables(present.as_deref(), earlier, &self.existing)
        };
        self.past = Some((ready.clone(), tables.clone()));
        tables
    }
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::service::MAGLEV_ENTRIES;

    use super::*;
    use crate::desired::services::Service;

    const KEY: ServiceKey = ServiceKey {
        addr: [1; 16],
        port: 80,
        proto: ip::TCP,
        generation: 0,
    };

    /// A port with these ready backends, and others that exist.
    fn port(ready: &[u64], other: &[u64]) -> Services {
        let ready: BTreeSet<u64> = ready.iter().copied().collect();
        Services {
            services: [(
                KEY,
                Service {
                    backends: ready.clone(),
                    ..Service::default()
                },
            )]
            .into(),
            endpoints: [(
                KEY,
                Endpoints {
                    all: ready.iter().chain(other).copied().collect(),
                    ready,
                },
            )]
            .into(),
            ..Services::default()
        }
    }

    fn record(history: &mut ServiceHistory, services: &Services) -> BTreeMap<ServiceKey, Arc<Maglev>> {
        history.record(&services.endpoints);
        history.past_tables(services)
    }

    /// Whether a connection that began with these ready backends is found while `now` is the present state.
    fn finds(now: &Services, past: &BTreeMap<ServiceKey, Arc<Maglev>>, began: &[u64]) -> bool {
        let began = maglev::table(&began.iter().copied().collect()).unwrap();
        let present = maglev::table(&now.services[&KEY].backends);
        let endpoints = &now.endpoints[&KEY].all;
        (0..MAGLEV_ENTRIES).all(|slot| {
            let wanted = began.backends[slot];
            let tables = present
                .iter()
                .map(|table| &**table)
                .chain(past.values().map(|table| &**table));
            let mut found = tables.map(|table| table.backends[slot]);
            !endpoints.contains(&wanted) || found.any(|id| id == wanted)
        })
    }

    #[test]
    fn a_port_whose_endpoints_never_changed_has_no_past_table() {
        let mut history = ServiceHistory::default();
        for _ in 0..3 {
            assert_eq!(record(&mut history, &port(&[1, 2], &[3])), BTreeMap::new());
        }
    }

    #[test]
    fn connections_are_found_after_several_changes() {
        let mut history = ServiceHistory::default();
        let states = [
            port(&[1, 2], &[]),
            port(&[1, 2, 3], &[]),
            port(&[2, 3, 4], &[1]),
            port(&[4, 5], &[1, 2, 3]),
        ];
        for state in &states[..3] {
            record(&mut history, state);
        }
        let past = record(&mut history, &states[3]);
        for began in [&[1, 2][..], &[1, 2, 3], &[2, 3, 4], &[4, 5]] {
            assert!(finds(&states[3], &past, began), "{began:?}");
        }
        assert!(
            past.keys().all(|key| (1..=PAST_TABLES).contains(&key.generation)),
            "{:?}",
            past.keys()
        );
    }

    #[test]
    fn a_backend_is_found_after_more_changes_than_sets_are_kept() {
        let mut history = ServiceHistory::default();
        record(&mut history, &port(&[1, 2], &[]));
        let mut last = Default::default();
        for n in 0..3 * SETS as u64 {
            // Each round replaces a Pod that is gone with the next round.
            let state = port(&[1, 100 + n], &[2]);
            last = (record(&mut history, &state), state);
        }
        let (past, state) = last;
        assert!(finds(&state, &past, &[1, 2]));
        assert!(history.ports[&KEY].sets.len() <= SETS);
    }

    #[test]
    fn without_a_ready_pod_the_last_set_is_a_past_one() {
        let mut history = ServiceHistory::default();
        record(&mut history, &port(&[1, 2], &[]));
        let none = port(&[], &[1, 2]);
        let past = record(&mut history, &none);
        assert!(finds(&none, &past, &[1, 2]));
    }

    #[test]
    fn a_restarted_agent_continues_the_history_in_the_maps() {
        let mut history = ServiceHistory::default();
        for state in [
            port(&[1, 2, 3], &[]),
            port(&[2, 3, 4], &[1]),
            port(&[3, 4, 5], &[1, 2]),
        ] {
            record(&mut history, &state);
        }
        let now = port(&[4, 5], &[1, 2, 3]);
        let before = record(&mut history, &now);
        let mut maps = before.clone();
        maps.insert(KEY, Arc::from(maglev::table(&[4, 5].into()).unwrap()));
        let mut restarted = ServiceHistory::adopt(&maps);
        assert_eq!(record(&mut restarted, &now), before);
        let next = port(&[5, 6], &[1, 2, 3, 4]);
        let past = record(&mut restarted, &next);
        assert!(finds(&next, &past, &[4, 5]));
        assert_eq!(past, record(&mut history, &next));
    }

    #[test]
    fn ports_of_the_service_proxy_have_no_past_table() {
        let mut history = ServiceHistory::default();
        record(&mut history, &port(&[1], &[2]));
        let mut proxied = port(&[2], &[1]);
        proxied.services.get_mut(&KEY).unwrap().stack = true;
        assert_eq!(record(&mut history, &proxied), BTreeMap::new());
    }

    /// Backends in past tables of a UDP port in the last of these states.
    fn past_of_datagrams(states: &[Services]) -> BTreeSet<u64> {
        let mut history = ServiceHistory::default();
        let mut past = BTreeMap::new();
        for state in states {
            let key = ServiceKey {
                proto: ip::UDP,
                ..KEY
            };
            let state = Services {
                services: [(key, state.services[&KEY].clone())].into(),
                endpoints: [(key, state.endpoints[&KEY].clone())].into(),
                ..Services::default()
            };
            past = record(&mut history, &state);
        }
        let backends = past.values().flat_map(|table| table.backends);
        backends.filter(|id| *id != 0).collect()
    }

    #[test]
    fn datagrams_have_ready_pods_in_past_tables_only() {
        let more = past_of_datagrams(&[port(&[1, 2], &[]), port(&[1, 2, 3], &[])]);
        assert_eq!(more, [1, 2].into());
        let fewer = past_of_datagrams(&[port(&[1, 2], &[]), port(&[1], &[2])]);
        assert_eq!(fewer, BTreeSet::new());
        // Without a ready Pod flows keep theirs.
        let none = past_of_datagrams(&[port(&[1, 2], &[]), port(&[], &[1, 2])]);
        assert_eq!(none, [1, 2].into());
    }

    #[test]
    fn a_withdrawn_port_is_forgotten() {
        let mut history = ServiceHistory::default();
        record(&mut history, &port(&[1], &[2]));
        record(&mut history, &Services::default());
        assert_eq!(record(&mut history, &port(&[2], &[1])), BTreeMap::new());
    }
}
