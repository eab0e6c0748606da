//! The policy maps that the agent writes.
//!
//! *Guarantees*: programs use the tables before or after a change, never a mixture: the half that they do not use is
//! written first. A failed or interrupted write leaves the tables in use as they were.

mod readback;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuHashMap, PerCpuValues};
use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{
    self as abi, ADDRESS_CLASS_BITS, AddressClassKey, DIRECTION_EGRESS, DIRECTION_INGRESS, ExporterKey,
    LabelIdentity, PeerRules, PeerRulesKey, PolicyPod, PolicyPodKey, PolicyState, RULE_BITS, Rule,
    RuleCounter, RuleKey, half_slot,
};
use mc_gateway_common::abi::service::ReplyKey;
use mc_gateway_common::maps::policy::PolicyMaps;

use super::batch;
use super::error::{MapsError, ignore_missing, map_error, open};
use crate::policy_tables::{PeerClass, PolicyTables, RulePrefix};
use crate::shared_map::SharedMap;

/// Number of halves.
const HALVES: usize = 2;

/// The policy maps.
pub(super) struct PinnedPolicyMaps {
    state: Array<MapData, PolicyState>,
    pods: HashMap<MapData, PolicyPodKey, PolicyPod>,
    unselected: Array<MapData, Addr>,
    identities: Array<MapData, LabelIdentity>,
    exporters: HashMap<MapData, ExporterKey, u32>,
    address_classes: LpmTrie<MapData, AddressClassKey, u32>,
    peer_rules: HashMap<MapData, PeerRulesKey, PeerRules>,
    rules: LpmTrie<MapData, RuleKey, Rule>,
    flows: HashMap<MapData, ReplyKey, u64>,
    counters: PerCpuHashMap<MapData, u32, RuleCounter>,
}

/// The entries of both halves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyContents {
    /// The half in use, 0 or 1.
    pub half: u32,
    /// The entries by half.
    pub tables: [Arc<PolicyTables>; HALVES],
}

impl PolicyContents {
    /// The tables in use.
    #[must_use]
    pub fn current(&self) -> &Arc<PolicyTables> {
        let [first, second] = &self.tables;
        if self.half == 0 { first } else { second }
    }

    /// The tables in use as input of the packet pipeline, without flows.
    #[must_use]
    pub fn to_maps(&self) -> PolicyMaps {
        let (half, tables) = (self.half, self.current());
        let short = u16::from(half != 0);
        let pods = |pods: &BTreeMap<Addr, PolicyPod>, direction| -> Vec<_> {
            let key = |addr| PolicyPodKey {
                addr,
                half: short,
                direction,
            };
            pods.iter().map(|(addr, pod)| (key(*addr), *pod)).collect()
        };
        let ingress = pods(&ingress(tables), DIRECTION_INGRESS).into_iter();
        let unselected = tables.unselected_slots.iter();
        let identities = tables.identities.iter();
        let identities = identities.map(|(number, identity)| (half_slot(*number, half), *identity));
        let exporters = tables.exporters.iter().map(|of_set| exporter_key(*of_set, half));
        let classes = tables.address_classes.iter().map(|((len, addr), class)| {
            let key = AddressClassKey { half, addr: *addr };
            ((len.saturating_add(ADDRESS_CLASS_BITS), key), *class)
        });
        let by_prefix = tables.rules.iter().filter(|(prefix, _)| prefix.is_by_prefix());
        let rules = by_prefix.map(|(prefix, rule)| {
            let key = rule_key(prefix, half);
            ((key.prefix_len(), key.data()), *rule)
        });
        let peer_rules = tables
            .peers()
            .filter_map(|peer| Some((peer_rules_key(peer, half), tables.peer_rules(peer)?)));
        PolicyMaps {
            state: PolicyState {
                half,
                enforced: tables.enforced(),
            },
            pods: ingress
                .chain(pods(&tables.egress_pods, DIRECTION_EGRESS))
                .collect(),
            unselected: unselected
                .map(|(number, addr)| (half_slot(*number, half), *addr))
                .collect(),
            identities: identities.collect(),
            exporters: exporters.collect(),
            address_classes: classes.collect(),
            peer_rules: peer_rules.collect(),
            rules: rules.collect(),
            ..PolicyMaps::default()
        }
    }

    /// The tables of a half.
    fn half(&self, half: u32) -> &PolicyTables {
        let [first, second] = &self.tables;
        if half == 0 { first } else { second }
    }

    /// Number of entries of a map in both halves.
    fn count(&self, of_half: fn(&PolicyTables) -> usize) -> usize {
        let [first, second] = &self.tables;
        of_half(first).saturating_add(of_half(second))
    }

    /// The half that programs do not use, and its tables.
    fn spare(&mut self) -> (u32, &mut Arc<PolicyTables>) {
        let [first, second] = &mut self.tables;
        if self.half == 0 { (1, second) } else { (0, first) }
    }

    /// Number of entries of both halves.
    pub(super) fn len(&self) -> usize {
        self.count(PolicyTables::len)
    }
}

impl PinnedPolicyMaps {
    /// Opens the maps pinned in `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            state: open(dir, abi::POLICY_STATE)?,
            pods: open(dir, abi::POLICY_PODS)?,
            unselected: open(dir, abi::UNSELECTED_PODS)?,
            identities: open(dir, abi::IDENTITIES)?,
            exporters: open(dir, abi::EXPORTERS)?,
            address_classes: open(dir, abi::ADDRESS_CLASSES)?,
            peer_rules: open(dir, abi::PEER_RULES)?,
            rules: open(dir, abi::POLICY_RULES)?,
            flows: open(dir, abi::POLICY_FLOWS)?,
            counters: open(dir, abi::RULE_COUNTERS)?,
        })
    }

    /// Reads every entry.
    pub(super) fn read(&self) -> Result<PolicyContents, MapsError> {
        let state = self
            .state
            .get(&0, 0)
            .map_err(map_error(abi::POLICY_STATE, "read"))?;
        let mut tables: [PolicyTables; HALVES] = Default::default();
        for entry in batch::entries(&self.pods) {
            let (key, pod) = entry.map_err(map_error(abi::POLICY_PODS, "read"))?;
            let tables = of(&mut tables, key.half.into());
            let pods = if key.direction == DIRECTION_EGRESS {
                &mut tables.egress_pods
            } else {
                &mut tables.pods
            };
            if pod.is_unselected() {
                tables.unselected.insert(key.addr);
            } else {
                pods.insert(key.addr, pod);
            }
        }
        for entry in self.unselected_slots() {
            let ((number, half), addr) = entry.map_err(map_error(abi::UNSELECTED_PODS, "read"))?;
            of(&mut tables, half).unselected_slots.insert(number, addr);
        }
        for entry in self.known_identities(self.identities.len()) {
            let ((number, half), identity) = entry.map_err(map_error(abi::IDENTITIES, "read"))?;
            of(&mut tables, half).identities.insert(number, identity);
        }
        for entry in batch::entries(&self.exporters) {
            let (ExporterKey { cluster, set, half }, _) = entry.map_err(map_error(abi::EXPORTERS, "read"))?;
            of(&mut tables, half).exporters.insert((set, cluster));
        }
        for entry in batch::entries(&self.address_classes) {
            let (key, class) = entry.map_err(map_error(abi::ADDRESS_CLASSES, "read"))?;
            let (len, AddressClassKey { half, addr }) = (key.prefix_len(), key.data());
            let len = len.saturating_sub(ADDRESS_CLASS_BITS);
            of(&mut tables, half).address_classes.insert((len, addr), class);
        }
        let mut rules: [Vec<_>; HALVES] = Default::default();
        for entry in batch::entries(&self.peer_rules) {
            let (key, entry) = entry.map_err(map_error(abi::PEER_RULES, "read"))?;
            let (peer, half) = peer_class(&key);
            of(&mut rules, half).extend(peer.rules(&entry));
        }
        for entry in batch::entries(&self.rules) {
            let (key, rule) = entry.map_err(map_error(abi::POLICY_RULES, "read"))?;
            let (prefix, half) = rule_prefix(&key);
            of(&mut rules, half).push((prefix, rule));
        }
        for (tables, mut rules) in tables.iter_mut().zip(rules) {
            // Ascending keys fill the chunks.
            rules.sort_unstable_by_key(|(prefix, _)| *prefix);
            tables.rules = rules.into_iter().collect();
        }
        Ok(PolicyContents {
            half: state.half & 1,
            tables: tables.map(Arc::new),
        })
    }

    /// Replaces the tables in use.
    pub(super) fn set(
        &mut self,
        contents: &mut PolicyContents,
        to: &Arc<PolicyTables>,
    ) -> Result<(), MapsError> {
        let rules: BTreeSet<u32> = to.rules.values().map(|rule| rule.rule).collect();
        let counted = self.counted_rules()?;
        self.add_counters(&rules, &counted)?;
        let (half, spare) = contents.spare();
        let from = Arc::clone(spare);
        let written = self.write_half(half, &from, to);
        if written.is_err() {
            // Some entries are written: the next change compares with the maps.
            let read = self.read()?;
            *contents = read;
            return written;
        }
        *spare = Arc::clone(to);
        let ended = ended_pods(contents.current(), to);
        // After an error here the old tables are in use, so that the next change finds these Pods again.
        self.end_flows(&ended)?;
        let state = PolicyState {
            half,
            enforced: to.enforced(),
        };
        self.state
            .set(0, state, 0)
            .map_err(map_error(abi::POLICY_STATE, "write"))?;
        contents.half = half;
        // The old tables have let packets to these addresses pass until now.
        self.end_flows(&ended)?;
        self.remove_counters(counted.difference(&rules))
    }

    /// Removes the flows of Pods that have ended: they would pass to the next Pod with the address.
    fn end_flows(&mut self, pods: &BTreeSet<Addr>) -> Result<(), MapsError> {
        if pods.is_empty() {
            return Ok(());
        }
        let mut ended = Vec::new();
        for entry in batch::entries(&self.flows) {
            let (key, _) = entry.map_err(map_error(abi::POLICY_FLOWS, "read"))?;
            if pods.contains(&key.pod) {
                ended.push(key);
            }
        }
        for key in ended {
            ignore_missing(self.flows.remove(&key)).map_err(map_error(abi::POLICY_FLOWS, "write"))?;
        }
        Ok(())
    }

    /// Creates the counters of rules that are not `counted`, as many as the map has room for.
    fn add_counters(&mut self, rules: &BTreeSet<u32>, counted: &BTreeSet<u32>) -> Result<(), MapsError> {
        let capacity = usize::try_from(abi::MAX_RULE_COUNTERS).unwrap_or(usize::MAX);
        let room = capacity.saturating_sub(counted.len());
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error);
        let add = |cpus| {
            for rule in rules.difference(counted).take(room) {
                let zeros = PerCpuValues::try_from(vec![RuleCounter::default(); cpus])?;
                self.counters.insert(rule, zeros, 0)?;
            }
            Ok(())
        };
        cpus.map_err(MapError::from)
            .and_then(add)
            .map_err(map_error(abi::RULE_COUNTERS, "write"))
    }

    /// Removes the counters of these rules.
    fn remove_counters<'r>(&mut self, rules: impl Iterator<Item = &'r u32>) -> Result<(), MapsError> {
        for rule in rules {
            ignore_missing(self.counters.remove(rule)).map_err(map_error(abi::RULE_COUNTERS, "write"))?;
        }
        Ok(())
    }

    /// The rules with a counter.
    fn counted_rules(&self) -> Result<BTreeSet<u32>, MapsError> {
        let keys = self.counters.keys().collect::<Result<_, _>>();
        keys.map_err(map_error(abi::RULE_COUNTERS, "read"))
    }

    fn write_half(&mut self, half: u32, from: &PolicyTables, to: &PolicyTables) -> Result<(), MapsError> {
        let (from_ingress, to_ingress) = (ingress(from), ingress(to));
        let ingress = changes(&from_ingress, &to_ingress).map(|change| (DIRECTION_INGRESS, change));
        let egress = changes(&from.egress_pods, &to.egress_pods).map(|change| (DIRECTION_EGRESS, change));
        for (direction, (addr, pod)) in ingress.chain(egress) {
            let key = PolicyPodKey {
                addr: *addr,
                half: u16::from(half != 0),
                direction,
            };
            match pod {
                Some(pod) => self.pods.insert(key, pod, 0),
                None => ignore_missing(self.pods.remove(&key)),
            }
            .map_err(map_error(abi::POLICY_PODS, "write"))?;
        }
        for (number, addr) in changes(&from.unselected_slots, &to.unselected_slots) {
            self.unselected
                .set(half_slot(*number, half), addr.unwrap_or_default(), 0)
                .map_err(map_error(abi::UNSELECTED_PODS, "write"))?;
        }
        for (number, identity) in changes(&from.identities, &to.identities) {
            self.identities
                .set(half_slot(*number, half), identity.unwrap_or_default(), 0)
                .map_err(map_error(abi::IDENTITIES, "write"))?;
        }
        for removed in from.exporters.difference(&to.exporters) {
            let key = exporter_key(*removed, half);
            ignore_missing(self.exporters.remove(&key)).map_err(map_error(abi::EXPORTERS, "write"))?;
        }
        for added in to.exporters.difference(&from.exporters) {
            self.exporters
                .insert(exporter_key(*added, half), 1, 0)
                .map_err(map_error(abi::EXPORTERS, "write"))?;
        }
        for ((len, addr), class) in changes(&from.address_classes, &to.address_classes) {
            let key = AddressClassKey { half, addr: *addr };
            let key = Key::new(len.saturating_add(ADDRESS_CLASS_BITS), key);
            match class {
                Some(class) => self.address_classes.insert(&key, class, 0),
                None => ignore_missing(self.address_classes.remove(&key)),
            }
            .map_err(map_error(abi::ADDRESS_CLASSES, "write"))?;
        }
        self.write_peer_rules(half, from, to)?;
        let changes = rule_changes(&from.rules, &to.rules);
        for (prefix, rule) in changes.filter(|(prefix, _)| prefix.is_by_prefix()) {
            let key = rule_key(prefix, half);
            match rule {
                Some(rule) => self.rules.insert(&key, rule, 0),
                None => ignore_missing(self.rules.remove(&key)),
            }
            .map_err(map_error(abi::POLICY_RULES, "write"))?;
        }
        Ok(())
    }

    /// Writes the entries with a changed rule. Removed ones are first: the map has room for two halves.
    fn write_peer_rules(
        &mut self,
        half: u32,
        from: &PolicyTables,
        to: &PolicyTables,
    ) -> Result<(), MapsError> {
        let changes = from.rules.changes(&to.rules);
        let mut peers: Vec<PeerClass> = changes
            .filter(|prefix| !prefix.is_by_prefix())
            .map(|prefix| prefix.peer)
            .collect();
        peers.dedup();
        let (kept, removed): (Vec<_>, Vec<_>) = peers.into_iter().partition(|peer| to.has_rules(*peer));
        for peer in removed.into_iter().chain(kept) {
            let key = peer_rules_key(peer, half);
            match to.peer_rules(peer) {
                Some(entry) => self.peer_rules.insert(key, entry, 0),
                None => ignore_missing(self.peer_rules.remove(&key)),
            }
            .map_err(map_error(abi::PEER_RULES, "write"))?;
        }
        Ok(())
    }
}

/// The addresses of selected Pods that another Pod has, or no selected one.
fn ended_pods(from: &PolicyTables, to: &PolicyTables) -> BTreeSet<Addr> {
    let has = |addr: &Addr, instance| {
        let pods = [to.pods.get(addr), to.egress_pods.get(addr)];
        pods.into_iter().flatten().any(|pod| pod.instance == instance)
    };
    let pods = from.pods.iter().chain(&from.egress_pods);
    pods.filter(|(addr, pod)| !has(addr, pod.instance))
        .map(|(addr, _)| *addr)
        .collect()
}

/// The Pods in `mc_policy_pods` for ingress.
fn ingress(tables: &PolicyTables) -> BTreeMap<Addr, PolicyPod> {
    let others = tables
        .unselected
        .iter()
        .map(|addr| (*addr, PolicyPod::UNSELECTED));
    others
        .chain(tables.pods.iter().map(|(addr, pod)| (*addr, *pod)))
        .collect()
}

/// The value of a half.
fn of<T>(halves: &mut [T; HALVES], half: u32) -> &mut T {
    let [first, second] = halves;
    if half == 0 { first } else { second }
}

/// The keys of another value, with the new one.
fn changes<'m, K: Ord, V: PartialEq + Copy>(
    from: &'m BTreeMap<K, V>,
    to: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = (&'m K, Option<V>)> {
    let removed = from
        .keys()
        .filter(|key| !to.contains_key(key))
        .map(|key| (key, None));
    let changed = to.iter().filter(|(key, value)| from.get(key) != Some(value));
    removed.chain(changed.map(|(key, value)| (key, Some(*value))))
}

/// The prefixes of another rule, with the new one. Removed ones are first: a map has room for two halves.
fn rule_changes<'m>(
    from: &'m SharedMap<RulePrefix, Rule>,
    to: &'m SharedMap<RulePrefix, Rule>,
) -> impl Iterator<Item = (&'m RulePrefix, Option<Rule>)> {
    let removed = from
        .changes(to)
        .filter(|prefix| !to.contains_key(prefix))
        .map(|prefix| (prefix, None));
    let changed = from
        .changes(to)
        .filter_map(|prefix| Some((prefix, Some(*to.get(prefix)?))));
    removed.chain(changed)
}

fn exporter_key((set, cluster): (u32, u64), half: u32) -> ExporterKey {
    ExporterKey { cluster, set, half }
}

fn peer_rules_key(peer: PeerClass, half: u32) -> PeerRulesKey {
    PeerRulesKey {
        set: peer.set,
        class: peer.class,
        half: u8::from(half != 0),
        dimension: peer.dimension,
        proto: peer.proto,
        pad: 0,
    }
}

fn peer_class(key: &PeerRulesKey) -> (PeerClass, u32) {
    let peer = PeerClass {
        set: key.set,
        dimension: key.dimension,
        class: key.class,
        proto: key.proto,
    };
    (peer, key.half.into())
}

fn rule_key(prefix: &RulePrefix, half: u32) -> Key<RuleKey> {
    let data = RuleKey {
        peer: peer_rules_key(prefix.peer, half),
        pad_to_port: 0,
        port: prefix.port.to_be_bytes(),
    };
    Key::new(RULE_BITS.saturating_add(prefix.bits.into()), data)
}

fn rule_prefix(key: &Key<RuleKey>) -> (RulePrefix, u32) {
    let data = key.data();
    let (peer, half) = peer_class(&data.peer);
    let prefix = RulePrefix {
        peer,
        port: u16::from_be_bytes(data.port),
        bits: u8::try_from(key.prefix_len().saturating_sub(RULE_BITS)).unwrap_or(u8::MAX),
    };
    (prefix, half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_ends_with_its_instance_or_without_rules() {
        let addr = |last| [last; 16];
        let pod = |set, instance| PolicyPod {
            set,
            instance,
            ..PolicyPod::default()
        };
        let from = PolicyTables {
            pods: [(addr(1), pod(1, 1)), (addr(2), pod(1, 2)), (addr(3), pod(1, 3))].into(),
            egress_pods: [(addr(4), pod(1, 4)), (addr(5), pod(1, 5))].into(),
            ..PolicyTables::default()
        };
        let to = PolicyTables {
            // Another set, another Pod, and a Pod that only rules for ingress select any more.
            pods: [(addr(1), pod(2, 1)), (addr(2), pod(1, 7)), (addr(4), pod(1, 4))].into(),
            egress_pods: [(addr(6), pod(1, 6))].into(),
            unselected: [addr(3)].into(),
            ..PolicyTables::default()
        };
        assert_eq!(ended_pods(&from, &to), [addr(2), addr(3), addr(5)].into());
        assert_eq!(ended_pods(&from, &from), BTreeSet::new());
    }

    #[test]
    fn a_rule_key_has_all_fields_of_its_prefix() {
        let prefix = RulePrefix {
            peer: PeerClass {
                set: 7,
                class: 9,
                dimension: 1,
                proto: 17,
            },
            port: 0x1234,
            bits: 12,
        };
        for half in [0, 1] {
            assert_eq!(rule_prefix(&rule_key(&prefix, half)), (prefix, half));
            assert_eq!(
                peer_class(&peer_rules_key(prefix.peer, half)),
                (prefix.peer, half)
            );
        }
    }

    #[test]
    fn only_changed_entries_are_written() {
        let map = |entries: &[(u32, u32)]| entries.iter().copied().collect::<BTreeMap<_, _>>();
        let (from, to) = (map(&[(1, 1), (2, 2), (3, 3)]), map(&[(2, 2), (3, 4), (5, 5)]));
        let changes: Vec<_> = changes(&from, &to).collect();
        assert_eq!(changes, [(&1, None), (&3, Some(4)), (&5, Some(5))]);
    }

    #[test]
    fn removed_rules_are_the_first_changes() {
        let prefix = |set| RulePrefix {
            peer: PeerClass {
                set,
                ..PeerClass::default()
            },
            ..RulePrefix::default()
        };
        let map = |entries: &[(u32, u32)]| -> SharedMap<_, _> {
            let entry = |(set, rule): &(u32, u32)| {
                let rule = Rule {
                    rule: *rule,
                    ..Rule::default()
                };
                (prefix(*set), rule)
            };
            entries.iter().map(entry).collect()
        };
        let (from, to) = (map(&[(2, 2), (3, 3), (7, 7)]), map(&[(1, 1), (2, 2), (3, 4)]));
        let changes =
            rule_changes(&from, &to).map(|(prefix, rule)| (prefix.peer.set, rule.map(|rule| rule.rule)));
        let changes: Vec<_> = changes.collect();
        assert_eq!(changes, [(7, None), (1, Some(1)), (3, Some(4))]);
    }
}
