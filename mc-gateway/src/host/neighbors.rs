//! Limits of the kernel's neighbor tables.

use std::fs;

use crate::resolved::NeighborLimits;

/// Reads the limits. They are settings of the whole host and absent in other network namespaces than the first one.
#[must_use]
pub fn limits() -> NeighborLimits {
    let read = |family: &str| {
        let path = format!("/proc/sys/net/{family}/neigh/default/gc_thresh3");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    NeighborLimits {
        v4: read("ipv4"),
        v6: read("ipv6"),
    }
}
