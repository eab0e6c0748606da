//! The entries of the maps that the agent writes.

use std::collections::BTreeMap;

use mc_gateway_common::abi::{self, Addr};

use crate::plan::ServiceMaps;
use crate::resolved::PrefixKey;

/// The entries of all these maps at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapContents {
    /// `mc_config`.
    pub config: abi::Config,
    /// `mc_prefixes`.
    pub prefixes: BTreeMap<PrefixKey, abi::Prefix>,
    /// Slots of `mc_groups` that are not all zero.
    pub groups: BTreeMap<u32, abi::Group>,
    /// Slots of `mc_members` that are not all zero.
    pub next_hops: BTreeMap<u32, abi::Member>,
    /// `mc_peers`.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// The Service maps.
    pub services: ServiceMaps,
}
