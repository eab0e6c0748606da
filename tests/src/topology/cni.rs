//! Masquerading by the CNI of the regular nodes.

use anyhow::{Context as _, Result};

use super::{
    Topology,
    plan::{Cluster, Family, Place},
};

/// Destinations to which the CNI of a regular node masquerades packets of its Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// None: the node has no NAT rule.
    Off,
    /// Destinations outside the cluster, the default of CNIs. Includes the other cluster, unless another rule
    /// exempts it.
    LeavingCluster,
    /// Destinations outside both clusters, as configured where the two are connected by plain routing.
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
    /// Changes the masquerading of the regular nodes and resets its counters.
    pub fn set_masquerade(&mut self, masquerade: Masquerade) -> Result<()> {
        for cluster in Cluster::ALL {
            for family in self.options.inner.families() {
                // Declared first: deletion of a missing table is an error.
                let new = masquerade_rules(cluster, *family, masquerade).unwrap_or_default();
                let ip = nft_family(*family);
                self.netns(cluster.node())
                    .nft(&format!("table {ip} cni\ndelete table {ip} cni\n{new}"))?;
            }
        }
        self.options.masquerade = masquerade;
        Ok(())
    }

    /// Connections masqueraded on a regular node: NAT rules count the first packet of each.
    pub fn masqueraded(&self, node: Place) -> Result<u64> {
        let mut sum = 0;
        for family in self.options.inner.families() {
            let args = ["list", "chain", nft_family(*family), "cni", "postrouting"];
            let rules = self.netns(node).run("nft", args)?;
            sum += parse_counter(&rules).with_context(|| format!("no counter in `{rules}`"))?;
        }
        Ok(sum)
    }
}

/// The nftables name of a family.
const fn nft_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Parses the first `counter packets N` of a listing.
fn parse_counter(rules: &str) -> Option<u64> {
    let (_, rest) = rules.split_once("counter packets ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_of_a_listing_is_parsed() {
        assert_eq!(
            parse_counter("ip saddr 10.0.0.0/8 counter packets 42 bytes 84 masquerade"),
            Some(42)
        );
        assert_eq!(parse_counter("nothing"), None);
    }

    #[test]
    fn only_leaving_both_exempts_the_other_cluster() {
        let exempts = |masquerade| {
            masquerade_rules(Cluster::East, Family::V4, masquerade)
                .map(|rules| rules.contains("10.12.0.0/16"))
        };
        assert_eq!(exempts(Masquerade::Off), None);
        assert_eq!(exempts(Masquerade::LeavingCluster), Some(false));
        assert_eq!(exempts(Masquerade::LeavingBoth), Some(true));
    }
}
