//! The secrets of pairs of peers, from their key pairs and the time.
//!
//! Both nodes derive a secret for each direction from the X25519 shared secret (RFC 7748), their public keys and the
//! period of the clock, with HKDF-SHA-256 (RFC 5869). A packet has 40 bits of it in its inner source MAC address.

mod auth;
mod key_file;
mod public_key;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hkdf::Hkdf;
use mc_gateway_common::abi::{SECRET_SLOTS, SourceMac};
use sha2::Sha256;
use x25519_dalek::StaticSecret;

pub use auth::{PeerAuth, SecretPolicy};
pub use key_file::{KeyFileError, load_or_create, private_key_text};
pub use public_key::{PublicKey, PublicKeyError};

/// Length of a period. Packets with a secret of the previous, the present and the next one are accepted: clocks may
/// differ by as much.
pub const PERIOD: Duration = Duration::from_hours(1);

/// Context of the derivation; another use of the same keys has another one.
const CONTEXT: &[u8] = b"mc-gateway inner source MAC address v1";

/// The period at `now`; 0 before 1970.
#[must_use]
pub fn period(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().checked_div(PERIOD.as_secs()).unwrap_or_default()
}

/// The key pair of this node, and the keys it shares with others.
#[derive(Clone)]
pub struct PeerSecrets {
    private: StaticSecret,
    public: PublicKey,
    /// By public key of the other node; none for a key without a shared secret.
    shared: BTreeMap<PublicKey, Option<Hkdf<Sha256>>>,
}

impl fmt::Debug for PeerSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerSecrets")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

impl PeerSecrets {
    /// With the private key of this node.
    #[must_use]
    pub fn new(private: [u8; 32]) -> Self {
        let private = StaticSecret::from(private);
        let public = PublicKey::from(x25519_dalek::PublicKey::from(&private));
        Self {
            private,
            public,
            shared: BTreeMap::new(),
        }
    }

    /// The public key of this node.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Keeps the secrets shared with `keys` and no others: an agreement takes some 50 µs, a derivation 1 µs.
    pub fn retain(&mut self, keys: &BTreeSet<PublicKey>) {
        self.shared.retain(|key, _| keys.contains(key));
        for key in keys {
            if !self.shared.contains_key(key) {
                self.shared.insert(*key, self.agree(key));
            }
        }
    }

    /// Inner source MAC address of packets to the node with this public key; without a shared secret the one that has
    /// none.
    #[must_use]
    pub fn sent_mac(&self, to: &PublicKey, period: u64) -> SourceMac {
        self.derive(to, (&self.public, to), period)
            .unwrap_or(SourceMac::UNKEYED)
    }

    /// Accepted inner source MAC addresses of packets from the node with this public key, as in
    /// [`Peer::source_macs`](mc_gateway_common::abi::Peer::source_macs).
    #[must_use]
    pub fn received_macs(&self, from: &PublicKey, period: u64) -> [u64; SECRET_SLOTS] {
        let mut macs = [0; SECRET_SLOTS];
        for period in period.saturating_sub(1)..=period.saturating_add(1) {
            let Some(mac) = self.derive(from, (from, &self.public), period) else {
                continue;
            };
            if let Some(slot) = macs.get_mut(mac.slot()) {
                *slot = mac.to_bits();
            }
        }
        macs
    }

    /// None if the key of the other node is of low order: the result of the agreement is public.
    fn agree(&self, with: &PublicKey) -> Option<Hkdf<Sha256>> {
        let shared = self.private.diffie_hellman(&(*with).into());
        shared
            .was_contributory()
            .then(|| Hkdf::new(None, shared.as_bytes()))
    }

    fn derive(
        &self,
        with: &PublicKey,
        (from, to): (&PublicKey, &PublicKey),
        period: u64,
    ) -> Option<SourceMac> {
        let fresh;
        let shared = if let Some(known) = self.shared.get(with) {
            known.as_ref()?
        } else {
            fresh = self.agree(with)?;
            &fresh
        };
        let mut secret = [0; 5];
        let context = [CONTEXT, from.bytes(), to.bytes(), &period.to_be_bytes()];
        // The only error is a secret of more than 255 hashes.
        shared.expand_multi_info(&context, &mut secret).ok()?;
        Some(SourceMac::keyed(period, secret))
    }
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::{MacMatch, Peer};

    use super::*;

    const NOW: u64 = 494_000;

    fn peer(secrets: &PeerSecrets, of: &PeerSecrets, period: u64) -> Peer {
        Peer {
            source_macs: secrets.received_macs(&of.public_key(), period),
            ..Peer::default()
        }
    }

    /// Whether `peer` accepts a packet with this address.
    fn accepts(peer: &Peer, mac: SourceMac) -> bool {
        peer.expected_mac(mac)
            .is_some_and(|expected| mac.compare(expected) == MacMatch::Equal)
    }

    #[test]
    fn both_nodes_derive_the_same_secret_and_no_other_node() {
        let [a, b, c] = [[1; 32], [2; 32], [3; 32]].map(PeerSecrets::new);
        let sent = a.sent_mac(&b.public_key(), NOW);
        assert!(accepts(&peer(&b, &a, NOW), sent));
        assert!(!accepts(&peer(&a, &b, NOW), sent), "reflected to its sender");
        assert!(!accepts(&peer(&b, &c, NOW), sent), "in the name of another node");
        assert!(!accepts(&peer(&c, &a, NOW), sent), "to another node");
    }

    #[test]
    fn the_neighbouring_periods_are_accepted_and_no_others() {
        let [a, b] = [[1; 32], [2; 32]].map(PeerSecrets::new);
        let receiver = peer(&b, &a, NOW);
        for (offset, accepted) in [
            (0_u64, false),
            (1, false),
            (2, true),
            (3, true),
            (4, true),
            (5, false),
            (6, false),
        ] {
            let sent = a.sent_mac(&b.public_key(), NOW - 3 + offset);
            assert_eq!(accepts(&receiver, sent), accepted, "period {offset} - 3");
        }
    }

    #[test]
    fn a_known_key_derives_as_an_unknown_one() {
        let [mut a, b] = [[1; 32], [2; 32]].map(PeerSecrets::new);
        let key = b.public_key();
        let unknown = a.sent_mac(&key, NOW);
        a.retain(&[key].into());
        assert_eq!(a.sent_mac(&key, NOW), unknown);
        a.retain(&BTreeSet::new());
        assert!(a.shared.is_empty());
    }

    #[test]
    fn a_key_of_low_order_has_no_secret() {
        let a = PeerSecrets::new([1; 32]);
        let zero = PublicKey::from(x25519_dalek::PublicKey::from([0; 32]));
        assert_eq!(a.sent_mac(&zero, NOW), SourceMac::UNKEYED);
        assert_eq!(a.received_macs(&zero, NOW), [0; SECRET_SLOTS]);
    }

    #[test]
    fn the_period_is_an_hour_of_unix_time() {
        let at = |seconds| period(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!((at(0), at(3_599), at(3_600), at(7_200)), (0, 0, 1, 2));
        assert_eq!(period(UNIX_EPOCH - Duration::from_secs(1)), 0);
    }

    #[test]
    fn a_private_key_is_not_printed() {
        let text = format!("{:?}", PeerSecrets::new([7; 32]));
        assert!(text.contains("public") && !text.contains("private"), "{text}");
    }
}
