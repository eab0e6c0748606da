//! Packets that a sender claims to return to the gateway: the mark "may return" in the inner source MAC address.

use std::net::IpAddr;

use mc_gateway::{cidr::to_abi_addr, ids::backend_id};
use mc_gateway_common::{
    abi::service::ServiceKey,
    verdict::DropReason::{self, ForeignBackend, InnerSource, NoRoute, UnexpectedReturn, UnknownBackend},
};
use mc_test_kit::datapath::packets::{Ip, tcp_syn, with_checksum};
use mc_tests::topology::Cluster;

use super::node::Nth as _;
use crate::{
    bed::{North, PRIVATE_PORT, SERVICE_TCP, SERVICE_UDP, Services},
    vector::{ATTACK, CLIENT_PORT, Entry, Generator, POD_PORT, datagram},
};

/// A backend ID that no backend has.
const NO_BACKEND: u64 = 1;

pub(super) fn generate(generator: &mut Generator) {
    match generator.entry {
        Entry::Node => by_node(generator),
        Entry::Member => by_member(generator),
        Entry::LanToGateway | Entry::LanToNode | Entry::Pod => {}
    }
}

/// A regular node returns what its gateway has not sent to it.
fn by_node(generator: &mut Generator) {
    let inner = generator.inner;
    let services = Services::new(inner);
    let [client, pod] = Cluster::ALL.map(|cluster| cluster.pod_addr(inner));
    let own = web_backend(generator);
    let segment = |src, dst, port| with_flags(src, dst, port, 0x18);
    let genuine = segment(client, services.exported, SERVICE_TCP);
    let west = Cluster::West.nets(inner);
    let gateways_pod = west.node_pods[1].nth(7);
    let vectors: [(&str, u64, Ip, DropReason); 12] = [
        ("a segment of no flow", own, genuine.clone(), UnexpectedReturn),
        (
            "a segment of a third cluster",
            own,
            segment(North::new(inner).pod, services.exported, SERVICE_TCP),
            UnexpectedReturn,
        ),
        (
            "a SYN",
            own,
            with_flags(client, services.exported, SERVICE_TCP, 0x02),
            UnexpectedReturn,
        ),
        (
            "a RST",
            own,
            with_flags(client, services.exported, SERVICE_TCP, 0x04),
            UnexpectedReturn,
        ),
        ("no backend", NO_BACKEND, genuine, UnknownBackend),
        (
            "another port of the Service",
            own,
            segment(client, services.exported, SERVICE_UDP),
            ForeignBackend,
        ),
        (
            "a private Service",
            own,
            segment(client, services.private, PRIVATE_PORT),
            ForeignBackend,
        ),
        (
            "an unused Service address",
            own,
            segment(client, services.unused, SERVICE_TCP),
            ForeignBackend,
        ),
        (
            "a segment of its own Pod",
            own,
            segment(pod, services.exported, SERVICE_TCP),
            NoRoute,
        ),
        (
            "a segment of a Pod on the gateway",
            own,
            segment(gateways_pod, services.exported, SERVICE_TCP),
            InnerSource,
        ),
        (
            "a segment of a Service",
            own,
            segment(services.exported, services.exported, SERVICE_TCP),
            NoRoute,
        ),
        (
            "a segment of the gateway",
            own,
            segment(west.internal[0].addr(), services.exported, SERVICE_TCP),
            InnerSource,
        ),
    ];
    for (name, backend, packet, reason) in vectors {
        push(generator, name, backend, &packet, reason);
    }
    datagrams_by_node(generator, own);
    for (name, packet) in [
        ("a packet to its own Pod", segment(client, pod, POD_PORT)),
        (
            "a packet to a Pod on the gateway",
            segment(client, gateways_pod, POD_PORT),
        ),
        ("a packet to another cluster", segment(pod, client, POD_PORT)),
    ] {
        push(generator, name, own, &packet, DropReason::PeerSecret);
    }
    let mut tunnel = generator.carrying(&segment(client, services.exported, SERVICE_TCP));
    let secret = generator.bed.secret(tunnel.src, tunnel.dst);
    for (name, mac) in [
        ("without the mark", secret.with_backend(own)),
        ("the mark without a backend", secret.may_return()),
    ] {
        tunnel.inner_src = mac.bytes();
        generator.without_secret(format!("returned: {name}"), &tunnel);
    }
}

/// Datagrams that a regular node returns; `own` is its backend of TCP.
fn datagrams_by_node(generator: &mut Generator, own: u64) {
    let inner = generator.inner;
    let services = Services::new(inner);
    let client = Cluster::East.pod_addr(inner);
    let of_datagrams = backend(generator, SERVICE_UDP, 17);
    let third = North::new(inner).pod;
    for (name, backend, client, reason) in [
        ("of no flow", of_datagrams, client, UnexpectedReturn),
        ("of a third cluster", of_datagrams, third, UnexpectedReturn),
        ("with the backend of segments", own, client, ForeignBackend),
    ] {
        let packet = datagram(client, services.exported, SERVICE_UDP, ATTACK);
        push(generator, &format!("a datagram {name}"), backend, &packet, reason);
    }
}

/// A gateway of another cluster has no packet to return.
fn by_member(generator: &mut Generator) {
    let (source, pod) = generator.ends();
    let services = Services::new(generator.inner);
    let own = web_backend(generator);
    for (name, packet) in [
        (
            "a segment to a Service",
            with_flags(source, services.exported, SERVICE_TCP, 0x18),
        ),
        (
            "a segment of a third cluster",
            with_flags(
                Cluster::East.pod_addr(generator.inner),
                services.exported,
                SERVICE_TCP,
                0x18,
            ),
        ),
        ("a segment to a Pod", with_flags(source, pod, POD_PORT, 0x18)),
    ] {
        push(generator, name, own, &packet, DropReason::PeerSecret);
    }
}

/// A packet with the secret of the sender, a backend ID and the mark.
fn push(generator: &mut Generator, name: &str, backend: u64, packet: &Ip, reason: DropReason) {
    let mut tunnel = generator.carrying(packet);
    let secret = generator.bed.secret(tunnel.src, tunnel.dst);
    tunnel.inner_src = secret.with_backend(backend).may_return().bytes();
    generator.drop(format!("returned: {name}"), &tunnel, reason);
}

/// ID of the backend of the exported Service's TCP port, which is on the regular node.
fn web_backend(generator: &Generator) -> u64 {
    backend(generator, SERVICE_TCP, 6)
}

/// ID of the backend of a port of the exported Service, which is on the regular node.
fn backend(generator: &Generator, port: u16, proto: u8) -> u64 {
    let service = ServiceKey {
        addr: to_abi_addr(Services::new(generator.inner).exported),
        port,
        proto,
        generation: 0,
    };
    let pod = Cluster::West.pod_addr(generator.inner);
    backend_id(&service, &to_abi_addr(pod), POD_PORT)
}

/// A TCP segment with data.
fn with_flags(src: IpAddr, dst: IpAddr, port: u16, flags: u8) -> Ip {
    let mut segment = tcp_syn(CLIENT_PORT, port);
    segment[13] = flags;
    segment.extend_from_slice(ATTACK);
    Ip::new(src, dst, 6, with_checksum(src, dst, 6, segment, 16))
}
