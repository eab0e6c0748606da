//! Child processes: commands run to completion, and long-running children with a log file.

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

/// Finds a process of this machine by its name and an environment variable that holds the Pod's name.
#[must_use]
pub fn find_pod_process(comm: &str, variable: &str, pod: &str) -> Option<u32> {
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

/// Timeout for the exit of a child after a signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a command to completion and returns its stdout; the error of a failure quotes the command and its stderr.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = command_line(command);
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

/// Like [`run`], with text on the command's stdin.
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let shown = command_line(command);
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

/// The command line as typed in a shell.
fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A child process with its output in a log file; dropping it kills the child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Length of the log at the start of this child: an earlier child may have written to the same file.
    log_start: u64,
    ended: Option<ExitStatus>,
    detached: bool,
}

// === impl Process ===

impl Process {
    /// Starts a command in its own process group, so that a terminal's interrupt reaches only the program that owns
    /// the topology. Stdout and stderr are appended to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let shown = command_line(command);
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
            detached: false,
        })
    }

    /// Keeps the child running after this value is dropped.
    pub fn detach(&mut self) {
        self.detached = true;
    }

    /// Process ID of the child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Output of this child so far.
    #[must_use]
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(usize::MAX);
        String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
    }

    /// Waits until the child's output has `times` lines containing `needle` and returns the last of them. The exit
    /// of the child is an error at once.
    pub fn wait_for_lines(&mut self, needle: &str, times: usize, deadline: Duration) -> Result<String> {
        let what = format!("`{needle}` ({times} times) in the output of {}", self.name);
        let mut ended = None;
        let found = wait_for(&what, deadline, || {
            // Status before output: the child may print the line and exit between the two.
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
                    "{} exited ({}) before printing `{needle}`: {}",
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

    /// Whether the child is running.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_none()
    }

    /// Sends a signal, unless the child has exited.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Waits for the child's exit.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("the exit of {}", self.name);
        wait_for(&what, deadline, || {
            if self.is_running() {
                return Err(format!("still running; {}", tail(&self.output())));
            }
            self.ended.ok_or_else(|| "no exit status".to_owned())
        })
    }

    /// Waits for the child's successful exit and returns its output.
    pub fn finish(&mut self, deadline: Duration) -> Result<String> {
        let status = self.wait(deadline)?;
        if !status.success() {
            bail!("{}: {status}: {}", self.name, tail(&self.output()));
        }
        Ok(self.output())
    }

    /// Stops the child by SIGTERM and returns its output. An unsuccessful exit is an error, and so is one before the
    /// signal: the child did not cover the whole test.
    pub fn stop_cleanly(&mut self, deadline: Duration) -> Result<String> {
        ensure!(
            self.is_running(),
            "{} exited early: {}",
            self.name,
            tail(&self.output())
        );
        self.signal(Signal::SIGTERM)?;
        self.finish(deadline)
    }

    /// Stops the child by SIGTERM and waits for its exit.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(EXIT_TIMEOUT)
    }

    /// Kills the child (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        let status = self.wait(EXIT_TIMEOUT)?;
        if status.signal() != Some(Signal::SIGKILL as i32) {
            bail!(
                "{} exited before SIGKILL ({status}): {}",
                self.name,
                tail(&self.output())
            );
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.detached && self.is_running() {
            // Nothing remains to be done if the kill fails.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// The last lines of an output.
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
    fn an_error_quotes_the_command_and_its_stderr() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("echo broken") && text.contains("exit status: 3: broken"),
            "{text}"
        );
    }

    #[test]
    fn a_line_is_found_while_the_child_runs() {
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
    fn an_early_exit_is_an_error_with_the_output() {
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
    fn finish_requires_a_successful_exit() {
        let (mut process, _directory) = shell("echo done");
        assert_eq!(process.finish(Duration::from_secs(5)).unwrap(), "done\n");
        let (mut process, _directory) = shell("exit 1");
        assert!(process.finish(Duration::from_secs(5)).is_err());
    }
}
