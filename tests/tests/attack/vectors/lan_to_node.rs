//! A host in a cluster's network, to a regular node: forged packets of its gateway.

use mc_gateway_common::verdict::DropReason::{
    Ecn, ForeignBackend, InnerSource, NoRoute, UnknownBackend, UnknownPeer,
};
use mc_test_kit::datapath::packets::Ip;
use mc_tests::topology::{Cluster, Family};

use super::inner_martians;
use crate::{
    bed::{NORTH_HOST, North, PRIVATE_PORT, SERVICE_UDP, Services, between_clusters},
    vector::{ATTACK, Expected, Generator, POD_PORT, datagram, martians},
};

pub(super) fn generate(generator: &mut Generator) {
    let outer = generator.bed.outer;
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(outer));
    let mut sources = vec![
        ("the victim".to_owned(), west.node.addr()),
        ("a gateway of another cluster".to_owned(), east.gateway[0].addr()),
        (
            "a third cluster's gateway".to_owned(),
            between_clusters(outer, NORTH_HOST).addr(),
        ),
        ("a node of another cluster".to_owned(), east.node.addr()),
        ("a Pod of the victim".to_owned(), Cluster::West.pod_addr(outer)),
    ];
    sources.extend(
        martians(outer, west.internal[0].addr())
            .into_iter()
            .map(|(name, address)| (format!("{name} as an address"), address)),
    );
    for (name, source) in sources {
        let mut tunnel = generator.genuine();
        tunnel.src = source;
        generator.drop(format!("outer source of {name}"), &tunnel, UnknownPeer);
    }
    inner_martians(generator);
    inner_addresses(generator);
    backends(generator);
    let mut tunnel = generator.genuine();
    tunnel.tos = 3;
    generator.drop("a forged congestion mark", &tunnel, Ecn);
}

fn inner_addresses(generator: &mut Generator) {
    let inner = generator.inner;
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(inner));
    for (name, source) in [
        ("the victim's Pod", west.pod.addr()),
        ("a Pod on the gateway", west.node_pods[1].addr()),
        ("a Service of the cluster", Services::new(inner).exported),
        ("the victim", west.node.addr()),
        ("the gateway", west.internal[0].addr()),
    ] {
        let tunnel = generator.claiming(source);
        generator.drop(format!("inner source of {name}"), &tunnel, InnerSource);
    }
    for (name, destination) in [
        ("a Pod on the gateway", west.node_pods[1].addr()),
        ("a Pod on another gateway", west.node_pods[2].addr()),
        ("the sender's cluster", east.pod.addr()),
        ("a third cluster", North::new(inner).pod),
        ("the victim's underlay address", west.node.addr()),
        ("the gateway's underlay address", west.internal[0].addr()),
    ] {
        let tunnel = generator.to(destination);
        generator.drop(format!("inner destination of {name}"), &tunnel, NoRoute);
    }
    let (source, _) = generator.ends();
    for (name, port) in [
        ("the kubelet", 10_250),
        ("a host process", 22),
        ("a NodePort", 30_080),
    ] {
        let tunnel = generator.carrying(&datagram(source, west.pod_gateway.addr(), port, ATTACK));
        let not_for_nodes = Expected::Rule("not-for-nodes");
        generator.frame(
            format!("inner destination of {name}"),
            tunnel.frame(),
            not_for_nodes,
        );
    }
}

/// Packets to a Service address, whose backend the gateway writes into the inner source MAC address.
fn backends(generator: &mut Generator) {
    let (source, _) = generator.ends();
    let services = Services::new(generator.inner);
    let backend = generator.bed.backend_mac(generator.inner);
    let web = datagram(source, services.exported, SERVICE_UDP, ATTACK);
    let mut tunnel = generator.carrying(&web);
    generator.drop("a Service without a backend", &tunnel, UnknownBackend);
    tunnel.inner_src = backend;
    tunnel.inner_src[5] ^= 0x55;
    generator.drop("a backend that does not exist", &tunnel, UnknownBackend);
    for (name, address, port) in [
        ("another port", services.exported, PRIVATE_PORT),
        ("a private Service", services.private, PRIVATE_PORT),
        ("a private Service's address", services.private, SERVICE_UDP),
        ("an unused Service address", services.unused, SERVICE_UDP),
    ] {
        let mut tunnel = generator.carrying(&datagram(source, address, port, ATTACK));
        tunnel.inner_src = backend;
        generator.drop(format!("a backend's number for {name}"), &tunnel, ForeignBackend);
    }
    let protocols = [
        ("TCP", 6),
        ("SCTP", 132),
        ("ICMP echo", if generator.inner == Family::V4 { 1 } else { 58 }),
    ];
    for (name, proto) in protocols {
        let mut payload = datagram(source, services.exported, SERVICE_UDP, ATTACK).payload;
        // ICMP: an echo request. TCP, SCTP: the ports of the Service.
        if proto == 1 || proto == 58 {
            payload[..4].copy_from_slice(&[if proto == 1 { 8 } else { 128 }, 0, 0, 0]);
        }
        payload.extend([0x50; 20]);
        let mut tunnel = generator.carrying(&Ip::new(source, services.exported, proto, payload));
        tunnel.inner_src = backend;
        generator.drop(format!("a backend's number for {name}"), &tunnel, ForeignBackend);
    }
    let mut tunnel = generator.carrying(&datagram(
        source,
        Cluster::West.nets(generator.inner).node_pods[1].addr(),
        POD_PORT,
        ATTACK,
    ));
    tunnel.inner_src = backend;
    generator.drop("a backend's number for a Pod of another node", &tunnel, NoRoute);
}
