//! Agents restarted, upgraded and rolled back under traffic: not one packet is lost.
//!
//! Runs as root with `MC_AGENT` naming the agent and `MC_TRAFFIC` the traffic program, one test after the
//! other: `cargo xtask test --suite restart`; `MC_LONG=1` runs more rounds.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../netns/bed.rs"]
#[expect(dead_code, reason = "the suites share a test bed, not every part of it")]
mod bed;
mod layouts;

use std::{env, path::PathBuf};

use mc_gateway_common::abi;
use mc_tests::{
    sequence::SequenceReport,
    topology::{Cluster, Place, Topology},
    traffic::SequencedStream,
};

use bed::{LONGEST, SOON, connected};

/// Packets per second while agents come and go.
const RATE: u32 = 10_000;
/// A node and a gateway on the packets' way: one encapsulates, one passes on.
const PLACES: [Place; 2] = [Place::NodeEast, Place::GatewayEast];

fn long() -> bool {
    env::var_os("MC_LONG").is_some_and(|value| value == "1")
}

/// Packets from Pod to Pod for as long as `meanwhile` takes.
fn under_traffic(bed: &mut Topology, meanwhile: impl FnOnce(&mut Topology)) -> SequenceReport {
    let stream: SequencedStream = bed
        .traffic()
        .sequenced(
            bed.netns(Place::PodEast),
            bed.netns(Place::PodWest),
            Cluster::West.pod_ip(),
            RATE,
            LONGEST,
        )
        .expect("a stream");
    meanwhile(bed);
    let report = stream.end(SOON).expect("a report");
    assert!(report.ended, "{report:?}");
    assert_eq!((report.lost, report.duplicated), (0, 0), "{report:?}");
    report
}

fn restart(bed: &mut Topology, place: Place, kill: bool) {
    if kill {
        bed.kill_agent(place).expect("SIGKILL");
    } else {
        bed.stop_agent(place).expect("SIGTERM");
    }
    bed.start_agent(place).expect("a new agent");
}

/// Restarts agents in batches of ten, a stream for each.
fn restarts(name: &str, attach: &str, batches: usize) {
    let batches = if long() { 10 } else { batches };
    let cycles = 10;
    let mut bed = connected(name);
    bed.set_agent_flags(&["--attach", attach]);
    for place in PLACES {
        restart(&mut bed, place, false);
    }
    let (mut sent, mut gap, mut done) = (0, 0.0_f64, 0);
    for _ in 0..batches {
        let report = under_traffic(&mut bed, |bed| {
            for cycle in 0..cycles {
                restart(bed, PLACES[cycle / 2 % 2], cycle % 2 == 0);
            }
        });
        done += cycles;
        sent += report.sent;
        gap = gap.max(report.longest_gap_ms);
    }
    println!(
        "restart: {attach}: {done} restarts, {sent} packets at {RATE}/s, 0 lost, longest gap {gap:.1} ms"
    );
}

#[test]
fn restarts_lose_no_packet() {
    restarts("tcx", "auto", 2);
}

#[test]
fn restarts_with_clsact_lose_no_packet() {
    restarts("cls", "clsact", 1);
}

/// Names of the directories with maps.
fn generations(bed: &Topology, place: Place) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(bed.bpf_dir(place))
        .expect("the pin directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with("maps"))
        .collect();
    names.sort();
    names
}

fn maps(bed: &Topology, place: Place) -> PathBuf {
    bed.bpf_dir(place).join(abi::MAPS_DIR)
}

/// Whatever is in the maps of another version, its programs run until ours have the whole desired state.
fn migrates(name: &str, version: u32) {
    let mut bed = connected(name);
    let report = under_traffic(&mut bed, |bed| {
        for place in PLACES {
            bed.stop_agent(place).expect("SIGTERM");
            // The attached programs keep their maps; only the pins become those of another version.
            std::fs::remove_dir_all(maps(bed, place)).expect("unpin");
            let pins = layouts::pin(&bed.bpf_dir(place), version);
            assert_eq!(generations(bed, place), std::slice::from_ref(&pins));
            bed.start_agent(place).expect("a new agent");
            assert_eq!(generations(bed, place), [abi::MAPS_DIR], "{pins} stayed");
            // What was made is taken over as it is by the next one.
            restart(bed, place, true);
            assert_eq!(generations(bed, place), [abi::MAPS_DIR]);
        }
    });
    println!(
        "restart: {name}: from layout {version} to {}, {} packets, 0 lost",
        abi::ABI_VERSION,
        report.sent
    );
}

#[test]
fn an_upgrade_from_layout_1_loses_no_packet() {
    migrates("upgrade", 1);
}

#[test]
fn a_roll_back_from_a_later_layout_loses_no_packet() {
    migrates("rollback", abi::ABI_VERSION + 1);
}

#[test]
fn a_half_written_generation_is_begun_anew() {
    let mut bed = connected("half");
    let place = Place::GatewayEast;
    under_traffic(&mut bed, |bed| {
        bed.kill_agent(place).expect("SIGKILL");
        // As if the agent had been killed before its first plan was carried out …
        let provisional = bed.bpf_dir(place).join(format!("{}-new", abi::MAPS_DIR));
        std::fs::rename(maps(bed, place), &provisional).expect("rename");
        bed.start_agent(place).expect("a new agent");
        assert_eq!(generations(bed, place), [abi::MAPS_DIR]);
        // … or half-way through pinning.
        bed.kill_agent(place).expect("SIGKILL");
        std::fs::remove_file(maps(bed, place).join(abi::GROUPS)).expect("unpin");
        bed.start_agent(place).expect("a new agent");
        assert_eq!(generations(bed, place), [abi::MAPS_DIR]);
        // … or between giving the maps their name and removing those of another version.
        bed.kill_agent(place).expect("SIGKILL");
        layouts::pin(&bed.bpf_dir(place), 1);
        bed.start_agent(place).expect("a new agent");
        assert_eq!(generations(bed, place), [abi::MAPS_DIR]);
    });
}

#[test]
fn foreign_pins_among_another_versions_are_refused() {
    let mut bed = connected("mixed");
    let place = Place::NodeEast;
    bed.stop_agent(place).expect("SIGTERM");
    let pins = bed.bpf_dir(place).join(layouts::pin(&bed.bpf_dir(place), 1));
    let stranger = pins.join("mc_peers");
    std::fs::remove_file(&stranger).expect("unpin");
    layouts::map(&stranger, "stranger", 4, 4, 1);
    bed.spawn_agent(place).expect("an agent");
    let line = bed::wait_for_log(&mut bed, place, &["foreign pin"]);
    assert!(
        line.contains("mc_peers") && line.contains("stranger"),
        "the pin and what it holds are not named: {line}"
    );
    assert!(
        stranger.exists() && maps(&bed, place).exists(),
        "something was removed"
    );
}

/// The release before layout 2, where somebody has it: `MC_AGENT_V1` names the program.
#[test]
fn to_the_release_before_and_back_without_loss() {
    let Some(old) = env::var_os("MC_AGENT_V1") else {
        println!("MC_AGENT_V1 is not set: pins of layout 1 are made up by another test");
        return;
    };
    let mut bed = connected("release");
    under_traffic(&mut bed, |bed| {
        for (agent, generation) in [
            (PathBuf::from(old), "maps"),
            (bed::agent_program(), abi::MAPS_DIR),
        ] {
            bed.set_agent(agent);
            for place in PLACES {
                restart(bed, place, false);
                assert!(generations(bed, place).contains(&generation.to_owned()));
            }
        }
        for place in PLACES {
            assert_eq!(generations(bed, place), [abi::MAPS_DIR]);
        }
    });
}
