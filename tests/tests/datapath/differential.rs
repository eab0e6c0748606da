//! Generated packets through the host's functions and the kernel's programs.
//!
//! Compared are verdict and bytes of every packet, and after every batch all counters, the token bucket of ICMP
//! errors, liveness records and flow tables. The kernel's counters must also agree with its own return codes, which
//! does not involve the host.

use std::{net::IpAddr, thread};

use mc_gateway_common::{
    abi::{flow_entry::FlowEntry, service::FLOW_OF_STACK},
    maps::MemoryMaps,
    verdict::{Outcome, Verdict},
};

use crate::{
    Counts, Kernel, TC_ACT_REDIRECT, TC_ACT_SHOT,
    cases::{Program, from_remote},
    expected_counts,
    fixture::Shape,
    generator::{Generator, World},
    kernel,
    packets::{checksum, l4_checksum},
    run_on_host, tc_action,
    transit::{self, Underlay},
};

/// Number of packets in the gate and with `--long`.
const PACKETS: u64 = 2_000_000;
const LONG_PACKETS: u64 = 10_000_000;

/// Packets between comparisons of counters and flow tables: fewer than the smallest flow table holds, because the host
/// never evicts.
const BATCH: u64 = 2_000;
/// Initial tokens for ICMP errors.
const TOKENS: u64 = 1 << 40;

/// Number of packets by result.
#[derive(Default)]
struct Totals {
    packets: u64,
    passed: u64,
    dropped: u64,
    sent: u64,
    delivered: u64,
    answered: u64,
    rejected: u64,
    reflected: u64,
    verified: u64,
    /// Forwarded by the XDP program as well.
    by_xdp: u64,
    flows: FlowTotals,
}

/// Compared entries of flow tables.
#[derive(Debug, Default)]
struct FlowTotals {
    /// Flows of gateways to a backend.
    backend: u64,
    /// Unconfirmed ones among them.
    unconfirmed: u64,
    /// Flows of gateways that the service proxy serves.
    stack: u64,
    /// Clients of Services with affinity, also counted in `backend`.
    affinity: u64,
    replies: u64,
    fragments: u64,
}

impl FlowTotals {
    fn merge(&mut self, other: &Self) {
        self.backend += other.backend;
        self.unconfirmed += other.unconfirmed;
        self.stack += other.stack;
        self.affinity += other.affinity;
        self.replies += other.replies;
        self.fragments += other.fragments;
    }
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
                outcome: Outcome::Rejected,
                ..
            }
            | Verdict::Deliver {
                outcome: Outcome::Rejected,
                ..
            } => &mut self.rejected,
            Verdict::Send {
                outcome: Outcome::Reflect,
                ..
            } => &mut self.reflected,
            Verdict::Send { .. } => &mut self.sent,
            Verdict::Deliver { .. } | Verdict::KernelDecap { .. } => &mut self.delivered,
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
        self.rejected += other.rejected;
        self.reflected += other.reflected;
        self.verified += other.verified;
        self.by_xdp += other.by_xdp;
        self.flows.merge(&other.flows);
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
fn compare(shape: Shape, world: World, seed: u64, packets: u64, underlay: &Underlay) -> Totals {
    let mut tables = world.tables(shape);
    underlay.connect(&mut tables);
    tables.links_are_current = !seed.is_multiple_of(4);
    if world == World::Node {
        // Policies, and the prefixes of their Pods.
        let half = u32::from(seed.is_multiple_of(2));
        let with_policies = from_remote::tables(shape, half);
        tables.policies = with_policies.policies;
        tables.prefixes.extend(with_policies.prefixes);
    }
    let tables = &tables;
    let mut kernel = Kernel::load(tables);
    underlay.allow(&mut kernel);
    let (known_flows, known_replies) = (world.known_flows(shape), world.known_replies(shape));
    let set_known_flows = |kernel: &mut Kernel| {
        tables.services.flows.borrow_mut().clone_from(&known_flows);
        tables.services.replies.borrow_mut().clone_from(&known_replies);
        kernel.set_flows(&tables.services);
    };
    set_known_flows(&mut kernel);
    kernel.set_icmp_limit(tables);
    let initial = kernel.counts();
    let mut expected = initial.clone();
    let mut actions = Actions::default();
    let mut generator = Generator::new(seed, shape, world);
    generator.policies = !tables.policies.pods.is_empty();
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
        if generated.program == Program::FromUnderlay {
            // It leaves events alone.
            tables.events.borrow_mut().clear();
            let (forwarded, counts) =
                transit::compare(&mut kernel, expected, frame, (verdict, &bytes), tables);
            if forwarded {
                actions.add(TC_ACT_REDIRECT, frame.len());
                totals.by_xdp += 1;
            }
            expected = counts;
        }
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
            totals.flows.merge(&compare_state(&mut kernel, tables, &context));
            tables.services.replies.take();
            tables.services.fragments.take();
            set_known_flows(&mut kernel);
        }
    }
    totals
}

/// Compares the maps that the programs write, and returns the numbers of entries of the flow tables.
fn compare_state(kernel: &mut Kernel, tables: &MemoryMaps, context: &str) -> FlowTotals {
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
    let expected = kernel::without_seconds(services);
    assert_eq!(kernel.flows(services), expected, "flow tables after {context}");
    let flows = services.flows.borrow();
    FlowTotals {
        backend: flows.values().filter(|id| **id != FLOW_OF_STACK).count() as u64,
        unconfirmed: flows
            .iter()
            .filter(|(key, word)| key.client_port != 0 && FlowEntry::from_word(**word).is_unconfirmed())
            .count() as u64,
        stack: flows.values().filter(|id| **id == FLOW_OF_STACK).count() as u64,
        affinity: flows.keys().filter(|key| key.client_port == 0).count() as u64,
        replies: services.replies.borrow().len() as u64,
        fragments: services.fragments.borrow().len() as u64,
    }
}

/// Recomputes every checksum of a forwarded frame: of the outer headers, if any, and of the packet.
fn verify(frame: &[u8], verdict: Verdict) -> Result<(), String> {
    let ip = &frame[14..];
    let path = match verdict {
        Verdict::Send { outcome, .. } if !matches!(outcome, Outcome::Reset | Outcome::Rejected) => outcome,
        _ => return verify_ip(ip),
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
    let error = header.proto == 1 && message.first() == Some(&3)
        || header.proto == 58 && matches!(message.first(), Some(1 | 2));
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
                let work = move |underlay: &Underlay| {
                    let mut totals = Totals::default();
                    for (i, shape) in shapes.iter().enumerate().filter(|(i, _)| i % threads == worker) {
                        for (j, world) in World::ALL.into_iter().enumerate() {
                            let run = (i * World::ALL.len() + j) as u64;
                            let seed = seed.wrapping_add(run).wrapping_mul(0x9e37_79b9);
                            totals.merge(&compare(*shape, world, seed, packets / runs, underlay));
                        }
                    }
                    totals
                };
                scope.spawn(move || {
                    let underlay = Underlay::create(&format!("mct-diff-{worker}"));
                    underlay.netns.enter(|| Ok(work(&underlay))).expect("a namespace")
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
         {} ICMP errors, {} about rejected packets, {} probes reflected, {} forwarded by XDP, too; {} with checksums recomputed; compared flow entries: {:?}; seed {seed}, {:.0} s",
        all.packets,
        all.passed,
        all.dropped,
        all.sent,
        all.delivered,
        all.answered,
        all.rejected,
        all.reflected,
        all.by_xdp,
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
        ("forwarded by XDP", all.by_xdp),
        ("entered as a flow to a backend", all.flows.backend),
        ("entered as a reply", all.flows.replies),
    ] {
        assert!(count > packets / 400, "only {count} packets were {what}");
    }
    assert!(
        all.rejected > packets / 2_000,
        "only {} packets were rejected",
        all.rejected
    );
    // One entry of a client in each batch, and few first fragments: the packets of these kinds are a small share.
    let FlowTotals {
        unconfirmed,
        stack,
        affinity,
        fragments,
        ..
    } = all.flows;
    assert!(
        [unconfirmed, stack, affinity, fragments]
            .iter()
            .all(|count| *count > packets / 20_000),
        "too few entries of a kind: {:?}",
        all.flows
    );
}
