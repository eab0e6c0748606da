//! Flags and environment, parsed into a validated configuration.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use thiserror::Error;

use crate::inspect::{Format as Output, Section};
use crate::trace::packet::Protocol;
use crate::{duration, probe};

/// The gateway agent of mc-gateway.
#[derive(Debug, Parser)]
#[command(name = "mc-gateway", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; `run` when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep this node's data path equal to the cluster's objects (the default).
    Run(RunArgs),
    /// Remove everything the agent made on this node.
    Cleanup(CleanupArgs),
    /// Print what the data path holds, with names; works without an agent.
    Inspect(InspectArgs),
    /// Run a packet through the loaded programs and tell every decision. Exit code 0: forwarded, 1: dropped, 2: cannot tell.
    Trace(TraceArgs),
}

/// Flags of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Name of the Node this agent runs on.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Read objects from YAML files in this directory instead of a Kubernetes API server.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,
    /// Namespace of the Gateways and ClusterInfoImports.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kube-system")]
    pub namespace: String,
    /// Kubeconfig file; without it the Pod's service account is used.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Id of this cluster in its ClusterSet: a ClusterInfoImport of that id is refused.
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,
    /// Clusters whose gateways are Antrea's, by their ids in the ClusterSet, with commas between them.
    #[arg(long, value_name = "ID[,ID...]")]
    pub antrea_clusters: Option<String>,
    /// How packets are encapsulated.
    #[command(flatten)]
    pub tunnel: TunnelArgs,
    /// How programs are attached to devices.
    #[arg(long, value_enum, default_value_t = Attach::Auto)]
    pub attach: Attach,
    /// Where on a device, next to programs of others, programs are attached.
    #[arg(long, value_enum, default_value_t = Order::First)]
    pub tcx_order: Order,
    /// Address and port for /metrics, /healthz and /readyz; empty for none.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:9469")]
    pub metrics_address: String,
    /// Liveness.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// How a gateway finds the Node of a Pod.
    #[arg(long, value_enum, default_value_t = PodLookup::Auto)]
    pub pod_lookup: PodLookup,
    /// Form of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Pins and device.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// How packets between nodes are encapsulated: the same on every node of the ClusterSet.
#[derive(Clone, Debug, Args)]
pub struct TunnelArgs {
    /// Format of encapsulated packets.
    #[arg(long, value_enum, default_value_t = Format::Geneve)]
    pub format: Format,
    /// UDP port of encapsulated packets; by default the format's: 6081 for Geneve, 4789 for VXLAN.
    #[arg(long)]
    pub port: Option<u16>,
    /// Send outer UDP checksums, for an underlay or a peer that needs them.
    #[arg(long)]
    pub udp_checksum: bool,
    /// DSCP of outer packets: the inner packet's, or a number from 0 to 63.
    #[arg(long, value_name = "inherit|0..63", default_value = "inherit")]
    pub dscp: Dscp,
    /// TTL or hop limit of outer packets.
    #[arg(long, value_name = "1..255", default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..))]
    pub hop_limit: u8,
}

/// How the Node of a Pod is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PodLookup {
    /// By the Nodes' Pod CIDRs, and by each Pod whose address lies in none of its Node's.
    #[default]
    Auto,
    /// By the Nodes' Pod CIDRs only: no Pods are watched.
    NodeCidr,
    /// By each Pod, wherever its address lies.
    Pod,
}

/// Format of encapsulated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Geneve (RFC 8926).
    #[default]
    Geneve,
    /// VXLAN (RFC 7348).
    Vxlan,
}

/// DSCP of outer packets (RFC 2474).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dscp {
    /// The inner packet's.
    #[default]
    Inherit,
    /// The same for all; below 64.
    Fixed(u8),
}

/// How other nodes are asked whether they are alive.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// Time between two probes to a gateway: 30ms to 10s.
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub probe_interval: String,
    /// Probes in a row a gateway may leave unanswered before others take its flows; 0 turns that off.
    #[arg(long, value_name = "PROBES", default_value = "3")]
    pub detect: String,
    /// How long a gateway that comes back has to answer probes before it gets flows again.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub hold_down: String,
}

/// Flags of `cleanup`.
#[derive(Clone, Debug, Args)]
pub struct CleanupArgs {
    /// Pins and device.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Flags of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// What to print; a choice of everything when nothing is said.
    #[arg(value_enum)]
    pub sections: Vec<Section>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Pins and device.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Flags of `trace`.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// Source address of the packet.
    pub src: IpAddr,
    /// Destination address of the packet.
    pub dst: IpAddr,
    /// tcp, udp or icmp, with a port as in tcp:443.
    #[arg(default_value = "icmp", value_name = "PROTOCOL[:PORT]")]
    pub protocol: Protocol,
    /// Where it comes from: mc0 as from a Pod of this node, or a peer by address or name.
    #[arg(long, default_value = "mc0", value_name = "mc0|PEER")]
    pub from: String,
    /// Pins and device.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where the agent keeps what outlives it.
#[derive(Clone, Debug, Args)]
pub struct PlaceArgs {
    /// Directory on a BPF file system for the pins of this node.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/mc-gateway")]
    pub bpf_dir: PathBuf,
    /// Name of the device that packets to other clusters are routed to.
    #[arg(long, value_name = "NAME", default_value = "mc0")]
    pub device: String,
    /// Directory for the names of what the maps hold as numbers; `inspect` and `trace` print them.
    #[arg(long, value_name = "DIR", default_value = "/run/mc-gateway")]
    pub state_dir: PathBuf,
}

/// How programs are attached to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// TCX where the kernel has it, else clsact.
    #[default]
    Auto,
    /// Pinned TCX links (Linux 6.6).
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

/// Where a program is among those of others on the same device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Before all that are there: whatever is not ours goes on to them untouched.
    #[default]
    First,
    /// Behind all that are there: what they take, drop or accept for good never reaches us.
    Last,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A flag with a value that cannot work.
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

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
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

/// Pins and device, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Directory on a bpffs.
    pub bpf_dir: PathBuf,
    /// Name of `mc0`.
    pub device: String,
    /// Directory of the file with names.
    pub state_dir: PathBuf,
}

/// How packets are encapsulated, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Format.
    pub format: Format,
    /// UDP destination port.
    pub port: u16,
    /// Whether outer UDP packets carry a checksum.
    pub udp_checksum: bool,
    /// DSCP of outer packets.
    pub dscp: Dscp,
    /// TTL or hop limit of outer packets.
    pub hop_limit: u8,
}

/// Everything `run` needs, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of our Node.
    pub node_name: String,
    /// Id of our cluster, where known.
    pub cluster_id: Option<String>,
    /// Ids of the clusters whose gateways are Antrea's.
    pub antrea_clusters: BTreeSet<String>,
    /// Where objects come from.
    pub source: Source,
    /// How packets are encapsulated.
    pub tunnel: Tunnel,
    /// How programs are attached.
    pub attach: Attach,
    /// Where among those of others.
    pub order: Order,
    /// Where metrics are served; none for nowhere.
    pub metrics_address: Option<SocketAddr>,
    /// How other nodes are asked whether they are alive.
    pub probes: probe::Settings,
    /// How the Node of a Pod is found.
    pub pod_lookup: PodLookup,
    /// Pins and device.
    pub place: Place,
}

fn error(field: &'static str, value: impl Into<String>, reason: &'static str) -> ConfigError {
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

impl TryFrom<PlaceArgs> for Place {
    type Error = ConfigError;

    fn try_from(args: PlaceArgs) -> Result<Self, ConfigError> {
        let PlaceArgs {
            bpf_dir,
            device,
            state_dir,
        } = args;
        let has_dots = bpf_dir
            .components()
            .any(|component| component == std::path::Component::ParentDir);
        if !bpf_dir.is_absolute() || has_dots {
            let value = bpf_dir.display().to_string();
            return Err(error(
                "--bpf-dir",
                value,
                "is not an absolute path without \"..\"",
            ));
        }
        let bad =
            |c: char| c == '/' || c == ':' || c == '%' || c == '"' || c.is_whitespace() || c.is_control();
        if device.is_empty() || device.len() > 15 || device == "." || device == ".." || device.contains(bad) {
            return Err(error(
                "--device",
                device,
                "is not a name a network device can have",
            ));
        }
        Ok(Self {
            bpf_dir,
            device,
            state_dir,
        })
    }
}

impl Format {
    /// The port IANA gave it.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Geneve => 6081,
            Self::Vxlan => 4789,
        }
    }
}

impl FromStr for Dscp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "inherit" {
            return Ok(Self::Inherit);
        }
        let number = text.parse().ok().filter(|number| *number < 64);
        number
            .map(Self::Fixed)
            .ok_or("neither \"inherit\" nor a number from 0 to 63")
    }
}

impl TryFrom<TunnelArgs> for Tunnel {
    type Error = ConfigError;

    fn try_from(args: TunnelArgs) -> Result<Self, ConfigError> {
        let port = args.port.unwrap_or(args.format.default_port());
        if port == 0 {
            return Err(error("--port", "0", "is not a port packets can be sent to"));
        }
        Ok(Self {
            format: args.format,
            port,
            udp_checksum: args.udp_checksum,
            dscp: args.dscp,
            hop_limit: args.hop_limit,
        })
    }
}

impl TryFrom<ProbeArgs> for probe::Settings {
    type Error = ConfigError;

    fn try_from(args: ProbeArgs) -> Result<Self, ConfigError> {
        const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(30)..=Duration::from_secs(10);
        const MAX_DETECT: u32 = 100;
        const MAX_HOLD_DOWN: Duration = Duration::from_mins(10);
        const NOT_A_TIME: &str = "is not a time like 100ms or 1s";
        let ProbeArgs {
            probe_interval,
            detect,
            hold_down,
        } = args;
        let Some(interval) = duration::parse(&probe_interval) else {
            return Err(error("--probe-interval", probe_interval, NOT_A_TIME));
        };
        if !INTERVAL.contains(&interval) {
            return Err(error(
                "--probe-interval",
                probe_interval,
                "is not between 30ms and 10s",
            ));
        }
        let Some(number) = detect.parse().ok().filter(|number| *number <= MAX_DETECT) else {
            return Err(error("--detect", detect, "is not a number of probes up to 100"));
        };
        let Some(held) = duration::parse(&hold_down) else {
            return Err(error("--hold-down", hold_down, NOT_A_TIME));
        };
        if held > MAX_HOLD_DOWN {
            return Err(error("--hold-down", hold_down, "is longer than 600s"));
        }
        Ok(Self {
            interval,
            detect: number,
            hold_down: held,
        })
    }
}

/// The ids in `--antrea-clusters`.
fn antrea_clusters(text: Option<&str>, own: Option<&str>) -> Result<BTreeSet<String>, ConfigError> {
    let mut ids = BTreeSet::new();
    for id in text.iter().flat_map(|text| text.split(',')) {
        let reason = if id.trim() != id || id.is_empty() {
            "holds an empty id, or one with blanks around it"
        } else if own == Some(id) {
            "holds this cluster's own id (--cluster-id)"
        } else if ids.insert(id.to_owned()) {
            continue;
        } else {
            "holds an id twice"
        };
        return Err(error("--antrea-clusters", text.unwrap_or_default(), reason));
    }
    Ok(ids)
}

impl TryFrom<RunArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: RunArgs) -> Result<Self, ConfigError> {
        let node_name = args.node_name.unwrap_or_default();
        if node_name.is_empty() {
            return Err(error(
                "--node-name",
                node_name,
                "is missing (environment: NODE_NAME)",
            ));
        }
        if !is_dns_name(&node_name) {
            return Err(error("--node-name", node_name, "is not a name a Node can have"));
        }
        if args.cluster_id.as_deref().is_some_and(str::is_empty) {
            return Err(error("--cluster-id", "", "is empty"));
        }
        let antrea_clusters = antrea_clusters(args.antrea_clusters.as_deref(), args.cluster_id.as_deref())?;
        let metrics_address = match args.metrics_address.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                error(
                    "--metrics-address",
                    text,
                    "is not an address with a port, as 0.0.0.0:9469 or [::]:9469",
                )
            })?),
        };
        let source = match args.manifests {
            Some(dir) => Source::Manifests(dir),
            None if is_dns_name(&args.namespace) => Source::Kubernetes {
                namespace: args.namespace,
                kubeconfig: args.kubeconfig,
            },
            None => {
                return Err(error(
                    "--namespace",
                    args.namespace,
                    "is not a name a namespace can have",
                ));
            }
        };
        Ok(Self {
            node_name,
            cluster_id: args.cluster_id,
            antrea_clusters,
            source,
            tunnel: args.tunnel.try_into()?,
            attach: args.attach,
            order: args.tcx_order,
            metrics_address,
            probes: args.probes.try_into()?,
            pod_lookup: args.pod_lookup,
            place: args.place.try_into()?,
        })
    }
}

#[cfg(test)]
mod tests;
