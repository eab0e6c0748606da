//! `mc-controller`: the leader and member controllers, and their CRDs.
#![forbid(unsafe_code)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use controller::{
    api::{
        config::{Config, MultiClusterConfig},
        crd, names,
    },
    shell::{self, outside::Real},
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
            log(run.log_format);
            let config = load(run.config.as_deref())?;
            let client = client(run.kubeconfig.as_deref()).await?;
            let namespace = run
                .namespace
                .unwrap_or_else(|| names::LEADER_NAMESPACE.to_owned());
            until_told(shell::leader::run(client, namespace, config, Arc::new(Real))).await
        }
        Command::Member(run) => {
            log(run.log_format);
            let config = load(run.config.as_deref())?;
            let client = client(run.kubeconfig.as_deref()).await?;
            let namespace = run
                .namespace
                .unwrap_or_else(|| names::MEMBER_NAMESPACE.to_owned());
            until_told(shell::member::run(client, namespace, config, Arc::new(Real))).await
        }
        Command::Crds(Crds { out: Some(dir), .. }) => write_crds(&dir),
        Command::Crds(Crds { check: Some(dir), .. }) => check_crds(&dir),
        Command::Crds(_) => Ok(()),
    }
}

/// Runs until SIGTERM or SIGINT: stopping a controller changes nothing in any cluster.
async fn until_told(work: impl Future<Output = ()>) -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = work => bail!("the controller loop ended"),
        _ = term.recv() => info!("SIGTERM"),
        _ = int.recv() => info!("SIGINT"),
    }
    Ok(())
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
