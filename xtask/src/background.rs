//! Suites that run in the background of others, as a process of lowest priority.

use std::{
    env,
    process::{Command, ExitStatus},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};

use crate::{
    cmd,
    test_summary::{SuiteResult, TestSummary},
};

/// Lowest priority within a session, and of the session where the kernel schedules by session (`sched(7)`, autogroup);
/// hence `setsid`. SIGTERM follows the end of the parent process.
const LOWEST_PRIORITY: [&str; 10] = [
    "setsid",
    "setpriv",
    "--pdeathsig=TERM",
    "nice",
    "-n",
    "19",
    "sh",
    "-c",
    "echo 19 2>/dev/null >/proc/self/autogroup; exec \"$@\"",
    "sh",
];

/// Running suites.
pub(crate) struct Background {
    names: String,
    running: JoinHandle<Result<(ExitStatus, TestSummary, Duration)>>,
}

// === impl Background ===

impl Background {
    /// Starts `suites` (names separated by commas), one after the other; their output is shown with the prefix `|`.
    pub(crate) fn start(suites: &str, long: bool) -> Result<Self> {
        let names = suites.to_owned();
        let [program, args @ ..] = LOWEST_PRIORITY;
        let mut command = Command::new(program);
        command
            .args(args)
            .arg(env::current_exe().context("path of this program")?)
            .args(["test", "--suite", &names])
            .args(long.then_some("--long"));
        println!("== {names}: in the background, on lines that begin with `|`");
        let running = thread::spawn(move || {
            let start = Instant::now();
            let mut last = TestSummary::default();
            let status = cmd::stream_lines(&mut command, |line| {
                println!("| {line}");
                last = TestSummary::parse(line).unwrap_or(last);
            })?;
            Ok((status, last, start.elapsed()))
        });
        Ok(Self { names, running })
    }

    /// Waits for the end. A process without a closing line, or that fails without a failed test, counts as one failure.
    pub(crate) fn finish(self) -> Result<SuiteResult> {
        let ended = self
            .running
            .join()
            .map_err(|_| anyhow!("{}: panicked", self.names))?;
        let (status, mut summary, elapsed) = ended?;
        if summary == TestSummary::default() || (!status.success() && summary.failed == 0) {
            println!("FAILED: {}: ended with {status}", self.names);
            summary.failed += 1;
        }
        Ok(SuiteResult {
            name: self.names,
            elapsed,
            summary,
        })
    }
}
