//! The report as tables for a terminal.

use std::fmt::{self, Display, Formatter};

use super::{
    bed::Bed,
    case::Case,
    end_to_end, programs,
    report::Report,
    sample::Summary,
    scaling::{self, Curve, Operation},
    transit::{self, HopKind},
};

/// Width of the first column.
const NAME_WIDTH: usize = 42;
/// Width of the others.
const CELL_WIDTH: usize = 22;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let setup = &self.machine_info;
        writeln!(
            f,
            "kernel {}, {} x {}, load {:.2} before; underlay MTU {}, Pod MTU {}\n\
             median (smallest .. largest) of {} rounds",
            setup.kernel, setup.cpus, setup.cpu, setup.load, setup.underlay_mtu, setup.pod_mtu, setup.rounds
        )?;
        self.cases(f)?;
        self.hop(f)?;
        self.programs(f)?;
        self.scaling(f)?;
        self.conclusions(f)
    }
}

impl Report {
    /// Four hops by case.
    fn cases(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let tcp = |streams| {
            (
                end_to_end::tcp_metric(streams),
                1e9,
                format!("TCP x{streams} Gb/s"),
            )
        };
        let mut throughput: Vec<_> = end_to_end::STREAMS.map(tcp).to_vec();
        throughput.push((end_to_end::UDP64.to_owned(), 1e3, "UDP 64 B kpps".to_owned()));
        throughput.push((end_to_end::UDP64_LOSS.to_owned(), 0.01, "lost %".to_owned()));
        throughput.push((
            end_to_end::CPU_PER_GIGABYTE.to_owned(),
            1.0,
            "TCP x1 CPU s/GB".to_owned(),
        ));
        throughput.push((
            end_to_end::RETRANSMISSIONS.to_owned(),
            1.0,
            "retransmitted".to_owned(),
        ));
        for bed in Bed::ALL {
            self.case_table(f, bed, &throughput)?;
        }
        let latency: Vec<_> = end_to_end::SIZES
            .into_iter()
            .flat_map(|size| {
                [50, 99].map(|percent| {
                    (
                        end_to_end::rr_metric(size, percent),
                        1.0,
                        format!("{size} B p{percent} us"),
                    )
                })
            })
            .collect();
        self.case_table(f, Bed::VethRouted, &latency)
    }

    fn case_table(&self, f: &mut Formatter<'_>, bed: Bed, columns: &[(String, f64, String)]) -> fmt::Result {
        let has = |case: &Case| {
            columns
                .iter()
                .any(|(figure, ..)| self.summary(&bed.subject(*case), figure).is_some())
        };
        let cases: Vec<Case> = Case::ALL.into_iter().filter(has).collect();
        if cases.is_empty() {
            return Ok(());
        }
        let line = |first: &str, cells: &mut dyn Iterator<Item = String>| {
            let line = cells.fold(format!("{first:<NAME_WIDTH$}"), |line, cell| {
                format!("{line}{cell:<CELL_WIDTH$}")
            });
            line.trim_end().to_owned()
        };
        let titles = &mut columns.iter().map(|(.., title)| title.clone());
        writeln!(f, "\n{}", line(bed.title(), titles))?;
        for case in cases {
            let cells = &mut columns.iter().map(|(figure, unit, _)| {
                self.summary(&bed.subject(case), figure)
                    .map_or_else(|| "-".to_owned(), |summary| cell(summary, *unit))
            });
            writeln!(f, "{}", line(case.title(), cells))?;
        }
        Ok(())
    }

    fn hop(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kinds = [
            (HopKind::Drop, "dropped at ingress: the source alone"),
            (HopKind::Wire, "redirected unchanged: the lower bound"),
            (HopKind::Forward, "plain forwarding by the kernel"),
            (HopKind::Transit, "mc-gateway, transit"),
            (HopKind::DriverDrop, "from the driver: dropped there"),
            (HopKind::DriverForward, "from the driver: plain forwarding"),
            (HopKind::DriverTransit, "from the driver: mc-gateway, transit"),
            (HopKind::XdpTransit, "from the driver: mc-gateway, XDP"),
        ];
        if self.summary(HopKind::Transit.name(), transit::RATE).is_none() {
            return Ok(());
        }
        let title = "single hop, 64 B, one CPU";
        writeln!(
            f,
            "\n{title:<NAME_WIDTH$}{:<CELL_WIDTH$}{:<CELL_WIDTH$}without the source",
            "kpps", "ns per packet"
        )?;
        for (kind, title) in kinds {
            let cell = |figure, unit| {
                self.summary(kind.name(), figure)
                    .map_or_else(|| "-".to_owned(), |summary| cell(summary, unit))
            };
            writeln!(
                f,
                "{title:<NAME_WIDTH$}{:<CELL_WIDTH$}{:<CELL_WIDTH$}{}",
                cell(transit::RATE, 1e3),
                cell(transit::TIME, 1.0),
                cell(transit::NET_TIME, 1.0)
            )?;
        }
        Ok(())
    }

    fn programs(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.nanoseconds.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{:<NAME_WIDTH$}ns per packet", "programs under 64 B UDP")?;
        for name in programs::METRICS {
            if let Some(summary) = self.nanoseconds_spread.get(name) {
                writeln!(f, "{name:<NAME_WIDTH$}{}", cell(*summary, 1.0))?;
            }
        }
        Ok(())
    }

    fn scaling(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for work in Operation::ALL {
            let mut rows = Vec::new();
            for curve in Curve::ALL {
                let subject = scaling::subject(work, curve);
                let points: Vec<String> = curve
                    .points()
                    .iter()
                    .filter_map(|point| {
                        let summary = self.summary(&subject, &point.to_string())?;
                        Some(format!("{point}: {}", cell(summary, 1.0)))
                    })
                    .collect();
                if !points.is_empty() {
                    rows.push(format!("{:<NAME_WIDTH$}{}", curve.title(), points.join(", ")));
                }
            }
            if !rows.is_empty() {
                let title = format!("{}, ns per packet by size of maps", work.name());
                writeln!(f, "\n{title}\n{}", rows.join("\n"))?;
            }
        }
        Ok(())
    }

    fn conclusions(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(failover) = self.failover_ms {
            writeln!(
                f,
                "\n{:<NAME_WIDTH$}p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms of {} trials",
                "gateway failure", failover.p50, failover.p99, failover.max, failover.trials
            )?;
        }
        if !self.targets.is_empty() {
            writeln!(f, "\n{:<NAME_WIDTH$}{:<CELL_WIDTH$}target", "targets", "figure")?;
        }
        for target in &self.targets {
            let key = ["ratios.", "beds."]
                .iter()
                .find_map(|report_key| target.metric.strip_prefix(report_key))
                .unwrap_or(&target.metric);
            let spread = self.ratio_spread.get(key);
            let figure = spread.map_or_else(
                || format!("{:.0}", target.value),
                |summary| format!("{:.2} ({:.2} .. {:.2})", summary.median, summary.min, summary.max),
            );
            let verdict = if target.reached { "ok" } else { "missed" };
            writeln!(
                f,
                "{:<NAME_WIDTH$}{figure:<CELL_WIDTH$}{:<8}{verdict}",
                target.metric,
                target.limit.to_string()
            )?;
        }
        if !self.more_ratios.is_empty() {
            writeln!(f, "\nfurther comparisons (for times, less is better)")?;
        }
        for name in self.more_ratios.keys() {
            if let Some(Summary { median, min, max }) = self.ratio_spread.get(name) {
                writeln!(f, "{name:<NAME_WIDTH$}{median:.2} ({min:.2} .. {max:.2})")?;
            }
        }
        for missing in &self.skipped {
            let how = if missing.failed { "failed" } else { "skipped" };
            writeln!(f, "\n{how}: {}: {}", missing.name, missing.reason)?;
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

fn cell(Summary { median, min, max }: Summary, unit: f64) -> String {
    // Three significant digits.
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
    use crate::bench::report::tests::{full_report, setup};

    #[test]
    fn the_table_has_every_case_target_and_skipped_section() {
        let text = full_report().to_string();
        for case in Case::ALL {
            let lines = text.lines().filter(|line| line.starts_with(case.title()));
            assert!(lines.count() >= 2, "{}: {text}", case.title());
        }
        for (target, _) in super::super::targets::TARGETS {
            assert!(text.contains(target), "{target}: {text}");
        }
        for word in ["skipped: something: unavailable", "note: a note", "missed", "ok"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn an_empty_report_has_only_the_header() {
        let report = Report::new(
            setup(),
            crate::bench::sample::Samples::default(),
            Vec::new(),
            Vec::new(),
        );
        assert_eq!(report.to_string().lines().count(), 2, "{report}");
    }
}
