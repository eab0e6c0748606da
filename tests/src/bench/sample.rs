//! Single measurements, and what medians and quotients of them say. Pure.

use serde::{Deserialize, Serialize};

/// One figure, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Counts from 1.
    pub round: u32,
    /// What was measured: a case, a kind of hop, a growing table.
    pub subject: String,
    /// Which figure of it.
    pub figure: String,
    /// The value, in the figure's unit.
    pub value: f64,
}

/// Median and spread of one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// All samples of a run, in the order they were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(Vec<Sample>);

/// A figure of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Of<'a> {
    /// See [`Sample::subject`].
    pub subject: &'a str,
    /// See [`Sample::figure`].
    pub figure: &'a str,
}

// === impl Summary ===

impl Summary {
    /// Sums up figures; `None` of none.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
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

/// The value below which `percent` of 100 figures lie, by nearest rank; `None` of none.
#[must_use]
pub fn percentile(figures: impl IntoIterator<Item = f64>, percent: usize) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

// === impl Samples ===

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter()
    }

    /// The values of a figure over all rounds.
    pub fn values(&self, of: Of<'_>) -> impl Iterator<Item = f64> {
        self.0
            .iter()
            .filter(move |one| one.subject == of.subject && one.figure == of.figure)
            .map(|one| one.value)
    }

    /// Median and spread of a figure; `None` if it was not measured.
    #[must_use]
    pub fn summary(&self, of: Of<'_>) -> Option<Summary> {
        Summary::of(self.values(of))
    }

    /// For each round that has both figures their quotient; of these, median and spread. Comparing within
    /// a round cancels what the machine does over time.
    #[must_use]
    pub fn quotient(&self, of: Of<'_>, by: Of<'_>) -> Option<Summary> {
        let find = |round: u32, of: Of<'_>| {
            self.0
                .iter()
                .find(|one| one.round == round && one.subject == of.subject && one.figure == of.figure)
                .map(|one| one.value)
        };
        let own = self
            .0
            .iter()
            .filter(|one| one.subject == of.subject && one.figure == of.figure);
        Summary::of(
            own.filter_map(|one| Some(one.value / find(one.round, by)?))
                .filter(|quotient| quotient.is_finite()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Of<'_> = Of {
        subject: "a",
        figure: "speed",
    };
    const B: Of<'_> = Of {
        subject: "b",
        figure: "speed",
    };

    fn samples(values: &[(u32, Of<'_>, f64)]) -> Samples {
        Samples(
            values
                .iter()
                .map(|(round, of, value)| Sample {
                    round: *round,
                    subject: of.subject.to_owned(),
                    figure: of.figure.to_owned(),
                    value: *value,
                })
                .collect(),
        )
    }

    #[test]
    fn median_of_odd_even_and_none() {
        let odd = Summary::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        let even = Summary::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert!((even.median - 2.5).abs() < 1e-9);
        assert_eq!(Summary::of([]), None);
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
    fn quotients_compare_within_a_round() {
        // The machine is twice as fast in the second round: the quotient must not notice.
        let samples = samples(&[(1, A, 8.0), (1, B, 10.0), (2, B, 20.0), (2, A, 16.0)]);
        let quotient = samples.quotient(A, B).unwrap();
        assert!((quotient.median - 0.8).abs() < 1e-9, "{quotient:?}");
        assert!((quotient.max - 0.8).abs() < 1e-9, "{quotient:?}");
    }

    #[test]
    fn quotient_needs_both_figures_and_a_divisor() {
        assert_eq!(samples(&[(1, A, 8.0), (2, B, 1.0)]).quotient(A, B), None);
        assert_eq!(samples(&[(1, A, 8.0), (1, B, 0.0)]).quotient(A, B), None);
    }
}
