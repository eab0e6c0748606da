//! `cargo xtask test`: every suite, or one of them.

use std::{process::Command, time::Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{
    background::Background, build, cluster_suites, cmd, ebpf, fuzz, lint, matrix, mutants, setup,
    test_summary::TestSummary,
};

/// A group of tests that needs the same things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Format, lints and generated files.
    Lint,
    /// Unit and property tests.
    Unit,
    /// Every decision in the kernel, with `BPF_PROG_TEST_RUN`.
    Datapath,
    /// Generated packets: the kernel's programs against the same decisions on the host.
    Differential,
    /// Mutated inputs for everything that reads what others wrote, guided by coverage.
    Fuzz,
    /// The controllers against simulated API servers, on simulated time, from seeds.
    Sim,
    /// Agents, programs and traffic in network namespaces.
    Netns,
    /// Gateways that die and come back under traffic.
    Failover,
    /// Agents restarted, upgraded and rolled back under traffic.
    Restart,
    /// The oldest kernel the distribution has.
    Matrix,
    /// Three real Kubernetes clusters.
    E2e,
    /// Of `e2e` what the MCS API promises.
    Conformance,
    /// Of `e2e` what one member must not do to another.
    Isolation,
    /// Of `e2e` controllers and API servers that fail.
    Faults,
    /// Bugs put into a copy of the sources, each of which the test it names has to notice.
    Mutants,
}

/// What runs unless suites are named: everything once, with [`BESIDE`]. The parts of `e2e` are in it, and the mutants
/// are about the tests.
const ALL: [Suite; 9] = [
    Suite::Lint,
    Suite::Unit,
    Suite::Datapath,
    Suite::Differential,
    Suite::Netns,
    Suite::Failover,
    Suite::Restart,
    Suite::Matrix,
    Suite::E2e,
];

/// What runs beside the clusters, which leave a part of the CPUs to others: nothing in these goes by real time but their
/// end.
const BACKGROUND: [Suite; 2] = [Suite::Sim, Suite::Fuzz];

/// Runs the suites, or all without any; the last line tells the figures.
pub(crate) fn run(suites: &[Suite], long: bool) -> Result<()> {
    setup::require_root("cargo xtask test")?;
    setup::ensure_packages("the tests", build::PACKAGES)?;
    setup::ensure_bpffs()?;
    ebpf::build_and_print()?;
    let mut tally = TestSummary::default();
    let all = suites.is_empty();
    for suite in if all { &ALL } else { suites } {
        let start = Instant::now();
        let beside = (all && *suite == Suite::E2e).then(|| Background::start(&BACKGROUND, long));
        let mut result = run_suite(*suite, long, &mut tally);
        if let Some(beside) = beside {
            result = result.and(beside.and_then(|beside| beside.finish(&mut tally)));
        }
        if let Err(error) = result {
            println!("FAILED: {suite:?}: {error:#}");
            tally.failed += 1;
        }
        println!("== {suite:?}: {:.0} s", start.elapsed().as_secs_f32());
    }
    println!("{tally}");
    if tally.failed > 0 {
        bail!("tests failed");
    }
    Ok(())
}

fn run_suite(suite: Suite, long: bool, tally: &mut TestSummary) -> Result<()> {
    match suite {
        Suite::Lint => lint::run(tally),
        Suite::Unit => tally.cargo_test(
            "unit",
            cmd::cargo().args(["test", "--quiet", "--locked", "--release", "--lib", "--bins"]),
        )?,
        Suite::Datapath => {
            tally.step("the object is reproducible", ebpf::check::reproducible());
            if long {
                tally.step(
                    "every compiler that fits builds the object",
                    ebpf::check::toolchains(),
                );
            }
            let mut command = integration("datapath");
            tally.cargo_test("datapath", command.args(["--", "--skip", "differential"]))?;
        }
        Suite::Differential => {
            let mut command = integration("datapath");
            command
                .env("MC_LONG", if long { "1" } else { "0" })
                .args(["--", "--nocapture", "differential"]);
            tally.cargo_test("differential", &mut command)?;
        }
        Suite::Fuzz => {
            tally.cargo_test("corpus", &mut integration("corpus"))?;
            tally.step("fuzz", fuzz::run(long));
        }
        Suite::Sim => {
            let mut command = integration("sim");
            command.env("MC_LONG", if long { "1" } else { "0" }).args([
                "--",
                "--test-threads=1",
                "--nocapture",
            ]);
            tally.cargo_test("sim", &mut command)?;
        }
        Suite::Netns => {
            let programs = build::release()?;
            let mut command = integration("netns");
            tally.cargo_test(
                "netns",
                command.envs(programs.env()).args(["--", "--test-threads=1"]),
            )?;
        }
        Suite::Failover | Suite::Restart => {
            let name = if suite == Suite::Failover {
                "failover"
            } else {
                "restart"
            };
            let programs = build::release()?;
            let mut command = integration(name);
            command
                .envs(programs.env())
                .env("MC_LONG", if long { "1" } else { "0" })
                .args(["--", "--test-threads=1", "--nocapture"]);
            tally.cargo_test(name, &mut command)?;
        }
        Suite::Matrix => tally.step("the oldest kernel", matrix::oldest()),
        Suite::E2e => cluster_suites::run(cluster_suites::ALL, long, tally)?,
        Suite::Conformance => cluster_suites::run(cluster_suites::CONFORMANCE, long, tally)?,
        Suite::Isolation => cluster_suites::run(cluster_suites::ISOLATION, long, tally)?,
        Suite::Faults => cluster_suites::run(cluster_suites::FAULTS, long, tally)?,
        Suite::Mutants => mutants::run(tally)?,
    }
    Ok(())
}

/// An integration test of the test crate, as the suites run it.
pub(crate) fn integration(name: &str) -> Command {
    let mut command = cmd::cargo();
    command.args(["test", "--quiet", "--locked", "--release", "--test", name]);
    command
}
