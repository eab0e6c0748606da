//! Time per packet in each program under small datagrams over four hops, compared with an empty program.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::{
    programs::ProgramInfo,
    sys::{Stats, enable_stats},
};
use mc_gateway_common::abi::{PROGRAM_FROM_UNDERLAY, PROGRAM_TO_REMOTE};

use super::{
    bpf_objects::{BenchPrograms, CpuTime, EMPTY},
    end_to_end::{Metric, SMALL_PAYLOAD},
    section::Pace,
};
use crate::topology::{Cluster, Place, Topology};

/// Subject in the report.
pub const SUBJECT: &str = "programs";
/// Metrics in the report, in the order of the path, and the empty program.
pub const METRICS: [&str; 4] = ["encap", "transit", "decap", "empty"];

/// The measured programs by metric, in the order of the path.
const PROGRAMS: [(&str, Place, &str); 3] = [
    ("encap", Place::NodeEast, PROGRAM_TO_REMOTE),
    ("transit", Place::GatewayEast, PROGRAM_FROM_UNDERLAY),
    ("decap", Place::NodeWest, PROGRAM_FROM_UNDERLAY),
];

/// Measures once, with running agents.
pub(super) fn measure(topology: &Topology, objects: &Path, pace: &Pace) -> Result<Vec<Metric>> {
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let mut programs = BenchPrograms::load(objects)?;
    // Every datagram passes it before the receiver's stack.
    programs.attach(to, EMPTY, "eth0")?;
    let _statistics = enable_stats(Stats::RunTime).context("cannot enable program statistics")?;
    let cpu_times = |programs: &mut BenchPrograms| -> Result<Vec<(&str, CpuTime)>> {
        let mut all = Vec::new();
        for (figure, place, program) in PROGRAMS {
            let pin = topology.bpf_dir(place).join("programs").join(program);
            let info = ProgramInfo::from_pin(&pin).with_context(|| pin.display().to_string())?;
            all.push((figure, CpuTime::read(&info)));
        }
        all.push(("empty", programs.cpu_time(EMPTY)?));
        Ok(all)
    };
    let before = cpu_times(&mut programs)?;
    let sink = topology
        .traffic()
        .udp_flood(from, to, Cluster::West.pod_ip(), SMALL_PAYLOAD, pace.traffic)?;
    let after = cpu_times(&mut programs)?;
    before
        .into_iter()
        .zip(after)
        .map(|((figure, before), (_, after))| {
            let time = after.nanoseconds_since(before);
            let time = time
                .with_context(|| format!("{figure}: no run during {} received datagrams", sink.received))?;
            Ok((figure.to_owned(), time))
        })
        .collect()
}
