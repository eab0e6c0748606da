//! Suites that run beside others: a process of their own, which gets the CPU time nobody else wants.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use crate::{tally::Tally, test::Suite};

/// Lowest priority among the processes of a session, and of the session where the kernel groups by it
/// (`sched(7)`, autogroup), so in a session of its own. It is told when the process that started it ends.
const LOWEST: [&str; 10] = [
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
pub(crate) struct Beside {
    names: String,
    child: Child,
    reader: JoinHandle<Option<Tally>>,
}

// === impl Beside ===

impl Beside {
    /// Starts `suites`, one after the other; their lines are shown with a mark.
    pub(crate) fn start(suites: &[Suite], long: bool) -> Result<Self> {
        let names: Vec<_> = suites
            .iter()
            .filter_map(Suite::to_possible_value)
            .map(|suite| suite.get_name().to_owned())
            .collect();
        let names = names.join(",");
        let [program, args @ ..] = LOWEST;
        let mut child = Command::new(program)
            .args(args)
            .arg(env::current_exe().context("this program's path")?)
            .args(["test", "--suite", &names])
            .args(long.then_some("--long"))
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program} for the suites {names}"))?;
        let stdout = child.stdout.take().context("a piped stdout")?;
        println!("== {names}: beside what follows, on lines that begin with `|`");
        let reader = thread::spawn(move || {
            let mut last = None;
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                println!("| {line}");
                last = Tally::parse(&line).or(last);
            }
            last
        });
        Ok(Self { names, child, reader })
    }

    /// Waits for the end and adds what was counted. One that ends without a count has failed.
    pub(crate) fn finish(mut self, tally: &mut Tally) -> Result<()> {
        let status = self.child.wait().context(self.names.clone())?;
        let counted = self.reader.join().ok().flatten().unwrap_or_default();
        tally.add(counted);
        if counted == Tally::default() || (!status.success() && counted.failed == 0) {
            println!("FAILED: {}: ended with {status}", self.names);
            tally.failed += 1;
        }
        Ok(())
    }
}
