//! The suites that need three real clusters: all tests of `tests/tests/e2e`, or those about one thing.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{build, cluster, test_summary::TestSummary};

/// How long gateways of the clusters are drained: long enough for everybody to notice, and for requests under way
/// to end; the default is three times as long.
const DRAIN_PERIOD: &str = "10s";
/// What a test prints of each spec of the MCS API it has seen to hold.
const SPEC_PREFIX: &str = "spec holds: ";

/// How many there are (`tests/tests/e2e/specs.rs`).
const SPEC_COUNT: usize = 27;

/// Some of the tests on real clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSuite {
    /// What the suite is called.
    name: &'static str,
    /// The modules of `tests/tests/e2e` with its tests; none means all.
    modules: &'static [&'static str],
}

/// All of them.
pub(crate) const ALL: ClusterSuite = ClusterSuite {
    name: "e2e",
    modules: &[],
};
/// What the MCS API promises, in objects, names and connections.
pub(crate) const CONFORMANCE: ClusterSuite = ClusterSuite {
    name: "conformance",
    modules: &["mcs", "dns", "dual_stack"],
};
/// What a member must not do to another.
pub(crate) const ISOLATION: ClusterSuite = ClusterSuite {
    name: "isolation",
    modules: &["isolation"],
};
/// Controllers and API servers that fail; and that the model of one, which `sim` lets fail, is right.
pub(crate) const FAULTS: ClusterSuite = ClusterSuite {
    name: "faults",
    modules: &["faults", "election", "traces"],
};

/// What the tests of a part said beside their results.
#[derive(Debug, Default)]
struct SuiteFigures {
    /// Specs that hold.
    specs: BTreeSet<String>,
    /// Lines that begin with the name of the part: they are figures.
    notes: Vec<String>,
}

/// Boots the clusters, runs the tests and ends the clusters, whatever happened.
pub(crate) fn run(part: ClusterSuite, long: bool, tally: &mut TestSummary) -> Result<()> {
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
        .env("MC_LONG", if long { "1" } else { "0" })
        .args(["--", "--test-threads=1", "--nocapture", "--format=pretty"])
        .args(part.modules.iter().map(|module| format!("{module}::")));
    let (mut tests, mut figures) = (TestSummary::default(), SuiteFigures::default());
    let result = tests.cargo_test_with(part.name, &mut command, |line| figures.read(part.name, line));
    tally.add(tests);
    // What is needed, only all tests together show.
    if part.modules.is_empty() {
        tally.step("what is granted is what was used", cluster::check_rbac());
    }
    tally.step("the clusters leave nothing behind", cluster::down());
    result?;
    println!("{}", figures.line(part.name, tests));
    if tests == TestSummary::default() {
        bail!("there was no test to run");
    }
    Ok(())
}

// === impl Figures ===

impl SuiteFigures {
    fn read(&mut self, name: &str, line: &str) {
        // The name of a test may stand before what it prints first.
        if let Some((_, spec)) = line.split_once(SPEC_PREFIX) {
            self.specs.insert(spec.to_owned());
        } else if let Some((_, said)) = line.split_once(&format!("{name}: ")) {
            self.notes.push(said.to_owned());
        }
    }

    fn line(&self, name: &str, tests: TestSummary) -> String {
        let mut line = format!("{name}: {tests}");
        if !self.specs.is_empty() {
            line = format!("{line}; {} of {SPEC_COUNT} specs hold", self.specs.len());
        }
        self.notes
            .iter()
            .fold(line, |line, said| format!("{line}; {said}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_what_tests_said() {
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
