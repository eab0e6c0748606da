//! A host in the network between the clusters, to a gateway: forged outer addresses, and every inner address that a
//! peer may not use.

use std::net::IpAddr;

use mc_gateway_common::verdict::DropReason::{InnerSource, NoRoute, NotExported, UnknownPeer};
use mc_test_kit::datapath::packets::{Ip, ethernet, udp};
use mc_tests::topology::{Cluster, Family, Place};

use super::inner_martians;
use crate::{
    bed::{LAN_HOST, North, PRIVATE_PORT, STRANGER, Services, between_clusters, port},
    vector::{ATTACK, Expected, Generator, POD_PORT, Send, datagram, martians},
};

pub(super) fn generate(generator: &mut Generator) {
    outer_sources(generator);
    outer_destinations(generator);
    inner_addresses(generator);
    inner_martians(generator);
    nested(generator);
}

fn outer_sources(generator: &mut Generator) {
    let outer = generator.bed.outer;
    let west = Cluster::West.nets(outer);
    let (_, own) = generator.bed.outer_ends(generator.entry);
    let mut sources = vec![
        ("of no host".to_owned(), between_clusters(outer, STRANGER).addr()),
        (
            "of the attacker".to_owned(),
            between_clusters(outer, LAN_HOST).addr(),
        ),
        ("of the victim".to_owned(), own),
        ("of the victim in its cluster".to_owned(), west.internal[0].addr()),
        ("of a Pod".to_owned(), Cluster::East.pod_addr(outer)),
        (
            "of a regular node of east".to_owned(),
            Cluster::East.nets(outer).node.addr(),
        ),
        (
            "of a gateway of east in its cluster".to_owned(),
            Cluster::East.nets(outer).internal[0].addr(),
        ),
    ];
    sources.extend(
        martians(outer, between_clusters(Family::V4, 1).addr())
            .into_iter()
            .map(|(name, address)| (name.to_owned(), address)),
    );
    for (name, source) in sources {
        let mut tunnel = generator.genuine();
        tunnel.src = source;
        generator.drop(format!("outer source {name}"), &tunnel, UnknownPeer);
    }
    let mut node = generator.genuine();
    node.src = west.node.addr();
    generator.drop(
        "outer source of a node of the victim's cluster",
        &node,
        InnerSource,
    );
    let mut gateway = generator.genuine();
    gateway.src = west.internal[1].addr();
    generator.drop("outer source of the victim's other gateway", &gateway, NoRoute);
}

fn outer_destinations(generator: &mut Generator) {
    let west = Cluster::West.nets(generator.bed.outer);
    let addresses: &[(&str, &str)] = match generator.bed.outer {
        Family::V4 => &[
            ("broadcast", "255.255.255.255"),
            ("broadcast of the network", "192.168.100.255"),
            ("multicast", "224.0.0.1"),
        ],
        Family::V6 => &[("multicast", "ff02::1")],
    };
    for (name, address) in addresses {
        for broadcast in [false, true] {
            let mut tunnel = generator.genuine();
            tunnel.dst = address.parse().expect("an address");
            tunnel.udp_checksum = true;
            let mut frame = tunnel.frame();
            if broadcast {
                frame[..6].fill(0xff);
            }
            let to = if broadcast {
                "in a broadcast frame"
            } else {
                "in a frame to the victim"
            };
            // A socket that receives multicast of IPv4 has to join a group.
            let expected = if *name == "multicast" && tunnel.dst.is_ipv4() {
                Expected::Stack
            } else {
                Expected::Listener
            };
            generator.frame(format!("outer destination {name} {to}"), frame, expected);
        }
    }
    for (name, address) in martians(generator.bed.outer, between_clusters(Family::V4, 2).addr()) {
        if [
            "unspecified",
            "loopback",
            "reserved",
            "this network",
            "IPv4-compatible",
        ]
        .contains(&name)
        {
            let mut tunnel = generator.genuine();
            tunnel.dst = address;
            generator.frame(
                format!("outer destination {name}"),
                tunnel.frame(),
                Expected::Stack,
            );
        }
    }
    if generator.bed.outer == Family::V6 {
        let IpAddr::V4(v4) = Cluster::West.nets(Family::V4).internal[0].addr() else {
            panic!("an IPv4 address");
        };
        let mut tunnel = generator.genuine();
        tunnel.dst = v4.to_ipv6_mapped().into();
        generator.frame("outer destination IPv4-mapped", tunnel.frame(), Expected::Stack);
        let IpAddr::V4(v4) = Cluster::West.nets(Family::V4).node.addr() else {
            panic!("an IPv4 address");
        };
        let mut tunnel = generator.between(
            Cluster::West.pod_addr(generator.inner),
            Cluster::East.pod_addr(generator.inner),
        );
        tunnel.src = v4.to_ipv6_mapped().into();
        generator.drop("outer source of a node, IPv4-mapped", &tunnel, UnknownPeer);
    }
    // The gateway would route the packet.
    for (name, address) in [
        ("a regular node of the victim's cluster", west.node.addr()),
        ("the victim's other gateway", west.gateway[1].addr()),
    ] {
        let mut tunnel = generator.genuine();
        tunnel.dst = address;
        generator.frame(
            format!("outer destination {name}"),
            tunnel.frame(),
            Expected::Rule("tunnel-guard"),
        );
    }
    for (name, tags) in [("a VLAN", &[5][..]), ("two VLANs", &[5, 6])] {
        let mut frame = generator.genuine().frame();
        for tag in tags {
            frame.splice(12..12, [0x81, 0, 0, *tag]);
        }
        generator.frame(format!("in {name}"), frame, Expected::Stack);
    }
    let frame = generator.genuine().frame();
    for (name, kind) in [
        ("ARP", 0x0806),
        ("the other family", 0x86dd),
        ("no protocol", 0x88b5),
    ] {
        if kind == 0x86dd && generator.bed.outer == Family::V6 {
            continue;
        }
        let [dst, src] = [0, 6].map(|at| <[u8; 6]>::try_from(&frame[at..at + 6]).expect("a MAC address"));
        let frame = ethernet(dst, src, kind, &frame[14..]);
        generator.frame(format!("in a frame of {name}"), frame, Expected::Stack);
    }
}

fn inner_addresses(generator: &mut Generator) {
    let (outer, inner) = (generator.bed.outer, generator.inner);
    let north = North::new(inner);
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(inner));
    let services = Services::new(inner);
    for (name, source) in [
        ("a Pod of a third cluster", north.pod),
        ("a Service of a third cluster", north.services.addr()),
        ("the victim's Pod", west.pod.addr()),
        ("a Pod on the victim", west.node_pods[1].addr()),
        ("a Service of the victim", services.exported),
        ("the victim in its cluster", west.internal[0].addr()),
        ("a node of east", east.node.addr()),
        ("a gateway of east", east.gateway[0].addr()),
        ("the attacker", between_clusters(inner, LAN_HOST).addr()),
    ] {
        let tunnel = generator.claiming(source);
        generator.drop(format!("inner source of {name}"), &tunnel, InnerSource);
    }
    for (name, destination) in [
        ("a third cluster", north.pod),
        ("a Service of a third cluster", north.services.addr()),
        ("the sender's cluster", east.pod.addr()),
        ("a Service of the sender's cluster", east.services.addr()),
        ("a node of west", west.node.addr()),
        ("the victim", west.gateway[0].addr()),
        ("the attacker", between_clusters(inner, LAN_HOST).addr()),
    ] {
        let tunnel = generator.to(destination);
        generator.drop(format!("inner destination of {name}"), &tunnel, NoRoute);
    }
    let (source, _) = generator.ends();
    for (name, destination, port) in [
        ("a private Service", services.private, PRIVATE_PORT),
        ("an unused Service address", services.unused, 80),
    ] {
        let tunnel = generator.carrying(&datagram(source, destination, port, ATTACK));
        generator.drop(format!("inner destination of {name}"), &tunnel, NotExported);
    }
    // The label identity of another Pod: no policy selects the destination.
    let mut tunnel = generator.genuine();
    tunnel.vni = 0x0012_3456;
    generator.frame("a VNI that is not 0", tunnel.frame(), Expected::Gap);
    // A peer's address on the wrong leg.
    let mut tunnel = generator.between(west.pod.addr(), east.pod.addr());
    tunnel.src = Cluster::East.nets(outer).gateway[0].addr();
    generator.drop(
        "a reply in the name of the client's gateway",
        &tunnel,
        InnerSource,
    );
}

/// A tunnel packet inside of a tunnel packet.
fn nested(generator: &mut Generator) {
    let format = generator.bed.format;
    let (source, pod) = generator.ends();
    let payload = {
        let frame = generator
            .claiming(Cluster::West.pod_addr(generator.inner))
            .frame();
        let headers = match generator.bed.outer {
            Family::V4 => 14 + 20 + 8,
            Family::V6 => 14 + 40 + 8,
        };
        frame[headers..].to_vec()
    };
    let west = Cluster::West.nets(generator.inner);
    let packet = |dst| Ip::new(source, dst, 17, udp(0xc123, port(format), &payload));
    for (name, dst) in [
        ("the victim's underlay address", west.gateway[0].addr()),
        ("a node's underlay address", west.node.addr()),
    ] {
        let tunnel = generator.carrying(&packet(dst));
        generator.drop(format!("nested, to {name}"), &tunnel, NoRoute);
    }
    let node = generator.carrying(&packet(west.pod_gateway.addr()));
    generator.add(
        "nested, to a node's address among its Pods",
        Send::Frames(vec![node.frame()]),
        Place::NodeWest,
        Expected::Rule("not-for-nodes"),
    );
    // In IP (protocols 4, 41), to the Pod network of a node.
    let inner = datagram(source, pod, POD_PORT, ATTACK);
    let proto = if source.is_ipv4() { 4 } else { 41 };
    let tunnel = generator.carrying(&Ip::new(
        source,
        west.pod_gateway.addr(),
        proto,
        inner.bytes().to_vec(),
    ));
    generator.add(
        "nested in IP, to a node's address among its Pods",
        Send::Frames(vec![tunnel.frame()]),
        Place::NodeWest,
        Expected::Rule("not-for-nodes"),
    );
}
