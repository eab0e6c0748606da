//! Traffic between the clusters and its form on the underlay.

use std::{net::IpAddr, time::Duration};

use mc_tests::{
    capture::{Capture, Direction},
    decode::{Frame, Payload},
    topology::{Cluster, Place},
};

use crate::fixture::{bpftool, connected};

#[test]
fn pods_reach_each_other_and_keep_their_addresses() {
    let bed = connected("reach");
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let ping = bed.traffic().ping(east, Cluster::West.pod_ip(), 3).expect("ping");
    assert_eq!((ping.sent, ping.received), (3, 3));
    let _server = bed
        .traffic()
        .echo_server(west, "pod-west", 8080)
        .expect("a server");
    let answer = bed
        .traffic()
        .get(east, &format!("http://{}:8080/", Cluster::West.pod_ip()))
        .expect("an answer");
    assert_eq!(answer, format!("pod-west {}", Cluster::East.pod_ip()));
    for node in [Place::NodeEast, Place::NodeWest] {
        assert_eq!(
            bed.masqueraded(node).expect("a counter"),
            0,
            "{} masqueraded",
            node.name()
        );
    }
}

#[test]
fn the_underlay_carries_only_encapsulated_packets_of_these_flows() {
    let bed = connected("wire");
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let _server = bed
        .traffic()
        .echo_server(west, "pod-west", 8080)
        .expect("a server");
    let file = bed.directory().join("underlay.pcap");
    let device = Place::GatewayEast.underlay_devices()[0];
    let capture = Capture::start(
        bed.traffic(),
        bed.netns(Place::GatewayEast),
        device,
        Direction::Both,
        None,
        &file,
    )
    .expect("a capture");
    for _ in 0..5 {
        bed.traffic()
            .get(east, &format!("http://{}:8080/", Cluster::West.pod_ip()))
            .expect("an answer");
    }
    let frames: Vec<Frame> = capture
        .finish()
        .expect("frames")
        .iter()
        .filter_map(|bytes| Frame::decode(bytes))
        .collect();
    let pods = [Cluster::East, Cluster::West].map(|cluster| IpAddr::from(cluster.pod_ip()));
    let mut tunnelled = 0;
    for frame in &frames {
        let Some(ip) = &frame.ip else { continue };
        assert!(
            !pods.contains(&ip.from) && !pods.contains(&ip.to),
            "unencapsulated on {device}: {frame:?}"
        );
        let Payload::Geneve(udp, geneve) = &ip.payload else {
            continue;
        };
        if frame.is_probe() {
            continue;
        }
        let inner = frame.inner().expect("an inner packet");
        assert!(
            pods.contains(&inner.from) && pods.contains(&inner.to),
            "{frame:?}"
        );
        assert_eq!(geneve.vni, 0, "stretched policy is off");
        assert_eq!(udp.checksum, 0);
        assert!(
            udp.from >= 0xc000,
            "source port {} is not in the dynamic range",
            udp.from
        );
        assert!(ip.dont_fragment);
        tunnelled += 1;
    }
    assert!(
        tunnelled >= 5 * 8,
        "{tunnelled} encapsulated packets of 5 connections in {} frames",
        frames.len()
    );
}

#[test]
fn bulk_transfers_drop_no_packet() {
    let bed = connected("bulk");
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let report = bed
        .traffic()
        .stream(east, west, Cluster::West.pod_ip(), Duration::from_secs(1))
        .expect("a stream");
    assert!(report.bytes > 50_000_000, "{report:?}");
    // No packet was dropped.
    for place in Place::NODES {
        let drops = bpftool(&["-j", "map", "dump", "pinned", &pin(&bed, place, "mc_drops")]);
        let drops: serde_json::Value = serde_json::from_str(&drops).expect("JSON");
        for entry in drops.as_array().expect("entries") {
            let reason = entry["formatted"]["key"].as_u64().expect("a reason");
            let count: u64 = entry["formatted"]["values"]
                .as_array()
                .expect("CPUs")
                .iter()
                .map(|cpu| cpu["value"].as_u64().expect("a count"))
                .sum();
            // 2: IPv6 packets of the kernel itself on mc0.
            assert!(
                count == 0 || reason == 2,
                "{}: {count} packets dropped for reason {reason}",
                place.name()
            );
        }
    }
}

#[test]
fn maps_read_like_tables() {
    let bed = connected("maps");
    let config = bpftool(&[
        "map",
        "dump",
        "pinned",
        &pin(&bed, Place::GatewayEast, "mc_config"),
    ]);
    for field in ["abi", "mc0_ifindex", "port", "mc0_mac", "local"] {
        assert!(config.contains(&format!("\"{field}\"")), "no {field} in {config}");
    }
    let next_hops = bpftool(&[
        "map",
        "lookup",
        "pinned",
        &pin(&bed, Place::NodeEast, "mc_nexthops"),
        "key",
        "1",
        "0",
        "0",
        "0",
    ]);
    for field in ["addr", "ifindex", "id", "mtu", "weight"] {
        assert!(
            next_hops.contains(&format!("\"{field}\"")),
            "no {field} in {next_hops}"
        );
    }
}

fn pin(bed: &mc_tests::topology::Topology, place: Place, map: &str) -> String {
    bed.bpf_dir(place)
        .join(mc_gateway_common::abi::MAPS_DIR)
        .join(map)
        .to_string_lossy()
        .into_owned()
}
