//! The metric families of one scrape, gathered when the request arrives.
//!
//! Most values live in BPF maps or in a snapshot of the main loop's state, so they are a [`Collector`] of constant
//! samples instead of registered counters and gauges. `prometheus-client` writes the text: `OpenMetrics` 1.0, where a
//! counter family is declared without the suffix `_total` and its samples carry it.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::process::{self, Usage};

/// Content type for a scraper that accepts `OpenMetrics`.
pub const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type for every other scraper. The same text is valid in the Prometheus format, with untyped counters.
pub const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only increases, except at a restart.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts by upper bound.
    Histogram,
}

/// Names and values of labels.
pub type Labels<'a> = [(&'static str, &'a str)];

/// A sample's number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Written without a decimal point.
    Integer(u64),
    /// Written with a decimal point.
    Float(f64),
}

#[derive(Clone, Debug)]
enum Value {
    Number(Number),
    /// Count of each bucket by upper bound, and the sum of all observations.
    Buckets(Vec<(f64, u64)>, f64),
    Histogram(Histogram),
}

#[derive(Clone, Debug)]
struct Family {
    name: &'static str,
    kind: Kind,
    help: String,
    samples: Vec<(Vec<(&'static str, String)>, Value)>,
}

/// Metric families in the order of their declaration.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    families: Vec<Family>,
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<u32> for Number {
    fn from(value: u32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<u8> for Number {
    fn from(value: u8) -> Self {
        Self::Integer(value.into())
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Self {
        Self::Integer(u64::try_from(value).unwrap_or(u64::MAX))
    }
}

impl<T: Copy + Into<Self>> From<&T> for Number {
    fn from(value: &T) -> Self {
        (*value).into()
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

// === impl Scrape ===

impl Scrape {
    /// Declares a family; the following samples belong to it.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        self.families.push(Family {
            name,
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
    }

    /// Adds a sample to the family.
    pub fn value(&mut self, labels: &Labels<'_>, value: impl Into<Number>) {
        self.push(labels, Value::Number(value.into()));
    }

    /// Declares a family with one sample.
    pub fn single(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Into<Number>) {
        self.family(name, kind, help);
        self.value(&[], value);
    }

    /// Adds a histogram to the family: the count of each bucket with its upper bound, [`f64::INFINITY`] for the last,
    /// and the sum of all observations.
    pub fn buckets(&mut self, labels: &Labels<'_>, buckets: impl Iterator<Item = (f64, u64)>, sum: f64) {
        self.push(labels, Value::Buckets(buckets.collect(), sum));
    }

    /// Adds a histogram to the family.
    pub fn histogram(&mut self, labels: &Labels<'_>, histogram: &Histogram) {
        self.push(labels, Value::Histogram(histogram.clone()));
    }

    /// The text of these families and of the process's own metrics.
    pub fn encode(mut self) -> Result<String, fmt::Error> {
        self.process(process::usage());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// Adds the metrics of the process, under the names of Prometheus' own client libraries.
    fn process(&mut self, usage: Usage) {
        if let Some(bytes) = usage.resident_bytes {
            self.single(
                "process_resident_memory_bytes",
                Kind::Gauge,
                "Resident memory of the process.",
                bytes,
            );
        }
        if let Some(seconds) = usage.cpu_seconds {
            self.single(
                "process_cpu_seconds_total",
                Kind::Counter,
                "CPU time of the process, user and system.",
                seconds,
            );
        }
    }

    fn push(&mut self, labels: &Labels<'_>, value: Value) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned()));
        if let Some(family) = self.families.last_mut() {
            family.samples.push((labels.collect(), value));
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.families {
            family.encode(&mut encoder)?;
        }
        Ok(())
    }
}

// === impl Family ===

impl Family {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        // The encoder adds the suffix to each sample of a counter.
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut encoder = encoder.encode_descriptor(name, &self.help, None, kind)?;
        if let [(labels, value)] = self.samples.as_slice()
            && labels.is_empty()
        {
            // An empty label set would be written as `{}`.
            return value.encode(self.kind, encoder);
        }
        for (labels, value) in &self.samples {
            value.encode(self.kind, encoder.encode_family(labels)?)?;
        }
        Ok(())
    }
}

// === impl Value ===

impl Value {
    fn encode(&self, kind: Kind, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match (self, kind) {
            (Self::Histogram(histogram), _) => histogram.encode(encoder),
            (Self::Buckets(buckets, sum), _) => {
                let count = buckets
                    .iter()
                    .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
            (Self::Number(Number::Integer(value)), Kind::Counter) => {
                encoder.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            (Self::Number(Number::Float(value)), Kind::Counter) => {
                encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
            }
            (Self::Number(Number::Integer(value)), _) => encoder.encode_gauge(value),
            (Self::Number(Number::Float(value)), _) => encoder.encode_gauge(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_labels_and_histograms() {
        let mut scrape = Scrape::default();
        scrape.single("up", Kind::Gauge, "State.", true);
        scrape.family("drops_total", Kind::Counter, "Drops.");
        scrape.value(&[("reason", "a\"b\\c\nd")], 7_u64);
        scrape.family("rtt_seconds", Kind::Histogram, "Times.");
        let buckets = [(0.000_032_768, 2), (1.024, 0), (f64::INFINITY, 1)];
        scrape.buckets(&[("m", "x")], buckets.into_iter(), 2.5);
        let text = scrape.encode().unwrap();
        let expected = "# HELP up State.\n# TYPE up gauge\nup 1\n\
             # HELP drops Drops.\n# TYPE drops counter\ndrops_total{reason=\"a\\\"b\\\\c\\nd\"} 7\n\
             # HELP rtt_seconds Times.\n# TYPE rtt_seconds histogram\n\
             rtt_seconds_sum{m=\"x\"} 2.5\nrtt_seconds_count{m=\"x\"} 3\n\
             rtt_seconds_bucket{le=\"0.000032768\",m=\"x\"} 2\nrtt_seconds_bucket{le=\"1.024\",m=\"x\"} 2\n\
             rtt_seconds_bucket{le=\"+Inf\",m=\"x\"} 3\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn an_observation_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = crate::duration_histogram();
        for seconds in [0.001, 0.002, 60.0] {
            histogram.observe(seconds);
        }
        let mut scrape = Scrape::default();
        scrape.family("d_seconds", Kind::Histogram, "Duration.");
        scrape.histogram(&[], &histogram);
        let text = scrape.encode().unwrap();
        for line in [
            "d_seconds_bucket{le=\"0.001\"} 1",
            "d_seconds_bucket{le=\"0.004\"} 2",
            "d_seconds_bucket{le=\"+Inf\"} 3",
            "d_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn every_scrape_has_the_metrics_of_the_process() {
        let text = Scrape::default().encode().unwrap();
        for name in ["process_resident_memory_bytes", "process_cpu_seconds_total"] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
        }
    }
}
