//! Waiting for a condition with a deadline, never for a time to pass.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Pause between two looks at a condition.
const INTERVAL: Duration = Duration::from_millis(20);

/// Looks again and again until `probe` yields a value, at most for `deadline`.
///
/// `probe` answers what it saw instead; the error of an expired deadline quotes the last answer. The
/// condition is looked at least once, also with a deadline of zero.
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
                bail!("{what}: not seen within {deadline:?}; last seen: {seen}")
            }
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_returned_as_soon_as_it_is_seen() {
        let mut looks = 0;
        let seen = wait_for("third look", Duration::from_secs(5), || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err(format!("look {looks}"))
            }
        });
        assert_eq!(seen.unwrap(), 3);
    }

    #[test]
    fn expired_deadline_quotes_what_was_seen_last() {
        let error = wait_for("a miracle", Duration::ZERO, || Err::<(), _>("nothing".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a miracle: not seen within 0ns; last seen: nothing"
        );
    }
}
