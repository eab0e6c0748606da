//! Checksum of the packet quoted in an ICMP error, if a device completes it later.

use super::subprograms::Subprograms;
use crate::packet::{
    checksum, ip,
    l4::L4Location,
    offsets::{tcp, udp},
};

/// Prepares the quoted packet for sending, and returns its sum afterwards.
///
/// A device that completes the checksum of the packet (`CHECKSUM_PARTIAL`) does so in the quoted packet as well, which
/// no helper can prevent. The field therefore gets the only value that completion does not change: with a sum `s` of
/// everything else from the transport header on, half of the complement of `s`.
#[inline(always)]
pub fn finalize_checksum<P: Subprograms>(
    packet: &mut P,
    at: u32,
    quoted: u32,
    sum: u16,
    location: L4Location,
) -> Option<u16> {
    let field = match location.proto {
        ip::TCP => tcp::CHECK,
        ip::UDP => udp::CHECK,
        _ => return Some(sum),
    };
    let field = location.at.wrapping_add(field);
    let inside = field.wrapping_add(2) <= at.wrapping_add(quoted);
    if location.fragment || !inside || !packet.is_checksum_partial(field)? {
        return Some(sum);
    }
    let old = u16::from_ne_bytes(packet.load(field)?);
    let front = packet.sum_bytes(at, location.at.wrapping_sub(at))?;
    let rest = u64::from(sum).wrapping_add(u64::from(!old));
    let others = rest.wrapping_add(u64::from(!front));
    let new = halve(!checksum::fold(others));
    packet.store(field, &new.to_ne_bytes())?;
    Some(checksum::fold(rest.wrapping_add(u64::from(new))))
}

/// The number that, added to itself, gives `value` in checksum arithmetic (modulo 65,535).
#[inline(always)]
const fn halve(value: u16) -> u16 {
    if value & 1 == 0 {
        value >> 1
    } else {
        (value >> 1).wrapping_add(0x8000)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::{
        Frame as _, Packet as _, SlicePacket, eth,
        icmp::{ErrorHeader, headers_len, quoted_len},
    };

    /// 0 for a message with a valid checksum.
    fn checksum(bytes: &[u8]) -> u16 {
        !checksum::reference_sum(bytes)
    }

    fn v4(proto: u8, payload: &[u8]) -> Vec<u8> {
        let total = u16::try_from(20 + payload.len()).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 1, 0x40, 0, 64, proto, 0, 0, 10, 1, 0, 5, 10, 2, 0, 5]);
        let check = checksum(&packet);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet.extend(payload);
        packet
    }

    fn v6(proto: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        packet.extend([proto, 64]);
        packet.extend([0xfd; 16]);
        packet.extend([0xfc; 16]);
        packet.extend(payload);
        packet
    }

    /// The error about a packet as an IP packet, and the quoted bytes.
    fn error_about(packet: &[u8], mtu: u32, summed_later: bool) -> (Vec<u8>, Vec<u8>) {
        let v6 = packet[0] >> 4 == 6;
        let mut frame = vec![0; 14];
        frame.extend(packet);
        let mut frame = SlicePacket::new(frame);
        frame.set_checksum_partial(summed_later);
        let transport = frame.locate_l4(v6, eth::END);
        let quoted = quoted_len(v6, frame.frame_len() - eth::END);
        let sum = frame.sum_bytes(eth::END, quoted).unwrap();
        let sum = frame.finalize_checksum(eth::END, quoted, sum, transport).unwrap();
        frame.resize(eth::END + quoted).unwrap();
        frame.insert(headers_len(v6)).unwrap();
        let header = ErrorHeader::icmp_too_big(v6, mtu);
        frame.store_icmp_error(v6, eth::END, header, sum).unwrap();
        (
            frame.bytes()[14..].to_vec(),
            packet[..usize::try_from(quoted).unwrap()].to_vec(),
        )
    }

    /// The bytes covered by the `ICMPv6` checksum.
    fn with_pseudo_header(packet: &[u8]) -> Vec<u8> {
        let mut covered = packet[8..40].to_vec();
        covered.extend(u32::try_from(packet.len() - 40).unwrap().to_be_bytes());
        covered.extend([0, 0, 0, 58]);
        covered.extend(&packet[40..]);
        covered
    }

    #[test]
    fn fragmentation_needed_matches_rfc_1191() {
        let (bytes, quoted) = error_about(&v4(ip::UDP, &[7; 1400]), 1300, false);
        assert_eq!(bytes.len(), 576);
        assert_eq!(checksum(&bytes[..20]), 0);
        assert_eq!(checksum(&bytes[20..]), 0);
        assert_eq!(bytes[12..20], [10, 2, 0, 5, 10, 1, 0, 5]);
        assert_eq!(
            (bytes[9], &bytes[20..22], &bytes[24..28]),
            (1, &[3, 4][..], &[0, 0, 5, 20][..])
        );
        assert_eq!(bytes[28..], quoted);
    }

    #[test]
    fn packet_too_big_matches_rfc_4443() {
        let (bytes, quoted) = error_about(&v6(ip::UDP, &[7; 1400]), 1300, false);
        assert_eq!(bytes.len(), 1280);
        assert_eq!(checksum(&with_pseudo_header(&bytes)), 0);
        assert_eq!(
            (&bytes[40..42], &bytes[44..48]),
            (&[2, 0][..], &[0, 0, 5, 20][..])
        );
        assert_eq!((bytes[8], bytes[24]), (0xfc, 0xfd));
        assert_eq!(bytes[48..], quoted);
    }

    #[test]
    fn no_error_announces_less_than_the_minimum_mtu() {
        let (error, _) = error_about(&v6(ip::UDP, &[7; 1400]), 1000, false);
        assert_eq!(error[44..48], [0, 0, 5, 0]);
        let (error, _) = error_about(&v4(ip::UDP, &[7; 1400]), 60, false);
        assert_eq!(error[24..28], [0, 0, 0, 68]);
    }

    #[test]
    fn half_of_a_sum_added_to_itself_is_the_sum() {
        for value in 0..=u16::MAX {
            let twice = u32::from(halve(value)) * 2;
            assert_eq!(twice % 0xffff, u32::from(value) % 0xffff, "{value}");
        }
    }

    proptest! {
        #[test]
        fn checksums_are_valid_for_any_packet(payload in prop::collection::vec(any::<u8>(), 0..1600), proto: u8, mtu: u32, later: bool) {
            let (bytes, _) = error_about(&v4(proto, &payload), mtu, later);
            prop_assert!(bytes.len() <= 576);
            prop_assert_eq!(checksum(&bytes[20..]), 0);
            let (bytes, _) = error_about(&v6(proto, &payload), mtu, later);
            prop_assert!(bytes.len() <= 1280);
            prop_assert_eq!(checksum(&with_pseudo_header(&bytes)), 0);
        }

        /// `CHECKSUM_PARTIAL`: the device writes the value that is already in the quoted packet.
        #[test]
        fn completion_of_the_quoted_checksum_changes_nothing(payload in prop::collection::vec(any::<u8>(), 20..1600), tcp: bool, is_v6: bool) {
            let proto = if tcp { ip::TCP } else { ip::UDP };
            let packet = if is_v6 { v6(proto, &payload) } else { v4(proto, &payload) };
            let (bytes, _) = error_about(&packet, 1280, true);
            let start = if is_v6 { 48 + 40 } else { 28 + 20 };
            let field = start + if tcp { 16 } else { 6 };
            let written = match checksum(&bytes[start..]) {
                0 => 0xffff,
                check => check,
            };
            let there = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
            prop_assert_eq!(written % 0xffff, there % 0xffff);
        }
    }
}
