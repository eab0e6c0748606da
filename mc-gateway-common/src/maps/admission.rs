//! What is remembered of encapsulated packets: where they come from and go to, and what the tables say of that.

#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

use crate::{
    abi::{MAX_NEXT_HOP_GROUPS, MAX_PEER_STATS},
    packet::Address,
    verdict::DropReason,
};

/// Where an encapsulated packet comes from and where it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AdmissionKey {
    /// Outer source.
    pub peer: Address,
    /// Inner source.
    pub src: Address,
    /// Inner destination.
    pub dst: Address,
}

/// What peers and prefixes say of packets from somebody who may send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// [`crate::abi::Prefix::action`] of the destination.
    pub action: u32,
    /// [`crate::abi::Prefix::group`] of the destination.
    pub group: u32,
    /// Slot of the group answers go to, where they do not end here; else 0.
    pub return_group: u32,
    /// [`crate::abi::Peer::flags`].
    pub peer_flags: u32,
    /// The destination has [`crate::abi::PREFIX_BACKENDS`].
    pub has_backends: bool,
    /// [`crate::abi::Peer::traffic`].
    pub traffic: u32,
    /// Which address of the packet is to be replaced: [`RENAME_SOURCE`], [`RENAME_DESTINATION`] or 0.
    pub alias: u32,
}

/// [`Admission::rename`]: the source, the address of an Antrea gateway, by its alias.
pub const ALIAS_SOURCE: u32 = 1 << 3;
/// [`Admission::rename`]: the destination, an alias, by the address of the Antrea gateway.
pub const ALIAS_DESTINATION: u32 = 1 << 4;
/// [`Admission::rename`]: both bits.
pub const ALIAS_MASK: u32 = ALIAS_SOURCE | ALIAS_DESTINATION;

/// Largest action there is room for.
const ACTION: u32 = 7;
const _: () = assert!(ACTION & ALIAS_MASK == 0 && ALIAS_MASK < 0x100);
/// Slots a packed slot has room for; the last is no slot of any map and stands for all above it.
const SLOT: u32 = 0xffff;
const _: () = assert!(MAX_NEXT_HOP_GROUPS <= SLOT && MAX_PEER_STATS <= SLOT);
/// Where a packed admission says [`Admission::backend`].
const BACKEND: u64 = 1 << 7;
/// The lowest bit tells a refusal from an admission.
const REFUSED: u64 = 1;

impl Admission {
    /// As one word. Actions and flags that do not fit are none that this version knows.
    #[inline(always)]
    #[must_use]
    pub const fn pack(self) -> u64 {
        let group = slot(self.group);
        let back = slot(self.return_group);
        let traffic = slot(self.traffic);
        let action = if self.action > ACTION { 0 } else { self.action };
        let backend = if self.has_backends { BACKEND } else { 0 };
        (self.peer_flags as u64 & 0x3f) << 1
            | backend
            | ((action | self.alias & ALIAS_MASK) as u64) << 8
            | group << 16
            | back << 32
            | traffic << 48
    }

    /// The word for packets that are refused.
    #[inline(always)]
    #[must_use]
    pub const fn refusal(reason: DropReason) -> u64 {
        REFUSED | (reason as u64) << 8
    }

    /// Whether a word is one for packets that are refused.
    #[inline(always)]
    #[must_use]
    pub const fn is_refusal(word: u64) -> bool {
        word & REFUSED != 0
    }

    /// The reverse of [`Self::pack`] and [`Self::refusal`].
    #[inline(always)]
    pub fn unpack(word: u64) -> Result<Self, DropReason> {
        if Self::is_refusal(word) {
            return Err(DropReason::from_number((word >> 8) as u8));
        }
        Ok(Self {
            action: (word >> 8) as u32 & ACTION,
            group: (word >> 16) as u32 & SLOT,
            return_group: (word >> 32) as u32 & SLOT,
            peer_flags: (word >> 1) as u32 & 0x3f,
            has_backends: word & BACKEND != 0,
            traffic: (word >> 48) as u32,
            alias: (word >> 8) as u32 & ALIAS_MASK,
        })
    }
}

/// A slot as a packed admission has it.
#[inline(always)]
const fn slot(slot: u32) -> u64 {
    if slot > SLOT { SLOT as u64 } else { slot as u64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(action in 0..=ACTION, group in 0..=SLOT, return_group in 0..=SLOT, peer_flags in 0..64_u32, has_backends: bool, traffic in 0..=SLOT, alias in prop::sample::select(vec![0, ALIAS_SOURCE, ALIAS_DESTINATION])) {
            let admission = Admission { action, group, return_group, peer_flags, has_backends, traffic, alias };
            prop_assert_eq!(Admission::unpack(admission.pack()), Ok(admission));
        }
    }

    #[test]
    fn every_refusal_is_read_back() {
        for reason in DropReason::ALL {
            assert_eq!(Admission::unpack(Admission::refusal(reason)), Err(reason));
        }
    }
}
