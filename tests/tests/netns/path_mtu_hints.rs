//! ICMP errors about size probes: a hint that a probe must confirm.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use mc_gateway_common::packet::checksum;
use mc_tests::{
    injection::{inject, mac_address},
    topology::{Cluster, Family, Format, Inner, Place, Topology},
    wait::wait_for,
};

use crate::{
    families::connected,
    fixture::TIMEOUT,
    observability::{inspect, row},
};

const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;
/// Their devices between them.
const BETWEEN: &str = "eth0";
const SMALL: u32 = 1_400;
/// Without a hint a search takes at least three timeouts of a second.
const UNHINTED: Duration = Duration::from_secs(3);

fn gateway_addr() -> Ipv4Addr {
    let addr = Cluster::East.nets(Family::V4).internal[0].addr();
    addr.to_string().parse().expect("an IPv4 address")
}

/// Local and remote end of the socket with an unanswered size probe: only such sockets are connected.
fn size_probe(bed: &Topology) -> Result<(SocketAddrV4, SocketAddrV4), String> {
    let sockets = bed
        .netns(NODE)
        .run("ss", ["-Hun"])
        .map_err(|error| format!("{error:#}"))?;
    for line in sockets.lines() {
        let ends: Vec<SocketAddrV4> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        if let [local, remote] = ends[..]
            && *remote.ip() == gateway_addr()
        {
            return Ok((local, remote));
        }
    }
    Err(sockets)
}

/// "Fragmentation needed" about a datagram, from the gateway to the node.
fn fragmentation_needed(bed: &Topology, (from, to): (SocketAddrV4, SocketAddrV4), mtu: u32) -> Vec<u8> {
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let quote = [
        &header(17, 1_500, *from.ip(), *to.ip())[..],
        &ports,
        &1_480_u16.to_be_bytes(),
        &[0, 0],
    ]
    .concat();
    let mtu = u16::try_from(mtu).expect("small").to_be_bytes();
    let mut icmp = [&[3, 4, 0, 0, 0, 0][..], &mtu, &quote].concat();
    let [c0, c1] = internet_checksum(&icmp);
    icmp[2..4].copy_from_slice(&[c0, c1]);
    let total = u16::try_from(20 + icmp.len()).expect("small");
    let macs = [NODE, GATEWAY].map(|place| mac_address(bed.netns(place), BETWEEN).expect("an address"));
    [
        &macs.concat()[..],
        &[0x08, 0x00],
        &header(1, total, *to.ip(), *from.ip()),
        &icmp,
    ]
    .concat()
}

fn header(proto: u8, total: u16, src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    let [t0, t1] = total.to_be_bytes();
    let mut header = vec![0x45, 0, t0, t1, 0, 0, 0x40, 0, 64, proto, 0, 0];
    header.extend(src.octets());
    header.extend(dst.octets());
    let check = internet_checksum(&header);
    header[10..12].copy_from_slice(&check);
    header
}

fn internet_checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks(2)
        .map(|pair| u64::from(u16::from_ne_bytes([pair[0], pair[1]])));
    (!checksum::fold(words.sum())).to_ne_bytes()
}

fn next_hop_mtu(bed: &Topology) -> Option<u64> {
    let next_hops = inspect(bed, NODE, "nexthops");
    row(&next_hops, "address", &gateway_addr().to_string())["mtu"].as_u64()
}

/// Waits for a size probe, reports it as too big and returns the time since it was sent.
fn report_next_probe(bed: &Topology) -> Instant {
    let probe = wait_for("a size probe", TIMEOUT, || size_probe(bed)).expect("a size probe");
    let seen = Instant::now();
    let error = fragmentation_needed(bed, probe, SMALL);
    inject(bed.netns(GATEWAY), BETWEEN, &[error]).expect("an ICMP error");
    seen
}

#[test]
fn an_icmp_error_about_a_size_probe_shortens_the_search() {
    let bed = connected("hint", Inner::V4, Family::V4, Format::Geneve);
    let whole = next_hop_mtu(&bed);
    let shrink = format!("link set {BETWEEN} mtu {SMALL}");
    // The far end: the node's own device keeps its MTU, and large packets disappear.
    bed.netns(GATEWAY).ip(&[shrink]).expect("an MTU");
    let sent = report_next_probe(&bed);
    let limit = u64::from(SMALL + 4 - bed.options().overhead());
    let mtu = wait_for("a smaller path MTU", TIMEOUT, || {
        let mtu = next_hop_mtu(&bed);
        mtu.filter(|mtu| *mtu <= limit).ok_or_else(|| format!("{mtu:?}"))
    })
    .expect("a smaller path MTU");
    let took = sent.elapsed();
    println!("{whole:?}, then {mtu} after {took:?}");
    assert!(took < UNHINTED, "{took:?}");
}

/// Any host that knows the ports can send such errors.
#[test]
fn a_forged_icmp_error_about_a_size_probe_changes_no_mtu() {
    let bed = connected("forged", Inner::V4, Family::V4, Format::Geneve);
    let whole = next_hop_mtu(&bed);
    let mut reported = 0;
    // A reply takes less time than a list of sockets, so some probes are over before they are reported.
    let deadline = Instant::now() + Duration::from_secs(20);
    while reported < 3 && Instant::now() < deadline {
        if let Ok(probe) = size_probe(&bed) {
            let error = fragmentation_needed(&bed, probe, SMALL);
            inject(bed.netns(GATEWAY), BETWEEN, &[error]).expect("an ICMP error");
            reported += 1;
        }
        assert_eq!(next_hop_mtu(&bed), whole);
    }
    println!("{reported} probes reported");
    assert!(reported > 0, "no size probe seen");
    assert_eq!(next_hop_mtu(&bed), whole);
}
