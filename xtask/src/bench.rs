//! `cargo xtask bench`: builds the benchmark of the test crate and runs it.

use anyhow::Result;

use crate::build;

/// What can be asked of the benchmark.
#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// Rounds in which the variants alternate; medians are taken over them.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Attach Pods to a bridge, as bridge CNIs do, instead of directly.
    #[arg(long)]
    bridge: bool,
}

/// Runs the benchmark; the report is `target/bench/report.json`.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    build::run_program(
        "the benchmark",
        "mc-bench",
        &["--rounds".to_owned(), args.rounds.to_string()],
    )
}
