//! Agents that are killed, restarted, started twice, refused, or cleaned up.

use std::{path::Path, process::Command};

use mc_tests::topology::{Cluster, Place, Topology, Variant};

use crate::fixture::{MAX_STREAM, TIMEOUT, agent_program, bpftool, connected, options, routes, wait_for_log};

/// Pinned links of a node with their kernel IDs.
fn links(bed: &Topology, place: Place) -> Vec<String> {
    let mut links: Vec<String> = std::fs::read_dir(bed.bpf_dir(place).join("links"))
        .expect("pinned links")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let shown = bpftool(&["-j", "link", "show", "pinned", &path.to_string_lossy()]);
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            let link = shown.get(0).unwrap_or(&shown);
            format!(
                "{} id {}",
                path.file_name().expect("a name").to_string_lossy(),
                link["id"]
            )
        })
        .collect();
    links.sort();
    links
}

#[test]
fn killing_and_restarting_agents_loses_no_packet() {
    let mut bed = connected("kill");
    let stream = bed
        .traffic()
        .sequenced(
            bed.netns(Place::PodEast),
            bed.netns(Place::PodWest),
            Cluster::West.pod_ip(),
            10_000,
            MAX_STREAM,
        )
        .expect("a stream");
    for place in [Place::GatewayEast, Place::NodeWest] {
        bed.kill_agent(place).expect("kill -9");
        bed.start_agent(place).expect("a new agent");
        bed.stop_agent(place).expect("SIGTERM");
        bed.start_agent(place).expect("a new agent");
    }
    let report = stream.stop(TIMEOUT).expect("a report");
    println!("{report:?}");
    assert!(report.ended, "{report:?}");
    assert_eq!((report.lost, report.duplicated), (0, 0), "{report:?}");
}

#[test]
fn a_restart_keeps_links_and_routes() {
    let mut bed = connected("again");
    let before: Vec<_> = Place::NODES
        .iter()
        .map(|place| (links(&bed, *place), routes(&bed, *place)))
        .collect();
    for place in Place::NODES {
        bed.stop_agent(place).expect("SIGTERM");
        bed.start_agent(place).expect("a new agent");
    }
    let after: Vec<_> = Place::NODES
        .iter()
        .map(|place| (links(&bed, *place), routes(&bed, *place)))
        .collect();
    assert_eq!(before, after);
}

#[test]
fn cleanup_leaves_nothing() {
    let mut bed = connected("clean");
    for place in Place::NODES {
        bed.stop_agent(place).expect("SIGTERM");
        bed.cleanup_agent(place).expect("cleanup");
        let netns = bed.netns(place);
        assert_eq!(routes(&bed, place), "");
        assert!(
            !bed.bpf_dir(place).exists(),
            "{} remains",
            bed.bpf_dir(place).display()
        );
        let devices = netns.run("ip", ["-o", "link", "show"]).expect("devices");
        assert!(!devices.contains("mc0"), "{devices}");
        let rules = netns.run("nft", ["list", "ruleset"]).expect("rules");
        assert!(!rules.contains("mc_gateway"), "{rules}");
        // Cleanup without anything to remove is no error.
        bed.cleanup_agent(place).expect("cleanup again");
    }
}

#[test]
fn a_second_agent_on_a_node_is_refused() {
    let bed = connected("twice");
    let out = run_failing_agent(&bed, Place::NodeEast, &bed.bpf_dir(Place::NodeEast));
    assert!(
        out.contains("another agent runs in this network namespace"),
        "{out}"
    );
}

#[test]
fn foreign_pins_are_refused_and_kept() {
    let mut bed = connected("foreign");
    let place = Place::NodeEast;
    bed.stop_agent(place).expect("SIGTERM");
    let maps = bed.bpf_dir(place).join(mc_gateway_common::abi::MAPS_DIR);
    let pin = maps.join("mc_nh_groups");
    std::fs::remove_file(&pin).expect("unpin");
    let pin = pin.to_string_lossy().into_owned();
    bpftool(&[
        "map", "create", &pin, "type", "array", "key", "4", "value", "8", "entries", "4", "name", "stranger",
    ]);
    let out = run_failing_agent(&bed, place, &bed.bpf_dir(place));
    assert!(
        out.contains("mc_nh_groups") && out.contains("stranger"),
        "pin and map are not in {out}"
    );
    let left = bpftool(&["map", "show", "pinned", &pin]);
    assert!(left.contains("stranger"), "{left}");
}

#[test]
fn a_pin_directory_outside_bpffs_is_refused() {
    let bed = Topology::create(options("nobpf")).expect("the namespaces");
    let out = run_failing_agent(&bed, Place::NodeEast, &bed.directory().join("pins"));
    assert!(
        out.contains("is not on a BPF file system") && out.contains("mount -t bpf"),
        "{out}"
    );
}

#[test]
fn a_missing_capability_is_reported() {
    let bed = Topology::create(options("caps")).expect("the namespaces");
    for (set, missing) in [
        ("-perfmon,-sys_admin", "CAP_PERFMON"),
        ("-bpf,-sys_admin", "CAP_BPF"),
        ("-net_admin", "CAP_NET_ADMIN"),
    ] {
        let mut command = bed.netns(Place::NodeEast).command("setpriv");
        command
            .arg(format!("--bounding-set={set}"))
            .arg(format!("--inh-caps={set}"))
            .arg(agent_program());
        let out = run_failing(&mut agent_args(
            &bed,
            Place::NodeEast,
            command,
            &bed.bpf_dir(Place::NodeEast),
        ));
        assert!(out.contains(missing), "no {missing} in {out}");
    }
}

#[test]
fn a_cluster_may_be_removed_and_added_again() {
    let mut bed = Topology::create(options("later")).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    let manifests = bed.manifests_dir(Cluster::East);
    let remote = manifests.join("west.yaml");
    let text = std::fs::read_to_string(&remote).expect("a manifest");
    std::fs::remove_file(&remote).expect("remove");
    wait_for_log(&mut bed, Place::NodeEast, &["datapath updated"]);
    assert_eq!(routes(&bed, Place::NodeEast), "", "routes of a removed cluster");
    std::fs::write(&remote, text).expect("write");
    bed.wait_agent_updated(Place::NodeEast, 2).expect("an update");
    bed.wait_agent_updated(Place::GatewayEast, 2).expect("an update");
    let ping = bed
        .traffic()
        .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 1)
        .expect("ping");
    assert_eq!(ping.received, 1);
}

fn agent_args(bed: &Topology, place: Place, mut command: Command, bpf_dir: &Path) -> Command {
    let manifests = bed.manifests_dir(place.cluster());
    std::fs::create_dir_all(&manifests).expect("a directory");
    command
        .args(["run", "--node-name", place.name(), "--manifests"])
        .arg(manifests)
        .arg("--bpf-dir")
        .arg(bpf_dir);
    command
}

pub(crate) fn run_failing_agent(bed: &Topology, place: Place, bpf_dir: &Path) -> String {
    let command = bed.netns(place).command(agent_program());
    run_failing(&mut agent_args(bed, place, command, bpf_dir))
}

/// Runs a command that must fail and returns its output.
fn run_failing(command: &mut Command) -> String {
    let out = command.output().expect("the agent");
    let output = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(!out.status.success(), "unexpected success: {output}");
    output
}
