//! Outer destination addresses of this node.

use std::net::IpAddr;

use mc_gateway_common::abi::{Addr, LOCAL_ADDRS};

use crate::cidr::to_abi_addr;

/// The fixed array of local addresses, filled from the front.
#[derive(Default)]
pub(super) struct LocalAddrs(pub(super) [Addr; LOCAL_ADDRS]);

impl LocalAddrs {
    /// Adds `addr` if missing; false if the array is full.
    pub(super) fn add(&mut self, addr: IpAddr) -> bool {
        let addr = to_abi_addr(addr);
        if self.0.contains(&addr) {
            return true;
        }
        match self.0.iter_mut().find(|slot| **slot == Addr::default()) {
            Some(slot) => {
                *slot = addr;
                true
            }
            None => false,
        }
    }
}
