//! Waiting for a condition, and progress messages.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Result of one check of a condition.
#[derive(Debug)]
pub(crate) enum Poll<T> {
    /// The condition holds.
    Ready(T),
    /// It does not hold yet; the observed state.
    Pending(String),
}

/// Checks until the condition holds. Fails if `check` fails, or at the deadline with the last observed state.
pub(crate) fn wait_for<T>(
    condition: &str,
    timeout: Duration,
    mut check: impl FnMut() -> Result<Poll<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match check()? {
            Poll::Ready(value) => return Ok(value),
            Poll::Pending(state) if start.elapsed() >= timeout => {
                bail!(
                    "waited {} s for {condition}; last state: {state}",
                    timeout.as_secs()
                )
            }
            Poll::Pending(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Prints one line per step, with the seconds since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts counting.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Prints a line.
    pub(crate) fn report(&self, line: impl std::fmt::Display) {
        println!("[{:6.1} s] {line}", self.seconds());
    }

    /// Seconds since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_reports_the_last_state() {
        let check = || Ok(Poll::<()>::Pending("still dark".to_owned()));
        let error = wait_for("light", Duration::ZERO, check).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for light; last state: still dark");
    }
}
