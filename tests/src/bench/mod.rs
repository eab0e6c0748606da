//! The benchmark: data paths between Pods over four hops in comparison, and the cost of mc-gateway's parts.
//! `docs/benchmark.md` describes the method and the report.
//!
//! Compared cases alternate round by round, so that changes of the machine's speed affect all of them; ratios are
//! computed within a round.

pub mod bed;
mod bpf_objects;
pub mod case;
mod cpu_time;
pub mod end_to_end;
mod fixture;
pub mod gateways;
mod machine_info;
pub mod plot;
pub mod programs;
pub mod report;
pub mod sample;
pub mod scaling;
pub mod section;
mod services;
mod single_hop;
mod table;
pub mod targets;
mod topologies;
pub mod transit;
mod vxlan_metadata;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use self::{
    bed::Bed,
    bpf_objects::Entry,
    case::Case,
    end_to_end::{Metric, TopologyShape},
    gateways::Gateways,
    report::{FAILOVER, Report, Skipped},
    sample::{Sample, Samples},
    scaling::{Curve, Operation, Scaling},
    section::{Pace, Section},
    topologies::Topologies,
    transit::{HopKind, Transit},
};
use crate::{
    failover::{Probing, Trials},
    netns::LeakReport,
    topology::{Links, NicPair, Topology},
};

/// Default name prefix of everything the benchmark creates.
pub const PREFIX: &str = "mcbench";

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name prefix of everything that is created.
    pub prefix: String,
    /// Path of `mc-gateway`.
    pub agent: PathBuf,
    /// Directory with the eBPF objects.
    pub objects: PathBuf,
    /// Sections to run.
    pub sections: BTreeSet<Section>,
    /// Cases to compare over four hops.
    pub cases: Vec<Case>,
    /// Number of rounds.
    pub rounds: u32,
    /// Durations of single measurements.
    pub pace: Pace,
    /// MTU of the underlay.
    pub mtu: u32,
    /// Beds on which the cases are compared.
    pub beds: Vec<Bed>,
}

/// Runs the sections and returns the report; `progress` receives a line for each measurement. A failed section or
/// case is listed in the report and does not end the run.
pub fn run(settings: &Settings, mut progress: impl FnMut(&str)) -> Result<Report> {
    if settings.rounds == 0 || settings.sections.is_empty() {
        bail!(
            "nothing to measure: {} rounds of {} sections",
            settings.rounds,
            settings.sections.len()
        );
    }
    if let Some(bed) = settings.beds.iter().find(|bed| bed.links() == Links::Nics) {
        NicPair::from_env().with_context(|| format!("bed {}", bed.name()))?;
    }
    let setup = machine_info::collect(settings);
    let mut run = Run {
        settings,
        samples: Samples::default(),
        skipped: Vec::new(),
        notes: Vec::new(),
        durations: BTreeMap::new(),
        progress: &mut progress,
    };
    run.run_sections();
    let Run {
        samples,
        skipped: missing,
        notes,
        durations: took,
        ..
    } = run;
    let mut report = Report::new(setup, samples, missing, notes);
    report.duration_seconds = took;
    Ok(report)
}

/// Removes the leftovers of a run with this prefix, files included.
pub fn remove(prefix: &str) -> Result<Vec<LeakReport>> {
    // A failure does not keep the rest from being removed.
    let all: Vec<Result<LeakReport>> = [failover_prefix(prefix)]
        .into_iter()
        .chain(TopologyShape::ALL.map(|shape| shape.prefix(prefix)))
        .map(|prefix| Topology::remove(&prefix))
        .collect();
    all.into_iter().collect()
}

/// State of a run.
struct Run<'a> {
    settings: &'a Settings,
    samples: Samples,
    skipped: Vec<Skipped>,
    notes: Vec<String>,
    durations: BTreeMap<String, f64>,
    progress: &'a mut dyn FnMut(&str),
}

// === impl Run ===

impl Run<'_> {
    /// Runs the selected sections.
    fn run_sections(&mut self) {
        use Section::{Failover, Gateways, Latency, Programs, Scaling, Throughput, Transit};
        let four_hops: &[Section] = &[Throughput, Latency, Programs];
        self.section("end-to-end", four_hops, Self::end_to_end);
        self.section(Transit.name(), &[Transit], Self::transit);
        self.section(Scaling.name(), &[Scaling], Self::scaling);
        self.section(Gateways.name(), &[Gateways], Self::gateways);
        self.section(Failover.name(), &[Failover], Self::failover);
    }

    /// Runs `work` if any of these sections is selected.
    fn section(&mut self, name: &str, sections: &[Section], work: impl FnOnce(&mut Self) -> Result<()>) {
        if !sections
            .iter()
            .any(|section| self.settings.sections.contains(section))
        {
            return;
        }
        let start = Instant::now();
        if let Err(error) = work(self) {
            self.skip(name, &format!("{error:#}"), true);
        }
        self.durations
            .insert(name.to_owned(), start.elapsed().as_secs_f64());
    }

    fn skip(&mut self, name: &str, reason: &str, failed: bool) {
        (self.progress)(&format!("{name}: {reason}"));
        self.skipped.push(Skipped {
            name: name.to_owned(),
            reason: reason.to_owned(),
            failed,
        });
    }

    fn record(&mut self, round: u32, subject: &str, figures: impl IntoIterator<Item = Metric>) {
        let mut shown = format!("round {round:>2}  {subject:<25}");
        for (figure, value) in figures {
            shown.extend(["  ", &figure, " ", &short(value)]);
            self.samples.push(Sample {
                round,
                subject: subject.to_owned(),
                metric: figure,
                value,
            });
        }
        (self.progress)(&shown);
    }

    /// Measurements over four hops on each bed.
    fn end_to_end(&mut self) -> Result<()> {
        for bed in self.settings.beds.clone() {
            self.measure_bed(bed).with_context(|| bed.title().to_owned())?;
        }
        Ok(())
    }

    /// Sections other than throughput have one bed only.
    fn measure_bed(&mut self, bed: Bed) -> Result<()> {
        let settings = self.settings;
        let selected = |section| settings.sections.contains(&section);
        let mut cases = settings.cases.clone();
        cases.retain(|case| bed.has(*case));
        if bed == Bed::VethRouted {
            if !selected(Section::Throughput) && !selected(Section::Latency) {
                cases = vec![Case::McGateway];
            }
        } else if !selected(Section::Throughput) {
            return Ok(());
        }
        let mut topologies = Topologies::create(settings, bed, &cases)?;
        for round in 1..=settings.rounds {
            for case in rotated(&cases, round) {
                let measure = |topology: &mut Topology| end_to_end_metrics(topology, bed, case, settings);
                match topologies
                    .for_case(case)
                    .and_then(|topology| end_to_end::with_case(topology, case, measure))
                {
                    Ok(figures) => {
                        for (subject, figures) in figures {
                            self.record(round, &subject, figures);
                        }
                    }
                    Err(error) => {
                        self.skip(&bed.subject(case), &format!("round {round}: {error:#}"), true);
                        cases.retain(|other| *other != case);
                    }
                }
            }
        }
        Ok(())
    }

    /// A single hop.
    fn transit(&mut self) -> Result<()> {
        for entry in [Entry::Device, Entry::Driver] {
            let mut transit = Transit::create(&self.settings.prefix, &self.settings.objects, entry)?;
            let mut kinds = HopKind::ALL.to_vec();
            kinds.retain(|kind| kind.entry() == entry);
            for round in 1..=self.settings.rounds {
                let kinds = rotated(&kinds, round);
                for (kind, figures) in transit.measure(&kinds, self.settings.pace.hop)? {
                    self.record(round, kind.name(), figures);
                }
            }
        }
        Ok(())
    }

    /// Maps of increasing size.
    fn scaling(&mut self) -> Result<()> {
        for curve in Curve::ALL {
            let mut scaling = Scaling::create(&self.settings.prefix, &self.settings.objects, curve)?;
            for round in 1..=self.settings.rounds {
                for work in Operation::ALL {
                    let points = scaling.measure(work, self.settings.pace.hop)?;
                    let figures = points
                        .into_iter()
                        .map(|(point, nanoseconds)| (point.to_string(), nanoseconds));
                    self.record(round, &scaling::subject(work, curve), figures);
                }
            }
        }
        Ok(())
    }

    /// One and two destination gateways.
    fn gateways(&mut self) -> Result<()> {
        let mut gateways = Gateways::create(&self.settings.prefix, &self.settings.objects)?;
        for round in 1..=self.settings.rounds {
            let splits = gateways.measure(round, self.settings.pace.hop)?;
            let figures = splits
                .into_iter()
                .map(|(gateways, split)| (gateways.to_string(), split));
            self.record(round, gateways::SUBJECT, figures);
        }
        self.notes.push(gateways::NOTE.to_owned());
        Ok(())
    }

    /// Gateway failures. Completed trials count, even if a later one fails.
    fn failover(&mut self) -> Result<()> {
        let Settings {
            prefix, agent, pace, ..
        } = self.settings;
        let mut dying = Trials::create(&failover_prefix(prefix), agent.clone(), Probing::Default)?;
        for trial in 1..=pace.trials {
            let milliseconds = dying.next_outage()?.as_secs_f64() * 1e3;
            self.record(
                trial,
                FAILOVER.subject,
                [(FAILOVER.metric.to_owned(), milliseconds)],
            );
        }
        Ok(())
    }
}

/// Name prefix of the topology for gateway failures.
fn failover_prefix(prefix: &str) -> String {
    format!("{prefix}-fo")
}

/// The selected metrics of one case on a bed, by subject.
fn end_to_end_metrics(
    topology: &Topology,
    bed: Bed,
    case: Case,
    settings: &Settings,
) -> Result<Vec<(String, Vec<Metric>)>> {
    let selected = |section| settings.sections.contains(&section);
    let mut all = Vec::new();
    if selected(Section::Throughput) {
        all.push((
            bed.subject(case),
            end_to_end::throughput(topology, &settings.pace)?,
        ));
    }
    if bed != Bed::VethRouted {
        return Ok(all);
    }
    if selected(Section::Latency) {
        all.push((bed.subject(case), end_to_end::latency(topology, &settings.pace)?));
    }
    if selected(Section::Programs) && case == Case::McGateway {
        let figures = programs::measure(topology, &settings.objects, &settings.pace);
        all.push((programs::SUBJECT.to_owned(), figures.context("programs")?));
    }
    Ok(all)
}

/// The elements, rotated by the round, so that the first position alternates.
fn rotated<T: Copy>(all: &[T], round: u32) -> Vec<T> {
    let shift = usize::try_from(round).unwrap_or_default() % all.len().max(1);
    all.iter().cycle().skip(shift).take(all.len()).copied().collect()
}

/// A value with an SI prefix.
fn short(value: f64) -> String {
    for (unit, letter) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= unit {
            return format!("{:.2}{letter}", value / unit);
        }
    }
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_rotate_the_elements() {
        assert_eq!(rotated(&[1, 2, 3], 1), [2, 3, 1]);
        assert_eq!(rotated(&[1, 2, 3], 2), [3, 1, 2]);
        assert_eq!(rotated(&[1, 2, 3], 3), [1, 2, 3]);
        assert!(rotated::<u8>(&[], 1).is_empty());
    }

    #[test]
    fn values_have_an_si_prefix() {
        assert_eq!(short(11_470_000_000.0), "11.47G");
        assert_eq!(short(71_580.0), "71.58k");
        assert_eq!(short(29.249), "29.25");
    }
}
