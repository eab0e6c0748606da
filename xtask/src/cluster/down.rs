//! `cargo xtask cluster down`: removes the clusters, also incomplete ones, and checks that nothing is left.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Layout,
    cgroup::{self, Cgroups},
    network,
    state::{ClusterRecord, StateFile, sysctl_path},
};
use crate::{
    cmd, setup,
    wait::{Poll, Progress, wait_for},
};

const GONE_TIMEOUT: Duration = Duration::from_secs(20);

/// Removes the clusters and reports the number of processes.
pub(crate) fn down(layout: &Layout, progress: Progress) -> Result<()> {
    setup::require_root("cargo xtask cluster")?;
    match remove(layout)? {
        0 => progress.report("nothing was up"),
        processes => progress.report(format_args!("down: {processes} processes ended, nothing left")),
    }
    Ok(())
}

/// Removes all parts of clusters; returns the number of ended processes.
pub(crate) fn remove(layout: &Layout) -> Result<usize> {
    let directory = layout.directory();
    // A damaged state file must not keep its clusters alive: their control groups name them too.
    let record = StateFile::read(directory).ok().flatten().unwrap_or_default();
    let cgroups = Cgroups::discover()?;
    let mut namespaces: Vec<_> = cgroups
        .machines()
        .iter()
        .map(|machine| format!("mc-{machine}"))
        .collect();
    if let Ok(topology) = record.topology() {
        namespaces.extend(topology.namespaces());
    }
    namespaces.sort();
    namespaces.dedup();

    let survivors: Vec<_> = record
        .processes
        .iter()
        .filter(|process| process.is_alive())
        .map(|process| process.pid)
        .collect();
    let mut ended = cgroups.processes();
    ended.extend(&survivors);
    ended.sort_unstable();
    ended.dedup();
    cgroup::kill(&survivors);
    cgroups.kill()?;
    network::delete(&namespaces)?;
    unmount_below(directory)?;
    cgroups.remove()?;
    restore(&record)?;
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    wait_for("the clusters' traces to go", GONE_TIMEOUT, || {
        let left = leftovers(directory, &cgroups, &namespaces);
        Ok(if left.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending(left.join(", "))
        })
    })?;
    Ok(ended.len())
}

/// Removes the mounts below the state directory, innermost first. The nodes' own mounts disappear
/// with their namespaces.
fn unmount_below(directory: &Path) -> Result<()> {
    for path in mounts_below(directory).iter().rev() {
        cmd::capture(Command::new("umount").args(["--lazy", path]))?;
    }
    Ok(())
}

fn mounts_below(directory: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .filter(|point| Path::new(point).starts_with(directory))
        .map(str::to_owned)
        .collect()
}

/// Restores the machine's settings.
fn restore(record: &ClusterRecord) -> Result<()> {
    for (name, value) in &record.sysctls {
        let path = sysctl_path(name);
        if fs::read_to_string(&path).is_ok_and(|current| current.trim() != value) {
            fs::write(&path, value).with_context(|| path.display().to_string())?;
        }
    }
    if record.mounted_bpffs {
        // Fails if another program uses it by now.
        drop(cmd::capture(Command::new("umount").arg("/sys/fs/bpf")));
    }
    Ok(())
}

/// Remaining parts of removed clusters.
fn leftovers(directory: &Path, cgroups: &Cgroups, namespaces: &[String]) -> Vec<String> {
    let mut left: Vec<String> = mounts_below(directory)
        .iter()
        .map(|path| format!("mount {path}"))
        .collect();
    left.extend(cgroups.processes().iter().map(|pid| format!("process {pid}")));
    left.extend(
        cgroups
            .machines()
            .iter()
            .map(|machine| format!("control group {machine}")),
    );
    let ours = namespaces
        .iter()
        .filter(|name| fs::exists(format!("/run/netns/{name}")).unwrap_or(false));
    left.extend(ours.map(|name| format!("namespace {name}")));
    if fs::exists(format!("/sys/class/net/{}", network::HOST_DEVICE)).unwrap_or(false) {
        left.push(format!("device {}", network::HOST_DEVICE));
    }
    left
}
