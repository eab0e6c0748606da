//! The entries of the maps that the agent writes.

use std::collections::BTreeMap;

use mc_gateway_common::abi::{self, Addr, GROUP_NEXT_HOPS};

use crate::plan::ServiceMaps;
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
}

/// Slots of a group's next hops.
pub(crate) fn nexthop_slots(group: &abi::NextHopGroup) -> impl Iterator<Item = u32> {
    let n = usize::try_from(group.len).unwrap_or(GROUP_NEXT_HOPS);
    group.next_hops.into_iter().take(n)
}
