//! `MultiClusterConfig`: the configuration file as written.

use serde::{Deserialize, Serialize};

/// The configuration file as written. Unsupported keys (`webhook`, `leaderElection` …) are ignored.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MultiClusterConfig {
    /// `multicluster.crd.antrea.io/v1alpha1`, or absent.
    pub api_version: String,
    /// `MultiClusterConfig`, or absent.
    pub kind: String,
    /// Listen address of `/healthz` and `/readyz`.
    pub health: Option<HealthSection>,
    /// Listen address of `/metrics`.
    pub metrics: Option<MetricsSection>,
    /// The Service CIDR of this cluster, or both of a dual-stack cluster, comma-separated; discovered when absent.
    #[serde(rename = "serviceCIDR")]
    pub service_cidr: Option<String>,
    /// The Pod CIDRs of this cluster; taken from the Nodes when absent or empty.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<String>>,
    /// Superset: ranges of endpoints that other clusters export although they do not announce them, such as those of
    /// Nodes with Pods of the host network; never ranges of this cluster.
    #[serde(rename = "additionalEndpointCIDRs")]
    pub additional_endpoint_cidrs: Option<Vec<String>>,
    /// Superset, member: the ranges that other clusters may use in this one, all when absent or empty. Other prefixes
    /// that they announce are left out.
    #[serde(rename = "acceptedCIDRs")]
    pub accepted_cidrs: Option<Vec<String>>,
    /// Superset, member: the Namespaces with Services that this cluster exports and imports: all (`Open`, default), or
    /// [`Self::allowed_namespaces`] (`Strict`).
    pub namespace_policy: Option<String>,
    /// Superset, member, with `Strict`: names, or prefixes with a trailing `*`; all when absent or empty. System
    /// Namespaces (`kube-…` and that of the controller) are among them only by their name.
    pub allowed_namespaces: Option<Vec<String>>,
    /// Node address type of the gateway IP: `private`/`internal` (default) or `public`/`external`.
    #[serde(rename = "gatewayIPPrecedence")]
    pub gateway_ip_precedence: Option<String>,
    /// Endpoint addresses of an exported Service: `ClusterIP` (default) or `PodIP`.
    #[serde(rename = "endpointIPType")]
    pub endpoint_ip_type: Option<String>,
    /// Number of active gateways: all (`ActiveActive`, default) or one (`ActiveStandby`).
    pub gateway_mode: Option<String>,
    /// Drain period of a gateway before its removal, `30s` when absent.
    pub gateway_drain_period: Option<String>,
    /// Superset: time without ready endpoints before an exported Service is withdrawn, `5m` when absent; `0s` as in
    /// Antrea.
    pub withdraw_after: Option<String>,
    /// Whether label identities are exchanged; the same in all clusters of a set, the leader included.
    pub enable_stretched_network_policy: Option<bool>,
    /// Superset: label keys excluded from label identities, with a trailing `*` as prefixes; the same in all
    /// clusters of a set.
    pub label_identity_excluded_labels: Option<Vec<String>>,
    /// Superset: Pods whose identities are exported: `All` (default), or `Selected`, those matched by a selector of
    /// scope `ClusterSet` in a replicated policy or in an own policy of another cluster.
    pub label_identity_export: Option<String>,
    /// Superset, leader: quarantine of a released label ID before its reuse, `10m` when absent.
    pub label_identity_quarantine: Option<String>,
    /// Superset, leader: cluster IDs of `ServiceAccount`s without an annotation: that of the first cluster which joins
    /// with the account (`OnFirstUse`, default), none beyond earlier bindings (`Required`), or any that no other
    /// account has (`Shared`).
    pub account_binding: Option<String>,
    /// Superset, leader: all members share its Namespace (`Common`, default), or each Namespace with the label
    /// `mc-gateway.io/member-namespace-of` is that of one member (`Namespace`).
    pub isolation: Option<String>,
    /// Superset, leader: treatment of a stale member: `Keep` (default), or `Remove` after
    /// [`Self::stale_member_timeout`].
    pub stale_member_policy: Option<String>,
    /// Superset, leader: time without a heartbeat before a stale member is removed, `24h` when absent.
    pub stale_member_timeout: Option<String>,
}

/// Listen address of `/healthz` and `/readyz`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthSection {
    /// `:8080` when absent or empty; `"0"` disables the server.
    pub health_probe_bind_address: Option<String>,
}

/// Listen address of `/metrics`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsSection {
    /// `"0"` (disabled) when absent or empty; may equal the address of the probes.
    pub bind_address: Option<String>,
}
