//! Packets for the agent's tunnel devices that `from_underlay` has not left to them: their VNI is public, the secret in
//! the inner source MAC address is not.

use std::net::SocketAddr;

use mc_gateway_common::{packet::tunnel::VNI_KERNEL_DECAP, verdict::DropReason::NotAdmitted};
use mc_test_kit::datapath::packets::Tunnel;
use mc_tests::topology::{Cluster, Place};

use super::pod::payload;
use crate::{
    bed::{LAN_HOST, between_clusters, port},
    vector::{Entry, Expected, Generator, Send},
};

/// Inner destinations: any but that of multi-cluster frames, with which a packet is an ordinary one.
const DESTINATIONS: [(&str, [u8; 6]); 3] = [
    ("some host", [2, 0, 0, 0, 0, 9]),
    ("every host", [0xff; 6]),
    ("no host", [0; 6]),
];
/// Guesses of the secret.
const SECRETS: [(&str, [u8; 6]); 3] = [
    ("zeros", [0; 6]),
    ("a guess", [0x5c, 1, 2, 3, 4, 5]),
    ("a broadcast address", [0xff; 6]),
];

pub(super) fn generate(generator: &mut Generator) {
    match generator.entry {
        Entry::LanToGateway | Entry::LanToNode => from_the_underlay(generator),
        Entry::Pod => from_the_node(generator),
        Entry::Node | Entry::Member => {}
    }
}

/// The genuine packet with the VNI of the tunnel devices.
fn forged(generator: &Generator, mac: [u8; 6], secret: [u8; 6]) -> Tunnel {
    Tunnel {
        vni: VNI_KERNEL_DECAP,
        mac,
        inner_src: secret,
        ..generator.genuine()
    }
}

fn from_the_underlay(generator: &mut Generator) {
    let stranger = between_clusters(generator.bed.outer, LAN_HOST).addr();
    for (destination, mac) in DESTINATIONS {
        for (guess, secret) in SECRETS {
            for (sender, src) in [("a peer", None), ("a stranger", Some(stranger))] {
                let mut tunnel = forged(generator, mac, secret);
                tunnel.src = src.unwrap_or(tunnel.src);
                generator.frame(
                    format!("for the tunnel device, to {destination}, from {sender}, secret {guess}"),
                    tunnel.frame(),
                    Expected::Drop(NotAdmitted),
                );
            }
        }
    }
}

fn from_the_node(generator: &mut Generator) {
    let outer = generator.bed.outer;
    let node = Cluster::East.nets(outer).node.addr();
    for (sender, from) in [("a Pod's", Place::PodEast), ("a host process's", Place::NodeEast)] {
        for (guess, secret) in SECRETS {
            let [(_, mac), ..] = DESTINATIONS;
            let send = Send::Datagram {
                from,
                to: SocketAddr::new(node, port(generator.bed.format)),
                payload: payload(&forged(generator, mac, secret)),
            };
            let name = format!("{sender} datagram for the tunnel device of its node, secret {guess}");
            generator.add(name, send, Place::NodeEast, Expected::Rule("tunnel-guard"));
        }
    }
}
