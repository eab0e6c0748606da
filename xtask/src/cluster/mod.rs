//! `cargo xtask cluster`: real Kubernetes clusters in network namespaces of this machine.

mod audit;
mod binaries;
mod cgroup;
mod control_plane;
mod dns;
mod down;
mod fault;
mod go_toolchain;
mod install;
mod kubeconfig;
mod kubectl;
mod network;
mod node;
mod packages;
mod pki;
mod process;
mod state;
mod status;
mod topology;
mod up;

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

use self::{
    binaries::Binaries,
    state::{ClusterRecord, StateFile},
    topology::Topology,
};
pub(crate) use self::{install::Configuration, kubectl::Kubectl};
use crate::{cmd, rbac, wait::Progress};

/// `cargo xtask cluster …`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Boot the clusters; install or build missing prerequisites first.
    Up(UpArgs),
    /// Remove the clusters and every trace of them.
    Down,
    /// Show processes, memory and addresses; fails unless the clusters are up.
    Status,
    /// Print the path of the kubeconfig with one context per cluster.
    Kubeconfig,
    /// Import image tars into every node.
    Load {
        /// Image tars, as `cargo xtask images` writes them.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Compare the roles' grants with the audit logs of the API servers; meaningful after all tests only.
    Rbac,
    /// Kill a program of a control plane, for example leader-cp/kube-apiserver.
    Kill {
        /// Control plane and program.
        program: String,
    },
    /// Start a killed program.
    Start {
        /// Control plane and program.
        program: String,
    },
    /// Save a snapshot of a cluster's etcd.
    Snapshot {
        /// Name of the cluster: leader.
        cluster: String,
        /// The file to write.
        file: PathBuf,
    },
    /// Bring a cluster's etcd back to a snapshot, as described by etcd and Kubernetes, and start it and the API
    /// server.
    Restore {
        /// Name of the cluster: leader.
        cluster: String,
        /// The snapshot.
        file: PathBuf,
    },
    /// Run a command (default: a shell) in a node's network and mount namespaces, with its /var/lib, /run and
    /// /sys/fs/bpf.
    Enter {
        /// Name of the node: east-n1.
        node: String,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// `cargo xtask cluster up`
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct UpArgs {
    /// Clusters and their numbers of nodes, the leader first [default: leader=1,east=2,west=2].
    #[arg(long, value_name = "NAME=NODES,…")]
    pub(crate) clusters: Option<Topology>,
    /// Also build and load the images, apply deploy/ and join the clusters to one ClusterSet.
    #[arg(long)]
    pub(crate) install: bool,
    #[command(flatten)]
    pub(crate) configuration: Configuration,
}

/// Paths of the clusters.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    directory: PathBuf,
}

/// Runs the command.
pub(crate) fn run(command: ClusterCommand) -> Result<()> {
    let layout = Layout::in_workspace();
    let progress = Progress::start();
    match command {
        ClusterCommand::Up(args) => {
            let _lock = layout.lock()?;
            up(&layout, &args, progress)
        }
        ClusterCommand::Down => {
            let _lock = layout.lock()?;
            down::down(&layout, progress)
        }
        ClusterCommand::Status => status::print(&layout),
        ClusterCommand::Kubeconfig => {
            layout.running()?;
            println!("{}", layout.kubeconfig().display());
            Ok(())
        }
        ClusterCommand::Load { files } => up::load(&layout, &files, progress),
        ClusterCommand::Rbac => check_rbac(),
        ClusterCommand::Kill { program } => {
            let _lock = layout.lock()?;
            fault::kill(&layout, &program)
        }
        ClusterCommand::Start { program } => {
            let _lock = layout.lock()?;
            fault::start(&layout, &program)
        }
        ClusterCommand::Snapshot { cluster, file } => fault::snapshot(&layout, &cluster, &file),
        ClusterCommand::Restore { cluster, file } => {
            let _lock = layout.lock()?;
            fault::restore(&layout, &cluster, &file)
        }
        ClusterCommand::Enter { node, command } => {
            let status = node::enter(&layout.running()?, &node, &command)?;
            std::process::exit(status.code().unwrap_or(1))
        }
    }
}

/// Brings the default clusters up, installed and joined; returns the kubeconfig.
pub(crate) fn up_installed(configuration: Configuration) -> Result<PathBuf> {
    run(ClusterCommand::Up(UpArgs {
        install: true,
        configuration,
        ..UpArgs::default()
    }))?;
    Ok(Layout::in_workspace().kubeconfig())
}

/// Imports an image into every node of the running clusters.
pub(crate) fn load_image(tar: PathBuf) -> Result<()> {
    up::load(&Layout::in_workspace(), &[tar], Progress::start())
}

/// Runs a command in a node's namespaces.
pub(crate) fn on_node(node: &str, command: &[&str]) -> Result<()> {
    let record = Layout::in_workspace().running()?;
    let command: Vec<String> = command.iter().copied().map(str::to_owned).collect();
    let status = node::enter(&record, node, &command)?;
    if status.success() {
        Ok(())
    } else {
        bail!("{} on {node}: {status}", command.join(" "))
    }
}

/// Compares the roles' grants with the audit logs of the running clusters.
pub(crate) fn check_rbac() -> Result<()> {
    let layout = Layout::in_workspace();
    rbac::check(&audit::logs(layout.directory(), &layout.running()?.topology()?)?)
}

/// Ends the clusters and removes every trace of them.
pub(crate) fn down() -> Result<()> {
    run(ClusterCommand::Down)
}

/// The kubectl that fits the clusters; built where it is missing.
pub(crate) fn kubectl() -> Result<PathBuf> {
    Binaries::find_or_build(Progress::start())?.path("kubectl")
}

fn up(layout: &Layout, args: &UpArgs, progress: Progress) -> Result<()> {
    let topology = args.clusters.clone().unwrap_or_default();
    up::up(layout, &topology, progress)?;
    if args.install {
        install::install(layout, &topology, &args.configuration, progress)?;
    }
    Ok(())
}

// === impl Layout ===

impl Layout {
    /// The layout below this workspace.
    pub(crate) fn in_workspace() -> Self {
        Self {
            directory: cmd::workspace().join("target/cluster"),
        }
    }

    /// The clusters' directory, removed with them.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The merged kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Links to the programs the clusters run, kubectl among them.
    pub(crate) fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    /// The record of running clusters.
    pub(crate) fn running(&self) -> Result<ClusterRecord> {
        match StateFile::read(&self.directory)? {
            Some(record) if record.complete => Ok(record),
            Some(_) => bail!("the clusters are incomplete: `cargo xtask cluster up` restarts them"),
            None => bail!("the clusters are down: `cargo xtask cluster up`"),
        }
    }

    /// Keeps a second `up` or `down` from running at the same time. The lock ends with the process.
    fn lock(&self) -> Result<File> {
        let path = self.directory.with_extension("lock");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => bail!("another `cargo xtask cluster` command is running"),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| path.display().to_string()),
        }
    }
}
