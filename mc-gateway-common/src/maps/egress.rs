//! Routes of packets that this node sends through `mc0`, and their cache key.

#![expect(clippy::cast_possible_truncation, reason = "fields of a word")]

use super::admission::ALIAS_MASK;
use crate::{
    abi::{IDENTITY_UNKNOWN, MAX_NEXT_HOP_GROUPS},
    packed::impl_bits,
    packet::Address,
    verdict::DropReason,
};

/// Addresses of a packet on the egress of `mc0`.
///
/// A type of its own beside [`super::AdmissionKey`]: no received packet has such a key, regardless of its outer source,
/// and so none is admitted as a packet of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EgressKey {
    /// Source.
    pub src: Address,
    /// Destination.
    pub dst: Address,
}

impl EgressKey {
    /// The key as numbers.
    #[inline(always)]
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        let ([s0, s1], [d0, d1]) = (self.src.words(), self.dst.words());
        [s0, s1, d0, d1]
    }

    /// The key with these [`Self::words`].
    #[inline(always)]
    #[must_use]
    pub const fn from_words([s0, s1, d0, d1]: [u64; 4]) -> Self {
        Self {
            src: Address::from_words(s0, s1),
            dst: Address::from_words(d0, d1),
        }
    }
}

/// Result of the prefix lookups for a packet to another cluster.
///
/// Two fields are bits of a word and no flags of their own: copied as they are, they remain unknown numbers to the
/// verifier, which would otherwise follow every combination through the rest of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressRoute {
    /// [`crate::abi::Prefix::group`] of the destination.
    pub group: u32,
    /// The address to rewrite: [`super::ALIAS_DESTINATION`] or 0.
    pub alias: u32,
    /// [`SOURCE_OWN`], [`SOURCE_BACKEND`] and [`SOURCE_POLICY`].
    pub source: u32,
    /// [`crate::abi::Prefix::identity`] of the source.
    pub identity: u32,
}

/// [`EgressRoute::source`]: this node may send from the source.
pub const SOURCE_OWN: u32 = 1 << 5;
/// [`EgressRoute::source`]: the source has [`crate::abi::PREFIX_BACKENDS`].
pub const SOURCE_BACKEND: u32 = 1 << 6;
/// [`EgressRoute::source`]: the source has [`crate::abi::PREFIX_POLICY`].
pub const SOURCE_POLICY: u32 = 1 << 7;
/// [`EgressRoute::source`]: all bits.
pub const SOURCE_MASK: u32 = SOURCE_OWN | SOURCE_BACKEND | SOURCE_POLICY;

/// An [`EgressRoute`] or a drop reason in one word, the form that a BPF subprogram can return and a map can cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedEgressRoute(u64);

impl_bits!(PackedEgressRoute, u64);

/// Bit of a drop reason, and its number.
const REJECTED: u64 = 1;
const REASON_SHIFT: u32 = 8;
const _: () = assert!(ALIAS_MASK & SOURCE_MASK == 0 && (ALIAS_MASK | SOURCE_MASK) & 1 == 0);
const _: () = assert!((ALIAS_MASK | SOURCE_MASK) >> REASON_SHIFT == 0);
const GROUP_SHIFT: u32 = 16;
/// Largest packed slot; larger ones are packed as this one, which is no slot of any map.
const GROUP_MASK: u32 = 0xffff;
const _: () = assert!(MAX_NEXT_HOP_GROUPS <= GROUP_MASK);
const IDENTITY_SHIFT: u32 = 32;

impl PackedEgressRoute {
    /// Packs a route. Unknown bits are dropped.
    #[inline(always)]
    #[must_use]
    pub const fn new(route: EgressRoute) -> Self {
        let bits = route.alias & ALIAS_MASK | route.source & SOURCE_MASK;
        let group = if route.group > GROUP_MASK {
            GROUP_MASK
        } else {
            route.group
        };
        Self(
            bits as u64
                | (group as u64) << GROUP_SHIFT
                | ((route.identity & IDENTITY_UNKNOWN) as u64) << IDENTITY_SHIFT,
        )
    }

    /// The packets are dropped.
    #[inline(always)]
    #[must_use]
    pub const fn rejected(reason: DropReason) -> Self {
        Self(REJECTED | (reason as u64) << REASON_SHIFT)
    }

    /// Whether this node may send the packets; false for a drop reason.
    #[inline(always)]
    #[must_use]
    pub const fn has_own_source(self) -> bool {
        self.0 & SOURCE_OWN as u64 != 0
    }

    /// The route, or the drop reason.
    #[inline(always)]
    pub fn unpack(self) -> Result<EgressRoute, DropReason> {
        let word = self.0;
        if word & REJECTED != 0 {
            return Err(DropReason::from_number((word >> REASON_SHIFT) as u8));
        }
        Ok(EgressRoute {
            group: (word >> GROUP_SHIFT) as u32 & GROUP_MASK,
            alias: word as u32 & ALIAS_MASK,
            source: word as u32 & SOURCE_MASK,
            identity: (word >> IDENTITY_SHIFT) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::maps::ALIAS_DESTINATION;

    proptest! {
        #[test]
        fn the_words_of_a_key_are_the_key(src: [u8; 16], dst: [u8; 16]) {
            let key = EgressKey { src: src.into(), dst: dst.into() };
            prop_assert_eq!(EgressKey::from_words(key.words()), key);
        }

        #[test]
        fn packing_loses_nothing(
            group in 0..=GROUP_MASK,
            identity in 0..=IDENTITY_UNKNOWN,
            alias in prop::sample::select(vec![0, ALIAS_DESTINATION]),
            source in prop::sample::select(vec![0, SOURCE_OWN, SOURCE_BACKEND, SOURCE_MASK]),
        ) {
            let route = EgressRoute { group, alias, source, identity };
            let packed = PackedEgressRoute::new(route);
            prop_assert_eq!(packed.unpack(), Ok(route));
            prop_assert_eq!(packed.has_own_source(), source & SOURCE_OWN != 0);
        }
    }

    #[test]
    fn every_drop_reason_unpacks_and_is_no_own_source() {
        for reason in DropReason::ALL {
            let packed = PackedEgressRoute::rejected(reason);
            assert_eq!(packed.unpack(), Err(reason));
            assert!(!packed.has_own_source());
        }
    }
}
