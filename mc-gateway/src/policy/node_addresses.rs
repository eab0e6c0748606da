//! The addresses of Nodes that no egress rule distinguishes.
//!
//! A Service with a node port has it at the address of each Node. Taken one by one, a cluster has many pairs of Node,
//! node port and rule.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use mc_api::network_policy::IpBlock;

/// Groups of addresses by their first one. Of an address, either all or none of its group are in each block.
#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    by_first: BTreeMap<IpAddr, Vec<IpAddr>>,
    firsts: Vec<IpAddr>,
}

// === impl NodeAddresses ===

impl NodeAddresses {
    /// The groups of `addrs`. One that is `single` is in no group with others.
    pub(super) fn new<'b>(
        addrs: &[IpAddr],
        single: impl Fn(&IpAddr) -> bool,
        blocks: impl IntoIterator<Item = &'b IpBlock>,
    ) -> Self {
        let addrs: BTreeSet<IpAddr> = addrs.iter().copied().collect();
        let (single, others): (Vec<_>, Vec<_>) = addrs.into_iter().partition(single);
        let (v4, v6) = others.into_iter().partition(IpAddr::is_ipv4);
        let mut shared: Vec<Vec<IpAddr>> = vec![v4, v6];
        for block in blocks {
            let split = shared.into_iter().flat_map(|group| {
                let (inside, outside) = group.into_iter().partition(|addr| block.contains(*addr));
                [inside, outside]
            });
            shared = split.filter(|group: &Vec<IpAddr>| !group.is_empty()).collect();
        }
        let groups = single.into_iter().map(|addr| vec![addr]).chain(shared);
        let by_first: BTreeMap<_, _> = groups
            .filter_map(|group| Some((*group.first()?, group)))
            .collect();
        Self {
            firsts: by_first.keys().copied().collect(),
            by_first,
        }
    }

    /// The first address of each group.
    pub(super) fn firsts(&self) -> &[IpAddr] {
        &self.firsts
    }

    /// The sorted addresses of the groups with these first ones; an address that is none itself.
    pub(super) fn members(&self, firsts: &[IpAddr]) -> Vec<IpAddr> {
        let mut members = Vec::with_capacity(firsts.len());
        for first in firsts {
            match self.by_first.get(first) {
                Some(group) => members.extend_from_slice(group),
                None => members.push(*first),
            }
        }
        members.sort_unstable();
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_in_one_group_unless_a_block_has_some_of_them() {
        let addrs = [
            "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::1", "fd00::2",
        ]
        .map(addr);
        let block = |cidr: &str, except: &[&str]| IpBlock {
            cidr: cidr.parse().unwrap(),
            except: except.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let firsts = |blocks: &[IpBlock]| {
            let nodes = NodeAddresses::new(&addrs, |of| *of == addr("10.0.0.3"), blocks);
            let sizes = nodes.firsts().iter().map(|first| nodes.members(&[*first]).len());
            sizes.collect::<Vec<_>>()
        };
        assert_eq!(firsts(&[]), [3, 1, 2]);
        assert_eq!(firsts(&[block("10.0.0.0/24", &["10.0.0.2/32"])]), [2, 1, 1, 2]);
        assert_eq!(
            firsts(&[block("fd00::2/128", &[]), block("10.0.0.0/8", &[])]),
            [3, 1, 1, 1]
        );
        let nodes = NodeAddresses::new(&addrs, |_| false, &[]);
        let members = nodes.members(&["10.0.0.0", "10.0.0.1", "10.0.0.9"].map(addr));
        let expected = [
            "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.9",
        ];
        assert_eq!(members, expected.map(addr));
    }
}
