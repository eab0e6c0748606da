//! The public key of a node.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

/// An X25519 public key (RFC 7748), in text as base64 (RFC 4648) with padding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

/// A text that is no public key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("is not a public key: 32 bytes in base64")]
pub struct PublicKeyError;

impl PublicKey {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let bytes = STANDARD.decode(text).map_err(|_| PublicKeyError)?;
        bytes.try_into().map(Self).map_err(|_| PublicKeyError)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<x25519_dalek::PublicKey> for PublicKey {
    fn from(key: x25519_dalek::PublicKey) -> Self {
        Self(key.to_bytes())
    }
}

impl From<PublicKey> for x25519_dalek::PublicKey {
    fn from(key: PublicKey) -> Self {
        Self::from(key.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_is_32_bytes_in_base64() {
        let text = "Xqt4MMzuzhTP/BBbcbBPpDQCVpcJ/AG6ewo8Ty1KZkE=";
        assert_eq!(text.parse::<PublicKey>().unwrap().to_string(), text);
        for wrong in [
            "",
            "Xqt4",
            &text[1..],
            &format!("{text}A"),
            "not base64 at all, not even 32 bytes ==",
        ] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(PublicKeyError), "{wrong}");
        }
    }
}
