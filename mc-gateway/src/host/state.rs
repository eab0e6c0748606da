//! The host's part of what is there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rtnetlink::Handle;

use super::policy_routing::{self, ReturnRoutes};
use super::{HostError, link, nftables, route};
use crate::desired::Masquerade;
use crate::plan::Device;
use crate::resolved::RouteKey;

/// What the host holds for us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// `mc0`.
    pub device: Option<Device>,
    /// Our routes into it, with the source address each names.
    pub routes: BTreeMap<RouteKey, Option<IpAddr>>,
    /// The way of replies of clusters with Antrea gateways.
    pub return_routes: ReturnRoutes,
}

/// Reads it.
pub async fn observe(handle: &Handle, device: &str) -> Result<HostState, HostError> {
    let mc0 = link::observe(handle, device).await?;
    let routes = match mc0 {
        Some(mc0) => route::observe(handle, mc0.ifindex).await?.ours,
        None => BTreeMap::new(),
    };
    let way_back = policy_routing::observe(handle, device, mc0.map_or(0, |mc0| mc0.ifindex)).await?;
    Ok(HostState {
        device: mc0,
        routes,
        return_routes: policy_routing,
    })
}

/// Which of `candidates` our nftables table does, if any: nftables does not give back what was written. Takes a
/// process each, which reads all rules of the host.
pub async fn find_masquerade(
    candidates: &[&Masquerade],
    device: &str,
) -> Result<Option<Masquerade>, HostError> {
    for candidate in candidates {
        if nftables::is_current(candidate, device).await? {
            return Ok(Some((*candidate).clone()));
        }
    }
    Ok(None)
}
