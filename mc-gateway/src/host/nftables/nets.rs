//! Address sets in nftables notation.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cidr::is_ipv6;

/// The families: keyword of their header fields, and whether it is IPv6.
pub(super) const FAMILIES: [(&str, bool); 2] = [("ip", false), ("ip6", true)];

/// Matches packets of one family whose `field` is in none of the prefixes.
pub(super) fn outside_of(field: &str, nets: &BTreeSet<IpNet>, v6: bool) -> String {
    let nets = join_nets(nets, v6);
    if nets.is_empty() {
        return format!("meta nfproto {}", if v6 { "ipv6" } else { "ipv4" });
    }
    format!("{field} != {{ {nets} }}")
}

/// The prefixes of one family, separated by commas.
pub(super) fn join_nets<'n>(nets: impl IntoIterator<Item = &'n IpNet>, v6: bool) -> String {
    let nets = nets.into_iter().filter(|net| is_ipv6(**net) == v6);
    let nets: Vec<String> = nets.map(ToString::to_string).collect();
    nets.join(", ")
}

/// The addresses of one family, separated by commas.
pub(super) fn join_addrs(addrs: &BTreeSet<IpAddr>, v6: bool) -> String {
    let addrs = addrs.iter().filter(|addr| addr.is_ipv6() == v6);
    let addrs: Vec<String> = addrs.map(ToString::to_string).collect();
    addrs.join(", ")
}
