//! The nftables table that exempts cross-cluster packets from foreign masquerading, and changes sources that other
//! clusters cannot reply to.
//!
//! `snat ip to ip saddr` maps an address to itself: the packet keeps its source, and later NAT chains (the
//! CNI's masquerade rule) are skipped because the connection has its mapping. One `inet` table serves both families
//! (kernel 5.2).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::process::{Output, Stdio};

use ipnet::IpNet;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::cidr::is_ipv6;
use crate::desired::{AntreaInterop, Masquerade};

/// Family and name of the table.
pub const TABLE: &str = "inet mc_gateway";

/// The table of IPv4-only versions.
const LEGACY_TABLE: &str = "ip mc_gateway";

/// Mark of packets that kube-proxy masquerades, in all its modes (`masqueradeBit: 14`).
const PROXY_MARK: &str = "0x4000";

/// nftables was not read or written.
#[derive(Debug, Error)]
pub enum NftError {
    /// `nft` cannot be run.
    #[error("nft: cannot be run ({0}); install nftables")]
    Run(io::Error),
    /// `nft` failed.
    #[error("nft: {message}")]
    Failed {
        /// Its error output.
        message: String,
    },
}

/// The script that creates the table or replaces an older version, in one transaction.
#[must_use]
pub fn script(masquerade: &Masquerade, device: &str) -> String {
    let rules = rules(masquerade, device);
    let filters = filter_chains(&masquerade.antrea, device);
    let mark = fingerprint(&[rules.as_slice(), &filters.concat()].concat());
    // The first rule carries the fingerprint.
    let comment = format!(" comment \"{mark}\"");
    let comments = std::iter::once(comment.as_str()).chain(std::iter::repeat(""));
    let body = rules
        .iter()
        .zip(comments)
        .fold(String::new(), |mut body, (rule, comment)| {
            // Writing into a String cannot fail.
            writeln!(body, "\t\t{rule}{comment}").unwrap_or_default();
            body
        });
    let delete = delete_tables();
    let chains = FILTER_CHAINS
        .iter()
        .zip(&filters)
        .filter(|(_, rules)| !rules.is_empty());
    let chains = chains.fold(String::new(), |mut text, ((name, hook), rules)| {
        let rules = rules.join("\n\t\t");
        let head = format!("\tchain {name} {{\n\t\ttype filter hook {hook}; policy accept;");
        writeln!(text, "{head}\n\t\t{rules}\n\t}}").unwrap_or_default();
        text
    });
    format!(
        "{delete}table {TABLE} {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat - 10; policy accept;\n\
         {body}\t}}\n{chains}}}\n"
    )
}

/// Removes both tables; they are added first, so that the removal succeeds.
fn delete_tables() -> String {
    [LEGACY_TABLE, TABLE]
        .map(|table| format!("add table {table}\ndelete table {table}\n"))
        .concat()
}

/// The rules in order; the first match of a connection applies.
fn rules(masquerade: &Masquerade, device: &str) -> Vec<String> {
    let mut rules: Vec<String> = antrea_snat_rule(&masquerade.antrea, device).into_iter().collect();
    rules.extend(host_snat_rules(masquerade, device));
    let mapping = |ip| format!("oifname \"{device}\" snat {ip} to {ip} saddr");
    rules.extend(["ip", "ip6"].map(mapping));
    for (ip, v6) in [("ip", false), ("ip6", true)] {
        let services = join_nets(&masquerade.service_cidrs, v6);
        let remotes = join_nets(&masquerade.remote_prefixes, v6);
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

/// Filter chains with their hooks.
const FILTER_CHAINS: [(&str, &str); 2] = [
    // After connection tracking, before any destination NAT.
    ("prerouting", "prerouting priority mangle"),
    ("output", "output priority filter"),
];

/// The rules of [`FILTER_CHAINS`]: from the tunnel only replies are accepted for the own `gatewayIP`, and no ICMP
/// redirects are sent for packets that enter and leave through `mc0`.
fn filter_chains(antrea: &AntreaInterop, device: &str) -> [Vec<String>; 2] {
    let Some(source) = antrea.source else {
        return Default::default();
    };
    let to_us = format!("iifname \"{device}\" ip daddr {source}");
    let requests = format!("{to_us} ct direction original counter drop");
    let untracked = format!("{to_us} ct state invalid,untracked counter drop");
    let redirect = format!("oifname \"{device}\" icmp type redirect drop");
    [vec![requests, untracked], vec![redirect]]
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
        let pods = join_nets(&masquerade.pod_cidrs, source.is_ipv6());
        let elsewhere = if pods.is_empty() {
            format!("meta nfproto {}", if source.is_ipv6() { "ipv6" } else { "ipv4" })
        } else {
            format!("{ip} saddr != {{ {pods} }}")
        };
        let proxied = format!("ct status dnat meta mark & {PROXY_MARK} == {PROXY_MARK}");
        rules.extend(
            ["iif 0", &proxied].map(|origin| format!("oifname \"{device}\" {elsewhere} {origin} {to}")),
        );
    }
    rules
}

fn join_nets(nets: &BTreeSet<IpNet>, v6: bool) -> String {
    let nets = nets.iter().filter(|net| is_ipv6(**net) == v6);
    let nets: Vec<String> = nets.map(ToString::to_string).collect();
    nets.join(", ")
}

/// Comment with a hash of the rules, which identifies an unchanged table after a restart.
fn fingerprint(rules: &[String]) -> String {
    let mut hash = Sha256::new();
    for rule in rules {
        hash.update(rule.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let short: Vec<u8> = digest.iter().copied().take(8).collect();
    format!("mc-gateway {}", hex::encode(short))
}

/// Whether the table has the rules of [`script`] for `masquerade`.
pub async fn is_current(masquerade: &Masquerade, device: &str) -> Result<bool, NftError> {
    let output = run(&["-j", "list", "table", "inet", "mc_gateway"], "").await?;
    if !output.status.success() {
        return Ok(false);
    }
    Ok(matches(
        &String::from_utf8_lossy(&output.stdout),
        masquerade,
        device,
    ))
}

/// Whether the output of `nft -j list table` is the table of `masquerade`: same fingerprint and number of rules.
fn matches(json: &str, masquerade: &Masquerade, device: &str) -> bool {
    let Ok(document) = serde_json::from_str::<Value>(json) else {
        return false;
    };
    let Some(items) = document.get("nftables").and_then(Value::as_array) else {
        return false;
    };
    let rules_found: Vec<&Value> = items.iter().filter_map(|item| item.get("rule")).collect();
    let comment = rules_found
        .first()
        .and_then(|rule| rule.get("comment"))
        .and_then(Value::as_str);
    let filters = filter_chains(&masquerade.antrea, device).concat();
    let all = [rules(masquerade, device), filters].concat();
    comment == Some(fingerprint(&all).as_str()) && rules_found.len() == all.len()
}

/// Replaces the table.
pub async fn write(masquerade: &Masquerade, device: &str) -> Result<(), NftError> {
    check_status(&run(&["-f", "-"], &script(masquerade, device)).await?)
}

/// Removes the table, if present.
pub async fn remove() -> Result<(), NftError> {
    check_status(&run(&["-f", "-"], &delete_tables()).await?)
}

fn check_status(output: &Output) -> Result<(), NftError> {
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NftError::Failed { message })
}

async fn run(args: &[&str], input: &str) -> Result<Output, NftError> {
    let mut child = Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(NftError::Run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // nft may stop reading early; its exit status is more precise than a broken pipe.
        match stdin.write_all(input.as_bytes()).await {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(NftError::Run(error)),
            _ => {}
        }
    }
    child.wait_with_output().await.map_err(NftError::Run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::SourceAddrs;

    fn nets<const N: usize>(texts: [&str; N]) -> BTreeSet<IpNet> {
        texts.map(|text| text.parse().unwrap()).into()
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
        let script = script(&masquerade, "mc0");
        assert_eq!(script.matches(" snat ").count(), 2);
        assert!(script.contains("type nat hook postrouting priority srcnat - 10; policy accept;"));
        assert!(script.contains("oifname \"mc0\" snat ip to ip saddr"));
        assert!(script.contains("oifname \"mc0\" snat ip6 to ip6 saddr"));
        assert!(!script.contains("masquerade"));
    }

    #[test]
    fn a_gateway_masquerades_only_remote_clients_of_its_services() {
        let script = script(&masquerade(), "mc0");
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
        let pods = BTreeSet::new();
        let without = Masquerade {
            pod_cidrs: pods,
            ..masquerade.clone()
        };
        let first = &rules(&without, "mc0")[0];
        assert_eq!(
            first,
            "oifname \"mc0\" meta nfproto ipv4 iif 0 snat ip to 10.1.0.1"
        );
        let script = script(&masquerade, "mc0");
        assert_eq!(script.matches("comment").count(), 1);
        assert!(
            script.contains("snat ip to 10.1.0.1 comment \"mc-gateway "),
            "{script}"
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
                local_prefixes: BTreeSet::new(),
            },
            ..masquerade()
        };
        assert_eq!(
            rules(&masquerade, "mc0").first().map(String::as_str),
            Some(
                "oifname \"mc0\" ip daddr { 10.2.0.0/16, 10.97.0.0/16 } ip daddr != { 10.97.0.0 } snat ip to 192.0.2.1"
            )
        );
        let script = script(&masquerade, "mc0");
        let filter = "\tchain prerouting {\n\t\ttype filter hook prerouting priority mangle; policy accept;\n\t\tiifname \"mc0\" ip daddr 192.0.2.1 ct direction original counter drop\n";
        assert!(script.contains(filter), "{script}");
        assert_eq!(script.matches("comment").count(), 1);
        assert!(
            filter_chains(&AntreaInterop::default(), "mc0")
                .concat()
                .is_empty()
        );
    }

    #[test]
    fn the_table_of_an_ipv4_only_version_is_removed() {
        let script = script(&masquerade(), "mc0");
        assert!(script.starts_with("add table ip mc_gateway\ndelete table ip mc_gateway\n"));
    }

    #[test]
    fn a_table_is_identified_by_fingerprint_and_size() {
        let json = |mark: &str, rules: usize| {
            let more = ",{\"rule\":{\"expr\":[]}}".repeat(rules - 1);
            format!("{{\"nftables\":[{{\"metainfo\":{{}}}},{{\"rule\":{{\"comment\":\"{mark}\"}}}}{more}]}}")
        };
        let masquerade = masquerade();
        let mark = fingerprint(&rules(&masquerade, "mc0"));
        assert!(matches(&json(&mark, 3), &masquerade, "mc0"));
        assert!(!matches(&json(&mark, 2), &masquerade, "mc0"), "a rule is missing");
        assert!(!matches(&json("mc-gateway 00", 3), &masquerade, "mc0"));
        assert!(!matches(&json(&mark, 3), &masquerade, "mc1"));
        assert!(!matches("", &masquerade, "mc0"));
    }
}
