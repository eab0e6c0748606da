//! IPsec policies of a Node for its underlay. The programs send past them, so peers with one are refused.

use mc_gateway_common::verdict::DropReason;
use mc_tests::{
    capture::{Capture, Direction},
    counters::Counters,
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

use crate::{
    fixture::{TIMEOUT, connected, routes, wait_for_log},
    host_changes::wait_connectivity,
    observability::metrics,
};

const GATEWAY: Place = Place::GatewayEast;
/// Device towards the other gateway.
const BETWEEN: &str = "eth1";

/// `src … dst …` of packets from the gateway in east to the one in west.
fn eastern_selector() -> String {
    let [east, west] = Cluster::ALL.map(|cluster| cluster.gateway_net().addr());
    format!("src {east}/32 dst {west}/32")
}

fn xfrm(bed: &Topology, place: Place, lines: &[String]) {
    let lines: Vec<String> = lines.iter().map(|line| format!("xfrm policy {line}")).collect();
    bed.netns(place).ip(&lines).expect("xfrm policies");
}

/// Number of tunnel packets in clear text that the gateway in east sends to the one in west while the Pods ping.
fn clear_text_frames(bed: &Topology) -> Result<usize, String> {
    let gateway = bed.netns(GATEWAY);
    let file = bed.directory().join("ipsec.pcap");
    let capture = Capture::start(bed.traffic(), gateway, BETWEEN, Direction::Out, None, &file)
        .map_err(|error| format!("{error:#}"))?;
    let server = Cluster::West.pod_ip().to_string();
    let args = ["ping", &server, "--count", "3", "--timeout", "0.2"];
    // Without an answer if packets are dropped, as they should be.
    drop(bed.traffic().run(bed.netns(Place::PodEast), &args));
    let frames = capture.finish().map_err(|error| format!("{error:#}"))?;
    let west = Cluster::West.gateway_net().addr().octets();
    let is_tunnel = |frame: &&Vec<u8>| frame[12..14] == [8, 0] && frame[23] == 17 && frame[30..34] == west;
    Ok(frames.iter().filter(is_tunnel).count())
}

fn wait_for_no_clear_text(bed: &Topology) {
    wait_for("no packet in clear text", TIMEOUT, || {
        match clear_text_frames(bed)? {
            0 => Ok(()),
            count => Err(format!("{count} packets in clear text")),
        }
    })
    .expect("no clear text");
}

fn wait_for_drop(bed: &Topology, place: Place, reason: DropReason) {
    wait_for(&format!("a drop `{}`", reason.name()), TIMEOUT, || {
        let counters = Counters::read(&bed.bpf_dir(place)).map_err(|error| format!("{error:#}"))?;
        if counters.drops.contains_key(reason.name()) {
            Ok(())
        } else {
            Err(format!("{counters:?}"))
        }
    })
    .expect("a drop");
}

/// `bpf_redirect_neigh` skips the output policies of the kernel: probes were encrypted or blocked, and data left in
/// clear text.
#[test]
fn packets_do_not_bypass_an_ipsec_policy_in_clear_text() {
    let mut bed = connected("ipsec-out");
    assert!(
        clear_text_frames(&bed).expect("frames") > 0,
        "the capture detects packets"
    );
    let selector = eastern_selector();
    let west = Cluster::West.gateway_net().addr().to_string();
    // Policies for other packets have no effect.
    xfrm(
        &bed,
        GATEWAY,
        &[
            format!("add {selector} proto tcp dir out action block"),
            format!("add {selector} proto udp dport 6082 dir out action block"),
            format!("add {selector} dir out mark 7 mask 7 action block"),
            "add src 10.0.0.0/8 dst 10.0.0.0/8 dir out action block".to_owned(),
            format!("add {selector} dir out priority 7 tmpl proto esp mode transport"),
        ],
    );
    wait_for_no_clear_text(&bed);
    let line = wait_for_log(&mut bed, GATEWAY, &["field rejected", &west, "dir out"]);
    assert!(
        line.contains("ClusterInfoImport") && line.contains(&selector),
        "{line}"
    );
    assert!(line.contains("priority 7"), "{line}");
    wait_for_drop(&bed, GATEWAY, DropReason::NoNextHop);
    assert!(routes(&bed, GATEWAY).contains(&Cluster::West.pod_cidr().to_string()));
    let rejected = metrics(&bed, GATEWAY).sum("mcgateway_invalid_fields", &["ClusterInfoImport"]);
    assert!((0.5..1.5).contains(&rejected), "{rejected} rejected fields");

    // An exemption of higher priority permits clear text.
    let exemption = format!("{selector} proto udp dport 6081 dir out");
    xfrm(
        &bed,
        GATEWAY,
        &[format!("add {exemption} priority 1 action allow")],
    );
    wait_connectivity(&bed);
    xfrm(&bed, GATEWAY, &[format!("delete {exemption}")]);
    wait_for_no_clear_text(&bed);

    xfrm(&bed, GATEWAY, &[format!("delete {selector} dir out")]);
    wait_connectivity(&bed);
    let log = bed.agent_log(GATEWAY).expect("a log");
    assert!(log.contains("field no longer rejected"), "{log}");
}

/// The programs take packets before the input policies of the kernel, so a peer could send in clear text.
#[test]
fn packets_of_a_peer_with_an_ipsec_policy_are_not_accepted_in_clear_text() {
    let mut bed = connected("ipsec-in");
    let selector = eastern_selector();
    let place = Place::GatewayWest;
    xfrm(
        &bed,
        place,
        &[format!("add {selector} dir in tmpl proto esp mode transport")],
    );
    let east = Cluster::East.gateway_net().addr().to_string();
    let line = wait_for_log(&mut bed, place, &["field rejected", &east, "dir in"]);
    assert!(line.contains(&selector), "{line}");
    assert!(clear_text_frames(&bed).expect("frames") > 0, "east has no policy");
    wait_for_drop(&bed, place, DropReason::UnknownPeer);
    xfrm(&bed, place, &[format!("delete {selector} dir in")]);
    wait_connectivity(&bed);
}

/// `ip xfrm policy setdefault`: what no policy allows is blocked.
#[test]
fn a_default_policy_that_blocks_refuses_every_peer() {
    let mut bed = connected("ipsec-def");
    xfrm(&bed, GATEWAY, &["setdefault out block".to_owned()]);
    wait_for_no_clear_text(&bed);
    wait_for_log(&mut bed, GATEWAY, &["field rejected", "default dir out block"]);
    xfrm(&bed, GATEWAY, &["setdefault out accept".to_owned()]);
    wait_connectivity(&bed);
}
