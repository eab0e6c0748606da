//! Function of the benchmark: all sections and cases in a quick run.

use mc_tests::{
    bench::{self, Settings, bed::Bed, case::Case, plot, section::Pace, section::Section, targets::TARGETS},
    capture::{Capture, Direction},
    decode::{Frame, Payload},
    netns::find_leaks,
    topology::{Cluster, Place, Topology, Variant},
};

use crate::fixture::{agent_program, ebpf_object, options};

#[test]
fn a_quick_run_measures_everything_and_leaves_nothing() {
    let settings = Settings {
        prefix: "nt-bench".to_owned(),
        agent: agent_program(),
        objects: ebpf_object().with_file_name(""),
        sections: Section::ALL.into_iter().collect(),
        cases: Case::ALL.to_vec(),
        rounds: 1,
        pace: Pace::QUICK,
        mtu: 1500,
        beds: Bed::available().collect(),
    };
    let report = bench::run(&settings, |line| println!("{line}")).expect("a report");
    println!("{report}");
    let failed: Vec<_> = report.skipped.iter().filter(|missing| missing.failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for (goal, _) in TARGETS {
        let missing = report
            .skipped
            .iter()
            .any(|missing| goal.starts_with(&missing.name));
        assert!(
            missing || report.targets.iter().any(|outcome| outcome.metric == goal),
            "{goal} has neither a figure nor a reason"
        );
    }
    assert!(plot::all(&report).len() >= 8);
    let left = find_leaks(&settings.prefix).expect("residue");
    assert!(left.is_empty(), "{left:?}");
}

/// A checksum would be a cost of the competitor alone.
#[test]
fn kernel_vxlan_sends_no_outer_udp_checksum() {
    let mut topology = Topology::create(options("vxsum")).expect("the namespaces");
    topology.configure(Variant::KernelVxlan).expect("VXLAN devices");
    let gateway = topology.netns(Place::GatewayEast);
    let device = Place::GatewayEast.underlay_devices()[1];
    let file = topology.directory().join("vxlan.pcap");
    let capture = Capture::start(topology.traffic(), gateway, device, Direction::Both, None, &file);
    let east = topology.netns(Place::PodEast);
    let ping = topology.traffic().ping(east, Cluster::West.pod_ip(), 3);
    assert_eq!(ping.expect("ping").received, 3);
    let frames = capture.and_then(Capture::finish).expect("frames");
    let checksums: Vec<u16> = frames
        .iter()
        .filter_map(|bytes| match Frame::decode(bytes)?.ip?.payload {
            Payload::Udp(udp) if udp.to == 4789 => Some(udp.checksum),
            _ => None,
        })
        .collect();
    assert!(checksums.len() >= 6, "{} VXLAN packets captured", checksums.len());
    assert!(
        checksums.iter().all(|checksum| *checksum == 0),
        "{checksums:04x?}"
    );
}
