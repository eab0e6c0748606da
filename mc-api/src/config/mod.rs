//! The controllers' configuration: the file given with `--config`, validated.

mod error;
mod field;
mod file;
mod namespace_policy;
mod options;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use ipnet::IpNet;
use jiff::SignedDuration;

pub use self::{
    error::ConfigError,
    file::{HealthSection, MetricsSection, MultiClusterConfig},
    namespace_policy::{NamespacePattern, NamespacePolicy},
    options::{
        AccountBinding, EndpointIpType, GatewayIpPrecedence, GatewayMode, IdentityExport, Isolation,
        StaleMemberPolicy,
    },
};
use crate::{label_identity::LabelKeyFilter, listen_addr};

/// The port of the probes unless configured.
const HEALTH_PORT: u16 = 8080;
/// The shortest quarantine: longer than any request in flight.
pub const MIN_QUARANTINE: SignedDuration = SignedDuration::from_mins(1);
/// The default quarantine: longer than a cluster is usually partitioned without its administrators noticing.
pub const DEFAULT_QUARANTINE: SignedDuration = SignedDuration::from_mins(10);
/// The shortest timeout of a stale member: the restart of a leader, a node or a router takes as long.
pub const MIN_STALE_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);
/// The default timeout of a stale member: Antrea's.
pub const DEFAULT_STALE_TIMEOUT: SignedDuration = SignedDuration::from_hours(24);
/// The default drain period: several times the propagation delay of an announcement.
pub const DEFAULT_DRAIN_PERIOD: SignedDuration = SignedDuration::from_secs(30);
/// The default time before a Service without ready endpoints is withdrawn: longer than the only Pod of a Service takes
/// to move to another Node.
pub const DEFAULT_WITHDRAW_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// The validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Listen addresses of `/healthz` and `/readyz`: the first usable one is used; empty: disabled.
    pub health_addresses: Vec<SocketAddr>,
    /// Listen addresses of `/metrics`, likewise.
    pub metrics_addresses: Vec<SocketAddr>,
    /// The Service CIDRs, when configured: at most one of each IP family.
    pub service_cidrs: Vec<IpNet>,
    /// The Pod CIDRs, when configured.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of endpoints that no other cluster has to announce.
    pub additional_endpoint_cidrs: Vec<IpNet>,
    /// The ranges that other clusters may use in this one; empty: all.
    pub accepted_cidrs: Vec<IpNet>,
    /// The Namespaces with Services that this cluster exports and imports.
    pub namespace_policy: NamespacePolicy,
    /// Node address type of the gateway IP.
    pub gateway_ip_precedence: GatewayIpPrecedence,
    /// Endpoint addresses of an exported Service.
    pub endpoint_ip_type: EndpointIpType,
    /// Number of active gateways.
    pub gateway_mode: GatewayMode,
    /// Drain period of a gateway before its removal; not negative.
    pub drain_period: SignedDuration,
    /// Time without ready endpoints before an exported Service is withdrawn; not negative.
    pub withdraw_after: SignedDuration,
    /// Whether label identities are exchanged.
    pub stretched_network_policy: bool,
    /// Label keys excluded from label identities.
    pub excluded_labels: LabelKeyFilter,
    /// Pods whose label identities are exported.
    pub identity_export: IdentityExport,
    /// Quarantine of a released label ID before its reuse; at least [`MIN_QUARANTINE`].
    pub quarantine: SignedDuration,
    /// Cluster IDs of `ServiceAccount`s without an annotation.
    pub account_binding: AccountBinding,
    /// Namespaces of the members in the leader cluster.
    pub isolation: Isolation,
    /// Treatment of stale members.
    pub stale_member_policy: StaleMemberPolicy,
    /// Time without a heartbeat before a stale member is removed; at least [`MIN_STALE_TIMEOUT`].
    pub stale_member_timeout: SignedDuration,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            health_addresses: listen_addr::any(HEALTH_PORT),
            metrics_addresses: vec![],
            service_cidrs: vec![],
            pod_cidrs: vec![],
            additional_endpoint_cidrs: vec![],
            accepted_cidrs: vec![],
            namespace_policy: NamespacePolicy::default(),
            gateway_ip_precedence: GatewayIpPrecedence::default(),
            endpoint_ip_type: EndpointIpType::default(),
            gateway_mode: GatewayMode::default(),
            drain_period: DEFAULT_DRAIN_PERIOD,
            withdraw_after: DEFAULT_WITHDRAW_AFTER,
            stretched_network_policy: false,
            excluded_labels: LabelKeyFilter::default(),
            identity_export: IdentityExport::default(),
            quarantine: DEFAULT_QUARANTINE,
            account_binding: AccountBinding::default(),
            isolation: Isolation::default(),
            stale_member_policy: StaleMemberPolicy::default(),
            stale_member_timeout: DEFAULT_STALE_TIMEOUT,
        }
    }
}

impl TryFrom<MultiClusterConfig> for Config {
    type Error = ConfigError;

    fn try_from(file: MultiClusterConfig) -> Result<Self, ConfigError> {
        field::type_meta(
            "apiVersion",
            file.api_version,
            "multicluster.crd.antrea.io/v1alpha1",
        )?;
        field::type_meta("kind", file.kind, "MultiClusterConfig")?;
        let health = file.health.unwrap_or_default().health_probe_bind_address;
        let metrics = file.metrics.unwrap_or_default().bind_address;
        Ok(Self {
            health_addresses: field::listen_addrs(
                "health.healthProbeBindAddress",
                health,
                listen_addr::any(HEALTH_PORT),
            )?,
            metrics_addresses: field::listen_addrs("metrics.bindAddress", metrics, vec![])?,
            service_cidrs: field::service_cidrs(file.service_cidr.unwrap_or_default())?,
            pod_cidrs: field::cidrs("podCIDRs", &file.pod_cidrs.unwrap_or_default())?,
            additional_endpoint_cidrs: field::cidrs(
                "additionalEndpointCIDRs",
                &file.additional_endpoint_cidrs.unwrap_or_default(),
            )?,
            accepted_cidrs: field::cidrs("acceptedCIDRs", &file.accepted_cidrs.unwrap_or_default())?,
            namespace_policy: NamespacePolicy::new(
                &file.namespace_policy.unwrap_or_default(),
                &file.allowed_namespaces.unwrap_or_default(),
            )?,
            gateway_ip_precedence: field::option(file.gateway_ip_precedence.as_ref())?,
            endpoint_ip_type: field::option(file.endpoint_ip_type.as_ref())?,
            gateway_mode: field::option(file.gateway_mode.as_ref())?,
            drain_period: field::duration(
                "gatewayDrainPeriod",
                file.gateway_drain_period,
                DEFAULT_DRAIN_PERIOD,
            )?,
            withdraw_after: field::duration("withdrawAfter", file.withdraw_after, DEFAULT_WITHDRAW_AFTER)?,
            stretched_network_policy: file.enable_stretched_network_policy.unwrap_or_default(),
            excluded_labels: field::excluded_labels(file.label_identity_excluded_labels.unwrap_or_default())?,
            identity_export: field::option(file.label_identity_export.as_ref())?,
            quarantine: field::duration_at_least(
                "labelIdentityQuarantine",
                file.label_identity_quarantine,
                DEFAULT_QUARANTINE,
                MIN_QUARANTINE,
            )?,
            account_binding: field::option(file.account_binding.as_ref())?,
            isolation: field::option(file.isolation.as_ref())?,
            stale_member_policy: field::option(file.stale_member_policy.as_ref())?,
            stale_member_timeout: field::duration_at_least(
                "staleMemberTimeout",
                file.stale_member_timeout,
                DEFAULT_STALE_TIMEOUT,
                MIN_STALE_TIMEOUT,
            )?,
        })
    }
}
