//! Byte access to packets, and views over their headers.

mod access;
mod aligned;
pub mod checksum;
#[cfg(any(test, feature = "std"))]
mod device_sum;
pub mod ecn;
pub mod encap;
pub mod eth;
pub mod header_words;
pub mod icmp;
pub mod ip;
pub mod l4;
mod lco;
pub(crate) mod offsets;
pub mod outer;
mod outer_family;
pub mod probe;
#[cfg(any(test, feature = "std"))]
mod slice;
pub mod tcp;
pub mod tunnel;

pub use crate::abi::Address;
pub use access::{Frame, Packet};
pub use aligned::Aligned;
pub use checksum::L4ChecksumDelta;
pub use header_words::HeaderWords;
pub use lco::lco_checksum;
pub use outer_family::OuterFamily;
pub(crate) use outer_family::UDP_CHECK_TO_INNER;
#[cfg(any(test, feature = "std"))]
pub use slice::SlicePacket;
