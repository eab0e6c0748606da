//! Key pairs of the nodes, and the flags of their agents about secrets.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::SystemTime,
};

use anyhow::{Context as _, Result};
use mc_gateway::peer_secret::{self, PeerSecrets, PublicKey, private_key_text};
use mc_gateway_common::abi::SourceMac;

use super::plan::Place;

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

/// The public key of a host without an agent.
#[must_use]
pub fn public_key_of(name: &str) -> PublicKey {
    PeerSecrets::new(private_key_of(name)).public_key()
}

/// The public key of a node.
pub(super) fn public_key(place: Place) -> PublicKey {
    public_key_of(place.name())
}
