//! Generated packets through the host's functions and the kernel's programs.
//!
//! Compared are verdict and bytes of every packet, and after every batch all counters, the token bucket of ICMP
//! errors, liveness records and flow tables. The kernel's counters must also agree with its own return codes, which
//! does not involve the host.
//!
//! Packets are valid, mutated or truncated, with options, extension headers and fragments inside and outside, tunnel
//! headers with options and odd flags, probes, ICMP errors, nested tunnels and Services, in every combination of
//! families and formats. The same seed generates the same packets.

#![expect(clippy::cast_possible_truncation, reason = "random bits are cut to size")]

use std::{net::IpAddr, thread};

use mc_gateway_common::{
    maps::MemoryMaps,
    packet::probe::{ETHERTYPE, Kind, Probe},
    verdict::{Outcome, Verdict},
};
use mc_tests::rng::Rng;

use crate::{
    Counts, Kernel, Program, TC_ACT_REDIRECT, TC_ACT_SHOT,
    cases::services,
    expected_counts,
    fixture::{
        self, ALIAS_SOUTH, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, NORTH_GATEWAY, OTHER_GATEWAY, POD_HERE,
        POD_NODE, POD_NORTH, POD_WEST, SERVICE_HERE, SERVICE_SOUTH, SERVICE_WEST, SOUTH_GATEWAY, STRANGER,
        Shape, WEST_GATEWAY,
    },
    kernel,
    packets::{Ip, Tunnel, checksum, l4_checksum, tcp_syn, udp, with_checksum},
    run_on_host, tc_action,
};

/// Number of packets in the gate and with `--long`.
const PACKETS: u64 = 2_000_000;
const LONG_PACKETS: u64 = 10_000_000;

const PODS: [[u8; 4]; 13] = [
    POD_HERE,
    POD_NODE,
    POD_WEST,
    POD_NORTH,
    SERVICE_HERE,
    SERVICE_WEST,
    [127, 0, 0, 1],
    [224, 0, 0, 5],
    [198, 51, 100, 7],
    SERVICE_SOUTH,
    ALIAS_SOUTH,
    SOUTH_GATEWAY,
    GATEWAY_OUTSIDE,
];
/// Packets between comparisons of counters and flow tables: fewer than the smallest flow table holds, because the host
/// never evicts.
const BATCH: u64 = 2_000;
/// Initial tokens for ICMP errors.
const TOKENS: u64 = 1 << 40;

/// Number of client ports: few, so that flows have several packets.
const CLIENTS: usize = 256;
/// Ports of the Services in `cases/services.rs`.
const SERVICE_PORTS: [u16; 7] = [80, 80, 81, 53, 5_000, 7, 443];
/// Port of the Services' Pods.
const POD_PORT: u16 = 8_080;

/// Paths of packets: outer source and destination, inner source and destination.
const ROUTES: [[[u8; 4]; 4]; 10] = [
    [NODE, GATEWAY_INSIDE, POD_NODE, POD_WEST],
    [WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_NODE],
    [WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_HERE],
    [NORTH_GATEWAY, GATEWAY_OUTSIDE, POD_NORTH, SERVICE_HERE],
    [GATEWAY_INSIDE, NODE, POD_WEST, POD_NODE],
    // South's Antrea gateway: its clients, replies to them, requests to it, and its replies.
    [SOUTH_GATEWAY, GATEWAY_OUTSIDE, SOUTH_GATEWAY, POD_NODE],
    [SOUTH_GATEWAY, GATEWAY_OUTSIDE, SOUTH_GATEWAY, POD_HERE],
    [NODE, GATEWAY_INSIDE, POD_NODE, ALIAS_SOUTH],
    [NODE, GATEWAY_INSIDE, POD_NODE, SERVICE_SOUTH],
    [SOUTH_GATEWAY, GATEWAY_OUTSIDE, SERVICE_SOUTH, GATEWAY_OUTSIDE],
];
const UNDERLAY: [[u8; 4]; 8] = [
    NODE,
    GATEWAY_INSIDE,
    GATEWAY_OUTSIDE,
    OTHER_GATEWAY,
    WEST_GATEWAY,
    NORTH_GATEWAY,
    SOUTH_GATEWAY,
    STRANGER,
];

/// The tables that packets run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum World {
    /// A gateway, with an Antrea gateway among its peers.
    Gateway,
    /// A regular node.
    Node,
    /// A gateway with Services.
    ServiceGateway,
    /// A regular node with Pods behind Services.
    ServiceNode,
}

impl World {
    const ALL: [Self; 4] = [Self::Gateway, Self::Node, Self::ServiceGateway, Self::ServiceNode];

    fn tables(self, shape: Shape) -> MemoryMaps {
        let mut tables = match self {
            Self::Gateway => shape.tables(fixture::antrea()),
            Self::Node => shape.tables(fixture::node()),
            Self::ServiceGateway => services::world(shape, true),
            Self::ServiceNode => services::world(shape, false),
        };
        for (slot, next_hop) in &mut tables.next_hops {
            next_hop.mtu = if slot % 2 == 0 { 1_450 } else { 1_300 };
        }
        tables
    }
}

/// Generates packets of one shape for one world.
struct Generator {
    random: Rng,
    shape: Shape,
    world: World,
}

/// A generated frame.
struct Generated {
    program: Program,
    frame: Vec<u8>,
    /// Whether all its checksums are valid.
    valid_checksums: bool,
}

impl Generator {
    fn packet(&mut self) -> Generated {
        let program = if self.random.one_in(3) {
            Program::ToRemote
        } else {
            Program::FromUnderlay
        };
        let mut frame = match program {
            Program::ToRemote if self.has_services() && self.random.one_in(2) => self.reply().frame(),
            Program::ToRemote => {
                let dst = *self
                    .random
                    .pick(&[POD_WEST, POD_WEST, ALIAS_SOUTH, SERVICE_SOUTH]);
                self.inner(self.own_pod(), dst).frame()
            }
            Program::FromUnderlay if self.has_services() && self.random.one_in(2) => self.request().frame(),
            Program::FromUnderlay => self.tunnel().frame(),
        };
        let mut valid_checksums = true;
        if self.random.one_in(2) {
            valid_checksums = false;
            for _ in 0..=self.random.index(3) {
                let reach = if self.random.one_in(2) {
                    frame.len().min(110)
                } else {
                    frame.len()
                };
                let at = self.random.index(reach);
                frame[at] ^= 1 << self.random.index(8);
            }
        }
        if self.random.one_in(8) {
            valid_checksums = false;
            let len = 14 + self.random.index(frame.len());
            frame.truncate(len);
        }
        if self.random.one_in(16) {
            let len = self.random.index(40);
            frame.extend(self.random.bytes(len));
            valid_checksums = false;
        }
        Generated {
            program,
            frame,
            valid_checksums,
        }
    }

    /// A Pod of this node: it may not send as another node's.
    fn own_pod(&self) -> [u8; 4] {
        match self.world {
            World::Gateway | World::ServiceGateway => POD_HERE,
            World::Node | World::ServiceNode => POD_NODE,
        }
    }

    fn has_services(&self) -> bool {
        matches!(self.world, World::ServiceGateway | World::ServiceNode)
    }

    /// A client's packet to a Service: from west's gateway, or from the own gateway with a selected backend.
    fn request(&mut self) -> Tunnel {
        let client = (POD_WEST, self.client_port());
        let service = (SERVICE_HERE, *self.random.pick(&SERVICE_PORTS));
        let inner = self.transport(client, service);
        let (src, dst) = match self.world {
            World::ServiceGateway => (WEST_GATEWAY, GATEWAY_OUTSIDE),
            _ => (GATEWAY_INSIDE, NODE),
        };
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), &inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel.udp_checksum = self.random.one_in(3);
        if self.world == World::ServiceNode && !self.random.one_in(8) {
            tunnel.inner_src = services::mac(*self.random.pick(&services::BACKENDS));
        }
        tunnel
    }

    fn client_port(&mut self) -> u16 {
        40_000 + self.random.index(CLIENTS) as u16
    }

    /// A Pod's reply to a client of its Service.
    fn reply(&mut self) -> Ip {
        let pod = self.own_pod();
        let client = (POD_WEST, self.client_port());
        self.transport((pod, POD_PORT), client)
    }

    /// TCP, UDP, a fragment, or an ICMP error about the reverse flow.
    fn transport(&mut self, src: ([u8; 4], u16), dst: ([u8; 4], u16)) -> Ip {
        let (from, to) = (self.shape.inner(src.0), self.shape.inner(dst.0));
        let proto = *self.random.pick(&[6, 17]);
        if self.random.one_in(8) {
            let (proto, message) = self.port_unreachable((to, dst.1), (from, src.1), proto);
            return Ip::new(from, to, proto, message);
        }
        let len = self.random.index(64);
        let payload = self.random.bytes(len);
        let message = if proto == 6 {
            let mut segment = tcp_syn(src.1, dst.1);
            segment[13] = *self.random.pick(&[0x02, 0x10, 0x11, 0x12]);
            segment.extend(payload);
            with_checksum(from, to, 6, segment, 16)
        } else {
            with_checksum(from, to, 17, udp(src.1, dst.1, &payload), 6)
        };
        let mut ip = Ip::new(from, to, proto, message);
        if self.random.one_in(8) {
            self.add_fragment_or_options(&mut ip);
        }
        ip
    }

    /// An ICMP error from `to` to `from` that quotes a packet in the opposite direction.
    fn port_unreachable(&mut self, from: (IpAddr, u16), to: (IpAddr, u16), proto: u8) -> (u8, Vec<u8>) {
        let quoted = if proto == 6 {
            tcp_syn(from.1, to.1)
        } else {
            let payload = self.random.bytes(8);
            udp(from.1, to.1, &payload)
        };
        let quoted = Ip::new(from.0, to.0, proto, quoted).bytes();
        let mut message = vec![if from.0.is_ipv4() { 3 } else { 1 }, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&quoted[..]);
        if from.0.is_ipv6() {
            return (58, with_checksum(to.0, from.0, 58, message, 2));
        }
        let check = checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        (1, message)
    }

    fn tunnel(&mut self) -> Tunnel {
        let [mut from, mut to, src, dst] = *self.random.pick(&ROUTES);
        if self.random.one_in(12) {
            from = *self.random.pick(&UNDERLAY);
        }
        if self.random.one_in(12) {
            to = *self.random.pick(&UNDERLAY);
        }
        let inner = self.inner(src, dst);
        let mut tunnel = Tunnel::new(self.shape.outer(from), self.shape.outer(to), &inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel.src_port = 0xc000 | self.random.next_u64() as u16;
        tunnel.udp_checksum = self.random.one_in(3);
        tunnel.vni = (self.random.next_u64() & 0x00ff_ffff) as u32;
        tunnel.ttl = *self.random.pick(&[0, 1, 2, 64, 255]);
        tunnel.tos = *self.random.pick(&[0, 1, 2, 3, 0xb8, 0xbb]);
        if self.random.one_in(16) {
            tunnel.mac = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        }
        if self.random.one_in(32) {
            tunnel.dst_port = 4790;
        }
        if self.random.one_in(16) {
            self.probe(&mut tunnel);
        }
        if self.random.one_in(16) {
            self.odd_headers(&mut tunnel);
        }
        tunnel
    }

    /// A probe of any kind instead of a packet. Requests are reflected; replies are dropped, because the tables have
    /// no sent probe.
    fn probe(&mut self, tunnel: &mut Tunnel) {
        let probe = Probe {
            kind: *self.random.pick(&[
                Kind::Request,
                Kind::Request,
                Kind::Reply,
                Kind::SizeRequest,
                Kind::SizeReply,
            ]),
            size: self.random.next_u64() as u16,
            slot: self.random.next_u64() as u32 % 8,
            id: *self.random.pick(&[0, 1_007, 2_007, 3_007]),
            sequence: self.random.next_u64() as u32,
            sent_at: self.random.next_u64() >> 24,
        };
        tunnel.inner = probe.bytes().to_vec();
        let padding = *self.random.pick(&[0, 0, 1, 40, 1_300]);
        tunnel.inner.resize(tunnel.inner.len() + padding, 0);
        tunnel.inner_type = ETHERTYPE;
    }

    /// Outer options or extension headers, outer fragments, tunnel headers with options, random flags.
    fn odd_headers(&mut self, tunnel: &mut Tunnel) {
        match self.random.index(6) {
            0 if self.shape.outer_v6 => {
                let mut header = vec![17, 0, 0, 0, 0, 0, 0, 0];
                header[3] = *self.random.pick(&[0, 1, 8]);
                tunnel.outer_options = header;
                tunnel.outer_next = *self.random.pick(&[0, 43, 44, 60]);
            }
            0 => tunnel.outer_options = vec![1; 4 * (1 + self.random.index(10))],
            1 => tunnel.frags = self.random.next_u64() as u16,
            2 => {
                let words = 1 + self.random.index(4);
                tunnel.geneve[0] |= words as u8;
                tunnel.geneve_options = self.random.bytes(4 * words);
            }
            3 => tunnel.geneve = [self.random.next_u64() as u8 & 0xc0, self.random.next_u64() as u8],
            4 => tunnel.geneve_type = *self.random.pick(&[0x0800, 0x86dd, 0x6559]),
            _ => tunnel.inner_type = *self.random.pick(&[0x0806, 0x8100, 0x0800, 0x86dd, 0]),
        }
    }

    fn inner(&mut self, mut src: [u8; 4], mut dst: [u8; 4]) -> Ip {
        if self.random.one_in(10) {
            src = *self.random.pick(&PODS);
        }
        if self.random.one_in(10) {
            dst = *self.random.pick(&PODS);
        }
        let (from, to) = (self.shape.inner(src), self.shape.inner(dst));
        let len = match self.random.index(3) {
            0 => self.random.index(64),
            1 => 1_200 + self.random.index(300),
            _ => self.random.index(1_600),
        };
        let (proto, payload) = match self.random.index(8) {
            0..=2 => (6, with_checksum(from, to, 6, self.tcp(), 16)),
            3 | 4 => {
                let payload = self.random.bytes(len);
                let ports = (self.random.next_u64() as u16, self.random.next_u64() as u16);
                (
                    17,
                    with_checksum(from, to, 17, udp(ports.0, ports.1, &payload), 6),
                )
            }
            5 => self.icmp_error(from, to),
            6 => (17, self.nested()),
            // Noise of a protocol without a verifiable checksum.
            _ => (self.random.next_u64() as u8 | 0x80, self.random.bytes(len)),
        };
        let mut ip = Ip::new(from, to, proto, payload);
        ip.tos = *self.random.pick(&[0, 1, 2, 3, 0xb8]);
        ip.ttl = self.random.next_u64() as u8;
        if self.random.one_in(6) {
            self.add_fragment_or_options(&mut ip);
        }
        ip
    }

    /// A TCP segment with random options.
    fn tcp(&mut self) -> Vec<u8> {
        let mut options = Vec::new();
        while self.random.index(4) != 0 && options.len() < 32 {
            match self.random.index(5) {
                0 => options.extend([2, 4, 5, 180]),
                1 => options.push(1),
                2 => options.extend([3, 3, 7]),
                3 => options.extend([4, 2]),
                _ => options.extend([self.random.next_u64() as u8, self.random.next_u64() as u8 % 8]),
            }
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let mut tcp = self.random.bytes(20);
        tcp[12] = u8::try_from(5 + options.len() / 4).expect("at most 60 bytes") << 4;
        tcp[13] = *self.random.pick(&[0x02, 0x12, 0x10, 0x18]);
        tcp.extend(options);
        let len = if self.random.one_in(2) {
            0
        } else {
            self.random.index(1_500)
        };
        tcp.extend(self.random.bytes(len));
        tcp
    }

    fn icmp_error(&mut self, from: IpAddr, to: IpAddr) -> (u8, Vec<u8>) {
        let quoted = Ip::new(
            to,
            from,
            *self.random.pick(&[6, 17, 1, 58, 44]),
            self.random.bytes(40),
        )
        .bytes();
        let mut message = vec![*self.random.pick(&[1, 2, 3, 8, 11, 128]), 4, 0, 0, 0, 0, 5, 0];
        message.extend(&quoted[..]);
        if from.is_ipv6() {
            return (58, with_checksum(from, to, 58, message, 2));
        }
        let check = checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        (1, message)
    }

    /// A nested tunnel.
    fn nested(&mut self) -> Vec<u8> {
        let innermost = Ip::new(
            self.shape.inner(POD_WEST),
            self.shape.inner(POD_HERE),
            17,
            udp(1, 2, b"nested"),
        );
        let mut tunnel = Tunnel::new(self.shape.outer(STRANGER), self.shape.outer(NODE), &innermost);
        tunnel.dst_port = self.shape.port();
        tunnel.vxlan = self.shape.vxlan;
        let frame = tunnel.frame();
        frame[14 + if self.shape.outer_v6 { 40 } else { 20 }..].to_vec()
    }

    /// Adds fragmentation, IPv4 options or IPv6 extension headers.
    fn add_fragment_or_options(&mut self, ip: &mut Ip) {
        if !self.shape.inner_v6 {
            match self.random.index(3) {
                0 => ip.frags = 0x2000,
                1 => ip.frags = self.random.next_u64() as u16,
                _ => ip.options = vec![1; 4 * (1 + self.random.index(10))],
            }
            return;
        }
        let mut next = ip.proto;
        let mut headers: Vec<u8> = Vec::new();
        for _ in 0..=self.random.index(7) {
            let kind = *self.random.pick(&[0, 43, 60, 51, 44]);
            let mut header = vec![next, 0, 0, 0, 0, 0, 0, 0];
            match kind {
                44 => header[3] = *self.random.pick(&[0, 1, 9]),
                51 => header[1] = 0,
                _ if self.random.one_in(3) => {
                    header[1] = 1;
                    header.extend([0; 8]);
                }
                _ => {}
            }
            header.extend(&headers);
            headers = header;
            next = kind;
        }
        ip.proto = next;
        ip.options = headers;
    }
}

/// Number of packets by result.
#[derive(Default)]
struct Totals {
    packets: u64,
    passed: u64,
    dropped: u64,
    sent: u64,
    delivered: u64,
    answered: u64,
    reflected: u64,
    verified: u64,
    /// Compared entries of flow tables.
    flows: u64,
}

impl Totals {
    fn add(&mut self, verdict: Verdict) {
        self.packets += 1;
        let field = match verdict {
            Verdict::Pass => &mut self.passed,
            Verdict::Drop(_) | Verdict::Consume { .. } => &mut self.dropped,
            Verdict::Send {
                outcome: Outcome::TooBig,
                ..
            }
            | Verdict::Deliver {
                outcome: Outcome::TooBig,
                ..
            } => &mut self.answered,
            Verdict::Send {
                outcome: Outcome::Reflect,
                ..
            } => &mut self.reflected,
            Verdict::Send { .. } => &mut self.sent,
            Verdict::Deliver { .. } => &mut self.delivered,
        };
        *field += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.answered += other.answered;
        self.reflected += other.reflected;
        self.verified += other.verified;
        self.flows += other.flows;
    }
}

/// Numbers of packets and bytes by the kernel's return code alone.
#[derive(Default)]
struct Actions {
    shot: u64,
    redirected: u64,
    redirected_bytes: u64,
}

impl Actions {
    fn add(&mut self, action: u32, len: usize) {
        match action {
            TC_ACT_SHOT => self.shot += 1,
            TC_ACT_REDIRECT => {
                self.redirected += 1;
                self.redirected_bytes += len as u64;
            }
            _ => {}
        }
    }

    /// Compares the counters' increase with the return codes. No probe is ever answered here, so every shot packet
    /// has a drop reason.
    fn check(&self, before: &Counts, after: &Counts, context: &str) {
        let sum = |counts: &Counts| -> (u64, u64, u64) {
            let packets = counts.paths.iter().map(|(packets, _)| packets).sum();
            let bytes = counts.paths.iter().map(|(_, bytes)| bytes).sum();
            (counts.drops.iter().sum(), packets, bytes)
        };
        let (before, after) = (sum(before), sum(after));
        let counted = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        let returned = (self.shot, self.redirected, self.redirected_bytes);
        assert_eq!(counted, returned, "dropped, forwarded and their bytes, {context}");
    }
}

/// Runs generated packets against one set of tables on the host and in the kernel.
fn compare(shape: Shape, world: World, seed: u64, packets: u64) -> Totals {
    let tables = &world.tables(shape);
    let mut kernel = Kernel::load(tables);
    kernel.set_icmp_limit(tables);
    let initial = kernel.counts();
    let mut expected = initial.clone();
    let mut actions = Actions::default();
    let mut generator = Generator {
        random: Rng::new(seed),
        shape,
        world,
    };
    let mut totals = Totals::default();
    while totals.packets < packets {
        let generated = generator.packet();
        let frame = &generated.frame;
        if !Kernel::accepts_frame(frame) {
            continue;
        }
        tables.events.borrow_mut().clear();
        tables.traffic.borrow_mut().clear();
        let (verdict, bytes) = run_on_host(generated.program, tables, frame);
        let outcome = kernel.run(generated.program.name(), frame);
        let context = || {
            format!(
                "seed {seed}, packet {} of {} {world:?}: {frame:02x?}",
                totals.packets,
                shape.name()
            )
        };
        assert_eq!(outcome.action, tc_action(verdict), "{verdict:?}, {}", context());
        if !matches!(verdict, Verdict::Drop(_)) {
            assert_eq!(outcome.bytes, bytes, "{verdict:?}, {}", context());
        }
        if matches!(verdict, Verdict::Pass) {
            assert_eq!(&outcome.bytes, frame, "modified, {}", context());
        } else if generated.valid_checksums
            && matches!(verdict, Verdict::Send { .. } | Verdict::Deliver { .. })
        {
            verify(&outcome.bytes, verdict)
                .unwrap_or_else(|what| panic!("{what}, {verdict:?}, {}: {:02x?}", context(), outcome.bytes));
            totals.verified += 1;
        }
        expected = expected_counts(&expected, verdict, frame.len(), tables);
        actions.add(outcome.action, frame.len());
        totals.add(verdict);
        if totals.packets.is_multiple_of(BATCH) || totals.packets == packets {
            let context = format!(
                "{} packets of seed {seed}, {} {world:?}",
                totals.packets,
                shape.name()
            );
            let counts = kernel.counts();
            assert_eq!(counts, expected, "counters after {context}");
            actions.check(&initial, &counts, &context);
            totals.flows += compare_state(&mut kernel, tables, &context);
        }
    }
    totals
}

/// Compares the maps that the programs write, empties the flow tables and returns the number of their entries.
fn compare_state(kernel: &mut Kernel, tables: &MemoryMaps, context: &str) -> u64 {
    let sent = TOKENS - tables.icmp_limit.borrow().tokens;
    assert_eq!(
        kernel.icmp_errors_sent(TOKENS),
        sent,
        "ICMP errors after {context}"
    );
    assert_eq!(
        kernel.health(tables),
        kernel::health(tables),
        "liveness after {context}"
    );
    let services = &tables.services;
    assert_eq!(&kernel.flows(services), services, "flow tables after {context}");
    let entries =
        services.flows.take().len() + services.replies.take().len() + services.fragments.take().len();
    kernel.set_flows(services);
    entries as u64
}

/// Recomputes every checksum of a forwarded frame: of the outer headers, if any, and of the packet.
fn verify(frame: &[u8], verdict: Verdict) -> Result<(), String> {
    let ip = &frame[14..];
    let Verdict::Send { outcome: path, .. } = verdict else {
        return verify_ip(ip);
    };
    let header = verify_header(ip)?;
    let datagram = &ip[header.len..header.end];
    if datagram[6..8] != [0, 0] && l4_checksum(header.src, header.dst, 17, datagram) != 0 {
        return Err("outer UDP checksum".to_owned());
    }
    if path == Outcome::Reflect {
        return Ok(());
    }
    verify_ip(&datagram[8 + 8 + 14..])
}

struct Header {
    src: IpAddr,
    dst: IpAddr,
    proto: u8,
    fragment: bool,
    len: usize,
    end: usize,
}

fn verify_header(ip: &[u8]) -> Result<Header, String> {
    if ip[0] >> 4 == 6 {
        let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).expect("an address").into();
        return Ok(Header {
            src: address(8),
            dst: address(24),
            proto: ip[6],
            fragment: false,
            len: 40,
            end: 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
        });
    }
    let len = usize::from(ip[0] & 15) * 4;
    if checksum(&ip[..len]) != 0 {
        return Err("IPv4 header checksum".to_owned());
    }
    let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).expect("an address").into();
    Ok(Header {
        src: address(12),
        dst: address(16),
        proto: ip[9],
        fragment: ip[6] & 0x3f != 0 || ip[7] != 0,
        len,
        end: usize::from(u16::from_be_bytes([ip[2], ip[3]])),
    })
}

fn verify_ip(ip: &[u8]) -> Result<(), String> {
    let header = verify_header(ip)?;
    let message = &ip[header.len..header.end];
    let error =
        header.proto == 1 && message.first() == Some(&3) || header.proto == 58 && message.first() == Some(&2);
    let sum = match header.proto {
        _ if header.fragment => return Ok(()),
        6 | 58 if header.proto == 6 || error => l4_checksum(header.src, header.dst, header.proto, message),
        1 if error => checksum(message),
        _ => return Ok(()),
    };
    // Generated messages of protocol 1 and 58 may be noise; errors about packets are not.
    if sum == 0 {
        Ok(())
    } else {
        Err(format!("checksum of protocol {}", header.proto))
    }
}

#[test]
fn differential() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seed = number("MC_SEED").unwrap_or(20_261_121);
    let gate = if number("MC_LONG") == Some(1) {
        LONG_PACKETS
    } else {
        PACKETS
    };
    let packets = number("MC_PACKETS").unwrap_or(gate);
    let shapes: Vec<Shape> = Shape::all().collect();
    let runs = (World::ALL.len() * shapes.len()) as u64;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let start = std::time::Instant::now();
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let shapes = &shapes;
                scope.spawn(move || {
                    let mut totals = Totals::default();
                    for (i, shape) in shapes.iter().enumerate().filter(|(i, _)| i % threads == worker) {
                        for (j, world) in World::ALL.into_iter().enumerate() {
                            let run = (i * World::ALL.len() + j) as u64;
                            let seed = seed.wrapping_add(run).wrapping_mul(0x9e37_79b9);
                            totals.merge(&compare(*shape, world, seed, packets / runs));
                        }
                    }
                    totals
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no difference"))
            .collect::<Vec<_>>()
    });
    let mut all = Totals::default();
    for totals in &results {
        all.merge(totals);
    }
    println!(
        "differential: {} packets, 0 differences: {} passed bit-identical, {} dropped, {} sent, {} delivered, \
         {} ICMP errors, {} probes reflected; {} with checksums recomputed, {} flow entries compared; seed {seed}, {:.0} s",
        all.packets,
        all.passed,
        all.dropped,
        all.sent,
        all.delivered,
        all.answered,
        all.reflected,
        all.verified,
        all.flows,
        start.elapsed().as_secs_f32()
    );
    for (what, count) in [
        ("passed", all.passed),
        ("dropped", all.dropped),
        ("sent", all.sent),
        ("delivered", all.delivered),
        ("answered with an ICMP error", all.answered),
        ("reflected", all.reflected),
        ("verified", all.verified),
        ("entered in a flow table", all.flows),
    ] {
        assert!(count > packets / 400, "only {count} packets were {what}");
    }
}
