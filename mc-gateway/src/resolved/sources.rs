//! Source addresses of this node towards other clusters.

use std::net::IpAddr;

use super::{ResolvedState, Underlay};
use crate::cidr::{is_ipv6, same_family};
use crate::desired::{DesiredState, SourceAddrs};

impl ResolvedState {
    /// Selects the source addresses of this node and the addresses of `mc0`.
    pub(super) fn assign_addresses(&mut self, desired: &DesiredState, underlay: &Underlay) {
        // IPv6 prefixes are behind IPv4 ones.
        let ends = [desired.routes.first(), desired.routes.last()];
        let routed = |addr: IpAddr| ends.iter().flatten().any(|net| same_family(net.addr(), addr));
        let sources = pod_network_sources(desired, underlay);
        let missing = |addr| !sources.iter().any(|own| same_family(own, addr));
        let borrowed = desired
            .fallback_addrs
            .filter(|addr| routed(addr) && missing(addr));
        self.masquerade.sources = sources.or(borrowed);
        // An address already on `mc0` stays while it is routed here: connections may use it.
        let kept = desired
            .fallback_addrs
            .filter(|addr| underlay.mc0_addrs.contains(&addr));
        self.addresses = borrowed.iter().chain(kept.iter()).collect();
        // Other clusters route only the Service range of this cluster here.
        self.needs_address = desired.service_cidrs.iter().any(|net| {
            let without = self.masquerade.sources.for_family(*net).is_none();
            without && routed(net.addr())
        });
    }

    /// Removes IPv6 routes and the addresses only they require.
    pub(super) fn without_ipv6(&mut self) {
        self.routes.retain(|net| !is_ipv6(*net));
        let none = self.addresses.iter().any(IpAddr::is_ipv6);
        self.addresses.retain(|addr| !addr.is_ipv6());
        if none {
            self.masquerade.sources.v6 = None;
        }
    }
}

/// Addresses of this host that other clusters can reply to. Some CNIs assign the network address of a CIDR to a
/// tunnel device: it is used if there is no other.
fn pod_network_sources(desired: &DesiredState, underlay: &Underlay) -> SourceAddrs {
    let pods = || desired.masquerade.pod_cidrs.iter();
    let known = underlay
        .local_addrs
        .keys()
        .filter(|addr| !underlay.tentative.contains(*addr));
    let mut inside: Vec<(bool, IpAddr)> = known
        .filter_map(|addr| {
            let is_network_address = pods().any(|net| net.network() == *addr);
            let ours = pods()
                .chain(&desired.host_addresses)
                .any(|net| net.contains(addr));
            ours.then_some((is_network_address, *addr))
        })
        .collect();
    inside.sort();
    inside.into_iter().map(|(_, addr)| addr).collect()
}
