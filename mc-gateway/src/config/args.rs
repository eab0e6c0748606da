//! Command line of `mc-gateway`: subcommands and flags as clap parses them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mc_gateway_common::abi::IDENTITY_UNKNOWN;

use super::{Dscp, EncapFormat};
use crate::inspect::render::Format as Output;
use crate::inspect::section::Section;
use crate::peer_secret::SecretPolicy;
use crate::trace::protocol::Protocol;

/// The gateway agent of mc-gateway.
#[derive(Debug, Parser)]
#[command(name = "mc-gateway", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Subcommand; `run` by default.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep this node's data path equal to the cluster's objects (the default).
    Run(Box<RunArgs>),
    /// Remove everything the agent created on this node.
    Cleanup(CleanupArgs),
    /// Print the contents of the data path, with names; works without an agent.
    Inspect(InspectArgs),
    /// Print the public key of this node, for manifest files; created with the private key if missing.
    PublicKey(PublicKeyArgs),
    /// Run a packet through the loaded programs and print every decision. Exit code 0: forwarded, 1: dropped,
    /// 2: unknown.
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
    /// ID of this cluster in its ClusterSet: a ClusterInfoImport with this ID is rejected.
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,
    /// IDs of the clusters with Antrea gateways, separated by commas.
    #[arg(long, value_name = "ID[,ID...]")]
    pub antrea_clusters: Option<String>,
    /// Authentication of other nodes.
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Encapsulation.
    #[command(flatten)]
    pub tunnel: TunnelArgs,
    /// Tunnel devices of the agent, with which the kernel joins packets to super-packets.
    #[arg(long, value_enum, default_value_t = TunnelDevicePolicy::Auto)]
    pub tunnel_device: TunnelDevicePolicy,
    /// Underlay devices of a gateway on which an XDP program forwards frequent packets.
    #[arg(long, value_enum, default_value_t = TransitPolicy::Never)]
    pub xdp_transit: TransitPolicy,
    /// How programs are attached to devices.
    #[arg(long, value_enum, default_value_t = AttachPreference::Auto)]
    pub attach: AttachPreference,
    /// Position of the programs among the other TCX programs of a device.
    #[arg(long, value_enum, default_value_t = TcxOrder::First)]
    pub tcx_order: TcxOrder,
    /// Address and port for /metrics, /healthz and /readyz; empty to serve none.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:9469")]
    pub metrics_address: String,
    /// Reachability from other clusters.
    #[command(flatten)]
    pub exposure: Exposure,
    /// Liveness.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// How a gateway finds the Node of a Pod.
    #[arg(long, value_enum, default_value_t = PodLookup::Auto)]
    pub pod_lookup: PodLookup,
    /// Network policies (crd.antrea.io) that the agent enforces.
    #[arg(long, value_enum, default_value_t = PolicyEnforcement::Off)]
    pub policy_enforcement: PolicyEnforcement,
    /// Keys of labels that are in no label identity, as `labelIdentityExcludedLabels` of the cluster's controller; a
    /// trailing `*` stands for any rest.
    #[arg(long, value_name = "KEY[,KEY...]", value_delimiter = ',')]
    pub label_identity_excluded_labels: Vec<String>,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Load the programs from this object of `cargo xtask build-ebpf --log` and log every decision.
    #[arg(long, value_name = "FILE")]
    pub program_log: Option<PathBuf>,
    /// Pins and device.
    #[command(flatten)]
    pub paths: PathArgs,
}

/// The network policies to enforce. [`crate::policy::Mode`] is the mode of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PolicyEnforcement {
    /// None.
    #[default]
    Off,
    /// Rules with peers of scope `ClusterSet`: Antrea in this cluster enforces all others.
    ClusterSetOnly,
    /// All rules, on packets from other clusters and of the own one.
    All,
    /// `cluster-set-only` on a Node where Antrea enforces policies (an `AntreaControllerInfo` and the Node's
    /// `AntreaAgentInfo` exist), else `all`; with manifests `all`.
    Auto,
}

impl PolicyEnforcement {
    /// Whether all rules are enforced, now or once Antrea is absent.
    #[must_use]
    pub fn may_be_all(self) -> bool {
        match self {
            Self::All | Self::Auto => true,
            Self::Off | Self::ClusterSetOnly => false,
        }
    }
}

/// Encapsulation between nodes: the same on every node of the ClusterSet.
#[derive(Clone, Debug, Args)]
pub struct TunnelArgs {
    /// Format of encapsulated packets.
    #[arg(long, value_enum, default_value_t = EncapFormat::Geneve)]
    pub format: EncapFormat,
    /// UDP port of encapsulated packets; by default the format's: 6081 for Geneve, 4789 for VXLAN.
    #[arg(long)]
    pub port: Option<u16>,
    /// Send outer UDP checksums, for an underlay or a peer that requires them.
    #[arg(long)]
    pub udp_checksum: bool,
    /// DSCP of outer packets: the inner packet's, or a number from 0 to 63.
    #[arg(long, value_name = "inherit|0..63", default_value = "inherit")]
    pub dscp: Dscp,
    /// TTL or hop limit of outer packets.
    #[arg(long, value_name = "1..255", default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..))]
    pub hop_limit: u8,
}

/// Authentication of other nodes.
#[derive(Clone, Debug, Args)]
pub struct KeyArgs {
    /// File with the private key of this node; created if missing.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_KEY_FILE)]
    pub key_file: PathBuf,
    /// IDs of the clusters whose gateways may have no public key, separated by commas.
    #[arg(long, value_name = "ID[,ID...]")]
    pub unkeyed_clusters: Option<String>,
    /// Use of secrets among the Nodes of this cluster.
    #[arg(long, value_enum, default_value_t = SecretPolicy::Required)]
    pub node_secrets: SecretPolicy,
}

/// Default of `--key-file`.
const DEFAULT_KEY_FILE: &str = "/var/lib/mc-gateway/private-key";

/// Destinations open to other clusters besides Pods and exported Services.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Let other clusters open connections to this node's own addresses (kubelet, host processes) and its `NodePort`s.
    #[arg(long = "expose-nodes")]
    pub nodes: bool,
    /// Let other clusters reach every Service of this cluster instead of the exported ones.
    #[arg(long = "expose-all-services")]
    pub all_services: bool,
}

/// How the Node of a Pod is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PodLookup {
    /// By the Nodes' Pod CIDRs, and by Pod for addresses outside their Node's CIDRs.
    #[default]
    Auto,
    /// By the Nodes' Pod CIDRs only: no Pods are watched.
    NodeCidr,
    /// By Pod, regardless of its address.
    Pod,
}

/// Liveness probes to other gateways.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// Least time between two probes to a gateway: 30ms to 10s.
    #[arg(long, value_name = "TIME", default_value = "90ms")]
    pub probe_interval: String,
    /// Consecutive unanswered probes after which other gateways get a gateway's flows; 0 disables detection.
    #[arg(long, value_name = "PROBES", default_value = "3")]
    pub detect: String,
    /// Time a recovered gateway must answer probes before it gets flows again.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub hold_down: String,
}

/// Sizes of tables, and rates of each peer on each CPU.
#[derive(Clone, Debug, Args)]
pub struct LimitArgs {
    /// Flows to Services, and their replies, that this node remembers: a power of two from 4096 to 4194304. Each entry
    /// takes about 250 bytes of kernel memory.
    #[arg(long, value_name = "FLOWS", default_value = "65536")]
    pub flow_table_size: String,
    /// New flows, and fragmented packets, per second and CPU that a peer may send to Services.
    #[arg(long, value_name = "FLOWS", default_value = "10000")]
    pub new_flows_per_peer: String,
    /// ICMP errors per second and CPU that a peer may cause.
    #[arg(long, value_name = "ERRORS", default_value = "1000")]
    pub icmp_errors_per_peer: String,
}

/// Flags of `cleanup`.
#[derive(Clone, Debug, Args)]
pub struct CleanupArgs {
    /// Pins and device.
    #[command(flatten)]
    pub paths: PathArgs,
}

/// Flags of `public-key`.
#[derive(Clone, Debug, Args)]
pub struct PublicKeyArgs {
    /// File with the private key of this node; created if missing.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_KEY_FILE)]
    pub key_file: PathBuf,
}

/// Flags of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// Sections to print; a selection by default.
    #[arg(value_enum)]
    pub sections: Vec<Section>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Pins and device.
    #[command(flatten)]
    pub paths: PathArgs,
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
    /// Sender of the packet: mc0 for a Pod of this node, pod for any Pod of the cluster with the policies at the
    /// devices of Pods, or a peer by address or name.
    #[arg(long, default_value = "mc0", value_name = "mc0|pod|PEER")]
    pub from: String,
    /// Label identity of the sender of a packet from a peer: spec.id of its LabelIdentity.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(IDENTITY_UNKNOWN)))]
    pub identity: u32,
    /// Pins and device.
    #[command(flatten)]
    pub paths: PathArgs,
}

/// Pin directory, device and state directory.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// Directory on a BPF file system for the pins of this node.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/mc-gateway")]
    pub bpf_dir: PathBuf,
    /// Name of the device that packets to other clusters are routed to.
    #[arg(long, value_name = "NAME", default_value = "mc0")]
    pub device: String,
    /// Directory for the names of the IDs in the maps; `inspect` and `trace` print them.
    #[arg(long, value_name = "DIR", default_value = "/run/mc-gateway")]
    pub state_dir: PathBuf,
}

/// Which tunnel devices the agent creates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TunnelDevicePolicy {
    /// Those that keep no CNI from the port: none beside Open vSwitch, Cilium, or Calico with eBPF, and none for VXLAN
    /// over IPv6 without checksums.
    #[default]
    Auto,
    /// All: no CNI on the Node may use the same port, except with ordinary VXLAN devices over IPv4.
    Always,
    /// None.
    Never,
}

/// On which devices of a gateway the XDP program forwards packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TransitPolicy {
    /// Devices whose tunnel packets the kernel does not join to super-packets, without veth pairs.
    Auto,
    /// All whose driver has XDP: faster for small packets and slower for bulk TCP. The other end of a veth pair needs
    /// `ethtool -K DEVICE tx off txvlan off gro on`.
    Always,
    /// None: a driver may reset its queues when a program is attached.
    #[default]
    Never,
}

/// How programs are attached to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachPreference {
    /// TCX if the kernel supports it, else clsact.
    #[default]
    Auto,
    /// Pinned TCX links (Linux 6.6).
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

/// Position of a program among those of others on the same device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TcxOrder {
    /// Before all others: foreign packets pass to them unchanged.
    #[default]
    First,
    /// After all others: packets they redirect, drop or accept finally are not seen.
    Last,
}

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
