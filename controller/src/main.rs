//! `mc-controller`: the leader and member controllers, and their CRDs.
#![forbid(unsafe_code)]

use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use controller::{
    api::{
        bind::bind_addresses,
        config::{Config, MultiClusterConfig},
        crd, names,
    },
    metrics::{self, Metrics, Role},
    shell::{
        self,
        election::{Election, Fence},
        outside::Real,
    },
};
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

/// Multi-cluster controllers, compatible with Antrea Multi-cluster.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Turns the exports of member clusters into imports.
    Leader(Run),
    /// Exports from and imports into this cluster.
    Member(Run),
    /// Writes or checks the CRDs.
    Crds(Crds),
}

#[derive(Args)]
struct Run {
    /// The MultiClusterConfig file.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where this controller's own objects are; leader: where the exchanged objects are.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// How to reach the local API server; default: as a Pod does, else as kubectl does.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Whether to wait for the Lease of this kind of controller, so that of several replicas one works.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// What this replica is called in the Lease; default: the host's name and a random number.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Where `/healthz` and `/readyz` are served, `:8080` for example, `0` for nowhere; instead of
    /// `health.healthProbeBindAddress` of the file.
    #[arg(long, value_name = "ADDRESS")]
    health_probe_bind_address: Option<String>,
    /// Where `/metrics` is served; instead of `metrics.bindAddress` of the file.
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<String>,
    /// How to write the log.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Crds {
    /// Writes them below this directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Fails when a file below this directory is not as it would be written.
    #[arg(long)]
    check: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match start(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mc-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Leader(run) => {
            let (config, metrics) = run.prepare(Role::Leader)?;
            let client = client(run.kubeconfig.as_deref()).await?;
            let namespace = run.namespace_or(names::LEADER_NAMESPACE);
            let election = run.election(&client, &namespace, names::LEASE_LEADER, &metrics);
            elected(election, |fence| {
                shell::leader::run(client, namespace, config, fence, Arc::new(Real), metrics)
            })
            .await
        }
        Command::Member(run) => {
            let (config, metrics) = run.prepare(Role::Member)?;
            let client = client(run.kubeconfig.as_deref()).await?;
            let namespace = run.namespace_or(names::MEMBER_NAMESPACE);
            let election = run.election(&client, &namespace, names::LEASE_MEMBER, &metrics);
            elected(election, |fence| {
                shell::member::run(client, namespace, config, fence, Arc::new(Real), metrics)
            })
            .await
        }
        Command::Crds(Crds { out: Some(dir), .. }) => write_crds(&dir),
        Command::Crds(Crds { check: Some(dir), .. }) => check_crds(&dir),
        Command::Crds(_) => Ok(()),
    }
}

/// Works once this replica has won, until it loses or is told to stop: stopping a controller changes nothing in
/// any cluster. One that has lost ends, so that nothing of its work is left behind.
async fn elected<W: Future<Output = ()>>(
    election: Option<Election>,
    work: impl FnOnce(Fence) -> W,
) -> anyhow::Result<()> {
    let mut told = pin!(told_to_stop()?);
    let Some(mut election) = election else {
        tokio::select! {
            () = work(Fence::open()) => bail!("the controller loop ended"),
            () = &mut told => return Ok(()),
        }
    };
    tokio::select! {
        () = election.win() => {}
        () = &mut told => return Ok(()),
    }
    let fence = election.fence();
    tokio::select! {
        () = work(fence) => bail!("the controller loop ended"),
        why = election.keep() => bail!("the Lease is lost: {why}"),
        () = &mut told => {}
    }
    election.release().await;
    Ok(())
}

/// Ends with SIGTERM or SIGINT.
fn told_to_stop() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => info!("SIGTERM"),
            _ = int.recv() => info!("SIGINT"),
        }
    })
}

// === impl Run ===

impl Run {
    fn namespace_or(&self, default: &str) -> String {
        self.namespace.clone().unwrap_or_else(|| default.to_owned())
    }

    /// The log, the configuration, and what tells people how it goes.
    fn prepare(&self, role: Role) -> anyhow::Result<(Config, Arc<Metrics>)> {
        log(self.log_format);
        let mut config = load(self.config.as_deref())?;
        if let Some(value) = &self.health_probe_bind_address {
            config.health_addresses = bind_addresses("--health-probe-bind-address", value)?;
        }
        if let Some(value) = &self.metrics_bind_address {
            config.metrics_addresses = bind_addresses("--metrics-bind-address", value)?;
        }
        let metrics = Metrics::new(role);
        metrics::serve(&config, &metrics);
        Ok((config, metrics))
    }

    fn election(
        &self,
        client: &Client,
        namespace: &str,
        lease: &'static str,
        metrics: &Arc<Metrics>,
    ) -> Option<Election> {
        let identity = self.identity.clone().unwrap_or_else(identity);
        self.leader_elect
            .then(|| Election::new(client, namespace, lease, identity).seen_by(metrics))
    }
}

/// Two controllers on one host must not take each other for themselves.
fn identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}_{}", host.trim(), random.trim())
}

fn log(format: LogFormat) {
    // The client library logs every failed attempt; we say it once for each outage.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,kube_client=off,kube_runtime=off"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

fn load(path: Option<&Path>) -> anyhow::Result<Config> {
    let Some(path) = path else {
        return Ok(Config::default());
    };
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let file: Option<MultiClusterConfig> =
        serde_yaml_ng::from_str(&text).with_context(|| path.display().to_string())?;
    file.unwrap_or_default()
        .try_into()
        .with_context(|| path.display().to_string())
}

async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer().await?,
    };
    Ok(Client::try_from(config)?)
}

/// The files below a directory: one for each CRD, and what makes a kustomize base of them.
fn crd_files() -> anyhow::Result<Vec<(PathBuf, String)>> {
    let mut files = vec![];
    for (role, crds) in [("leader", crd::leader()), ("member", crd::member())] {
        let mut list = String::new();
        for crd in crds {
            let name = format!("{}.yaml", crd.metadata.name.as_deref().unwrap_or_default());
            // By way of a JSON value: its maps are sorted.
            let text = serde_yaml_ng::to_string(&serde_json::to_value(&crd)?)?;
            list = format!("{list}- {name}\n");
            files.push((
                Path::new(role).join(name),
                format!("# Generated by `mc-controller crds`.\n{text}"),
            ));
        }
        let kustomization = format!(
            "# Generated by `mc-controller crds`.\napiVersion: kustomize.config.k8s.io/v1beta1\n\
             kind: Kustomization\nresources:\n{list}"
        );
        files.push((Path::new(role).join("kustomization.yaml"), kustomization));
    }
    Ok(files)
}

fn write_crds(dir: &Path) -> anyhow::Result<()> {
    for (path, text) in crd_files()? {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn check_crds(dir: &Path) -> anyhow::Result<()> {
    let different: Vec<_> = crd_files()?
        .into_iter()
        .map(|(path, text)| (dir.join(path), text))
        .filter(|(path, text)| fs::read_to_string(path).ok().as_ref() != Some(text))
        .map(|(path, _)| path.display().to_string())
        .collect();
    if different.is_empty() {
        return Ok(());
    }
    bail!(
        "not as generated: {}; run `mc-controller crds --out {}`",
        different.join(", "),
        dir.display()
    )
}
