//! Place of the inner source MAC address, which identifies the selected backend.

use crate::packet::{OuterFamily, eth};

/// Offset of the inner source MAC address.
#[inline(always)]
pub(super) const fn inner_src_mac_at(v6: bool) -> u32 {
    OuterFamily::new(v6)
        .inner_at()
        .wrapping_sub(eth::END)
        .wrapping_add(eth::SRC)
}
