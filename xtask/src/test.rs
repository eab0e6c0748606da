//! `cargo xtask test`: every suite, or one of them.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::{
    background::Background,
    build, cluster_suites, cmd, ebpf, fuzz, lint, matrix, mutants, previous_release, setup,
    test_summary::{self, SuiteResult, TestSummary},
};

/// A group of tests that needs the same things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Format, lints, documentation and generated files.
    Lint,
    /// Unit and property tests.
    Unit,
    /// Every decision in the kernel, with `BPF_PROG_TEST_RUN`.
    Datapath,
    /// Generated packets: the kernel's programs against the same decisions on the host.
    Differential,
    /// Mutated inputs for every parser of foreign input, guided by coverage.
    Fuzz,
    /// The controllers against simulated API servers, on simulated time, from seeds.
    Sim,
    /// Agents, programs and traffic in network namespaces.
    Netns,
    /// Attackers in namespaces: every packet that they send is dropped with the expected reason.
    Attack,
    /// The parts of `datapath`, `differential`, `netns` and `attack` on network policies.
    Policy,
    /// Gateways that die and recover under traffic.
    Failover,
    /// Agents restarted, upgraded and rolled back under traffic.
    Restart,
    /// Open connections through every kind of event.
    Continuity,
    /// Changes by other programs that running agents repair under traffic.
    Heal,
    /// The oldest kernel the distribution has.
    Matrix,
    /// Three real Kubernetes clusters.
    E2e,
    /// The part of `e2e` on the MCS API's guarantees.
    Conformance,
    /// The part of `e2e` on isolation between members.
    Isolation,
    /// The part of `e2e` with failing controllers and API servers.
    Faults,
    /// Bugs seeded into a copy of the sources; the test named by each must fail.
    Mutants,
    /// The share of seeded bugs of the controllers that the first seeds of `sim` show.
    Sensitivity,
}

/// Programs that a suite runs, beside those of the agent.
const PACKAGES: &[&str] = &["conntrack"];
/// Integration tests on network policies, by a part of their names; each belongs to one of [`ALL`], too.
const POLICY: [(&str, &[&str]); 3] = [
    (
        "datapath",
        &[
            "cases",
            "random_policies::",
            "oracle::",
            "peer_limits::a_flood_of_rejected",
        ],
    ),
    (
        "netns",
        &[
            "audit::",
            "hidden_senders::",
            "identities::",
            "pod_guard::",
            "policies::",
            "policy_churn::",
            "policy_upgrade::",
        ],
    ),
    ("attack", &["identities_in_"]),
];
/// The suites that run unless others are named, with [`BACKGROUND`]. `policy` is in them, `e2e` includes its parts;
/// mutants test the tests.
const ALL: [Suite; 12] = [
    Suite::Lint,
    Suite::Unit,
    Suite::Datapath,
    Suite::Differential,
    Suite::Netns,
    Suite::Attack,
    Suite::Failover,
    Suite::Restart,
    Suite::Continuity,
    Suite::Heal,
    Suite::Matrix,
    Suite::E2e,
];

/// The suites that run after [`ALL`] with `--long`.
const LONG: [Suite; 1] = [Suite::Sensitivity];

/// The suites that run during `e2e`, because clusters leave CPU time idle; only their end depends on real time.
const BACKGROUND: [Suite; 2] = [Suite::Sim, Suite::Fuzz];

/// Runs the given suites, or all; prints time and counts of each, and the sum on the last line.
pub(crate) fn run(suites: &[Suite], long: bool) -> Result<()> {
    setup::require_root("cargo xtask test")?;
    setup::ensure_packages("the tests", &[build::PACKAGES, PACKAGES].concat())?;
    setup::ensure_bpffs()?;
    ebpf::build_and_print()?;
    ebpf::build_log_and_print()?;
    let mut results = Vec::new();
    let all = suites.is_empty();
    let long_only: &[Suite] = if all && long { &LONG } else { &[] };
    for suite in if all { &ALL } else { suites }.iter().chain(long_only) {
        let background = (all && *suite == Suite::E2e).then(|| Background::start(&names(&BACKGROUND), long));
        results.push(timed(*suite, long));
        if let Some(background) = background {
            results.push(background.and_then(Background::finish)?);
        }
    }
    print!("{}", test_summary::table(&results));
    let mut total = TestSummary::default();
    for result in &results {
        total.add(result.summary);
    }
    println!("{total}");
    ensure!(total.failed == 0, "tests failed");
    Ok(())
}

/// Names of suites as on the command line, separated by commas.
fn names(suites: &[Suite]) -> String {
    let values = suites.iter().filter_map(Suite::to_possible_value);
    let names: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
    names.join(",")
}

/// Runs a suite; an error counts as one failure.
fn timed(suite: Suite, long: bool) -> SuiteResult {
    let (start, mut summary) = (Instant::now(), TestSummary::default());
    let name = names(&[suite]);
    if let Err(error) = run_suite(suite, long, &mut summary) {
        println!("FAILED: {name}: {error:#}");
        summary.failed += 1;
    }
    let elapsed = start.elapsed();
    println!("== {name}: {:.0} s", elapsed.as_secs_f32());
    SuiteResult {
        name,
        elapsed,
        summary,
    }
}

fn run_suite(suite: Suite, long: bool, summary: &mut TestSummary) -> Result<()> {
    match suite {
        Suite::Lint => lint::run(summary),
        Suite::Unit => summary.cargo_test(
            "unit",
            cmd::cargo().args([
                "test",
                "--quiet",
                "--locked",
                "--release",
                "--no-fail-fast",
                "--lib",
                "--bins",
            ]),
        )?,
        Suite::Datapath => {
            summary.step("the object is reproducible", ebpf::check::reproducible());
            if long {
                summary.step(
                    "every compiler that fits builds the object",
                    ebpf::check::toolchains(),
                );
            }
            let mut command = build::integration_test("datapath");
            summary.cargo_test("datapath", command.args(["--", "--skip", "differential"]))?;
            if long {
                let mut command = build::integration_test("datapath");
                let timing = ["--", "--nocapture", "--ignored", "time_of_packets_with_policies"];
                summary.cargo_test("time of packets with policies", command.args(timing))?;
            }
        }
        Suite::Differential => {
            let mut command = build::integration_test("datapath");
            command
                .env("MC_LONG", if long { "1" } else { "0" })
                .args(["--", "--nocapture", "differential"]);
            summary.cargo_test("differential", &mut command)?;
        }
        Suite::Fuzz => {
            summary.cargo_test("corpus", &mut build::integration_test("corpus"))?;
            summary.step("fuzz", fuzz::run(long));
        }
        Suite::Sim => {
            let mut command = build::integration_test("sim");
            command.env("MC_LONG", if long { "1" } else { "0" }).args([
                "--",
                "--test-threads=1",
                "--nocapture",
            ]);
            summary.cargo_test("sim", &mut command)?;
        }
        Suite::Netns => {
            let programs = build::release()?;
            let mut command = build::integration_test("netns");
            summary.cargo_test(
                "netns",
                command.envs(programs.env()).args(["--", "--test-threads=1"]),
            )?;
        }
        Suite::Attack | Suite::Failover | Suite::Restart | Suite::Continuity | Suite::Heal => {
            let name = names(&[suite]);
            let programs = build::release()?;
            let mut command = build::integration_test(&name);
            if matches!(suite, Suite::Restart | Suite::Continuity) {
                command.envs(
                    previous_release::programs()?.map(|programs| ("MC_AGENT_PREVIOUS", programs.agent)),
                );
            }
            command
                .envs(programs.env())
                .env("MC_LONG", if long { "1" } else { "0" })
                .args(["--", "--test-threads=1", "--nocapture"]);
            summary.cargo_test(&name, &mut command)?;
        }
        Suite::Policy => {
            let programs = build::release()?;
            for (test, filters) in POLICY {
                let mut command = build::integration_test(test);
                command
                    .envs(programs.env())
                    .env("MC_LONG", if long { "1" } else { "0" })
                    .args(["--", "--test-threads=1"])
                    .args(filters);
                summary.cargo_test(&format!("policy: {test}"), &mut command)?;
            }
        }
        Suite::Matrix => summary.step("the oldest kernel", matrix::oldest()),
        Suite::E2e => cluster_suites::run(cluster_suites::ALL, long, summary)?,
        Suite::Conformance => cluster_suites::run(cluster_suites::CONFORMANCE, long, summary)?,
        Suite::Isolation => cluster_suites::run(cluster_suites::ISOLATION, long, summary)?,
        Suite::Faults => cluster_suites::run(cluster_suites::FAULTS, long, summary)?,
        Suite::Mutants => mutants::run(summary)?,
        Suite::Sensitivity => mutants::sensitivity::run(summary)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A filter of another name would select nothing.
    #[test]
    fn the_filters_of_policies_name_tests() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        for (test, filters) in POLICY {
            let main = fs::read_to_string(tests.join(test).join("main.rs")).expect("a test");
            for filter in filters {
                let found = match filter.split_once("::") {
                    Some((module, "")) => main.contains(&format!("mod {module};")),
                    Some((module, function)) => {
                        let file = tests.join(test).join(module).with_extension("rs");
                        let text = fs::read_to_string(file).expect("a module");
                        text.contains(&format!("fn {function}"))
                    }
                    None => main.contains(filter),
                };
                assert!(found, "{test}: {filter}");
            }
        }
    }
}
