//! The Prometheus text exposition format, version 0.0.4. Pure.

use std::fmt::{Display, Write as _};

/// Content type of what [`Text`] makes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, except when it starts again.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bound.
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Names and values of labels.
pub type Labels<'a> = [(&'static str, &'a str)];

/// Metrics as text, one family after the other.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
    family: &'static str,
}

impl Text {
    /// Starts a family: what follows belongs to it.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        self.family = name;
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.name()));
    }

    /// A value of the family.
    pub fn value(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.sample("", labels, None, value);
    }

    /// A family with one value.
    pub fn single(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.value(&[], value);
    }

    /// A histogram: the count of each bucket alone with its upper bound, the last without one, and the sum
    /// of what was counted.
    pub fn histogram(
        &mut self,
        labels: &Labels<'_>,
        buckets: impl Iterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        let mut total: u64 = 0;
        for (bound, count) in buckets {
            total = total.saturating_add(count);
            if let Some(bound) = bound {
                self.sample("_bucket", labels, Some(&bound.to_string()), total);
            }
        }
        self.sample("_bucket", labels, Some("+Inf"), total);
        self.sample("_sum", labels, None, sum);
        self.sample("_count", labels, None, total);
    }

    /// Everything.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    fn sample(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<&str>, value: impl Display) {
        let pairs = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape(value)));
        let bound = bound.map(|bound| format!("le=\"{bound}\""));
        let pairs: Vec<String> = pairs.chain(bound).collect();
        let name = self.family;
        if pairs.is_empty() {
            self.line(format_args!("{name}{suffix} {value}"));
        } else {
            self.line(format_args!("{name}{suffix}{{{}}} {value}", pairs.join(",")));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        if writeln!(self.text, "{line}").is_err() {
            self.text.push('\n');
        }
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_labels_and_histograms() {
        let mut text = Text::default();
        text.single("up", Kind::Gauge, "Whether.", 1);
        text.family("drops_total", Kind::Counter, "Drops.");
        text.value(&[("reason", "a\"b\\c\nd")], 7);
        text.family("rtt_seconds", Kind::Histogram, "Times.");
        text.histogram(
            &[("m", "x")],
            [(Some(0.5), 2), (Some(1.0), 0), (None, 1)].into_iter(),
            2.5,
        );
        assert_eq!(
            text.finish(),
            "# HELP up Whether.\n# TYPE up gauge\nup 1\n\
             # HELP drops_total Drops.\n# TYPE drops_total counter\ndrops_total{reason=\"a\\\"b\\\\c\\nd\"} 7\n\
             # HELP rtt_seconds Times.\n# TYPE rtt_seconds histogram\n\
             rtt_seconds_bucket{m=\"x\",le=\"0.5\"} 2\nrtt_seconds_bucket{m=\"x\",le=\"1\"} 2\n\
             rtt_seconds_bucket{m=\"x\",le=\"+Inf\"} 3\nrtt_seconds_sum{m=\"x\"} 2.5\nrtt_seconds_count{m=\"x\"} 3\n"
        );
    }
}
