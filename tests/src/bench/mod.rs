//! The benchmark: the ways from Pod to Pod over four hops next to each other, and what the parts of
//! mc-gateway's way cost by themselves. `docs/benchmark.md` tells how it measures and how to read it.
//!
//! Whatever is compared alternates round by round, so that what changes on the machine meanwhile hits all of
//! it alike; quotients are taken within a round.

pub mod case;
pub mod gateways;
pub mod goals;
pub mod growth;
mod hop;
mod metadata;
mod objects;
pub mod part;
pub mod plot;
pub mod programs;
pub mod report;
pub mod row;
pub mod sample;
mod services;
mod setup;
mod table;
pub mod transit;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use self::{
    case::Case,
    gateways::Gateways,
    growth::{Curve, Growth, Work},
    part::{Pace, Part},
    report::{FAILOVER, Missing, Report},
    row::{Figure, Shape},
    sample::{Sample, Samples},
    transit::{Kind, Transit},
};
use crate::{failover::Trials, netns::Residue, topology::Topology};

/// Start of the names of everything the benchmark creates, unless told otherwise.
pub const PREFIX: &str = "mcbench";

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Start of the names of everything that is created.
    pub prefix: String,
    /// The program `mc-gateway`.
    pub agent: PathBuf,
    /// Directory with `mc-gateway-ebpf.o` and `yardstick.o`.
    pub objects: PathBuf,
    /// The parts to run.
    pub parts: BTreeSet<Part>,
    /// The cases to compare over the whole row.
    pub cases: Vec<Case>,
    /// How often each is measured.
    pub rounds: u32,
    /// How long single measurements take.
    pub pace: Pace,
    /// Underlay MTU.
    pub mtu: u32,
    /// Whether Pods are attached to a bridge, as bridge CNIs do.
    pub bridge: bool,
}

/// Measures everything and returns the report; `progress` gets a line for each measurement. A part or a case
/// that fails does not end the run: the report names it.
pub fn run(settings: &Settings, mut progress: impl FnMut(&str)) -> Result<Report> {
    if settings.rounds == 0 || settings.parts.is_empty() {
        bail!(
            "{} rounds of {} parts measure nothing",
            settings.rounds,
            settings.parts.len()
        );
    }
    let setup = setup::read(settings);
    let mut run = Run {
        settings,
        samples: Samples::default(),
        missing: Vec::new(),
        notes: Vec::new(),
        took: BTreeMap::new(),
        progress: &mut progress,
    };
    run.everything();
    let Run {
        samples,
        missing,
        notes,
        took,
        ..
    } = run;
    let mut report = Report::new(setup, samples, missing, notes);
    report.took_seconds = took;
    Ok(report)
}

/// Removes everything a run with this prefix has left, its files included.
pub fn remove(prefix: &str) -> Result<Vec<Residue>> {
    // Whatever fails, the rest goes.
    let all: Vec<Result<Residue>> = [failover_prefix(prefix)]
        .into_iter()
        .chain(Shape::ALL.map(|shape| shape.prefix(prefix)))
        .map(|prefix| Topology::remove(&prefix))
        .collect();
    all.into_iter().collect()
}

/// A run on its way.
struct Run<'a> {
    settings: &'a Settings,
    samples: Samples,
    missing: Vec<Missing>,
    notes: Vec<String>,
    took: BTreeMap<String, f64>,
    progress: &'a mut dyn FnMut(&str),
}

// === impl Run ===

impl Run<'_> {
    /// Every part that was asked for.
    fn everything(&mut self) {
        use Part::{Failover, Gateways, Growth, Latency, Programs, Throughput, Transit};
        let row: &[Part] = &[Throughput, Latency, Programs];
        self.part("row", row, Self::row);
        self.part(Transit.name(), &[Transit], Self::transit);
        self.part(Growth.name(), &[Growth], Self::growth);
        self.part(Gateways.name(), &[Gateways], Self::gateways);
        self.part(Failover.name(), &[Failover], Self::failover);
    }

    /// Does something if any of these parts was asked for.
    fn part(&mut self, name: &str, parts: &[Part], work: impl FnOnce(&mut Self) -> Result<()>) {
        if !parts.iter().any(|part| self.settings.parts.contains(part)) {
            return;
        }
        let start = Instant::now();
        if let Err(error) = work(self) {
            self.miss(name, &format!("{error:#}"), true);
        }
        self.took.insert(name.to_owned(), start.elapsed().as_secs_f64());
    }

    fn miss(&mut self, name: &str, reason: &str, failed: bool) {
        (self.progress)(&format!("{name}: {reason}"));
        self.missing.push(Missing {
            name: name.to_owned(),
            reason: reason.to_owned(),
            failed,
        });
    }

    fn record(&mut self, round: u32, subject: &str, figures: impl IntoIterator<Item = Figure>) {
        let mut shown = format!("round {round:>2}  {subject:<25}");
        for (figure, value) in figures {
            shown.extend(["  ", &figure, " ", &short(value)]);
            self.samples.push(Sample {
                round,
                subject: subject.to_owned(),
                figure,
                value,
            });
        }
        (self.progress)(&shown);
    }

    /// Everything over the whole row.
    fn row(&mut self) -> Result<()> {
        let settings = self.settings;
        let asked = |part| settings.parts.contains(&part);
        let mut cases = if asked(Part::Throughput) || asked(Part::Latency) {
            settings.cases.clone()
        } else {
            vec![Case::McGateway]
        };
        let mut rows = BTreeMap::new();
        for shape in Shape::ALL {
            if cases.iter().any(|case| Shape::of(*case) == shape) {
                rows.insert(shape, shape.create(settings)?);
            }
        }
        for round in 1..=settings.rounds {
            for case in in_turn(&cases, round) {
                let topology = rows.get_mut(&Shape::of(case)).context("no row for the case")?;
                match row::with_case(topology, case, |topology| row_figures(topology, case, settings)) {
                    Ok(figures) => {
                        for (subject, figures) in figures {
                            self.record(round, subject, figures);
                        }
                    }
                    Err(error) => {
                        self.miss(case.name(), &format!("round {round}: {error:#}"), true);
                        cases.retain(|other| *other != case);
                    }
                }
            }
        }
        Ok(())
    }

    /// One hop alone.
    fn transit(&mut self) -> Result<()> {
        let mut transit = Transit::create(&self.settings.prefix, &self.settings.objects)?;
        for round in 1..=self.settings.rounds {
            let kinds = in_turn(&Kind::ALL, round);
            for (kind, figures) in transit.measure(&kinds, self.settings.pace.hop)? {
                self.record(round, kind.name(), figures);
            }
        }
        Ok(())
    }

    /// Tables that grow.
    fn growth(&mut self) -> Result<()> {
        for curve in Curve::ALL {
            let mut growth = Growth::create(&self.settings.prefix, &self.settings.objects, curve)?;
            for round in 1..=self.settings.rounds {
                for work in Work::ALL {
                    let points = growth.measure(work, self.settings.pace.hop)?;
                    let figures = points
                        .into_iter()
                        .map(|(point, nanoseconds)| (point.to_string(), nanoseconds));
                    self.record(round, &growth::subject(work, curve), figures);
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

    /// Gateways lost. What was measured counts, also where a later trial fails.
    fn failover(&mut self) -> Result<()> {
        let Settings {
            prefix, agent, pace, ..
        } = self.settings;
        let mut dying = Trials::create(&failover_prefix(prefix), agent.clone())?;
        for trial in 1..=pace.trials {
            let milliseconds = dying.next_outage()?.as_secs_f64() * 1e3;
            self.record(
                trial,
                FAILOVER.subject,
                [(FAILOVER.figure.to_owned(), milliseconds)],
            );
        }
        Ok(())
    }
}

/// Start of the names of the bed gateways fail in.
fn failover_prefix(prefix: &str) -> String {
    format!("{prefix}-fo")
}

/// What was asked for of one case, by subject.
fn row_figures(
    topology: &Topology,
    case: Case,
    settings: &Settings,
) -> Result<Vec<(&'static str, Vec<Figure>)>> {
    let asked = |part| settings.parts.contains(&part);
    let mut all = Vec::new();
    if asked(Part::Throughput) {
        all.push((case.name(), row::throughput(topology, &settings.pace)?));
    }
    if asked(Part::Latency) {
        all.push((case.name(), row::latency(topology, &settings.pace)?));
    }
    if asked(Part::Programs) && case == Case::McGateway {
        let figures = programs::measure(topology, &settings.objects, &settings.pace);
        all.push((programs::SUBJECT, figures.context("programs")?));
    }
    Ok(all)
}

/// All of them, each round beginning with another: none always runs on a rested machine.
fn in_turn<T: Copy>(all: &[T], round: u32) -> Vec<T> {
    let shift = usize::try_from(round).unwrap_or_default() % all.len().max(1);
    all.iter().cycle().skip(shift).take(all.len()).copied().collect()
}

/// A figure in few characters.
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
    fn every_round_begins_with_another_and_has_all() {
        assert_eq!(in_turn(&[1, 2, 3], 1), [2, 3, 1]);
        assert_eq!(in_turn(&[1, 2, 3], 2), [3, 1, 2]);
        assert_eq!(in_turn(&[1, 2, 3], 3), [1, 2, 3]);
        assert!(in_turn::<u8>(&[], 1).is_empty());
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(short(11_470_000_000.0), "11.47G");
        assert_eq!(short(71_580.0), "71.58k");
        assert_eq!(short(29.249), "29.25");
    }
}
