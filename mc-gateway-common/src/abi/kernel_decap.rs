//! Layout of the map of tests of the kernel's decapsulation.
//!
//! `from_underlay` leaves super-packets to a tunnel device of the kernel only while test packets come through that
//! device: a firewall of the host may drop packets on the way, which the programs bypass otherwise.

/// Name of the map: hash of [`test_key`] to the time of the last test packet that came through the tunnel device, in
/// nanoseconds of `CLOCK_MONOTONIC`. Only `from_tunnel` writes it.
pub const KERNEL_DECAP_TESTS: &str = "mc_decap_tests";
/// Capacity of the map. Packets of further devices are decapsulated by `from_underlay`.
pub const MAX_KERNEL_DECAP_TESTS: u32 = 256;

/// Name of the object's constant, 0 or 1: whether the kernel knows [`ADJ_ROOM_DECAP_UDP`]. The agent replaces it before
/// it loads the object.
pub const HAS_DECAP_FLAG: &str = "MC_HAS_DECAP_FLAG";
/// `BPF_F_ADJ_ROOM_DECAP_L4_UDP` of `bpf_skb_adjust_room` (`linux/bpf.h`, Linux 7.3): a super-packet loses its tunnel
/// state (`SKB_GSO_UDP_TUNNEL`, `SKB_GSO_UDP_TUNNEL_CSUM`) with its outer headers.
pub const ADJ_ROOM_DECAP_UDP: u64 = 1 << 10;

/// Key of the packets of an underlay device with one outer IP version. A firewall may treat both versions differently.
#[inline(always)]
#[must_use]
pub const fn test_key(ifindex: u32, v6: bool) -> u32 {
    ifindex << 1 | v6 as u32
}

/// Device and outer IP version of a key.
#[inline(always)]
#[must_use]
pub const fn from_test_key(key: u32) -> (u32, bool) {
    (key >> 1, key & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_device_and_version() {
        for (ifindex, v6) in [(1, false), (1, true), (77, false)] {
            assert_eq!(from_test_key(test_key(ifindex, v6)), (ifindex, v6));
        }
    }
}
