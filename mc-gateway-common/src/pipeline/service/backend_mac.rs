//! The inner source MAC address that identifies the selected backend.

use crate::{
    abi::service::{BACKEND_ID_BITS, BACKEND_MAC},
    packet::{
        OuterFamily,
        eth::{self, Mac},
    },
};

/// Offset of the inner source MAC address.
#[inline(always)]
pub(super) const fn inner_src_mac_at(v6: bool) -> u32 {
    OuterFamily::new(v6)
        .inner_at()
        .wrapping_sub(eth::END)
        .wrapping_add(eth::SRC)
}

/// The inner source MAC address for a backend ID.
#[inline(always)]
#[must_use]
pub const fn encode_backend_mac(backend: u64) -> Mac {
    let [_, _, _, b0, b1, b2, b3, b4] = backend.to_be_bytes();
    [BACKEND_MAC, b0, b1, b2, b3, b4]
}

/// The backend ID in an inner source MAC address.
#[inline(always)]
#[must_use]
pub const fn decode_backend_mac(mac: Mac) -> Option<u64> {
    let [BACKEND_MAC, b0, b1, b2, b3, b4] = mac else {
        return None;
    };
    Some(u64::from_be_bytes([0, 0, 0, b0, b1, b2, b3, b4]))
}

const _: () = assert!(BACKEND_ID_BITS == 40);
