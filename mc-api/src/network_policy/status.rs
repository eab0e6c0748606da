//! The status of policies, as Antrea writes it.

use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::kinds::{ClusterNetworkPolicy, NetworkPolicy};
use crate::condition::Condition;

/// The condition of a policy that can be enforced.
pub const REALIZABLE: &str = "Realizable";
/// The condition of a policy with an error on some Node.
pub const REALIZATION_FAILURE: &str = "RealizationFailure";

/// `status` of a `ClusterNetworkPolicy` or `NetworkPolicy`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicyStatus {
    /// `Pending`, `Realizing`, `Realized` or `Failed`; see [`Phase`].
    pub phase: String,
    /// The generation of the spec to which the status refers.
    pub observed_generation: i64,
    /// Nodes that enforce this generation.
    pub current_nodes_realized: i32,
    /// Nodes with a Pod that the policy selects.
    pub desired_nodes_realized: i32,
    /// Conditions of type [`REALIZABLE`] and [`REALIZATION_FAILURE`].
    pub conditions: Vec<Condition>,
    /// The packets on which rules have decided, sorted by name. Antrea has this field in `NetworkPolicyStats` of
    /// `stats.antrea.io`, not in the status.
    pub rule_traffic_stats: Vec<RuleTrafficStats>,
    /// Time at which `rule_traffic_stats` was written (RFC 3339). Null removes it by a merge patch.
    pub traffic_stats_time: Option<String>,
}

/// The packets on which a rule has decided; `RuleTrafficStats` of `stats.antrea.io`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleTrafficStats {
    /// Path of the rule inside the policy.
    pub name: String,
    /// Their numbers.
    pub traffic_stats: TrafficStats,
}

/// Numbers of packets and bytes; `TrafficStats` of `stats.antrea.io`, without its sessions.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficStats {
    /// Packets, 2^63 - 1 at most.
    #[schemars(extend("format" = "int64"))]
    pub packets: u64,
    /// Their bytes with the link-layer header, 2^63 - 1 at most.
    #[schemars(extend("format" = "int64"))]
    pub bytes: u64,
}

/// The phase of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No Node has applied the generation.
    Pending,
    /// Some Nodes have applied the generation.
    Realizing,
    /// All Nodes have applied it.
    Realized,
    /// All Nodes have applied it, some with an error.
    Failed,
}

/// A kind of policy: its spec and status.
pub trait PolicyKind: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned {
    /// The spec, opaque.
    fn spec(&self) -> &Value;

    /// The status, opaque.
    fn raw_status(&self) -> &Value;

    /// The status; the default one if it is absent or of another form.
    fn status(&self) -> NetworkPolicyStatus {
        NetworkPolicyStatus::deserialize(self.raw_status()).unwrap_or_default()
    }
}

// === impl Phase ===

impl Phase {
    /// Its name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Realizing => "Realizing",
            Self::Realized => "Realized",
            Self::Failed => "Failed",
        }
    }
}

// === impl PolicyKind ===

macro_rules! policy_kind {
    ($type:ident) => {
        impl PolicyKind for $type {
            fn spec(&self) -> &Value {
                &self.spec
            }

            fn raw_status(&self) -> &Value {
                &self.status
            }
        }
    };
}

policy_kind!(ClusterNetworkPolicy);
policy_kind!(NetworkPolicy);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_of_another_form_is_the_default_one() {
        let policy = |status| ClusterNetworkPolicy {
            status,
            ..ClusterNetworkPolicy::default()
        };
        let antrea = policy(json!({
            "phase": "Realized", "observedGeneration": 3, "currentNodesRealized": 2, "desiredNodesRealized": 2,
            "conditions": [{"type": "Realizable", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }));
        let status = antrea.status();
        assert_eq!(
            (status.phase.as_str(), status.observed_generation),
            ("Realized", 3)
        );
        assert!(status.conditions[0].is_true());
        assert_eq!(
            policy(json!({"phase": 1})).status(),
            NetworkPolicyStatus::default()
        );
        assert_eq!(policy(Value::Null).status(), NetworkPolicyStatus::default());
    }

    #[test]
    fn counters_have_the_names_of_antreas_stats_api() {
        let status = NetworkPolicyStatus {
            rule_traffic_stats: vec![RuleTrafficStats {
                name: "spec.ingress[0]".to_owned(),
                traffic_stats: TrafficStats {
                    packets: 3,
                    bytes: 222,
                },
            }],
            traffic_stats_time: Some("2026-01-01T00:00:00Z".to_owned()),
            ..NetworkPolicyStatus::default()
        };
        let value = serde_json::to_value(status).unwrap();
        assert_eq!(
            value["ruleTrafficStats"],
            json!([{ "name": "spec.ingress[0]", "trafficStats": { "packets": 3, "bytes": 222 } }])
        );
        assert_eq!(value["trafficStatsTime"], "2026-01-01T00:00:00Z");
        let empty = serde_json::to_value(NetworkPolicyStatus::default()).unwrap();
        assert_eq!(empty["trafficStatsTime"], Value::Null);
    }

    #[test]
    fn an_absent_status_is_not_serialized() {
        let value = serde_json::to_value(ClusterNetworkPolicy::default()).unwrap();
        assert_eq!(value.get("status"), None);
    }
}
