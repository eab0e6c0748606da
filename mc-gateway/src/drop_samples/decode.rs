//! Decoding of a sampled packet. Pure.
//!
//! *Guarantees*: every input has a result; unreadable fields are absent.

use std::net::IpAddr;

pub(super) use mc_gateway_common::abi::sample::AUDITED;
use mc_gateway_common::abi::sample::SAMPLE_BYTES;
use mc_gateway_common::abi::{DeliveredMac, IDENTITY_UNKNOWN};
use mc_gateway_common::packet::{Frame as _, Packet as _, SlicePacket, encap::TUNNEL_OVERHEAD, eth, ip};

use crate::attachment::Program;
use crate::cidr::from_abi_addr;

/// A dropped packet, or one that an audited rule would drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DroppedPacket {
    /// `DropReason` by number, or [`AUDITED`].
    pub(super) reason: u32,
    /// None with an unknown number.
    pub(super) program: Option<Program>,
    /// Device.
    pub(super) ifindex: u32,
    /// Length of the frame in bytes.
    pub(super) length: u32,
    /// ID of the policy rule that dropped it, or would drop it; 0 for none.
    pub(super) rule: u32,
    /// Label identity of a sender in another cluster, in a packet of `from_remote`.
    pub(super) identity: Option<u32>,
    /// Outer source of an encapsulated packet.
    pub(super) peer: Option<IpAddr>,
    /// Flow of the inner packet.
    pub(super) flow: Option<FiveTuple>,
}

/// Addresses, protocol and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FiveTuple {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// Number of the protocol.
    pub(super) proto: u8,
    pub(super) src_port: Option<u16>,
    pub(super) dst_port: Option<u16>,
}

/// Decodes a record of the ring; `None` if it is too short.
pub(super) fn decode(record: &[u8]) -> Option<DroppedPacket> {
    let (head, bytes) = record.split_first_chunk::<32>()?;
    let words = head.as_chunks::<4>().0;
    let [_, _, reason, program, ifindex, length, captured, rule] =
        words.first_chunk::<8>()?.map(u32::from_ne_bytes);
    let captured = usize::try_from(captured).ok()?.min(SAMPLE_BYTES);
    let frame = SlicePacket::new(bytes.get(..captured)?.to_vec());
    let outer = ip::Header::load(&frame, frame.ethertype(), eth::END);
    let program = Program::of_sample(program);
    let (peer, flow) = match program {
        Some(Program::FromUnderlay) => (
            outer.map(|outer| from_abi_addr(&outer.src.bytes())),
            outer.and_then(|outer| inner_flow(&frame, &outer)),
        ),
        Some(_) => (None, outer.map(|header| flow(&frame, &header, eth::END))),
        None => (None, None),
    };
    Some(DroppedPacket {
        reason,
        program,
        ifindex,
        length,
        rule,
        identity: (program == Some(Program::FromRemote))
            .then(|| sender_identity(&frame))
            .flatten(),
        peer,
        flow,
    })
}

/// The label identity in the source MAC address of a delivered packet.
fn sender_identity(frame: &SlicePacket) -> Option<u32> {
    let identity = DeliveredMac::from_mac(frame.load::<6>(eth::SRC)?).identity;
    (identity != IDENTITY_UNKNOWN).then_some(identity)
}

/// The flow inside a tunnel without options.
fn inner_flow(frame: &SlicePacket, outer: &ip::Header) -> Option<FiveTuple> {
    let at = eth::END
        .checked_add(outer.len)?
        .checked_add(u32::try_from(TUNNEL_OVERHEAD).ok()?)?;
    let ethertype = u16::from_be_bytes(frame.load::<2>(at.checked_sub(2)?)?);
    let header = ip::Header::load(frame, ethertype, at)?;
    Some(flow(frame, &header, at))
}

fn flow(frame: &SlicePacket, header: &ip::Header, at: u32) -> FiveTuple {
    let has_ports = matches!(header.proto, ip::TCP | ip::UDP | ip::SCTP) && !header.is_fragment();
    let ports = at
        .checked_add(header.len)
        .filter(|_| has_ports)
        .and_then(|at| frame.load::<4>(at));
    let port = |bytes: [u8; 4], first: bool| {
        let [a, b, c, d] = bytes;
        u16::from_be_bytes(if first { [a, b] } else { [c, d] })
    };
    FiveTuple {
        src: from_abi_addr(&header.src.bytes()),
        dst: from_abi_addr(&header.dst.bytes()),
        proto: header.proto,
        src_port: ports.map(|bytes| port(bytes, true)),
        dst_port: ports.map(|bytes| port(bytes, false)),
    }
}

/// Router and listener discovery, mDNS and similar packets that a kernel sends on every device.
pub(super) fn is_link_local_multicast(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => matches!(addr.octets(), [224, 0, 0, _]),
        IpAddr::V6(addr) => matches!(addr.octets(), [0xff, scope, ..] if scope & 0xf == 2),
    }
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::sample::{FROM_POD, FROM_REMOTE, FROM_UNDERLAY, TO_POD, TO_REMOTE};
    use proptest::prelude::*;

    use super::*;

    fn record(program: u32, frame: &[u8]) -> Vec<u8> {
        let captured = u32::try_from(frame.len()).unwrap();
        let mut record = vec![0; 8];
        for word in [14, program, 3, 1500, captured, 77] {
            record.extend_from_slice(&u32::to_ne_bytes(word));
        }
        record.extend_from_slice(frame);
        record.resize(32 + SAMPLE_BYTES, 0);
        record
    }

    fn v4(src: [u8; 4], dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, ip::UDP, 0, 0];
        packet.extend_from_slice(&src);
        packet.extend_from_slice(&dst);
        packet.extend_from_slice(payload);
        packet
    }

    fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&ethertype.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn the_flow_inside_a_tunnel_and_the_peer() {
        let inner = v4([10, 11, 0, 5], [10, 12, 0, 5], &[0x1f, 0x90, 0, 53]);
        let mut tunnelled = vec![0; 16];
        tunnelled.extend(ethernet(eth::IPV4, &inner));
        let frame = ethernet(eth::IPV4, &v4([192, 0, 2, 1], [192, 0, 2, 2], &tunnelled));
        let dropped = decode(&record(FROM_UNDERLAY, &frame)).unwrap();
        assert_eq!((dropped.reason, dropped.ifindex, dropped.length), (14, 3, 1500));
        assert_eq!(dropped.program, Some(Program::FromUnderlay));
        assert_eq!(dropped.peer, Some([192, 0, 2, 1].into()));
        let flow = dropped.flow.unwrap();
        assert_eq!(
            (flow.src, flow.dst),
            ([10, 11, 0, 5].into(), [10, 12, 0, 5].into())
        );
        assert_eq!(
            (flow.proto, flow.src_port, flow.dst_port),
            (17, Some(8080), Some(53))
        );
    }

    #[test]
    fn a_packet_of_mc0_and_one_that_is_cut_off() {
        let mut v6 = vec![0x60, 0, 0, 0, 0, 8, ip::TCP, 64];
        v6.extend_from_slice(&[0xfd; 16]);
        v6.extend_from_slice(&[0xfe; 16]);
        v6.extend_from_slice(&[0, 80, 0, 81]);
        let frame = ethernet(eth::IPV6, &v6);
        let dropped = decode(&record(TO_REMOTE, &frame)).unwrap();
        assert_eq!(dropped.peer, None);
        assert_eq!(dropped.flow.unwrap().src_port, Some(80));
        assert_eq!(decode(&record(TO_REMOTE, &frame[..30])).unwrap().flow, None);
        assert_eq!(decode(&[0; 31]), None);
    }

    #[test]
    fn a_packet_that_a_rule_drops_has_its_program_rule_and_identity() {
        let mut frame = ethernet(eth::IPV4, &v4([10, 11, 0, 5], [10, 12, 0, 5], &[0, 80, 0, 81]));
        frame[6..12].copy_from_slice(&[0x0a, 0x6d, 1, 0, 0, 9]);
        for (number, program, identity) in [
            (FROM_REMOTE, Program::FromRemote, Some(9)),
            (TO_POD, Program::ToPod, None),
            (FROM_POD, Program::FromPod, None),
        ] {
            let dropped = decode(&record(number, &frame)).unwrap();
            assert_eq!(
                (dropped.program, dropped.rule, dropped.identity),
                (Some(program), 77, identity)
            );
        }
    }

    #[test]
    fn link_local_multicast_is_recognised() {
        for (text, expected) in [
            ("ff02::16", true),
            ("224.0.0.22", true),
            ("ff05::2", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_link_local_multicast(text.parse().unwrap()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded(record in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&record);
        }
    }
}
