//! The XDP program on the underlay devices of a gateway: traffic, restarts, changes by others, and its removal.

use std::{fs, path::PathBuf};

use aya::{
    Ebpf,
    programs::{ProgramInfo, Xdp, XdpMode},
    sys::{Stats, enable_stats},
};
use mc_gateway_common::{
    abi::{PROGRAM_FROM_UNDERLAY, transit::PROGRAM_TRANSIT},
    verdict::Outcome,
};
use mc_tests::{
    topology::{Family, Format, Options, Topology, Variant},
    wait::wait_for,
};
use nix::sys::signal::Signal;

use crate::{
    families::assert_connectivity,
    fixture::{TIMEOUT, ebpf_object, options, shown_device, wait_for_log},
    host_changes::wait_connectivity,
    observability::{inspect, metrics, row},
    tunnel_device::{GATEWAY, NODE, counters, transfer},
};

/// Underlay devices of the gateway.
const DEVICES: [&str; 2] = ["eth0", "eth1"];

pub(crate) fn create(options: Options) -> Topology {
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// Path of the pin of a device's link.
fn link_pin(bed: &Topology, device: &str) -> PathBuf {
    bed.bpf_dir(GATEWAY).join("xdp").join(device)
}

/// The pinned program's kernel ID, and its runs since statistics are enabled.
fn program(bed: &Topology, name: &str) -> (u32, u64) {
    let pin = bed.bpf_dir(GATEWAY).join("programs").join(name);
    let info = ProgramInfo::from_pin(&pin).expect("a pinned program");
    (info.id(), info.run_count())
}

/// ID of the XDP program that a device of the gateway runs.
fn attached(bed: &Topology, device: &str) -> Option<u64> {
    shown_device(bed, GATEWAY, device)
        .pointer("/xdp/prog/id")?
        .as_u64()
}

/// Waits until the gateway's log has a reason, by all these words, for each device that it leaves to TC.
pub(crate) fn wait_until_left_to_tc(bed: &mut Topology, words: &[&str]) {
    for device in DEVICES {
        wait_for_log(bed, GATEWAY, &[&["transit", device], words].concat());
        assert_eq!(attached(bed, device), None);
    }
}

/// Waits until the devices of the gateway run the pinned program.
pub(crate) fn wait_until_attached(bed: &Topology) {
    wait_for("the XDP program on both devices", TIMEOUT, || {
        let (id, _) = program(bed, PROGRAM_TRANSIT);
        let found = DEVICES.map(|device| attached(bed, device));
        if found == [Some(u64::from(id)); 2] {
            Ok(())
        } else {
            Err(format!("{found:?}, pinned {id}"))
        }
    })
    .expect("attached");
}

/// Waits until the gateway's programs write the link addresses of all next hops, or of none.
fn wait_for_links(bed: &Topology, written: bool) {
    wait_for("link addresses of next hops", TIMEOUT, || {
        let next_hops = inspect(bed, GATEWAY, "nexthops");
        let rows = next_hops.as_array().map_or(&[][..], Vec::as_slice);
        if !rows.is_empty() && rows.iter().all(|row| row["mac"].is_string() == written) {
            Ok(())
        } else {
            Err(next_hops.to_string())
        }
    })
    .expect("link addresses");
}

/// Packets of a bulk transfer through the gateway.
struct Transfer {
    /// Segments that the receiver's kernel counts.
    segments: u64,
    /// Packets that the gateway counts.
    transit: u64,
    /// Runs of its classifier.
    by_classifier: u64,
}

/// Sends a bulk transfer through the gateway.
fn send(bed: &Topology) -> Transfer {
    let _statistics = enable_stats(Stats::RunTime).expect("statistics");
    let read = || {
        let transit = counters(bed, GATEWAY).outcomes[Outcome::Transit.name()].packets;
        (transit, program(bed, PROGRAM_FROM_UNDERLAY).1)
    };
    let before = read();
    let segments = transfer(bed);
    let after = read();
    Transfer {
        segments,
        transit: after.0 - before.0,
        by_classifier: after.1 - before.1,
    }
}

/// Waits until the XDP program forwards nearly all packets of a transfer: an attached program is a change of the
/// device, after which the classifier forwards until the next reconcile.
fn wait_until_forwarded(bed: &Topology) {
    wait_connectivity(bed);
    wait_for_links(bed, true);
    wait_for("a transfer by the XDP program", TIMEOUT, || {
        let Transfer {
            segments,
            transit,
            by_classifier,
        } = send(bed);
        assert!(
            transit >= segments,
            "{transit} packets counted, {segments} segments"
        );
        if by_classifier < segments / 10 {
            Ok(())
        } else {
            Err(format!(
                "the classifier ran {by_classifier} times for {segments} segments"
            ))
        }
    })
    .expect("forwarded");
}

/// A gateway with the XDP program on both devices.
pub(crate) fn check(options: Options, family: Family) -> Topology {
    let bed = create(options.with_xdp());
    wait_until_attached(&bed);
    let underlay = inspect(&bed, GATEWAY, "underlay");
    for device in DEVICES {
        assert_eq!(row(&underlay, "device", device)["transit"], "xdp");
        let xdp = metrics(&bed, GATEWAY).sum("mcgateway_underlay_xdp", &[device]);
        assert!((xdp - 1.0).abs() < f64::EPSILON, "{xdp} on {device}");
    }
    wait_until_forwarded(&bed);
    assert_connectivity(&bed, family);
    bed
}

#[test]
fn xdp_forwards_geneve_across_restarts_and_repairs_until_cleanup() {
    let mut bed = check(options("xdp-g"), Family::V4);
    // Once the link addresses have ended with the agent, the classifier forwards. The next agent replaces the program.
    let (old, _) = program(&bed, PROGRAM_TRANSIT);
    bed.signal_agent(GATEWAY, Signal::SIGKILL).expect("SIGKILL");
    assert_connectivity(&bed, Family::V4);
    wait_for_links(&bed, false);
    let Transfer {
        transit,
        by_classifier,
        ..
    } = send(&bed);
    assert!(
        transit > 0 && by_classifier >= transit,
        "the classifier ran {by_classifier} times for {transit} packets"
    );
    bed.stop_agent(GATEWAY).ok();
    bed.start_agent(GATEWAY).expect("an agent");
    wait_until_attached(&bed);
    assert_ne!(program(&bed, PROGRAM_TRANSIT).0, old, "the same program");
    wait_until_forwarded(&bed);
    // A removed pin detaches the program.
    fs::remove_file(link_pin(&bed, "eth0")).expect("a pin");
    wait_until_attached(&bed);
    assert!(link_pin(&bed, "eth0").exists());
    wait_until_forwarded(&bed);
    bed.stop_agent(GATEWAY).expect("SIGTERM");
    bed.cleanup_agent(GATEWAY).expect("cleanup");
    assert_eq!(DEVICES.map(|device| attached(&bed, device)), [None; 2]);
    assert!(!bed.bpf_dir(GATEWAY).exists(), "pins left");
}

#[test]
fn xdp_forwards_vxlan_over_ipv6() {
    let options = Options {
        outer: Family::V6,
        format: Format::Vxlan,
        ..options("xdp-x6")
    };
    check(options, Family::V4);
}

#[test]
fn no_end_of_a_veth_pair_has_the_xdp_program_by_itself() {
    let mut options = options("xdp-auto");
    options
        .agent_flags
        .extend(["--xdp-transit", "auto"].map(str::to_owned));
    let mut bed = create(options);
    wait_until_left_to_tc(&mut bed, &["tc: end of a veth pair"]);
    let underlay = inspect(&bed, GATEWAY, "underlay");
    assert_eq!(row(&underlay, "device", "eth0")["transit"], "tc");
}

#[test]
fn a_node_that_is_no_gateway_has_no_xdp_program() {
    let bed = create(options("xdp-node").with_xdp());
    wait_until_attached(&bed);
    let underlay = inspect(&bed, NODE, "underlay");
    assert_eq!(row(&underlay, "device", "eth0")["transit"], "tc");
}

/// Another program's XDP program stays, and the classifier forwards.
#[test]
fn a_device_with_the_xdp_program_of_another_keeps_it() {
    let options = options("xdp-other").with_xdp();
    let mut bed = Topology::create(options).expect("the namespaces");
    // Without a configuration it passes all packets.
    let mut other = Ebpf::load_file(ebpf_object()).expect("an object");
    let program: &mut Xdp = other
        .program_mut(PROGRAM_TRANSIT)
        .expect("a program")
        .try_into()
        .expect("XDP");
    program.load().expect("load");
    let attach = || Ok(program.attach("eth0", XdpMode::Driver)?);
    bed.netns(GATEWAY).enter(attach).expect("attach");
    let before = attached(&bed, "eth0");
    assert!(before.is_some());
    bed.configure(Variant::McGateway).expect("the agents");
    wait_for_log(&mut bed, GATEWAY, &["transit", "eth0", "tc: ", "busy"]);
    assert_eq!(attached(&bed, "eth0"), before);
    assert_connectivity(&bed, Family::V4);
}

#[test]
fn a_device_that_removes_vlan_tags_has_no_xdp_program() {
    let mut bed = create(options("xdp-vlan").with_xdp());
    wait_until_attached(&bed);
    let set = |bed: &Topology, state: &str| {
        bed.netns(GATEWAY)
            .run("ethtool", ["-K", "eth0", "rxvlan", state])
            .expect("ethtool")
    };
    set(&bed, "on");
    wait_for_log(
        &mut bed,
        GATEWAY,
        &["transit", "eth0", "the driver removes VLAN tags"],
    );
    assert_eq!(attached(&bed, "eth0"), None);
    set(&bed, "off");
    wait_until_attached(&bed);
}
