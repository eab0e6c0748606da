//! The look-ups of rules as a global function, as in [`crate::subprograms`].

use mc_gateway_common::pipeline::{PackedRule, RuleQuery, first_rule};

use crate::maps::KernelMaps;

/// [`first_rule()`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_first_rule(query: *const RuleQuery) -> u64 {
    if query.is_null() {
        return PackedRule::NONE.to_bits();
    }
    // SAFETY: not null, and the verifier checks that the caller passes a whole query.
    first_rule(&KernelMaps, unsafe { &*query }).to_bits()
}
