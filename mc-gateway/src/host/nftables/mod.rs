//! The agent's nftables table: source NAT of cross-cluster packets, and filters against forged and unwanted ones.
//!
//! One `inet` table serves both families (kernel 5.2).

mod counters;
mod filter;
mod listing;
mod nets;
mod snat;

use std::fmt::Write as _;
use std::io;
use std::process::{Output, Stdio};

use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::resolved::NftRules;
pub use counters::read_counters;
pub use listing::Listing;

/// Family and name of the table.
pub const TABLE: &str = "inet mc_gateway";

/// The table of IPv4-only versions.
const LEGACY_TABLE: &str = "ip mc_gateway";

/// Arguments of `nft` that list the table.
const LIST: [&str; 5] = ["-j", "list", "table", "inet", "mc_gateway"];

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

/// A base chain with its rules.
struct Chain {
    name: &'static str,
    /// Type, hook and priority.
    hook: String,
    rules: Vec<String>,
}

impl Chain {
    fn filter(name: &'static str, hook: &str, rules: Vec<String>) -> Self {
        Self {
            name,
            hook: format!("filter hook {hook}"),
            rules,
        }
    }
}

/// The chains with rules, in the order of the table.
fn chains(rules: &NftRules, device: &str) -> Vec<Chain> {
    let snat = Chain {
        name: "postrouting",
        hook: "nat hook postrouting priority srcnat - 10".to_owned(),
        rules: snat::rules(&rules.masquerade, device),
    };
    let filters = filter::chains(rules, device);
    let all = std::iter::once(snat).chain(filters);
    all.filter(|chain| !chain.rules.is_empty()).collect()
}

/// The script that creates the table or replaces an older version, in one transaction.
#[must_use]
pub fn script(rules: &NftRules, device: &str) -> String {
    let chains = chains(rules, device);
    let mark = fingerprint(&chains);
    let mut script = delete_tables();
    // Writing into a String cannot fail.
    writeln!(script, "table {TABLE} {{").unwrap_or_default();
    // The first rule carries the fingerprint.
    let mut comment = format!(" comment \"{mark}\"");
    for Chain { name, hook, rules } in &chains {
        writeln!(script, "\tchain {name} {{\n\t\ttype {hook}; policy accept;").unwrap_or_default();
        for rule in rules {
            writeln!(script, "\t\t{rule}{}", std::mem::take(&mut comment)).unwrap_or_default();
        }
        script.push_str("\t}\n");
    }
    script.push_str("}\n");
    script
}

/// Removes both tables; they are added first, so that the removal succeeds.
fn delete_tables() -> String {
    [LEGACY_TABLE, TABLE]
        .map(|table| format!("add table {table}\ndelete table {table}\n"))
        .concat()
}

/// Comment with a hash of the rules, which identifies an unchanged table after a restart.
fn fingerprint(chains: &[Chain]) -> String {
    let mut hash = Sha256::new();
    for chain in chains {
        for text in [chain.name, &chain.hook]
            .into_iter()
            .chain(chain.rules.iter().map(String::as_str))
        {
            hash.update(text.as_bytes());
            hash.update([0]);
        }
    }
    let digest = hash.finalize();
    let short: Vec<u8> = digest.iter().copied().take(8).collect();
    format!("mc-gateway {}", hex::encode(short))
}

/// The table; none if it does not exist.
pub async fn read() -> Result<Option<Listing>, NftError> {
    let output = run(&LIST, "").await?;
    if !output.status.success() {
        return Ok(None);
    }
    Ok(Listing::parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Replaces the table.
pub async fn write(rules: &NftRules, device: &str) -> Result<(), NftError> {
    check_status(&run(&["-f", "-"], &script(rules, device)).await?)
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
    use crate::resolved::PacketFilter;

    fn nft_rules() -> NftRules {
        NftRules {
            filter: PacketFilter {
                port: 6081,
                ..PacketFilter::default()
            },
            ..NftRules::default()
        }
    }

    #[test]
    fn the_first_rule_has_the_fingerprint() {
        let script = script(&nft_rules(), "mc0");
        let snat = "\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat - 10; policy accept;\n\
                    \t\toifname \"mc0\" snat ip to ip saddr comment \"mc-gateway ";
        assert!(script.contains(snat), "{script}");
        assert_eq!(script.matches("comment \"mc-gateway ").count(), 1);
        let guard = "\tchain output {\n\t\ttype filter hook output priority filter; policy accept;\n\t\tudp dport 6081 ";
        assert!(script.contains(guard), "{script}");
        for reason in filter::REASONS {
            assert_eq!(
                script.contains(reason),
                reason == filter::TUNNEL_GUARD || reason == filter::NOT_FOR_NODES
            );
        }
    }

    #[test]
    fn the_table_of_an_ipv4_only_version_is_removed() {
        let script = script(&nft_rules(), "mc0");
        assert!(script.starts_with("add table ip mc_gateway\ndelete table ip mc_gateway\n"));
    }
}
