//! Admission of encapsulated packets, and its cache key.

#![expect(clippy::cast_possible_truncation, reason = "fields of a word")]

use crate::{
    abi::{MAX_NEXT_HOP_GROUPS, MAX_PEER_STATS},
    packed::impl_bits,
    packet::Address,
    verdict::DropReason,
};

/// Addresses of an encapsulated packet.
///
/// The inner source MAC address is among them: an admission is for the secret that it was checked with, so that no
/// further comparison is necessary for a packet with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AdmissionKey {
    /// Inner source MAC address in the lower six bytes; the upper two bytes are any function of the other fields.
    pub source_mac: u64,
    /// Outer source.
    pub peer: Address,
    /// Inner source.
    pub src: Address,
    /// Inner destination.
    pub dst: Address,
}

/// Result of the peer and prefix lookups for admissible packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// [`crate::abi::Prefix::action`] of the destination.
    pub action: u32,
    /// [`crate::abi::Prefix::group`] of the destination.
    pub group: u32,
    /// Slot of the group of the return path if it leaves this node, else 0.
    pub return_group: u32,
    /// [`crate::abi::Peer::flags`].
    pub peer_flags: u32,
    /// The destination has [`crate::abi::PREFIX_BACKENDS`].
    pub has_backends: bool,
    /// 1 if the destination has [`crate::abi::PREFIX_POLICY`], else 0: copied as it is, it remains an unknown number to
    /// the verifier.
    pub policy: u32,
    /// [`crate::abi::Peer::stats`].
    pub traffic: u32,
    /// The address to rewrite: [`ALIAS_SOURCE`], [`ALIAS_DESTINATION`] or 0.
    pub alias: u32,
}

/// [`Admission::alias`]: the source, an Antrea gateway, is replaced by its alias.
pub const ALIAS_SOURCE: u32 = 1 << 3;
/// [`Admission::alias`]: the destination, an alias, is replaced by the address of the Antrea gateway.
pub const ALIAS_DESTINATION: u32 = 1 << 4;
/// [`Admission::alias`]: both bits.
pub const ALIAS_MASK: u32 = ALIAS_SOURCE | ALIAS_DESTINATION;

/// An [`Admission`] or a drop reason in one word, the form that a BPF subprogram can return and a map can cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedAdmission(u64);

impl_bits!(PackedAdmission, u64);

/// Bit of a drop reason, and its number.
const REJECTED: u64 = 1;
const REASON_SHIFT: u32 = 8;
/// Fields of an admission.
const PEER_FLAGS_SHIFT: u32 = 1;
const PEER_FLAGS_MASK: u32 = 0x3f;
const HAS_BACKENDS: u64 = 1 << 7;
const ACTION_SHIFT: u32 = 8;
const GROUP_SHIFT: u32 = 16;
const RETURN_GROUP_SHIFT: u32 = 32;
const TRAFFIC_SHIFT: u32 = 48;
const POLICY_SHIFT: u32 = 13;
/// The admission is in no cache yet.
const FRESH: u64 = 1 << 15;
/// Largest packed action.
const ACTION_MASK: u32 = 7;
const _: () = assert!(ACTION_MASK & ALIAS_MASK == 0 && ALIAS_MASK < 0x100);
/// Largest packed slot; larger ones are packed as this one, which is no slot of any map.
const SLOT_MASK: u32 = 0xffff;
const _: () = assert!(MAX_NEXT_HOP_GROUPS <= SLOT_MASK && MAX_PEER_STATS <= SLOT_MASK);

impl PackedAdmission {
    /// Packs an admission. Unknown actions and flags are dropped.
    #[inline(always)]
    #[must_use]
    pub const fn admitted(admission: Admission) -> Self {
        let group = slot(admission.group);
        let return_group = slot(admission.return_group);
        let traffic = slot(admission.traffic);
        let action = if admission.action > ACTION_MASK {
            0
        } else {
            admission.action
        };
        let backends = if admission.has_backends { HAS_BACKENDS } else { 0 };
        Self(
            ((admission.peer_flags & PEER_FLAGS_MASK) as u64) << PEER_FLAGS_SHIFT
                | backends
                | ((admission.policy & 1) as u64) << POLICY_SHIFT
                | ((action | admission.alias & ALIAS_MASK) as u64) << ACTION_SHIFT
                | group << GROUP_SHIFT
                | return_group << RETURN_GROUP_SHIFT
                | traffic << TRAFFIC_SHIFT,
        )
    }

    /// The packets are dropped.
    #[inline(always)]
    #[must_use]
    pub const fn rejected(reason: DropReason) -> Self {
        Self(REJECTED | (reason as u64) << REASON_SHIFT)
    }

    /// Whether the packets are dropped.
    #[inline(always)]
    #[must_use]
    pub const fn is_rejected(self) -> bool {
        self.0 & REJECTED != 0
    }

    /// The same as a result that is to be cached; a drop reason is not.
    #[inline(always)]
    #[must_use]
    pub const fn fresh(self) -> Self {
        if self.is_rejected() {
            self
        } else {
            Self(self.0 | FRESH)
        }
    }

    /// The same as a result in a cache.
    #[inline(always)]
    #[must_use]
    pub const fn not_fresh(self) -> Self {
        Self(self.0 & !FRESH)
    }

    /// Whether the result is to be cached.
    #[inline(always)]
    #[must_use]
    pub const fn is_fresh(self) -> bool {
        self.0 & FRESH != 0
    }

    /// The admission, or the drop reason.
    #[inline(always)]
    pub fn unpack(self) -> Result<Admission, DropReason> {
        let word = self.0;
        if self.is_rejected() {
            return Err(DropReason::from_number((word >> REASON_SHIFT) as u8));
        }
        Ok(Admission {
            action: (word >> ACTION_SHIFT) as u32 & ACTION_MASK,
            group: (word >> GROUP_SHIFT) as u32 & SLOT_MASK,
            return_group: (word >> RETURN_GROUP_SHIFT) as u32 & SLOT_MASK,
            peer_flags: (word >> PEER_FLAGS_SHIFT) as u32 & PEER_FLAGS_MASK,
            has_backends: word & HAS_BACKENDS != 0,
            policy: (word >> POLICY_SHIFT) as u32 & 1,
            traffic: (word >> TRAFFIC_SHIFT) as u32,
            alias: (word >> ACTION_SHIFT) as u32 & ALIAS_MASK,
        })
    }
}

/// A slot in packed form.
#[inline(always)]
const fn slot(slot: u32) -> u64 {
    if slot > SLOT_MASK {
        SLOT_MASK as u64
    } else {
        slot as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(action in 0..=ACTION_MASK, group in 0..=SLOT_MASK, return_group in 0..=SLOT_MASK, peer_flags in 0..64_u32, has_backends: bool, policy in 0..=1_u32, traffic in 0..=SLOT_MASK, alias in prop::sample::select(vec![0, ALIAS_SOURCE, ALIAS_DESTINATION])) {
            let admission = Admission { action, group, return_group, peer_flags, has_backends, policy, traffic, alias };
            let packed = PackedAdmission::admitted(admission);
            prop_assert_eq!(packed.unpack(), Ok(admission));
            prop_assert_eq!(packed.fresh().unpack(), Ok(admission));
            prop_assert_eq!(packed.fresh().not_fresh(), packed);
            prop_assert!(packed.fresh().is_fresh() && !packed.is_fresh());
        }
    }

    #[test]
    fn every_drop_reason_unpacks() {
        for reason in DropReason::ALL {
            let packed = PackedAdmission::rejected(reason);
            assert_eq!(packed.unpack(), Err(reason));
            assert!(!packed.fresh().is_fresh());
        }
    }
}
