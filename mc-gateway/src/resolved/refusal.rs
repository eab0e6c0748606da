//! Underlay addresses that the data path must not use: neither as next hop nor as peer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::ipsec::Leg;
use super::{HostInputs, Underlay};
use crate::cidr::same_family;
use crate::desired::DesiredState;
use crate::objects::FieldError;

/// Refused addresses of other nodes, each with the reason that completes "address …".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusals(BTreeMap<IpAddr, String>);

impl Refusals {
    /// Decides about all next hops and peers. Encapsulated packets have the destination port `port`.
    pub(super) fn new(desired: &DesiredState, inputs: &HostInputs, port: u16) -> Self {
        let next_hops = desired.next_hops.values().map(|next_hop| next_hop.addr);
        let addresses = next_hops.chain(desired.peers.keys().copied());
        Self(
            addresses
                .filter_map(|addr| {
                    let reason = without_ethernet(addr, &inputs.underlay);
                    Some((
                        addr,
                        reason.or_else(|| bypassed_ipsec(addr, desired, inputs, port))?,
                    ))
                })
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

fn without_ethernet(addr: IpAddr, underlay: &Underlay) -> Option<String> {
    let route = underlay.routes.get(&addr)?;
    let kind = underlay.without_ethernet.get(&route.ifindex)?;
    Some(format!("is reached over {}", no_ethernet(&route.device, kind)))
}

/// The reason why packets to and from `addr` must not be sent and accepted in clear text, if so. Replies to probes
/// leave from the address that received them, so every local address counts.
fn bypassed_ipsec(addr: IpAddr, desired: &DesiredState, inputs: &HostInputs, port: u16) -> Option<String> {
    let route = inputs.underlay.routes.get(&addr);
    let own = desired.local_addrs.iter().copied();
    let used = own.filter(|local| inputs.underlay.local_addrs.contains_key(local));
    let local = used.chain(route.map(|route| route.source));
    let policy = local
        .filter(|local| same_family(*local, addr))
        .find_map(|local| {
            inputs.ipsec.bypassed_by(&Leg {
                local,
                remote: addr,
                ifindex: route.map(|route| route.ifindex),
                port,
            })
        })?;
    Some(format!(
        "has the IPsec policy `{policy}`, which encapsulated packets would bypass in clear text; encrypt outside of \
         this host, or allow clear text of UDP port {port} by a policy of higher priority"
    ))
}

fn no_ethernet(device: &str, kind: &str) -> String {
    format!("{device} ({kind}), whose frames have no Ethernet header: the underlay must be Ethernet")
}
