//! Fault injection: killing and restarting programs of control planes, restoring etcd from a snapshot.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::{
    Layout,
    binaries::Binaries,
    cgroup,
    cgroup::Cgroups,
    control_plane::{ETCD, etcd_data},
    process::{Launcher, MountNamespace, Program, nsenter},
    state::StateFile,
    topology::Cluster,
};
use crate::{
    cmd,
    wait::{Poll, Progress, wait_for},
};

/// Time limit for a killed process to end.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);
/// By how much resource versions jump ahead when a snapshot is restored: more than anything wrote since it was taken,
/// so that no version means something else than before.
const REVISION_BUMP: &str = "1000000";

/// Kills a running program; fails if it does not run.
pub(crate) fn kill(layout: &Layout, role: &str) -> Result<()> {
    let record = layout.running()?;
    let process = record.process(role)?;
    if process.start.is_none() {
        bail!("{role} cannot be restarted: only programs of control planes can");
    }
    if !process.is_alive() {
        bail!("{role} does not run");
    }
    cgroup::kill(&[process.pid]);
    wait_for(&format!("the end of {role}"), GONE_TIMEOUT, || {
        Ok(if process.has_exited() {
            Poll::Ready(())
        } else {
            Poll::Pending(format!("process {}", process.pid))
        })
    })
}

/// Restarts a program with its recorded command line; no effect if it runs.
pub(crate) fn start(layout: &Layout, role: &str) -> Result<()> {
    let record = layout.running()?;
    let process = record.process(role)?;
    if process.is_alive() {
        return Ok(());
    }
    let (machine, name) = role.split_once('/').with_context(|| role.to_owned())?;
    let start = process
        .start
        .clone()
        .with_context(|| format!("{role} cannot be restarted: only programs of control planes can"))?;
    let state = StateFile::resume(layout.directory(), record);
    let launcher = Launcher {
        state: &state,
        cgroups: &Cgroups::discover()?,
    };
    launcher
        .start(&Program {
            machine,
            name,
            namespace: &start.namespace,
            mounts: MountNamespace::Host,
            command: start.command,
        })
        .map(drop)
}

/// Saves a snapshot of the etcd that runs.
pub(crate) fn snapshot(layout: &Layout, cluster: &str, file: &Path) -> Result<()> {
    let cluster = find_cluster(layout, cluster)?;
    let program = Binaries::find_or_build(Progress::start())?.path("etcdctl")?;
    let file = std::path::absolute(file).with_context(|| file.display().to_string())?;
    let mut command = Command::new("nsenter");
    command.args(
        nsenter(&cluster.namespace(), MountNamespace::Host)
            .into_iter()
            .skip(1),
    );
    command
        .arg(program)
        .args(["--endpoints", ETCD, "snapshot", "save"])
        .arg(file);
    cmd::capture(&mut command)
}

/// Stops API server and etcd, replaces etcd's data with the snapshot's and starts both.
pub(crate) fn restore(layout: &Layout, cluster: &str, file: &Path) -> Result<()> {
    let cluster = find_cluster(layout, cluster)?;
    let program = Binaries::find_or_build(Progress::start())?.path("etcdutl")?;
    let directory = layout.directory().join(cluster.control_plane());
    let data = etcd_data(&directory);
    let roles = ["kube-apiserver", "etcd"].map(|name| format!("{}/{name}", cluster.control_plane()));
    let file = std::path::absolute(file).with_context(|| file.display().to_string())?;
    // An unusable snapshot must not harm the running cluster.
    let restored = data.with_extension("restored");
    let mut command = Command::new(program);
    command.args(["snapshot", "restore"]).arg(file);
    command
        .args(["--bump-revision", REVISION_BUMP, "--mark-compacted", "--data-dir"])
        .arg(&restored);
    cmd::capture(&mut command)?;
    for role in &roles {
        kill(layout, role)?;
    }
    fs::remove_dir_all(&data).with_context(|| data.display().to_string())?;
    fs::rename(&restored, &data).with_context(|| data.display().to_string())?;
    roles.iter().rev().try_for_each(|role| start(layout, role))
}

fn find_cluster(layout: &Layout, name: &str) -> Result<Cluster> {
    let topology = layout.running()?.topology()?;
    let found = topology.clusters().iter().find(|cluster| cluster.name() == name);
    found
        .cloned()
        .with_context(|| format!("no cluster `{name}` in {topology}"))
}
