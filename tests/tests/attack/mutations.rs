//! Random mutations of genuine packets: those that arrive at a Pod have a source that their sender may use.
//!
//! A mutation of the payload, of ports, or of the source within the prefixes of the peer arrives: the programs do not
//! authenticate packets.

use std::{env, net::IpAddr};

use ipnet::IpNet;
use mc_tests::{
    rng::Rng,
    topology::{Cluster, Family},
};

use crate::{
    bed::{Bed, North, contains},
    check::Checker,
    vector::{ATTACK, CONTROL, Entry, POD_PORT, datagram},
};

/// Mutated packets of each place, by default and with `MC_LONG`.
const MUTATIONS: [usize; 2] = [200, 10_000];
/// Packets between two genuine ones.
const BATCH: usize = 50;
/// First byte behind the MAC addresses of a frame.
const FIRST: usize = 12;

/// Number of mutations of each place.
fn mutations() -> usize {
    let long = env::var_os("MC_LONG").is_some_and(|value| value != "0" && !value.is_empty());
    MUTATIONS[usize::from(long)]
}

/// The seed: `MC_SEED`, or a fixed one.
fn seed() -> u64 {
    env::var("MC_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1)
}

/// Sends mutated packets from every place.
pub(crate) fn mutate_all(bed: &Bed, checker: &Checker) -> Vec<String> {
    let (mut rng, mut wrong) = (Rng::new(seed()), Vec::new());
    for entry in Entry::ALL {
        let (mut sent, mut arrived) = (0, 0);
        while sent < mutations() {
            let inner = if rng.one_in(2) { Family::V4 } else { Family::V6 };
            let genuine = genuine(bed, entry, inner);
            let batch: Vec<_> = (0..BATCH).map(|_| mutated(&mut rng, &genuine)).collect();
            sent += batch.len();
            checker.drain();
            bed.inject(entry, &batch);
            let seen = match checker.control(entry, inner) {
                Ok(seen) => seen,
                Err(error) => {
                    wrong.push(format!("after {sent} mutations: {error}"));
                    break;
                }
            };
            for frame in seen.iter().filter(|frame| !contains(frame, CONTROL)) {
                if let Some((src, dst)) = received(bed, entry, frame) {
                    arrived += 1;
                    if !may_send(entry, src) {
                        wrong.push(format!("{}: {src} to {dst}: {frame:02x?}", entry.name()));
                    }
                }
            }
        }
        println!(
            "attack: {}: {sent} mutations with MC_SEED={}, {arrived} arrived in the name of the peer",
            entry.name(),
            seed()
        );
    }
    wrong
}

/// A genuine packet of a place.
fn genuine(bed: &Bed, entry: Entry, inner: Family) -> Vec<u8> {
    let (src, dst) = bed.ends(entry, inner);
    let packet = datagram(src, dst, POD_PORT, ATTACK);
    let frame = if entry == Entry::Pod {
        packet.frame()
    } else {
        bed.encapsulated(entry, &packet).frame()
    };
    bed.addressed(entry, frame)
}

/// The frame with up to three changes behind its MAC addresses.
fn mutated(rng: &mut Rng, genuine: &[u8]) -> Vec<u8> {
    let mut frame = genuine.to_vec();
    for _ in 0..rng.range(1, 3) {
        let at = FIRST + rng.index(frame.len() - FIRST);
        match rng.below(16) {
            0 => frame.truncate(at.max(FIRST + 2)),
            1 => frame.insert(at, 0),
            2 => {
                frame.remove(at);
            }
            3 => {
                let extra = rng.range(1, 64);
                frame.extend(rng.bytes(usize::try_from(extra).unwrap_or(1)));
            }
            4..8 => frame[at] = u8::try_from(rng.below(256)).unwrap_or_default(),
            8 => frame[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => frame[at] ^= 1 << rng.below(8),
        }
        // A packet socket sends no shorter frame.
        frame.resize(frame.len().max(FIRST + 2), 0);
    }
    frame
}

/// Addresses of an IP packet that a Pod has received; `None` for others.
fn received(bed: &Bed, entry: Entry, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    // Neighbour discovery of the Pod's own link, and errors of routers about answers of the Pod, which arrive seconds
    // after the mutation that the Pod answered.
    let (proto_at, icmp, kind_at) = match frame.get(12..14)? {
        [0x86, 0xdd] => (20, 58, 54),
        _ => (23, 1, 34),
    };
    let kind = *frame.get(kind_at)?;
    let is_error = if icmp == 58 {
        kind < 128
    } else {
        [3, 11, 12].contains(&kind)
    };
    let is_discovery = icmp == 58 && (133..=137).contains(&kind);
    if frame.get(proto_at) == Some(&icmp) && (is_error || is_discovery) {
        return None;
    }
    [Family::V4, Family::V6].into_iter().find_map(|family| {
        let (src, dst) = crate::bed::outer_addresses(frame, family)?;
        (dst == bed.ends(entry, family).1).then_some((src, dst))
    })
}

/// Whether a packet with this source may come from a place.
fn may_send(entry: Entry, src: IpAddr) -> bool {
    let networks = |family: Family| -> Vec<IpNet> {
        let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(family));
        let north = North::new(family);
        match entry {
            Entry::LanToGateway => vec![east.pods, east.services],
            Entry::LanToNode => vec![east.pods, east.services, north.pods, north.services],
            Entry::Pod => vec![east.node_pods[0], east.services],
            Entry::Node => vec![west.node_pods[0], west.services],
            Entry::Member => vec![north.pods, north.services],
        }
    };
    [Family::V4, Family::V6]
        .into_iter()
        .flat_map(networks)
        .any(|network| network.contains(&src))
}
