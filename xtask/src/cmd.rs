//! Running other programs.

use std::{
    ffi::OsString,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// Root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The cargo that runs this xtask, in the workspace root.
pub(crate) fn cargo() -> Command {
    without_cargo_env(Command::new(cargo_path()))
}

/// The same with a time limit; `timeout` (coreutils) exits with 124 after it.
pub(crate) fn cargo_within(seconds: u64) -> Command {
    let mut command = without_cargo_env(Command::new("timeout"));
    command
        .args(["--kill-after=5", &seconds.to_string()])
        .arg(cargo_path());
    command
}

fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Removes the variables that `cargo run` sets for this program: build scripts that watch them would run again at each
/// change between `cargo xtask` and plain cargo.
fn without_cargo_env(mut command: Command) -> Command {
    command.current_dir(workspace());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || matches!(&*name, "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Runs a command that inherits the terminal; fails with its command line.
pub(crate) fn inherit(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", command_line(command)))?;
    if status.success() {
        Ok(())
    } else {
        bail!("{} failed: {status}", command_line(command))
    }
}

/// Runs a command, passes each line of its stdout to `on_line` and returns its exit status.
pub(crate) fn stream_lines(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command_line(command)))?;
    let stdout = child.stdout.take().context("a piped stdout")?;
    for text in BufReader::new(stdout).split(b'\n') {
        let text = text.with_context(|| command_line(command))?;
        on_line(&String::from_utf8_lossy(&text));
    }
    child.wait().with_context(|| command_line(command))
}

/// Runs a command and shows its output only when it fails.
pub(crate) fn capture(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// The files of the workspace that git tracks or would track, as paths from its root.
///
/// A file that is deleted and not committed is not among them, although git lists it.
pub(crate) fn workspace_files() -> Result<Vec<String>> {
    let root = workspace();
    let listed = output(Command::new("git").current_dir(&root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let files = listed
        .split('\0')
        .filter(|file| !file.is_empty() && root.join(file).exists());
    Ok(files.map(str::to_owned).collect())
}

/// Runs a command and returns its stdout; fails with all of its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("cannot start {}", command_line(command)))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(stdout);
    }
    bail!(
        "{} failed: {}\n{stdout}{}",
        command_line(command),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    )
}

/// The command line, for messages.
fn command_line(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}
