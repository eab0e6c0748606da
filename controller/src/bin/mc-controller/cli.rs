//! Flags, and the values derived from them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use controller::{
    metrics::{self, Metrics, Role},
    runtime::election::Election,
};
use kube::Client;
use mc_api::{
    config::{Config, MultiClusterConfig},
    listen_addr,
};
use mc_kube::{ConfigSource, Multiplexing};

use crate::log::{self, LogFormat};

/// Multi-cluster controllers, compatible with Antrea Multi-cluster.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Merges the exports of member clusters into imports.
    Leader(Run),
    /// Exports from and imports into this cluster.
    Member(Run),
    /// Writes or checks the CRDs.
    Crds(Crds),
}

#[derive(Args)]
pub(crate) struct Run {
    /// The `MultiClusterConfig` file.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Namespace of this controller; leader: also of the exchanged objects.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Kubeconfig of the local API server; default: the Pod's service account, else kubectl's configuration.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Whether to wait for the Lease of this controller, so that one of several replicas is active.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// Identity of this replica in the Lease; default: host name and a random UUID.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Listen address of `/healthz` and `/readyz`, such as `:8080`, `0` for none; overrides
    /// `health.healthProbeBindAddress` of the file.
    #[arg(long, value_name = "ADDRESS")]
    health_probe_bind_address: Option<String>,
    /// Listen address of `/metrics`; overrides `metrics.bindAddress` of the file.
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<String>,
    /// Log format.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Crds {
    /// Writes the CRDs below this directory.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Fails if a file below this directory differs from the generated one.
    #[arg(long)]
    pub(crate) check: Option<PathBuf>,
}

// === impl Run ===

impl Run {
    pub(crate) fn namespace_or(&self, default: &str) -> String {
        self.namespace.clone().unwrap_or_else(|| default.to_owned())
    }

    /// Initializes the log, loads the configuration and serves probes and metrics.
    pub(crate) fn prepare(&self, role: Role) -> anyhow::Result<(Config, Arc<Metrics>)> {
        log::init(self.log_format);
        let mut config = load(self.config.as_deref())?;
        if let Some(value) = &self.health_probe_bind_address {
            config.health_addresses = listen_addr::parse(value).context("--health-probe-bind-address")?;
        }
        if let Some(value) = &self.metrics_bind_address {
            config.metrics_addresses = listen_addr::parse(value).context("--metrics-bind-address")?;
        }
        let metrics = Metrics::new(role);
        metrics::serve(&config, &metrics);
        Ok((config, metrics))
    }

    pub(crate) async fn client(&self, multiplexing: Multiplexing) -> anyhow::Result<Client> {
        let source = match &self.kubeconfig {
            Some(path) => ConfigSource::Kubeconfig(path),
            None => ConfigSource::Infer,
        };
        Ok(mc_kube::client(source, multiplexing).await?)
    }

    /// The election for `lease`; `None` if disabled. Its connections are its own: a dead one must be noticed before the
    /// Lease is lost.
    pub(crate) async fn election(
        &self,
        namespace: &str,
        lease: &'static str,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Option<Election>> {
        if !self.leader_elect {
            return Ok(None);
        }
        let client = self.client(Multiplexing::PerRequest).await?;
        let identity = self.identity.clone().unwrap_or_else(random_identity);
        Ok(Some(
            Election::new(&client, namespace, lease, identity).with_metrics(metrics),
        ))
    }
}

/// The UUID distinguishes two controllers on one host.
fn random_identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid.trim())
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
