//! Prefixes of other clusters that this node routes already.
//!
//! *Guarantees*: an established prefix keeps its cluster while a ClusterInfoImport states it. A Node, Gateway, Pod or
//! cluster that appears later with an address in it is rejected instead: otherwise the author of one such object
//! ends the routing of the prefix, and its packets leave unencapsulated.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::{Addr, CLUSTER_LOCAL};

use super::prefix_ownership::PrefixOwners;
use crate::cidr::{abi_prefix_len, parse_prefix, split_list, to_abi_addr};
use crate::ids::cluster_id;
use crate::objects::RemoteCluster;

/// Prefixes in the maps by cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Established {
    cluster_id_key: [u8; 16],
    prefixes: BTreeSet<(u64, u32, Addr)>,
}

impl Established {
    /// From the entries of the prefix map and the key of their cluster IDs: cluster, length in bits (96 and
    /// more for IPv4), network address. Those of the local cluster are left out.
    pub fn new(cluster_id_key: [u8; 16], prefixes: impl IntoIterator<Item = (u64, u32, Addr)>) -> Self {
        let remote = prefixes
            .into_iter()
            .filter(|(cluster, ..)| *cluster != CLUSTER_LOCAL);
        Self {
            cluster_id_key,
            prefixes: remote.collect(),
        }
    }

    /// The established prefixes that a cluster still states.
    pub(super) fn of_cluster(&self, info: &RemoteCluster) -> BTreeSet<IpNet> {
        let id = cluster_id(&self.cluster_id_key, &info.cluster_id);
        let services = split_list(&info.service_cidr);
        let stated = services.chain(info.pod_cidrs.iter().map(String::as_str));
        stated
            .filter_map(|text| parse_prefix(text).ok())
            .filter(|net| {
                let key = (id, abi_prefix_len(*net), to_abi_addr(net.network()));
                self.prefixes.contains(&key)
            })
            .collect()
    }

    /// The owners of the established prefixes that these clusters still state. Two objects of one cluster ID: the first
    /// one is the owner.
    pub(super) fn owners<'o>(
        remotes: impl IntoIterator<Item = (&'o RemoteCluster, &'o BTreeSet<IpNet>)>,
    ) -> PrefixOwners {
        let mut owners = PrefixOwners::default();
        for (info, established) in remotes {
            let object: Arc<str> = info.object().into();
            for net in established.iter().copied() {
                if owners.conflict(net, &object).is_none() {
                    owners.assign(net, &object);
                }
            }
        }
        owners
    }
}
