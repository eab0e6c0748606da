//! The overlap of prefixes.

use ipnet::IpNet;

/// Whether two prefixes have an address in common.
#[must_use]
pub(crate) fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}
