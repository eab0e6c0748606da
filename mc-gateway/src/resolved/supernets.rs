//! Supernets of the prefixes routed into `mc0`. Pure.
//!
//! *Guarantees*: the supernets cover the addresses of the prefixes and no others, and each of these addresses keeps its
//! route, be it the agent's or a foreign one.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::cidr::max_prefix_len;
use crate::shared_set::SharedSet;

/// Share of changed prefixes from which on all are aggregated again.
const FULL_SHARE: usize = 8;

/// The fewest routes that are equivalent to routes to all prefixes, next to foreign routes of the same table.
///
/// A foreign route inside a supernet takes precedence over it, but not over a longer prefix that the supernet replaces:
/// there the prefixes are split into smaller supernets.
#[derive(Clone, Debug, Default)]
pub(super) struct Supernets {
    prefixes: SharedSet<IpNet>,
    foreign: BTreeSet<IpNet>,
    /// The fewest CIDRs that cover the prefixes and no other address.
    cover: SharedSet<IpNet>,
    routes: SharedSet<IpNet>,
}

impl Supernets {
    /// Changes the routes to those to `prefixes` next to `foreign` routes.
    pub(super) fn update(
        &mut self,
        prefixes: &SharedSet<IpNet>,
        foreign: &BTreeSet<IpNet>,
    ) -> &SharedSet<IpNet> {
        let few = prefixes.len() / FULL_SHARE;
        let changed: Vec<IpNet> = self
            .prefixes
            .changes(prefixes)
            .take(few.saturating_add(1))
            .copied()
            .collect();
        if changed.is_empty() && self.foreign == *foreign {
            return &self.routes;
        }
        if changed.len() > few {
            let all: Vec<IpNet> = prefixes.iter().copied().collect();
            let mut cover = IpNet::aggregate(&all);
            cover.sort_unstable();
            self.cover = cover.into_iter().collect();
        } else {
            for net in changed {
                self.cover_again(net, prefixes);
            }
        }
        self.routes = split(&self.cover, prefixes, foreign);
        self.prefixes = prefixes.clone();
        if self.foreign != *foreign {
            self.foreign.clone_from(foreign);
        }
        &self.routes
    }

    /// Covers the addresses of a prefix that is added or removed.
    fn cover_again(&mut self, net: IpNet, prefixes: &SharedSet<IpNet>) {
        self.uncover(net);
        if supernets_of(net).any(|wide| prefixes.contains(&wide)) {
            self.add(net);
            return;
        }
        let inside: Vec<IpNet> = prefixes.range(subnets(net)).copied().collect();
        for part in IpNet::aggregate(&inside) {
            self.add(part);
        }
    }

    /// Removes the addresses of `net` from the cover.
    fn uncover(&mut self, net: IpNet) {
        let Some(around) = supernets_of(net).find(|wide| self.cover.contains(wide)) else {
            let inside: Vec<IpNet> = self.cover.range(subnets(net)).copied().collect();
            for part in inside {
                self.cover.remove(&part);
            }
            return;
        };
        self.cover.remove(&around);
        // The other half on each length between both stays.
        for half in supernets_of(net).take_while(|half| *half != around) {
            self.cover.extend(sibling(half));
        }
    }

    /// Adds `net`, whose addresses are not covered, to the cover.
    fn add(&mut self, net: IpNet) {
        let mut joined = net;
        while let Some(half) = sibling(joined).filter(|half| self.cover.remove(half)) {
            joined = half.supernet().unwrap_or(half);
        }
        self.cover.insert(joined);
    }
}

/// The routes that replace the CIDRs of a cover next to foreign routes.
fn split(
    cover: &SharedSet<IpNet>,
    prefixes: &SharedSet<IpNet>,
    foreign: &BTreeSet<IpNet>,
) -> SharedSet<IpNet> {
    let mut routes = cover.clone();
    let is_split = |net: &&IpNet| foreign.range(subnets(**net)).next().is_some();
    let affected = (!foreign.is_empty()).then(|| cover.iter().filter(is_split).copied().collect());
    let mut pending: Vec<IpNet> = affected.unwrap_or_default();
    for net in &pending {
        routes.remove(net);
    }
    while let Some(net) = pending.pop() {
        if !is_split(&&net) {
            routes.insert(net);
        } else if prefixes.contains(&net) {
            routes.extend(prefixes.range(subnets(net)).copied());
        } else if let Ok(halves) = net.subnets(net.prefix_len().saturating_add(1)) {
            // `net` is no prefix itself, so each prefix is in one half.
            pending.extend(halves);
        }
    }
    routes
}

/// The prefix itself and all that contain it, from long to short.
fn supernets_of(net: IpNet) -> impl Iterator<Item = IpNet> {
    std::iter::successors(Some(net), IpNet::supernet)
}

/// The other half of the supernet.
fn sibling(net: IpNet) -> Option<IpNet> {
    let mut halves = net.supernet()?.subnets(net.prefix_len()).ok()?;
    halves.find(|half| *half != net)
}

/// The range of a prefix and all subnets of it in a sorted set.
fn subnets(net: IpNet) -> RangeInclusive<IpNet> {
    let last = net.broadcast();
    net.trunc()..=IpNet::new_assert(last, max_prefix_len(last))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// The supernets without earlier ones.
    fn supernets(prefixes: &BTreeSet<IpNet>, foreign: &BTreeSet<IpNet>) -> BTreeSet<IpNet> {
        let prefixes = prefixes.iter().copied().collect();
        let mut supernets = Supernets::default();
        supernets.update(&prefixes, foreign).iter().copied().collect()
    }

    fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn joined(prefixes: &[&str], foreign: &[&str]) -> Vec<String> {
        let routes = supernets(&nets(prefixes), &nets(foreign));
        routes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn adjacent_and_contained_prefixes_become_one_route() {
        assert_eq!(
            joined(&["10.2.0.0/16", "10.3.0.0/16", "10.3.7.0/24"], &[]),
            ["10.2.0.0/15"]
        );
        // Adjacent, but not a CIDR together.
        assert_eq!(
            joined(&["10.1.0.0/16", "10.2.0.0/16"], &[]),
            ["10.1.0.0/16", "10.2.0.0/16"]
        );
        assert_eq!(
            joined(&["10.2.0.0/16", "fd00:0:2::/48", "fd00:0:3::/48"], &[]),
            ["10.2.0.0/16", "fd00:0:2::/47"]
        );
        assert_eq!(joined(&[], &[]), Vec::<String>::new());
    }

    #[test]
    fn a_foreign_route_never_takes_precedence_over_a_prefix() {
        let four = ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"];
        assert_eq!(joined(&four, &[]), ["10.0.0.0/14"]);
        // Of the same length as the supernet, or between its length and that of the prefixes.
        assert_eq!(joined(&four, &["10.0.0.0/14"]), ["10.0.0.0/15", "10.2.0.0/15"]);
        assert_eq!(
            joined(&four, &["10.2.0.0/15"]),
            ["10.0.0.0/15", "10.2.0.0/16", "10.3.0.0/16"]
        );
        // Shorter than the supernet.
        assert_eq!(
            joined(&four, &["10.0.0.0/8", "0.0.0.0/0", "::/0"]),
            ["10.0.0.0/14"]
        );
    }

    #[test]
    fn prefixes_around_a_foreign_route_keep_their_routes() {
        let prefixes = ["10.2.0.0/16", "10.2.3.0/24", "10.3.0.0/16"];
        assert_eq!(
            joined(&prefixes, &["10.2.0.0/17"]),
            ["10.2.0.0/16", "10.2.3.0/24", "10.3.0.0/16"]
        );
    }

    /// The owner of an address among routes of the device and foreign ones: the longest prefix wins.
    fn is_ours(addr: IpAddr, ours: &BTreeSet<IpNet>, foreign: &BTreeSet<IpNet>) -> bool {
        let longest = |nets: &BTreeSet<IpNet>| {
            let covering = nets.iter().filter(|net| net.contains(&addr));
            covering.map(IpNet::prefix_len).max()
        };
        longest(ours).is_some_and(|ours| longest(foreign).is_none_or(|foreign| ours > foreign))
    }

    /// Prefixes in a range of 256 addresses.
    fn small_nets() -> impl Strategy<Value = BTreeSet<IpNet>> {
        let v4 = (0..=255_u8, 24..=32_u8)
            .prop_map(|(last, len)| IpNet::new_assert(Ipv4Addr::new(10, 0, 0, last).into(), len).trunc());
        let v6 = (0..=255_u16, 120..=128_u8).prop_map(|(last, len)| {
            IpNet::new_assert(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into(), len).trunc()
        });
        prop::collection::btree_set(prop_oneof![v4, v6], 0..40)
    }

    proptest! {
        /// No address changes its route, and none is covered that no prefix covers.
        #[test]
        fn every_address_keeps_its_route(prefixes in small_nets(), foreign in small_nets()) {
            // The agent has no route to a prefix with a foreign route.
            let prefixes: BTreeSet<IpNet> = prefixes.difference(&foreign).copied().collect();
            let routes = supernets(&prefixes, &foreign);
            prop_assert!(routes.len() <= prefixes.len());
            prop_assert!(routes.iter().all(|net| !foreign.contains(net)));
            for last in 0..=255_u8 {
                let v4 = IpAddr::from([10, 0, 0, last]);
                let v6 = IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()));
                for addr in [v4, v6] {
                    let covered = |nets: &BTreeSet<IpNet>| nets.iter().any(|net| net.contains(&addr));
                    prop_assert_eq!(covered(&prefixes), covered(&routes), "{}", addr);
                    prop_assert_eq!(
                        is_ours(addr, &prefixes, &foreign),
                        is_ours(addr, &routes, &foreign),
                        "{}", addr
                    );
                }
            }
        }

        /// Without foreign routes no two routes can be joined.
        #[test]
        fn the_routes_are_the_fewest(prefixes in small_nets()) {
            let routes = supernets(&prefixes, &BTreeSet::new());
            for net in &routes {
                let parent = net.supernet().unwrap();
                let whole = parent.subnets(net.prefix_len()).unwrap().all(|half| routes.contains(&half));
                prop_assert!(!whole && routes.range(subnets(*net)).count() == 1, "{}", net);
            }
        }

        /// After any changes of prefixes and foreign routes the routes are those without earlier ones.
        #[test]
        fn the_routes_do_not_depend_on_earlier_ones(
            all in small_nets(),
            steps in prop::collection::vec((small_nets(), 0_usize..6, small_nets(), prop::bool::weighted(0.3)), 1..8),
        ) {
            let mut prefixes: BTreeSet<IpNet> = all;
            let mut foreign = BTreeSet::new();
            let mut kept = Supernets::default();
            for (nets, count, routes, replaced) in steps {
                for net in nets.iter().take(count) {
                    if !prefixes.remove(net) {
                        prefixes.insert(*net);
                    }
                }
                if replaced {
                    foreign = routes;
                }
                let stated: SharedSet<IpNet> = prefixes.difference(&foreign).copied().collect();
                let mut fresh = Supernets::default();
                prop_assert_eq!(kept.update(&stated, &foreign), fresh.update(&stated, &foreign));
                prop_assert_eq!(&kept.cover, &fresh.cover);
            }
        }
    }
}
