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
        fs::write(&path, private_key_text(&private_key(place)))
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o600)))
            .with_context(|| format!("cannot write {}", path.display()))?;
        command.arg("--key-file").arg(path).args(["--node-secrets", policy]);
        if self != Self::Required {
            command.args(["--unkeyed-clusters", place.cluster().other().name()]);
        }
        Ok(())
    }
}

/// The private key of a node: its name.
fn private_key(place: Place) -> [u8; 32] {
    let mut key = [0; 32];
    for (byte, text) in key.iter_mut().zip(place.name().bytes()) {
        *byte = text;
    }
    key
}

/// Inner source MAC address of packets between two nodes at present.
pub(super) fn source_mac(from: Place, to: Place) -> SourceMac {
    let now = peer_secret::period(SystemTime::now());
    PeerSecrets::new(private_key(from)).sent_mac(&public_key(to), now)
}

/// The public key of a node.
pub(super) fn public_key(place: Place) -> PublicKey {
    PeerSecrets::new(private_key(place)).public_key()
}
