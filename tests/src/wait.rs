//! Polling of a condition until a deadline, in place of fixed sleeps.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Pause between two polls.
const INTERVAL: Duration = Duration::from_millis(20);

/// Polls `probe` until it yields a value or the deadline expires.
///
/// The error of `probe` describes the observed state; the error of an expired deadline quotes the last one. The
/// condition is polled at least once, also with a deadline of zero.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl FnMut() -> Result<T, String>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(seen) if start.elapsed() >= deadline => {
                bail!("timeout after {deadline:?} waiting for {what}; last state: {seen}")
            }
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_is_returned() {
        let mut polls = 0;
        let value = wait_for("the third poll", Duration::from_secs(5), || {
            polls += 1;
            if polls == 3 {
                Ok(polls)
            } else {
                Err(format!("poll {polls}"))
            }
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn an_expired_deadline_quotes_the_last_state() {
        let error = wait_for("a route", Duration::ZERO, || Err::<(), _>("no route".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "timeout after 0ns waiting for a route; last state: no route"
        );
    }
}
