//! The report as SVG 1.1: bars with their spread, and curves.

use std::fmt::Write as _;

use super::{
    bed::Bed,
    case::Case,
    end_to_end,
    report::{FAILOVER, Report},
    sample::Summary,
    scaling::{self, Curve, Operation},
};

const WIDTH: f64 = 720.0;
/// Height of a curve diagram, and of one bar.
const HEIGHT: f64 = 360.0;
const BAR: f64 = 30.0;
/// Margins for titles and labels: top, left, right, bottom.
const TOP: f64 = 40.0;
const LEFT: f64 = 290.0;
const RIGHT: f64 = 90.0;
const BOTTOM: f64 = 40.0;
/// Colours that also differ in brightness.
const COLOURS: [&str; 5] = ["#1b6ca8", "#e08214", "#4d9221", "#762a83", "#7a7a7a"];

/// All diagrams that the report has data for, by file name.
#[must_use]
pub fn all(report: &Report) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let cases_on = |bed: Bed, figure: &str, unit: f64| -> Vec<(&str, Summary)> {
        Case::ALL
            .into_iter()
            .filter_map(|case| {
                let Summary { median, min, max } = report.summary(&bed.subject(case), figure)?;
                let summary = Summary {
                    median: median / unit,
                    min: min / unit,
                    max: max / unit,
                };
                Some((case.title(), summary))
            })
            .collect()
    };
    let cases = |figure: &str, unit: f64| cases_on(Bed::VethRouted, figure, unit);
    let mut add = |file: &str, title: &str, bars: &[(&str, Summary)]| {
        if !bars.is_empty() {
            files.push((format!("{file}.svg"), self::bars(title, bars)));
        }
    };
    for streams in end_to_end::STREAMS {
        let title = format!("TCP over four hops, streams: {streams} (Gb/s)");
        add(
            &format!("tcp{streams}"),
            &title,
            &cases(&end_to_end::tcp_metric(streams), 1e9),
        );
    }
    let title = "64-byte UDP over four hops (thousand packets per second)";
    add("udp64", title, &cases(end_to_end::UDP64, 1e3));
    for bed in Bed::ALL.into_iter().filter(|bed| *bed != Bed::VethRouted) {
        add(
            &format!("tcp1-{}", bed.name()),
            &format!("One TCP stream, {} (Gb/s)", bed.title()),
            &cases_on(bed, &end_to_end::tcp_metric(1), 1e9),
        );
        add(
            &format!("udp64-{}", bed.name()),
            &format!("64-byte UDP, {} (thousand packets per second)", bed.title()),
            &cases_on(bed, end_to_end::UDP64, 1e3),
        );
    }
    for size in end_to_end::SIZES {
        let title = format!("Request and response of {size} bytes over four hops, p50 (µs)");
        add(
            &format!("rr{size}"),
            &title,
            &cases(&end_to_end::rr_metric(size, 50), 1.0),
        );
    }
    for work in Operation::ALL {
        let curves: Vec<(&str, Vec<(f64, f64)>)> = Curve::ALL
            .into_iter()
            .map(|curve| {
                let subject = scaling::subject(work, curve);
                let points = curve.points().iter().filter_map(|point| {
                    let summary = report.summary(&subject, &point.to_string())?;
                    Some((f64::from(*point), summary.median))
                });
                (curve.name(), points.collect::<Vec<_>>())
            })
            .filter(|(_, points)| !points.is_empty())
            .collect();
        if !curves.is_empty() {
            let name = work.name();
            let title = format!("Time of {name} by size of maps (ns per packet)");
            files.push((
                format!("scaling-{name}.svg"),
                lines(&title, "entries", true, &curves),
            ));
        }
    }
    let mut outages: Vec<f64> = report.samples.values(FAILOVER).collect();
    outages.sort_unstable_by(f64::total_cmp);
    if !outages.is_empty() {
        let trials = number(outages.len());
        let points = (1..)
            .zip(outages)
            .map(|(rank, outage)| (outage, 100.0 * f64::from(rank) / trials));
        let title = "Duration of packet loss after a gateway failure (cumulative % of trials)";
        let curve = [("trials", points.collect())];
        files.push(("failover.svg".to_owned(), lines(title, "ms", false, &curve)));
    }
    files
}

/// Horizontal bars of medians, with a line from minimum to maximum.
#[must_use]
pub fn bars(title: &str, bars: &[(&str, Summary)]) -> String {
    let most = bars.iter().map(|(_, summary)| summary.max).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let scale = |value: f64| value / most * (WIDTH - LEFT - RIGHT);
    let height = TOP + BAR * number(bars.len()) + 10.0;
    let mut svg = start(title, height);
    for (at, (label, Summary { median, min, max })) in bars.iter().enumerate() {
        let (top, middle) = (TOP + BAR * number(at), TOP + BAR * (number(at) + 0.5));
        let colour = if label.starts_with("mc-gateway") {
            COLOURS[0]
        } else {
            "#9aa5b1"
        };
        text(&mut svg, LEFT - 8.0, middle + 4.0, "end", label);
        // Infallible, here and below.
        let _ok = write!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" stroke=\"#222\"/>\n",
            top + 5.0,
            scale(*median),
            BAR - 10.0,
            LEFT + scale(*min),
            LEFT + scale(*max),
        );
        let shown = format!("{median:.1}");
        text(&mut svg, LEFT + scale(*max) + 8.0, middle + 4.0, "start", &shown);
    }
    svg + "</svg>\n"
}

/// Curves over a linear or logarithmic x axis; the y axis starts at 0.
#[must_use]
pub fn lines(title: &str, unit: &str, logarithmic: bool, curves: &[(&str, Vec<(f64, f64)>)]) -> String {
    const LEFT: f64 = 60.0;
    let place = |x: f64| if logarithmic { x.max(1e-9).log10() } else { x };
    let points = || curves.iter().flat_map(|(_, points)| points);
    let least = points().map(|(x, _)| place(*x)).fold(f64::INFINITY, f64::min);
    let most = points().map(|(x, _)| place(*x)).fold(f64::NEG_INFINITY, f64::max);
    let highest = points().map(|(_, y)| *y).fold(0.0, f64::max).max(1e-9);
    let span = if most > least { most - least } else { 1.0 };
    let across = |x: f64| LEFT + (place(x) - least) / span * (WIDTH - LEFT - 170.0);
    let up = |y: f64| HEIGHT - BOTTOM - y / highest * (HEIGHT - TOP - BOTTOM);
    let mut svg = start(title, HEIGHT);
    for quarter in 0..=4 {
        let value = highest * f64::from(quarter) / 4.0;
        let _ok = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/>",
            up(value),
            WIDTH - 170.0
        );
        text(
            &mut svg,
            LEFT - 6.0,
            up(value) + 4.0,
            "end",
            &format!("{value:.0}"),
        );
    }
    let mut ticks: Vec<f64> = if logarithmic {
        points().map(|(x, _)| *x).collect()
    } else {
        (0..=4).map(|part| least + span * f64::from(part) / 4.0).collect()
    };
    ticks.sort_unstable_by(f64::total_cmp);
    let mut previous = f64::NEG_INFINITY;
    for tick in ticks {
        // Overlapping labels are omitted.
        if across(tick) - previous > 44.0 {
            previous = across(tick);
            text(
                &mut svg,
                previous,
                HEIGHT - BOTTOM + 18.0,
                "middle",
                &format!("{tick:.0}"),
            );
        }
    }
    text(&mut svg, WIDTH - 165.0, HEIGHT - BOTTOM + 18.0, "start", unit);
    for ((name, points), colour) in curves.iter().zip(COLOURS.into_iter().cycle()) {
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", across(*x), up(*y)))
            .collect();
        let _ok = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        if let Some((x, y)) = points.last() {
            text(&mut svg, across(*x) + 6.0, up(*y) + 4.0, "start", name);
        }
    }
    svg + "</svg>\n"
}

fn start(title: &str, height: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let _ok = writeln!(
        svg,
        "<text x=\"16\" y=\"24\" font-size=\"15\" fill=\"#222\">{}</text>",
        escaped(title)
    );
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ok = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222\">{}</text>",
        escaped(text)
    );
}

/// Escapes text for XML (XML 1.0 section 2.4).
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::bench::report::tests::{full_report, setup};

    /// Checks that every element is closed.
    fn well_formed(svg: &str) {
        let count = |what: &str| svg.matches(what).count();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(count("<text "), count("</text>"), "{svg}");
        assert_eq!(
            count("<rect ") + count("<line ") + count("<polyline "),
            count("/>"),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_full_report_has_all_diagrams() {
        let files = all(&full_report());
        let names: BTreeSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "tcp1.svg",
            "tcp2.svg",
            "tcp4.svg",
            "udp64.svg",
            "tcp1-wire-like-routed.svg",
            "udp64-wire-like-routed.svg",
            "tcp1-nics-bridge.svg",
            "rr64.svg",
            "rr1024.svg",
            "rr8192.svg",
            "scaling-transit.svg",
            "scaling-encap.svg",
            "failover.svg",
        ] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        // Four of one bed, two of each other.
        assert_eq!(names.len(), 4 + 2 * (Bed::ALL.len() - 1) + 6);
        for (name, svg) in &files {
            println!("{name}");
            well_formed(svg);
        }
    }

    #[test]
    fn an_empty_report_has_no_diagrams() {
        let samples = crate::bench::sample::Samples::default();
        assert_eq!(all(&Report::new(setup(), samples, Vec::new(), Vec::new())), []);
    }

    #[test]
    fn bar_lengths_are_proportional() {
        let summary = |median| Summary {
            median,
            min: median,
            max: median,
        };
        let svg = bars("a < b", &[("one", summary(5.0)), ("two", summary(10.0))]);
        well_formed(&svg);
        assert!(svg.contains("a &lt; b"));
        assert!(
            svg.contains("width=\"170.0\"") && svg.contains("width=\"340.0\""),
            "{svg}"
        );
    }

    #[test]
    fn single_points_and_zeros_can_be_drawn() {
        well_formed(&lines("one", "x", true, &[("a", vec![(1.0, 1.0)])]));
        well_formed(&lines("zero", "x", false, &[("a", vec![(0.0, 0.0), (0.0, 0.0)])]));
        well_formed(&bars("none", &[("a", Summary::default())]));
    }
}
