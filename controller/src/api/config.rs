//! `MultiClusterConfig`, the file given with `--config`.

use std::{net::SocketAddr, str::FromStr};

use ipnet::IpNet;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::{
    bind::{any, bind_addresses},
    label_identity::Exclusions,
    validation::{self, Invalid},
};

/// The file as written. Keys this release does not act on (`webhook`, `leaderElection` …) are tolerated.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MultiClusterConfig {
    /// `multicluster.crd.antrea.io/v1alpha1`, or absent.
    pub api_version: String,
    /// `MultiClusterConfig`, or absent.
    pub kind: String,
    /// Where `/healthz` and `/readyz` are served.
    pub health: Option<HealthSection>,
    /// Where `/metrics` is served.
    pub metrics: Option<MetricsSection>,
    /// The Service CIDR of this cluster, of a dual-stack cluster both with a comma between; found out when absent.
    #[serde(rename = "serviceCIDR")]
    pub service_cidr: Option<String>,
    /// The Pod CIDRs of this cluster; taken from the Nodes when absent or empty.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<String>>,
    /// Which address of the Node is the gateway IP: `private`/`internal` (default) or `public`/`external`.
    #[serde(rename = "gatewayIPPrecedence")]
    pub gateway_ip_precedence: Option<String>,
    /// What is exported for a Service: `ClusterIP` (default) or `PodIP`.
    #[serde(rename = "endpointIPType")]
    pub endpoint_ip_type: Option<String>,
    /// How many Nodes are gateway at a time: `ActiveActive` (default) or `ActiveStandby`.
    pub gateway_mode: Option<String>,
    /// How long a gateway that is to be removed goes on without new flows, `30s` when absent.
    pub gateway_drain_period: Option<String>,
    /// Whether label identities are exchanged; the same in all clusters of a set, the leader included.
    pub enable_stretched_network_policy: Option<bool>,
    /// Superset: keys of labels that make no identity, a `*` at the end for all that begin so; the same in all
    /// clusters of a set.
    pub label_identity_excluded_labels: Option<Vec<String>>,
    /// Superset: of which Pods the identities are exported: `All` (default), or `Selected`, those a selector of
    /// scope `ClusterSet` in a replicated policy means.
    pub label_identity_export: Option<String>,
    /// Superset, of the leader: how long the number of a label that is gone is given to no other, `10m` when absent.
    pub label_identity_quarantine: Option<String>,
    /// Superset, of the leader: what becomes of a member that fell silent: `Keep` (default), or `Remove` after
    /// [`Self::stale_member_timeout`].
    pub stale_member_policy: Option<String>,
    /// Superset, of the leader: how long a member has to be silent to be removed, `24h` when absent.
    pub stale_member_timeout: Option<String>,
}

/// Where `/healthz` and `/readyz` are served.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthSection {
    /// `:8080` when absent or empty, `"0"` for nowhere.
    pub health_probe_bind_address: Option<String>,
}

/// Where `/metrics` is served.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsSection {
    /// `"0"`, nowhere, when absent or empty; it may be the address of the probes.
    pub bind_address: Option<String>,
}

/// The port of the probes unless configured.
const HEALTH_PORT: u16 = 8080;
/// The shortest quarantine: what was sent before has arrived or failed by then, in any case.
pub const MIN_QUARANTINE: SignedDuration = SignedDuration::from_mins(1);
/// The quarantine unless configured: a cluster that was cut off that long has told its people.
pub const QUARANTINE: SignedDuration = SignedDuration::from_mins(10);
/// The shortest time after which a silent member may be removed: that of a leader's, a node's or a router's restart.
pub const MIN_STALE: SignedDuration = SignedDuration::from_mins(1);
/// After how long a silent member is removed, where one is: Antrea's.
pub const STALE: SignedDuration = SignedDuration::from_hours(24);
/// The drain period unless configured: several times what an announcement takes.
pub const DRAIN_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// The file, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where `/healthz` and `/readyz` are served: the first of these that can be used. None: nowhere.
    pub health_addresses: Vec<SocketAddr>,
    /// The same for `/metrics`.
    pub metrics_addresses: Vec<SocketAddr>,
    /// The Service CIDRs, when configured: one of each IP family at most.
    pub service_cidrs: Vec<IpNet>,
    /// The Pod CIDRs, when configured.
    pub pod_cidrs: Vec<IpNet>,
    /// Which address of the Node is the gateway IP.
    pub precedence: GatewayIpPrecedence,
    /// What is exported for a Service.
    pub endpoint_ip_type: EndpointIpType,
    /// How many Nodes are gateway at a time.
    pub gateway_mode: GatewayMode,
    /// How long a gateway that is to be removed goes on without new flows; not negative.
    pub drain_period: SignedDuration,
    /// Whether label identities are exchanged.
    pub stretched_policy: bool,
    /// Keys of labels that make no identity.
    pub excluded_labels: Exclusions,
    /// Of which Pods the identities are exported.
    pub identity_export: IdentityExport,
    /// How long the number of a label that is gone is given to no other; at least [`MIN_QUARANTINE`].
    pub quarantine: SignedDuration,
    /// What becomes of a member that fell silent.
    pub stale_member_policy: StaleMemberPolicy,
    /// How long a member has to be silent to be removed; at least [`MIN_STALE`].
    pub stale_member_timeout: SignedDuration,
}

/// What becomes of a member that fell silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleMemberPolicy {
    /// It is shown as not Ready.
    #[default]
    Keep,
    /// After a time it is removed, with all it exported.
    Remove,
}

/// Of which Pods the identities are exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityExport {
    /// Of all.
    #[default]
    All,
    /// Of those a selector of scope `ClusterSet` in a replicated policy means.
    Selected,
}

/// Which address of a Node becomes the gateway IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayIpPrecedence {
    /// `InternalIP`.
    #[default]
    Internal,
    /// `ExternalIP`.
    External,
}

/// What is exported as the endpoints of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointIpType {
    /// The cluster IP of the Service.
    #[default]
    ClusterIp,
    /// The addresses of its ready Pods.
    PodIp,
}

/// How many Nodes are gateway at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayMode {
    /// Every Node that can.
    #[default]
    ActiveActive,
    /// One; the others wait for it to fail.
    ActiveStandby,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A CIDR that is none.
    #[error("{field}: {cause}")]
    Cidr {
        /// The key in the file.
        field: String,
        /// What is wrong with it.
        cause: Invalid,
    },
    /// A word that is not one of the known.
    #[error("{field}: {value:?} is none of {known}")]
    Word {
        /// The key in the file.
        field: &'static str,
        /// As given.
        value: String,
        /// What would be accepted.
        known: &'static str,
    },
    /// No length of time.
    #[error("{field}: {value:?} is not a duration such as 30s or 1m30s")]
    Duration {
        /// The key in the file.
        field: &'static str,
        /// As given.
        value: String,
    },
    /// No address to listen at.
    #[error(
        "{field}: {value:?} is not an address and port such as \":8080\", \"127.0.0.1:8080\" or \"[::1]:8080\", nor \"0\" for none"
    )]
    Address {
        /// The key in the file.
        field: &'static str,
        /// As given.
        value: String,
    },
    /// Shorter than is safe.
    #[error("{field}: {value:?} is shorter than {least:#}")]
    Short {
        /// The key in the file.
        field: &'static str,
        /// As given.
        value: String,
        /// The least that is accepted.
        least: SignedDuration,
    },
    /// No key of labels.
    #[error("{field}: {value:?} is no label key, nor the beginning of one with a '*' behind it")]
    LabelKey {
        /// The key in the file.
        field: String,
        /// As given.
        value: String,
    },
    /// A file of something else.
    #[error("{field}: {value:?} where {wanted:?} is wanted")]
    Type {
        /// The key in the file.
        field: &'static str,
        /// As given.
        value: String,
        /// What would be accepted.
        wanted: &'static str,
    },
    /// More than a cluster has.
    #[error(
        "serviceCIDR: {value:?} is more than one CIDR of an IP family; give one, or one IPv4 and one IPv6 CIDR"
    )]
    ServiceCidrs {
        /// As given.
        value: String,
    },
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            health_addresses: any(HEALTH_PORT),
            metrics_addresses: vec![],
            service_cidrs: vec![],
            pod_cidrs: vec![],
            precedence: GatewayIpPrecedence::default(),
            endpoint_ip_type: EndpointIpType::default(),
            gateway_mode: GatewayMode::default(),
            drain_period: DRAIN_PERIOD,
            stretched_policy: false,
            excluded_labels: Exclusions::default(),
            identity_export: IdentityExport::default(),
            quarantine: QUARANTINE,
            stale_member_policy: StaleMemberPolicy::default(),
            stale_member_timeout: STALE,
        }
    }
}

impl TryFrom<MultiClusterConfig> for Config {
    type Error = ConfigError;

    fn try_from(file: MultiClusterConfig) -> Result<Self, ConfigError> {
        expect_type(
            "apiVersion",
            file.api_version,
            "multicluster.crd.antrea.io/v1alpha1",
        )?;
        expect_type("kind", file.kind, "MultiClusterConfig")?;
        let cidr = |field: String, value: &str| {
            validation::cidr(value).map_err(|cause| ConfigError::Cidr { field, cause })
        };
        let health = file.health.unwrap_or_default().health_probe_bind_address;
        let metrics = file.metrics.unwrap_or_default().bind_address;
        Ok(Self {
            health_addresses: addresses("health.healthProbeBindAddress", health, any(HEALTH_PORT))?,
            metrics_addresses: addresses("metrics.bindAddress", metrics, vec![])?,
            service_cidrs: service_cidrs(file.service_cidr.unwrap_or_default())?,
            pod_cidrs: file
                .pod_cidrs
                .unwrap_or_default()
                .iter()
                .enumerate()
                .filter(|(_, v)| !v.is_empty())
                .map(|(i, v)| cidr(format!("podCIDRs[{i}]"), v))
                .collect::<Result<_, _>>()?,
            precedence: file
                .gateway_ip_precedence
                .as_deref()
                .unwrap_or_default()
                .parse()?,
            endpoint_ip_type: file.endpoint_ip_type.as_deref().unwrap_or_default().parse()?,
            gateway_mode: file.gateway_mode.as_deref().unwrap_or_default().parse()?,
            drain_period: duration("gatewayDrainPeriod", file.gateway_drain_period, DRAIN_PERIOD)?,
            stretched_policy: file.enable_stretched_network_policy.unwrap_or_default(),
            excluded_labels: exclusions(file.label_identity_excluded_labels.unwrap_or_default())?,
            identity_export: file
                .label_identity_export
                .as_deref()
                .unwrap_or_default()
                .parse()?,
            quarantine: at_least(
                "labelIdentityQuarantine",
                file.label_identity_quarantine,
                QUARANTINE,
                MIN_QUARANTINE,
            )?,
            stale_member_policy: file.stale_member_policy.as_deref().unwrap_or_default().parse()?,
            stale_member_timeout: at_least(
                "staleMemberTimeout",
                file.stale_member_timeout,
                STALE,
                MIN_STALE,
            )?,
        })
    }
}

fn addresses(
    field: &'static str,
    value: Option<String>,
    default: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, ConfigError> {
    match value.filter(|v| !v.is_empty()) {
        Some(value) => bind_addresses(field, &value),
        None => Ok(default),
    }
}

fn duration(
    field: &'static str,
    value: Option<String>,
    default: SignedDuration,
) -> Result<SignedDuration, ConfigError> {
    let Some(value) = value.filter(|v| !v.is_empty()) else {
        return Ok(default);
    };
    let period = value.parse().ok().filter(|p: &SignedDuration| !p.is_negative());
    period.ok_or(ConfigError::Duration { field, value })
}

fn at_least(
    field: &'static str,
    value: Option<String>,
    default: SignedDuration,
    least: SignedDuration,
) -> Result<SignedDuration, ConfigError> {
    let period = duration(field, value.clone(), default)?;
    if period < least {
        return Err(ConfigError::Short {
            field,
            value: value.unwrap_or_default(),
            least,
        });
    }
    Ok(period)
}

fn exclusions(patterns: Vec<String>) -> Result<Exclusions, ConfigError> {
    let mut all = Exclusions::default();
    for (i, value) in patterns.into_iter().enumerate() {
        if !all.add(&value) {
            let field = format!("labelIdentityExcludedLabels[{i}]");
            return Err(ConfigError::LabelKey { field, value });
        }
    }
    Ok(all)
}

fn service_cidrs(value: String) -> Result<Vec<IpNet>, ConfigError> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let cidrs: Vec<_> = parts
        .map(validation::cidr)
        .collect::<Result<_, _>>()
        .map_err(|cause| ConfigError::Cidr {
            field: "serviceCIDR".to_owned(),
            cause,
        })?;
    let one_of_each = match cidrs[..] {
        [first, second] => matches!(first, IpNet::V4(_)) != matches!(second, IpNet::V4(_)),
        _ => cidrs.len() < 2,
    };
    if one_of_each {
        Ok(cidrs)
    } else {
        Err(ConfigError::ServiceCidrs { value })
    }
}

fn expect_type(field: &'static str, value: String, wanted: &'static str) -> Result<(), ConfigError> {
    if value.is_empty() || value == wanted {
        Ok(())
    } else {
        Err(ConfigError::Type { field, value, wanted })
    }
}

// === impl GatewayIpPrecedence ===

impl FromStr for GatewayIpPrecedence {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "private" | "internal" => Ok(Self::Internal),
            "public" | "external" => Ok(Self::External),
            _ => Err(ConfigError::Word {
                field: "gatewayIPPrecedence",
                value: value.to_owned(),
                known: "internal, private, external, public",
            }),
        }
    }
}

// === impl EndpointIpType ===

impl FromStr for EndpointIpType {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "ClusterIP" => Ok(Self::ClusterIp),
            "PodIP" => Ok(Self::PodIp),
            _ => Err(ConfigError::Word {
                field: "endpointIPType",
                value: value.to_owned(),
                known: "ClusterIP, PodIP",
            }),
        }
    }
}

// === impl GatewayMode ===

impl FromStr for GatewayMode {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "ActiveActive" => Ok(Self::ActiveActive),
            "ActiveStandby" => Ok(Self::ActiveStandby),
            _ => Err(ConfigError::Word {
                field: "gatewayMode",
                value: value.to_owned(),
                known: "ActiveActive, ActiveStandby",
            }),
        }
    }
}

// === impl IdentityExport ===

impl FromStr for IdentityExport {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "All" => Ok(Self::All),
            "Selected" => Ok(Self::Selected),
            _ => Err(ConfigError::Word {
                field: "labelIdentityExport",
                value: value.to_owned(),
                known: "All, Selected",
            }),
        }
    }
}

// === impl StaleMemberPolicy ===

impl FromStr for StaleMemberPolicy {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "Keep" => Ok(Self::Keep),
            "Remove" => Ok(Self::Remove),
            _ => Err(ConfigError::Word {
                field: "staleMemberPolicy",
                value: value.to_owned(),
                known: "Keep, Remove",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(file: serde_json::Value) -> Result<Config, ConfigError> {
        serde_json::from_value::<MultiClusterConfig>(file)
            .unwrap()
            .try_into()
    }

    #[test]
    fn the_documented_file_is_accepted_and_made_canonical() {
        let config = parse(json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
            "kind": "MultiClusterConfig",
            "health": { "healthProbeBindAddress": "127.0.0.1:8090" },
            "metrics": { "bindAddress": ":8080" },
            "webhook": { "port": 9443 },
            "podCIDRs": ["10.10.1.1/16", ""],
            "serviceCIDR": "",
            "endpointIPType": "PodIP",
            "gatewayIPPrecedence": "public",
            "gatewayMode": "ActiveStandby",
            "gatewayDrainPeriod": "1m30s",
            "enableStretchedNetworkPolicy": true,
            "labelIdentityExcludedLabels": ["pod-template-hash", "batch.kubernetes.io/*"],
            "labelIdentityExport": "Selected",
            "labelIdentityQuarantine": "5m",
            "staleMemberPolicy": "Remove",
            "staleMemberTimeout": "36h",
        }))
        .unwrap();
        assert_eq!(config.health_addresses, ["127.0.0.1:8090".parse().unwrap()]);
        assert_eq!(
            config.metrics_addresses,
            ["[::]:8080".parse().unwrap(), "0.0.0.0:8080".parse().unwrap()]
        );
        assert_eq!(config.pod_cidrs, ["10.10.0.0/16".parse().unwrap()]);
        assert_eq!(config.service_cidrs, []);
        assert_eq!(config.endpoint_ip_type, EndpointIpType::PodIp);
        assert_eq!(config.precedence, GatewayIpPrecedence::External);
        assert_eq!(config.gateway_mode, GatewayMode::ActiveStandby);
        assert_eq!(config.drain_period, SignedDuration::from_secs(90));
        assert!(config.stretched_policy && config.excluded_labels.excludes("batch.kubernetes.io/job-name"));
        assert_eq!(config.identity_export, IdentityExport::Selected);
        assert_eq!(config.quarantine, SignedDuration::from_mins(5));
        assert_eq!(config.stale_member_policy, StaleMemberPolicy::Remove);
        assert_eq!(config.stale_member_timeout, SignedDuration::from_hours(36));
        assert_eq!(parse(json!({})).unwrap(), Config::default());
    }

    #[test]
    fn probes_are_served_unless_told_otherwise_and_metrics_are_not() {
        let at = |file| {
            let config = parse(file).unwrap();
            (config.health_addresses.len(), config.metrics_addresses.len())
        };
        assert_eq!(at(json!({})), (2, 0));
        let empty = json!({ "health": { "healthProbeBindAddress": "" }, "metrics": { "bindAddress": "" } });
        assert_eq!(at(empty), (2, 0));
        let off = json!({ "health": { "healthProbeBindAddress": "0" }, "metrics": { "bindAddress": "0" } });
        assert_eq!(at(off), (0, 0));
        let both = json!({ "health": {}, "metrics": { "bindAddress": "[::1]:9090", "secureServing": true } });
        assert_eq!(at(both), (2, 1));
    }

    #[test]
    fn a_dual_stack_cluster_has_two_service_cidrs() {
        let config = parse(json!({ "serviceCIDR": "10.96.0.0/16, fd00:96::1/112" })).unwrap();
        let cidrs: Vec<_> = config.service_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(cidrs, ["10.96.0.0/16", "fd00:96::/112"]);
    }

    #[test]
    fn a_bad_value_is_reported_with_its_field() {
        for (file, message) in [
            (
                json!({"serviceCIDR": "10.96.0.0"}),
                "serviceCIDR: \"10.96.0.0\" is not a CIDR",
            ),
            (
                json!({"serviceCIDR": "10.96.0.0/16, 10.97.0.0/16"}),
                "serviceCIDR: \"10.96.0.0/16, 10.97.0.0/16\" is more than one CIDR of an IP family",
            ),
            (
                json!({"podCIDRs": ["10.0.0.0/8", "x"]}),
                "podCIDRs[1]: \"x\" is not a CIDR",
            ),
            (
                json!({"podCIDRs": ["::ffff:10.0.0.0/104"]}),
                "podCIDRs[0]: \"::ffff:10.0.0.0/104\" is an IPv4-mapped",
            ),
            (
                json!({"endpointIPType": "NodeIP"}),
                "endpointIPType: \"NodeIP\" is none of ClusterIP, PodIP",
            ),
            (
                json!({"gatewayIPPrecedence": "both"}),
                "gatewayIPPrecedence: \"both\" is none of",
            ),
            (
                json!({"gatewayMode": "activeactive"}),
                "gatewayMode: \"activeactive\" is none of ActiveActive, ActiveStandby",
            ),
            (
                json!({"gatewayDrainPeriod": "30"}),
                "gatewayDrainPeriod: \"30\" is not a duration such as",
            ),
            (
                json!({"gatewayDrainPeriod": "-1s"}),
                "gatewayDrainPeriod: \"-1s\" is not a duration such as",
            ),
            (
                json!({"labelIdentityExport": "Some"}),
                "labelIdentityExport: \"Some\" is none of All, Selected",
            ),
            (
                json!({"labelIdentityExcludedLabels": ["app", "a b"]}),
                "labelIdentityExcludedLabels[1]: \"a b\" is no label key",
            ),
            (
                json!({"labelIdentityQuarantine": "soon"}),
                "labelIdentityQuarantine: \"soon\" is not a duration such as",
            ),
            (
                json!({"labelIdentityQuarantine": "59s"}),
                "labelIdentityQuarantine: \"59s\" is shorter than 1m",
            ),
            (
                json!({"metrics": {"bindAddress": "8080"}}),
                "metrics.bindAddress: \"8080\" is not an address and port such as",
            ),
            (
                json!({"staleMemberPolicy": "remove"}),
                "staleMemberPolicy: \"remove\" is none of Keep, Remove",
            ),
            (
                json!({"staleMemberTimeout": "a day"}),
                "staleMemberTimeout: \"a day\" is not a duration such as",
            ),
            (
                json!({"staleMemberTimeout": "-24h"}),
                "staleMemberTimeout: \"-24h\" is not a duration such as",
            ),
            (
                json!({"staleMemberTimeout": "30s"}),
                "staleMemberTimeout: \"30s\" is shorter than 1m",
            ),
            (
                json!({"kind": "ConfigMap"}),
                "kind: \"ConfigMap\" where \"MultiClusterConfig\" is wanted",
            ),
        ] {
            let error = parse(file).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_reported_with_its_key() {
        for (text, key) in [
            (
                "enableStretchedNetworkPolicy: perhaps",
                "enableStretchedNetworkPolicy",
            ),
            ("labelIdentityExcludedLabels: app", "labelIdentityExcludedLabels"),
            (
                "health: {healthProbeBindAddress: [8080]}",
                "health.healthProbeBindAddress",
            ),
            ("metrics: everywhere", "metrics"),
        ] {
            let error = serde_yaml_ng::from_str::<MultiClusterConfig>(text).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
