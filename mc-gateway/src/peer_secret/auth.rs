//! Authentication of packets from and to another node.

use clap::ValueEnum;

use super::PublicKey;

/// Use of secrets with a node. Neighbours in this order understand each other, so that an upgrade passes from one to
/// the next, node by node, without loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SecretPolicy {
    /// Packets without the secret are neither accepted nor sent.
    #[default]
    Required,
    /// Packets without the secret are accepted; those to a node with a public key have it.
    Optional,
    /// Packets without the secret are accepted and sent, as by releases without secrets.
    Off,
}

/// How packets of another node are authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerAuth {
    /// By the secret shared with this public key.
    Required(PublicKey),
    /// Not at all. Packets to the node have a secret if its public key is known.
    Optional(Option<PublicKey>),
    /// Not at all, and packets to the node have no secret.
    Off(Option<PublicKey>),
    /// The public key is missing: no packet is accepted or sent.
    #[default]
    Missing,
}

impl PeerAuth {
    /// For a node with this public key.
    #[must_use]
    pub fn new(key: Option<PublicKey>, policy: SecretPolicy) -> Self {
        match (policy, key) {
            (SecretPolicy::Required, Some(key)) => Self::Required(key),
            (SecretPolicy::Required, None) => Self::Missing,
            (SecretPolicy::Optional, key) => Self::Optional(key),
            (SecretPolicy::Off, key) => Self::Off(key),
        }
    }

    /// The public key whose secret packets of the node may have.
    #[must_use]
    pub fn received_key(&self) -> Option<&PublicKey> {
        match self {
            Self::Required(key) => Some(key),
            Self::Optional(key) | Self::Off(key) => key.as_ref(),
            Self::Missing => None,
        }
    }

    /// The public key whose secret packets to the node have.
    #[must_use]
    pub fn sent_key(&self) -> Option<&PublicKey> {
        match self {
            Self::Off(_) => None,
            _ => self.received_key(),
        }
    }

    /// Whether packets without a secret are accepted.
    #[must_use]
    pub fn accepts_unkeyed(&self) -> bool {
        matches!(self, Self::Optional(_) | Self::Off(_))
    }
}
