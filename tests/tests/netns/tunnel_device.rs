//! The agent's tunnel devices: their state, firewalls, and VXLAN devices of others on the port. Aggregation itself is
//! tested by [`crate::aggregation`].

use std::time::Duration;

use mc_gateway_common::verdict::Outcome;
use mc_tests::{
    counters::Counters,
    skip::skipped,
    topology::{Cluster, Family, Format, Links, Options, Place, Topology, Variant},
    wait::wait_for,
};

use crate::{
    families::assert_connectivity,
    fixture::{TIMEOUT, options},
    observability::metrics,
};

pub(crate) const GATEWAY: Place = Place::GatewayWest;
pub(crate) const NODE: Place = Place::NodeWest;

/// VXLAN over a wire-like underlay; Pods on a bridge or routed.
fn vxlan(name: &str, bridge: bool) -> Options {
    Options {
        bridge,
        links: Links::WireLike,
        format: Format::Vxlan,
        ..options(name)
    }
}

fn configured(options: Options) -> Topology {
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

pub(crate) fn counters(bed: &Topology, place: Place) -> Counters {
    Counters::read(&bed.bpf_dir(place)).expect("counters")
}

/// Sends for a second and returns the received segments; an error if they are few.
fn send(bed: &Topology) -> Result<u64, String> {
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
    // QEMU emulates the CPUs of some kernels: they send a twentieth, and a tenth of that over emulated network devices
    // of a busy host.
    let least = if bed.options().links == Links::Nics {
        100
    } else {
        1_000
    };
    if segments > least {
        Ok(segments)
    } else {
        Err(format!("{report:?}"))
    }
}

/// Sends for a second and returns the received segments.
pub(crate) fn transfer(bed: &Topology) -> u64 {
    send(bed).expect("many segments")
}

/// GSO packets with an outcome.
fn gso(bed: &Topology, place: Place, outcome: Outcome) -> u64 {
    counters(bed, place).outcomes[outcome.name()].gso
}

/// Whether the program on the node clears the tunnel state of super-packets itself, as the agent's log has it. Its
/// tunnel device decapsulates nothing then.
pub(crate) fn clears_tunnel_state(bed: &mut Topology) -> bool {
    let log = bed.agent_log(NODE).expect("a log");
    let mut lines = log.lines().filter(|line| line.contains("programs loaded"));
    lines.any(|line| line.contains("clears_tunnel_state=true"))
}

/// Waits until the node delivers super-packets to a Pod on a bridge: those that its tunnel device decapsulates, or its
/// program where that clears the tunnel state.
pub(crate) fn wait_for_super_packets(bed: &mut Topology) {
    let outcome = if clears_tunnel_state(bed) {
        Outcome::Deliver
    } else {
        Outcome::KernelDecap
    };
    wait_for("super-packets decapsulated", TIMEOUT, || {
        let was = gso(bed, NODE, outcome);
        transfer(bed);
        let is = gso(bed, NODE, outcome);
        if is > was + 10 {
            Ok(())
        } else {
            Err(format!("{was} and {is} super-packets; {:?}", counters(bed, NODE)))
        }
    })
    .expect("super-packets");
}

/// State of a device, with its details; none if it does not exist.
fn device(bed: &Topology, place: Place, name: &str) -> Option<String> {
    bed.netns(place).run("ip", ["-d", "link", "show", name]).ok()
}

pub(crate) fn wait_for_open_device(bed: &Topology, place: Place) {
    wait_for("the tunnel device", TIMEOUT, || {
        match device(bed, place, "mc0t") {
            Some(text) if text.contains(",UP") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .expect("a device that is up");
}

/// `inspect` and the metrics of the node have this aggregation of tunnel packets.
pub(crate) fn assert_aggregation(bed: &Topology, active: bool, reason: &str) {
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
    let mut bed = configured(vxlan("td-firewall", true));
    if clears_tunnel_state(&mut bed) {
        skipped("no packet takes the way through the tunnel device on this kernel");
        return;
    }
    wait_for_super_packets(&mut bed);
    bed.netns(NODE)
        .nft(
            "table inet firewall {\n chain input {\n  type filter hook input priority 0\n  udp dport 4789 drop\n }\n}\n",
        )
        .expect("a firewall");
    wait_for("the way through the program", TIMEOUT, || {
        let was = gso(&bed, NODE, Outcome::KernelDecap);
        // The firewall drops packets until the next test of the device, and TCP backs off meanwhile.
        send(&bed)?;
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
    wait_for_super_packets(&mut bed);
}

#[test]
fn a_tunnel_device_that_is_removed_or_set_down_is_restored() {
    let mut bed = configured(vxlan("td-heal", true));
    for change in ["link del mc0t", "link set mc0t down"] {
        wait_for_open_device(&bed, NODE);
        bed.netns(NODE).ip(&[change]).expect(change);
        wait_for_open_device(&bed, NODE);
        wait_for_super_packets(&mut bed);
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
    wait_for_super_packets(&mut bed);
    bed.netns(NODE)
        .ip(&lines("cni.second", 4097))
        .expect("a second device");
    wait_for_super_packets(&mut bed);
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
