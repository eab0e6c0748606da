//! The suites on three real clusters: all tests of `tests/tests/e2e`, or those of one subject.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{build, cluster, images, previous_release, test_summary::TestSummary};

/// Drain period of the clusters' gateways: enough for every agent to react and for running requests to end, a third of
/// the default.
const DRAIN_PERIOD: &str = "10s";
/// Prefix of the line that a test prints for each fulfilled spec of the MCS API.
const SPEC_PREFIX: &str = "spec holds: ";

/// Number of specs (`tests/tests/e2e/specs.rs`).
const SPEC_COUNT: usize = 27;

/// Some of the tests on real clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSuite {
    /// Name on the command line.
    name: &'static str,
    /// The modules of `tests/tests/e2e` with its tests; none means all.
    modules: &'static [&'static str],
}

/// All tests.
pub(crate) const ALL: ClusterSuite = ClusterSuite {
    name: "e2e",
    modules: &[],
};
/// Guarantees of the MCS API: objects, names and connections.
pub(crate) const CONFORMANCE: ClusterSuite = ClusterSuite {
    name: "conformance",
    modules: &["mcs", "dns", "dual_stack"],
};
/// Isolation between members, and attacks of a member on other clusters.
pub(crate) const ISOLATION: ClusterSuite = ClusterSuite {
    name: "isolation",
    modules: &[
        "account_binding",
        "isolation",
        "member_namespace",
        "own_objects",
        "trust",
    ],
};
/// Failing controllers and API servers, and a comparison of the fake API server of `sim` with a real one.
pub(crate) const FAULTS: ClusterSuite = ClusterSuite {
    name: "faults",
    modules: &["faults", "election", "traces"],
};

/// Figures in the output of a suite.
#[derive(Debug, Default)]
struct SuiteFigures {
    /// Specs that hold.
    specs: BTreeSet<String>,
    /// Lines with the suite's name as prefix.
    notes: Vec<String>,
}

/// Boots the clusters, runs the tests and removes the clusters, also after a failure.
pub(crate) fn run(suite: ClusterSuite, long: bool, summary: &mut TestSummary) -> Result<()> {
    let programs = build::release()?;
    let configuration = cluster::Configuration::with_drain_period(DRAIN_PERIOD);
    let kubeconfig: PathBuf = cluster::up_installed(configuration).context("bringing the clusters up")?;
    let mut command = build::integration_test("e2e");
    command
        .envs(programs.env())
        .env("MC_KUBECONFIG", kubeconfig)
        .env("MC_KUBECTL", cluster::kubectl()?)
        .env(
            "MC_XTASK",
            std::env::current_exe().context("this program's path")?,
        )
        .env("MC_CONTROLLER", programs.path("mc-controller"))
        .env("MC_LONG", if long { "1" } else { "0" })
        .args(["--", "--test-threads=1", "--nocapture", "--format=pretty"])
        .args(suite.modules.iter().map(|module| format!("{module}::")));
    if suite.covers(FAULTS)
        && let Some(previous) = previous_release::programs()?
    {
        cluster::load_image(images::previous_controller(
            &images::directory(),
            &previous.controller,
        )?)?;
        command.env("MC_PREVIOUS_CONTROLLER", images::PREVIOUS_CONTROLLER);
    }
    let (mut tests, mut figures) = (TestSummary::default(), SuiteFigures::default());
    let result = tests.cargo_test_with(suite.name, &mut command, |line| figures.read(suite.name, line));
    summary.add(tests);
    // Only all tests together use every grant.
    if suite.modules.is_empty() {
        summary.step("grants match usage", cluster::check_rbac());
    }
    if suite.covers(CONFORMANCE) {
        summary.step("all specs of the MCS API hold", figures.check_specs());
    }
    summary.step("the clusters leave nothing behind", cluster::down());
    result?;
    println!("{}", figures.line(suite.name, tests));
    if tests == TestSummary::default() {
        bail!("no test ran");
    }
    Ok(())
}

// === impl ClusterSuite ===

impl ClusterSuite {
    /// Whether the suite has all tests of another one.
    fn covers(self, other: Self) -> bool {
        self.modules.is_empty() || self.modules == other.modules
    }
}

// === impl SuiteFigures ===

impl SuiteFigures {
    fn read(&mut self, name: &str, line: &str) {
        // libtest may print the test's name on the same line.
        if let Some((_, spec)) = line.split_once(SPEC_PREFIX) {
            self.specs.insert(spec.to_owned());
        } else if let Some((_, note)) = line.split_once(&format!("{name}: ")) {
            self.notes.push(note.to_owned());
        }
    }

    /// Fails if a spec was not verified, for example because its test was renamed or failed early.
    fn check_specs(&self) -> Result<()> {
        let found = self.specs.len();
        ensure!(found == SPEC_COUNT, "{found} of {SPEC_COUNT} specs hold");
        Ok(())
    }

    fn line(&self, name: &str, tests: TestSummary) -> String {
        let mut line = format!("{name}: {tests}");
        if !self.specs.is_empty() {
            line = format!("{line}; {} of {SPEC_COUNT} specs hold", self.specs.len());
        }
        self.notes
            .iter()
            .fold(line, |line, note| format!("{line}; {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_spec_fails_the_suites_that_cover_all() {
        let mut figures = SuiteFigures::default();
        for number in 1..SPEC_COUNT {
            figures.read("conformance", &format!("spec holds: {number}"));
        }
        assert_eq!(
            figures.check_specs().unwrap_err().to_string(),
            "26 of 27 specs hold"
        );
        figures.read("conformance", "spec holds: 27");
        assert!(figures.check_specs().is_ok());
        assert!(CONFORMANCE.covers(CONFORMANCE) && ALL.covers(CONFORMANCE) && !FAULTS.covers(CONFORMANCE));
    }

    #[test]
    fn the_last_line_has_the_figures_of_the_tests() {
        let mut figures = SuiteFigures::default();
        for line in [
            "test mcs::a ... spec holds: ports are united",
            "spec holds: ports are united",
            "spec holds: the oldest wins",
            "isolation: 3 cells refused, 0 allowed",
            "anything else",
        ] {
            figures.read("isolation", line);
        }
        let tests = TestSummary {
            passed: 2,
            failed: 1,
            ..TestSummary::default()
        };
        assert_eq!(
            figures.line("isolation", tests),
            "isolation: 2 passed, 1 failed; 2 of 27 specs hold; 3 cells refused, 0 allowed"
        );
    }
}
