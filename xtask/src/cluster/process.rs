//! Start of long-running programs: in a node's namespaces and control group, with a log file and a record.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, bail};

use super::{
    cgroup::Cgroups,
    state::{Process, StartCommand, StateFile},
};
use crate::cmd;

/// Joins the control group, then executes the program. The process ID does not change.
const JOIN_CGROUP: &str = "echo $$ >\"$1\" && shift && exec setsid \"$@\"";

/// `PATH` of the started programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The mount namespace a program runs in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MountNamespace<'a> {
    /// The machine's.
    Host,
    /// That of another process.
    Process(&'a Process),
}

/// A program to start.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// The control plane or node it belongs to: its control group, and the directory of its log.
    pub(crate) machine: &'a str,
    /// Its name on the machine.
    pub(crate) name: &'a str,
    /// Its network namespace.
    pub(crate) namespace: &'a str,
    /// Its mount namespace.
    pub(crate) mounts: MountNamespace<'a>,
    /// The command line.
    pub(crate) command: Vec<String>,
}

/// Starts programs and records them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launcher<'a> {
    /// The record of processes.
    pub(crate) state: &'a StateFile,
    /// Their control groups.
    pub(crate) cgroups: &'a Cgroups,
}

// === impl Launcher ===

impl Launcher<'_> {
    /// The directory of a machine's files.
    pub(crate) fn directory(&self, machine: &str) -> PathBuf {
        self.state.directory().join(machine)
    }

    /// Starts a program that outlives this process.
    pub(crate) fn start(&self, program: &Program<'_>) -> Result<Process> {
        let role = format!("{}/{}", program.machine, program.name);
        let directory = self.directory(program.machine);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let path = directory.join(format!("{}.log", program.name));
        // A restarted program appends to its log.
        let log = File::options().create(true).append(true).open(&path);
        let log = log.with_context(|| path.display().to_string())?;
        let mut command = Command::new("sh");
        command
            .args(["-c", JOIN_CGROUP, "sh"])
            .arg(self.cgroups.cgroup_procs(program.machine));
        command
            .args(nsenter(program.namespace, program.mounts))
            .args(&program.command);
        // Nothing of the caller's environment (proxies above all) may reach the clusters.
        command.env_clear().env("PATH", SEARCH_PATH).current_dir("/");
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("log file")?)
            .stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {role}"))?;
        let mut process = Process::new(role, child.id(), path)?;
        process.start = matches!(program.mounts, MountNamespace::Host).then(|| StartCommand {
            namespace: program.namespace.to_owned(),
            command: program.command.clone(),
        });
        self.state.update(|record| {
            record.processes.retain(|other| other.role != process.role);
            record.processes.push(process.clone());
        })?;
        Ok(process)
    }
}

/// The `nsenter` prefix that runs a command in these namespaces.
pub(crate) fn nsenter(namespace: &str, mounts: MountNamespace<'_>) -> Vec<String> {
    let mut words = vec!["nsenter".to_owned(), format!("--net=/run/netns/{namespace}")];
    if let MountNamespace::Process(process) = mounts {
        words.push(format!("--mount=/proc/{}/ns/mnt", process.pid));
    }
    words
}

/// Fails with the last lines of the log if the process has ended.
pub(crate) fn check_alive(process: &Process) -> Result<()> {
    if process.is_alive() {
        return Ok(());
    }
    bail!(
        "{} ended; last lines of {}:\n{}",
        process.role,
        process.log.display(),
        process.log_tail()
    )
}

/// Runs a command with a file as standard input and returns its stdout.
pub(crate) fn output_with_file(command: &mut Command, input: File) -> Result<String> {
    cmd::output(command.stdin(input))
}

/// Runs a command with a text as standard input and returns its stdout.
pub(crate) fn output_with_input(command: &mut Command, text: &str) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let pipe = child.stdin.take();
    let out = thread::scope(|scope| {
        // A command that fails early closes its input; its own message is reported.
        scope.spawn(move || pipe.map(|mut pipe| drop(pipe.write_all(text.as_bytes()))));
        child.wait_with_output()
    })
    .with_context(|| format!("cannot wait for {name}"))?;
    if !out.status.success() {
        let command = format!("{command:?}").replace('"', "");
        bail!(
            "{command} failed: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Writes a file and creates its directory.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reaches_the_command_and_an_early_end_keeps_its_message() {
        assert_eq!(
            output_with_input(&mut Command::new("cat"), "hello").unwrap(),
            "hello"
        );
        let long = "x".repeat(1 << 20);
        let mut failing = Command::new("sh");
        failing.args(["-c", "exec <&-; echo no such thing >&2; exit 3"]);
        let error = output_with_input(&mut failing, &long).unwrap_err().to_string();
        assert!(error.contains("no such thing"), "{error}");
    }
}
