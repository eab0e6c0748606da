//! Prefixes of all remote clusters with their destinations. Pure.
//!
//! *Guarantees*: an update changes the entries of changed clusters only; the others stay shared with the earlier table.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;

use super::PrefixRoute;
use super::remote::Remote;
use crate::shared_map::SharedMap;
use crate::shared_set::SharedSet;

/// A remote cluster with the group that its prefixes are forwarded to.
#[derive(Clone, Debug)]
pub(super) struct Forwarded {
    pub(super) remote: Arc<Remote>,
    /// Group ID.
    pub(super) group: u32,
}

/// The prefixes of remote clusters. Those of different clusters are disjoint, except after an update to others.
#[derive(Clone, Debug, Default)]
pub(super) struct ForwardTable {
    clusters: BTreeMap<u64, Forwarded>,
    prefixes: SharedMap<IpNet, PrefixRoute>,
    routes: SharedSet<IpNet>,
    /// Number of prefixes by family (IPv4: true) and length.
    lengths: BTreeMap<(bool, u8), usize>,
}

impl ForwardTable {
    /// The clusters by ID.
    pub(super) fn clusters(&self) -> &BTreeMap<u64, Forwarded> {
        &self.clusters
    }

    /// The destinations of all prefixes.
    pub(super) fn prefixes(&self) -> &SharedMap<IpNet, PrefixRoute> {
        &self.prefixes
    }

    /// All prefixes.
    pub(super) fn routes(&self) -> &SharedSet<IpNet> {
        &self.routes
    }

    /// Changes the table to these clusters by ID.
    pub(super) fn update(&mut self, clusters: BTreeMap<u64, Forwarded>) {
        let old = std::mem::take(&mut self.clusters);
        // Removed first: another cluster may have the prefix now.
        for (id, known) in &old {
            for net in left_out(known, clusters.get(id)) {
                self.prefixes.remove(&net);
                self.routes.remove(&net);
                let key = (net.addr().is_ipv4(), net.prefix_len());
                let count = self.lengths.entry(key).or_default();
                *count = count.saturating_sub(1);
            }
        }
        self.lengths.retain(|_, count| *count > 0);
        for (id, wanted) in &clusters {
            for net in left_out(wanted, old.get(id)) {
                let route = PrefixRoute {
                    cluster: *id,
                    group: wanted.group,
                    deliver: false,
                };
                self.prefixes.insert(net, route);
                self.routes.insert(net);
                let key = (net.addr().is_ipv4(), net.prefix_len());
                let count = self.lengths.entry(key).or_default();
                *count = count.saturating_add(1);
            }
        }
        self.clusters = clusters;
    }

    /// Whether prefixes of different clusters are disjoint, if those of an `earlier` table are.
    pub(super) fn is_disjoint(&self, earlier: &Self) -> bool {
        let stated = self.clusters.values().map(|known| known.remote.prefixes.len());
        // Otherwise one entry belongs to two clusters.
        let unique = stated.fold(0, usize::saturating_add) == self.prefixes.len();
        unique
            && self.prefixes.changes(&earlier.prefixes).all(|net| {
                let route = self.prefixes.get(net);
                route.is_none_or(|route| !self.overlaps_other(*net, route.cluster))
            })
    }

    /// Whether a prefix of a cluster other than `cluster` shares an address with `net`.
    pub(super) fn overlaps_other(&self, net: IpNet, cluster: u64) -> bool {
        let is_other = |route: &PrefixRoute| route.cluster != cluster;
        let v4 = net.addr().is_ipv4();
        let mut lengths = self.lengths.range((v4, 0)..=(v4, net.prefix_len()));
        let around = lengths.any(|((_, len), _)| {
            let around = IpNet::new(net.addr(), *len).map(|around| around.trunc());
            around.is_ok_and(|around| self.prefixes.get(&around).is_some_and(is_other))
        });
        let inside = self.prefixes.iter_from(&net);
        around
            || inside
                .take_while(|(other, _)| net.contains(*other))
                .any(|(_, route)| is_other(route))
    }
}

/// The prefixes of `of` that have another destination in `other`, or none.
fn left_out<'f>(of: &'f Forwarded, other: Option<&'f Forwarded>) -> impl Iterator<Item = IpNet> + 'f {
    let other = other.filter(|other| other.group == of.group);
    let same = other.is_some_and(|other| Arc::ptr_eq(&of.remote, &other.remote));
    let all: &[IpNet] = if same { &[] } else { &of.remote.prefixes };
    let mut others = other
        .map_or(&[][..], |other| &other.remote.prefixes)
        .iter()
        .peekable();
    all.iter().copied().filter(move |net| {
        while others.next_if(|other| *other < net).is_some() {}
        others.peek() != Some(&net)
    })
}
