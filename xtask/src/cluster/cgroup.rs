//! The control groups of the clusters. Every process is started below one group, which its children cannot leave, so
//! that `cluster down` finds all processes, also those without a parent.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd,
    wait::{Poll, wait_for},
};

/// Common parent of all groups.
const ROOT: &str = "mc-gateway-cluster";
/// Time limit for killed processes to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// The group hierarchies of this machine: several with version 1, one with version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cgroups {
    hierarchies: Vec<PathBuf>,
    /// A version 2 hierarchy without controllers next to version 1; container runtimes use it.
    unified: Option<PathBuf>,
    /// The hierarchy whose process lists count.
    pid_hierarchy: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

// === impl Cgroups ===

impl Cgroups {
    /// Finds the hierarchies.
    pub(crate) fn discover() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
        Self::parse(&mounts).context("no cgroup file system is mounted (expected one at /sys/fs/cgroup)")
    }

    fn parse(mounts: &str) -> Option<Self> {
        let of_type = |wanted: &str| -> Vec<(PathBuf, Vec<&str>)> {
            let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            lines
                .filter_map(|line| match line.as_slice() {
                    [_, path, kind, options, ..] if *kind == wanted => {
                        Some((PathBuf::from(path), options.split(',').collect()))
                    }
                    _ => None,
                })
                .collect()
        };
        let one = of_type("cgroup");
        if let Some((first, _)) = one.first() {
            let with = |controller: &str| one.iter().find(|(_, options)| options.contains(&controller));
            let account = with("pids")
                .or_else(|| with("freezer"))
                .map_or(first, |(path, _)| path);
            return Some(Self {
                pid_hierarchy: account.clone(),
                hierarchies: one.iter().map(|(path, _)| path.clone()).collect(),
                unified: of_type("cgroup2").into_iter().next().map(|(path, _)| path),
                version: Version::One,
            });
        }
        let (path, _) = of_type("cgroup2").into_iter().next()?;
        Some(Self {
            pid_hierarchy: path.clone(),
            hierarchies: vec![path],
            unified: None,
            version: Version::Two,
        })
    }

    /// The group of a machine's Pods, as the kubelet wants it named.
    pub(crate) fn pods(machine: &str) -> String {
        format!("/{ROOT}/{machine}/pods")
    }

    /// Creates the groups of a machine (a control plane or a node): one for its programs, one for Pods.
    pub(crate) fn create(&self, machine: &str) -> Result<()> {
        for hierarchy in &self.hierarchies {
            let machine = hierarchy.join(ROOT).join(machine);
            for group in ["system", "pods"] {
                let path = machine.join(group);
                fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
            }
            let levels = [hierarchy.join(ROOT), machine.clone(), machine.join("pods")];
            match self.version {
                Version::One => {
                    for level in levels.iter().chain([&machine.join("system")]) {
                        inherit_cpuset(level)?;
                    }
                }
                Version::Two => {
                    for level in &levels {
                        delegate(level)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The file a process writes its number into to join the machine's `system` group.
    pub(crate) fn cgroup_procs(&self, machine: &str) -> PathBuf {
        self.pid_hierarchy
            .join(ROOT)
            .join(machine)
            .join("system/cgroup.procs")
    }

    /// The machines that have groups.
    pub(crate) fn machines(&self) -> Vec<String> {
        let directories = subdirectories(&self.pid_hierarchy.join(ROOT));
        let names = directories.iter().filter_map(|path| path.file_name());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Every process below our group.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let groups = group_tree(&self.pid_hierarchy.join(ROOT));
        let members = groups
            .iter()
            .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
        members
            .flat_map(|text| {
                text.lines()
                    .filter_map(|pid| pid.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Kills every process below our group and waits until all are gone.
    pub(crate) fn kill(&self) -> Result<()> {
        wait_for("the clusters' processes to end", KILL_TIMEOUT, || {
            let left = self.processes();
            if left.is_empty() {
                return Ok(Poll::Ready(()));
            }
            kill(&left);
            Ok(Poll::Pending(format!("processes {left:?}")))
        })
    }

    /// Removes our groups from every hierarchy.
    pub(crate) fn remove(&self) -> Result<()> {
        // The kernel releases a group shortly after its last process has ended.
        wait_for("the clusters' control groups to go", KILL_TIMEOUT, || {
            let mut last = None;
            for hierarchy in self.hierarchies.iter().chain(&self.unified) {
                for group in group_tree(&hierarchy.join(ROOT)) {
                    if let Err(error) = fs::remove_dir(&group) {
                        last = Some(format!("{}: {error}", group.display()));
                    }
                }
            }
            Ok(last.map_or(Poll::Ready(()), Poll::Pending))
        })
    }
}

/// Kills processes. Ignores those that have ended.
pub(crate) fn kill(pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    drop(cmd::output(
        Command::new("sh")
            .args(["-c", "kill -KILL \"$@\"", "sh"])
            .args(pids),
    ));
}

/// Copies the parent's CPUs and memory nodes: a version 1 cpuset group without them accepts no process.
fn inherit_cpuset(group: &Path) -> Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let (own, parent) = (group.join(name), group.parent().map(|parent| parent.join(name)));
        let (Ok(mine), Some(parent)) = (fs::read_to_string(&own), parent) else {
            continue;
        };
        if mine.trim().is_empty() {
            let value = fs::read_to_string(&parent).with_context(|| parent.display().to_string())?;
            fs::write(&own, value.trim()).with_context(|| own.display().to_string())?;
        }
    }
    Ok(())
}

/// Hands a version 2 group's controllers down to its children.
fn delegate(group: &Path) -> Result<()> {
    let available = group.join("cgroup.controllers");
    let text = fs::read_to_string(&available).with_context(|| available.display().to_string())?;
    let path = group.join("cgroup.subtree_control");
    for controller in text.split_whitespace() {
        fs::write(&path, format!("+{controller}"))
            .with_context(|| format!("{}: {controller}", path.display()))?;
    }
    Ok(())
}

/// A group and all groups below, children first.
fn group_tree(group: &Path) -> Vec<PathBuf> {
    if !group.is_dir() {
        return Vec::new();
    }
    let children = subdirectories(group);
    children
        .iter()
        .flat_map(|child| group_tree(child))
        .chain([group.to_owned()])
        .collect()
}

fn subdirectories(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// Fails if clusters of another checkout run: names are shared by the whole machine.
pub(crate) fn check_no_other_clusters(cgroups: &Cgroups) -> Result<()> {
    let (machines, left) = (cgroups.machines(), cgroups.processes().len());
    if left > 0 {
        bail!(
            "clusters of another checkout run on this machine ({}; {left} processes): \
             `cargo xtask cluster down` ends them from here too",
            machines.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_is_used_where_both_are_mounted() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let cgroups = Cgroups::parse(mounts).unwrap();
        assert_eq!(cgroups.version, Version::One);
        assert_eq!(cgroups.hierarchies.len(), 2);
        assert_eq!(cgroups.unified, Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            cgroups.cgroup_procs("east-n1"),
            Path::new("/sys/fs/cgroup/pids/mc-gateway-cluster/east-n1/system/cgroup.procs")
        );
    }

    #[test]
    fn version_two_alone_is_used_and_none_is_refused() {
        let cgroups = Cgroups::parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap();
        assert_eq!(
            (cgroups.version, cgroups.pid_hierarchy),
            (Version::Two, "/sys/fs/cgroup".into())
        );
        assert_eq!(Cgroups::parse("tmpfs /tmp tmpfs rw 0 0\n"), None);
    }

    #[test]
    fn a_tree_lists_children_before_their_parent() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        let found = group_tree(&directory.path().join("a"));
        assert_eq!(found, [directory.path().join("a/b"), directory.path().join("a")]);
    }
}
