//! Suites that run beside others: a process of their own, which gets the CPU time nobody else wants.

use std::{
    env,
    process::{Command, ExitStatus},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum as _;

use crate::{cmd, test::Suite, test_summary::TestSummary};

/// Lowest priority among the processes of a session, and of the session where the kernel groups by it
/// (`sched(7)`, autogroup), so in a session of its own. It is told when the process that started it ends.
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

/// Suites under way.
pub(crate) struct Background {
    names: String,
    running: JoinHandle<Result<(ExitStatus, TestSummary)>>,
}

// === impl Beside ===

impl Background {
    /// Starts `suites`, one after the other; their lines are shown with a mark.
    pub(crate) fn start(suites: &[Suite], long: bool) -> Result<Self> {
        let names: Vec<_> = suites
            .iter()
            .filter_map(Suite::to_possible_value)
            .map(|suite| suite.get_name().to_owned())
            .collect();
        let names = names.join(",");
        let [program, args @ ..] = LOWEST_PRIORITY;
        let mut command = Command::new(program);
        command
            .args(args)
            .arg(env::current_exe().context("this program's path")?)
            .args(["test", "--suite", &names])
            .args(long.then_some("--long"));
        println!("== {names}: beside what follows, on lines that begin with `|`");
        let running = thread::spawn(move || {
            let mut last = TestSummary::default();
            let status = cmd::stream_lines(&mut command, |line| {
                println!("| {line}");
                last = TestSummary::parse(line).unwrap_or(last);
            })?;
            Ok((status, last))
        });
        Ok(Self { names, running })
    }

    /// Waits for the end and adds what was counted. One that ends without a count has failed.
    pub(crate) fn finish(self, tally: &mut TestSummary) -> Result<()> {
        let ended = self
            .running
            .join()
            .map_err(|_| anyhow!("{}: panicked", self.names))?;
        let (status, counted) = ended?;
        tally.add(counted);
        if counted == TestSummary::default() || (!status.success() && counted.failed == 0) {
            println!("FAILED: {}: ended with {status}", self.names);
            tally.failed += 1;
        }
        Ok(())
    }
}
