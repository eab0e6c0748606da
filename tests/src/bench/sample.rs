//! Single measurements, their medians and ratios.

use serde::{Deserialize, Serialize};

/// A single measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Round, from 1.
    pub round: u32,
    /// The measured case, hop or curve.
    pub subject: String,
    /// Name of the metric.
    pub metric: String,
    /// The value in the metric's unit.
    pub value: f64,
}

/// Median and spread of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// All samples of a run in chronological order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(Vec<Sample>);

/// A metric of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricKey<'a> {
    /// See [`Sample::subject`].
    pub subject: &'a str,
    /// See [`Sample::metric`].
    pub metric: &'a str,
}

// === impl Summary ===

impl Summary {
    /// Summarizes values; `None` without any.
    #[must_use]
    pub fn from_values(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = if sorted.len() % 2 == 1 {
            upper
        } else {
            f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, upper)
        };
        Some(Self {
            median,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// Percentile by nearest rank; `None` without any values.
#[must_use]
pub fn percentile(figures: impl IntoIterator<Item = f64>, percent: usize) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

// === impl Samples ===

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// All samples.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter()
    }

    /// The values of a metric over all rounds.
    pub fn values(&self, of: MetricKey<'_>) -> impl Iterator<Item = f64> {
        self.0
            .iter()
            .filter(move |one| one.subject == of.subject && one.metric == of.metric)
            .map(|one| one.value)
    }

    /// Median and spread of a metric; `None` if it was not measured.
    #[must_use]
    pub fn summary(&self, of: MetricKey<'_>) -> Option<Summary> {
        Summary::from_values(self.values(of))
    }

    /// Median and spread of the ratios of two metrics within each round that has both. Ratios within a round cancel
    /// variations of the machine's speed.
    #[must_use]
    pub fn ratio(&self, of: MetricKey<'_>, by: MetricKey<'_>) -> Option<Summary> {
        let find = |round: u32, of: MetricKey<'_>| {
            self.0
                .iter()
                .find(|one| one.round == round && one.subject == of.subject && one.metric == of.metric)
                .map(|one| one.value)
        };
        let own = self
            .0
            .iter()
            .filter(|one| one.subject == of.subject && one.metric == of.metric);
        Summary::from_values(
            own.filter_map(|one| Some(one.value / find(one.round, by)?))
                .filter(|quotient| quotient.is_finite()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MetricKey<'_> = MetricKey {
        subject: "a",
        metric: "speed",
    };
    const B: MetricKey<'_> = MetricKey {
        subject: "b",
        metric: "speed",
    };

    fn samples(values: &[(u32, MetricKey<'_>, f64)]) -> Samples {
        Samples(
            values
                .iter()
                .map(|(round, of, value)| Sample {
                    round: *round,
                    subject: of.subject.to_owned(),
                    metric: of.metric.to_owned(),
                    value: *value,
                })
                .collect(),
        )
    }

    #[test]
    fn medians_of_odd_even_and_no_values() {
        let odd = Summary::from_values([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        let even = Summary::from_values([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert!((even.median - 2.5).abs() < 1e-9);
        assert_eq!(Summary::from_values([]), None);
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let hundred = || (1..=100).rev().map(f64::from);
        assert_eq!(percentile(hundred(), 50), Some(50.0));
        assert_eq!(percentile(hundred(), 99), Some(99.0));
        assert_eq!(percentile([7.0], 1), Some(7.0));
        assert_eq!(percentile([], 99), None);
    }

    #[test]
    fn ratios_are_computed_within_a_round() {
        // The machine is twice as fast in the second round; the ratio is unaffected.
        let samples = samples(&[(1, A, 8.0), (1, B, 10.0), (2, B, 20.0), (2, A, 16.0)]);
        let quotient = samples.ratio(A, B).unwrap();
        assert!((quotient.median - 0.8).abs() < 1e-9, "{quotient:?}");
        assert!((quotient.max - 0.8).abs() < 1e-9, "{quotient:?}");
    }

    #[test]
    fn a_ratio_requires_both_metrics_and_a_divisor() {
        assert_eq!(samples(&[(1, A, 8.0), (2, B, 1.0)]).ratio(A, B), None);
        assert_eq!(samples(&[(1, A, 8.0), (1, B, 0.0)]).ratio(A, B), None);
    }
}
