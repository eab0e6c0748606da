//! Link addresses of next hops: resolved, changed, and not vouched for.

use std::net::IpAddr;

use mc_tests::{
    capture::{Capture, Direction},
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

use crate::{
    fixture::{TIMEOUT, connected},
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

/// MAC address of a device.
fn mac_of(bed: &Topology, place: Place, device: &str) -> String {
    let args = ["-json", "link", "show", "dev", device];
    let shown = bed.netns(place).run("ip", args).expect("a device");
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    shown[0]["address"].as_str().expect("an address").to_owned()
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
    let is_tunnel = |frame: &&Vec<u8>| {
        frame[12..14] == [0x08, 0x00] && frame[23] == 17 && frame[36..38] == 6081_u16.to_be_bytes()
    };
    let mac = |frame: &Vec<u8>| {
        [0, 1, 2, 3, 4, 5]
            .map(|at| format!("{:02x}", frame[at]))
            .join(":")
    };
    frames
        .iter()
        // Not probes: their sockets send by the kernel's table.
        .filter(|frame| is_tunnel(frame) && frame[62..64] == [0x08, 0x00])
        .map(mac)
        .collect()
}

fn set_neighbor(bed: &Topology, state: &str) {
    bed.netns(NODE)
        .ip(&[format!("neigh replace {} dev eth0 {state}", gateway())])
        .expect("a neighbor");
}

#[test]
fn frames_to_a_next_hop_have_the_mac_address_of_its_present_neighbor_entry() {
    let bed = connected("neigh");
    wait_connectivity(&bed);
    let real = mac_of(&bed, GATEWAY, "eth0");
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
    let real = mac_of(&bed, GATEWAY, "eth0");
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
    let real = mac_of(&bed, GATEWAY, "eth0");
    wait_written(&bed, Some(&real));
    bed.netns(NODE)
        .sysctl(&[("net.ipv4.neigh.eth0.delay_first_probe_time", "1")])
        .expect("a setting");
    set_neighbor(&bed, "nud stale");
    let state = || {
        let shown = bed.netns(NODE).run("ip", ["neigh", "show", &gateway()]);
        shown.expect("an entry")
    };
    wait_for("a confirmed entry", TIMEOUT, || {
        let entry = state();
        if entry.contains("REACHABLE") {
            Ok(())
        } else {
            Err(entry)
        }
    })
    .expect("confirmed");
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
    wait_for("a confirmed entry of the gateway", TIMEOUT, || {
        let shown = bed.netns(GATEWAY).run("ip", ["neigh", "show", &far.to_string()]);
        let entry = shown.map_err(|error| format!("{error:#}"))?;
        if entry.contains("REACHABLE") {
            Ok(())
        } else {
            Err(entry)
        }
    })
    .expect("confirmed");
    assert!(state().contains("PERMANENT"), "{}", state());
}
