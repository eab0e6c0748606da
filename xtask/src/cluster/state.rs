//! Record of the effects of `cluster up`, written as they happen, so that `cluster down` can undo all of them even if
//! `up` did not finish.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::topology::Topology;

/// A started process. The start time distinguishes it from a later process with the same ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Machine and program: `east-n1/kubelet`.
    pub(crate) role: String,
    /// Its process id.
    pub(crate) pid: u32,
    /// Its start, in clock ticks since the machine's.
    pub(crate) start_time: u64,
    /// Its log file.
    pub(crate) log: PathBuf,
    /// The command that restarts it, if it can be restarted.
    pub(crate) start: Option<StartCommand>,
}

/// How a program is started in the machine's own mount namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartCommand {
    /// Its network namespace.
    pub(crate) namespace: String,
    /// The command line.
    pub(crate) command: Vec<String>,
}

/// The contents of the state file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ClusterRecord {
    /// The clusters, as text.
    pub(crate) topology: String,
    /// Whether `up` finished.
    pub(crate) complete: bool,
    /// Every process started.
    pub(crate) processes: Vec<Process>,
    /// Kernel settings changed (by us, or by the kubelet at its start) and their former values.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Whether the BPF file system was mounted for the clusters.
    pub(crate) mounted_bpffs: bool,
}

/// The state file of running clusters, shared by the threads that start them.
#[derive(Debug)]
pub(crate) struct StateFile {
    directory: PathBuf,
    record: Mutex<ClusterRecord>,
}

// === impl Process ===

impl Process {
    /// Describes a process that was just started.
    pub(crate) fn new(role: String, pid: u32, log: PathBuf) -> Result<Self> {
        let start_time = start_time(pid).with_context(|| format!("{role}: process {pid} is gone already"))?;
        Ok(Self {
            role,
            pid,
            start_time,
            log,
            start: None,
        })
    }

    /// Whether it still runs (a zombie does not).
    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// Whether all its threads have ended; threads keep sockets open after the main thread has ended.
    pub(crate) fn has_exited(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        !self.is_alive() && threads.map_or(true, |threads| threads.count() <= 1)
    }

    /// The last lines it wrote, for an error message.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// The start time of a process that runs: field 22 of its `stat` line.
fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may contain both.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

// === impl Record ===

impl ClusterRecord {
    /// The clusters.
    pub(crate) fn topology(&self) -> Result<Topology> {
        self.topology.parse().context("topology in the state file")
    }

    /// The recorded processes that no longer run.
    pub(crate) fn exited(&self) -> Vec<&Process> {
        self.processes
            .iter()
            .filter(|process| !process.is_alive())
            .collect()
    }

    /// The process of that role.
    pub(crate) fn process(&self, role: &str) -> Result<&Process> {
        let found = self.processes.iter().find(|process| process.role == role);
        found.with_context(|| format!("no process `{role}` was started"))
    }
}

// === impl State ===

impl StateFile {
    /// Creates a state file.
    pub(crate) fn create(directory: &Path, topology: &Topology) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let state = Self {
            directory: directory.to_owned(),
            record: Mutex::new(ClusterRecord {
                topology: topology.to_string(),
                ..ClusterRecord::default()
            }),
        };
        state.update(|_| ())?;
        Ok(state)
    }

    /// Continues the state file of running clusters.
    pub(crate) fn resume(directory: &Path, record: ClusterRecord) -> Self {
        Self {
            directory: directory.to_owned(),
            record: Mutex::new(record),
        }
    }

    /// Reads the state file in `directory`, if there is one.
    pub(crate) fn read(directory: &Path) -> Result<Option<ClusterRecord>> {
        let path = state_path(directory);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let record =
                    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
                Ok(Some(record))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// The directory everything of the clusters lives in.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A copy of the current record.
    pub(crate) fn record(&self) -> ClusterRecord {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the record and writes it out before returning.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ClusterRecord)) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut record);
        let path = state_path(&self.directory);
        let new = path.with_extension("new");
        let text = serde_json::to_string_pretty(&*record)?;
        fs::write(&new, text).with_context(|| new.display().to_string())?;
        fs::rename(&new, &path).with_context(|| path.display().to_string())
    }
}

fn state_path(directory: &Path) -> PathBuf {
    directory.join("state.json")
}

/// The file of a kernel setting such as `kernel/panic`.
pub(super) fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse_start_time(&format!("12 (a) b) (c) {rest}")), Some(4711));
        assert_eq!(
            parse_start_time(&format!("12 (a) {}", rest.replace('S', "Z"))),
            None
        );
        assert_eq!(parse_start_time("garbage"), None);
    }

    #[test]
    fn a_later_process_with_the_same_pid_is_another_one() {
        let me = Process::new("me".into(), std::process::id(), PathBuf::new()).unwrap();
        assert!(me.is_alive());
        let other = Process {
            start_time: me.start_time + 1,
            ..me
        };
        assert!(!other.is_alive());
    }

    #[test]
    fn a_recorded_process_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        assert!(StateFile::read(directory.path()).unwrap().is_none());
        let state = StateFile::create(directory.path(), &Topology::default()).unwrap();
        state.update(|record| record.complete = true).unwrap();
        let read = StateFile::read(directory.path()).unwrap().unwrap();
        assert!(read.complete);
        assert_eq!(read.topology().unwrap(), Topology::default());
    }
}
