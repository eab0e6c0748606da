//! The masquerading half of the regular nodes' CNI.

use anyhow::{Context as _, Result};

use super::{
    Topology,
    plan::{Cluster, Family, Place},
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

/// The nftables table of a cluster's regular node for one family.
pub(super) fn masquerade_rules(cluster: Cluster, family: Family, masquerade: Masquerade) -> Option<String> {
    let (ip, multicast) = match family {
        Family::V4 => ("ip", "224.0.0.0/4"),
        Family::V6 => ("ip6", "ff00::/8"),
    };
    let own = cluster.nets(family);
    let mut kept = vec![own.pods.to_string(), multicast.to_owned()];
    match masquerade {
        Masquerade::Off => return None,
        Masquerade::LeavingCluster => {}
        Masquerade::LeavingBoth => kept.push(cluster.other().nets(family).pods.to_string()),
    }
    let [pods, ..] = own.node_pods;
    Some(format!(
        "\
table {ip} cni {{
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        {ip} saddr {pods} {ip} daddr != {{ {} }} counter masquerade
    }}
}}
",
        kept.join(", ")
    ))
}

impl Topology {
    /// Changes what the CNI of the regular nodes masquerades; its counters start again.
    pub fn set_masquerade(&mut self, masquerade: Masquerade) -> Result<()> {
        for cluster in Cluster::ALL {
            for family in self.options.inner.families() {
                // Declared first so that deleting it works whether it is there or not.
                let new = masquerade_rules(cluster, *family, masquerade).unwrap_or_default();
                let ip = table(*family);
                self.netns(cluster.node())
                    .nft(&format!("table {ip} cni\ndelete table {ip} cni\n{new}"))?;
            }
        }
        self.options.masquerade = masquerade;
        Ok(())
    }

    /// Connections the CNI's masquerade rules of a regular node have counted. Only the first packet of a
    /// connection meets a NAT rule.
    pub fn masqueraded(&self, node: Place) -> Result<u64> {
        let mut sum = 0;
        for family in self.options.inner.families() {
            let args = ["list", "chain", table(*family), "cni", "postrouting"];
            let rules = self.netns(node).run("nft", args)?;
            sum += counted(&rules).with_context(|| format!("no counter in `{rules}`"))?;
        }
        Ok(sum)
    }
}

/// What nftables calls a family.
const fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
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
            masquerade_rules(Cluster::East, Family::V4, masquerade)
                .map(|rules| rules.contains("10.12.0.0/16"))
        };
        assert_eq!(exempts(Masquerade::Off), None);
        assert_eq!(exempts(Masquerade::LeavingCluster), Some(false));
        assert_eq!(exempts(Masquerade::LeavingBoth), Some(true));
    }
}
