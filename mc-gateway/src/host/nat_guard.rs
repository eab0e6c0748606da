//! The nftables table that keeps foreign masquerading away from cross-cluster packets, and masquerades
//! the ones that need it.
//!
//! `snat to ip saddr` maps an address to itself: the packet keeps its source, and later NAT chains (the
//! CNI's masquerade rule) are skipped because the connection has its mapping.

use std::fmt::Write as _;
use std::io;
use std::process::{Output, Stdio};

use ipnet::Ipv4Net;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::desired::Masquerade;

/// Family and name of our table.
pub const TABLE: &str = "ip mc_gateway";

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
    let body = rules(masquerade);
    let mark = mark(masquerade, device);
    format!(
        "add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat - 10; policy accept;\n\
         \t\toifname \"{device}\" snat to ip saddr comment \"{mark}\"\n{body}\t}}\n}}\n"
    )
}

fn rules(masquerade: &Masquerade) -> String {
    let Masquerade { services, remotes } = masquerade;
    let mut text = String::new();
    if services.is_empty() || remotes.is_empty() {
        return text;
    }
    let list = |nets: &mut dyn Iterator<Item = &Ipv4Net>| {
        let nets: Vec<String> = nets.map(ToString::to_string).collect();
        nets.join(", ")
    };
    let services = list(&mut services.iter());
    let remotes = list(&mut remotes.iter());
    // Writing into a String cannot fail.
    writeln!(
        text,
        "\t\tip saddr {{ {remotes} }} ct original ip daddr {{ {services} }} masquerade"
    )
    .unwrap_or_default();
    text
}

/// What a rule's comment says, so that a table we wrote is known again after a restart.
fn mark(masquerade: &Masquerade, device: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(device.as_bytes());
    hash.update([0]);
    hash.update(rules(masquerade).as_bytes());
    let digest = hash.finalize();
    let hex = digest.iter().take(8).fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap_or_default();
        hex
    });
    format!("mc-gateway {hex}")
}

/// Whether the table is as [`script`] makes it for `masquerade`.
pub async fn is_in_place(masquerade: &Masquerade, device: &str) -> Result<bool, NftError> {
    let output = run(&["-j", "list", "table", "ip", "mc_gateway"], "").await?;
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
    let expected = 1_usize.saturating_add(rules(masquerade).lines().count());
    comment == Some(mark(masquerade, device).as_str()) && rules_found.len() == expected
}

/// Replaces the table.
pub async fn write(masquerade: &Masquerade, device: &str) -> Result<(), NftError> {
    checked(&run(&["-f", "-"], &script(masquerade, device)).await?)
}

/// Removes the table, whether it is there or not.
pub async fn remove() -> Result<(), NftError> {
    // Adding first makes deleting succeed in any case.
    let script = format!("add table {TABLE}\ndelete table {TABLE}\n");
    checked(&run(&["-f", "-"], &script).await?)
}

fn checked(output: &Output) -> Result<(), NftError> {
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

    fn masquerade() -> Masquerade {
        Masquerade {
            services: ["10.96.0.0/16".parse().unwrap()].into(),
            remotes: ["10.1.0.0/16".parse().unwrap(), "10.97.0.0/16".parse().unwrap()].into(),
        }
    }

    #[test]
    fn regular_node_has_only_the_identity_rule() {
        let script = script(&Masquerade::default(), "mc0");
        assert!(script.contains("type nat hook postrouting priority srcnat - 10; policy accept;"));
        assert!(script.contains("oifname \"mc0\" snat to ip saddr"));
        assert!(!script.contains("masquerade"));
    }

    #[test]
    fn gateway_masquerades_only_remote_clients_of_its_services() {
        let script = script(&masquerade(), "mc0");
        assert!(script.contains(
            "ip saddr { 10.1.0.0/16, 10.97.0.0/16 } ct original ip daddr { 10.96.0.0/16 } masquerade"
        ));
    }

    #[test]
    fn a_table_is_known_again_by_mark_and_size() {
        let json = |mark: &str, rules: usize| {
            let more = ",{\"rule\":{\"expr\":[]}}".repeat(rules - 1);
            format!("{{\"nftables\":[{{\"metainfo\":{{}}}},{{\"rule\":{{\"comment\":\"{mark}\"}}}}{more}]}}")
        };
        let masquerade = masquerade();
        let mark = mark(&masquerade, "mc0");
        assert!(matches(&json(&mark, 2), &masquerade, "mc0"));
        assert!(!matches(&json(&mark, 1), &masquerade, "mc0"), "a rule is missing");
        assert!(!matches(&json("mc-gateway 00", 2), &masquerade, "mc0"));
        assert!(!matches(&json(&mark, 2), &masquerade, "mc1"));
        assert!(!matches("", &masquerade, "mc0"));
    }
}
