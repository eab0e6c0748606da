//! Generated packets through the host's functions and the kernel's programs: verdict and bytes of every
//! packet, all counters and maps of every run.
//!
//! Valid, mutated and truncated packets with options, extension headers and fragments inside and outside,
//! tunnel headers with options and odd flags, probes, ICMP errors and nested tunnels, in every combination of
//! families and formats. The same seed gives the same packets.

#![expect(clippy::cast_possible_truncation, reason = "random bits are cut to size")]

use std::thread;

use mc_gateway_common::{
    packet::probe::{ETHERTYPE, Kind, Probe},
    tables::MapTables,
    verdict::{Path, Verdict},
};

use crate::{
    Counts, Kernel, Program, action, counted, on_host,
    packets::{Ip, Tunnel, checksum, l4_checksum, summed, udp},
    world::{
        self, ALIAS_SOUTH, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, NORTH_GATEWAY, OTHER_GATEWAY, POD_HERE,
        POD_NODE, POD_NORTH, POD_WEST, SERVICE_HERE, SERVICE_SOUTH, SERVICE_WEST, SOUTH_GATEWAY, STRANGER,
        Shape, WEST_GATEWAY,
    },
};

/// Packets in the gate, and with `--long`.
const PACKETS: u64 = 2_000_000;
const LONG: u64 = 10_000_000;

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
/// Ways packets take: outer source and destination, inner source and destination.
const WAYS: [[[u8; 4]; 4]; 10] = [
    [NODE, GATEWAY_INSIDE, POD_NODE, POD_WEST],
    [WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_NODE],
    [WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_HERE],
    [NORTH_GATEWAY, GATEWAY_OUTSIDE, POD_NORTH, SERVICE_HERE],
    [GATEWAY_INSIDE, NODE, POD_WEST, POD_NODE],
    // South's gateway is one of Antrea: its clients, answers to them, what it is asked, and replies.
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

/// `SplitMix64` (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Makes packets of one shape.
struct Generator {
    random: Random,
    shape: Shape,
}

/// A frame and what is known of it.
struct Made {
    program: Program,
    frame: Vec<u8>,
    /// Whether every checksum in it is right.
    sound: bool,
}

impl Generator {
    fn packet(&mut self) -> Made {
        let program = if self.random.one_in(3) {
            Program::ToRemote
        } else {
            Program::FromUnderlay
        };
        let mut frame = match program {
            Program::ToRemote => {
                let dst = self
                    .random
                    .pick(&[POD_WEST, POD_WEST, ALIAS_SOUTH, SERVICE_SOUTH]);
                self.inner(POD_NODE, dst).frame()
            }
            Program::FromUnderlay => self.tunnel().frame(),
        };
        let mut sound = true;
        if self.random.one_in(2) {
            sound = false;
            for _ in 0..=self.random.below(3) {
                let reach = if self.random.one_in(2) {
                    frame.len().min(110)
                } else {
                    frame.len()
                };
                let at = self.random.below(reach);
                frame[at] ^= 1 << self.random.below(8);
            }
        }
        if self.random.one_in(8) {
            sound = false;
            let len = 14 + self.random.below(frame.len());
            frame.truncate(len);
        }
        if self.random.one_in(16) {
            let len = self.random.below(40);
            frame.extend(self.random.bytes(len));
            sound = false;
        }
        Made {
            program,
            frame,
            sound,
        }
    }

    fn tunnel(&mut self) -> Tunnel {
        let [mut from, mut to, src, dst] = self.random.pick(&WAYS);
        if self.random.one_in(12) {
            from = self.random.pick(&UNDERLAY);
        }
        if self.random.one_in(12) {
            to = self.random.pick(&UNDERLAY);
        }
        let inner = self.inner(src, dst);
        let mut tunnel = Tunnel::new(self.shape.outer(from), self.shape.outer(to), &inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel.src_port = 0xc000 | self.random.next() as u16;
        tunnel.udp_checksum = self.random.one_in(3);
        tunnel.vni = (self.random.next() & 0x00ff_ffff) as u32;
        tunnel.ttl = self.random.pick(&[0, 1, 2, 64, 255]);
        tunnel.tos = self.random.pick(&[0, 1, 2, 3, 0xb8, 0xbb]);
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
            self.odd(&mut tunnel);
        }
        tunnel
    }

    /// A probe of any kind instead of a packet: those that ask are turned round; the tables know of none
    /// that was sent, so those that answer are refused.
    fn probe(&mut self, tunnel: &mut Tunnel) {
        let probe = Probe {
            kind: self.random.pick(&[
                Kind::Request,
                Kind::Request,
                Kind::Reply,
                Kind::SizeRequest,
                Kind::SizeReply,
            ]),
            size: self.random.next() as u16,
            slot: self.random.next() as u32 % 8,
            id: self.random.pick(&[0, 1_007, 2_007, 3_007]),
            sequence: self.random.next() as u32,
            sent_at: self.random.next() >> 24,
        };
        tunnel.inner = probe.bytes().to_vec();
        let padding = self.random.pick(&[0, 0, 1, 40, 1_300]);
        tunnel.inner.resize(tunnel.inner.len() + padding, 0);
        tunnel.inner_type = ETHERTYPE;
    }

    /// Outer options or extension headers, outer fragments, tunnel headers with options, garbage in flags.
    fn odd(&mut self, tunnel: &mut Tunnel) {
        match self.random.below(6) {
            0 if self.shape.outer_v6 => {
                let mut header = vec![17, 0, 0, 0, 0, 0, 0, 0];
                header[3] = self.random.pick(&[0, 1, 8]);
                tunnel.outer_options = header;
                tunnel.outer_next = self.random.pick(&[0, 43, 44, 60]);
            }
            0 => tunnel.outer_options = vec![1; 4 * (1 + self.random.below(10))],
            1 => tunnel.frags = self.random.next() as u16,
            2 => {
                let words = 1 + self.random.below(4);
                tunnel.geneve[0] |= words as u8;
                tunnel.geneve_options = self.random.bytes(4 * words);
            }
            3 => tunnel.geneve = [self.random.next() as u8 & 0xc0, self.random.next() as u8],
            4 => tunnel.geneve_type = self.random.pick(&[0x0800, 0x86dd, 0x6559]),
            _ => tunnel.inner_type = self.random.pick(&[0x0806, 0x8100, 0x0800, 0x86dd, 0]),
        }
    }

    fn inner(&mut self, mut src: [u8; 4], mut dst: [u8; 4]) -> Ip {
        if self.random.one_in(10) {
            src = self.random.pick(&PODS);
        }
        if self.random.one_in(10) {
            dst = self.random.pick(&PODS);
        }
        let (from, to) = (self.shape.inner(src), self.shape.inner(dst));
        let len = match self.random.below(3) {
            0 => self.random.below(64),
            1 => 1_200 + self.random.below(300),
            _ => self.random.below(1_600),
        };
        let (proto, payload) = match self.random.below(8) {
            0..=2 => (6, summed(from, to, 6, self.tcp(), 16)),
            3 | 4 => {
                let payload = self.random.bytes(len);
                let ports = (self.random.next() as u16, self.random.next() as u16);
                (17, summed(from, to, 17, udp(ports.0, ports.1, &payload), 6))
            }
            5 => self.icmp_error(from, to),
            6 => (17, self.nested()),
            // Noise, under no protocol that has a checksum to be verified.
            _ => (self.random.next() as u8 | 0x80, self.random.bytes(len)),
        };
        let mut ip = Ip::new(from, to, proto, payload);
        ip.tos = self.random.pick(&[0, 1, 2, 3, 0xb8]);
        ip.ttl = self.random.next() as u8;
        if self.random.one_in(6) {
            self.extend(&mut ip);
        }
        ip
    }

    /// A segment with random options.
    fn tcp(&mut self) -> Vec<u8> {
        let mut options = Vec::new();
        while self.random.below(4) != 0 && options.len() < 32 {
            match self.random.below(5) {
                0 => options.extend([2, 4, 5, 180]),
                1 => options.push(1),
                2 => options.extend([3, 3, 7]),
                3 => options.extend([4, 2]),
                _ => options.extend([self.random.next() as u8, self.random.next() as u8 % 8]),
            }
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let mut tcp = self.random.bytes(20);
        tcp[12] = u8::try_from(5 + options.len() / 4).expect("at most 60 bytes") << 4;
        tcp[13] = self.random.pick(&[0x02, 0x12, 0x10, 0x18]);
        tcp.extend(options);
        let len = if self.random.one_in(2) {
            0
        } else {
            self.random.below(1_500)
        };
        tcp.extend(self.random.bytes(len));
        tcp
    }

    fn icmp_error(&mut self, from: std::net::IpAddr, to: std::net::IpAddr) -> (u8, Vec<u8>) {
        let quoted = Ip::new(
            to,
            from,
            self.random.pick(&[6, 17, 1, 58, 44]),
            self.random.bytes(40),
        )
        .bytes();
        let mut message = vec![self.random.pick(&[1, 2, 3, 8, 11, 128]), 4, 0, 0, 0, 0, 5, 0];
        message.extend(&quoted[..]);
        if from.is_ipv6() {
            return (58, summed(from, to, 58, message, 2));
        }
        let check = checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        (1, message)
    }

    /// A tunnel in the tunnel.
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

    /// Fragments, IPv4 options, IPv6 extension headers.
    fn extend(&mut self, ip: &mut Ip) {
        if !self.shape.inner_v6 {
            match self.random.below(3) {
                0 => ip.frags = 0x2000,
                1 => ip.frags = self.random.next() as u16,
                _ => ip.options = vec![1; 4 * (1 + self.random.below(10))],
            }
            return;
        }
        let mut next = ip.proto;
        let mut headers: Vec<u8> = Vec::new();
        for _ in 0..=self.random.below(7) {
            let kind = self.random.pick(&[0, 43, 60, 51, 44]);
            let mut header = vec![next, 0, 0, 0, 0, 0, 0, 0];
            match kind {
                44 => header[3] = self.random.pick(&[0, 1, 9]),
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

/// What became of the packets.
#[derive(Default)]
struct Tally {
    packets: u64,
    passed: u64,
    dropped: u64,
    sent: u64,
    delivered: u64,
    answered: u64,
    reflected: u64,
    verified: u64,
}

impl Tally {
    fn add(&mut self, verdict: Verdict) {
        self.packets += 1;
        let field = match verdict {
            Verdict::Pass => &mut self.passed,
            Verdict::Drop(_) | Verdict::Consume { .. } => &mut self.dropped,
            Verdict::Send {
                path: Path::TooBig, ..
            }
            | Verdict::Deliver {
                path: Path::TooBig, ..
            } => &mut self.answered,
            Verdict::Send {
                path: Path::Reflect, ..
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
    }
}

/// One set of tables: every packet compared, then everything that was counted and written.
fn compare(shape: Shape, tables: &MapTables, seed: u64, packets: u64) -> Tally {
    let mut kernel = Kernel::load(tables);
    kernel.set_icmp_limit(tables);
    let mut expected: Counts = kernel.counts();
    let mut generator = Generator {
        random: Random(seed),
        shape,
    };
    let mut tally = Tally::default();
    while tally.packets < packets {
        let made = generator.packet();
        let frame = &made.frame;
        if !Kernel::can_stage(frame) {
            continue;
        }
        tables.events.borrow_mut().clear();
        tables.traffic.borrow_mut().clear();
        let (verdict, bytes) = on_host(made.program, tables, frame);
        let outcome = kernel.run(made.program.name(), frame);
        let context = || {
            format!(
                "seed {seed}, packet {} of {}: {frame:02x?}",
                tally.packets,
                shape.name()
            )
        };
        assert_eq!(outcome.action, action(verdict), "{verdict:?}, {}", context());
        if !matches!(verdict, Verdict::Drop(_)) {
            assert_eq!(outcome.bytes, bytes, "{verdict:?}, {}", context());
        }
        if matches!(verdict, Verdict::Pass) {
            assert_eq!(&outcome.bytes, frame, "touched, {}", context());
        } else if made.sound && matches!(verdict, Verdict::Send { .. } | Verdict::Deliver { .. }) {
            verify(&outcome.bytes, verdict)
                .unwrap_or_else(|what| panic!("{what}, {verdict:?}, {}: {:02x?}", context(), outcome.bytes));
            tally.verified += 1;
        }
        expected = counted(&expected, verdict, frame.len(), tables);
        tally.add(verdict);
    }
    assert_eq!(
        kernel.counts(),
        expected,
        "counters after seed {seed}, {}",
        shape.name()
    );
    let sent = (1 << 40) - tables.icmp_limit.borrow().tokens;
    assert_eq!(
        kernel.icmp_errors_sent(1 << 40),
        sent,
        "ICMP errors after seed {seed}"
    );
    tally
}

/// Recomputes every checksum of a frame that went on: of the outer headers, if any, and of the packet.
fn verify(frame: &[u8], verdict: Verdict) -> Result<(), String> {
    let ip = &frame[14..];
    let Verdict::Send { path, .. } = verdict else {
        return verify_ip(ip);
    };
    let header = verify_header(ip)?;
    let datagram = &ip[header.len..header.end];
    if datagram[6..8] != [0, 0] && l4_checksum(header.src, header.dst, 17, datagram) != 0 {
        return Err("outer UDP checksum".to_owned());
    }
    if path == Path::Reflect {
        return Ok(());
    }
    verify_ip(&datagram[8 + 8 + 14..])
}

struct Header {
    src: std::net::IpAddr,
    dst: std::net::IpAddr,
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
        LONG
    } else {
        PACKETS
    };
    let packets = number("MC_PACKETS").unwrap_or(gate);
    let shapes: Vec<Shape> = Shape::all().collect();
    let runs = 2 * shapes.len() as u64;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let start = std::time::Instant::now();
    let tallies = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let shapes = &shapes;
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    for (i, shape) in shapes.iter().enumerate().filter(|(i, _)| i % threads == worker) {
                        for (j, tables) in [world::antrea(), world::node()].into_iter().enumerate() {
                            let mut tables = shape.tables(tables);
                            for (slot, member) in &mut tables.members {
                                member.mtu = if slot % 2 == 0 { 1_450 } else { 1_300 };
                            }
                            let seed = seed.wrapping_add((i * 2 + j) as u64).wrapping_mul(0x9e37_79b9);
                            tally.merge(&compare(*shape, &tables, seed, packets / runs));
                        }
                    }
                    tally
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no difference"))
            .collect::<Vec<_>>()
    });
    let mut all = Tally::default();
    for tally in &tallies {
        all.merge(tally);
    }
    println!(
        "differential: {} packets, 0 differences: {} passed bit-identical, {} dropped, {} sent, {} delivered, {} answered, \
         {} probes turned round; {} with checksums recomputed; seed {seed}, {:.0} s",
        all.packets,
        all.passed,
        all.dropped,
        all.sent,
        all.delivered,
        all.answered,
        all.reflected,
        all.verified,
        start.elapsed().as_secs_f32()
    );
    for (what, count) in [
        ("passed", all.passed),
        ("dropped", all.dropped),
        ("sent", all.sent),
        ("delivered", all.delivered),
        ("answered", all.answered),
        ("turned round", all.reflected),
        ("verified", all.verified),
    ] {
        assert!(count > packets / 200, "hardly any packet was {what}: {count}");
    }
}
