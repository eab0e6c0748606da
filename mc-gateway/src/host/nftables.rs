//! The nftables table that keeps foreign masquerading away from cross-cluster packets, and gives those
//! another source that could not be answered with the one they have.
//!
//! `snat ip to ip saddr` maps an address to itself: the packet keeps its source, and later NAT chains (the
//! CNI's masquerade rule) are skipped because the connection has its mapping. One `inet` table does it
//! for both families (kernel 5.2).

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

/// Family and name of our table.
pub const TABLE: &str = "inet mc_gateway";

/// The table of versions that knew IPv4 only.
const LEGACY_TABLE: &str = "ip mc_gateway";

/// What kube-proxy marks packets with that it wants to masquerade, in all its modes (`masqueradeBit: 14`).
const PROXY_MARK: &str = "0x4000";

/// Why nftables was not read or written.
#[derive(Debug, Error)]
pub enum NftError {
    /// The program cannot be run.
    #[error("nft: cannot be run ({0}); install the package nftables")]
    Run(io::Error),
    /// The program refused.
    #[error("nft: {message}")]
    Failed {
        /// What it printed.
        message: String,
    },
}

/// The script that makes the table from nothing or from an older version, in one transaction.
#[must_use]
pub fn script(masquerade: &Masquerade, device: &str) -> String {
    let rules = rules(masquerade, device);
    let guards = filter_chains(&masquerade.antrea, device);
    let mark = fingerprint(&[rules.as_slice(), &guards.concat()].concat());
    // Only the first rule says whose it is.
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
    let none = delete_tables();
    let chains = FILTER_CHAINS
        .iter()
        .zip(&guards)
        .filter(|(_, rules)| !rules.is_empty());
    let chains = chains.fold(String::new(), |mut text, ((name, hook), rules)| {
        let rules = rules.join("\n\t\t");
        let head = format!("\tchain {name} {{\n\t\ttype filter hook {hook}; policy accept;");
        writeln!(text, "{head}\n\t\t{rules}\n\t}}").unwrap_or_default();
        text
    });
    format!(
        "{none}table {TABLE} {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat - 10; policy accept;\n\
         {body}\t}}\n{chains}}}\n"
    )
}

/// Removes both tables; adding them first makes that succeed in any case.
fn delete_tables() -> String {
    [LEGACY_TABLE, TABLE]
        .map(|table| format!("add table {table}\ndelete table {table}\n"))
        .concat()
}

/// The rules in order; the first one that matches a connection decides.
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

/// Gives all that leaves for clusters with Antrea gateways our own `gatewayIP` as source, which is all they
/// answer to. What they have asked for is answered with the source it has.
fn antrea_snat_rule(antrea: &AntreaInterop, device: &str) -> Option<String> {
    let source = antrea.source?;
    let prefixes = join_nets(&antrea.prefixes, false);
    if prefixes.is_empty() {
        return None;
    }
    let aliases: Vec<String> = antrea.aliases.iter().map(ToString::to_string).collect();
    let but = if aliases.is_empty() {
        String::new()
    } else {
        format!(" ip daddr != {{ {} }}", aliases.join(", "))
    };
    Some(format!(
        "oifname \"{device}\" ip daddr {{ {prefixes} }}{but} snat ip to {source}"
    ))
}

/// Chains besides the one that translates, with their hooks.
const FILTER_CHAINS: [(&str, &str); 2] = [
    // Behind connection tracking, in front of anybody's destination NAT.
    ("prerouting", "prerouting priority mangle"),
    ("output", "output priority filter"),
];

/// The rules of [`GUARDS`]: of what comes through the tunnel to our own `gatewayIP` only replies get in, and
/// nobody is told that there is a shorter way than in by `mc0` and out again.
fn filter_chains(antrea: &AntreaInterop, device: &str) -> [Vec<String>; 2] {
    let Some(source) = antrea.source else {
        return Default::default();
    };
    let to_us = format!("iifname \"{device}\" ip daddr {source}");
    let asked = format!("{to_us} ct direction original counter drop");
    let unknown = format!("{to_us} ct state invalid,untracked counter drop");
    let redirect = format!("oifname \"{device}\" icmp type redirect drop");
    [vec![asked, unknown], vec![redirect]]
}

/// Gives packets that are not from Pods of this Node a source other clusters can answer to: those of this
/// host, which came in nowhere (`iif 0`; kernel 5.7), and those a service proxy sends on and wants to
/// masquerade. A proxy of this host that speaks with a Pod's address keeps that. What somebody else sends through this host is left as it is, and refused at the gateway.
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
        let sent_on = format!("ct status dnat meta mark & {PROXY_MARK} == {PROXY_MARK}");
        rules.extend(
            ["iif 0", &sent_on].map(|whose| format!("oifname \"{device}\" {elsewhere} {whose} {to}")),
        );
    }
    rules
}

fn join_nets(nets: &BTreeSet<IpNet>, v6: bool) -> String {
    let nets = nets.iter().filter(|net| is_ipv6(**net) == v6);
    let nets: Vec<String> = nets.map(ToString::to_string).collect();
    nets.join(", ")
}

/// What a rule's comment says, so that a table we wrote is known again after a restart.
fn fingerprint(rules: &[String]) -> String {
    let mut hash = Sha256::new();
    for rule in rules {
        hash.update(rule.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let hex = digest.iter().take(8).fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap_or_default();
        hex
    });
    format!("mc-gateway {hex}")
}

/// Whether the table is as [`script`] makes it for `masquerade`.
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

/// Whether `nft -j list table` printed the table of `masquerade`: the mark and the number of rules.
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
    let guards = filter_chains(&masquerade.antrea, device).concat();
    let all = [rules(masquerade, device), guards].concat();
    comment == Some(fingerprint(&all).as_str()) && rules_found.len() == all.len()
}

/// Replaces the table.
pub async fn write(masquerade: &Masquerade, device: &str) -> Result<(), NftError> {
    check_status(&run(&["-f", "-"], &script(masquerade, device)).await?)
}

/// Removes the table, whether it is there or not.
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
        // nft may stop reading early; its exit status says more than our broken pipe.
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
    fn without_an_address_among_the_pods_there_are_only_the_identity_rules() {
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
    fn gateway_masquerades_only_remote_clients_of_its_services() {
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
    fn the_nodes_own_packets_are_decided_on_before_those_of_pods() {
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
        let sent_on = "ct status dnat meta mark & 0x4000 == 0x4000";
        assert_eq!(
            rules(&masquerade, "mc0"),
            [
                format!("{own} iif 0 snat ip to 10.1.0.1"),
                format!("{own} {sent_on} snat ip to 10.1.0.1"),
                format!("{own6} iif 0 snat ip6 to fd00:1::1"),
                format!("{own6} {sent_on} snat ip6 to fd00:1::1"),
                "oifname \"mc0\" snat ip to ip saddr".to_owned(),
                "oifname \"mc0\" snat ip6 to ip6 saddr".to_owned(),
            ]
        );
        // Where Pods' addresses follow no Node.
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
    fn what_leaves_for_antrea_gateways_gets_our_gateway_ip_first_of_all() {
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
        let guard = "\tchain prerouting {\n\t\ttype filter hook prerouting priority mangle; policy accept;\n\t\tiifname \"mc0\" ip daddr 192.0.2.1 ct direction original counter drop\n";
        assert!(script.contains(guard), "{script}");
        assert_eq!(script.matches("comment").count(), 1);
        assert!(
            filter_chains(&AntreaInterop::default(), "mc0")
                .concat()
                .is_empty()
        );
    }

    #[test]
    fn the_table_of_an_ipv4_only_version_goes_with_the_new_one() {
        let script = script(&masquerade(), "mc0");
        assert!(script.starts_with("add table ip mc_gateway\ndelete table ip mc_gateway\n"));
    }

    #[test]
    fn a_table_is_known_again_by_mark_and_size() {
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
