//! `cargo xtask cluster up`: all clusters at once, as far as the machine's processors allow.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};

use super::{
    Layout, binaries::Binaries, cgroup, cgroup::Cgroups, control_plane::ControlPlane, dns, down,
    kubeconfig::Kubeconfig, kubectl::Kubectl, network, node, node::NodeRuntime, packages, process::Launcher,
    process::write, state::StateFile, state::sysctl_path, status, topology::Cluster, topology::Topology,
};
use crate::{
    images, setup,
    wait::{Poll, Progress, wait_for},
};

/// Kernel settings that a kubelet changes at its start.
const KUBELET_SYSCTLS: &[&str] = &[
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
/// Limits of file watches, raised for several kubelets and containerds on one machine.
const INOTIFY: &[(&str, u64)] = &[
    ("fs/inotify/max_user_instances", 1024),
    ("fs/inotify/max_user_watches", 524_288),
];
const READY_TIMEOUT: Duration = Duration::from_mins(2);

/// Boots the clusters; reports if they already run.
pub(crate) fn up(layout: &Layout, topology: &Topology, progress: Progress) -> Result<()> {
    setup::require_root("cargo xtask cluster")?;
    match status::check_health(layout)? {
        status::Health::Up(running) if running == *topology => {
            progress.report(format_args!("already up: {topology}"));
            return Ok(());
        }
        status::Health::Up(running) => {
            bail!("other clusters are up ({running}); `cargo xtask cluster down` first")
        }
        status::Health::Down => cgroup::check_no_other_clusters(&Cgroups::discover()?)?,
        status::Health::Broken(reasons) => {
            progress.report(format_args!("removing broken clusters: {}", reasons.join("; ")));
        }
    }
    down::remove(layout)?;
    packages::ensure()?;
    let binaries = Binaries::find_or_build(progress)?;
    let start = Progress::start();
    let directory = images::directory();
    let images = [
        images::pause(&directory)?,
        images::coredns(&directory, &binaries.path("coredns")?)?,
    ];
    check_paths(layout, &binaries, &images)?;
    let cgroups = Cgroups::discover()?;
    let state = StateFile::create(layout.directory(), topology)?;
    prepare_host(&state)?;
    link_programs(layout, &binaries)?;
    network::create(topology)?;
    progress.report(format_args!("network of {topology}"));

    let boot = Bootstrap {
        launcher: Launcher {
            state: &state,
            cgroups: &cgroups,
        },
        binaries: &binaries,
        layout,
        images: &images,
        progress,
    };
    let kubeconfigs = thread::scope(|scope| {
        let threads: Vec<_> = topology
            .clusters()
            .iter()
            .map(|cluster| scope.spawn(move || boot.cluster(cluster)))
            .collect();
        join(threads)
    })?;
    let merged = Kubeconfig::merge(kubeconfigs).context("no clusters")?;
    write(&layout.kubeconfig(), &merged.to_yaml()?)?;
    state.update(|record| record.complete = true)?;
    progress.report(format_args!(
        "up: {} nodes ready, {:.1} s without one-time builds; KUBECONFIG={}",
        topology.nodes().count(),
        start.seconds(),
        layout.kubeconfig().display()
    ));
    Ok(())
}

/// Inputs of every cluster's thread.
#[derive(Clone, Copy)]
struct Bootstrap<'a> {
    launcher: Launcher<'a>,
    binaries: &'a Binaries,
    layout: &'a Layout,
    /// Images of every node.
    images: &'a [PathBuf],
    progress: Progress,
}

// === impl Boot ===

impl Bootstrap<'_> {
    /// One cluster, until all its nodes are ready. Returns the administrator's kubeconfig.
    fn cluster(&self, cluster: &Cluster) -> Result<Kubeconfig> {
        self.boot(cluster)
            .with_context(|| format!("cluster {}", cluster.name()))
    }

    fn boot(&self, cluster: &Cluster) -> Result<Kubeconfig> {
        let Self {
            launcher,
            binaries,
            progress,
            ..
        } = *self;
        let plane = ControlPlane::start(launcher, binaries, cluster)?;
        // Until all are up there is no merged file.
        let kubeconfig = launcher
            .directory(&cluster.control_plane())
            .join("admin.kubeconfig");
        write(&kubeconfig, &plane.admin_kubeconfig().to_yaml()?)?;
        let kubectl = Kubectl::new(&binaries.path("kubectl")?, &kubeconfig, cluster.name());
        let (ready, runtimes) = thread::scope(|scope| {
            let images = self.images;
            let runtimes: Vec<_> = cluster
                .nodes()
                .map(|node| scope.spawn(move || NodeRuntime::start(launcher, node, images)))
                .collect();
            (plane.wait_ready(&kubectl), join(runtimes))
        });
        let (runtimes, ()) = (runtimes?, ready?);
        progress.report(format_args!("{}: API server ready", cluster.name()));
        let objects: Vec<_> = cluster.nodes().map(|node| node::node_object(&node)).collect();
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        kubectl.output_with_input(&["create", "--validate=false", "-f", "-"], &list.to_string())?;
        for runtime in &runtimes {
            runtime.join(launcher, binaries, cluster, &plane.authority)?;
        }
        plane.start_controllers(launcher, binaries)?;
        dns::create(&kubectl, cluster)?;
        self.wait_ready(cluster, &kubectl)?;
        progress.report(format_args!("{}: all nodes ready", cluster.name()));
        dns::wait_ready(&kubectl, cluster)?;
        progress.report(format_args!("{}: DNS ready", cluster.name()));
        Ok(plane.admin_kubeconfig())
    }

    /// Waits until every node is ready and Pods can be created.
    fn wait_ready(&self, cluster: &Cluster, kubectl: &Kubectl) -> Result<()> {
        let wanted = cluster.nodes().count();
        wait_for(&format!("the nodes of {}", cluster.name()), READY_TIMEOUT, || {
            if let Some(dead) = self.launcher.state.record().exited().first() {
                bail!(
                    "{} ended; last lines of {}:\n{}",
                    dead.role,
                    dead.log.display(),
                    dead.log_tail()
                );
            }
            let ready = match status::ready_nodes(kubectl) {
                Ok(ready) => ready,
                Err(error) => return Ok(Poll::Pending(format!("{error:#}"))),
            };
            if ready != wanted {
                return Ok(Poll::Pending(format!("{ready} of {wanted} ready")));
            }
            Ok(match kubectl.output(&["get", "serviceaccount", "default"]) {
                Ok(_) => Poll::Ready(()),
                Err(error) => Poll::Pending(format!("nodes ready, but {error:#}")),
            })
        })
        .with_context(|| format!("logs are in {}", self.layout.directory().display()))
    }
}

/// Joins the threads; the first error is returned.
fn join<T>(threads: Vec<thread::ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    let results: Vec<_> = threads
        .into_iter()
        .map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        })
        .collect();
    results.into_iter().collect()
}

/// Fails early where the nodes could not see a file they need.
fn check_paths(layout: &Layout, binaries: &Binaries, images: &[PathBuf]) -> Result<()> {
    fs::create_dir_all(layout.directory()).with_context(|| layout.directory().display().to_string())?;
    let programs = binaries.all().map(|(_, path)| path);
    programs
        .chain([layout.directory()])
        .chain(images.iter().map(PathBuf::as_path))
        .try_for_each(node::check_visible)
}

/// Changes kernel settings where needed, after recording their values.
fn prepare_host(state: &StateFile) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let has_bpffs = mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some("/sys/fs/bpf"));
    let mut settings = BTreeMap::new();
    let names = KUBELET_SYSCTLS
        .iter()
        .copied()
        .chain(INOTIFY.iter().map(|(name, _)| *name));
    for name in names {
        // Not every kernel has each of them.
        if let Ok(value) = fs::read_to_string(sysctl_path(name)) {
            settings.insert(name.to_owned(), value.trim().to_owned());
        }
    }
    state.update(|record| {
        record.sysctls.clone_from(&settings);
        record.mounted_bpffs = !has_bpffs;
    })?;
    for (name, wanted) in INOTIFY {
        let current = settings.get(*name).and_then(|value| value.parse::<u64>().ok());
        if current.is_some_and(|current| current < *wanted) {
            fs::write(sysctl_path(name), wanted.to_string())
                .with_context(|| sysctl_path(name).display().to_string())?;
        }
    }
    setup::ensure_bpffs()
}

/// Links every program into one directory, for users of kubectl.
fn link_programs(layout: &Layout, binaries: &Binaries) -> Result<()> {
    let directory = layout.programs();
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    for (name, path) in binaries.all() {
        let link = directory.join(name);
        symlink(path, &link).with_context(|| link.display().to_string())?;
    }
    Ok(())
}

/// Imports an image tar into every node of the running clusters.
pub(crate) fn load(layout: &Layout, images: &[PathBuf], progress: Progress) -> Result<()> {
    let record = layout.running()?;
    for image in images {
        let image = std::path::absolute(image).with_context(|| image.display().to_string())?;
        thread::scope(|scope| {
            let nodes = record.topology()?.nodes().collect::<Vec<_>>();
            let (record, image) = (&record, &image);
            let threads = nodes
                .into_iter()
                .map(|node| scope.spawn(move || NodeRuntime::from_record(record, node)?.load(image)))
                .collect();
            join(threads)
        })?;
        progress.report(format_args!("loaded {}", image.display()));
    }
    Ok(())
}
