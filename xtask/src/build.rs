//! The release programs the suites, the demo and the benchmark run.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{cmd, ebpf, setup};

/// Packages they need at run time.
pub(crate) const PACKAGES: &[&str] = &[
    "iproute2",
    "nftables",
    "bpftool",
    "ethtool",
    "iputils-ping",
    "util-linux",
    "procps",
    "python3",
    "gcc",
    "libc6-dev",
    "git",
];

/// Paths of the built programs.
pub(crate) struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// A program by name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Environment variables with their paths for the test programs.
    pub(crate) fn env(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("MC_AGENT", self.path("mc-gateway")),
            ("MC_TRAFFIC", self.path("mc-traffic")),
        ]
    }
}

/// Builds the eBPF object and every program. Always the same packages: another selection unifies features differently
/// and compiles the dependencies again.
pub(crate) fn release() -> Result<Programs> {
    ebpf::build(&cmd::workspace())?;
    cmd::inherit(cmd::cargo().args(["build", "--quiet", "--locked", "--release"]))?;
    Ok(Programs {
        dir: target_dir()?.join("release"),
    })
}

/// A `cargo test` command for an integration test of the test crate.
pub(crate) fn integration_test(name: &str) -> Command {
    let mut command = cmd::cargo();
    command.args(["test", "--quiet", "--locked", "--release", "--test", name]);
    command
}

/// Cargo's target directory, as the caller's settings define it.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata =
        cmd::output(cmd::cargo().args(["metadata", "--format-version=1", "--no-deps", "--locked"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let dir = metadata
        .get("target_directory")
        .and_then(serde_json::Value::as_str)
        .context("cargo metadata names no target directory")?;
    Ok(dir.into())
}

/// Installs prerequisites, builds and runs a program of the test crate with the agent's path.
pub(crate) fn run_program(purpose: &str, program: &str, args: &[String]) -> Result<()> {
    setup::require_root(purpose)?;
    setup::ensure_packages(purpose, PACKAGES)?;
    setup::ensure_bpffs()?;
    println!("building the eBPF programs, the agent and the test programs");
    let programs = release()?;
    let mut command = Command::new(programs.path(program));
    command
        .current_dir(cmd::workspace())
        .envs(programs.env())
        .arg("--agent")
        .arg(programs.path("mc-gateway"))
        .args(args);
    cmd::inherit(&mut command)
}
