//! The agent's nftables tables: source NAT of cross-cluster packets, filters against forged and unwanted ones, and the
//! guard of Pods.
//!
//! An `inet` table serves both families (kernel 5.2). The guard changes with every Pod and has tables of its own, so
//! that the counters of the other one continue.

mod counters;
mod filter;
mod listing;
mod nets;
pub mod pod_guard;
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

/// Family and name of the table of source NAT and filters.
const TABLE: &str = "inet mc_gateway";

/// Families and names of all tables.
pub const TABLES: [&str; 3] = [TABLE, pod_guard::INET_TABLE, pod_guard::BRIDGE_TABLE];

/// The table of IPv4-only versions.
const LEGACY_TABLE: &str = "ip mc_gateway";

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

/// A chain with its rules.
struct Chain {
    name: &'static str,
    /// Type, hook and priority; empty if only rules lead to it.
    hook: String,
    rules: Vec<String>,
}

/// A named set.
struct NamedSet {
    name: String,
    /// Type of the elements.
    kind: &'static str,
    elements: Vec<String>,
}

/// A table. Its first rule has no comment.
struct Table {
    /// Family and name.
    name: &'static str,
    sets: Vec<NamedSet>,
    /// Chains with rules.
    chains: Vec<Chain>,
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

/// The table with the rules, and its chains in their order.
fn table(rules: &NftRules, device: &str) -> Table {
    let snat = Chain {
        name: "postrouting",
        hook: "nat hook postrouting priority srcnat - 10".to_owned(),
        rules: snat::rules(&rules.masquerade, device),
    };
    let filters = filter::chains(rules, device);
    let all = std::iter::once(snat).chain(filters);
    Table {
        name: TABLE,
        sets: Vec::new(),
        chains: all.filter(|chain| !chain.rules.is_empty()).collect(),
    }
}

/// The script that creates the table or replaces an older version, in one transaction.
#[must_use]
pub fn script(rules: &NftRules, device: &str) -> String {
    delete_tables() + &table(rules, device).script()
}

/// Removes both tables.
fn delete_tables() -> String {
    [LEGACY_TABLE, TABLE].map(delete).concat()
}

/// Removes a table; it is added first, so that the removal succeeds.
fn delete(table: &str) -> String {
    format!("add table {table}\ndelete table {table}\n")
}

// === impl Table ===

impl Table {
    /// The commands that create the table.
    fn script(&self) -> String {
        let mut script = format!("table {} {{\n", self.name);
        // Writing into a String cannot fail.
        for NamedSet { name, kind, elements } in &self.sets {
            writeln!(script, "\tset {name} {{\n\t\ttype {kind}").unwrap_or_default();
            if !elements.is_empty() {
                writeln!(script, "\t\telements = {{ {} }}", elements.join(", ")).unwrap_or_default();
            }
            script.push_str("\t}\n");
        }
        // The first rule carries the fingerprint.
        let mut comment = format!(" comment \"{}\"", self.fingerprint());
        for Chain { name, hook, rules } in &self.chains {
            writeln!(script, "\tchain {name} {{").unwrap_or_default();
            if !hook.is_empty() {
                writeln!(script, "\t\ttype {hook}; policy accept;").unwrap_or_default();
            }
            for rule in rules {
                writeln!(script, "\t\t{rule}{}", std::mem::take(&mut comment)).unwrap_or_default();
            }
            script.push_str("\t}\n");
        }
        script.push_str("}\n");
        script
    }

    /// Comment with a hash of sets and rules, which identifies an unchanged table after a restart.
    fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |texts: &[String]| {
            for text in texts {
                hash.update(text.as_bytes());
                hash.update([0]);
            }
        };
        for NamedSet { name, kind, elements } in &self.sets {
            add(&[name.clone(), (*kind).to_owned()]);
            add(elements);
        }
        for Chain { name, hook, rules } in &self.chains {
            add(&[(*name).to_owned(), hook.clone()]);
            add(rules);
        }
        let digest = hash.finalize();
        let short: Vec<u8> = digest.iter().copied().take(8).collect();
        format!("mc-gateway {}", hex::encode(short))
    }
}

/// The table with the rules; none if it does not exist.
pub async fn read() -> Result<Option<Listing>, NftError> {
    read_table(TABLE).await
}

/// Arguments of `nft` that list a table.
fn list(table: &'static str) -> impl Iterator<Item = &'static str> {
    ["-j", "list", "table"].into_iter().chain(table.split(' '))
}

async fn read_table(table: &'static str) -> Result<Option<Listing>, NftError> {
    let args: Vec<_> = list(table).collect();
    let output = run(&args, "").await?;
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
