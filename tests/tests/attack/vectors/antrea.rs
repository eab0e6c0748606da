//! Addresses of a cluster with an Antrea gateway: its alias, its gateway and ours. Such clusters have IPv4 only.

use mc_gateway_common::verdict::DropReason::{InnerSource, NoRoute};
use mc_tests::topology::{Cluster, Family};

use crate::{
    bed::{SOUTH_HOST, South, between_clusters},
    vector::{ATTACK, Entry, Expected, Generator, POD_PORT, datagram},
};

pub(super) fn generate(generator: &mut Generator) {
    if generator.bed.outer == Family::V6 || generator.inner == Family::V6 {
        return;
    }
    if generator.entry == Entry::LanToNode {
        // Its gateway sends packets of every other cluster to a node.
        return;
    }
    let south = South::new();
    let gateway = between_clusters(Family::V4, SOUTH_HOST).addr();
    let ours = Cluster::West.nets(Family::V4).gateway[0].addr();
    let (_, pod) = generator.ends();
    for (name, source) in [
        ("the alias of an Antrea cluster", south.alias),
        ("a Service of an Antrea cluster", south.service),
        ("a Pod of an Antrea cluster", south.pod),
        ("an Antrea gateway", gateway),
    ] {
        if generator.entry == Entry::Pod {
            let frame = datagram(source, pod, POD_PORT, ATTACK).frame();
            generator.frame(
                format!("in the name of {name}"),
                frame,
                Expected::Drop(InnerSource),
            );
        } else {
            let tunnel = generator.claiming(source);
            generator.drop(format!("inner source of {name}"), &tunnel, InnerSource);
        }
    }
    if matches!(generator.entry, Entry::Pod | Entry::Node) {
        // Pods may send to every cluster.
        return;
    }
    for (name, destination) in [
        ("the alias of an Antrea cluster", south.alias),
        ("a Service of an Antrea cluster", south.service),
        ("a Pod of an Antrea cluster", south.pod),
        ("an Antrea gateway", gateway),
        ("the gatewayIP, as if a reply of an Antrea cluster", ours),
    ] {
        let tunnel = generator.to(destination);
        generator.drop(format!("inner destination of {name}"), &tunnel, NoRoute);
    }
    if generator.entry != Entry::LanToGateway {
        return;
    }
    // In the name of the Antrea gateway.
    let (east, north) = (
        Cluster::East.pod_addr(Family::V4),
        crate::bed::North::new(Family::V4).pod,
    );
    for (name, source) in [
        ("a Pod of east", east),
        ("a Pod of north", north),
        ("the victim", ours),
    ] {
        let mut tunnel = generator.claiming(source);
        tunnel.src = gateway;
        generator.drop(
            format!("inner source of {name} from an Antrea gateway"),
            &tunnel,
            InnerSource,
        );
    }
    let mut tunnel = generator.between(gateway, east);
    tunnel.src = gateway;
    generator.drop("transit of an Antrea gateway to east", &tunnel, NoRoute);
}
