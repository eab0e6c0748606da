//! Pinned maps with another spec, and gateways with changed addresses.

use std::fs;

use mc_tests::topology::{Cluster, Family, Place};

use crate::{
    fixture::{bpftool, connected},
    host_changes::wait_connectivity,
    restart::run_failing_agent,
};

#[test]
fn a_pinned_map_with_another_spec_is_refused_and_kept() {
    let mut bed = connected("shape");
    let place = Place::NodeEast;
    bed.stop_agent(place).expect("SIGTERM");
    let pin = bed
        .bpf_dir(place)
        .join(mc_gateway_common::abi::MAPS_DIR)
        .join("mc_peers");
    let file = pin.to_string_lossy().into_owned();
    // Value, key, entries and type differ from this version's in turn.
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
        let output = run_failing_agent(&bed, place, &bed.bpf_dir(place));
        for word in ["foreign pin", "mc_peers", what] {
            assert!(output.contains(word), "no {word} in {output}");
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
    // The CNI's routes use the new address.
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
                // Whole values only: 192.168.11.1 is a prefix of other addresses.
                text = text
                    .replace(&format!("{old}\n"), &format!("{new}\n"))
                    .replace(&format!("\"{old}\""), &format!("\"{new}\""));
            }
            fs::write(&file, text).expect("write");
        }
    }
    wait_connectivity(&bed);
}
