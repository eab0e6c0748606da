//! Ingress of the agent's tunnel devices: super-packets that `from_underlay` has admitted and the kernel has
//! decapsulated.

use super::{config::load_config, kernel_decap::is_configured};
use crate::{
    maps::Maps,
    packet::{Packet, eth, probe},
    verdict::{DropReason, Outcome, Verdict},
};

/// Delivers a packet with this node's secret as source MAC address, records a test packet, and drops everything else:
/// no other packet may reach the stack through the tunnel device.
#[inline(always)]
pub fn from_tunnel<P: Packet, M: Maps>(packet: &P, maps: &M) -> Verdict {
    let config = match load_config(maps) {
        Ok(config) => config,
        Err(reason) => return Verdict::Drop(reason),
    };
    if !is_configured(config) || packet.load::<6>(eth::SRC) != Some(config.tunnel_mac) {
        return Verdict::Drop(DropReason::NotAdmitted);
    }
    if packet.ethertype() == probe::ETHERTYPE {
        let Some(key) = packet.load::<4>(eth::END.wrapping_add(probe::SLOT)) else {
            return Verdict::Drop(DropReason::ProbeMalformed);
        };
        maps.set_kernel_decap_tested(u32::from_be_bytes(key), maps.now());
        return Verdict::Consume {
            outcome: Outcome::DecapTest,
        };
    }
    Verdict::Deliver {
        outcome: Outcome::Deliver,
        ifindex: config.mc0_ifindex,
    }
}
