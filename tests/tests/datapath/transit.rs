//! The XDP program beside `from_underlay`: it forwards a packet with the same bytes and counters, or passes it
//! unchanged.

use std::{collections::BTreeSet, net::IpAddr};

use mc_gateway_common::{
    abi::NextHop,
    maps::MemoryMaps,
    packet::{SlicePacket, eth},
    pipeline::{self, LinkAddresses},
    verdict::{Outcome, Verdict},
};
use mc_tests::netns::Netns;
use nix::net::if_::if_nametoindex;

use crate::{
    Counts,
    cases::{self, Program},
    expected_counts,
    fixture::{self, GATEWAY_INSIDE, NODE, POD_NODE, POD_WEST, Shape},
    kernel::{Kernel, RunResult},
    packets::{Ip, Tunnel, tcp_syn, udp},
    run_on_host,
};

/// `XDP_PASS` and `XDP_REDIRECT` of `linux/bpf.h`.
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// Address of the device and of every neighbor.
const DEVICE_MAC: [u8; 6] = [2, 0xbe, 0, 0, 0, 1];
const NEIGHBOR_MAC: [u8; 6] = [2, 0xbe, 0, 0, 0, 2];

/// A device with routes to all next hops, in a namespace.
pub(crate) struct Underlay {
    pub(crate) netns: Netns,
    ifindex: u32,
}

impl Underlay {
    pub(crate) fn create(name: &str) -> Self {
        let netns = Netns::create(name).expect("a namespace");
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        netns
            .ip(&[
                format!(
                    "link add out address {} type veth peer name peer",
                    mac(DEVICE_MAC)
                ),
                "link set peer up".to_owned(),
                "link set out up".to_owned(),
                "address add 198.18.0.1/15 dev out".to_owned(),
                "route add default dev out".to_owned(),
                "route add ::/0 dev out".to_owned(),
            ])
            .expect("a device");
        netns
            .sysctl(&[
                ("net.ipv4.ip_forward", "1"),
                ("net.ipv6.conf.all.forwarding", "1"),
            ])
            .expect("forwarding");
        let ifindex = netns.enter(|| Ok(if_nametoindex("out")?)).expect("an index");
        Self { netns, ifindex }
    }

    /// Lets all next hops be neighbors on the device.
    pub(crate) fn connect(&self, tables: &mut MemoryMaps) {
        for next_hop in tables.next_hops.values_mut() {
            next_hop.ifindex = self.ifindex;
        }
        let addresses: BTreeSet<IpAddr> = tables.next_hops.values().map(address).collect();
        let mac = NEIGHBOR_MAC.map(|byte| format!("{byte:02x}")).join(":");
        let neighbors: Vec<String> = addresses
            .iter()
            .map(|address| format!("neigh replace {address} lladdr {mac} dev out nud permanent"))
            .collect();
        self.netns.ip(&neighbors).expect("neighbors");
    }

    /// Allows the program to send from the device. To be called inside the namespace.
    pub(crate) fn allow(&self, kernel: &mut Kernel) {
        kernel.allow_transit(self.ifindex);
    }
}

fn address(next_hop: &NextHop) -> IpAddr {
    IpAddr::from(next_hop.addr).to_canonical()
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
        matches!(verdict, Verdict::Send { outcome, .. } if outcome == transit),
        "{verdict:?} of {frame:02x?}"
    );
    let mut expected = sent.to_vec();
    expected[..6].copy_from_slice(&NEIGHBOR_MAC);
    expected[6..12].copy_from_slice(&DEVICE_MAC);
    assert_eq!(bytes, expected, "of {frame:02x?}");
    (true, expected_counts(&before, verdict, frame.len(), tables))
}

#[test]
fn transit_on_the_host_is_that_of_from_underlay() {
    let link = LinkAddresses {
        dst: NEIGHBOR_MAC,
        src: DEVICE_MAC,
    };
    let mut forwarded = 0;
    for case in cases::all().iter().filter(|case| case.gso_size == 0) {
        if case.program != Program::FromUnderlay {
            continue;
        }
        let tables = case.tables.clone();
        let (verdict, sent) = run_on_host(Program::FromUnderlay, &tables, &case.frame);
        let xdp_tables = case.tables.clone();
        let mut packet = SlicePacket::new(case.frame.clone());
        match pipeline::transit(&mut packet, &xdp_tables, |_| Some(link)) {
            Verdict::Pass => {
                assert_eq!(packet.bytes(), case.frame, "{}", case.name);
                assert_eq!(xdp_tables, case.tables, "{}: counted", case.name);
            }
            other => {
                forwarded += 1;
                assert_eq!(other, verdict, "{}", case.name);
                assert_eq!(packet.bytes()[12..], sent[12..], "{}", case.name);
                assert_eq!(xdp_tables, tables, "{}: counters", case.name);
            }
        }
        let mut kept = SlicePacket::new(case.frame.clone());
        let without_neighbor = pipeline::transit(&mut kept, &case.tables, |_| None);
        assert_eq!(
            (without_neighbor, kept.bytes()),
            (Verdict::Pass, &*case.frame),
            "{}",
            case.name
        );
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
        underlay
            .netns
            .ip(&["neigh flush dev out nud permanent"])
            .expect("flush");
        check(&mut kernel, false, "no neighbor");
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
