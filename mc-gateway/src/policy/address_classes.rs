//! Classes of addresses that are in the same blocks.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use mc_api::network_policy::IpBlock;

use super::numbers::Numbers;
use super::tables::UNKNOWN_CLASS;

/// The classes.
#[derive(Debug, Default)]
pub(super) struct AddressClasses {
    /// By prefix; the longest one applies.
    pub(super) by_prefix: BTreeMap<IpNet, u32>,
    /// The classes of addresses in a block, by its number.
    pub(super) by_block: BTreeMap<u32, Vec<u32>>,
}

// === impl AddressClasses ===

impl AddressClasses {
    pub(super) fn new(blocks: &BTreeMap<&IpBlock, u32>) -> Self {
        let prefixes: BTreeSet<IpNet> = blocks
            .keys()
            .flat_map(|block| [block.cidr].into_iter().chain(block.except.iter().copied()))
            .collect();
        let mut classes = Numbers::beginning_with(Vec::new(), UNKNOWN_CLASS);
        let mut by_prefix = BTreeMap::new();
        // The prefixes around the present one; they precede it in the order of prefixes.
        let mut around: Vec<(IpNet, u32)> = Vec::new();
        for prefix in prefixes {
            let containing = blocks.iter().filter(|(block, _)| contains(block, &prefix));
            let class = classes.number(containing.map(|(_, number)| *number).collect());
            while around.pop_if(|(outer, _)| !outer.contains(&prefix)).is_some() {}
            let outer = around.last().map_or(UNKNOWN_CLASS, |(_, class)| *class);
            if class != outer {
                by_prefix.insert(prefix, class);
            }
            around.push((prefix, class));
        }
        Self {
            by_prefix,
            by_block: classes.by_member(),
        }
    }
}

/// Whether a block contains all addresses of a prefix, except those in longer prefixes with their own class.
fn contains(block: &IpBlock, prefix: &IpNet) -> bool {
    block.cidr.contains(prefix) && !block.except.iter().any(|except| except.contains(prefix))
}
