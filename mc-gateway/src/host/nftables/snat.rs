//! Source NAT rules: the exemption from foreign masquerading, and sources that other clusters can reply to.
//!
//! `snat ip to ip saddr` maps an address to itself: the packet keeps its source, and later NAT chains (the
//! CNI's masquerade rule) are skipped because the connection has its mapping.

use std::net::IpAddr;

use super::nets::{FAMILIES, join_nets, outside_of};
use crate::desired::{AntreaInterop, Masquerade};

/// Mark of packets that kube-proxy masquerades, in all its modes (`masqueradeBit: 14`).
const PROXY_MARK: &str = "0x4000";

/// The rules in order; the first match of a connection applies.
pub(super) fn rules(masquerade: &Masquerade, device: &str) -> Vec<String> {
    let mut rules: Vec<String> = antrea_snat_rule(&masquerade.antrea, device).into_iter().collect();
    rules.extend(host_snat_rules(masquerade, device));
    let mapping = |ip| format!("oifname \"{device}\" snat {ip} to {ip} saddr");
    rules.extend(["ip", "ip6"].map(mapping));
    for (ip, v6) in FAMILIES {
        let services = join_nets(&masquerade.service_cidrs, v6);
        let remotes = join_nets(masquerade.remote_prefixes.iter(), v6);
        if !services.is_empty() && !remotes.is_empty() {
            rules.push(format!(
                "{ip} saddr {{ {remotes} }} ct original {ip} daddr {{ {services} }} masquerade"
            ));
        }
    }
    rules
}

/// Changes the source of packets to clusters with Antrea gateways to the own `gatewayIP`, the only address they reply
/// to. Replies to them keep their source.
fn antrea_snat_rule(antrea: &AntreaInterop, device: &str) -> Option<String> {
    let source = antrea.source?;
    let prefixes = join_nets(&antrea.prefixes, false);
    if prefixes.is_empty() {
        return None;
    }
    let aliases: Vec<String> = antrea.aliases.iter().map(ToString::to_string).collect();
    let except = if aliases.is_empty() {
        String::new()
    } else {
        format!(" ip daddr != {{ {} }}", aliases.join(", "))
    };
    Some(format!(
        "oifname \"{device}\" ip daddr {{ {prefixes} }}{except} snat ip to {source}"
    ))
}

/// Changes the source of packets that are not from Pods of this Node to one that other clusters can reply to: packets
/// of this host, which have no input device (`iif 0`; kernel 5.7), and packets that a service proxy forwards and would
/// masquerade. A proxy on this host that uses a Pod's address keeps it. Other forwarded packets are unchanged, and
/// dropped at the gateway.
fn host_snat_rules(masquerade: &Masquerade, device: &str) -> Vec<String> {
    let sources = masquerade.sources;
    let sources = [
        ("ip", sources.v4.map(IpAddr::V4)),
        ("ip6", sources.v6.map(IpAddr::V6)),
    ];
    let mut rules = Vec::new();
    for (ip, source) in sources {
        let Some(source) = source else { continue };
        let to = format!("snat {ip} to {source}");
        let elsewhere = outside_of(&format!("{ip} saddr"), &masquerade.pod_cidrs, source.is_ipv6());
        let proxied = format!("ct status dnat meta mark & {PROXY_MARK} == {PROXY_MARK}");
        rules.extend(
            ["iif 0", &proxied].map(|origin| format!("oifname \"{device}\" {elsewhere} {origin} {to}")),
        );
    }
    rules
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::desired::SourceAddrs;

    fn nets<C: FromIterator<IpNet>, const N: usize>(texts: [&str; N]) -> C {
        texts.into_iter().map(|text| text.parse().unwrap()).collect()
    }

    fn masquerade() -> Masquerade {
        Masquerade {
            service_cidrs: nets(["10.96.0.0/16"]),
            remote_prefixes: nets(["10.1.0.0/16", "10.97.0.0/16", "fd00:2::/48"]),
            ..Masquerade::default()
        }
    }

    #[test]
    fn without_a_source_address_there_are_only_the_identity_rules() {
        let pods = nets(["10.1.0.0/24"]);
        let masquerade = Masquerade {
            pod_cidrs: pods,
            ..Masquerade::default()
        };
        let script = rules(&masquerade, "mc0").join("\n");
        assert_eq!(script.matches(" snat ").count(), 2);
        assert!(script.contains("oifname \"mc0\" snat ip to ip saddr"));
        assert!(script.contains("oifname \"mc0\" snat ip6 to ip6 saddr"));
        assert!(!script.contains("masquerade"));
    }

    #[test]
    fn a_gateway_masquerades_only_remote_clients_of_its_services() {
        let script = rules(&masquerade(), "mc0").join("\n");
        assert!(script.contains(
            "ip saddr { 10.1.0.0/16, 10.97.0.0/16 } ct original ip daddr { 10.96.0.0/16 } masquerade"
        ));
        assert!(!script.contains("ip6 saddr {"), "no IPv6 Services: {script}");
        let both = Masquerade {
            service_cidrs: nets(["10.96.0.0/16", "fd00:96::/108"]),
            ..masquerade()
        };
        assert!(rules(&both, "mc0").contains(
            &"ip6 saddr { fd00:2::/48 } ct original ip6 daddr { fd00:96::/108 } masquerade".into()
        ));
    }

    #[test]
    fn rules_for_host_packets_precede_those_for_pods() {
        let masquerade = Masquerade {
            pod_cidrs: nets(["10.1.0.0/24", "fd00:1::/64"]),
            sources: SourceAddrs {
                v4: Some([10, 1, 0, 1].into()),
                v6: Some("fd00:1::1".parse().unwrap()),
            },
            ..Masquerade::default()
        };
        let own = "oifname \"mc0\" ip saddr != { 10.1.0.0/24 }";
        let own6 = "oifname \"mc0\" ip6 saddr != { fd00:1::/64 }";
        let proxied = "ct status dnat meta mark & 0x4000 == 0x4000";
        assert_eq!(
            rules(&masquerade, "mc0"),
            [
                format!("{own} iif 0 snat ip to 10.1.0.1"),
                format!("{own} {proxied} snat ip to 10.1.0.1"),
                format!("{own6} iif 0 snat ip6 to fd00:1::1"),
                format!("{own6} {proxied} snat ip6 to fd00:1::1"),
                "oifname \"mc0\" snat ip to ip saddr".to_owned(),
                "oifname \"mc0\" snat ip6 to ip6 saddr".to_owned(),
            ]
        );
        // Pod addresses are independent of Nodes.
        let pods = [].into();
        let without = Masquerade {
            pod_cidrs: pods,
            ..masquerade.clone()
        };
        let first = &rules(&without, "mc0")[0];
        assert_eq!(
            first,
            "oifname \"mc0\" meta nfproto ipv4 iif 0 snat ip to 10.1.0.1"
        );
    }

    #[test]
    fn packets_to_antrea_gateways_get_the_gateway_ip_by_the_first_rule() {
        let masquerade = Masquerade {
            sources: SourceAddrs {
                v4: Some([10, 1, 0, 1].into()),
                v6: None,
            },
            antrea: AntreaInterop {
                prefixes: nets(["10.97.0.0/16", "10.2.0.0/16"]),
                aliases: [[10, 97, 0, 0].into()].into(),
                source: Some([192, 0, 2, 1].into()),
                local_prefixes: [].into(),
            },
            ..masquerade()
        };
        assert_eq!(
            rules(&masquerade, "mc0").first().map(String::as_str),
            Some(
                "oifname \"mc0\" ip daddr { 10.2.0.0/16, 10.97.0.0/16 } ip daddr != { 10.97.0.0 } snat ip to 192.0.2.1"
            )
        );
    }
}
