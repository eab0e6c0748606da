//! Waiting for a condition, and telling how far things are.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What one look at a condition found.
#[derive(Debug)]
pub(crate) enum Poll<T> {
    /// The condition holds.
    Ready(T),
    /// It does not hold yet; what was seen instead.
    Pending(String),
}

/// Looks until the condition holds. Errors when `look` does, or at the deadline, telling what was seen last.
pub(crate) fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut look: impl FnMut() -> Result<Poll<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match look()? {
            Poll::Ready(value) => return Ok(value),
            Poll::Pending(seen) if start.elapsed() >= timeout => {
                bail!("waited {} s for {what}; last seen: {seen}", timeout.as_secs())
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
    fn waiting_tells_what_was_seen_last() {
        let look = || Ok(Poll::<()>::Pending("still dark".to_owned()));
        let error = wait_for("light", Duration::ZERO, look).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for light; last seen: still dark");
    }
}
