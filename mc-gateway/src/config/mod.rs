//! Flags and environment variables, parsed into a validated [`Config`].

mod args;
mod limits;
mod paths;
#[cfg(test)]
mod tests;
mod tunnel;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use mc_api::label_identity::LabelKeyFilter;
use thiserror::Error;

use crate::peer_secret::SecretPolicy;
use crate::probe;
pub use args::{
    AttachPreference, CleanupArgs, Cli, Command, Exposure, InspectArgs, KeyArgs, LimitArgs, LogFormat,
    PathArgs, PodLookup, PolicyEnforcement, ProbeArgs, PublicKeyArgs, RunArgs, TcxOrder, TraceArgs,
    TransitPolicy, TunnelArgs, TunnelDevicePolicy,
};
pub use limits::{FlowTableSize, Limits};
pub use paths::Paths;
pub use tunnel::{Dscp, EncapFormat, Tunnel};

/// A flag with an invalid value.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field}: {value:?} {reason}")]
pub struct ConfigError {
    /// The flag.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// Completes "value …".
    pub reason: &'static str,
}

/// Source of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    /// YAML files in a directory.
    Manifests(PathBuf),
    /// An API server.
    Kubernetes {
        /// Namespace of Gateways and ClusterInfoImports.
        namespace: String,
        /// Kubeconfig file; none for the Pod's service account.
        kubeconfig: Option<PathBuf>,
    },
}

/// Use of secrets with other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// With the Nodes of this cluster.
    pub nodes: SecretPolicy,
    /// IDs of other clusters whose gateways need no public key.
    pub unkeyed_clusters: BTreeSet<String>,
}

/// Validated configuration of `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the local Node.
    pub node_name: String,
    /// ID of the local cluster, if known.
    pub cluster_id: Option<String>,
    /// IDs of the clusters with Antrea gateways.
    pub antrea_clusters: BTreeSet<String>,
    /// Use of secrets with other nodes.
    pub secrets: Secrets,
    /// File with the private key of this node.
    pub key_file: PathBuf,
    /// Source of the objects.
    pub source: ObjectSource,
    /// Encapsulation.
    pub tunnel: Tunnel,
    /// Tunnel devices of the agent.
    pub tunnel_devices: TunnelDevicePolicy,
    /// Underlay devices with the XDP program.
    pub transit: TransitPolicy,
    /// How programs are attached.
    pub attach: AttachPreference,
    /// Position among the programs of others.
    pub tcx_order: TcxOrder,
    /// Listen address of the metrics server; none disables it.
    pub metrics_address: Option<SocketAddr>,
    /// Reachability from other clusters.
    pub exposure: Exposure,
    /// Liveness probes.
    pub probes: probe::Settings,
    /// Limits of the data path.
    pub limits: Limits,
    /// How the Node of a Pod is found.
    pub pod_lookup: PodLookup,
    /// Keys of labels that are in no label identity.
    pub excluded_labels: LabelKeyFilter,
    /// The network policies that are enforced.
    pub policy_enforcement: PolicyEnforcement,
    /// Object whose programs log every decision, in place of the embedded one.
    pub program_log: Option<PathBuf>,
    /// Pins and device.
    pub paths: Paths,
}

fn config_error(field: &'static str, value: impl Into<String>, reason: &'static str) -> ConfigError {
    ConfigError {
        field,
        value: value.into(),
        reason,
    }
}

/// Whether `name` is a DNS-1123 subdomain, as Node and namespace names are.
fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Parses the keys of labels that are in no label identity.
fn parse_excluded_labels(patterns: &[String]) -> Result<LabelKeyFilter, ConfigError> {
    let mut filter = LabelKeyFilter::default();
    for pattern in patterns {
        if !filter.add(pattern) {
            return Err(config_error(
                "--label-identity-excluded-labels",
                pattern,
                "is not the key of a label, or the beginning of one and \"*\"",
            ));
        }
    }
    Ok(filter)
}

/// Parses a duration with units, as `100ms`, `1s` or `1m30s`.
fn parse_duration(field: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let parsed = text.parse::<SignedDuration>().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| config_error(field, text, "is not a time like 100ms or 1s"))
}

impl TryFrom<ProbeArgs> for probe::Settings {
    type Error = ConfigError;

    fn try_from(args: ProbeArgs) -> Result<Self, ConfigError> {
        const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(30)..=Duration::from_secs(10);
        const MAX_DETECT: u32 = 100;
        const MAX_HOLD_DOWN: Duration = Duration::from_mins(10);
        let ProbeArgs {
            probe_interval,
            detect,
            hold_down,
        } = args;
        let interval = parse_duration("--probe-interval", &probe_interval)?;
        if !INTERVAL.contains(&interval) {
            return Err(config_error(
                "--probe-interval",
                probe_interval,
                "is not between 30ms and 10s",
            ));
        }
        let Some(probes) = detect.parse().ok().filter(|probes| *probes <= MAX_DETECT) else {
            return Err(config_error(
                "--detect",
                detect,
                "is not a number of probes up to 100",
            ));
        };
        let held = parse_duration("--hold-down", &hold_down)?;
        if held > MAX_HOLD_DOWN {
            return Err(config_error("--hold-down", hold_down, "is longer than 600s"));
        }
        Ok(Self {
            interval,
            detect: probes,
            hold_down: held,
        })
    }
}

/// The cluster IDs in a flag.
fn cluster_ids(
    field: &'static str,
    text: Option<&str>,
    own: Option<&str>,
) -> Result<BTreeSet<String>, ConfigError> {
    let mut ids = BTreeSet::new();
    for id in text.iter().flat_map(|text| text.split(',')) {
        let reason = if id.trim() != id || id.is_empty() {
            "contains an empty ID or blanks"
        } else if own == Some(id) {
            "contains this cluster's own ID (--cluster-id)"
        } else if ids.insert(id.to_owned()) {
            continue;
        } else {
            "contains an ID twice"
        };
        return Err(config_error(field, text.unwrap_or_default(), reason));
    }
    Ok(ids)
}

impl TryFrom<RunArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: RunArgs) -> Result<Self, ConfigError> {
        let node_name = args.node_name.unwrap_or_default();
        if node_name.is_empty() {
            return Err(config_error(
                "--node-name",
                node_name,
                "is missing (environment: NODE_NAME)",
            ));
        }
        if !is_dns_name(&node_name) {
            return Err(config_error("--node-name", node_name, "is not a valid Node name"));
        }
        if args.cluster_id.as_deref().is_some_and(str::is_empty) {
            return Err(config_error("--cluster-id", "", "is empty"));
        }
        let own = args.cluster_id.as_deref();
        let antrea_clusters = cluster_ids("--antrea-clusters", args.antrea_clusters.as_deref(), own)?;
        let secrets = Secrets {
            nodes: args.keys.node_secrets,
            unkeyed_clusters: cluster_ids("--unkeyed-clusters", args.keys.unkeyed_clusters.as_deref(), own)?,
        };
        let metrics_address = match args.metrics_address.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                config_error(
                    "--metrics-address",
                    text,
                    "is not an address with a port, as 0.0.0.0:9469 or [::]:9469",
                )
            })?),
        };
        let source = match args.manifests {
            Some(dir) => ObjectSource::Manifests(dir),
            None if is_dns_name(&args.namespace) => ObjectSource::Kubernetes {
                namespace: args.namespace,
                kubeconfig: args.kubeconfig,
            },
            None => {
                return Err(config_error(
                    "--namespace",
                    args.namespace,
                    "is not a valid namespace name",
                ));
            }
        };
        Ok(Self {
            node_name,
            cluster_id: args.cluster_id,
            antrea_clusters,
            secrets,
            key_file: args.keys.key_file,
            source,
            tunnel: args.tunnel.try_into()?,
            tunnel_devices: args.tunnel_device,
            transit: args.xdp_transit,
            attach: args.attach,
            tcx_order: args.tcx_order,
            metrics_address,
            exposure: args.exposure,
            probes: args.probes.try_into()?,
            limits: args.limits.try_into()?,
            pod_lookup: args.pod_lookup,
            policy_enforcement: args.policy_enforcement,
            excluded_labels: parse_excluded_labels(&args.label_identity_excluded_labels)?,
            program_log: args.program_log,
            paths: args.paths.try_into()?,
        })
    }
}
