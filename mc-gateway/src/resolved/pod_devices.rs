//! The devices of this node's Pods, by the host's routes. Pure.
//!
//! A CNI either routes the address of each Pod to its device, or a range of Pods to a bridge, whose ports are their
//! devices. A Pod that the agent has not seen is covered as well: its device is a port of the bridge, or its route lies
//! in the node's range.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

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
    /// Foreign routes of the main table without a gateway: destination and index of the device.
    pub routes: BTreeSet<(IpNet, u32)>,
}

/// The devices of Pods by name, with their index, and an issue for each known Pod without one.
pub(super) fn pod_devices(
    observed: &PodLinks,
    ranges: &[IpNet],
    pods: &BTreeSet<IpAddr>,
) -> (BTreeMap<String, u32>, Vec<FieldError>) {
    let in_range = |net: &IpNet| ranges.iter().any(|range| range.contains(net));
    let of_ranges = observed.routes.iter().filter(|(net, _)| in_range(net));
    let mut indexes: BTreeSet<u32> = of_ranges.map(|(_, index)| *index).collect();
    let mut issues = Vec::new();
    for addr in pods {
        let containing = observed.routes.iter().filter(|(net, _)| net.contains(addr));
        let longest = containing.max_by_key(|(net, _)| net.prefix_len());
        match longest.filter(|(_, index)| observed.leads_to_pods(*index)) {
            Some((_, index)) => {
                indexes.insert(*index);
            }
            None => issues.push(without_device(addr)),
        }
    }
    let links = observed.links.iter();
    let devices = links
        .filter(|(index, link)| {
            indexes.contains(index) || link.bridge.is_some_and(|bridge| indexes.contains(&bridge))
        })
        .map(|(index, link)| (link.name.clone(), *index))
        .collect();
    (devices, issues)
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
        }
    }

    fn names(observed: &PodLinks, pods: &[&str]) -> (Vec<String>, Vec<String>) {
        let pods = pods.iter().map(|addr| addr.parse().unwrap()).collect();
        let ranges = ["10.1.1.0/24".parse().unwrap()];
        let (devices, issues) = pod_devices(observed, &ranges, &pods);
        let values = issues.into_iter().map(|issue| issue.value);
        (devices.into_keys().collect(), values.collect())
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
    fn a_pod_behind_another_device_is_an_issue() {
        let observed = observed(&[(2, "eth0", None)], &[("10.1.0.0/16", 3), ("192.0.2.0/24", 2)]);
        let pods = ["10.1.1.7", "172.16.0.1"];
        assert_eq!(
            names(&observed, &pods),
            (vec![], pods.map(str::to_owned).to_vec())
        );
    }
}
