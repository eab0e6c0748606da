//! Paths with a small leg, known or hidden, and super-packets on their way: real traffic in both families.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use mc_gateway_common::verdict::Path;
use mc_tests::{
    capture::{Capture, Direction},
    counters::Counters,
    topology::{Cluster, Family, Format, Inner, Place, Topology},
    wait::wait_for,
};
use serde_json::Value;

use crate::{
    bed::SOON,
    families::{bed, talk},
    seeing::{inspect, metrics, row},
};

/// MTU of the small leg, and of all others.
const SMALL: u32 = 1_400;
const LINK: u32 = 1_500;
/// A gateway's devices: to its cluster, and to the other gateways.
const NODE_SIDE: &str = "eth0";
const BETWEEN: &str = "eth1";
const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;
/// A search for what a path carries takes a few probes of a second each; longer ones are tried again after a minute.
const SEARCH: Duration = Duration::from_mins(2);

fn set_mtu(bed: &Topology, place: Place, device: &str, mtu: u32) {
    let command = format!("link set {device} mtu {mtu}");
    bed.netns(place).ip(&[command]).expect("an MTU");
}

/// Waits until the path to a member carries what it should, as `inspect` shows it.
fn wait_for_member_mtu(bed: &Topology, place: Place, member: IpAddr, mtu: RangeInclusive<u32>) -> u32 {
    let seen = wait_for(&format!("an MTU in {mtu:?} to {member}"), SEARCH, || {
        let members = inspect(bed, place, "members");
        let seen = &row(&members, "address", &member.to_string())["mtu"];
        let seen = seen.as_u64().and_then(|seen| u32::try_from(seen).ok());
        seen.filter(|seen| mtu.contains(seen))
            .ok_or_else(|| format!("{seen:?}"))
    });
    seen.expect("an MTU")
}

/// Where a frame's IP payload begins, and its protocol.
fn payload(frame: &[u8]) -> Option<(u8, &[u8])> {
    match *frame.get(12..14)? {
        [0x08, 0x00] => Some((frame[23], frame.get(34..)?)),
        [0x86, 0xdd] => Some((frame[20], frame.get(54..)?)),
        _ => None,
    }
}

/// The MSS of a SYN or SYN-ACK; Linux puts the option first.
fn mss(frame: &[u8]) -> Option<u16> {
    let (6, tcp) = payload(frame)? else { return None };
    (tcp[13] & 2 != 0 && tcp[20..22] == [2, 4]).then(|| u16::from_be_bytes([tcp[22], tcp[23]]))
}

/// What an ICMP error that says "too big" says fits.
fn too_big(frame: &[u8]) -> Option<u32> {
    match payload(frame)? {
        (1, [3, 4, _, _, _, _, high, low, ..]) => Some(u16::from_be_bytes([*high, *low]).into()),
        (58, [2, 0, _, _, mtu @ ..]) => Some(u32::from_be_bytes(*mtu.first_chunk()?)),
        _ => None,
    }
}

fn capture(bed: &Topology, place: Place, direction: Direction, count: Option<u64>) -> Capture {
    let file = bed.directory().join(format!("{}-mtu.pcap", place.name()));
    Capture::start(bed.traffic(), bed.netns(place), "eth0", direction, count, &file).expect("a capture")
}

/// ICMP errors that the programs of all nodes have sent.
fn errors_sent(bed: &Topology) -> u64 {
    let sent = bed.nodes().into_iter().map(|place| {
        let counters = Counters::read(&bed.bpf_dir(place)).expect("counters");
        counters.packets(Path::TooBig)
    });
    sent.sum()
}

/// A bulk transfer gets through without any ICMP error: both ends are told a small MSS.
fn bulk(bed: &Topology, family: Family, mtu: RangeInclusive<u32>) {
    let headers = if family == Family::V4 { 40 } else { 60 };
    let before = errors_sent(bed);
    let seen = [Place::PodEast, Place::PodWest].map(|place| capture(bed, place, Direction::In, Some(12)));
    let server = Cluster::West.pod_addr(family);
    let [east, west] = [Place::PodEast, Place::PodWest].map(|place| bed.netns(place));
    let report = bed
        .traffic()
        .stream(east, west, server, Duration::from_millis(1_500))
        .expect("a transfer");
    assert!(report.bytes > 1_000_000, "{family:?}: {report:?}");
    for (capture, what) in seen.into_iter().zip(["SYN-ACK", "SYN"]) {
        let frames = capture.wait(SOON).expect("frames");
        let told: Vec<u16> = frames.iter().filter_map(|frame| mss(frame)).collect();
        assert!(
            !told.is_empty(),
            "{family:?}: no {what} among {} frames",
            frames.len()
        );
        for mss in told {
            let carries = u32::from(mss) + headers;
            assert!(mtu.contains(&carries), "{family:?}: {what} with MSS {mss}");
        }
        assert!(
            !frames.iter().any(|frame| too_big(frame).is_some()),
            "{family:?}: an ICMP error"
        );
    }
    assert_eq!(errors_sent(bed), before, "{family:?}: ICMP errors");
}

/// Sends 50 datagrams of 1,390 bytes in a second and returns what became of them.
fn send_datagrams(bed: &Topology, family: Family) -> Value {
    let [east, west] = [Place::PodEast, Place::PodWest].map(|place| bed.netns(place));
    let bind = if family == Family::V4 { "0.0.0.0" } else { "::" };
    let mut receiver = bed
        .traffic()
        .serve(west, &["udp-recv", "--port", "5209", "--bind", bind])
        .expect("a receiver");
    let to = SocketAddr::new(Cluster::West.pod_addr(family), 5_209).to_string();
    let flags = ["--rate", "50", "--duration", "1", "--size", "1390"];
    let args: Vec<&str> = ["udp-send", &to].into_iter().chain(flags).collect();
    bed.traffic().run(east, &args).expect("a sender");
    let report = receiver.finish(SOON).expect("a report");
    serde_json::from_str(report.lines().last().unwrap_or_default()).expect("JSON")
}

/// Large datagrams: the client is told what fits, and its kernel sends smaller ones from then on.
fn datagrams(bed: &Topology, family: Family, mtu: RangeInclusive<u32>) {
    let seen = capture(bed, Place::PodEast, Direction::In, None);
    let report = send_datagrams(bed, family);
    let frames = seen.finish().expect("frames");
    let told: Vec<u32> = frames.iter().filter_map(|frame| too_big(frame)).collect();
    assert!(
        !told.is_empty(),
        "{family:?}: nobody told the client: {report}, {:#?}",
        read(bed)
    );
    assert!(
        told.iter().all(|said| mtu.contains(said)),
        "{family:?}: {told:?}, expected {mtu:?}"
    );
    let (sent, lost) = (report["sent"].as_u64(), report["lost"].as_u64());
    assert_eq!(sent, Some(50), "{family:?}: {report}");
    // The first one provokes the answer, and a socket may refuse the next with it.
    assert!(
        lost.is_some_and(|lost| (1..=5).contains(&lost)),
        "{family:?}: {report}"
    );
    let server = Cluster::West.pod_addr(family).to_string();
    let route = bed
        .netns(Place::PodEast)
        .run("ip", ["route", "get", &server])
        .expect("a route");
    let learned = told.iter().any(|said| route.contains(&format!("mtu {said}")));
    assert!(learned, "{family:?}: {told:?}, and not {route}");
}

/// Between a node and its gateway the far end takes less than the near one sends: nobody says so, large
/// packets just vanish. Probes find what fits, and senders are told.
fn hidden(name: &str, inner: Inner, outer: Family) -> Topology {
    let bed = bed(name, inner, outer, Format::Geneve);
    let overhead = bed.options().overhead();
    set_mtu(&bed, GATEWAY, NODE_SIDE, SMALL);
    // A veth device takes what is 4 bytes longer than its MTU (a VLAN tag); the search ends within 8.
    let (from, to) = (SMALL - 12 - overhead, SMALL + 4 - overhead);
    let gateway = Cluster::East.nets(outer).internal[0].addr();
    let mtu = wait_for_member_mtu(&bed, NODE, gateway, from..=to);
    let shown = metrics(&bed, NODE).sum("mcgateway_member_mtu_bytes", &["Gateway gw-east"]);
    assert!(
        (f64::from(mtu)..=f64::from(to)).contains(&shown),
        "metrics say {shown}, inspect {mtu}"
    );
    for family in inner.families() {
        datagrams(&bed, *family, mtu..=to);
        bulk(&bed, *family, mtu..=to);
    }
    bed
}

#[test]
fn a_hidden_small_leg_is_found_by_probes_and_senders_are_told() {
    hidden("hid4", Inner::Dual, Family::V4);
}

#[test]
fn a_hidden_small_leg_is_found_over_ipv6() {
    let bed = hidden("hid6", Inner::V4, Family::V6);
    // Once the leg is large again that is found, too.
    set_mtu(&bed, GATEWAY, NODE_SIDE, LINK);
    let whole = LINK - bed.options().overhead();
    let gateway = Cluster::East.nets(Family::V6).internal[0].addr();
    wait_for_member_mtu(&bed, NODE, gateway, whole..=whole);
}

#[test]
fn a_small_leg_between_the_gateways_is_known_by_its_link() {
    let bed = bed("leg", Inner::Dual, Family::V4, Format::Geneve);
    let mtu = SMALL - bed.options().overhead();
    for place in [GATEWAY, Place::GatewayWest] {
        set_mtu(&bed, place, BETWEEN, SMALL);
    }
    for place in [GATEWAY, Place::GatewayWest] {
        let other = place.cluster().other().nets(Family::V4).gateway[0].addr();
        wait_for_member_mtu(&bed, place, other, mtu..=mtu);
    }
    for family in [Family::V4, Family::V6] {
        bulk(&bed, family, mtu..=mtu);
    }
    a_gateway_on_veth_cannot_answer(&bed);
}

/// `bpf_skb_change_tail` refuses packets that still carry the mark of the tunnel they were put into on this
/// host (`skb->encapsulation`, `net/core/filter.c`), and veth devices pass the mark on: a gateway cannot cut
/// what it would have to quote. What does not fit is dropped and counted. Should this fail because the client
/// is told, the kernel or the programs have learnt it, and `docs/known-gaps.md` is to be shortened.
fn a_gateway_on_veth_cannot_answer(bed: &Topology) {
    let dropped = || {
        let counters = Counters::read(&bed.bpf_dir(GATEWAY)).expect("counters");
        counters.drops.get("shrink").copied().unwrap_or(0)
    };
    let before = dropped();
    let report = send_datagrams(bed, Family::V4);
    assert_eq!(report["lost"], 50, "{report}");
    assert_eq!(dropped() - before, 50, "drops");
}

#[test]
fn probes_over_ipv6_tell_who_is_alive() {
    let bed = bed("live6", Inner::V4, Family::V6, Format::Geneve);
    let other = Cluster::West.nets(Family::V6).gateway[0].addr().to_string();
    let usable = || metrics(&bed, Place::GatewayEast).sum("mcgateway_member_usable", &["west"]);
    let answered = || {
        let shown = metrics(&bed, Place::GatewayEast);
        shown.sum("mcgateway_member_rtt_seconds_count", &[])
    };
    wait_for("answers over IPv6", SOON, || {
        let count = answered();
        if count >= 5.0 {
            Ok(())
        } else {
            Err(count.to_string())
        }
    })
    .expect("answers");
    let state = |expected: &str| {
        wait_for(&format!("{other} {expected}"), SOON, || {
            let members = inspect(&bed, Place::GatewayEast, "members");
            let state = row(&members, "address", &other)["state"].clone();
            if state == expected {
                Ok(())
            } else {
                Err(state.to_string())
            }
        })
        .expect("a state");
    };
    state("alive");
    assert!(usable() >= 1.0);
    let west = bed.netns(Place::GatewayWest);
    west.ip(&[format!("link set {BETWEEN} down")]).expect("down");
    state("dead");
    west.ip(&[format!("link set {BETWEEN} up")]).expect("up");
    // A device that goes down loses its IPv6 addresses.
    let address = Cluster::West.nets(Family::V6).gateway[0];
    west.ip(&[format!("addr replace {address} dev {BETWEEN} nodad")])
        .expect("an address");
    state("alive");
    talk(&bed, Family::V4);
}

#[test]
fn super_packets_stay_whole_on_every_leg() {
    for (name, family) in [("gso4", Family::V4), ("gso6", Family::V6)] {
        let bed = bed(
            name,
            if family == Family::V4 {
                Inner::V4
            } else {
                Inner::V6
            },
            family,
            Format::Geneve,
        );
        let before: Vec<Counters> = read(&bed);
        let [east, west] = [Place::PodEast, Place::PodWest].map(|place| bed.netns(place));
        let report = bed
            .traffic()
            .stream(east, west, Cluster::West.pod_addr(family), Duration::from_secs(1))
            .expect("a transfer");
        let after = read(&bed);
        // Bytes that arrived, in segments of the largest size a path carries.
        let segments = report.bytes / u64::from(LINK - bed.options().overhead());
        assert!(segments > 10_000, "{report:?}");
        for (place, path) in [
            (0, Path::Encap),
            (1, Path::Transit),
            (2, Path::Transit),
            (3, Path::Deliver),
        ] {
            let [was, is] = [&before[place], &after[place]].map(|counters| counters.paths[path.name()]);
            let (packets, gso) = (is.packets - was.packets, is.gso - was.gso);
            println!(
                "{family:?} {}: {packets} packets, {gso} of them super-packets, for {segments} segments",
                path.name()
            );
            assert!(gso > 100, "{path:?}: {gso} super-packets of {packets}");
            assert!(
                packets < segments / 3,
                "{path:?}: {packets} packets for {segments} segments"
            );
        }
    }
}

/// Counters of the nodes in the order of the way from east to west.
fn read(bed: &Topology) -> Vec<Counters> {
    let way = [
        Place::NodeEast,
        Place::GatewayEast,
        Place::GatewayWest,
        Place::NodeWest,
    ];
    way.map(|place| Counters::read(&bed.bpf_dir(place)).expect("counters"))
        .into()
}
