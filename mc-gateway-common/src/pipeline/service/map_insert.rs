//! Failed insertions into the flow maps.

use crate::{maps::Maps, verdict::Event};

/// Counts an entry that the kernel did not insert.
#[inline(always)]
pub(super) fn count_insert_failure<M: Maps>(maps: &M, inserted: bool) {
    if !inserted {
        maps.count(Event::ServiceTableFull);
    }
}
