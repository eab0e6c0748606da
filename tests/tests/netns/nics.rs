//! Aggregation and transit by XDP on network devices with a driver other than veth.
//!
//! The tests need the pairs of devices that `MC_NIC_PAIRS` names. `cargo xtask matrix` runs them on virtio-net devices.

use mc_tests::topology::{Family, Format, Inner, Links, Options, Topology};

use crate::{
    aggregation::{check_bridge, check_routed},
    families::assert_connectivity,
    fixture::options,
    transit_xdp::{check, create, wait_until_attached, wait_until_left_to_tc},
    tunnel_device::transfer,
};

/// Pods on a bridge or routed, and an IPv4 underlay of network devices.
fn nics(name: &str, format: Format, bridge: bool) -> Options {
    Options {
        bridge,
        links: Links::Nics,
        format,
        ..options(name)
    }
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn geneve_packets_to_pods_on_a_bridge_are_aggregated() {
    check_bridge(nics("nic-bridge-g", Format::Geneve, true));
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn geneve_packets_to_routed_pods_are_aggregated() {
    check_routed(nics("nic-routed-g", Format::Geneve, false));
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn vxlan_packets_to_pods_on_a_bridge_are_aggregated() {
    check_bridge(nics("nic-bridge-v", Format::Vxlan, true));
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn vxlan_packets_to_routed_pods_are_aggregated() {
    check_routed(nics("nic-routed-v", Format::Vxlan, false));
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn xdp_forwards_geneve_of_both_families() {
    let mut options = nics("nic-xdp-g", Format::Geneve, false);
    options.inner = Inner::Dual;
    let bed = check(options, Family::V4);
    assert_connectivity(&bed, Family::V6);
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn xdp_forwards_vxlan_over_ipv6() {
    let mut options = nics("nic-xdp-v", Format::Vxlan, false);
    options.outer = Family::V6;
    check(options, Family::V4);
}

/// A gateway whose agent chooses where the program runs, with further flags.
fn automatic(mut options: Options, flags: &[&str]) -> Topology {
    let flags = ["--xdp-transit", "auto"].iter().chain(flags);
    options.agent_flags.extend(flags.map(|flag| (*flag).to_owned()));
    create(options)
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn xdp_runs_by_itself_where_packets_are_not_aggregated() {
    let bed = automatic(
        nics("nic-xdp-auto", Format::Geneve, false),
        &["--tunnel-device", "never"],
    );
    wait_until_attached(&bed);
    assert_connectivity(&bed, Family::V4);
}

#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn xdp_does_not_run_by_itself_where_packets_are_aggregated() {
    let mut bed = automatic(nics("nic-xdp-agg", Format::Geneve, false), &[]);
    wait_until_left_to_tc(&mut bed, &["tc: the kernel joins its packets"]);
}

/// virtio-net takes programs for frames of a page at most.
#[test]
#[ignore = "needs pairs of network devices (MC_NIC_PAIRS)"]
fn xdp_does_not_run_in_a_driver_that_rejects_it() {
    let mut options = nics("nic-xdp-mtu", Format::Geneve, false).with_xdp();
    options.mtu = 9_000;
    let mut bed = create(options);
    wait_until_left_to_tc(&mut bed, &["tc: ", "attach"]);
    transfer(&bed);
    assert_connectivity(&bed, Family::V4);
}
