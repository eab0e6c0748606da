//! The vectors, by the place of the attacker.

mod antrea;
mod identities;
mod lan_to_gateway;
mod lan_to_node;
mod malformed;
mod member;
mod node;
mod pod;
mod probes;
mod returned;
mod secret;
mod tunnel_device;

use mc_gateway_common::verdict::DropReason;
use mc_tests::topology::Family;

use crate::{
    bed::{Bed, Way},
    vector::{Entry, Generator, IPV4_MAPPED, Vector, martians},
};

/// All vectors of a place, with inner packets of both families.
pub(crate) fn all(bed: &Bed, entry: Entry) -> Vec<Vector> {
    let mut all = Vec::new();
    for inner in [Family::V4, Family::V6] {
        let mut generator = Generator::new(bed, entry, inner);
        if bed.way == Way::Policies {
            match entry {
                Entry::Member | Entry::Node => identities::generate(&mut generator),
                Entry::LanToGateway | Entry::LanToNode => identities::without_secret(&mut generator),
                Entry::Pod => {}
            }
            all.extend(generator.vectors);
            continue;
        }
        match entry {
            Entry::LanToGateway => {
                lan_to_gateway::generate(&mut generator);
                malformed::generate(&mut generator);
                if inner == Family::V4 {
                    probes::generate(&mut generator);
                }
            }
            Entry::LanToNode => lan_to_node::generate(&mut generator),
            Entry::Pod => pod::generate(&mut generator),
            Entry::Node => node::generate(&mut generator),
            Entry::Member => member::generate(&mut generator),
        }
        antrea::generate(&mut generator);
        returned::generate(&mut generator);
        if bed.way == Way::TunnelDevices {
            tunnel_device::generate(&mut generator);
        }
        if entry != Entry::Pod {
            secret::generate(&mut generator);
        }
        all.extend(generator.vectors);
    }
    all
}

/// An IPv4-mapped address in an IPv6 header is malformed at any place.
fn reason(name: &str, other: DropReason) -> DropReason {
    if name == IPV4_MAPPED {
        DropReason::InnerMalformed
    } else {
        other
    }
}

/// Addresses that no host has, as inner source and as inner destination.
fn inner_martians(generator: &mut Generator) {
    // The IPv4 counterpart of the source that the peer may use.
    let (peer, victim) = generator.bed.ends(generator.entry, Family::V4);
    for (name, address) in martians(generator.inner, peer) {
        let tunnel = generator.claiming(address);
        generator.drop(
            format!("inner source {name}"),
            &tunnel,
            reason(name, DropReason::InnerSource),
        );
    }
    for (name, address) in martians(generator.inner, victim) {
        let tunnel = generator.to(address);
        generator.drop(
            format!("inner destination {name}"),
            &tunnel,
            reason(name, DropReason::NoRoute),
        );
    }
}
