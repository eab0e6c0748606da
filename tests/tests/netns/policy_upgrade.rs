//! Verdicts while agents migrate to another map layout.

use std::time::Duration;

use mc_gateway_common::abi;
use mc_tests::{
    fixture::{is_long_run, map_dirs},
    later_layout::make_later_layout,
    process::Process,
    topology::{Cluster, Place, Topology},
};

use crate::{
    pod_policies::{Bed, start},
    policies::{CLIENTS_ONLY, PORT, wait_enforced, wait_passing, write_policy},
    policy_churn::{ClosedPort, NODE, dropped_by_policies},
};

/// Seconds of each half of the test, and the datagrams that rules must have dropped in the second one.
fn extent() -> (u64, u64) {
    if is_long_run() {
        (130, 1_000_000)
    } else {
        (5, 10_000)
    }
}

/// Migrates the Node's maps for as long as `traffic` runs; returns the number of migrations and of packets that
/// policies have dropped between them.
fn migrate_during(bed: &mut Topology, traffic: &mut Process) -> (u32, u64) {
    let (mut migrations, mut dropped) = (0, 0);
    let mut before = dropped_by_policies(bed);
    while traffic.is_running() {
        dropped += dropped_by_policies(bed) - before;
        if migrations % 2 == 0 {
            bed.stop_agent(NODE).expect("SIGTERM");
        } else {
            bed.kill_agent(NODE).expect("SIGKILL");
        }
        make_later_layout(&bed.bpf_dir(NODE)).expect("a later layout");
        bed.start_agent(NODE).expect("an agent");
        assert_eq!(map_dirs(bed, NODE), [abi::MAPS_DIR]);
        // The counters of the new maps.
        before = 0;
        migrations += 1;
    }
    (migrations, dropped + dropped_by_policies(bed) - before)
}

fn check(name: &str, bridge: bool) {
    let Bed {
        hosts: bed, local, ..
    } = &mut start(name, bridge);
    let (seconds, least) = extent();
    let to = Cluster::West.pod_ip();
    write_policy(bed, Cluster::West, CLIENTS_ONLY);
    wait_passing(bed, "a client");
    wait_enforced(bed);

    // No packet of an allowed connection is dropped.
    let url = format!("http://{to}:{PORT}/");
    let requests = (seconds * 90).to_string();
    let args = ["get", "--count", &requests, "--interval", "0.01", &url];
    let mut client = bed
        .traffic()
        .spawn(bed.netns(Place::PodEast), &args)
        .expect("a client");
    let (migrations, dropped) = migrate_during(bed, &mut client);
    client
        .finish(Duration::from_secs(seconds))
        .expect("every request has an answer");
    println!("{requests} requests, {migrations} migrations");
    assert!(migrations > 1, "{migrations} migrations");
    assert_eq!(dropped, 0, "packets of allowed connections");

    // No packet to a closed port passes, from another cluster or from a Pod of the Node.
    let closed = ClosedPort::listen(bed, seconds);
    let mut floods = [bed.netns(Place::PodEast), &*local].map(|from| closed.flood(bed, from));
    let (migrations, dropped) = migrate_during(bed, &mut floods[0]);
    println!("{dropped} datagrams dropped, {migrations} migrations");
    closed.assert_nothing_arrived();
    assert!(
        dropped > least && migrations > 1,
        "{dropped} dropped, {migrations} migrations"
    );
}

#[test]
fn an_upgrade_of_the_layout_opens_no_routed_pod() {
    check("policy-layout", false);
}

#[test]
fn an_upgrade_of_the_layout_opens_no_bridged_pod() {
    check("layout-bridge", true);
}
