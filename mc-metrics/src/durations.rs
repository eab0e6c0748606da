//! Counts of what takes time, by how long it took. Pure.

use std::time::Duration;

use crate::text::{Labels, Text};

/// Upper bounds, in seconds.
pub const BOUNDS: [f64; 8] = [0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096, 16.384];

/// Counts by duration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Durations {
    /// By [`BOUNDS`], the last for all that are longer.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// Sum in seconds.
    pub sum: f64,
}

impl Durations {
    /// Counts one.
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let place = BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = self.buckets.get_mut(place.unwrap_or(BOUNDS.len())) {
            *bucket = bucket.saturating_add(1);
        }
        self.sum += seconds;
    }

    /// Writes them as the histogram of the family.
    pub fn write(&self, text: &mut Text, labels: &Labels<'_>) {
        let bounds = BOUNDS.into_iter().map(Some).chain([None]);
        text.histogram(labels, bounds.zip(self.buckets), self.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_its_bound() {
        let mut durations = Durations::default();
        for millis in [1, 2, 60_000] {
            durations.add(Duration::from_millis(millis));
        }
        assert_eq!(durations.buckets, [1, 1, 0, 0, 0, 0, 0, 0, 1]);
        let mut text = Text::default();
        text.family("d_seconds", crate::text::Kind::Histogram, "How long.");
        durations.write(&mut text, &[]);
        let text = text.finish();
        for line in [
            "d_seconds_bucket{le=\"0.004\"} 2",
            "d_seconds_bucket{le=\"+Inf\"} 3",
            "d_seconds_count 3",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
