//! Delivery of an encapsulated packet into this node's stack: decapsulation, congestion marks and link header.

use super::{
    kernel_decap,
    link_header::{address_to_mc0, set_ethertype},
    subprograms::Subprograms,
};
use crate::{
    abi::{Config, DeliveredMac},
    maps::Maps,
    packet::{
        Packet, checksum, ecn, eth,
        offsets::ipv4,
        outer::{HEADERS_V4, HEADERS_V6, Headers},
    },
    verdict::{DropReason, Event, Outcome, Verdict},
};

/// Offset of the VNI over IPv4 and over IPv6.
const VNI_V4: u32 = Headers::<HEADERS_V4>::INNER_ETH_AT.wrapping_sub(4);
const VNI_V6: u32 = Headers::<HEADERS_V6>::INNER_ETH_AT.wrapping_sub(4);

/// Propagates the ECN mark of the outer header to the inner packet.
#[inline(always)]
pub(super) fn propagate_ecn<const N: usize, P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    outer: u8,
    inner: u8,
) -> Result<(), DropReason> {
    let tos = ecn::decapsulated(outer, inner).ok_or(DropReason::Ecn)?;
    if tos != inner {
        set_inner_tos(packet, Headers::<N>::INNER_AT, v6, inner, tos).ok_or(DropReason::WriteFailed)?;
        maps.count(Event::EcnMarked);
    }
    Ok(())
}

/// Decapsulates the packet and delivers it into this node's stack. A super-packet is left to the tunnel device if
/// there is one.
#[inline(never)]
pub(super) fn deliver<const N: usize, P: Packet, M: Maps>(
    packet: &mut P,
    maps: &M,
    config: &Config,
    (v6, policy): (bool, u32),
) -> Result<Verdict, DropReason> {
    let sender = delivered_mac::<N, P>(packet, policy)?;
    if packet.is_gso() && kernel_decap::is_usable::<N, P, M>(packet, maps, config) {
        kernel_decap::readdress::<N, P>(packet, config, sender).ok_or(DropReason::WriteFailed)?;
        return Ok(Verdict::KernelDecap {
            outcome: Outcome::KernelDecap,
        });
    }
    packet
        .shrink(Headers::<N>::FAMILY, v6)
        .ok_or(DropReason::DecapFailed)?;
    if v6 != Headers::<N>::V6 {
        let ethertype = if v6 { eth::IPV6 } else { eth::IPV4 };
        set_ethertype(packet, ethertype)?;
    }
    address_to_mc0(packet, config, sender)?;
    Ok(Verdict::Deliver {
        outcome: Outcome::Deliver,
        ifindex: config.mc0_ifindex,
    })
}

/// Source MAC address of a packet to deliver, as a number.
#[inline(always)]
fn delivered_mac<const N: usize, P: Packet>(packet: &P, evaluated: u32) -> Result<u64, DropReason> {
    let vni = if Headers::<N>::V6 {
        packet.load_u32::<{ VNI_V6 }>()
    } else {
        packet.load_u32::<{ VNI_V4 }>()
    };
    vni.map(|vni| DeliveredMac::bits(vni, evaluated))
        .ok_or(DropReason::Truncated)
}

/// Writes DSCP and ECN of the inner header at `offset`.
#[inline(never)]
fn set_inner_tos<P: Packet>(packet: &mut P, offset: u32, v6: bool, old: u8, tos: u8) -> Option<()> {
    if v6 {
        let [first, second] = packet.load::<2>(offset)?;
        return packet.store(
            offset,
            &[(first & 0xf0) | (tos >> 4), (tos << 4) | (second & 0x0f)],
        );
    }
    let check_at = offset.wrapping_add(ipv4::CHECK);
    let check = packet.load::<2>(check_at)?;
    let difference = checksum::difference(&[0, old, 0, 0], &[0, tos, 0, 0]);
    packet.store(offset.wrapping_add(ipv4::TOS), &[tos])?;
    packet.store(check_at, &checksum::update(check, difference))
}
