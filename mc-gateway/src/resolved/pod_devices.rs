//! The devices of this node's Pods, by the host's routes. Pure.
//!
//! A CNI either routes the address of each Pod to its device, or a range of Pods to a bridge, whose ports are their
//! devices. A Pod that the agent has not seen is covered as well: its device is a port of the bridge, or its route
//! lies in the node's range. A device of routed Pods that no policy selects needs no programs, so that such Pods
//! pay nothing. The ports of a bridge have them all, because the port of an address is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::Addr;

use crate::cidr::to_abi_addr;
use crate::objects::FieldError;

/// A device that may lead to a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLink {
    /// Its name.
    pub name: String,
    /// Index of the bridge whose port it is.
    pub bridge: Option<u32>,
}

/// Observations from which the devices of Pods follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLinks {
    /// By index.
    pub links: BTreeMap<u32, PodLink>,
    /// Names of all bridges by index.
    pub bridges: BTreeMap<u32, String>,
    /// Foreign routes of the main table without a gateway: destination and index of the device.
    pub routes: BTreeSet<(IpNet, u32)>,
    /// A device of a CNI that may deliver packets past the devices of Pods ([`crate::cni::bypasses_pod_devices`]).
    pub bypassed_by: Option<String>,
}

/// The devices of this node's Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodDevices {
    /// Those that need programs, by name, with their index.
    pub(super) devices: BTreeMap<String, u32>,
    /// Index of the device that each known Pod is routed to: its own one, or a bridge; none if that leads to no Pod.
    pub(super) routed_to: BTreeMap<IpAddr, Option<u32>>,
}

/// The devices of Pods in these ranges and of known Pods. Known Pods that no policy selects are in `unselected`.
pub(super) fn pod_devices(
    observed: &PodLinks,
    ranges: &[IpNet],
    pods: &BTreeSet<IpAddr>,
    unselected: &BTreeSet<Addr>,
) -> PodDevices {
    let is_unselected = |addr: &IpAddr| unselected.contains(&to_abi_addr(*addr));
    // A route to more than one address, as to a bridge, may lead to any Pod.
    let may_be_selected = |net: &IpNet| {
        let is_single = net.prefix_len() == net.max_prefix_len();
        ranges.iter().any(|range| range.contains(net)) && !(is_single && is_unselected(&net.addr()))
    };
    let of_ranges = observed.routes.iter().filter(|(net, _)| may_be_selected(net));
    let mut indexes: BTreeSet<u32> = of_ranges.map(|(_, index)| *index).collect();
    let routed_to: BTreeMap<_, _> = pods
        .iter()
        .map(|addr| (*addr, observed.device_of(addr)))
        .collect();
    let selected = routed_to.iter().filter(|(addr, _)| !is_unselected(addr));
    indexes.extend(selected.filter_map(|(_, index)| *index));
    let links = observed.links.iter();
    let devices = links
        .filter(|(index, link)| {
            indexes.contains(index) || link.bridge.is_some_and(|bridge| indexes.contains(&bridge))
        })
        .map(|(index, link)| (link.name.clone(), *index))
        .collect();
    PodDevices { devices, routed_to }
}

impl PodDevices {
    /// An issue for each known Pod without a device.
    pub(super) fn issues(&self) -> impl Iterator<Item = FieldError> {
        let missing = self.routed_to.iter().filter(|(_, device)| device.is_none());
        missing.map(|(addr, _)| without_device(addr))
    }
}

/// The issue with this device of a CNI.
pub(super) fn bypassed(device: &str) -> FieldError {
    FieldError {
        object: "this Node".to_owned(),
        field: "device".to_owned(),
        value: device.to_owned(),
        reason: "is of a CNI that may deliver packets past the devices of Pods, so policies are enforced on packets \
                 from other clusters only"
            .to_owned(),
    }
}

fn without_device(addr: &IpAddr) -> FieldError {
    FieldError {
        object: "a Pod of this Node".to_owned(),
        field: "status.podIPs".to_owned(),
        value: addr.to_string(),
        reason: "is routed to no veth device and to no bridge with such ports, so policies are enforced on its packets \
                 from other clusters only"
            .to_owned(),
    }
}

// === impl PodLinks ===

impl PodLinks {
    /// Index of the device that an address is routed to, if it leads to Pods.
    fn device_of(&self, addr: &IpAddr) -> Option<u32> {
        let containing = self.routes.iter().filter(|(net, _)| net.contains(addr));
        let (_, index) = containing.max_by_key(|(net, _)| net.prefix_len())?;
        Some(*index).filter(|index| self.leads_to_pods(*index))
    }

    /// Name of a device that leads to Pods.
    pub(super) fn name(&self, index: u32) -> Option<&str> {
        let link = self.links.get(&index).map(|link| &link.name);
        link.or_else(|| self.bridges.get(&index)).map(String::as_str)
    }

    /// Whether the device of this index may lead to Pods, or is a bridge with such ports.
    fn leads_to_pods(&self, index: u32) -> bool {
        self.links.contains_key(&index) || self.links.values().any(|link| link.bridge == Some(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: u32 = 5;

    fn observed(links: &[(u32, &str, Option<u32>)], routes: &[(&str, u32)]) -> PodLinks {
        PodLinks {
            links: links
                .iter()
                .map(|(index, name, bridge)| {
                    let name = (*name).to_owned();
                    (
                        *index,
                        PodLink {
                            name,
                            bridge: *bridge,
                        },
                    )
                })
                .collect(),
            routes: routes
                .iter()
                .map(|(net, index)| (net.parse().unwrap(), *index))
                .collect(),
            ..PodLinks::default()
        }
    }

    /// The devices that need programs, and the addresses without a device. No policy selects the Pods of `unselected`.
    fn names_without(observed: &PodLinks, pods: &[&str], unselected: &[&str]) -> (Vec<String>, Vec<String>) {
        let parse = |addr: &&str| addr.parse::<IpAddr>().unwrap();
        let pods = pods.iter().map(parse).collect();
        let unselected = unselected.iter().map(parse).map(to_abi_addr).collect();
        let ranges = ["10.1.1.0/24", "fd00:1:1::/64"].map(|net| net.parse().unwrap());
        let found = pod_devices(observed, &ranges, &pods, &unselected);
        let values = found.issues().map(|issue| issue.value).collect();
        (found.devices.into_keys().collect(), values)
    }

    fn names(observed: &PodLinks, pods: &[&str]) -> (Vec<String>, Vec<String>) {
        names_without(observed, pods, &[])
    }

    #[test]
    fn routed_pods_have_the_device_of_their_route() {
        let links = [(7, "cali7", None), (8, "cali8", None), (2, "eth0", None)];
        let routes = [
            ("10.1.1.7/32", 7),
            ("10.9.9.8/32", 8),
            ("192.0.2.0/24", 2),
            ("10.1.0.0/16", 2),
        ];
        let observed = observed(&links, &routes);
        let both = ["cali7", "cali8"].map(str::to_owned).to_vec();
        assert_eq!(names(&observed, &["10.9.9.8"]), (both, vec![]));
        let only = vec!["cali7".to_owned()];
        assert_eq!(
            names(&observed, &[]),
            (only, vec![]),
            "a Pod that is not known yet"
        );
    }

    #[test]
    fn bridged_pods_have_all_ports() {
        let links = [
            (7, "veth7", Some(BRIDGE)),
            (8, "veth8", Some(BRIDGE)),
            (9, "veth9", Some(6)),
        ];
        let observed = observed(&links, &[("10.1.1.0/24", BRIDGE)]);
        let both = ["veth7", "veth8"].map(str::to_owned).to_vec();
        assert_eq!(names(&observed, &["10.1.1.7"]), (both, vec![]));
    }

    #[test]
    fn a_routed_pod_that_no_policy_selects_has_no_programs() {
        let links = [(7, "cali7", None), (8, "cali8", None), (9, "cali9", None)];
        let routes = [
            ("10.1.1.7/32", 7),
            ("fd00:1:1::7/128", 7),
            ("fe80::/64", 7),
            ("10.1.1.8/32", 8),
            // A Pod outside of the node's range.
            ("10.9.9.9/32", 9),
        ];
        let observed = observed(&links, &routes);
        let pods = ["10.1.1.7", "fd00:1:1::7", "10.1.1.8", "10.9.9.9"];
        let devices = |unselected: &[&str]| names_without(&observed, &pods, unselected).0;
        assert_eq!(devices(&["10.1.1.7", "fd00:1:1::7", "10.9.9.9"]), ["cali8"]);
        assert_eq!(devices(&pods), [""; 0]);
        // One address of two: the other one belongs to a Pod that the agent has not seen, or that a policy selects.
        assert_eq!(devices(&["10.1.1.7", "10.1.1.8", "10.9.9.9"]), ["cali7"]);
        assert_eq!(devices(&["10.1.1.7", "fd00:1:1::7", "10.1.1.8"]), ["cali9"]);
    }

    #[test]
    fn the_ports_of_a_bridge_have_programs_whichever_pods_are_selected() {
        let links = [(7, "veth7", Some(BRIDGE)), (8, "veth8", Some(BRIDGE))];
        let observed = observed(&links, &[("10.1.1.0/24", BRIDGE)]);
        let pods = ["10.1.1.7", "10.1.1.8"];
        assert_eq!(names_without(&observed, &pods, &pods).0, ["veth7", "veth8"]);
    }

    #[test]
    fn a_pod_behind_another_device_is_an_issue() {
        let observed = observed(&[(2, "eth0", None)], &[("10.1.0.0/16", 3), ("192.0.2.0/24", 2)]);
        let pods = ["10.1.1.7", "172.16.0.1"];
        assert_eq!(
            names(&observed, &pods),
            (vec![], pods.map(str::to_owned).to_vec())
        );
    }
}
