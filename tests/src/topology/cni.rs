//! The masquerading half of the regular nodes' CNI.

use anyhow::{Context as _, Result};

use super::{
    Topology,
    plan::{Cluster, Place},
};

/// What the CNI of a regular node masquerades, that is, which Pods' packets get the node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// Nothing; there is no NAT on the node at all.
    Off,
    /// Packets that leave the cluster, as CNIs do by default: cross-cluster packets, too, unless something
    /// keeps the rule away from them.
    LeavingCluster,
    /// Packets to neither of the two clusters: as an administrator sets it up where they are routed plainly.
    LeavingBoth,
}

/// The nftables rule set of a cluster's regular node.
pub(super) fn masquerade_rules(cluster: Cluster, masquerade: Masquerade) -> Option<String> {
    let mut kept = vec![cluster.pod_cidr().to_string(), "224.0.0.0/4".to_owned()];
    match masquerade {
        Masquerade::Off => return None,
        Masquerade::LeavingCluster => {}
        Masquerade::LeavingBoth => kept.push(cluster.other().pod_cidr().to_string()),
    }
    Some(format!(
        "\
table ip cni {{
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {} ip daddr != {{ {} }} counter masquerade
    }}
}}
",
        cluster.node_pod_cidr(),
        kept.join(", ")
    ))
}

impl Topology {
    /// Changes what the CNI of the regular nodes masquerades; its counters start again.
    pub fn set_masquerade(&mut self, masquerade: Masquerade) -> Result<()> {
        for cluster in Cluster::ALL {
            // Declared first so that deleting it works whether it is there or not.
            let new = masquerade_rules(cluster, masquerade).unwrap_or_default();
            self.netns(cluster.node())
                .nft(&format!("table ip cni\ndelete table ip cni\n{new}"))?;
        }
        self.options.masquerade = masquerade;
        Ok(())
    }

    /// Connections the CNI's masquerade rule of a regular node has counted. Only the first packet of a
    /// connection meets a NAT rule.
    pub fn masqueraded(&self, node: Place) -> Result<u64> {
        let rules = self
            .netns(node)
            .run("nft", ["list", "chain", "ip", "cni", "postrouting"])?;
        counted(&rules).with_context(|| format!("no counter in `{rules}`"))
    }
}

/// The first `counter packets N` of a listing.
fn counted(rules: &str) -> Option<u64> {
    let (_, rest) = rules.split_once("counter packets ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_found_in_a_listing() {
        assert_eq!(
            counted("ip saddr 10.0.0.0/8 counter packets 42 bytes 84 masquerade"),
            Some(42)
        );
        assert_eq!(counted("nothing"), None);
    }

    #[test]
    fn only_plain_routing_exempts_the_other_cluster() {
        let exempts = |masquerade| {
            masquerade_rules(Cluster::East, masquerade).map(|rules| rules.contains("10.12.0.0/16"))
        };
        assert_eq!(exempts(Masquerade::Off), None);
        assert_eq!(exempts(Masquerade::LeavingCluster), Some(false));
        assert_eq!(exempts(Masquerade::LeavingBoth), Some(true));
    }
}
