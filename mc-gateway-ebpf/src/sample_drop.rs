//! The subprogram that samples dropped packets, and those that an audited rule would drop.

use crate::{context::__sk_buff, maps};

/// A global function, so that the cost of a sample does not add to the instructions of other packets' paths.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_sample_drop(skb: *mut __sk_buff, reason: u32, program: u32) -> i32 {
    maps::sample_drop(skb.cast(), reason, program);
    0
}
