//! Address sets in nftables notation.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cidr::is_ipv6;

/// Both families, as the answer to "is it IPv6".
pub(super) const V6: [bool; 2] = [false, true];

/// The family's keyword in rules.
pub(super) const fn keyword(v6: bool) -> &'static str {
    if v6 { "ip6" } else { "ip" }
}

/// The prefixes of one family, separated by commas.
pub(super) fn join_nets(nets: &BTreeSet<IpNet>, v6: bool) -> String {
    let nets = nets.iter().filter(|net| is_ipv6(**net) == v6);
    let nets: Vec<String> = nets.map(ToString::to_string).collect();
    nets.join(", ")
}

/// The addresses of one family, separated by commas.
pub(super) fn join_addrs(addrs: &BTreeSet<IpAddr>, v6: bool) -> String {
    let addrs = addrs.iter().filter(|addr| addr.is_ipv6() == v6);
    let addrs: Vec<String> = addrs.map(ToString::to_string).collect();
    addrs.join(", ")
}
