//! Policy routing of replies from clusters with Antrea gateways.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

use crate::desired::AntreaInterop;

/// Rules and routes of the agent's routing table; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReturnRoutes {
    /// Sources of replies: a rule for each selects the table.
    pub prefixes: BTreeSet<Ipv4Net>,
    /// Addresses in these prefixes that are no source of replies: a rule for each bypasses the table.
    pub aliases: BTreeSet<Ipv4Addr>,
    /// Prefixes delivered on this Node: a throw route for each leaves the table.
    pub local_prefixes: BTreeSet<Ipv4Net>,
    /// Whether the table routes everything else into `mc0`.
    pub default_route: bool,
}

impl ReturnRoutes {
    /// Rules and routes of a gateway that serves clusters with Antrea gateways; none on other Nodes.
    #[must_use]
    pub fn new(antrea: &AntreaInterop) -> Self {
        if antrea.source.is_none() || antrea.prefixes.is_empty() {
            return Self::default();
        }
        let v4 = |nets: &BTreeSet<IpNet>| {
            nets.iter()
                .filter_map(|net| match net {
                    IpNet::V4(net) => Some(*net),
                    IpNet::V6(_) => None,
                })
                .collect()
        };
        Self {
            prefixes: v4(&antrea.prefixes),
            aliases: antrea.aliases.clone(),
            local_prefixes: v4(&antrea.local_prefixes),
            default_route: true,
        }
    }
}
