//! Ingress of the agent's tunnel devices: super-packets that `from_underlay` has admitted and the kernel has
//! decapsulated.

use super::{config::load_config, kernel_decap::is_configured, link_header::address_to_mc0};
use crate::{
    maps::Maps,
    packet::{Packet, eth, probe},
    verdict::{DropReason, Outcome, Verdict},
};

/// Delivers a packet with this node's secret as source MAC address, records a test packet, and drops everything else:
/// no other packet may reach the stack through the tunnel device.
#[inline(always)]
pub fn from_tunnel<P: Packet, M: Maps>(packet: &mut P, maps: &M) -> Verdict {
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
    let sender = packet.load::<6>(eth::DST).map(eth::mac_to_u64);
    let addressed = sender.map(|sender| address_to_mc0(packet, config, sender));
    if addressed != Some(Ok(())) {
        return Verdict::Drop(DropReason::WriteFailed);
    }
    Verdict::Deliver {
        outcome: Outcome::Deliver,
        ifindex: config.mc0_ifindex,
    }
}
