//! Durations as people write them: `100ms`, `1s`.

use std::time::Duration;

/// Parses a number with the unit `ms` or `s`.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u32 = digits.parse().ok()?;
    match text.strip_prefix(digits)? {
        "ms" => Some(Duration::from_millis(number.into())),
        "s" => Some(Duration::from_secs(number.into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_a_unit() {
        assert_eq!(parse("100ms"), Some(Duration::from_millis(100)));
        assert_eq!(parse("1s"), Some(Duration::from_secs(1)));
        assert_eq!(parse("0s"), Some(Duration::ZERO));
        for bad in [
            "",
            "100",
            "ms",
            "1m",
            "-1s",
            "1.5s",
            "1 s",
            "99999999999s",
            "s1",
            "1sms",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
