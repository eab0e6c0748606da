//! Aggregation of tunnel packets on a wire-like underlay, with Geneve and with VXLAN, by the programs' counters.
//!
//! `cargo xtask matrix` runs these tests on kernels that have Geneve devices.

use std::time::Duration;

use mc_gateway_common::{abi::Counter, verdict::Outcome};
use mc_tests::{
    counters::Counters,
    skip::skipped,
    topology::{Family, Format, Links, Options, Place, Topology, Variant},
    wait::wait_for,
};

use crate::{
    families::assert_connectivity,
    fixture::{TIMEOUT, options, shown_device, wait_for_log},
    tunnel_device::{
        GATEWAY, NODE, assert_aggregation, clears_tunnel_state, counters, transfer, wait_for_open_device,
        wait_for_super_packets,
    },
};

/// Fewer packets than this part of the segments prove aggregation: acknowledgements count as well.
const AGGREGATED: u64 = 3;

/// Bytes that a packet loses between the counters: outer headers, and inner ones if the kernel joins it to another.
const HEADERS: u64 = 70 + 14 + 20 + 60;

/// A wire-like IPv4 underlay; Pods on a bridge or routed.
fn wire_like(name: &str, format: Format, bridge: bool) -> Options {
    Options {
        bridge,
        links: Links::WireLike,
        format,
        ..options(name)
    }
}

/// The namespaces. None, and the test is skipped, if the kernel lacks the devices of the format.
fn create(options: Options) -> Option<Topology> {
    let kind = kind(options.format);
    let bed = Topology::create(options).expect("the namespaces");
    let node = bed.netns(NODE);
    if let Err(error) = node.ip(&[format!("link add try0 type {kind} external dstport 9999")]) {
        let error = format!("{error:#}");
        assert!(error.contains("Unknown device type"), "{error}");
        skipped(format!("the kernel has no {kind} devices"));
        return None;
    }
    node.ip(&["link del try0"]).expect("delete");
    Some(bed)
}

/// The kind of the tunnel devices of a format.
fn kind(format: Format) -> &'static str {
    match format {
        Format::Geneve => "geneve",
        Format::Vxlan => "vxlan",
    }
}

/// Counts of a transfer from east to west.
#[derive(Debug)]
struct Transfer {
    /// TCP segments of the MTU's size, at least.
    segments: u64,
    /// Forwarded by the gateway of west, with the acknowledgements.
    transit: Counter,
    /// Left to the kernel by the node of west.
    kernel_decap: Counter,
    /// Delivered by the node of west.
    deliver: Counter,
    /// Packets that the device of the western Pod receives.
    received: u64,
}

impl Transfer {
    /// Whether the Pod receives the packets that its node delivers, rather than their segments.
    fn arrives_as_delivered(&self) -> bool {
        // Few other packets reach the Pod, such as ARP.
        self.received < self.deliver.packets + self.segments / 10
    }
}

/// The counters once they stand still: the last packets of a transfer are on their way when it ends.
fn settled(read: impl Fn() -> [Counters; 2]) -> [Counters; 2] {
    let mut last = read();
    let still = wait_for("counters that stand still", TIMEOUT, || {
        let current = read();
        let outcomes = |counters: &[Counters; 2]| {
            let of = |counters: &Counters| {
                [Outcome::KernelDecap, Outcome::Deliver].map(|outcome| counters.outcomes[outcome.name()])
            };
            counters.each_ref().map(of)
        };
        if outcomes(&last) == outcomes(&current) {
            return Ok(current);
        }
        last = current;
        Err(format!("{last:?}"))
    });
    still.expect("the end of the transfer")
}

fn count_transfer(bed: &Topology) -> Transfer {
    let read = || [GATEWAY, NODE].map(|place| counters(bed, place));
    let (before, received) = (read(), received_packets(bed));
    let segments = transfer(bed);
    let after = settled(read);
    let received = received_packets(bed) - received;
    let rose = |place: usize, outcome: Outcome| {
        let [was, is] = [&before[place], &after[place]].map(|counters| counters.outcomes[outcome.name()]);
        Counter {
            packets: is.packets - was.packets,
            bytes: is.bytes - was.bytes,
            gso: is.gso - was.gso,
        }
    };
    let counted = Transfer {
        segments,
        transit: rose(0, Outcome::Transit),
        kernel_decap: rose(1, Outcome::KernelDecap),
        deliver: rose(1, Outcome::Deliver),
        received,
    };
    println!("aggregation: {}: {counted:?}", bed.options().prefix);
    // Probes that arrive while a node starts are dropped before.
    let drops = |counters: &[Counters; 2]| counters.clone().map(|counters| counters.drops);
    assert_eq!(drops(&before), drops(&after));
    counted
}

/// Whether the packets with an outcome are fewer than the segments, and are super-packets. How many frames of a network
/// device the kernel joins depends on its interrupts, so single packets may be up to half of the segments there.
fn is_aggregated(bed: &Topology, counter: Counter, segments: u64) -> bool {
    let few = match bed.options().links {
        Links::Nics => counter.packets - counter.gso < segments / 2,
        Links::Veth | Links::WireLike | Links::WireLikeForXdp => counter.packets < segments / AGGREGATED,
    };
    few && counter.gso > 0
}

/// Counts of a transfer that is aggregated at the gateway and at the node. On network devices the first transfers may
/// not be: a busy host delays the interrupts that QEMU emulates.
fn aggregated_transfer(bed: &Topology) -> Transfer {
    let deadline = match bed.options().links {
        Links::Nics => TIMEOUT * 3,
        Links::Veth | Links::WireLike | Links::WireLikeForXdp => Duration::ZERO,
    };
    wait_for("a transfer in super-packets", deadline, || {
        let counted = count_transfer(bed);
        let places = [counted.transit, counted.deliver];
        if places.map(|place| is_aggregated(bed, place, counted.segments)) == [true; 2] {
            Ok(counted)
        } else {
            Err(format!("{counted:?}"))
        }
    })
    .expect("aggregation")
}

/// The gateway forwards super-packets, and a Pod on a bridge receives them: its node leaves them to the tunnel device,
/// or clears their tunnel state, without which the bridge would segment them.
pub(crate) fn check_bridge(options: Options) {
    let Some(mut bed) = create(options) else {
        return;
    };
    configure(&mut bed);
    wait_for_super_packets(&mut bed);
    let counted = aggregated_transfer(&bed);
    assert!(counted.arrives_as_delivered(), "{counted:?}");
    let Transfer {
        kernel_decap,
        deliver,
        ..
    } = counted;
    if clears_tunnel_state(&mut bed) {
        assert_eq!(kernel_decap.packets, 0, "{counted:?}");
    } else {
        assert!(
            kernel_decap.packets > 0 && kernel_decap.packets == kernel_decap.gso,
            "super-packets only: {counted:?}"
        );
        // The kernel joins some of them again on the tunnel device (GRO of super-packets, Linux 5.18).
        assert!(deliver.gso > 0, "none is returned by the kernel: {counted:?}");
        let headers = kernel_decap.packets * HEADERS;
        assert!(
            deliver.bytes + headers >= kernel_decap.bytes,
            "not all are returned by the kernel: {counted:?}"
        );
    }
    assert_connectivity(&bed, Family::V4);
}

/// Packets that the device of the western Pod has received.
fn received_packets(bed: &Topology) -> u64 {
    let shown = shown_device(bed, Place::PodWest, "eth0");
    let packets = shown.pointer("/stats64/rx/packets");
    packets.and_then(serde_json::Value::as_u64).expect("packets")
}

#[test]
fn geneve_packets_of_pods_on_a_bridge_arrive_as_super_packets() {
    check_bridge(wire_like("ag-bridge-g", Format::Geneve, true));
}

#[test]
fn geneve_packets_of_pods_on_a_bridge_over_ipv6_arrive_as_super_packets() {
    check_bridge(Options {
        outer: Family::V6,
        ..wire_like("ag-bridge-g6", Format::Geneve, true)
    });
}

#[test]
fn vxlan_packets_of_pods_on_a_bridge_arrive_as_super_packets() {
    check_bridge(wire_like("ag-bridge-v", Format::Vxlan, true));
}

/// The gateway and the node of routed Pods process super-packets; the short way is faster for these Pods, and the
/// device serves aggregation only.
pub(crate) fn check_routed(options: Options) {
    let Some(mut bed) = create(options) else {
        return;
    };
    configure(&mut bed);
    let counted = aggregated_transfer(&bed);
    assert_eq!(counted.kernel_decap.packets, 0, "{counted:?}");
}

#[test]
fn geneve_packets_of_routed_pods_are_aggregated_and_decapsulated_by_the_program() {
    check_routed(wire_like("ag-routed-g", Format::Geneve, false));
}

#[test]
fn vxlan_packets_of_routed_pods_are_aggregated_and_decapsulated_by_the_program() {
    check_routed(wire_like("ag-routed-v", Format::Vxlan, false));
}

/// Without a tunnel device each segment is a packet.
fn check_never(name: &str, format: Format) {
    let mut options = wire_like(name, format, true);
    let never = ["--tunnel-device", "never"].map(str::to_owned);
    options.agent_flags.extend(never);
    let Some(mut bed) = create(options) else {
        return;
    };
    bed.configure(Variant::McGateway).expect("the agents");
    let counted = count_transfer(&bed);
    for (what, counter) in [
        ("at the gateway", counted.transit),
        ("at the node", counted.deliver),
    ] {
        assert!(
            counter.gso == 0 && counter.packets >= counted.segments,
            "{what}: {counted:?}"
        );
    }
    assert_eq!(counted.kernel_decap.packets, 0, "{counted:?}");
}

#[test]
fn geneve_packets_are_not_aggregated_without_a_tunnel_device() {
    check_never("ag-never-g", Format::Geneve);
}

#[test]
fn vxlan_packets_are_not_aggregated_without_a_tunnel_device() {
    check_never("ag-never-v", Format::Vxlan);
}

/// As the device of a CNI with Open vSwitch or Cilium: it takes all packets of the port. Its socket aggregates, and
/// the program decapsulates.
fn check_external(name: &str, format: Format, port: u16, refusal: &str) {
    let Some(mut bed) = create(wire_like(name, format, true)) else {
        return;
    };
    let kind = kind(format);
    bed.netns(NODE)
        .ip(&[
            format!("link add cni0ext type {kind} external dstport {port}"),
            "link set cni0ext up".to_owned(),
        ])
        .expect("a device");
    bed.configure(Variant::McGateway).expect("the agents");
    let line = wait_for_log(&mut bed, NODE, &["field rejected", "tunnel device", "mc0t"]);
    assert!(line.contains(refusal), "{line}");
    let shown = bed.netns(NODE).run("ip", ["link", "show", "cni0ext"]);
    assert!(shown.as_ref().is_ok_and(|text| text.contains(",UP")), "{shown:?}");
    let counted = aggregated_transfer(&bed);
    assert_eq!(counted.kernel_decap.packets, 0, "{counted:?}");
    // The bridge segments packets that keep their tunnel state.
    assert_eq!(
        counted.arrives_as_delivered(),
        clears_tunnel_state(&mut bed),
        "{counted:?}"
    );
    assert_aggregation(&bed, true, "yes: socket of cni0ext");
    assert_connectivity(&bed, Family::V4);
    bed.netns(NODE).ip(&["link del cni0ext"]).expect("delete");
    wait_for_open_device(&bed, NODE);
    wait_for_super_packets(&mut bed);
}

#[test]
fn a_geneve_device_in_external_mode_keeps_its_port() {
    check_external("ag-ext-g", Format::Geneve, 6081, "Device or resource busy");
}

#[test]
fn a_vxlan_device_in_external_mode_keeps_its_port() {
    check_external("ag-ext-v", Format::Vxlan, 4789, "Address already in use");
}

/// Starts the agents and waits for the tunnel devices of all nodes.
fn configure(bed: &mut Topology) {
    bed.configure(Variant::McGateway).expect("the agents");
    for place in bed.nodes() {
        wait_for_open_device(bed, place);
    }
}
