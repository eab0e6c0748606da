//! Packets that a policy rejects and no reset can answer: the ICMP error to the sender, at each program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mc_gateway::cidr::to_abi_addr;
use mc_gateway_common::{
    abi::{
        Address,
        rate_limit::{MAX_SENDER_LIMITS, TokenBucket},
    },
    maps::MemoryMaps,
    rate_limit::sender_slot,
    verdict::DropReason::Policy,
};

use super::{
    Case, Expect, Program,
    from_remote::{OTHER, SYN, tables, tcp},
    from_underlay::delivered_mac,
};
use crate::{
    fixture::{MC0_MAC, POD_NODE, POD_WEST, STRANGER, Shape},
    packets::{Ip, checksum, ethernet, udp, with_checksum},
};

/// A Pod of this node that no policy selects.
const FREE: [u8; 4] = [10, 1, 0, 6];
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
/// Another Pod of this node that no policy selects.
const NEIGHBOR: [u8; 4] = [10, 1, 0, 7];
/// The port that rules reject.
const PORT: u16 = 82;
/// Tokens that rejections leave for other errors: half of the burst.
const RESERVED: u64 = 25;

struct Rejections<'c> {
    shape: Shape,
    half: u32,
    program: Program,
    cases: &'c mut Vec<Case>,
}

pub(crate) fn cases(cases: &mut Vec<Case>) {
    let shapes = Shape::all().filter(|shape| !shape.outer_v6 && !shape.vxlan);
    for (shape, half) in shapes.zip([0, 1]) {
        for program in [Program::FromRemote, Program::ToPod, Program::FromPod] {
            let mut rejections = Rejections {
                shape,
                half,
                program,
                cases,
            };
            rejections.lengths();
            rejections.protocols();
            rejections.dropped();
            rejections.limited();
        }
    }
}

/// A rejected datagram of each of two Pods of this node, and the slots of their limits.
pub(crate) fn of_two_senders() -> (MemoryMaps, [(u32, Vec<u8>); 2]) {
    let shape = Shape::default();
    let rejections = Rejections {
        shape,
        half: 0,
        program: Program::ToPod,
        cases: &mut Vec::new(),
    };
    let datagrams = [FREE, NEIGHBOR].map(|sender| {
        let mut packet = rejections.datagram(61);
        packet.src = shape.inner(sender);
        (slot_of(packet.src), rejections.frame(&packet))
    });
    (tables(shape, 0), datagrams)
}

/// The slot of a sender's limit.
fn slot_of(sender: IpAddr) -> u32 {
    sender_slot(Address::from(to_abi_addr(sender)).fold())
}

impl Rejections<'_> {
    fn packet(&self, proto: u8, payload: Vec<u8>) -> Ip {
        let (src, dst) = match self.program {
            Program::FromRemote => (POD_WEST, POD_NODE),
            Program::ToPod => (FREE, POD_NODE),
            _ => (POD_NODE, STRANGER),
        };
        Ip::new(self.shape.inner(src), self.shape.inner(dst), proto, payload)
    }

    /// A rejected datagram in a packet of `len` bytes.
    fn datagram(&self, len: usize) -> Ip {
        let header = if self.shape.inner_v6 { 40 } else { 20 };
        let payload: Vec<u8> = (0..len - header - 8)
            .map(|i| u8::try_from(i * 7 % 251).expect("small"))
            .collect();
        let mut packet = self.packet(UDP, udp(7, PORT, &payload));
        packet.payload = with_checksum(packet.src, packet.dst, UDP, packet.payload, 6);
        packet
    }

    /// Most bytes that an error quotes: those up to 576 (RFC 1812 section 4.3.2.3) or 1,280 (RFC 4443 section 2.4).
    fn most(&self) -> usize {
        if self.shape.inner_v6 { 1_280 - 48 } else { 576 - 28 }
    }

    fn frame(&self, packet: &Ip) -> Vec<u8> {
        let source = match self.program {
            Program::FromRemote => delivered_mac(OTHER, true),
            _ => [2, 0, 0, 0, 0, 1],
        };
        ethernet(MC0_MAC, source, packet.ethertype(), &packet.bytes())
    }

    /// The error about a packet (RFC 792, RFC 4443), which returns to the sender of the frame.
    fn answer(&self, frame: &[u8], about: &Ip) -> Expect {
        let mut quoted = about.bytes().to_vec();
        quoted.truncate(self.most());
        let mut error = if self.shape.inner_v6 {
            let message = [vec![1, 1, 0, 0, 0, 0, 0, 0], quoted].concat();
            Ip::new(
                about.dst,
                about.src,
                58,
                with_checksum(about.dst, about.src, 58, message, 2),
            )
        } else {
            let mut message = [vec![3, 10, 0, 0, 0, 0, 0, 0], quoted].concat();
            let check = checksum(&message);
            message[2..4].copy_from_slice(&check.to_be_bytes());
            Ip::new(about.dst, about.src, 1, message)
        };
        (error.tos, error.id, error.frags) = (0xc0, 0, 0x4000);
        let [to, from] = [6..12, 0..6].map(|at| <[u8; 6]>::try_from(&frame[at]).expect("an address"));
        let answer = ethernet(to, from, error.ethertype(), &error.bytes());
        match self.program {
            Program::ToPod => Expect::RejectedToHost(answer),
            _ => Expect::Rejected(answer),
        }
    }

    fn push(&mut self, what: &str, tables: MemoryMaps, frame: Vec<u8>, gso_size: u32, expect: Expect) {
        self.cases.push(Case {
            gso_size,
            name: format!("rejected: {}: {}: {what}", self.program.name(), self.shape.name()),
            program: self.program,
            tables,
            frame,
            expect,
        });
    }

    fn push_answered(&mut self, what: &str, packet: &Ip) {
        let frame = self.frame(packet);
        let expect = self.answer(&frame, packet);
        self.push(what, tables(self.shape, self.half), frame, 0, expect);
    }

    fn push_dropped(&mut self, what: &str, packet: &Ip) {
        let frame = self.frame(packet);
        self.push(
            what,
            tables(self.shape, self.half),
            frame,
            0,
            Expect::Drop(Policy),
        );
    }

    fn lengths(&mut self) {
        let (short, most) = (60, self.most());
        for len in [
            short,
            short + 1,
            short + 2,
            short + 3,
            most - 1,
            most,
            most + 1,
            1_400,
        ] {
            let packet = self.datagram(len);
            self.push_answered(&format!("a datagram in {len} bytes"), &packet);
        }
    }

    fn protocols(&mut self) {
        let (icmp, request) = if self.shape.inner_v6 { (58, 128) } else { (1, 8) };
        let echo = self.packet(icmp, vec![request, 0, 0, 0, 0, 9, 0, 1]);
        self.push_answered("an echo request", &echo);
        // Source and destination port, then a verification tag, a checksum and the INIT chunk (RFC 9260 section 3).
        let [high, low] = PORT.to_be_bytes();
        let init = vec![0, 7, high, low, 0, 0, 0, 0, 1, 2, 3, 4, 1, 0, 0, 4];
        self.push_answered("an SCTP packet", &self.packet(SCTP, init));
        // TCP Fast Open (RFC 7413).
        let mut payload = self.packet(TCP, tcp(PORT, SYN));
        payload.payload.extend(b"xyz");
        self.push_answered("a segment with payload", &payload);
        let mut offset = self.packet(TCP, tcp(PORT, SYN));
        offset.payload[12] = 0x60;
        self.push_answered("a segment with a wrong data offset", &offset);
        let mut behind = self.packet(TCP, tcp(PORT, SYN));
        if self.shape.inner_v6 {
            // Destination options with one of padding.
            (behind.proto, behind.options) = (60, vec![TCP, 0, 1, 4, 0, 0, 0, 0]);
        } else {
            behind.options = vec![1; 4];
        }
        self.push_answered("a segment behind options", &behind);
        if !self.shape.inner_v6 {
            let mut first = self.datagram(68);
            first.frags = 0x2000;
            self.push_answered("a first fragment", &first);
        }
    }

    fn dropped(&mut self) {
        let datagram = self.datagram(100);
        for (what, size) in [("a GSO packet", 30), ("a long GSO packet", 700)] {
            let packet = self.datagram(if size > 100 { 1_400 } else { 100 });
            let frame = self.frame(&packet);
            let tables = tables(self.shape, self.half);
            self.push(what, tables, frame, size, Expect::Drop(Policy));
        }
        let mut frame = self.frame(&datagram);
        frame[0] |= 1;
        let tables = tables(self.shape, self.half);
        self.push("a multicast of the link", tables, frame, 0, Expect::Drop(Policy));
        let group = if self.shape.inner_v6 {
            IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 9))
        } else {
            IpAddr::V4(Ipv4Addr::new(224, 0, 0, 9))
        };
        let mut multicast = datagram;
        match self.program {
            Program::FromPod => {
                multicast.dst = group;
                self.push_dropped("to a multicast address", &multicast);
            }
            Program::ToPod => {
                multicast.src = group;
                self.push_dropped("from a multicast address", &multicast);
            }
            // An address of no cluster has no identity that a rule rejects.
            _ => {}
        }
    }

    fn limited(&mut self) {
        let packet = self.datagram(61);
        for (what, tokens) in [
            ("the last spare token", RESERVED + 1),
            ("no spare token", RESERVED),
        ] {
            let tables = tables(self.shape, self.half);
            *tables.icmp_limit.borrow_mut() = TokenBucket { tokens, at: u64::MAX };
            let frame = self.frame(&packet);
            let expect = if tokens > RESERVED {
                self.answer(&frame, &packet)
            } else {
                Expect::Drop(Policy)
            };
            self.push(what, tables, frame, 0, expect);
        }
        let own = slot_of(packet.src);
        for (what, is_limited) in [("a sender without tokens", true), ("another one without", false)] {
            let tables = tables(self.shape, self.half);
            let empty = TokenBucket {
                tokens: 0,
                at: u64::MAX,
            };
            let slots = (0..MAX_SENDER_LIMITS).filter(|slot| (*slot == own) == is_limited);
            tables
                .sender_limits
                .borrow_mut()
                .extend(slots.map(|slot| (slot, empty)));
            let frame = self.frame(&packet);
            let expect = if is_limited {
                Expect::Drop(Policy)
            } else {
                self.answer(&frame, &packet)
            };
            self.push(what, tables, frame, 0, expect);
        }
    }
}
