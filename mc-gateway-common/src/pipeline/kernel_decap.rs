//! Decapsulation by a tunnel device of the kernel, for super-packets.
//!
//! `bpf_skb_adjust_room` leaves the tunnel state of a super-packet (`SKB_GSO_UDP_TUNNEL`, `skb->encapsulation`) in
//! place, and devices without tunnel offloads, such as bridges, segment it in software. The kernel's tunnel devices
//! clear it (`iptunnel_pull_offloads`, `net/ipv4/ip_tunnel_core.c`).
//!
//! *Guarantees*: a packet is left to the tunnel device only after admission; a secret of this node in its inner source
//! MAC address proves that to `from_tunnel`. Super-packets take this way only while test packets come through: replies
//! to this node's probes, which nothing else needs any more.

use crate::{
    abi::{Config, kernel_decap::test_key},
    maps::Maps,
    packet::{
        Packet, eth,
        outer::Headers,
        probe,
        tunnel::{self, Format, VNI_KERNEL_DECAP},
    },
};

/// Bytes of the tunnel header and of both inner MAC addresses.
const ADDRESSES: usize = tunnel::LEN + 12;

/// Length of the tunnel header.
#[expect(clippy::cast_possible_truncation, reason = "8")]
const TUNNEL_LEN: u32 = tunnel::LEN as u32;

/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// Part of the maximum age of a test after which the next test packet is sent.
const TESTS_PER_AGE: u64 = 8;

/// Whether this node has a tunnel device of its own for decapsulation.
#[inline(always)]
pub(super) const fn is_configured(config: &Config) -> bool {
    let [m0, m1, m2, m3, m4, m5] = config.tunnel_mac;
    m0 | m1 | m2 | m3 | m4 | m5 != 0
}

/// Whether the tunnel device receives packets like this one: test packets have come through recently.
#[inline(always)]
pub(super) fn is_usable<const N: usize, P: Packet, M: Maps>(packet: &P, maps: &M, config: &Config) -> bool {
    is_configured(config) && has_no_checksum::<N, P>(packet) && age::<N, P, M>(packet, maps) < max_age(config)
}

/// Addresses the packet to the tunnel device. `sender` is a [`crate::abi::DeliveredMac`], which `from_tunnel` moves to
/// the source.
#[inline(always)]
pub(super) fn readdress<const N: usize, P: Packet>(
    packet: &mut P,
    config: &Config,
    sender: u64,
) -> Option<()> {
    let [h0, h1, h2, h3, h4, h5, h6, h7] = Format::from_config(config).header(VNI_KERNEL_DECAP);
    let [d0, d1, d2, d3, d4, d5, ..] = sender.to_le_bytes();
    let [s0, s1, s2, s3, s4, s5] = config.tunnel_mac;
    let addresses: [u8; ADDRESSES] = [
        h0, h1, h2, h3, h4, h5, h6, h7, d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5,
    ];
    let at = Headers::<N>::INNER_ETH_AT.wrapping_sub(TUNNEL_LEN);
    packet.store(at, &addresses)
}

/// Turns a reply to a probe into a test packet if one is due; whether it is one now.
#[inline(always)]
pub(super) fn make_test<const N: usize, P: Packet, M: Maps>(
    packet: &mut P,
    maps: &M,
    config: &Config,
) -> Option<bool> {
    let due = max_age(config) / TESTS_PER_AGE;
    if !is_configured(config) || !has_no_checksum::<N, P>(packet) || age::<N, P, M>(packet, maps) < due {
        return Some(false);
    }
    let key = test_key(packet.ifindex(), Headers::<N>::V6);
    packet.store(
        Headers::<N>::INNER_AT.wrapping_add(probe::SLOT),
        &key.to_be_bytes(),
    )?;
    readdress::<N, P>(packet, config, eth::mac_to_u64(config.mc0_mac))?;
    Some(true)
}

/// Whether the outer UDP packet has no checksum, which the new addresses would invalidate.
#[inline(always)]
fn has_no_checksum<const N: usize, P: Packet>(packet: &P) -> bool {
    packet.load::<2>(Headers::<N>::UDP_CHECK_AT) == Some([0, 0])
}

/// Nanoseconds since the last test packet of the same kind came through.
#[inline(always)]
fn age<const N: usize, P: Packet, M: Maps>(packet: &P, maps: &M) -> u64 {
    let key = test_key(packet.ifindex(), Headers::<N>::V6);
    match maps.kernel_decap_tested_at(key) {
        0 => u64::MAX,
        at => maps.now().saturating_sub(at),
    }
}

/// Maximum age of a test in nanoseconds.
#[inline(always)]
const fn max_age(config: &Config) -> u64 {
    (config.decap_test_ms as u64).wrapping_mul(MILLISECOND)
}
