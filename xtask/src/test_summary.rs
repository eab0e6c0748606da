//! Counts of passed, failed and skipped tests, read from the output of test programs.

use std::{
    fmt::{self, Write as _},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::cmd;

/// First word of the line that a skipped test prints. libtest itself reports such a test as passed.
const SKIPPED: &str = "SKIPPED: ";

/// Counts of a suite or a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestSummary {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Tests that could not run here; never counted as passed.
    pub(crate) skipped: u32,
}

/// Reads counts from the output of test programs, line by line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResultReader {
    summary: TestSummary,
    /// Skipped tests of the current program.
    skipped: u32,
}

/// Time and counts of one suite.
#[derive(Clone, Debug)]
pub(crate) struct SuiteResult {
    pub(crate) name: String,
    pub(crate) elapsed: Duration,
    pub(crate) summary: TestSummary,
}

// === impl TestSummary ===

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

    /// Runs `cargo test …`, shows its output and counts its results. A run that fails without a failed test (a
    /// compilation error, a crash) counts as one failure.
    pub(crate) fn cargo_test(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.cargo_test_with(name, command, |_| {})
    }

    /// Like [`Self::cargo_test`]; `on_line` receives every line.
    pub(crate) fn cargo_test_with(
        &mut self,
        name: &str,
        command: &mut Command,
        mut on_line: impl FnMut(&str),
    ) -> Result<()> {
        println!("== {name}");
        let mut reader = ResultReader::default();
        let status = cmd::stream_lines(command, |line| {
            println!("{line}");
            reader.read_line(line);
            on_line(line);
        })
        .with_context(|| name.to_owned())?;
        let mut summary = reader.summary();
        if !status.success() && summary.failed == 0 {
            println!("FAILED: {name}: cargo test ended with {status}");
            summary.failed = 1;
        }
        self.add(summary);
        Ok(())
    }

    /// Parses the closing line of a run: `3 passed, 0 failed` or `3 passed, 0 failed, 1 skipped`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(", ");
        let mut count = |word: &str| {
            let number = parts.next()?.strip_suffix(word)?.strip_suffix(' ')?;
            number.parse().ok()
        };
        let (passed, failed) = (count("passed")?, count("failed")?);
        let skipped = count("skipped").unwrap_or_default();
        let summary = Self {
            passed,
            failed,
            skipped,
        };
        (summary.to_string() == line).then_some(summary)
    }

    /// Adds the counts of another summary.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for TestSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

// === impl ResultReader ===

impl ResultReader {
    /// Counts a line `test result: ok. 3 passed; 0 failed; 0 ignored; …` or `SKIPPED: reason`; ignores other lines.
    pub(crate) fn read_line(&mut self, line: &str) {
        if line.starts_with(SKIPPED) {
            self.skipped += 1;
            return;
        }
        let Some((_, result)) = line.split_once("test result: ") else {
            return;
        };
        let count = |word: &str| {
            let (before, _) = result.split_once(word)?;
            before.split_whitespace().next_back()?.parse::<u32>().ok()
        };
        let skipped = std::mem::take(&mut self.skipped);
        self.summary.add(TestSummary {
            passed: count(" passed;").unwrap_or(0).saturating_sub(skipped),
            failed: count(" failed;").unwrap_or(0),
            skipped: skipped + count(" ignored;").unwrap_or(0),
        });
    }

    /// The counts so far.
    pub(crate) fn summary(&self) -> TestSummary {
        self.summary
    }
}

/// Time and counts of every suite, one per line.
pub(crate) fn table(results: &[SuiteResult]) -> String {
    let mut table = format!(
        "{:<14} {:>7} {:>7} {:>7} {:>8}\n",
        "suite", "seconds", "passed", "failed", "skipped"
    );
    for SuiteResult {
        name,
        elapsed,
        summary,
    } in results
    {
        let seconds = elapsed.as_secs_f32();
        let TestSummary {
            passed,
            failed,
            skipped,
        } = summary;
        // Writing to a string cannot fail.
        let _ok = writeln!(
            table,
            "{name:<14} {seconds:>7.0} {passed:>7} {failed:>7} {skipped:>8}"
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> TestSummary {
        let mut reader = ResultReader::default();
        for line in lines {
            reader.read_line(line);
        }
        reader.summary()
    }

    #[test]
    fn results_are_counted_and_other_lines_are_not() {
        let summary = read(&[
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "test a_name_with_passed ... ok",
        ]);
        assert_eq!(summary.to_string(), "16 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let summary = read(&[
            "SKIPPED: upgrade: no older release",
            "test result: ok. 2 passed; 0 failed; 0 ignored;",
            "test result: ok. 1 passed; 0 failed; 0 ignored;",
        ]);
        assert_eq!(summary.to_string(), "2 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn closing_lines_are_parsed() {
        for line in ["16 passed, 3 failed", "0 passed, 0 failed, 2 skipped"] {
            assert_eq!(TestSummary::parse(line).unwrap().to_string(), line);
        }
        for line in [
            "e2e: 16 passed, 3 failed",
            "16 passed, 3 failed, 1 ignored",
            "16 passed",
        ] {
            assert_eq!(TestSummary::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_table_has_one_line_per_suite() {
        let result = SuiteResult {
            name: "e2e".to_owned(),
            elapsed: Duration::from_secs(71),
            summary: TestSummary {
                passed: 60,
                failed: 0,
                skipped: 1,
            },
        };
        assert_eq!(
            table(&[result]),
            "suite          seconds  passed  failed  skipped\ne2e                 71      60       0        1\n"
        );
    }
}
