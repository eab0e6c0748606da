//! Underlay addresses that the data path must not use: neither as next hop nor as peer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Underlay;
use crate::desired::DesiredState;
use crate::objects::FieldError;

/// Refused addresses of other nodes, each with the reason that completes "address …".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusals(BTreeMap<IpAddr, String>);

impl Refusals {
    /// Decides about all next hops and peers.
    pub(super) fn new(desired: &DesiredState, underlay: &Underlay) -> Self {
        let next_hops = desired.next_hops.values().map(|next_hop| next_hop.addr);
        let addresses = next_hops.chain(desired.peers.keys().copied());
        Self(
            addresses
                .filter_map(|addr| Some((addr, refusal(addr, underlay)?)))
                .collect(),
        )
    }

    /// The reason why `addr` is refused, if it is.
    pub(super) fn reason(&self, addr: IpAddr) -> Option<&str> {
        self.0.get(&addr).map(String::as_str)
    }

    /// Issues of refused peers that are no next hops.
    pub(super) fn peer_issues(&self, desired: &DesiredState) -> Vec<FieldError> {
        let is_next_hop = |addr| desired.next_hops.values().any(|next_hop| next_hop.addr == addr);
        let refused = self.0.iter().filter(|(addr, _)| !is_next_hop(**addr));
        refused
            .map(|(addr, reason)| FieldError {
                object: desired.peer_names.get(addr).cloned().unwrap_or_default(),
                field: "address".to_owned(),
                value: addr.to_string(),
                reason: reason.clone(),
            })
            .collect()
    }
}

/// Issues of this node's addresses on devices that carry no encapsulated packets.
pub(super) fn local_issues(desired: &DesiredState, underlay: &Underlay, node_name: &str) -> Vec<FieldError> {
    let refused = desired.local_addrs.iter().filter_map(|addr| {
        let (ifindex, device) = underlay.local_addrs.get(addr)?;
        let kind = underlay.without_ethernet.get(ifindex)?;
        Some(FieldError {
            object: format!("Node {node_name}"),
            field: "address".to_owned(),
            value: addr.to_string(),
            reason: format!("is an address of {}", no_ethernet(device, kind)),
        })
    });
    refused.collect()
}

fn refusal(addr: IpAddr, underlay: &Underlay) -> Option<String> {
    let route = underlay.routes.get(&addr)?;
    let kind = underlay.without_ethernet.get(&route.ifindex)?;
    Some(format!("is reached over {}", no_ethernet(&route.device, kind)))
}

fn no_ethernet(device: &str, kind: &str) -> String {
    format!("{device} ({kind}), whose frames have no Ethernet header: the underlay must be Ethernet")
}
