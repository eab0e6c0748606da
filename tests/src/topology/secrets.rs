//! Key pairs of the nodes, and the flags of their agents about secrets.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use mc_gateway::peer_secret::{self, PERIOD, PeerSecrets, PublicKey, private_key_text};
use mc_gateway_common::abi::SourceMac;

use super::plan::Place;
use crate::wait::wait_for;

/// Secrets between nodes. The manifests have the public keys of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Secrets {
    /// The default of the agents: packets without a secret are dropped.
    #[default]
    Required,
    /// Packets without a secret are accepted.
    Optional,
    /// Packets without a secret are accepted and sent.
    Off,
    /// The agent is of a release without secrets.
    Unknown,
}

impl Secrets {
    /// Adds the flags of the agent on a node, and writes its private key to a file in `directory`.
    pub(super) fn add_flags(self, command: &mut Command, place: Place, directory: &Path) -> Result<()> {
        let policy = match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Off => "off",
            Self::Unknown => return Ok(()),
        };
        let path = directory.join(format!("private-key-{}", place.name()));
        fs::write(&path, private_key_text(&private_key_of(place.name())))
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o600)))
            .with_context(|| format!("cannot write {}", path.display()))?;
        command
            .arg("--key-file")
            .arg(path)
            .args(["--node-secrets", policy]);
        if self != Self::Required {
            command.args(["--unkeyed-clusters", place.cluster().other().name()]);
        }
        Ok(())
    }
}

/// The private key of a host: its name.
fn private_key_of(name: &str) -> [u8; 32] {
    let mut key = [0; 32];
    for (byte, text) in key.iter_mut().zip(name.bytes()) {
        *byte = text;
    }
    key
}

/// Inner source MAC address of packets between two hosts, `periods` after the present period.
#[must_use]
pub fn source_mac_between(from: &str, to: &str, periods: i64) -> SourceMac {
    let period = peer_secret::period(SystemTime::now()).wrapping_add_signed(periods);
    PeerSecrets::new(private_key_of(from)).sent_mac(&public_key_of(to), period)
}

/// Waits until no period begins or ends nearby, for at most `margin` and 40 s. An agent notices a new period at its
/// resync (every 30 s) and accepts an older secret until then; packets of a test are of one period if they are sent
/// within `margin`.
pub fn wait_within_period(margin: Duration) -> Result<()> {
    let limit = margin + AGENTS_LAG + Duration::from_secs(1);
    wait_for("the middle of a period of secrets", limit, || {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if is_within_period(since_1970, margin) {
            Ok(())
        } else {
            Err(format!("{since_1970:?} since 1970"))
        }
    })
}

/// Longest time until an agent uses a new period, with its reconcile.
const AGENTS_LAG: Duration = Duration::from_secs(40);

fn is_within_period(since_1970: Duration, margin: Duration) -> bool {
    let since_begin = Duration::from_secs(since_1970.as_secs() % PERIOD.as_secs());
    (AGENTS_LAG..=PERIOD.saturating_sub(margin)).contains(&since_begin)
}

/// The public key of a host without an agent.
#[must_use]
pub fn public_key_of(name: &str) -> PublicKey {
    PeerSecrets::new(private_key_of(name)).public_key()
}

/// The public key of a node.
pub(super) fn public_key(place: Place) -> PublicKey {
    public_key_of(place.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector two periods away was accepted at ten o'clock: an agent was still in the period before.
    #[test]
    fn both_ends_of_a_period_are_avoided() {
        let margin = Duration::from_secs(100);
        for (second, within) in [(0, false), (39, false), (40, true), (3_500, true), (3_501, false)] {
            let at = Duration::from_secs(10 * 3_600 + second);
            assert_eq!(is_within_period(at, margin), within, "{second}");
        }
    }
}
