//! Faults a host or a neighbour makes that fit nowhere else: pins of another shape, gateways that move.

use std::fs;

use mc_tests::topology::{Cluster, Family, Place};

use crate::{
    bed::{bpftool, connected},
    host_changes::works_again,
    restart::refused,
};

#[test]
fn a_map_of_our_name_and_another_shape_is_refused_and_left_alone() {
    let mut bed = connected("shape");
    let place = Place::NodeEast;
    bed.stop_agent(place).expect("SIGTERM");
    let pin = bed
        .bpf_dir(place)
        .join(mc_gateway_common::abi::MAPS_DIR)
        .join("mc_peers");
    let file = pin.to_string_lossy().into_owned();
    // Key, value, entries and type in turn are not what this version makes.
    for (what, shape) in [
        ("value 4 bytes", ["hash", "16", "4", "64"]),
        ("key 4 bytes", ["hash", "4", "16", "64"]),
        ("64 entries", ["hash", "16", "16", "64"]),
        ("LruHash", ["lru_hash", "16", "16", "4096"]),
    ] {
        fs::remove_file(&pin).expect("unpin");
        let [kind, key, value, entries] = shape;
        bpftool(&[
            "map", "create", &file, "type", kind, "key", key, "value", value, "entries", entries, "name",
            "mc_peers",
        ]);
        let said = refused(&bed, place, &bed.bpf_dir(place));
        for word in ["foreign pin", "mc_peers", what] {
            assert!(said.contains(word), "no {word} in {said}");
        }
        let left = bpftool(&["-j", "map", "show", "pinned", &file]);
        assert!(left.contains(&format!("\"max_entries\":{entries}")), "{left}");
    }
}

#[test]
fn a_gateway_may_change_its_addresses() {
    let bed = connected("gwaddr");
    let gateway = bed.netns(Place::GatewayEast);
    let nets = Cluster::East.nets(Family::V4);
    let moves = [
        ("eth0", nets.internal[0].to_string(), "192.168.11.78"),
        ("eth1", nets.gateway[0].to_string(), "192.168.100.78"),
    ];
    for (device, old, new) in &moves {
        gateway
            .ip(&[
                format!("addr del {old} dev {device}"),
                format!("addr add {new}/24 dev {device}"),
            ])
            .expect("addresses");
    }
    // What the CNI routes through the old address goes through the new one.
    let (_, _, internal) = &moves[0];
    gateway
        .route(
            Cluster::East.node_pod_cidr(),
            &format!("via {}", nets.node.addr()),
        )
        .expect("a route");
    bed.netns(Place::NodeEast)
        .route(Cluster::East.gateway_pod_cidr(), &format!("via {internal}"))
        .expect("a route");
    for cluster in Cluster::ALL {
        for entry in fs::read_dir(bed.manifests_dir(cluster)).expect("manifests") {
            let file = entry.expect("an entry").path();
            let mut text = fs::read_to_string(&file).expect("a manifest");
            for (_, old, new) in &moves {
                let old = old.split('/').next().unwrap_or_default();
                // Whole addresses only: 192.168.11.1 also begins others.
                text = text.replace(&format!("{old}\n"), &format!("{new}\n"));
            }
            fs::write(&file, text).expect("write");
        }
    }
    works_again(&bed);
}
