//! Format, lints and generated files: what a reviewer need not look at.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{build, cmd, manifests, mutants, test_summary::TestSummary};

/// Longest Rust file we accept without a reason; files beyond ~500 lines usually hold a second noun.
const MAX_LINES: usize = 700;

/// Runs every check; each counts as one test.
pub(crate) fn run(tally: &mut TestSummary) {
    println!("== lint");
    tally.step(
        "rustfmt",
        cmd::inherit(cmd::cargo().args(["fmt", "--all", "--check"])),
    );
    tally.step(
        "clippy",
        cmd::inherit(cmd::cargo().args([
            "clippy",
            "--quiet",
            "--locked",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ])),
    );
    tally.step("CRDs equal the Rust types", crds("--check"));
    tally.step(
        "one-file manifests equal their kustomize bases",
        manifests::check(),
    );
    tally.step("files stay small", file_sizes());
    tally.step("every seeded bug still fits", mutants::check());
}

/// Writes (`--out`) or checks (`--check`) the CRDs.
pub(crate) fn crds(flag: &str) -> Result<()> {
    let program = build::release()?.path("mc-controller");
    cmd::inherit(
        Command::new(program)
            .current_dir(cmd::workspace())
            .args(["crds", flag, "deploy/crds"]),
    )
}

fn file_sizes() -> Result<()> {
    let root = cmd::workspace();
    let listed = cmd::output(Command::new("git").current_dir(&root).args(["ls-files", "*.rs"]))?;
    let mut long = Vec::new();
    for file in listed.lines() {
        let path = root.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let lines = text.lines().count();
        if lines > MAX_LINES {
            long.push(format!("{file}: {lines} lines"));
        }
    }
    if long.is_empty() {
        Ok(())
    } else {
        bail!("more than {MAX_LINES} lines: {}", long.join(", "))
    }
}
