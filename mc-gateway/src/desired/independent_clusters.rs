//! Remote clusters of the last computation, each of which is as if it were alone. Pure.
//!
//! While no two statements exclude each other, the order of the clusters and the established prefixes decide about
//! nothing. So a changed cluster is validated alone and compared with the prefixes of all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::CLUSTER_LOCAL;

use super::forward_table::{ForwardTable, Forwarded};
use super::local::{LocalCluster, first_within};
use super::prefix_ownership::PrefixOwners;
use super::remote::{ReadCluster, Reader, Remotes, seniority};
use super::{Established, LocalNode};
use crate::cidr::{parse_address, parse_prefix, split_list};
use crate::objects::Objects;

/// Validated clusters without conflicts.
#[derive(Clone, Debug)]
pub(super) struct IndependentClusters {
    me: LocalNode,
    by_name: BTreeMap<String, ReadCluster>,
}

impl IndependentClusters {
    /// The clusters that are read from `objects`; none if statements exclude each other. `table` has their prefixes.
    /// Those of different clusters are disjoint.
    pub(super) fn new(
        objects: &Objects,
        me: &LocalNode,
        remotes: &Remotes,
        table: &ForwardTable,
    ) -> Option<Self> {
        // An established prefix belongs to a cluster without an ID as well.
        let unnamed = objects.remotes.iter().any(|info| info.cluster_id.is_empty());
        let valid = remotes.clusters.iter().filter(|read| read.remote.is_some());
        if remotes.collide || unnamed || valid.count() != table.clusters().len() {
            return None;
        }
        let mut gateways = remotes.gateway_owners.keys();
        let within = |net| table.overlaps_other(net, CLUSTER_LOCAL);
        if gateways.any(|addr| within((*addr).into())) {
            return None;
        }
        let excludes = |net| within(net) || first_within(&remotes.gateway_owners, net).is_some();
        if local_statements(objects).any(excludes) {
            return None;
        }
        let named = |read: &ReadCluster| (read.info.name.clone(), read.clone());
        let by_name: BTreeMap<String, ReadCluster> = remotes.clusters.iter().map(named).collect();
        let unique = by_name.len() == objects.remotes.len();
        unique.then(|| Self {
            me: me.clone(),
            by_name,
        })
    }

    /// The clusters of changed objects, and their prefixes; none if statements may exclude each other. `table` has the
    /// prefixes of the known clusters, and `cluster` is read without established prefixes.
    pub(super) fn update(
        &self,
        objects: &Objects,
        me: &LocalNode,
        established: &Established,
        cluster: &LocalCluster,
        table: &ForwardTable,
    ) -> Option<(Self, Remotes, ForwardTable)> {
        if self.me != *me {
            return None;
        }
        let mut reader = Reader::new(cluster, PrefixOwners::default(), me);
        let mut changed = Vec::new();
        for info in &objects.remotes {
            match self.by_name.get(&info.name) {
                Some(known) if known.info == *info => reader.adopt(ReadCluster {
                    info: Arc::clone(info),
                    ..known.clone()
                }),
                known => changed.push((info, known)),
            }
        }
        for (info, known) in changed {
            let remote = known.and_then(|known| known.remote.as_ref());
            let same = remote.filter(|remote| remote.cluster_id == info.cluster_id);
            reader.read(info, same.map_or(&[], |remote| &remote.prefixes));
        }
        let mut remotes = reader.remotes;
        sort_by_seniority(&mut remotes, established);
        let mut updated = table.clone();
        updated.update(forwarded(&remotes, table));
        if !updated.is_disjoint(table) {
            return None;
        }
        let known = Self::new(objects, me, &remotes, &updated)?;
        Some((known, remotes, updated))
    }
}

fn sort_by_seniority(remotes: &mut Remotes, established: &Established) {
    let read = std::mem::take(&mut remotes.clusters).into_iter();
    let mut clusters: Vec<(bool, ReadCluster)> = read
        .map(|read| {
            let prefixes = read.remote.as_ref().map_or(&[][..], |remote| &remote.prefixes);
            (established.has_any(&read.info, prefixes), read)
        })
        .collect();
    clusters.sort_by(|(a_established, a), (b_established, b)| {
        seniority(&a.info, *a_established).cmp(&seniority(&b.info, *b_established))
    });
    remotes.clusters = clusters.into_iter().map(|(_, read)| read).collect();
}

/// The valid clusters by ID. The group of a new cluster is not known yet.
fn forwarded(remotes: &Remotes, table: &ForwardTable) -> BTreeMap<u64, Forwarded> {
    let valid = remotes.clusters.iter().filter_map(|read| read.remote.as_ref());
    valid
        .map(|remote| {
            let known = table.clusters().get(&remote.id);
            let forwarded = Forwarded {
                remote: Arc::clone(remote),
                group: known.map_or(0, |known| known.group),
            };
            (remote.id, forwarded)
        })
        .collect()
}

/// All prefixes and addresses that objects of the local cluster state for it. Whether they are accepted is left open.
fn local_statements(objects: &Objects) -> impl Iterator<Item = IpNet> {
    let (nodes, gateways) = (objects.nodes.iter(), objects.gateways.iter());
    let pods = nodes.clone().flat_map(|node| &node.pod_cidrs).map(String::as_str);
    let services = gateways
        .clone()
        .flat_map(|gateway| split_list(&gateway.service_cidr));
    let prefixes = pods.chain(services).filter_map(|text| parse_prefix(text).ok());
    let on_nodes = nodes.flat_map(|node| {
        let assigned = node.host_addresses.iter().map(|(_, text)| text);
        node.internal_ips.iter().chain(assigned)
    });
    let on_gateways = gateways.flat_map(|gateway| [&gateway.gateway_ip, &gateway.internal_ip]);
    let of_pods = objects.pods.iter().flat_map(|pod| &pod.ips);
    let reserved = objects
        .reservations
        .iter()
        .flat_map(|service| &service.cluster_ips);
    let addresses = on_nodes.chain(on_gateways).chain(of_pods).chain(reserved);
    prefixes.chain(addresses.filter_map(|text| Some(parse_address(text).ok()?.into())))
}
