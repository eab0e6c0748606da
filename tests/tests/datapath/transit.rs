//! The XDP program beside `from_underlay`: it forwards a packet with the same bytes and counters, or passes it
//! unchanged.

use mc_gateway_common::{
    abi::LinkAddresses,
    maps::MemoryMaps,
    packet::{SlicePacket, eth},
    pipeline,
    verdict::{Outcome, Verdict},
};
use mc_tests::{name_lock::NameLock, netns::Netns};
use nix::net::if_::if_nametoindex;

use crate::{
    Counts, TC_ACT_REDIRECT,
    cases::{self, Expect, Program},
    expected_counts,
    fixture::{self, GATEWAY_INSIDE, NODE, POD_NODE, POD_WEST, Shape},
    kernel::{Kernel, RunResult},
    load_or_refill,
    packets::{Ip, Tunnel, tcp_syn, udp},
    run_gso_on_host, run_on_host,
};

/// `XDP_PASS` and `XDP_REDIRECT` of `linux/bpf.h`.
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// Link addresses of frames to every next hop.
const LINK: LinkAddresses = LinkAddresses::new([2, 0xbe, 0, 0, 0, 2], [2, 0xbe, 0, 0, 0, 1]);

/// A device that frames may be sent from, in a namespace.
pub(crate) struct Underlay {
    pub(crate) netns: Netns,
    ifindex: u32,
    /// Released after the namespace is removed: fields are dropped in their order.
    _names: NameLock,
}

impl Underlay {
    pub(crate) fn create(prefix: &str) -> Self {
        let names = NameLock::take(prefix).expect("the names");
        let netns = Netns::create(&format!("{prefix}-host")).expect("a namespace");
        netns
            .ip(&[
                "link add out type veth peer name peer",
                "link set peer up",
                "link set out up",
            ])
            .expect("a device");
        let ifindex = netns.enter(|| Ok(if_nametoindex("out")?)).expect("an index");
        Self {
            netns,
            ifindex,
            _names: names,
        }
    }

    /// Lets all next hops be resolved neighbors on the device.
    pub(crate) fn connect(&self, tables: &mut MemoryMaps) {
        for next_hop in tables.next_hops.values_mut() {
            next_hop.ifindex = self.ifindex;
        }
        resolve_neighbors(tables);
    }

    /// Allows the program to send from the device. To be called inside the namespace.
    pub(crate) fn allow(&self, kernel: &mut Kernel) {
        kernel.allow_transit(self.ifindex);
    }
}

/// Resolves the neighbors of all next hops.
pub(crate) fn resolve_neighbors(tables: &mut MemoryMaps) {
    for next_hop in tables.next_hops.values_mut() {
        next_hop.link = LINK;
    }
    tables.links_are_current = true;
}

/// Runs the XDP program after `from_underlay` had this verdict and sent these bytes. Returns whether it forwarded the
/// frame, and the expected counters.
pub(crate) fn compare(
    kernel: &mut Kernel,
    before: Counts,
    frame: &[u8],
    of_host: (Verdict, &[u8]),
    tables: &MemoryMaps,
) -> (bool, Counts) {
    let RunResult { action, bytes } = kernel.run_xdp(frame);
    let (verdict, sent) = of_host;
    if action == XDP_PASS {
        assert_eq!(bytes, frame, "modified and passed");
        return (false, before);
    }
    assert_eq!(action, XDP_REDIRECT, "{verdict:?} of {frame:02x?}");
    let transit = Outcome::Transit;
    assert!(
        matches!(verdict, Verdict::Send { outcome, addressed: true, .. } if outcome == transit),
        "{verdict:?} of {frame:02x?}"
    );
    assert_eq!(bytes, sent, "of {frame:02x?}");
    (true, expected_counts(&before, verdict, frame.len(), tables))
}

#[test]
fn transit_on_the_host_is_that_of_from_underlay() {
    let mut forwarded = 0;
    for case in cases::all().iter().filter(|case| case.gso_size == 0) {
        if case.program != Program::FromUnderlay {
            continue;
        }
        let mut connected = case.tables.clone();
        resolve_neighbors(&mut connected);
        let tables = connected.clone();
        let (verdict, sent) = run_on_host(Program::FromUnderlay, &tables, &case.frame);
        let xdp_tables = connected.clone();
        let mut packet = SlicePacket::new(case.frame.clone());
        match pipeline::transit(&mut packet, &xdp_tables, |_| true) {
            Verdict::Pass => {
                assert_eq!(packet.bytes(), case.frame, "{}", case.name);
                assert_eq!(xdp_tables, connected, "{}: counted", case.name);
            }
            other => {
                forwarded += 1;
                assert_eq!(other, verdict, "{}", case.name);
                assert_eq!(packet.bytes(), sent, "{}", case.name);
                assert_eq!(xdp_tables, tables, "{}: counters", case.name);
            }
        }
        for (tables, may_send, state) in [
            (&case.tables, true, "no neighbor"),
            (&connected, false, "device not allowed"),
        ] {
            let mut kept = SlicePacket::new(case.frame.clone());
            let verdict = pipeline::transit(&mut kept, tables, |_| may_send);
            assert_eq!(
                (verdict, kept.bytes()),
                (Verdict::Pass, &*case.frame),
                "{}: {state}",
                case.name
            );
        }
    }
    assert!(forwarded >= 5, "{forwarded} cases");
}

/// A packet of a shape that a gateway forwards.
fn datagram(shape: Shape) -> Tunnel {
    let (src, dst) = (shape.inner(POD_NODE), shape.inner(POD_WEST));
    let mut tunnel = Tunnel::new(
        shape.outer(NODE),
        shape.outer(GATEWAY_INSIDE),
        &Ip::new(src, dst, 17, udp(1, 2, b"transit")),
    );
    tunnel.dst_port = shape.port();
    tunnel.vxlan = shape.vxlan;
    tunnel.inner_src = fixture::received_mac(NODE, fixture::PERIOD).bytes();
    tunnel
}

#[test]
fn the_xdp_program_forwards_cached_packets_like_from_underlay() {
    in_every_shape("mct-xdp", |underlay, shape, host, mut kernel| {
        let frame = datagram(shape).frame();
        let (verdict, sent) = run_on_host(Program::FromUnderlay, &host, &frame);
        let check = |kernel: &mut Kernel, forwards: bool, state: &str| {
            let before = kernel.counts();
            let (forwarded, expected) = compare(kernel, before, &frame, (verdict, &sent), &host);
            assert_eq!(forwarded, forwards, "{state}, {}", shape.name());
            assert_eq!(kernel.counts(), expected, "{state}, {}", shape.name());
        };
        check(&mut kernel, false, "no admission is cached");
        kernel.run(Program::FromUnderlay.name(), &frame);
        check(&mut kernel, true, "cached");
        kernel.set_epoch(0);
        check(&mut kernel, false, "caches disabled");
        kernel.set_epoch(77);
        check(&mut kernel, false, "another epoch");
        kernel.run(Program::FromUnderlay.name(), &frame);
        kernel.forbid_transit(underlay.ifindex);
        check(&mut kernel, false, "device not allowed");
        underlay.allow(&mut kernel);
        check(&mut kernel, true, "allowed again");
        kernel.set_links_current(false);
        check(&mut kernel, false, "link addresses not current");
    });
}

#[test]
fn the_xdp_program_passes_packets_that_need_more_than_the_caches() {
    in_every_shape("mct-xdp-pass", |_, shape, _, mut kernel| {
        let good = datagram(shape);
        let (src, dst) = (shape.inner(POD_NODE), shape.inner(POD_WEST));
        let with_option = [tcp_syn(1, 2), vec![2, 4, 5, 0xb4]].concat();
        let syn = Ip::new(src, dst, 6, with_option);
        let large = Ip::new(src, dst, 17, vec![0; 3000]);
        let with = |change: fn(&mut Tunnel)| {
            let mut tunnel = good.clone();
            change(&mut tunnel);
            tunnel.frame()
        };
        let inner = |ip: &Ip| {
            let mut tunnel = datagram(shape);
            tunnel.inner = ip.bytes().to_vec();
            tunnel.frame()
        };
        for (name, frame) in [
            ("SYN with an MSS", inner(&syn)),
            ("above the MTU", inner(&large)),
            ("TTL 1", with(|tunnel| tunnel.ttl = 1)),
            ("other port", with(|tunnel| tunnel.dst_port += 1)),
            ("foreign inner destination", with(|tunnel| tunnel.mac[5] ^= 1)),
            ("wrong secret", with(|tunnel| tunnel.inner_src[5] ^= 1)),
            ("unknown peer", {
                let mut tunnel = good.clone();
                tunnel.src = shape.outer(fixture::STRANGER);
                tunnel.frame()
            }),
            ("truncated", good.frame()[..60].to_vec()),
        ] {
            if !Kernel::accepts_frame(&frame) {
                continue;
            }
            kernel.run(Program::FromUnderlay.name(), &good.frame());
            kernel.run(Program::FromUnderlay.name(), &frame);
            let before = kernel.counts();
            let result = kernel.run_xdp(&frame);
            assert_eq!(result.action, XDP_PASS, "{name}, {}", shape.name());
            assert_eq!(result.bytes, frame, "{name}, {}", shape.name());
            assert_eq!(kernel.counts(), before, "{name}, {}", shape.name());
        }
        let tagged = {
            let frame = good.frame();
            let tag = [0x81, 0, 0, 7];
            [
                &frame[..usize::try_from(eth::ETHERTYPE).expect("12")],
                &tag,
                &frame[12..],
            ]
            .concat()
        };
        assert_eq!(kernel.run_xdp(&tagged).action, XDP_PASS, "a tag");
        assert_eq!(
            kernel.run_xdp(&good.frame()).action,
            XDP_REDIRECT,
            "{}",
            shape.name()
        );
    });
}

/// Runs a check of each shape with the tables of a gateway on the host and in the kernel, whose XDP program may send
/// from the underlay device. One CPU runs all: the caches of another one are empty.
fn in_every_shape(name: &str, check: impl Fn(&Underlay, Shape, MemoryMaps, Kernel) + Sync) {
    let underlay = Underlay::create(name);
    let entered = underlay.netns.enter(|| {
        pin_to_one_cpu();
        for shape in Shape::all() {
            let mut tables = shape.tables(fixture::keyed(fixture::gateway()));
            underlay.connect(&mut tables);
            let mut kernel = Kernel::load(&tables);
            underlay.allow(&mut kernel);
            check(&underlay, shape, tables, kernel);
        }
        Ok(())
    });
    entered.expect("inside the namespace");
}

/// Keeps this thread on its first CPU.
fn pin_to_one_cpu() {
    use nix::{
        sched::{CpuSet, sched_getaffinity, sched_setaffinity},
        unistd::Pid,
    };
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).expect("CPUs");
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.expect("a CPU")).expect("a CPU");
    sched_setaffinity(this, &one).expect("one CPU");
}

#[test]
fn programs_write_current_link_addresses_only() {
    let cases = cases::all();
    let cases = cases
        .iter()
        .filter(|case| matches!(case.expect, Expect::Encap(_) | Expect::Transit(_)))
        .filter(|case| Kernel::accepts_frame(&case.frame));
    let link = LINK.words().map(u64::to_le_bytes);
    let link = &link.as_flattened()[..12];
    let (mut kernel, mut written) = (None, 0);
    for case in cases {
        let mut tables = case.tables.clone();
        resolve_neighbors(&mut tables);
        for current in [true, false] {
            tables.links_are_current = current;
            let kernel = load_or_refill(&mut kernel, &tables);
            let (verdict, expected) =
                run_gso_on_host(case.program, &tables.clone(), &case.frame, case.gso_size);
            kernel.set_written_state(&tables);
            let RunResult { action, bytes } = kernel.run_gso(case.program.name(), &case.frame, case.gso_size);
            kernel.clear_peer_limits(&tables);
            let name = &case.name;
            assert_eq!(action, TC_ACT_REDIRECT, "{name}: {verdict:?}");
            assert_eq!(bytes, expected, "{name}, current: {current}");
            written += usize::from(bytes[..12] == *link);
            assert!(current || bytes[..12] != *link, "{name}");
        }
    }
    assert!(written >= 20, "{written} cases");
}
