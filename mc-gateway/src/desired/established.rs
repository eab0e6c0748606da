//! Prefixes of other clusters that this node routes already.
//!
//! *Guarantees*: an established prefix keeps its cluster while a ClusterInfoImport states it. A Node, Gateway, Pod or
//! cluster that appears later with an address in it is rejected instead: otherwise the author of one such object
//! ends the routing of the prefix, and its packets leave unencapsulated.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, PrefixKey};

use super::prefix_ownership::PrefixOwners;
use crate::cidr::{abi_prefix_len, parse_prefix, split_list, to_abi_addr};
use crate::ids::cluster_id;
use crate::objects::RemoteCluster;
use crate::shared_map::SharedMap;

/// Prefixes in the maps with their clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Established {
    cluster_id_key: [u8; 16],
    prefixes: SharedMap<PrefixKey, abi::Prefix>,
}

impl Established {
    /// From the key of the cluster IDs and the entries of the prefix map. Those of the local cluster have no effect.
    #[must_use]
    pub const fn new(cluster_id_key: [u8; 16], prefixes: SharedMap<PrefixKey, abi::Prefix>) -> Self {
        Self {
            cluster_id_key,
            prefixes,
        }
    }

    /// Whether one of these prefixes is an established one of the cluster.
    pub(super) fn has_any(&self, info: &RemoteCluster, prefixes: &[IpNet]) -> bool {
        let id = cluster_id(&self.cluster_id_key, &info.cluster_id);
        prefixes.iter().any(|net| self.contains(id, *net))
    }

    /// The established prefixes that a cluster still states.
    pub(super) fn of_cluster(&self, info: &RemoteCluster) -> BTreeSet<IpNet> {
        if self.prefixes.is_empty() {
            return BTreeSet::new();
        }
        let id = cluster_id(&self.cluster_id_key, &info.cluster_id);
        let services = split_list(&info.service_cidr);
        let stated = services.chain(info.pod_cidrs.iter().map(String::as_str));
        stated
            .filter_map(|text| parse_prefix(text).ok())
            .filter(|net| self.contains(id, *net))
            .collect()
    }

    /// Whether a prefix is an established one of the cluster with this ID, which is never that of the local cluster.
    fn contains(&self, id: u64, net: IpNet) -> bool {
        let key = PrefixKey {
            len: abi_prefix_len(net),
            addr: to_abi_addr(net.network()),
        };
        self.prefixes.get(&key).is_some_and(|prefix| prefix.cluster == id)
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
