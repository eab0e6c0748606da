//! Link addresses of next hops: resolved, changed, and not vouched for.

use std::net::IpAddr;

use mc_tests::{
    capture::{Capture, Direction},
    decode::{Frame, Payload},
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

use crate::{
    fixture::{TIMEOUT, connected, shown_device},
    host_changes::wait_connectivity,
    observability::{inspect, row},
};

const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;

/// A MAC address that no device has.
const ELSEWHERE: &str = "02:00:00:00:00:99";

/// Address of the gateway on the network of its cluster, the next hop of the Node.
fn gateway() -> String {
    Cluster::East.internal_net().addr().to_string()
}

/// MAC address of the gateway's device on that network.
fn gateway_mac(bed: &Topology) -> String {
    let shown = shown_device(bed, GATEWAY, "eth0");
    shown["address"].as_str().expect("an address").to_owned()
}

/// Waits until the Node's programs write this MAC address into frames to its gateway; none if they leave it to the
/// kernel.
fn wait_written(bed: &Topology, mac: Option<&str>) {
    wait_for("the link address of the gateway", TIMEOUT, || {
        let next_hops = inspect(bed, NODE, "nexthops");
        let found = &row(&next_hops, "address", &gateway())["mac"];
        if found.as_str() == mac {
            Ok(())
        } else {
            Err(found.to_string())
        }
    })
    .expect("a link address");
}

/// Destinations of tunnel packets that the Node sends while a Pod sends some requests; all may be lost.
fn destinations(bed: &Topology) -> Vec<String> {
    let file = bed.directory().join("neighbors.pcap");
    let capture = Capture::start(
        bed.traffic(),
        bed.netns(NODE),
        "eth0",
        Direction::Out,
        None,
        &file,
    );
    let capture = capture.expect("a capture");
    let to = IpAddr::from(Cluster::West.pod_ip()).to_string();
    let args = ["ping", &to, "--count", "3", "--timeout", "0.2"];
    // Requests to another MAC address have no reply.
    drop(bed.traffic().run(bed.netns(Place::PodEast), &args));
    let frames = capture.finish().expect("frames");
    let destination = |frame: &Vec<u8>| {
        let frame = Frame::decode(frame)?;
        let Payload::Geneve(_, geneve) = frame.ip?.payload else {
            return None;
        };
        // Not probes, whose sockets send by the kernel's table.
        geneve.inner?.ip?;
        Some(frame.to.to_string())
    };
    frames.iter().filter_map(destination).collect()
}

fn set_neighbor(bed: &Topology, state: &str) {
    bed.netns(NODE)
        .ip(&[format!("neigh replace {} dev eth0 {state}", gateway())])
        .expect("a neighbor");
}

/// The kernel's entry of a neighbor.
fn entry(bed: &Topology, place: Place, addr: &str) -> String {
    let shown = bed.netns(place).run("ip", ["neigh", "show", addr]);
    shown.expect("an entry")
}

fn wait_reachable(bed: &Topology, place: Place, addr: &str) {
    wait_for("a confirmed entry", TIMEOUT, || {
        let entry = entry(bed, place, addr);
        if entry.contains("REACHABLE") {
            Ok(())
        } else {
            Err(entry)
        }
    })
    .expect("confirmed");
}

#[test]
fn frames_to_a_next_hop_have_the_mac_address_of_its_present_neighbor_entry() {
    let bed = connected("neigh");
    wait_connectivity(&bed);
    let real = gateway_mac(&bed);
    wait_written(&bed, Some(&real));
    assert_eq!(destinations(&bed).first(), Some(&real));
    set_neighbor(&bed, &format!("lladdr {ELSEWHERE} nud permanent"));
    wait_written(&bed, Some(ELSEWHERE));
    assert_eq!(destinations(&bed).first().map(String::as_str), Some(ELSEWHERE));
    bed.netns(NODE)
        .ip(&["neigh flush all nud permanent"])
        .expect("flush");
    wait_connectivity(&bed);
    wait_written(&bed, Some(&real));
}

/// The kernel's entry changes while no agent observes it: without a limit of time, packets would go to the earlier MAC
/// address for good.
#[test]
fn link_addresses_end_with_the_agent() {
    let mut bed = connected("neigh-end");
    let real = gateway_mac(&bed);
    wait_written(&bed, Some(&real));
    bed.stop_agent(NODE).expect("stop");
    let next_hops = inspect(&bed, NODE, "nexthops");
    assert!(
        row(&next_hops, "address", &gateway())["mac"].is_null(),
        "{next_hops:#}"
    );
    wait_connectivity(&bed);
    bed.start_agent(NODE).expect("start");
    wait_written(&bed, Some(&real));
    bed.kill_agent(NODE).expect("kill");
    set_neighbor(&bed, &format!("lladdr {ELSEWHERE} nud permanent"));
    wait_for("frames to the new MAC address", TIMEOUT, || {
        let found = destinations(&bed);
        match found.last() {
            Some(last) if last == ELSEWHERE => Ok(()),
            _ => Err(format!("{found:?}")),
        }
    })
    .expect("frames");
    wait_written(&bed, None);
    bed.netns(NODE)
        .ip(&["neigh flush all nud permanent"])
        .expect("flush");
    wait_connectivity(&bed);
}

/// The programs send past the kernel's neighbor table, so no packet makes the kernel confirm an entry.
#[test]
fn an_idle_neighbor_is_confirmed_and_a_permanent_one_stays() {
    let bed = connected("neigh-idle");
    let real = gateway_mac(&bed);
    wait_written(&bed, Some(&real));
    bed.netns(NODE)
        .sysctl(&[("net.ipv4.neigh.eth0.delay_first_probe_time", "1")])
        .expect("a setting");
    set_neighbor(&bed, "nud stale");
    wait_reachable(&bed, NODE, &gateway());
    wait_written(&bed, Some(&real));
    // An entry of another device shows that the agent confirms idle entries meanwhile.
    let far = Cluster::West.gateway_net().addr();
    set_neighbor(&bed, &format!("lladdr {real} nud permanent"));
    bed.netns(GATEWAY)
        .ip(&[format!("neigh replace {far} dev eth1 nud stale")])
        .expect("a neighbor");
    bed.netns(GATEWAY)
        .sysctl(&[("net.ipv4.neigh.eth1.delay_first_probe_time", "1")])
        .expect("a setting");
    wait_reachable(&bed, GATEWAY, &far.to_string());
    let entry = entry(&bed, NODE, &gateway());
    assert!(entry.contains("PERMANENT"), "{entry}");
}
