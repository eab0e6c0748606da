//! The report as tables for a terminal. Pure.

use std::fmt::{self, Display, Formatter};

use super::{
    case::Case,
    growth::{self, Curve, Work},
    programs,
    report::Report,
    row,
    sample::Summary,
    transit::{self, Kind},
};

/// Width of the first column.
const NAMES: usize = 42;
/// Width of the others.
const CELL: usize = 22;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        writeln!(
            f,
            "kernel {}, {} x {}, load {:.2} before; underlay MTU {}, Pod MTU {}{}\n\
             median (smallest .. largest) of {} rounds",
            setup.kernel,
            setup.cpus,
            setup.cpu,
            setup.load,
            setup.underlay_mtu,
            setup.pod_mtu,
            if setup.bridge { ", Pods on a bridge" } else { "" },
            setup.rounds
        )?;
        self.cases(f)?;
        self.hop(f)?;
        self.programs(f)?;
        self.growth(f)?;
        self.conclusions(f)
    }
}

impl Report {
    /// Four hops, case by case.
    fn cases(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let tcp = |streams| (row::tcp(streams), 1e9, format!("TCP x{streams} Gb/s"));
        let mut throughput: Vec<_> = row::STREAMS.map(tcp).to_vec();
        throughput.push((row::UDP64.to_owned(), 1e3, "UDP 64 B kpps".to_owned()));
        self.case_table(f, &throughput)?;
        let latency: Vec<_> = row::SIZES
            .into_iter()
            .flat_map(|size| {
                [50, 99].map(|percent| (row::rr(size, percent), 1.0, format!("{size} B p{percent} us")))
            })
            .collect();
        self.case_table(f, &latency)
    }

    fn case_table(&self, f: &mut Formatter<'_>, columns: &[(String, f64, String)]) -> fmt::Result {
        let has = |case: &Case| {
            columns
                .iter()
                .any(|(figure, ..)| self.summary(case.name(), figure).is_some())
        };
        let cases: Vec<Case> = Case::ALL.into_iter().filter(has).collect();
        if cases.is_empty() {
            return Ok(());
        }
        let line = |first: &str, cells: &mut dyn Iterator<Item = String>| {
            let line = cells.fold(format!("{first:<NAMES$}"), |line, cell| {
                format!("{line}{cell:<CELL$}")
            });
            line.trim_end().to_owned()
        };
        let titles = &mut columns.iter().map(|(.., title)| title.clone());
        writeln!(f, "\n{}", line("Pod to Pod over four hops", titles))?;
        for case in cases {
            let cells = &mut columns.iter().map(|(figure, unit, _)| {
                self.summary(case.name(), figure)
                    .map_or_else(|| "-".to_owned(), |summary| cell(summary, *unit))
            });
            writeln!(f, "{}", line(case.title(), cells))?;
        }
        Ok(())
    }

    fn hop(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kinds = [
            (Kind::Nothing, "dropped at once: the source alone"),
            (Kind::Wire, "sent on as it is: the least a hop can do"),
            (Kind::Forward, "plain forwarding by the kernel"),
            (Kind::Transit, "mc-gateway, transit"),
        ];
        if self.summary(Kind::Transit.name(), transit::RATE).is_none() {
            return Ok(());
        }
        let title = "one hop alone, 64 B, one CPU";
        writeln!(
            f,
            "\n{title:<NAMES$}{:<CELL$}{:<CELL$}without the source",
            "kpps", "ns per packet"
        )?;
        for (kind, title) in kinds {
            let cell = |figure, unit| {
                self.summary(kind.name(), figure)
                    .map_or_else(|| "-".to_owned(), |summary| cell(summary, unit))
            };
            writeln!(
                f,
                "{title:<NAMES$}{:<CELL$}{:<CELL$}{}",
                cell(transit::RATE, 1e3),
                cell(transit::TIME, 1.0),
                cell(transit::OWN, 1.0)
            )?;
        }
        Ok(())
    }

    fn programs(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.nanoseconds.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{:<NAMES$}ns per packet", "programs under 64 B UDP")?;
        for name in programs::NAMES {
            if let Some(summary) = self.nanoseconds_spread.get(name) {
                writeln!(f, "{name:<NAMES$}{}", cell(*summary, 1.0))?;
            }
        }
        Ok(())
    }

    fn growth(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for work in Work::ALL {
            let mut rows = Vec::new();
            for curve in Curve::ALL {
                let subject = growth::subject(work, curve);
                let points: Vec<String> = curve
                    .points()
                    .iter()
                    .filter_map(|point| {
                        let summary = self.summary(&subject, &point.to_string())?;
                        Some(format!("{point}: {}", cell(summary, 1.0)))
                    })
                    .collect();
                if !points.is_empty() {
                    rows.push(format!("{:<NAMES$}{}", curve.title(), points.join(", ")));
                }
            }
            if !rows.is_empty() {
                let title = format!("{}, ns per packet by size of tables", work.name());
                writeln!(f, "\n{title}\n{}", rows.join("\n"))?;
            }
        }
        Ok(())
    }

    fn conclusions(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(failover) = self.failover_ms {
            writeln!(
                f,
                "\n{:<NAMES$}p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms of {} trials",
                "a gateway lost", failover.p50, failover.p99, failover.max, failover.trials
            )?;
        }
        if !self.goals.is_empty() {
            writeln!(f, "\n{:<NAMES$}{:<CELL$}goal", "goals", "figure")?;
        }
        for goal in &self.goals {
            let key = goal.figure.strip_prefix("ratios.").unwrap_or(&goal.figure);
            let spread = self.ratio_spread.get(key);
            let figure = spread.map_or_else(
                || format!("{:.0}", goal.value),
                |summary| format!("{:.2} ({:.2} .. {:.2})", summary.median, summary.min, summary.max),
            );
            let verdict = if goal.reached { "ok" } else { "short" };
            writeln!(
                f,
                "{:<NAMES$}{figure:<CELL$}{:<8}{verdict}",
                goal.figure,
                goal.limit.to_string()
            )?;
        }
        if !self.more_ratios.is_empty() {
            writeln!(f, "\nfurther comparisons (of times, less is better)")?;
        }
        for name in self.more_ratios.keys() {
            if let Some(Summary { median, min, max }) = self.ratio_spread.get(name) {
                writeln!(f, "{name:<NAMES$}{median:.2} ({min:.2} .. {max:.2})")?;
            }
        }
        for missing in &self.missing {
            let how = if missing.failed { "failed" } else { "not measured" };
            writeln!(f, "\n{how}: {}: {}", missing.name, missing.reason)?;
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

fn cell(Summary { median, min, max }: Summary, unit: f64) -> String {
    // Three digits say all that is known.
    let digits = usize::from(median / unit < 100.0);
    format!(
        "{:.digits$} ({:.digits$} .. {:.digits$})",
        median / unit,
        min / unit,
        max / unit
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{setup, whole};

    #[test]
    fn table_names_every_case_goal_and_gap() {
        let text = whole().to_string();
        for case in Case::ALL {
            let lines = text.lines().filter(|line| line.starts_with(case.title()));
            assert!(lines.count() >= 2, "{}: {text}", case.title());
        }
        for (goal, _) in super::super::goals::GOALS {
            assert!(text.contains(goal), "{goal}: {text}");
        }
        for word in [
            "not measured: something: nobody knows",
            "note: a note",
            "short",
            "ok",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn a_run_of_one_part_shows_nothing_of_the_others() {
        let report = Report::new(
            setup(),
            crate::bench::sample::Samples::default(),
            Vec::new(),
            Vec::new(),
        );
        assert_eq!(report.to_string().lines().count(), 2, "{report}");
    }
}
