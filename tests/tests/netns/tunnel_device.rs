//! The agent's tunnel devices: aggregation on a wire-like underlay, decapsulation of super-packets for Pods on a bridge,
//! and other owners of the port.

use std::time::Duration;

use mc_gateway_common::verdict::Outcome;
use mc_tests::{
    counters::Counters,
    topology::{Cluster, Family, Format, Options, Place, Topology, Variant},
    wait::wait_for,
};

use crate::{
    families::assert_connectivity,
    fixture::{TIMEOUT, options, wait_for_log},
    observability::metrics,
};

const GATEWAY: Place = Place::GatewayWest;
const NODE: Place = Place::NodeWest;

/// VXLAN over a wire-like underlay; Pods on a bridge or routed.
fn vxlan(name: &str, bridge: bool) -> Options {
    Options {
        bridge,
        wire_like: true,
        format: Format::Vxlan,
        ..options(name)
    }
}

fn configured(options: Options) -> Topology {
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

fn counters(bed: &Topology, place: Place) -> Counters {
    Counters::read(&bed.bpf_dir(place)).expect("counters")
}

/// Sends for a second and returns the received segments.
fn transfer(bed: &Topology) -> u64 {
    let [east, west] = [Place::PodEast, Place::PodWest].map(|place| bed.netns(place));
    let report = bed
        .traffic()
        .stream(
            east,
            west,
            Cluster::West.pod_addr(Family::V4),
            Duration::from_secs(1),
        )
        .expect("a transfer");
    let segments = report.bytes / u64::from(1500 - bed.options().overhead());
    assert!(segments > 10_000, "{report:?}");
    segments
}

/// GSO packets with an outcome.
fn gso(bed: &Topology, place: Place, outcome: Outcome) -> u64 {
    counters(bed, place).outcomes[outcome.name()].gso
}

/// Waits until the kernel decapsulates super-packets on the node.
fn wait_for_kernel_decap(bed: &Topology) {
    wait_for("super-packets decapsulated by the kernel", TIMEOUT, || {
        let was = gso(bed, NODE, Outcome::KernelDecap);
        transfer(bed);
        let is = gso(bed, NODE, Outcome::KernelDecap);
        if is > was + 100 {
            Ok(())
        } else {
            Err(format!("{was} and {is} super-packets; {:?}", counters(bed, NODE)))
        }
    })
    .expect("kernel decapsulation");
}

/// State of a device, with its details; none if it does not exist.
fn device(bed: &Topology, place: Place, name: &str) -> Option<String> {
    bed.netns(place).run("ip", ["-d", "link", "show", name]).ok()
}

fn wait_for_open_device(bed: &Topology, place: Place) {
    wait_for("the tunnel device", TIMEOUT, || {
        match device(bed, place, "mc0t") {
            Some(text) if text.contains(",UP") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .expect("a device that is up");
}

#[test]
fn super_packets_for_pods_on_a_bridge_are_decapsulated_by_the_kernel() {
    let bed = configured(vxlan("td-bridge", true));
    wait_for_kernel_decap(&bed);
    let places = [GATEWAY, NODE];
    let before = places.map(|place| counters(&bed, place));
    let segments = transfer(&bed);
    let after = places.map(|place| counters(&bed, place));
    let rose = |place: usize, outcome: Outcome| {
        let [was, is] = [&before[place], &after[place]].map(|counters| counters.outcomes[outcome.name()]);
        (is.packets - was.packets, is.gso - was.gso)
    };
    let (transit, kernel, delivered) = (
        rose(0, Outcome::Transit),
        rose(1, Outcome::KernelDecap),
        rose(1, Outcome::Deliver),
    );
    println!("{segments} segments: transit {transit:?}, kernel-decap {kernel:?}, deliver {delivered:?}");
    assert!(
        transit.0 < segments / 3,
        "no aggregation at the gateway: {transit:?}"
    );
    assert!(
        kernel.0 > 100 && kernel.0 == kernel.1,
        "super-packets only: {kernel:?}"
    );
    assert!(
        delivered.1 > 100 && delivered.0 < segments / 3,
        "delivered in super-packets: {delivered:?}"
    );
    assert!(after[1].drops.is_empty(), "{:?}", after[1].drops);
    assert_connectivity(&bed, Family::V4);
}

/// The short way is faster for routed Pods; the device serves aggregation only.
#[test]
fn super_packets_for_routed_pods_are_aggregated_and_decapsulated_by_the_program() {
    let bed = configured(vxlan("td-routed", false));
    wait_for_open_device(&bed, NODE);
    let was = counters(&bed, NODE).outcomes[Outcome::Deliver.name()];
    let segments = transfer(&bed);
    let is = counters(&bed, NODE).outcomes[Outcome::Deliver.name()];
    let (packets, gso_packets) = (is.packets - was.packets, is.gso - was.gso);
    assert!(
        gso_packets > 100 && packets < segments / 3,
        "{packets} packets, {gso_packets} super-packets, {segments} segments"
    );
    assert_eq!(gso(&bed, NODE, Outcome::KernelDecap), 0);
    assert_aggregation(&bed, true, "yes: socket of mc0t");
}

/// `inspect` and the metrics of the node have this aggregation of tunnel packets.
fn assert_aggregation(bed: &Topology, active: bool, reason: &str) {
    let output = bed.run_agent(NODE, &["inspect", "underlay", "-o", "json"]);
    let output = output.expect("inspect");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let row = &value["underlay"][0];
    assert_eq!(
        (&row["device"], &row["aggregation"]),
        (&"eth0".into(), &active.into()),
        "{text}"
    );
    assert_eq!(row["reason"], reason, "{text}");
    wait_for("the metric", TIMEOUT, || {
        let gauge = metrics(bed, NODE).sum("mcgateway_underlay_aggregation", &["\"eth0\""]);
        if (gauge > 0.5) == active {
            Ok(())
        } else {
            Err(gauge.to_string())
        }
    })
    .expect("the metric");
}

#[test]
fn a_device_without_generic_receive_offload_is_reported() {
    let bed = configured(vxlan("td-gro", false));
    wait_for_open_device(&bed, NODE);
    assert_aggregation(&bed, true, "yes: socket of mc0t");
    bed.netns(NODE)
        .run("ethtool", ["-K", "eth0", "gro", "off"])
        .expect("ethtool");
    assert_aggregation(
        &bed,
        false,
        "no: generic receive offload is off (ethtool -K DEVICE gro on)",
    );
}

#[test]
fn a_firewall_on_the_way_to_the_tunnel_device_drops_no_packet_of_a_pod_for_long() {
    let bed = configured(vxlan("td-firewall", true));
    wait_for_kernel_decap(&bed);
    bed.netns(NODE)
        .nft(
            "table inet firewall {\n chain input {\n  type filter hook input priority 0\n  udp dport 4789 drop\n }\n}\n",
        )
        .expect("a firewall");
    wait_for("the way through the program", TIMEOUT, || {
        let was = gso(&bed, NODE, Outcome::KernelDecap);
        transfer(&bed);
        let is = gso(&bed, NODE, Outcome::KernelDecap);
        if was == is {
            Ok(())
        } else {
            Err(format!("{was}, then {is} super-packets left to the kernel"))
        }
    })
    .expect("no packet left to the kernel");
    bed.netns(NODE)
        .nft("delete table inet firewall")
        .expect("no firewall");
    wait_for_kernel_decap(&bed);
}

#[test]
fn a_tunnel_device_that_is_removed_or_set_down_comes_back() {
    let bed = configured(vxlan("td-heal", true));
    for change in ["link del mc0t", "link set mc0t down"] {
        wait_for_open_device(&bed, NODE);
        bed.netns(NODE).ip(&[change]).expect(change);
        wait_for_open_device(&bed, NODE);
        wait_for_kernel_decap(&bed);
    }
    let removed = bed.netns(NODE).ip(&["link show mc0t6"]);
    assert!(removed.is_err(), "a device for IPv6 without an IPv6 underlay");
}

/// As the VXLAN devices of Calico and Flannel: with their own VNI on the same port.
#[test]
fn vxlan_devices_of_a_cni_share_the_port_in_either_order() {
    let mut bed = Topology::create(vxlan("td-share", true)).expect("the namespaces");
    let lines = |name: &str, vni: u32| {
        [
            format!("link add {name} type vxlan id {vni} dstport 4789 nolearning"),
            format!("link set {name} up"),
        ]
    };
    bed.netns(NODE).ip(&lines("cni.first", 4096)).expect("a device");
    bed.configure(Variant::McGateway).expect("the agents");
    wait_for_kernel_decap(&bed);
    bed.netns(NODE)
        .ip(&lines("cni.second", 4097))
        .expect("a second device");
    wait_for_kernel_decap(&bed);
}

/// As the device of a CNI with Open vSwitch: it takes all packets of the port.
#[test]
fn a_device_in_external_mode_keeps_its_port() {
    let mut bed = Topology::create(vxlan("td-external", true)).expect("the namespaces");
    bed.netns(NODE)
        .ip(&[
            "link add cni0ext type vxlan external dstport 4789",
            "link set cni0ext up",
        ])
        .expect("a device");
    bed.configure(Variant::McGateway).expect("the agents");
    let line = wait_for_log(&mut bed, NODE, &["field rejected", "tunnel device", "mc0t"]);
    assert!(line.contains("Address already in use"), "{line}");
    // Its socket aggregates; the program decapsulates.
    transfer(&bed);
    assert_aggregation(&bed, true, "yes: socket of cni0ext");
    assert_eq!(gso(&bed, NODE, Outcome::KernelDecap), 0);
    assert!(gso(&bed, NODE, Outcome::Deliver) > 100);
    assert_connectivity(&bed, Family::V4);
    bed.netns(NODE).ip(&["link del cni0ext"]).expect("delete");
    wait_for_open_device(&bed, NODE);
    wait_for_kernel_decap(&bed);
}

/// Cilium creates this device before it opens its socket, in external mode.
#[test]
fn a_cni_that_cannot_share_the_port_gets_it() {
    let bed = configured(vxlan("td-exclusive", false));
    wait_for_open_device(&bed, NODE);
    bed.netns(NODE)
        .ip(&["link add cilium_host type veth peer name cilium_net"])
        .expect("a device");
    wait_for("removal of the tunnel device", TIMEOUT, || {
        device(&bed, NODE, "mc0t").map_or(Ok(()), Err)
    })
    .expect("no device");
    bed.netns(NODE)
        .ip(&[
            "link add cilium_vxlan type vxlan external dstport 4789",
            "link set cilium_vxlan up",
        ])
        .expect("the port");
    transfer(&bed);
    assert!(gso(&bed, NODE, Outcome::Deliver) > 100);
    assert_connectivity(&bed, Family::V4);
}

#[test]
fn never_leaves_no_device_and_cleanup_removes_it() {
    let bed = configured(Options {
        agent_flags: ["--tunnel-device", "never"].map(str::to_owned).into(),
        ..vxlan("td-never", true)
    });
    assert_eq!(device(&bed, NODE, "mc0t"), None);
    transfer(&bed);
    assert_aggregation(&bed, false, "no: no tunnel device has a socket on the port");
    let mut bed = configured(vxlan("td-cleanup", true));
    wait_for_open_device(&bed, NODE);
    bed.reset().expect("agents stopped and cleaned up");
    assert_eq!(device(&bed, NODE, "mc0t"), None);
}
