//! Filter rules: the tunnel guard, connections from other clusters to this node itself, and Antrea interoperation.
//!
//! *Guarantees*: only the agent and the eBPF programs send multi-cluster packets from this node. Another cluster opens
//! connections to Pods and exported Services, and to addresses of the node only if the configuration exposes them.

use mc_gateway_common::packet::eth::MULTICLUSTER_MAC;
use mc_gateway_common::packet::tunnel::VNI_KERNEL_DECAP;

use super::Chain;
use super::nets::{FAMILIES, join_addrs, join_nets, outside_of};
use crate::desired::AntreaInterop;
use crate::host::PROBE_MARK;
use crate::resolved::{HostPort, NftRules, PacketFilter};

/// Reason of multi-cluster packets that neither the agent nor its programs send.
pub(super) const TUNNEL_GUARD: &str = "tunnel-guard";
/// Reason of packets to Service addresses that no service proxy translates.
pub(super) const NOT_EXPORTED: &str = "not-exported";
/// Reason of connections from other clusters to this node.
pub(super) const NOT_FOR_NODES: &str = "not-for-nodes";
/// The drop reasons of the table: comments of the rules that count them. Named counters would need the module
/// `nft_objref`.
pub(super) const REASONS: [&str; 3] = [TUNNEL_GUARD, NOT_EXPORTED, NOT_FOR_NODES];

/// Bits from the UDP header to the inner Ethernet destination, behind a tunnel header without options.
const INNER_MAC_BIT: u32 = (8 + 8) * 8;

/// Bits from the UDP header to the VNI of a tunnel header.
const VNI_BIT: u32 = (8 + 4) * 8;

/// The filter chains. Chains without rules are left out of the table.
pub(super) fn chains(rules: &NftRules, device: &str) -> Vec<Chain> {
    let [antrea_requests, antrea_redirects] = antrea_rules(&rules.masquerade.antrea, device);
    let guard = guard_rules(&rules.filter);
    let [input, forward] = reachability_rules(&rules.filter, device);
    vec![
        // After connection tracking, before any destination NAT.
        Chain::filter("prerouting", "prerouting priority mangle", antrea_requests),
        Chain::filter(
            "input",
            "input priority filter + 10",
            [guard.tunnel_device.into_iter().collect(), input].concat(),
        ),
        // Behind the chains of service proxies, which answer a connection to a Service without endpoints.
        Chain::filter(
            "forward",
            "forward priority filter + 10",
            [vec![guard.forwarded], forward].concat(),
        ),
        Chain::filter(
            "output",
            "output priority filter",
            [antrea_redirects, vec![guard.local]].concat(),
        ),
    ]
}

/// Counts and drops a packet.
fn drop_for(reason: &str) -> String {
    format!("counter drop comment \"{reason}\"")
}

struct GuardRules {
    forwarded: String,
    local: String,
    tunnel_device: Option<String>,
}

/// Multi-cluster packets leave this node from the programs, which bypass netfilter, and from the agent's probe
/// sockets. Any other is forged: a masqueraded Pod would have the address of its node, which is a peer. The inner
/// Ethernet destination distinguishes them from packets of a CNI with the same port.
fn guard_rules(filter: &PacketFilter) -> GuardRules {
    let mac = hex::encode(MULTICLUSTER_MAC);
    let forged = format!("udp dport {} @th,{INNER_MAC_BIT},48 0x{mac}", filter.port);
    let verdict = drop_for(TUNNEL_GUARD);
    GuardRules {
        forwarded: format!("{forged} {verdict}"),
        local: format!("{forged} meta mark != {PROBE_MARK:#x} {verdict}"),
        tunnel_device: decap_guard(filter),
    }
}

/// Only packets that have passed `from_underlay`, which drops forged ones, reach a tunnel device of the agent.
fn decap_guard(filter: &PacketFilter) -> Option<String> {
    if filter.decap_devices.is_empty() {
        return None;
    }
    let quoted: Vec<String> = filter
        .decap_devices
        .iter()
        .map(|name| format!("\"{name}\""))
        .collect();
    let port = filter.port;
    Some(format!(
        "udp dport {port} @th,{VNI_BIT},24 {VNI_KERNEL_DECAP:#x} iifname != {{ {} }} {}",
        quoted.join(", "),
        drop_for(TUNNEL_GUARD)
    ))
}

/// Rules for packets from other clusters, of the hooks `input` and `forward`.
///
/// A connection to a Service has a Service address as its original destination. A `NodePort` has an address of the
/// node, which the service proxy translates before both hooks.
fn reachability_rules(filter: &PacketFilter, device: &str) -> [Vec<String>; 2] {
    let from_remote = format!("iifname \"{device}\"");
    let (mut input, mut forward) = (Vec::new(), Vec::new());
    for (family, v6) in FAMILIES {
        let services = join_nets(&filter.service_cidrs, v6);
        if !services.is_empty() {
            // It would leave by the default route, masqueraded.
            forward.push(format!(
                "{from_remote} {family} daddr {{ {services} }} {}",
                drop_for(NOT_EXPORTED)
            ));
        }
        if filter.expose_nodes {
            continue;
        }
        let new = format!("{from_remote} ct state new");
        let verdict = drop_for(NOT_FOR_NODES);
        let ports = filter
            .backends
            .iter()
            .filter(|backend| backend.addr.is_ipv6() == v6);
        input.extend(ports.map(|HostPort { addr, proto, port }| {
            format!("{from_remote} {family} daddr {addr} meta l4proto {proto} th dport {port} accept")
        }));
        let own = join_addrs(&filter.addresses, v6);
        if !own.is_empty() {
            // An address of the device may be a Service address that is reserved for this node.
            input.push(format!("{new} {family} daddr {{ {own} }} {verdict}"));
        }
        let elsewhere = outside_of(&format!("ct original {family} daddr"), &filter.service_cidrs, v6);
        input.push(format!("{new} {elsewhere} {verdict}"));
        forward.push(format!("{new} ct status dnat {elsewhere} {verdict}"));
    }
    [input, forward]
}

/// From the tunnel only replies are accepted for the own `gatewayIP`, and no ICMP redirects are sent for packets that
/// enter and leave through `mc0`. Rules of the hooks `prerouting` and `output`.
fn antrea_rules(antrea: &AntreaInterop, device: &str) -> [Vec<String>; 2] {
    let Some(source) = antrea.source else {
        return Default::default();
    };
    let to_us = format!("iifname \"{device}\" ip daddr {source}");
    let requests = format!("{to_us} ct direction original counter drop");
    let untracked = format!("{to_us} ct state invalid,untracked counter drop");
    let redirect = format!("oifname \"{device}\" icmp type redirect drop");
    [vec![requests, untracked], vec![redirect]]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn filter() -> PacketFilter {
        PacketFilter {
            port: 6081,
            service_cidrs: ["10.96.0.0/16".parse().unwrap()].into(),
            addresses: [[10, 96, 0, 3].into(), [10, 1, 0, 0].into()].into(),
            backends: [HostPort {
                addr: [192, 0, 2, 1].into(),
                proto: 6,
                port: 80,
            }]
            .into(),
            expose_nodes: false,
            decap_devices: BTreeSet::new(),
        }
    }

    #[test]
    fn packets_reach_a_tunnel_device_from_underlay_devices_only() {
        let mut filter = filter();
        filter.decap_devices = ["eth0".to_owned(), "eth1".to_owned()].into();
        let rule = "udp dport 6081 @th,96,24 0x6d6367 iifname != { \"eth0\", \"eth1\" } counter drop comment \"tunnel-guard\"";
        assert_eq!(decap_guard(&filter).as_deref(), Some(rule));
    }

    #[test]
    fn only_marked_packets_with_the_inner_mac_leave_this_node() {
        let GuardRules {
            forwarded,
            local,
            tunnel_device,
        } = guard_rules(&filter());
        assert_eq!(tunnel_device, None);
        let forged = "udp dport 6081 @th,128,48 0xaabbccddeef0";
        assert_eq!(
            forwarded,
            format!("{forged} counter drop comment \"tunnel-guard\"")
        );
        assert_eq!(
            local,
            format!("{forged} meta mark != 0x3063 counter drop comment \"tunnel-guard\"")
        );
    }

    #[test]
    fn other_clusters_reach_services_and_host_network_backends_only() {
        let [input, forward] = reachability_rules(&filter(), "mc0");
        assert_eq!(
            input,
            [
                "iifname \"mc0\" ip daddr 192.0.2.1 meta l4proto 6 th dport 80 accept",
                "iifname \"mc0\" ct state new ip daddr { 10.1.0.0, 10.96.0.3 } counter drop comment \"not-for-nodes\"",
                "iifname \"mc0\" ct state new ct original ip daddr != { 10.96.0.0/16 } counter drop comment \"not-for-nodes\"",
                "iifname \"mc0\" ct state new meta nfproto ipv6 counter drop comment \"not-for-nodes\"",
            ]
        );
        assert_eq!(
            forward,
            [
                "iifname \"mc0\" ip daddr { 10.96.0.0/16 } counter drop comment \"not-exported\"",
                "iifname \"mc0\" ct state new ct status dnat ct original ip daddr != { 10.96.0.0/16 } counter drop comment \"not-for-nodes\"",
                "iifname \"mc0\" ct state new ct status dnat meta nfproto ipv6 counter drop comment \"not-for-nodes\"",
            ]
        );
    }

    #[test]
    fn exposed_nodes_do_not_expose_untranslated_services() {
        let exposed = PacketFilter {
            expose_nodes: true,
            ..filter()
        };
        let [input, forward] = reachability_rules(&exposed, "mc0");
        assert_eq!(input, [""; 0]);
        assert_eq!(forward.len(), 1, "{forward:?}");
        assert!(forward[0].contains("not-exported"));
    }

    #[test]
    fn from_antrea_gateways_only_replies_reach_the_gateway_ip() {
        let mut rules = NftRules::default();
        rules.masquerade.antrea.source = Some([192, 0, 2, 1].into());
        let script = super::super::script(&rules, "mc0");
        let filter = "\tchain prerouting {\n\t\ttype filter hook prerouting priority mangle; policy accept;\n\t\tiifname \"mc0\" ip daddr 192.0.2.1 ct direction original counter drop\n";
        assert!(script.contains(filter), "{script}");
        assert_eq!(script.matches("comment \"mc-gateway ").count(), 1);
        assert!(antrea_rules(&AntreaInterop::default(), "mc0").concat().is_empty());
    }

    #[test]
    fn chains_of_antrea_interoperation_are_absent_without_it() {
        let rules = NftRules {
            filter: filter(),
            ..NftRules::default()
        };
        let chains = chains(&rules, "mc0");
        let names: BTreeSet<_> = chains
            .iter()
            .filter(|chain| !chain.rules.is_empty())
            .map(|chain| chain.name)
            .collect();
        assert_eq!(names, ["forward", "input", "output"].into());
    }
}
