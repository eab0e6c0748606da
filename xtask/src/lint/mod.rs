//! Suite `lint`: format, clippy, rustdoc, generated files, names, structure and links.

pub(crate) mod drop_reasons;
mod files;
mod glossary;
mod links;
mod module_graph;
mod rust_source;
mod use_paths;

use std::process::Command;

use anyhow::{Result, bail};

use crate::{build, cmd, manifests, mutants, test_summary::TestSummary};

/// Runs every check; each counts as one test.
pub(crate) fn run(summary: &mut TestSummary) {
    println!("== lint");
    summary.step(
        "rustfmt",
        cmd::inherit(cmd::cargo().args(["fmt", "--all", "--check"])),
    );
    summary.step("clippy", clippy());
    summary.step("rustdoc", rustdoc());
    summary.step("CRDs match the Rust types", crds("--check"));
    summary.step("manifests match their kustomize bases", manifests::check());
    summary.step(
        "drop-reason tables match the enum DropReason",
        drop_reasons::check(),
    );
    summary.step("file and line lengths", files::check());
    summary.step("no retired names and phrases", glossary::check());
    summary.step("no import cycles between modules", module_graph::check());
    summary.step("links in docs resolve", links::check());
    summary.step("every mutant applies and names a test", mutants::check());
}

fn clippy() -> Result<()> {
    cmd::inherit(cmd::cargo().args([
        "clippy",
        "--quiet",
        "--locked",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Builds the documentation, private items included; a broken link fails. Without mc-gateway-ebpf, as clippy: only the
/// compiler of `build-ebpf` accepts that crate.
fn rustdoc() -> Result<()> {
    cmd::inherit(cmd::cargo().env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--quiet",
        "--locked",
        "--no-deps",
        "--document-private-items",
    ]))
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

/// Fails with one finding per line, if there are any.
fn report(findings: &[String]) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{} findings\n{}", findings.len(), findings.join("\n"))
}
