//! Route of a packet to the selected backend.

use crate::{abi::service::BACKEND_ID_BITS, packed::impl_bits, verdict::DropReason};

/// Route of a packet to a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendRoute {
    /// ID of the backend; 0 for delivery into the stack.
    pub(crate) backend: u64,
    /// Slot of the group of the backend's Node; 0 for this node, or [`Self::UNCHECKED`].
    pub(crate) group: u32,
}

/// A `BackendRoute` or a drop reason in one word, the form that a BPF subprogram can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedRoute(u64);

impl_bits!(PackedRoute, u64);

impl BackendRoute {
    /// The group of an unconfirmed flow whose backend is on this node, or does not exist: the connection may be at
    /// another one. It is no slot of any map.
    pub(crate) const UNCHECKED: u32 = 0x00ff_fffe;

    /// [`Self::UNCHECKED`] if `mark` is 1, the group of this node if it is 0.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a bit")]
    pub(crate) const fn unchecked_if(mark: u64) -> u32 {
        Self::UNCHECKED & 0_u32.wrapping_sub(mark as u32)
    }

    /// Hash for the selection of a next hop of the group.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "any part of an ID suffices")]
    pub(crate) const fn hash(self) -> u32 {
        self.backend as u32
    }
}

impl PackedRoute {
    /// The highest group marks a drop reason; it is no slot of any map.
    const REJECTED: u64 = 0x00ff_ffff << BACKEND_ID_BITS;
    const UNCHECKED: u64 = (BackendRoute::UNCHECKED as u64) << BACKEND_ID_BITS;

    /// Packs a route.
    #[inline(always)]
    pub(crate) const fn new(route: BackendRoute) -> Self {
        Self(route.backend | (route.group as u64) << BACKEND_ID_BITS)
    }

    /// The packet is dropped.
    #[inline(always)]
    pub(crate) const fn rejected(reason: DropReason) -> Self {
        Self(Self::REJECTED | reason as u64)
    }

    /// The backend of a route with [`BackendRoute::UNCHECKED`].
    #[inline(always)]
    pub(crate) const fn unchecked(self) -> Option<u64> {
        if self.0 & Self::REJECTED == Self::UNCHECKED {
            Some(self.0 & !Self::REJECTED)
        } else {
            None
        }
    }

    /// The route, or the drop reason.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    pub(crate) fn unpack(self) -> Result<BackendRoute, DropReason> {
        if self.0 & Self::REJECTED == Self::REJECTED {
            return Err(DropReason::from_number(self.0 as u8));
        }
        Ok(BackendRoute {
            backend: self.0 & !Self::REJECTED,
            group: (self.0 >> BACKEND_ID_BITS) as u32,
        })
    }
}
