//! Paths with a smaller MTU, known or hidden, and GSO packets, in both families.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use mc_gateway_common::verdict::{DropReason, Outcome};
use mc_tests::{
    capture::{Capture, Direction},
    counters::Counters,
    topology::{Cluster, Family, Format, Inner, Place, Topology},
    wait::wait_for,
};
use serde_json::Value;

use crate::{
    families::{assert_connectivity, connected},
    fixture::TIMEOUT,
    observability::{inspect, metrics, row},
};

/// MTU of the small leg and of all others.
const SMALL: u32 = 1_400;
const LINK: u32 = 1_500;
/// A gateway's devices towards its cluster and towards the other gateways.
const NODE_SIDE: &str = "eth0";
const BETWEEN: &str = "eth1";
const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;
/// Timeout of a PMTU search: a few probes of one second each; larger sizes are retried after a minute.
const SEARCH_TIMEOUT: Duration = Duration::from_mins(2);

fn set_mtu(bed: &Topology, place: Place, device: &str, mtu: u32) {
    let command = format!("link set {device} mtu {mtu}");
    bed.netns(place).ip(&[command]).expect("an MTU");
}

/// Waits until `inspect` shows a path MTU in the range.
fn wait_for_nexthop_mtu(bed: &Topology, place: Place, next_hop: IpAddr, mtu: RangeInclusive<u32>) -> u32 {
    let seen = wait_for(
        &format!("an MTU in {mtu:?} to {next_hop}"),
        SEARCH_TIMEOUT,
        || {
            let next_hops = inspect(bed, place, "nexthops");
            let seen = &row(&next_hops, "address", &next_hop.to_string())["mtu"];
            let seen = seen.as_u64().and_then(|seen| u32::try_from(seen).ok());
            seen.filter(|seen| mtu.contains(seen))
                .ok_or_else(|| format!("{seen:?}"))
        },
    );
    seen.expect("an MTU")
}

/// Protocol and payload of an IP packet.
fn payload(frame: &[u8]) -> Option<(u8, &[u8])> {
    match *frame.get(12..14)? {
        [0x08, 0x00] => Some((frame[23], frame.get(34..)?)),
        [0x86, 0xdd] => Some((frame[20], frame.get(54..)?)),
        _ => None,
    }
}

/// The MSS of a SYN or SYN-ACK; Linux writes the option first.
fn mss(frame: &[u8]) -> Option<u16> {
    let (6, tcp) = payload(frame)? else { return None };
    (tcp[13] & 2 != 0 && tcp[20..22] == [2, 4]).then(|| u16::from_be_bytes([tcp[22], tcp[23]]))
}

/// The MTU in an ICMP error "packet too big" or "fragmentation needed".
fn icmp_mtu(frame: &[u8]) -> Option<u32> {
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

/// ICMP errors sent by the programs of all nodes.
fn errors_sent(bed: &Topology) -> u64 {
    let sent = bed.nodes().into_iter().map(|place| {
        let counters = Counters::read(&bed.bpf_dir(place)).expect("counters");
        counters.packets(Outcome::TooBig)
    });
    sent.sum()
}

/// Asserts a bulk transfer without ICMP errors: both ends receive a clamped MSS.
fn check_bulk_transfer(bed: &Topology, family: Family, mtu: RangeInclusive<u32>) {
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
        let frames = capture.wait(TIMEOUT).expect("frames");
        let values: Vec<u16> = frames.iter().filter_map(|frame| mss(frame)).collect();
        assert!(
            !values.is_empty(),
            "{family:?}: no {what} among {} frames",
            frames.len()
        );
        for mss in values {
            let carries = u32::from(mss) + headers;
            assert!(mtu.contains(&carries), "{family:?}: {what} with MSS {mss}");
        }
        assert!(
            !frames.iter().any(|frame| icmp_mtu(frame).is_some()),
            "{family:?}: an ICMP error"
        );
    }
    assert_eq!(errors_sent(bed), before, "{family:?}: ICMP errors");
}

/// Sends 50 datagrams of 1,390 bytes in a second and returns the receiver's report.
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
    let report = receiver.finish(TIMEOUT).expect("a report");
    serde_json::from_str(report.lines().last().unwrap_or_default()).expect("JSON")
}

/// Asserts that the sender of large datagrams receives the path MTU and its kernel applies it.
fn check_datagrams(bed: &Topology, family: Family, mtu: RangeInclusive<u32>) {
    let seen = capture(bed, Place::PodEast, Direction::In, None);
    let report = send_datagrams(bed, family);
    let frames = seen.finish().expect("frames");
    let reported: Vec<u32> = frames.iter().filter_map(|frame| icmp_mtu(frame)).collect();
    assert!(
        !reported.is_empty(),
        "{family:?}: no ICMP error: {report}, {:#?}",
        read_counters(bed)
    );
    assert!(
        reported.iter().all(|reported| mtu.contains(reported)),
        "{family:?}: {reported:?}, expected {mtu:?}"
    );
    let (sent, lost) = (report["sent"].as_u64(), report["lost"].as_u64());
    assert_eq!(sent, Some(50), "{family:?}: {report}");
    // The first one triggers the error, which the socket may return for the next one.
    assert!(
        lost.is_some_and(|lost| (1..=5).contains(&lost)),
        "{family:?}: {report}"
    );
    let server = Cluster::West.pod_addr(family).to_string();
    let route = bed
        .netns(Place::PodEast)
        .run("ip", ["route", "get", &server])
        .expect("a route");
    let learned = reported
        .iter()
        .any(|reported| route.contains(&format!("mtu {reported}")));
    assert!(learned, "{family:?}: {reported:?} not in {route}");
}

/// A hidden small leg: the far end between a node and its gateway has a smaller MTU and silently drops large packets.
/// Probes find the path MTU, and senders receive it.
fn check_hidden_leg(name: &str, inner: Inner, outer: Family) -> Topology {
    let bed = connected(name, inner, outer, Format::Geneve);
    let overhead = bed.options().overhead();
    set_mtu(&bed, GATEWAY, NODE_SIDE, SMALL);
    // A veth device accepts 4 bytes more than its MTU (a VLAN tag); the search ends within 8 bytes.
    let (from, to) = (SMALL - 12 - overhead, SMALL + 4 - overhead);
    let gateway = Cluster::East.nets(outer).internal[0].addr();
    let mtu = wait_for_nexthop_mtu(&bed, NODE, gateway, from..=to);
    let shown = metrics(&bed, NODE).sum("mcgateway_nexthop_mtu_bytes", &["Gateway gw-east"]);
    assert!(
        (f64::from(mtu)..=f64::from(to)).contains(&shown),
        "{shown} in the metrics, {mtu} in inspect"
    );
    for family in inner.families() {
        check_datagrams(&bed, *family, mtu..=to);
        check_bulk_transfer(&bed, *family, mtu..=to);
    }
    bed
}

#[test]
fn a_hidden_small_leg_is_found_by_probes_and_reported_to_senders() {
    check_hidden_leg("hid4", Inner::Dual, Family::V4);
}

#[test]
fn a_hidden_small_leg_is_found_over_ipv6() {
    let bed = check_hidden_leg("hid6", Inner::V4, Family::V6);
    // The restored MTU is found too.
    set_mtu(&bed, GATEWAY, NODE_SIDE, LINK);
    let whole = LINK - bed.options().overhead();
    let gateway = Cluster::East.nets(Family::V6).internal[0].addr();
    wait_for_nexthop_mtu(&bed, NODE, gateway, whole..=whole);
}

#[test]
fn a_small_leg_between_the_gateways_is_known_from_its_link() {
    let bed = connected("leg", Inner::Dual, Family::V4, Format::Geneve);
    let mtu = SMALL - bed.options().overhead();
    for place in [GATEWAY, Place::GatewayWest] {
        set_mtu(&bed, place, BETWEEN, SMALL);
    }
    for place in [GATEWAY, Place::GatewayWest] {
        let other = place.cluster().other().nets(Family::V4).gateway[0].addr();
        wait_for_nexthop_mtu(&bed, place, other, mtu..=mtu);
    }
    for family in [Family::V4, Family::V6] {
        check_bulk_transfer(&bed, family, mtu..=mtu);
    }
    check_gateway_on_veth_drops(&bed);
}

/// `bpf_skb_change_tail` fails for packets that were encapsulated on the same host (`skb->encapsulation`,
/// `net/core/filter.c`), a mark that veth devices keep: a gateway cannot truncate them for the quote of an ICMP
/// error, so too large packets are dropped and counted. If this fails because the client receives an error, remove
/// the entry in `docs/known-gaps.md`.
fn check_gateway_on_veth_drops(bed: &Topology) {
    let dropped = || {
        let counters = Counters::read(&bed.bpf_dir(GATEWAY)).expect("counters");
        let reason = DropReason::DecapFailed.name();
        counters.drops.get(reason).copied().unwrap_or(0)
    };
    let before = dropped();
    let report = send_datagrams(bed, Family::V4);
    assert_eq!(report["lost"], 50, "{report}");
    assert_eq!(dropped() - before, 50, "drops");
}

#[test]
fn probes_over_ipv6_detect_liveness() {
    let bed = connected("live6", Inner::V4, Family::V6, Format::Geneve);
    let other = Cluster::West.nets(Family::V6).gateway[0].addr().to_string();
    let usable = || metrics(&bed, Place::GatewayEast).sum("mcgateway_nexthop_usable", &["west"]);
    let answered = || {
        let shown = metrics(&bed, Place::GatewayEast);
        shown.sum("mcgateway_nexthop_rtt_seconds_count", &[])
    };
    wait_for("probe replies over IPv6", TIMEOUT, || {
        let count = answered();
        if count >= 5.0 {
            Ok(())
        } else {
            Err(count.to_string())
        }
    })
    .expect("replies");
    let state = |expected: &str| {
        wait_for(&format!("{other} {expected}"), TIMEOUT, || {
            let next_hops = inspect(&bed, Place::GatewayEast, "nexthops");
            let state = row(&next_hops, "address", &other)["state"].clone();
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
    // The kernel removes IPv6 addresses when a device goes down.
    let address = Cluster::West.nets(Family::V6).gateway[0];
    west.ip(&[format!("addr replace {address} dev {BETWEEN} nodad")])
        .expect("an address");
    state("alive");
    assert_connectivity(&bed, Family::V4);
}

#[test]
fn gso_packets_stay_unsegmented_on_every_leg() {
    for (name, family) in [("gso4", Family::V4), ("gso6", Family::V6)] {
        let bed = connected(
            name,
            if family == Family::V4 {
                Inner::V4
            } else {
                Inner::V6
            },
            family,
            Format::Geneve,
        );
        let before: Vec<Counters> = read_counters(&bed);
        let [east, west] = [Place::PodEast, Place::PodWest].map(|place| bed.netns(place));
        let report = bed
            .traffic()
            .stream(east, west, Cluster::West.pod_addr(family), Duration::from_secs(1))
            .expect("a transfer");
        let after = read_counters(&bed);
        // Received bytes in segments of the path MTU.
        let segments = report.bytes / u64::from(LINK - bed.options().overhead());
        assert!(segments > 10_000, "{report:?}");
        for (place, path) in [
            (0, Outcome::Encap),
            (1, Outcome::Transit),
            (2, Outcome::Transit),
            (3, Outcome::Deliver),
        ] {
            let [was, is] = [&before[place], &after[place]].map(|counters| counters.outcomes[path.name()]);
            let (packets, gso) = (is.packets - was.packets, is.gso - was.gso);
            println!(
                "{family:?} {}: {packets} packets, {gso} of them GSO packets, for {segments} segments",
                path.name()
            );
            assert!(gso > 100, "{path:?}: {gso} GSO packets of {packets}");
            assert!(
                packets < segments / 3,
                "{path:?}: {packets} packets for {segments} segments"
            );
        }
    }
}

/// Counters of the nodes in the order of the path from east to west.
fn read_counters(bed: &Topology) -> Vec<Counters> {
    let way = [
        Place::NodeEast,
        Place::GatewayEast,
        Place::GatewayWest,
        Place::NodeWest,
    ];
    way.map(|place| Counters::read(&bed.bpf_dir(place)).expect("counters"))
        .into()
}
