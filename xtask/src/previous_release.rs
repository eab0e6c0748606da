//! The agent of the previous map layout, built from its commit for the upgrade tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{cmd, ebpf, setup};

/// The last commit with map layout 4.
const COMMIT: &str = "74343ea5da084aefe069528db4d03b6a41dc1441";
/// Environment variable through which the suite `restart` finds the agent.
const AGENT: &str = "MC_AGENT_PREVIOUS";

/// The variable with the agent's path; `None` in a clone without the commit.
pub(crate) fn env() -> Result<Option<(&'static str, PathBuf)>> {
    Ok(agent()?.map(|agent| (AGENT, agent)))
}

/// The agent, built on first use and cached by commit.
fn agent() -> Result<Option<PathBuf>> {
    let cache = setup::cache_dir()?.join("previous-release").join(COMMIT);
    let agent = cache.join("mc-gateway");
    if agent.is_file() {
        return Ok(Some(agent));
    }
    if !has_commit()? {
        println!("previous release: commit {COMMIT} is not in this clone");
        return Ok(None);
    }
    println!("building the agent of commit {COMMIT}; takes some minutes, once");
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
        .args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "--package",
            "mc-gateway",
        ]);
    cmd::inherit(&mut command).context("the previous release")?;
    // The path appears last: an interrupted build leaves no agent behind.
    let built = target.join("release/mc-gateway");
    let incomplete = cache.join("mc-gateway.incomplete");
    fs::copy(&built, &incomplete).with_context(|| built.display().to_string())?;
    for dir in [&sources, &target] {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::rename(&incomplete, &agent).with_context(|| agent.display().to_string())?;
    Ok(Some(agent))
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
