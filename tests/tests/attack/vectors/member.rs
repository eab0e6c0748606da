//! The gateway of a compromised member, to a gateway of another cluster.

use std::net::IpAddr;

use mc_gateway_common::verdict::DropReason::{InnerSource, NoRoute, NotExported};
use mc_test_kit::datapath::packets::{Ip, tcp_syn, with_checksum};
use mc_tests::topology::{Cluster, Place};

use super::{inner_martians, pod::icmp_error};
use crate::{
    bed::{LAN_HOST, NORTH_HOST, PRIVATE_PORT, SERVICE_TCP, SERVICE_UDP, Services, between_clusters},
    vector::{ATTACK, Expected, Generator, POD_PORT, Send, datagram},
};

pub(super) fn generate(generator: &mut Generator) {
    let inner = generator.inner;
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(inner));
    for (name, source) in [
        ("a Pod of a third cluster", east.pod.addr()),
        ("a Service of a third cluster", east.services.addr()),
        ("the victim's Pod", west.pod.addr()),
        ("a Pod on the victim", west.node_pods[1].addr()),
        ("a Service of the victim", Services::new(inner).exported),
        ("the victim", west.gateway[0].addr()),
        ("the victim in its cluster", west.internal[0].addr()),
        ("a node of the victim's cluster", west.node.addr()),
        ("a third cluster's gateway", east.gateway[0].addr()),
        (
            "its own underlay address",
            between_clusters(inner, NORTH_HOST).addr(),
        ),
    ] {
        let tunnel = generator.claiming(source);
        generator.drop(format!("inner source of {name}"), &tunnel, InnerSource);
    }
    for (name, destination) in [
        ("a Pod of a third cluster", east.pod.addr()),
        ("a Service of a third cluster", east.services.addr()),
        ("its own cluster", generator.ends().0),
        ("the victim", west.gateway[0].addr()),
        ("the victim in its cluster", west.internal[0].addr()),
        ("a node of the victim's cluster", west.node.addr()),
        ("a third cluster's gateway", east.gateway[0].addr()),
        ("a host of the underlay", between_clusters(inner, LAN_HOST).addr()),
    ] {
        let tunnel = generator.to(destination);
        generator.drop(format!("inner destination of {name}"), &tunnel, NoRoute);
    }
    inner_martians(generator);
    services(generator);
    nodes(generator);
    // ICMP errors about flows to another cluster: any router of a path may send them, from any address of its own.
    let (source, pod) = generator.ends();
    let errors = [
        (
            "to a third cluster",
            datagram(pod, east.pod.addr(), POD_PORT, ATTACK),
        ),
        (
            "of the sender's cluster",
            datagram(east.pod.addr(), pod, POD_PORT, ATTACK),
        ),
    ];
    for (name, quoted) in errors {
        let tunnel = generator.carrying(&icmp_error(source, pod, &quoted));
        generator.frame(
            format!("an ICMP error about a flow {name}"),
            tunnel.frame(),
            Expected::Gap,
        );
    }
}

fn tcp(src: IpAddr, dst: IpAddr, port: u16) -> Ip {
    // The marker is data on the SYN.
    let mut syn = tcp_syn(40_000, port);
    syn.extend(ATTACK);
    Ip::new(src, dst, 6, with_checksum(src, dst, 6, syn, 16))
}

fn services(generator: &mut Generator) {
    let (source, _) = generator.ends();
    let services = Services::new(generator.inner);
    let range = Cluster::West.nets(generator.inner).services.network();
    for (name, packet) in [
        ("a private Service", tcp(source, services.private, PRIVATE_PORT)),
        (
            "a port of no Service",
            tcp(source, services.exported, PRIVATE_PORT),
        ),
        (
            "a Service's port by UDP",
            datagram(source, services.exported, SERVICE_TCP, ATTACK),
        ),
        (
            "a Service's port by TCP",
            tcp(source, services.exported, SERVICE_UDP),
        ),
        ("port 0 of a Service", tcp(source, services.exported, 0)),
        (
            "an unused Service address",
            tcp(source, services.unused, SERVICE_TCP),
        ),
        (
            "the network address of the Services",
            tcp(source, range, SERVICE_TCP),
        ),
        (
            "the private Service by its NodePort",
            tcp(source, services.private, 30_080),
        ),
    ] {
        let tunnel = generator.carrying(&packet);
        generator.drop(name, &tunnel, NotExported);
    }
    for (name, proto) in [("SCTP", 132), ("GRE", 47), ("no protocol", 59), ("ESP", 50)] {
        let payload = datagram(source, services.exported, SERVICE_UDP, ATTACK).payload;
        let tunnel = generator.carrying(&Ip::new(source, services.exported, proto, payload));
        generator.drop(format!("a Service by {name}"), &tunnel, NotExported);
    }
}

/// Addresses of nodes among the Pods.
fn nodes(generator: &mut Generator) {
    let (source, _) = generator.ends();
    let west = Cluster::West.nets(generator.inner);
    let node = west.pod_gateway.addr();
    let echo = |dst: IpAddr| {
        let (proto, kind) = if dst.is_ipv4() { (1, 8) } else { (58, 128) };
        let mut message = vec![kind, 0, 0, 0, 0, 1, 0, 1];
        message.extend(ATTACK);
        if dst.is_ipv4() {
            let sum = mc_test_kit::datapath::packets::checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        } else {
            message = with_checksum(source, dst, 58, message, 2);
        }
        Ip::new(source, dst, proto, message)
    };
    let not_for_nodes = Expected::Rule("not-for-nodes");
    for (name, packet) in [
        ("the kubelet", tcp(source, node, 10_250)),
        ("the API server", tcp(source, node, 6_443)),
        ("SSH", tcp(source, node, 22)),
        ("a NodePort", tcp(source, node, 30_080)),
        ("a NodePort by UDP", datagram(source, node, 30_080, ATTACK)),
        ("a node by ICMP", echo(node)),
    ] {
        let frame = generator.carrying(&packet).frame();
        generator.add(name, Send::Frames(vec![frame]), Place::NodeWest, not_for_nodes);
    }
    // The gateway's own address among its Pods: the network address of its Pod CIDR.
    for (name, port) in [("kubelet", 10_250), ("API server", 6_443), ("NodePort", 30_080)] {
        let packet = tcp(source, west.node_pods[1].network(), port);
        let frame = generator.carrying(&packet).frame();
        generator.frame(format!("the gateway's {name}"), frame, not_for_nodes);
    }
}
