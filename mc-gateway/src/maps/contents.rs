//! The entries of the maps that the agent writes.

use std::collections::BTreeMap;

use mc_gateway_common::abi::{self, Addr, GROUP_NEXT_HOPS, policy, service};

use super::policy::PolicyContents;
use crate::plan::ServiceMaps;
use crate::policy_tables::PolicyTables;
use crate::resolved::PrefixKey;
use crate::shared_map::SharedMap;

/// The entries of all these maps at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapContents {
    /// `mc_config`.
    pub config: abi::Config,
    /// `mc_prefixes`.
    pub prefixes: SharedMap<PrefixKey, abi::Prefix>,
    /// Slots of `mc_nh_groups` that are not all zero.
    pub groups: BTreeMap<u32, abi::NextHopGroup>,
    /// Slots of `mc_nexthops` that are not all zero.
    pub next_hops: BTreeMap<u32, abi::NextHop>,
    /// `mc_peers`.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// The Service maps.
    pub services: ServiceMaps,
    /// The policy maps.
    pub policies: PolicyContents,
}

impl MapContents {
    /// Name, entries and capacity of each map. A policy map has the entries of both halves.
    #[must_use]
    pub fn usage(&self) -> Vec<(&'static str, usize, u32)> {
        let [first, second] = &self.policies.tables;
        let both = |entries: fn(&PolicyTables) -> usize| entries(first).saturating_add(entries(second));
        vec![
            (abi::PREFIXES, self.prefixes.len(), abi::MAX_PREFIXES),
            (abi::NEXT_HOP_GROUPS, self.groups.len(), abi::MAX_NEXT_HOP_GROUPS),
            (abi::NEXT_HOPS, self.next_hops.len(), abi::MAX_NEXT_HOPS),
            (abi::PEERS, self.peers.len(), abi::MAX_PEERS),
            (
                service::SERVICES,
                self.services.services.len(),
                service::MAX_SERVICES,
            ),
            (
                service::BACKENDS,
                self.services.backends.len(),
                service::MAX_BACKENDS,
            ),
            (
                policy::POLICY_PODS,
                both(PolicyTables::pods),
                policy::MAX_POLICY_PODS,
            ),
            (
                policy::IDENTITIES,
                both(|tables| tables.identities.len()),
                policy::IDENTITY_SLOTS,
            ),
            (
                policy::EXPORTERS,
                both(|tables| tables.exporters.len()),
                policy::MAX_EXPORTERS,
            ),
            (
                policy::ADDRESS_CLASSES,
                both(|tables| tables.address_classes.len()),
                policy::MAX_ADDRESS_CLASSES,
            ),
            (
                policy::PEER_RULES,
                both(|tables| tables.peers().count()),
                policy::MAX_PEER_RULES,
            ),
            (
                policy::POLICY_RULES,
                both(PolicyTables::rules_by_prefix),
                policy::MAX_POLICY_RULES,
            ),
        ]
    }
}

/// Slots of a group's next hops.
pub(crate) fn nexthop_slots(group: &abi::NextHopGroup) -> impl Iterator<Item = u32> {
    let n = usize::try_from(group.len).unwrap_or(GROUP_NEXT_HOPS);
    group.next_hops.into_iter().take(n)
}
