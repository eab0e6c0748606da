//! What Service translation reads and writes.

/// Services, their backends and flows.
pub trait Services {}

#[cfg(any(test, feature = "std"))]
impl Services for super::MapTables {}
