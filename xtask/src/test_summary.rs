//! Counts of passed and failed tests, read from what test programs print.

use std::{fmt, process::Command};

use anyhow::{Context as _, Result};

use crate::cmd;

/// Passed and failed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestSummary {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
}

impl TestSummary {
    /// Counts a step that is one test of its own; prints its error.
    pub(crate) fn step(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("ok: {name}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED: {name}: {error:#}");
            }
        }
    }

    /// Runs `cargo test …`, shows its output and counts its results. A run that fails without a failed
    /// test (it did not compile, it crashed) counts as one failure.
    pub(crate) fn cargo_test(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.cargo_test_with(name, command, |_| {})
    }

    /// The same; `tell` hears every line.
    pub(crate) fn cargo_test_with(
        &mut self,
        name: &str,
        command: &mut Command,
        mut tell: impl FnMut(&str),
    ) -> Result<()> {
        println!("== {name}");
        let mut seen = Self::default();
        let status = cmd::stream_lines(command, |line| {
            println!("{line}");
            seen.add_result_line(line);
            tell(line);
        })
        .with_context(|| name.to_owned())?;
        if !status.success() && seen.failed == 0 {
            println!("FAILED: {name}: cargo test ended with {status}");
            seen.failed = 1;
        }
        self.add(seen);
        Ok(())
    }

    /// The counts of a line that is a tally itself, the last one of a run: `3 passed, 0 failed`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (passed, failed) = line.strip_suffix(" failed")?.split_once(" passed, ")?;
        Some(Self {
            passed: passed.parse().ok()?,
            failed: failed.parse().ok()?,
        })
    }

    /// Adds what another has counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Adds the counts of a line `test result: ok. 3 passed; 0 failed; …`; other lines count nothing.
    pub(crate) fn add_result_line(&mut self, line: &str) {
        let Some((_, result)) = line.split_once("test result: ") else {
            return;
        };
        let count = |what: &str| {
            let before = result
                .split(what)
                .next()
                .filter(|before| before.len() < result.len())?;
            before.split_whitespace().next_back()?.parse::<u32>().ok()
        };
        self.passed += count(" passed;").unwrap_or(0);
        self.failed += count(" failed;").unwrap_or(0);
    }
}

impl fmt::Display for TestSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_and_other_lines_are_not() {
        let mut tally = TestSummary::default();
        tally.add_result_line(
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        tally.add_result_line("test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.add_result_line("test a_name_with_passed ... ok");
        assert_eq!(
            tally,
            TestSummary {
                passed: 16,
                failed: 3
            }
        );
        assert_eq!(tally.to_string(), "16 passed, 3 failed");
        assert_eq!(TestSummary::parse("16 passed, 3 failed"), Some(tally));
        assert_eq!(
            TestSummary::parse("e2e: 16 passed, 3 failed"),
            None,
            "of one suite"
        );
    }
}
