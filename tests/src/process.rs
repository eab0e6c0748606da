//! Programs run by the test beds: short ones to their end, long ones as owned children with a log file.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write as _,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::wait::wait_for;

/// The process called `comm` on this machine in whose environment `variable` names the Pod.
#[must_use]
pub fn of_pod(comm: &str, variable: &str, pod: &str) -> Option<u32> {
    let wanted = format!("{variable}={pod}");
    fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            name.trim() == comm
                && environment
                    .split(|b| *b == 0)
                    .any(|entry| entry == wanted.as_bytes())
        })
}

/// How long a child may take to end after a signal that asks it to.
const END: Duration = Duration::from_secs(10);

/// Runs a command to its end and returns what it printed to stdout; anything but success is an error
/// that quotes the command and its stderr.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{shown}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}`: {}: {}", output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`run`], with text for the command's stdin.
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let shown = show(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{shown}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .with_context(|| format!("cannot write to `{shown}`"))?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{shown}`: {}: {}; input was:\n{input}",
            output.status,
            stderr.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as a person would type it.
fn show(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A running child whose output goes to a log file. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Length of the log when this child started: an earlier child may have written to the same file.
    log_start: u64,
    ended: Option<ExitStatus>,
    leave: bool,
}

// === impl Process ===

impl Process {
    /// Starts a command in a process group of its own, so that a terminal's interrupt reaches only the
    /// program that owns the test bed; stdout and stderr are appended to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let shown = show(command);
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open log {}", log.display()))?;
        let log_start = file.metadata()?.len();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            log_start,
            ended: None,
            leave: false,
        })
    }

    /// Lets the child run on when this value is dropped.
    pub fn leave(&mut self) {
        self.leave = true;
    }

    /// Process id of the child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What this child has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(usize::MAX);
        String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
    }

    /// Waits until the child's output has `times` lines containing `needle` and returns the last of
    /// them. A child that ends before is an error at once.
    pub fn wait_for_lines(&mut self, needle: &str, times: usize, deadline: Duration) -> Result<String> {
        let what = format!("`{needle}` ({times} times) in the output of {}", self.name);
        let mut ended = None;
        let found = wait_for(&what, deadline, || {
            // The order matters: a child may print the line and end before the next look.
            let status = self.child.try_wait().ok().flatten();
            let output = self.output();
            if let Some(line) = output.lines().filter(|line| line.contains(needle)).nth(times - 1) {
                return Ok(Some(line.to_owned()));
            }
            if status.is_some() {
                ended = status;
                return Ok(None);
            }
            Err(tail(&output))
        })?;
        match (found, ended) {
            (Some(line), _) => Ok(line),
            (None, status) => {
                self.ended = status;
                bail!(
                    "{} ended ({}) before printing `{needle}`: {}",
                    self.name,
                    status.map_or_else(String::new, |status| status.to_string()),
                    tail(&self.output())
                )
            }
        }
    }

    /// Waits for the first line containing `needle`.
    pub fn wait_for_line(&mut self, needle: &str, deadline: Duration) -> Result<String> {
        self.wait_for_lines(needle, 1, deadline)
    }

    /// Whether the child still runs.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_none()
    }

    /// Sends a signal; a child that has ended already is left alone.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Waits for the child's end.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("end of {}", self.name);
        wait_for(&what, deadline, || {
            if self.is_running() {
                return Err(format!("still running; {}", tail(&self.output())));
            }
            self.ended.ok_or_else(|| "no exit status".to_owned())
        })
    }

    /// Waits for the child's end, which has to be success, and returns what it printed.
    pub fn finish(&mut self, deadline: Duration) -> Result<String> {
        let status = self.wait(deadline)?;
        if !status.success() {
            bail!("{}: {status}: {}", self.name, tail(&self.output()));
        }
        Ok(self.output())
    }

    /// Asks the child to come to its end (SIGTERM), which has to be success, and returns what it printed. One that has
    /// ended already is an error: whatever it was to show went on longer.
    pub fn conclude(&mut self, deadline: Duration) -> Result<String> {
        ensure!(
            self.is_running(),
            "{} ended too early: {}",
            self.name,
            tail(&self.output())
        );
        self.signal(Signal::SIGTERM)?;
        self.finish(deadline)
    }

    /// Asks the child to end (SIGTERM) and waits; a child that does not obey is an error.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(END)
    }

    /// Ends the child without giving it a chance to notice (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        let status = self.wait(END)?;
        if status.signal() != Some(Signal::SIGKILL as i32) {
            bail!(
                "{} ended by itself ({status}): {}",
                self.name,
                tail(&self.output())
            );
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.leave && self.is_running() {
            // Nothing can be done about a child that cannot be killed.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// The end of an output, enough to see what went wrong.
fn tail(output: &str) -> String {
    const LINES: usize = 15;
    if output.trim().is_empty() {
        return "no output".to_owned();
    }
    let lines: Vec<&str> = output.lines().collect();
    let start = lines.len().saturating_sub(LINES);
    format!(
        "output ends with:\n{}",
        lines.get(start..).unwrap_or_default().join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (Process, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let process = Process::spawn("child", Command::new("sh").args(["-c", script]), &log).unwrap();
        (process, directory)
    }

    #[test]
    fn failing_command_is_quoted_with_its_stderr() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("echo broken") && text.contains("exit status: 3: broken"),
            "{text}"
        );
    }

    #[test]
    fn line_is_found_while_the_child_runs_and_kill_ends_it() {
        let (mut process, _directory) = shell("echo ready; exec sleep 60");
        assert_eq!(
            process.wait_for_line("ready", Duration::from_secs(5)).unwrap(),
            "ready"
        );
        assert!(process.is_running());
        process.kill().unwrap();
        assert!(!process.is_running());
    }

    #[test]
    fn child_that_ends_early_is_an_error_with_its_output() {
        let (mut process, _directory) = shell("echo no luck; exit 4");
        let text = process
            .wait_for_line("ready", Duration::from_secs(5))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("exit status: 4") && text.contains("no luck"),
            "{text}"
        );
    }

    #[test]
    fn finish_returns_the_output_of_success_only() {
        let (mut process, _directory) = shell("echo done");
        assert_eq!(process.finish(Duration::from_secs(5)).unwrap(), "done\n");
        let (mut process, _directory) = shell("exit 1");
        assert!(process.finish(Duration::from_secs(5)).is_err());
    }
}
