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
    fn an_absent_status_is_not_serialized() {
        let value = serde_json::to_value(ClusterNetworkPolicy::default()).unwrap();
        assert_eq!(value.get("status"), None);
    }
}
