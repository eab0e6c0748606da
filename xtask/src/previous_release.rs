//! The programs of the previous release, built from its commit for the upgrade tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{cmd, ebpf, setup};

/// The last commit with map layout 4.
const COMMIT: &str = "74343ea5da084aefe069528db4d03b6a41dc1441";
/// Programs of the previous release.
pub(crate) struct PreviousRelease {
    /// The agent.
    pub(crate) agent: PathBuf,
    /// The controller.
    pub(crate) controller: PathBuf,
}

/// The programs, built on first use and cached by commit; `None` in a clone without the commit.
pub(crate) fn programs() -> Result<Option<PreviousRelease>> {
    let cache = setup::cache_dir()?.join("previous-release").join(COMMIT);
    let programs = PreviousRelease {
        agent: cache.join("mc-gateway"),
        controller: cache.join("mc-controller"),
    };
    if programs.agent.is_file() && programs.controller.is_file() {
        return Ok(Some(programs));
    }
    if !has_commit()? {
        println!("previous release: commit {COMMIT} is not in this clone");
        return Ok(None);
    }
    println!("building the programs of commit {COMMIT}; takes some minutes, once");
    // Leftovers of an interrupted build.
    if cache.exists() {
        fs::remove_dir_all(&cache).with_context(|| cache.display().to_string())?;
    }
    let (sources, target) = (cache.join("src"), cache.join("target"));
    fs::create_dir_all(&sources).with_context(|| sources.display().to_string())?;
    extract(&sources)?;
    ebpf::build_agent_object(&sources).context("the previous release")?;
    let mut command = cmd::cargo();
    command
        .current_dir(&sources)
        .env("CARGO_TARGET_DIR", &target)
        .args(["build", "--quiet", "--locked", "--release"])
        .args(["--bin", "mc-gateway", "--bin", "mc-controller"]);
    cmd::inherit(&mut command).context("the previous release")?;
    for program in [&programs.agent, &programs.controller] {
        let name = program.file_name().context("a file name")?;
        // The path appears last: an interrupted build leaves no program behind.
        let incomplete = cache.join("incomplete");
        fs::copy(target.join("release").join(name), &incomplete)
            .with_context(|| program.display().to_string())?;
        fs::rename(&incomplete, program).with_context(|| program.display().to_string())?;
    }
    for dir in [&sources, &target] {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    Ok(Some(programs))
}

/// Whether the clone has the commit; a shallow one has not.
fn has_commit() -> Result<bool> {
    let status = git(&["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])
        .stderr(Stdio::null())
        .status()
        .context("cannot start git")?;
    Ok(status.success())
}

/// Writes the commit's files below `to`.
fn extract(to: &Path) -> Result<()> {
    let mut archive = git(&["archive", "--format=tar", COMMIT])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start git")?;
    let files = archive.stdout.take().context("a piped stdout")?;
    let unpacked = cmd::inherit(Command::new("tar").args(["-xf", "-", "-C"]).arg(to).stdin(files));
    let status = archive.wait().context("git archive")?;
    if !status.success() {
        bail!("git archive {COMMIT} failed: {status}");
    }
    unpacked
}

fn git(args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(cmd::workspace()).args(args);
    command
}
