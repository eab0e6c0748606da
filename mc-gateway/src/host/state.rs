//! Observed state of the host.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rtnetlink::Handle;

use super::nftables::Listing;
use super::nftables::pod_guard::GuardListing;
use super::underlay::KnownPaths;
use super::{HostError, ipsec, ipv6, link, neighbors, nftables, pod_links, policy_routing, route, underlay};
use crate::plan::{Device, InstalledGuard};
use crate::resolved::{HostInputs, NftRules, PodGuard, PodLinks, ReturnRoutes, RouteKey};
use crate::shared_map::SharedMap;

/// The agent's state on the host, and the host's own that the resolved state depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// `mc0`.
    pub device: Option<Device>,
    /// The agent's routes into it, each with its source address.
    pub routes: SharedMap<RouteKey, Option<IpAddr>>,
    /// Policy routing of replies from clusters with Antrea gateways.
    pub return_routes: ReturnRoutes,
    /// Underlay, foreign routes, IPsec policies and IPv6 support.
    pub inputs: HostInputs,
}

/// Observes the host, with the underlay routes to `addresses`; those in `known` are not looked up. The devices of Pods
/// are observed if `polices_pods`.
pub async fn observe(
    handle: &Handle,
    device: &str,
    addresses: &BTreeSet<IpAddr>,
    known: &mut KnownPaths,
    polices_pods: bool,
) -> Result<HostState, HostError> {
    let mc0 = link::observe(handle, device).await?;
    let ifindex = mc0.map_or(0, |mc0| mc0.ifindex);
    let routes = route::observe(handle, ifindex).await?;
    let mut return_routes = policy_routing::observe(handle, device, ifindex).await?;
    // The default route needs the loose mode, which is set with the route.
    return_routes.default_route &= mc0.is_some_and(|mc0| mc0.loose_rp_filter);
    Ok(HostState {
        device: mc0,
        routes: routes.ours.into_iter().collect(),
        return_routes,
        inputs: HostInputs {
            underlay: underlay::observe(handle, addresses, device, known).await?,
            foreign_routes: routes.foreign,
            foreign_destinations: routes.foreign_destinations,
            ipsec: ipsec::observe().await?,
            neighbor_limits: neighbors::limits(),
            ipv6_unavailable: ipv6::unavailable_reason(device),
            bridge_filter_unavailable: None,
            pod_links: if polices_pods {
                pod_links::observe(handle, routes.connected).await?
            } else {
                PodLinks::default()
            },
        },
    })
}

/// The candidate that the nftables table implements, if any. `known` is the table when it was last read or written:
/// another program has changed any other one. Runs `nft` once, which reads all rules of the host.
pub async fn find_nft_rules(
    candidates: &[&NftRules],
    device: &str,
    known: &mut Option<Listing>,
) -> Result<Option<NftRules>, HostError> {
    let Some(listing) = nftables::read().await? else {
        return Ok(None);
    };
    if known.as_ref().is_some_and(|known| *known != listing) {
        return Ok(None);
    }
    let found = candidates.iter().find(|rules| listing.is_of(rules, device));
    *known = found.map(|_| listing);
    Ok(found.map(|rules| (*rules).clone()))
}

/// The candidate that the tables of the Pod guard implement, if any. `known` is as in [`find_nft_rules`].
pub async fn find_pod_guard(
    candidates: &[&PodGuard],
    known: &mut Option<GuardListing>,
) -> Result<InstalledGuard, HostError> {
    let listing = nftables::pod_guard::read().await?;
    if listing.is_absent() {
        return Ok(InstalledGuard::Absent);
    }
    if known.as_ref().is_some_and(|known| *known != listing) {
        return Ok(InstalledGuard::Unknown);
    }
    let found = candidates.iter().find(|guard| listing.is_of(guard));
    *known = found.map(|_| listing);
    Ok(found.map_or(InstalledGuard::Unknown, |guard| {
        InstalledGuard::Known((*guard).clone())
    }))
}
