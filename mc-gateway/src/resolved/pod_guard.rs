//! The guard of this node's Pod ranges: the Pods whose packets pass. Pure.
//!
//! A Pod that starts has no programs at its device until the agent has attached them. Until then the guard drops its
//! packets. It outlives the agent, so that a Pod that starts meanwhile has no network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{HostInputs, PodLinks, prefix};
use crate::desired::DesiredState;
use crate::objects::FieldError;

/// The Pods of this node that may send and receive packets. Packets of all other addresses in the ranges are dropped,
/// except between them and the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGuard {
    /// Pod ranges of this node.
    pub ranges: BTreeSet<IpNet>,
    /// Each Pod with the device that its address is routed to.
    pub pods: BTreeSet<(PlainName, IpAddr)>,
    /// Pods that are routed to no such device: their packets pass at any device.
    pub without_device: BTreeSet<IpAddr>,
    /// Service CIDRs: a service proxy that receives packets to them sends them on to Pods.
    pub service_cidrs: BTreeSet<IpNet>,
    /// The guard of frames, if Pods are on a bridge.
    pub bridge: Option<BridgeGuard>,
}

/// Filter of the frames of bridges, which pass no routing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeGuard {
    /// Ports of Pods.
    pub ports: BTreeSet<PlainName>,
    /// Addresses of this node itself.
    pub own: BTreeSet<IpAddr>,
}

/// Name of a device that nftables reads as it is: letters, digits, `-`, `_`, `.` and `@`. It expands `*`, for example.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlainName(String);

/// The guard, and the reasons why frames pass it or Pods stay closed. Without a range there is none. `routed_to` has
/// the device of each known Pod.
pub(super) fn pod_guard(
    desired: &DesiredState,
    inputs: &HostInputs,
    routed_to: &BTreeMap<IpAddr, Option<u32>>,
    node_name: &str,
) -> (Option<PodGuard>, Vec<FieldError>) {
    let links = &inputs.pod_links;
    let ranges = ranges(desired);
    if ranges.is_empty() {
        return (None, Vec::new());
    }
    let mut guard = PodGuard {
        service_cidrs: desired.service_cidrs.clone(),
        ..PodGuard::default()
    };
    let mut issues = Vec::new();
    for (addr, index) in routed_to {
        if !ranges.iter().any(|range| range.contains(addr)) {
            continue;
        }
        let Some(device) = index.and_then(|index| links.name(index)) else {
            guard.without_device.insert(*addr);
            continue;
        };
        let device = plain_name(device, &mut issues);
        guard.pods.extend(device.map(|device| (device, *addr)));
    }
    if has_bridge(&ranges, inputs) {
        match &inputs.bridge_filter_unavailable {
            None => {
                guard.bridge = Some(BridgeGuard {
                    ports: ports(links, &mut issues),
                    own: own_addresses(desired, inputs),
                });
            }
            Some(reason) => issues.push(unguarded_bridge(node_name, reason)),
        }
    }
    guard.ranges = ranges;
    (Some(guard), issues)
}

/// The Pod ranges of this node. Single addresses are those of known Pods and of the node itself.
fn ranges(desired: &DesiredState) -> BTreeSet<IpNet> {
    let delivered = prefix::delivered(&desired.prefixes).into_iter();
    delivered
        .filter(|net| {
            let is_single = net.prefix_len() == net.max_prefix_len();
            !is_single && !desired.service_cidrs.contains(net)
        })
        .collect()
}

/// Whether a range leads to a bridge, also to one that has no port yet.
fn has_bridge(ranges: &BTreeSet<IpNet>, inputs: &HostInputs) -> bool {
    let links = &inputs.pod_links;
    let in_range = |net: &IpNet| ranges.iter().any(|range| range.contains(net));
    let mut routes = links.routes.iter();
    routes.any(|(net, index)| in_range(net) && links.bridges.contains_key(index))
        || inputs
            .underlay
            .bridge_addrs
            .iter()
            .any(|addr| in_range(&IpNet::from(*addr)))
}

/// The ports of all bridges that may lead to Pods, without those that the guard cannot name.
fn ports(links: &PodLinks, issues: &mut Vec<FieldError>) -> BTreeSet<PlainName> {
    let ports = links.links.values().filter(|link| link.bridge.is_some());
    ports.filter_map(|link| plain_name(&link.name, issues)).collect()
}

/// The name for nftables, or an issue.
fn plain_name(device: &str, issues: &mut Vec<FieldError>) -> Option<PlainName> {
    let name = PlainName::new(device);
    if name.is_none() {
        issues.push(special_name(device));
    }
    name
}

/// The addresses from which this node sends to its Pods. A service proxy may have assigned it thousands of Service
/// addresses.
fn own_addresses(desired: &DesiredState, inputs: &HostInputs) -> BTreeSet<IpAddr> {
    let underlay = &inputs.underlay;
    let all = underlay.local_addrs.keys().chain(&underlay.mc0_addrs);
    all.filter(|addr| {
        let is_link_local = matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
        !is_link_local && !addr.is_loopback() && !desired.service_cidrs.iter().any(|net| net.contains(*addr))
    })
    .copied()
    .collect()
}

fn unguarded_bridge(node_name: &str, reason: &str) -> FieldError {
    FieldError {
        object: format!("Node {node_name}"),
        field: "nftables family bridge".to_owned(),
        value: "mc_gateway_pods".to_owned(),
        reason: format!(
            "is unavailable ({reason}), so a Pod that the agent has not seen reaches the Pods on its bridge; the \
             kernel needs CONFIG_NF_TABLES_BRIDGE"
        ),
    }
}

fn special_name(device: &str) -> FieldError {
    FieldError {
        object: "a Pod of this Node".to_owned(),
        field: "host-side device".to_owned(),
        value: device.to_owned(),
        reason: "has a name with other characters than letters, digits, `-`, `_`, `.` and `@`, so the Pod guard drops its \
                 packets"
            .to_owned(),
    }
}

// === impl PlainName ===

impl PlainName {
    /// `None` for a name that nftables may read differently.
    #[must_use]
    pub fn new(device: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        let is_plain = !device.is_empty() && device.bytes().all(plain);
        is_plain.then(|| Self(device.to_owned()))
    }
}

impl fmt::Display for PlainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl PodGuard ===

impl PodGuard {
    /// This guard without the Pods and ports that `other` does not have.
    #[must_use]
    pub fn without_missing(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        rest.pods.retain(|pod| other.pods.contains(pod));
        rest.without_device
            .retain(|addr| other.without_device.contains(addr));
        if let (Some(bridge), Some(other)) = (&mut rest.bridge, &other.bridge) {
            bridge.ports.retain(|port| other.ports.contains(port));
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mc_gateway_common::abi::CLUSTER_LOCAL;

    use super::*;
    use crate::desired::PrefixRoute;
    use crate::resolved::PodLink;

    const BRIDGE: u32 = 5;

    fn name(device: &str) -> PlainName {
        PlainName::new(device).unwrap()
    }

    fn addrs(list: &[&str]) -> BTreeSet<IpAddr> {
        list.iter().map(|addr| addr.parse().unwrap()).collect()
    }

    fn desired(delivered: &[&str], pods: &[&str]) -> DesiredState {
        let mut desired = DesiredState::default();
        let route = PrefixRoute {
            cluster: CLUSTER_LOCAL,
            group: 0,
            deliver: true,
        };
        desired.prefixes = delivered
            .iter()
            .map(|net| (net.parse().unwrap(), route))
            .collect();
        desired.service_cidrs = ["10.96.0.0/16".parse().unwrap()].into();
        desired.policies.pods = Arc::new(addrs(pods));
        desired
    }

    fn host(links: &[(u32, &str, Option<u32>)], routes: &[(&str, u32)]) -> HostInputs {
        let mut inputs = HostInputs::default();
        for (index, name, bridge) in links {
            let link = PodLink {
                name: (*name).to_owned(),
                bridge: *bridge,
            };
            inputs.pod_links.links.insert(*index, link);
        }
        let routes = routes.iter().map(|(net, index)| (net.parse().unwrap(), *index));
        inputs.pod_links.routes = routes.collect();
        inputs
    }

    fn with_bridge(mut inputs: HostInputs) -> HostInputs {
        inputs.pod_links.bridges.insert(BRIDGE, "cni0".to_owned());
        inputs
    }

    fn guard(desired: &DesiredState, inputs: &HostInputs) -> (Option<PodGuard>, Vec<FieldError>) {
        let delivered = prefix::delivered(&desired.prefixes);
        let pods = super::super::pod_devices::pod_devices(
            &inputs.pod_links,
            &delivered,
            &desired.policies.pods,
            &BTreeSet::new(),
        );
        pod_guard(desired, inputs, &pods.routed_to, "n1")
    }

    #[test]
    fn routed_pods_pass_at_their_device() {
        let inputs = host(
            &[(7, "cali7", None), (8, "cali8", None)],
            &[("10.1.1.7/32", 7), ("10.1.1.8/32", 8), ("192.0.2.0/24", 2)],
        );
        // One Pod of the range, one of another range, one without a device; 10.1.1.8 is not known.
        let desired = desired(
            &["10.1.1.0/24", "10.96.0.0/16", "10.9.9.8/32"],
            &["10.1.1.7", "10.9.9.8", "10.1.1.9"],
        );
        let (found, issues) = guard(&desired, &inputs);
        let expected = PodGuard {
            ranges: ["10.1.1.0/24".parse().unwrap()].into(),
            pods: [(name("cali7"), [10, 1, 1, 7].into())].into(),
            without_device: addrs(&["10.1.1.9"]),
            service_cidrs: desired.service_cidrs.clone(),
            bridge: None,
        };
        assert_eq!((found, issues), (Some(expected), vec![]));
    }

    #[test]
    fn bridged_pods_pass_at_the_bridge_and_its_ports() {
        let links = [
            (7, "veth7", Some(BRIDGE)),
            (8, "veth8", Some(BRIDGE)),
            (9, "veth9", None),
        ];
        let mut inputs = with_bridge(host(&links, &[("10.1.1.0/24", BRIDGE)]));
        let own = ["10.1.1.1", "192.0.2.1", "127.0.0.1", "fe80::1", "10.96.0.1"];
        inputs.underlay.local_addrs = own
            .iter()
            .map(|addr| (addr.parse().unwrap(), (2, "eth0".to_owned())))
            .collect();
        inputs.underlay.mc0_addrs = addrs(&["10.1.1.0", "10.96.0.9"]);
        let (found, issues) = guard(&desired(&["10.1.1.0/24"], &["10.1.1.7"]), &inputs);
        let found = found.unwrap();
        assert_eq!(issues, []);
        assert_eq!(found.pods, [(name("cni0"), [10, 1, 1, 7].into())].into());
        let expected = BridgeGuard {
            ports: ["veth7", "veth8"].map(name).into(),
            own: addrs(&["10.1.1.0", "10.1.1.1", "192.0.2.1"]),
        };
        assert_eq!(found.bridge, Some(expected));
    }

    #[test]
    fn a_bridge_without_ports_is_guarded() {
        let mut inputs = with_bridge(host(&[], &[("10.1.1.0/24", BRIDGE)]));
        let desired = desired(&["10.1.1.0/24"], &[]);
        assert_eq!(
            guard(&desired, &inputs).0.unwrap().bridge,
            Some(BridgeGuard::default())
        );
        // Of another range.
        inputs.pod_links.routes = [("172.17.0.0/16".parse().unwrap(), BRIDGE)].into();
        assert_eq!(guard(&desired, &inputs).0.unwrap().bridge, None);
        inputs.underlay.bridge_addrs = addrs(&["10.1.1.1"]);
        assert!(guard(&desired, &inputs).0.unwrap().bridge.is_some());
    }

    #[test]
    fn a_kernel_without_bridge_filters_is_an_issue() {
        let mut inputs = with_bridge(host(&[], &[("10.1.1.0/24", BRIDGE)]));
        inputs.bridge_filter_unavailable = Some("Operation not supported".to_owned());
        let (found, issues) = guard(&desired(&["10.1.1.0/24"], &[]), &inputs);
        assert_eq!(found.unwrap().bridge, None);
        let [FieldError { reason, .. }] = &issues[..] else {
            panic!("{issues:?}")
        };
        assert!(reason.contains("Operation not supported") && reason.contains("CONFIG_NF_TABLES_BRIDGE"));
    }

    #[test]
    fn nothing_is_guarded_without_a_range() {
        let desired = desired(&["10.96.0.0/16", "10.1.1.7/32"], &["10.1.1.7"]);
        assert_eq!(guard(&desired, &HostInputs::default()), (None, vec![]));
    }

    /// The guard left such devices out without a word: their Pods had no network, and the log was silent.
    #[test]
    fn a_device_with_a_special_name_is_an_issue() {
        let links = [
            (7, "cali7", None),
            (8, "a\"b", None),
            (9, "veth*", Some(BRIDGE)),
            (10, "veth10", Some(BRIDGE)),
        ];
        let routes = [("10.1.1.7/32", 7), ("10.1.1.8/32", 8), ("10.1.1.128/25", BRIDGE)];
        let inputs = with_bridge(host(&links, &routes));
        let (found, issues) = guard(&desired(&["10.1.1.0/24"], &["10.1.1.7", "10.1.1.8"]), &inputs);
        let found = found.unwrap();
        assert_eq!(found.pods, [(name("cali7"), [10, 1, 1, 7].into())].into());
        assert_eq!(found.bridge.unwrap().ports, [name("veth10")].into());
        let values: Vec<_> = issues.iter().map(|issue| issue.value.as_str()).collect();
        assert_eq!(values, ["a\"b", "veth*"]);
        assert_eq!(name("cali_x.1-2@if3").to_string(), "cali_x.1-2@if3");
        for special in ["a;b", "", "a b", "veth\u{e9}"] {
            assert_eq!(PlainName::new(special), None, "{special}");
        }
    }

    #[test]
    fn pods_that_end_are_removed_before_others_are_added() {
        let pod = |device: &str, last| (name(device), IpAddr::from([10, 1, 1, last]));
        let bridge = |ports: &[&str]| {
            Some(BridgeGuard {
                ports: ports.iter().map(|port| name(port)).collect(),
                own: BTreeSet::new(),
            })
        };
        let old = PodGuard {
            pods: [pod("a", 1), pod("b", 2)].into(),
            without_device: addrs(&["10.1.1.8", "10.1.1.9"]),
            bridge: bridge(&["p", "q"]),
            ..PodGuard::default()
        };
        let new = PodGuard {
            pods: [pod("a", 1), pod("c", 2), pod("d", 3)].into(),
            without_device: addrs(&["10.1.1.7", "10.1.1.8"]),
            bridge: bridge(&["q", "r"]),
            service_cidrs: ["10.96.0.0/16".parse().unwrap()].into(),
            ..PodGuard::default()
        };
        let rest = PodGuard {
            pods: [pod("a", 1)].into(),
            without_device: addrs(&["10.1.1.8"]),
            bridge: bridge(&["q"]),
            ..PodGuard::default()
        };
        assert_eq!(old.without_missing(&new), rest);
        assert_eq!(rest.without_missing(&new), rest);
    }
}
