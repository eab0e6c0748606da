//! A Pod, and a process of its node: tunnel packets of their own, and packets to other clusters with forged sources.

use std::net::{IpAddr, SocketAddr};

use mc_gateway_common::verdict::DropReason::{InnerMalformed, InnerSource, NotExported, TunnelOptions};
use mc_test_kit::datapath::packets::{Ip, Tunnel, checksum, with_checksum};
use mc_tests::topology::{Cluster, Family, Format, Place};

use crate::{
    bed::{LAN_HOST, North, Services, between_clusters, port},
    vector::{ATTACK, Expected, Generator, POD_PORT, Send, datagram},
};

const GUARD: Expected = Expected::Rule("tunnel-guard");

pub(super) fn generate(generator: &mut Generator) {
    sockets(generator);
    tunnel_frames(generator);
    forged_sources(generator);
    forged_errors(generator);
    destinations(generator);
}

/// A tunnel packet of the Pod, in the Pod's own family.
fn tunnel(generator: &Generator) -> Tunnel {
    let (src, dst) = generator.ends();
    let mut tunnel = generator.between(src, dst);
    tunnel.udp_checksum = true;
    tunnel
}

/// The payload of a UDP datagram that holds a tunnel packet.
pub(super) fn payload(tunnel: &Tunnel) -> Vec<u8> {
    let headers = if tunnel.src.is_ipv4() {
        14 + 20 + 8
    } else {
        14 + 40 + 8
    };
    tunnel.frame()[headers..].to_vec()
}

fn sockets(generator: &mut Generator) {
    let outer = generator.bed.outer;
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(outer));
    let port = port(generator.bed.format);
    let (own, dst) = generator.ends();
    let node_pods = Cluster::East.nets(generator.inner).node_pods;
    let sources = [
        ("itself", own),
        ("another Pod of its node", neighbour(own)),
        ("a Pod of another node", neighbour(node_pods[1].addr())),
        ("another cluster's Pod", North::new(generator.inner).pod),
    ];
    for (sender, from) in [("a Pod's", Place::PodEast), ("a host process's", Place::NodeEast)] {
        for (target, to) in [
            ("its gateway", east.internal[0].addr()),
            ("its other gateway", east.internal[1].addr()),
            ("the gateway of another cluster", west.gateway[0].addr()),
        ] {
            // A regular node has no route to the network between the clusters: the attacker needs one.
            for (claimed, src) in sources {
                let send = Send::Datagram {
                    from,
                    to: SocketAddr::new(to, port),
                    payload: payload(&generator.between(src, dst)),
                };
                let name = format!("{sender} datagram to {target} in the name of {claimed}");
                generator.add(name, send, Place::NodeEast, GUARD);
            }
        }
    }
    // Its own node takes it for an ordinary datagram.
    let send = Send::Datagram {
        from: Place::PodEast,
        to: SocketAddr::new(east.node.addr(), port),
        payload: payload(&generator.between(own, dst)),
    };
    generator.add(
        "a Pod's datagram to its node",
        send,
        Place::NodeEast,
        Expected::Listener,
    );
}

/// Forms of a tunnel packet that sockets do not write.
fn tunnel_frames(generator: &mut Generator) {
    let packet = tunnel(generator);
    generator.frame("a tunnel packet", packet.frame(), GUARD);
    let mut options = packet.clone();
    if options.src.is_ipv4() {
        options.outer_options = vec![1; 8];
        generator.frame("a tunnel packet with IP options", options.frame(), GUARD);
    } else {
        for (name, next) in [("destination", 60), ("hop-by-hop", 0)] {
            let mut options = options.clone();
            options.outer_options = vec![options.outer_next, 0, 1, 4, 0, 0, 0, 0];
            options.outer_next = next;
            generator.frame(
                format!("a tunnel packet with {name} options"),
                options.frame(),
                GUARD,
            );
        }
    }
    // The first fragment of the shortest one ends in front of the inner MAC address.
    for first in [8, 16, 32] {
        let send = Send::Frames(fragments(&packet, first));
        generator.add(
            format!("a tunnel packet in fragments, {first} bytes first"),
            send,
            Place::NodeEast,
            GUARD,
        );
    }
    if generator.bed.format == Format::Geneve {
        for words in [1, 4, 63] {
            let mut options = packet.clone();
            options.geneve = [words, 0];
            options.geneve_options = vec![0; usize::from(words) * 4];
            let send = Send::Frames(vec![options.frame()]);
            generator.add(
                format!("a tunnel packet with {words} words of Geneve options"),
                send,
                Place::GatewayEast,
                Expected::Drop(TunnelOptions),
            );
        }
    }
}

/// The outer packet in two fragments.
fn fragments(packet: &Tunnel, first: usize) -> Vec<Vec<u8>> {
    let frame = packet.frame();
    let header = if packet.src.is_ipv4() { 20 } else { 40 };
    let datagram = &frame[14 + header..];
    let part = |bytes: &[u8], offset: usize, more: bool| {
        let mut ip = Ip::new(packet.src, packet.dst, 17, bytes);
        let units = u16::try_from(offset / 8).expect("a short packet");
        if packet.src.is_ipv4() {
            ip.frags = units | if more { 0x2000 } else { 0 };
        } else {
            let [high, low] = (units << 3 | u16::from(more)).to_be_bytes();
            ip.proto = 44;
            ip.options = vec![17, 0, high, low, 9, 9, 9, 9];
        }
        ip.frame()
    };
    vec![
        part(&datagram[..first], 0, true),
        part(&datagram[first..], first, false),
    ]
}

/// Sources that this node has not.
fn foreign_sources(generator: &Generator) -> Vec<(&'static str, IpAddr)> {
    let inner = generator.inner;
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(inner));
    let north = North::new(inner);
    vec![
        ("a Pod on the gateway", neighbour(east.node_pods[1].addr())),
        ("a Pod on the other gateway", neighbour(east.node_pods[2].addr())),
        ("the gateway among its Pods", east.node_pods[1].addr()),
        ("the destination", west.pod.addr()),
        ("a neighbour of the destination", neighbour(west.pod.addr())),
        (
            "a Service of the destination's cluster",
            Services::new(inner).exported,
        ),
        ("a third cluster", north.pod),
        ("a Service of a third cluster", north.services.addr()),
        ("the gateway", east.internal[0].addr()),
        ("the other gateway", east.internal[1].addr()),
        ("a gateway of another cluster", west.gateway[0].addr()),
        ("a host of the underlay", between_clusters(inner, LAN_HOST).addr()),
        (
            "no host",
            if inner == Family::V4 {
                [198, 51, 100, 9].into()
            } else {
                "2001:db8::9".parse().expect("an address")
            },
        ),
    ]
}

fn forged_sources(generator: &mut Generator) {
    let (_, dst) = generator.ends();
    for (name, source) in foreign_sources(generator) {
        let frame = datagram(source, dst, POD_PORT, ATTACK).frame();
        generator.frame(
            format!("in the name of {name}"),
            frame,
            Expected::Drop(InnerSource),
        );
    }
    let inner = generator.inner;
    let node = Cluster::East.nets(inner);
    for (name, source) in [
        ("another Pod of its node", neighbour(node.pod.addr())),
        ("a Service of its cluster", neighbour(node.services.addr())),
    ] {
        let frame = datagram(source, dst, POD_PORT, ATTACK).frame();
        generator.frame(format!("in the name of {name}"), frame, Expected::Gap);
    }
    let martians: &[(&str, &str)] = match inner {
        Family::V4 => &[
            ("loopback", "127.0.0.1"),
            ("multicast", "224.0.0.1"),
            ("broadcast", "255.255.255.255"),
        ],
        Family::V6 => &[("loopback", "::1"), ("multicast", "ff02::1")],
    };
    for (name, text) in martians {
        let source = text.parse().expect("an address");
        let frame = datagram(source, dst, POD_PORT, ATTACK).frame();
        generator.frame(format!("in the name of {name}"), frame, Expected::Stack);
    }
    if let (IpAddr::V4(own), Family::V6) = (generator.bed.ends(generator.entry, Family::V4).0, inner) {
        let frame = datagram(own.to_ipv6_mapped().into(), dst, POD_PORT, ATTACK).frame();
        generator.frame(
            "in the name of its IPv4-mapped address",
            frame,
            Expected::Drop(InnerMalformed),
        );
    }
    // The kernel refuses its own IPv4 addresses as source of a received packet.
    if inner == Family::V4 {
        for (name, source) in [
            ("its node", node.node.addr()),
            ("its node among the Pods", node.pod_gateway.addr()),
        ] {
            let frame = datagram(source, dst, POD_PORT, ATTACK).frame();
            generator.frame(format!("in the name of {name}"), frame, Expected::Stack);
        }
    }
}

/// ICMP errors in the name of others: a router may send them from any address, about a flow of the Pod.
fn forged_errors(generator: &mut Generator) {
    let (own, dst) = generator.ends();
    for (name, source) in foreign_sources(generator) {
        for (kind, quoted) in [
            ("its flow", datagram(dst, own, POD_PORT, ATTACK)),
            (
                "a flow of another Pod",
                datagram(dst, neighbour(own), POD_PORT, ATTACK),
            ),
        ] {
            let frame = icmp_error(source, dst, &quoted).frame();
            let name = format!("an ICMP error about {kind} in the name of {name}");
            generator.frame(name, frame, Expected::Drop(InnerSource));
        }
    }
}

/// A Pod may not enter what other clusters may not enter.
fn destinations(generator: &mut Generator) {
    let (own, _) = generator.ends();
    let services = Services::new(generator.inner);
    for (name, dst) in [
        ("a private Service", services.private),
        ("an unused Service address", services.unused),
    ] {
        let frame = datagram(own, dst, 5432, ATTACK).frame();
        // Either gateway may receive the flow: its hash selects one.
        generator.add(
            format!("to {name}"),
            Send::Frames(vec![frame]),
            Place::GatewayWest,
            Expected::Drop(NotExported),
        );
    }
    let frame = datagram(
        own,
        Cluster::West.nets(generator.inner).pod_gateway.addr(),
        10_250,
        ATTACK,
    )
    .frame();
    generator.add(
        "to the kubelet of another cluster",
        Send::Frames(vec![frame]),
        Place::NodeWest,
        Expected::Rule("not-for-nodes"),
    );
}

/// An ICMP error of an unreachable port that quotes a packet.
pub(super) fn icmp_error(src: IpAddr, dst: IpAddr, quoted: &Ip) -> Ip {
    let mut message = if src.is_ipv4() {
        vec![3, 3, 0, 0, 0, 0, 0, 0]
    } else {
        vec![1, 4, 0, 0, 0, 0, 0, 0]
    };
    message.extend(quoted.bytes());
    if src.is_ipv4() {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        return Ip::new(src, dst, 1, message);
    }
    Ip::new(src, dst, 58, with_checksum(src, dst, 58, message, 2))
}

/// Another address of the same network.
fn neighbour(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => (u32::from(v4) + 0x40).to_be_bytes().into(),
        IpAddr::V6(v6) => (u128::from(v6) + 0x40).to_be_bytes().into(),
    }
}
