//! The backend of a flow at a gateway, and whether its Node is known to have the flow, in one word.
//!
//! ```text
//!   0-39  ID of the backend; bit 40: FLOW_OF_STACK
//!  48     unconfirmed: the Node of the backend may return packets of the flow
//!  49-51  the table with the backend: 0 the present one, 1 to PAST_TABLES a past one
//! ```

use super::service::{FLOW_OF_STACK, Flow, PAST_TABLES};

/// Bits of [`FlowEntry::backend`].
const BACKEND_MASK: u64 = (FLOW_OF_STACK << 1).wrapping_sub(1);
const UNCONFIRMED: u64 = 1 << 48;
const TABLE_SHIFT: u32 = 49;
const TABLE_MASK: u64 = 7;
const _: () = assert!(BACKEND_MASK < UNCONFIRMED && PAST_TABLES as u64 <= TABLE_MASK);

/// The value of the entry of a flow in `mc_flows`; 0 is no entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowEntry(u64);

impl FlowEntry {
    /// A flow that stays at `backend`, an ID or [`FLOW_OF_STACK`].
    #[inline(always)]
    #[must_use]
    pub const fn confirmed(backend: u64) -> Self {
        Self(backend & BACKEND_MASK)
    }

    /// A flow that another gateway may have opened, at `backend`, an ID in the table with this number.
    #[inline(always)]
    #[must_use]
    pub const fn unconfirmed(backend: u64, table: u32) -> Self {
        Self(backend & BACKEND_MASK | UNCONFIRMED | (table as u64 & TABLE_MASK) << TABLE_SHIFT)
    }

    /// [`Self::unconfirmed`] at a backend of the present table if `mark` is 1, [`Self::confirmed`] if it is 0: the
    /// verifier would follow both values of a flag through the rest of a program.
    #[inline(always)]
    #[must_use]
    pub const fn selected(backend: u64, mark: u64) -> Self {
        Self(backend & BACKEND_MASK | (mark & 1) << UNCONFIRMED.trailing_zeros())
    }

    /// The entry with the value of [`Flow::backend`].
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The value for [`Flow::backend`].
    #[inline(always)]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The backend's ID, [`FLOW_OF_STACK`], or 0.
    #[inline(always)]
    #[must_use]
    pub const fn backend(self) -> u64 {
        self.0 & BACKEND_MASK
    }

    /// Whether the backend's Node may return packets of the flow.
    #[inline(always)]
    #[must_use]
    pub const fn is_unconfirmed(self) -> bool {
        self.0 & UNCONFIRMED != 0
    }

    /// 1 if the flow is unconfirmed, else 0.
    #[inline(always)]
    #[must_use]
    pub const fn mark(self) -> u64 {
        self.0 >> UNCONFIRMED.trailing_zeros() & 1
    }

    /// Number of the table with the backend.
    #[inline(always)]
    #[must_use]
    pub const fn table(self) -> u32 {
        (self.0 >> TABLE_SHIFT & TABLE_MASK) as u32
    }
}

const _: () = assert!(size_of::<FlowEntry>() == size_of::<Flow>());

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::abi::service::BACKEND_ID_BITS;

    proptest! {
        #[test]
        fn packing_loses_nothing(id in 0..1_u64 << BACKEND_ID_BITS, table in 0..=u32::from(PAST_TABLES)) {
            for backend in [id, FLOW_OF_STACK] {
                let entry = FlowEntry::confirmed(backend);
                prop_assert_eq!((entry.word(), entry.backend()), (backend, backend));
                prop_assert!(!entry.is_unconfirmed());
            }
            let entry = FlowEntry::unconfirmed(id, table);
            prop_assert_eq!((entry.backend(), entry.table()), (id, table));
            prop_assert!(entry.is_unconfirmed());
            prop_assert_eq!((entry.mark(), FlowEntry::confirmed(id).mark()), (1, 0));
            prop_assert_eq!(FlowEntry::selected(id, 1), FlowEntry::unconfirmed(id, 0));
            prop_assert_eq!(FlowEntry::selected(id, 0), FlowEntry::confirmed(id));
            prop_assert_eq!(FlowEntry::from_word(entry.word()), entry);
        }
    }

    /// Such an entry names no backend for a program of an earlier release, which selects again.
    #[test]
    fn an_unconfirmed_entry_is_greater_than_any_id() {
        assert!(FlowEntry::unconfirmed(0, 0).word() > FLOW_OF_STACK);
    }
}
