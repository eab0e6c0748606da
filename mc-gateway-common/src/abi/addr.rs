//! Addresses in map keys and values.

/// An IPv6 address, or an IPv4 address as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2), in network order.
///
/// One layout for both families means one code path for both.
pub type Addr = [u8; 16];
