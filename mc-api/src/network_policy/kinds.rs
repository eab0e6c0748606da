//! The kinds, with opaque specs and statuses.

use std::borrow::Cow;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The group of these kinds.
pub const GROUP: &str = "crd.antrea.io";

const VERSION: &str = "v1beta1";

macro_rules! kind {
    ($(#[$doc:meta])* $type:ident, $scope:ty, $kind:literal, $plural:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $type {
            /// Always `crd.antrea.io/v1beta1`.
            pub api_version: String,
            /// The kind.
            pub kind: String,
            /// Name, and the annotations of imported objects.
            pub metadata: ObjectMeta,
            /// The spec, opaque.
            pub spec: Value,
            /// The status, opaque.
            #[serde(skip_serializing_if = "Value::is_null")]
            pub status: Value,
        }

        impl Default for $type {
            fn default() -> Self {
                Self {
                    api_version: Self::api_version(&()).into_owned(),
                    kind: Self::kind(&()).into_owned(),
                    metadata: ObjectMeta::default(),
                    spec: Value::Null,
                    status: Value::Null,
                }
            }
        }

        impl Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind!(
    /// A policy for all Namespaces of a cluster.
    ClusterNetworkPolicy,
    ClusterResourceScope,
    "ClusterNetworkPolicy",
    "clusternetworkpolicies"
);
kind!(
    /// A policy for the Pods of its Namespace. Not the kind of the same name in `networking.k8s.io`.
    NetworkPolicy,
    NamespaceResourceScope,
    "NetworkPolicy",
    "networkpolicies"
);
kind!(
    /// The precedence class of a policy; it must exist before a policy refers to it.
    Tier,
    ClusterResourceScope,
    "Tier",
    "tiers"
);
kind!(
    /// Pods or addresses for peers and `appliedTo` of `ClusterNetworkPolicy`.
    ClusterGroup,
    ClusterResourceScope,
    "ClusterGroup",
    "clustergroups"
);
kind!(
    /// The state of Antrea's controller, which exists where Antrea enforces these policies. Its fields are not read.
    AntreaControllerInfo,
    ClusterResourceScope,
    "AntreaControllerInfo",
    "antreacontrollerinfos"
);
kind!(
    /// The state of Antrea's agent on the Node of the object's name: the agent creates it once it has started to
    /// enforce policies (`pkg/monitor/agent.go` of Antrea). Its fields are not read.
    AntreaAgentInfo,
    ClusterResourceScope,
    "AntreaAgentInfo",
    "antreaagentinfos"
);
kind!(
    /// The kind `Group`: Pods or addresses for peers and `appliedTo` of `NetworkPolicy` in the same Namespace.
    NamespacedGroup,
    NamespaceResourceScope,
    "Group",
    "groups"
);
