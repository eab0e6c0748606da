//! What liveness reads and writes.

/// Liveness of members.
pub trait Health {}

#[cfg(any(test, feature = "std"))]
impl Health for super::MapTables {}
