//! TCP: the maximum segment size option of a SYN (RFC 9293 section 3.7.1).
//!
//! *Guarantees*: only the two bytes of the option and the checksum change, the value never increases, and a
//! header with inconsistent options does not change.

use super::{
    access::Packet,
    checksum::{self, L4ChecksumDelta},
    offsets::{TCP_DATA_OFFSET, tcp},
};

/// Length of a TCP header without options.
pub const LEN: u32 = tcp::LEN;
/// Length of the longest TCP header.
pub const MAX_LEN: u32 = 60;
/// The SYN flag, in SYN and SYN-ACK alike.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Whether a segment with these flags opens a connection: SYN without ACK (RFC 9293 section 3.5).
#[inline(always)]
#[must_use]
pub const fn opens_connection(flags: u8) -> bool {
    flags & (SYN | ACK) == SYN
}

/// Option kinds (IANA).
const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
/// Length of the MSS option.
const MSS_LEN: u8 = 4;

/// Maximum number of options parsed before the MSS, padding included. Common systems put the MSS first or
/// behind three others; the verifier walks every step.
const STEPS: u32 = 10;

/// Length of the header in bytes, from the byte with the data offset.
#[inline(always)]
#[must_use]
pub const fn header_len(data_offset: u8) -> u32 {
    (data_offset as u32 >> 4).wrapping_mul(4)
}

/// Lowers the MSS option of the SYN at `at`, a TCP segment of `len` bytes, to `most`. Returns whether the packet
/// changed; `None` if it cannot be written.
#[inline(always)]
pub fn lower_mss<P: Packet>(packet: &mut P, at: u32, len: u32, most: u16) -> Option<bool> {
    // Data offset and flags, with the first option behind window, checksum and urgent pointer.
    let Some([offset, flags, _, _, _, _, _, _, kind, option_len, high, low]) =
        packet.load::<12>(at.wrapping_add(TCP_DATA_OFFSET))
    else {
        return Some(false);
    };
    let header = header_len(offset);
    if flags & SYN == 0 || header < LEN.wrapping_add(u32::from(MSS_LEN)) || header > len {
        return Some(false);
    }
    // Common systems put the MSS first.
    let found = if kind == MSS && option_len == MSS_LEN {
        Some((LEN, u16::from_be_bytes([high, low])))
    } else {
        find_mss(packet, at, header)
    };
    match found {
        Some((offset, mss)) if mss > most => {
            replace_mss(packet, at, offset, mss, most)?;
            Some(true)
        }
        _ => Some(false),
    }
}

/// Offset of the MSS option in a header of `header` bytes, and its value.
#[inline(always)]
fn find_mss<P: Packet>(packet: &P, at: u32, header: u32) -> Option<(u32, u16)> {
    let mut offset = LEN;
    let mut step = 0;
    while step < STEPS && offset < header {
        // The last option may end with the packet: read byte by byte.
        let [kind] = packet.load::<1>(at.wrapping_add(offset))?;
        match kind {
            END => return None,
            NOP => offset = offset.wrapping_add(1),
            _ => {
                let [len] = packet.load::<1>(at.wrapping_add(offset).wrapping_add(1))?;
                let end = offset.wrapping_add(u32::from(len));
                if len < 2 || end > header {
                    return None;
                }
                if kind == MSS {
                    if len != MSS_LEN {
                        return None;
                    }
                    let mss = packet.load::<2>(at.wrapping_add(offset).wrapping_add(2))?;
                    return Some((offset, u16::from_be_bytes(mss)));
                }
                offset = end;
            }
        }
        step = step.wrapping_add(1);
    }
    None
}

/// Writes the value of the option at `offset` and updates the checksum.
#[inline(always)]
fn replace_mss<P: Packet>(packet: &mut P, at: u32, offset: u32, old: u16, new: u16) -> Option<()> {
    let (to, [n0, n1]) = (at.wrapping_add(offset).wrapping_add(2), new.to_be_bytes());
    let [o0, o1] = old.to_be_bytes();
    // A value at an odd offset is in two words of the sum.
    let sum = if offset & 1 == 0 {
        checksum::difference(&[o0, o1, 0, 0], &[n0, n1, 0, 0])
    } else {
        checksum::difference(&[0, o0, o1, 0], &[0, n0, n1, 0])
    };
    packet.store_summed(to, &[n0, n1])?;
    packet.update_l4_checksum(
        at.wrapping_add(tcp::CHECK),
        L4ChecksumDelta {
            sum,
            pseudo: false,
            udp: false,
        },
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::{Frame as _, SlicePacket};

    const AT: u32 = 34;
    const SYN_ACK: u8 = 0x12;

    /// Folded sum of the bytes covered by the checksum; constant if the checksum is valid.
    fn sum(bytes: &[u8]) -> u32 {
        u32::from(checksum::reference_sum(bytes)) % 0xffff
    }

    /// A frame with zeros for Ethernet and IP, and a segment with a valid checksum (without a pseudo header).
    fn frame(flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let words = u8::try_from(5 + options.len().div_ceil(4)).unwrap();
        let mut tcp = vec![
            0x9c,
            0x40,
            0,
            80,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            words << 4,
            flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ];
        tcp.extend_from_slice(options);
        tcp.resize(usize::from(words) * 4, 0);
        tcp.extend_from_slice(payload);
        let check = u16::try_from(0xffff - sum(&tcp)).unwrap();
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        let mut frame = vec![0; 34];
        frame.extend(tcp);
        frame
    }

    fn clamped(frame: &[u8], most: u16) -> (Option<bool>, Vec<u8>) {
        let mut packet = SlicePacket::new(frame.to_vec());
        let len = packet.frame_len() - AT;
        let changed = lower_mss(&mut packet, AT, len, most);
        (changed, packet.bytes().to_vec())
    }

    fn mss_at(frame: &[u8], offset: usize) -> u16 {
        u16::from_be_bytes([frame[34 + offset], frame[35 + offset]])
    }

    #[test]
    fn the_first_option_is_lowered_in_syn_and_syn_ack() {
        for flags in [SYN, SYN_ACK, 0xc2] {
            let (changed, bytes) = clamped(&frame(flags, &[2, 4, 0x05, 0xb4], &[]), 1410);
            assert_eq!(changed, Some(true));
            assert_eq!(mss_at(&bytes, 22), 1410);
            assert_eq!(sum(&bytes[34..]), 0);
        }
    }

    #[test]
    fn any_order_of_options_and_odd_offsets() {
        let linux = [4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 2, 4, 0x05, 0xb4, 3, 3, 7];
        let (changed, bytes) = clamped(&frame(SYN, &linux, b"fast open"), 1000);
        assert_eq!((changed, mss_at(&bytes, 34)), (Some(true), 1000));
        assert_eq!(sum(&bytes[34..]), 0);
        let (changed, bytes) = clamped(&frame(SYN, &[1, 2, 4, 0x05, 0xb4], &[]), 1000);
        assert_eq!((changed, mss_at(&bytes, 23)), (Some(true), 1000));
        assert_eq!(sum(&bytes[34..]), 0);
        let mut tenth = vec![1; 9];
        tenth.extend([2, 4, 0x05, 0xb4]);
        let (changed, bytes) = clamped(&frame(SYN, &tenth, &[]), 1000);
        assert_eq!((changed, mss_at(&bytes, 31)), (Some(true), 1000));
        assert_eq!(sum(&bytes[34..]), 0);
    }

    #[test]
    fn other_packets_do_not_change() {
        let mss = [2, 4, 0x05, 0xb4];
        for (name, frame) in [
            ("no SYN", frame(0x10, &mss, &[])),
            ("small enough", frame(SYN, &[2, 4, 0x03, 0xe8], &[])),
            ("no option", frame(SYN, &[1, 1, 4, 2], &[])),
            ("no options", frame(SYN, &[], &mss)),
            ("behind the end", frame(SYN, &[0, 0, 0, 0, 2, 4, 0x05, 0xb4], &[])),
            ("length 3", frame(SYN, &[2, 3, 0x05, 1, 1, 1, 1, 1], &[])),
            (
                "too far behind",
                frame(SYN, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 0x05, 0xb4], &[]),
            ),
            ("length 0", frame(SYN, &[5, 0, 2, 4, 0x05, 0xb4, 0, 0], &[])),
            ("length 1", frame(SYN, &[5, 1, 2, 4, 0x05, 0xb4, 0, 0], &[])),
            (
                "beyond the header",
                frame(SYN, &[8, 12, 2, 4, 0x05, 0xb4, 0, 0], &mss),
            ),
            ("cut by the header", frame(SYN, &[1, 1, 2, 4], &[0x05, 0xb4])),
        ] {
            assert_eq!(clamped(&frame, 1000), (Some(false), frame.clone()), "{name}");
        }
        let mut longer_than_the_packet = frame(SYN, &mss, &[]);
        longer_than_the_packet[34 + 12] = 0xf0;
        let (changed, bytes) = clamped(&longer_than_the_packet, 1000);
        assert_eq!((changed, bytes), (Some(false), longer_than_the_packet));
    }

    proptest! {
        #[test]
        fn any_options_keep_the_checksum_and_never_raise_the_value(
            options in prop::collection::vec(prop_oneof![0..6_u8, any::<u8>()], 0..=40),
            flags: u8,
            most: u16,
            cut in 0..20_usize,
        ) {
            let whole = frame(flags, &options, b"payload");
            let (changed, bytes) = clamped(&whole, most);
            prop_assert_eq!(sum(&bytes[34..]), 0);
            let different: Vec<usize> = (0..whole.len()).filter(|i| whole[*i] != bytes[*i]).collect();
            prop_assert!(changed == Some(true) || different.is_empty());
            for i in different {
                let check = (50..52).contains(&i);
                prop_assert!(check || (54..whole.len() - 7).contains(&i), "byte {}", i);
            }
            prop_assert_eq!(clamped(&bytes, most).0, Some(false));
            // A truncated packet keeps its length.
            let cut = &whole[..whole.len() - cut];
            prop_assert_eq!(clamped(cut, most).1.len(), cut.len());
        }
    }
}
