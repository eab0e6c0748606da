//! Time in each program while small datagrams cross the row, next to a program that does nothing.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::{
    programs::ProgramInfo,
    sys::{Stats, enable_stats},
};
use mc_gateway_common::abi::{PROGRAM_FROM_UNDERLAY, PROGRAM_TO_REMOTE};

use super::{
    objects::{EMPTY, Spent, Yardstick},
    part::Pace,
    row::{Figure, SMALL},
};
use crate::topology::{Cluster, Place, Topology};

/// Subject in the report.
pub const SUBJECT: &str = "programs";
/// Figures in the report, in the order of a packet's way, and the program that does nothing.
pub const NAMES: [&str; 4] = ["encap", "transit", "decap", "empty"];

/// The programs whose time is told, by figure, in the order of a packet's way.
const PROGRAMS: [(&str, Place, &str); 3] = [
    ("encap", Place::NodeEast, PROGRAM_TO_REMOTE),
    ("transit", Place::GatewayEast, PROGRAM_FROM_UNDERLAY),
    ("decap", Place::NodeWest, PROGRAM_FROM_UNDERLAY),
];

/// Measures once; the agents are running.
pub(super) fn measure(topology: &Topology, objects: &Path, pace: &Pace) -> Result<Vec<Figure>> {
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let mut yardstick = Yardstick::load(objects)?;
    // Every datagram passes it, as the last thing before the receiver's stack.
    yardstick.attach(to, EMPTY, "eth0")?;
    let _statistics = enable_stats(Stats::RunTime).context("no program statistics")?;
    let spent = |yardstick: &mut Yardstick| -> Result<Vec<(&str, Spent)>> {
        let mut all = Vec::new();
        for (figure, place, program) in PROGRAMS {
            let pin = topology.bpf_dir(place).join("programs").join(program);
            let info = ProgramInfo::from_pin(&pin).with_context(|| pin.display().to_string())?;
            all.push((figure, Spent::read(&info)));
        }
        all.push(("empty", yardstick.spent(EMPTY)?));
        Ok(all)
    };
    let before = spent(&mut yardstick)?;
    let sink = topology
        .traffic()
        .blast(from, to, Cluster::West.pod_ip(), SMALL, pace.traffic)?;
    let after = spent(&mut yardstick)?;
    before
        .into_iter()
        .zip(after)
        .map(|((figure, before), (_, after))| {
            let time = after.nanoseconds_since(before);
            let time = time.with_context(|| {
                format!("{figure}: not run once while {} datagrams arrived", sink.received)
            })?;
            Ok((figure.to_owned(), time))
        })
        .collect()
}
