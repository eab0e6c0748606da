//! Underlays other than plain Ethernet: VLANs, devices without an Ethernet header.

use mc_gateway_common::verdict::{DropReason, Outcome};
use mc_test_kit::datapath::packets::{Ip, Tunnel, tcp_syn};
use mc_tests::{
    counters::Counters,
    injection::{inject, mac_address},
    skip::skipped,
    topology::{Cluster, Family, Place, Topology, Variant},
    wait::wait_for,
};

use crate::{
    families::assert_connectivity,
    fixture::{TIMEOUT, connected, options, routes, wait_for_log},
    host_changes::{wait_attached, wait_connectivity},
    observability::metrics,
};

const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;

/// A frame from east's node to its gateway with a packet between the Pods, as the node's agent sends it.
fn frame_to_gateway(bed: &Topology, ttl: u8, udp_checksum: bool) -> Vec<u8> {
    let mut reset = tcp_syn(40_000, 9);
    // RST only: no host answers it.
    reset[13] = 0x04;
    let inner = Ip::new(Cluster::East.pod_ip(), Cluster::West.pod_ip(), 6, reset);
    let mut tunnel = Tunnel::new(
        Cluster::East.node_net().addr(),
        Cluster::East.internal_net().addr(),
        &inner,
    );
    tunnel.ttl = ttl;
    tunnel.udp_checksum = udp_checksum;
    tunnel.inner_src = bed.source_mac(NODE, GATEWAY).bytes();
    let mut frame = tunnel.frame();
    let to = mac_address(bed.netns(GATEWAY), "eth0").expect("a MAC address");
    let from = mac_address(bed.netns(NODE), "eth0").expect("a MAC address");
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame
}

/// The frame with an IEEE 802.1Q tag.
fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let [high, low] = tci.to_be_bytes();
    let (addresses, rest) = frame.split_at(12);
    [addresses, &[0x81, 0x00, high, low], rest].concat()
}

/// Waits until the gateway has dropped a packet for `reason`.
fn wait_for_drop(bed: &Topology, reason: DropReason) -> Counters {
    wait_for(&format!("a drop `{}`", reason.name()), TIMEOUT, || {
        let counters = Counters::read(&bed.bpf_dir(GATEWAY)).map_err(|error| format!("{error:#}"))?;
        if counters.drops.contains_key(reason.name()) {
            Ok(counters)
        } else {
            Err(format!("{counters:?}"))
        }
    })
    .expect("a drop")
}

/// The kernel shows a frame of VLAN 100 to the program on the underlying device with the tag beside the packet. It was
/// decapsulated there, and the kernel dropped it on `mc0` for its tag.
#[test]
fn a_frame_of_a_vlan_is_left_to_the_vlan_device() {
    let bed = connected("vlan-tag");
    let before = Counters::read(&bed.bpf_dir(GATEWAY)).expect("counters");
    let was = before.packets(Outcome::Transit);
    let frame = frame_to_gateway(&bed, 64, false);
    let of_vlan = vec![tagged(&frame, 100); 10];
    // Priority 5 without a VLAN: the frame belongs to the device itself (IEEE 802.1Q, VLAN ID 0).
    let of_device = [vec![frame.clone(); 5], vec![tagged(&frame, 5 << 13); 5]].concat();
    // The device keeps the order, so this drop follows every other packet.
    let last = vec![frame_to_gateway(&bed, 1, false)];
    inject(bed.netns(NODE), "eth0", &[of_vlan, of_device, last].concat()).expect("frames");
    let after = wait_for_drop(&bed, DropReason::TtlExceeded);
    assert_eq!(
        after.packets(Outcome::Transit) - was,
        10,
        "of 10 frames of the VLAN and 10 others"
    );
    assert_eq!(after.drops.len(), 1, "{:?}", after.drops);
}

/// Both directions cross VLAN 100 between the gateways: it is the device of the next hop and of the peer.
#[test]
fn vlan_devices_between_the_gateways_carry_traffic() {
    let mut bed = Topology::create(options("vlan")).expect("the namespaces");
    for place in [GATEWAY, Place::GatewayWest] {
        let netns = bed.netns(place);
        if let Err(error) = netns.ip(&["link add link eth1 name eth1.100 type vlan id 100"]) {
            let error = format!("{error:#}");
            assert!(error.contains("Unknown device type"), "{error}");
            skipped("the kernel has no VLAN devices (CONFIG_VLAN_8021Q)");
            return;
        }
        let address = place.cluster().gateway_net();
        netns
            .ip(&[
                format!("addr del {address} dev eth1"),
                format!("addr add {address} dev eth1.100"),
                "link set eth1.100 up".to_owned(),
            ])
            .expect("a VLAN device");
    }
    bed.configure(Variant::McGateway).expect("the agents");
    let shown = bed.run_agent(GATEWAY, &["inspect", "config"]).expect("inspect");
    let shown = String::from_utf8_lossy(&shown.stdout);
    let attached = |device: &str| {
        let program = format!("from_underlay on {device}");
        shown.split(&program).skip(1).any(|rest| !rest.starts_with('.'))
    };
    assert!(attached("eth1.100") && !attached("eth1"), "{shown}");
    assert_connectivity(&bed, Family::V4);
}

/// The programs' offsets assume an Ethernet header. The agent attached to a device without one and sent through it.
#[test]
fn a_device_without_an_ethernet_header_is_no_underlay() {
    let mut bed = connected("tun");
    let other = Cluster::West.gateway_net().addr();
    let source = Cluster::East.gateway_net().addr();
    bed.netns(GATEWAY)
        .ip(&[
            "tuntap add tun0 mode tun".to_owned(),
            "link set tun0 up".to_owned(),
            format!("route add {other}/32 dev tun0 src {source}"),
        ])
        .expect("a tun device");
    let line = wait_for_log(&mut bed, GATEWAY, &["field rejected", "tun0", &other.to_string()]);
    assert!(
        line.contains("(tun)") && line.contains("no Ethernet header"),
        "{line}"
    );
    assert!(line.contains("ClusterInfoImport"), "{line}");
    wait_attached(&bed, GATEWAY, &["eth0", "eth1"]);
    let rejected = metrics(&bed, GATEWAY).sum("mcgateway_invalid_fields", &["ClusterInfoImport"]);
    assert!((0.5..1.5).contains(&rejected), "{rejected} rejected fields");
    assert!(routes(&bed, GATEWAY).contains(&Cluster::West.pod_cidr().to_string()));
    let ping = bed
        .traffic()
        .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 1);
    assert!(!ping.is_ok_and(|ping| ping.received > 0), "a reply through tun0");
    wait_for_drop(&bed, DropReason::NoNextHop);
    bed.netns(GATEWAY).ip(&["link del tun0"]).expect("delete");
    wait_connectivity(&bed);
}

/// UDP GRO joins tunnel packets with a checksum into one, whose inner length names the first one's packet only. The
/// gateway forwarded all of them after a check of the first, and a Node lost all but the first uncounted.
#[test]
fn aggregated_tunnel_packets_are_dropped_and_counted() {
    let mut bed = Topology::create(options("udp-gro")).expect("the namespaces");
    let set = |bed: &Topology, place, settings: &[&str]| {
        let args = [&["-K", "eth0"], settings].concat();
        bed.netns(place).run("ethtool", args).expect("ethtool");
    };
    set(&bed, GATEWAY, &["gro", "on", "rx-udp-gro-forwarding", "on"]);
    // A veth device aggregates packets of a peer without TSO only (`veth_skb_is_eligible_for_gro`).
    set(&bed, NODE, &["tso", "off"]);
    // The device waits for more packets; without, it flushes after each one that a quiet host sends.
    let name = bed.netns(GATEWAY).name().to_owned();
    let wait = "echo 2000000 > /sys/class/net/eth0/gro_flush_timeout";
    bed.netns(GATEWAY)
        .run("ip", ["netns", "exec", &name, "sh", "-ec", wait])
        .expect("a flush timeout");
    bed.configure(Variant::McGateway).expect("the agents");
    // Sent by a packet socket: between veth devices the kernel leaves packets alone that the programs have encapsulated
    // (`skb->encapsulation`).
    let frames = vec![frame_to_gateway(&bed, 64, true); 64];
    wait_for("a drop of aggregated packets", TIMEOUT, || {
        inject(bed.netns(NODE), "eth0", &frames).map_err(|error| format!("{error:#}"))?;
        let counters = Counters::read(&bed.bpf_dir(GATEWAY)).map_err(|error| format!("{error:#}"))?;
        if counters.drops.contains_key("aggregated") {
            Ok(())
        } else {
            Err(format!("{counters:?}"))
        }
    })
    .expect("a drop");
    // The advice of the drop reason.
    set(
        &bed,
        GATEWAY,
        &["rx-udp-gro-forwarding", "off", "rx-gro-list", "off"],
    );
    assert_connectivity(&bed, Family::V4);
}
