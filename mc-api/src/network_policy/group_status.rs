//! The status of groups, as Antrea writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::kinds::{ClusterGroup, NamespacedGroup};

/// The condition of a group with a valid spec, and of a group of groups if all of these exist and have one.
pub const GROUP_MEMBERS_COMPUTED: &str = "GroupMembersComputed";

/// `status` of a `ClusterGroup` or `Group`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct GroupStatus {
    /// The condition [`GROUP_MEMBERS_COMPUTED`].
    pub conditions: Vec<GroupCondition>,
}

/// A condition without reason and message, which the CRDs of Antrea lack.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupCondition {
    /// [`GROUP_MEMBERS_COMPUTED`].
    #[serde(rename = "type")]
    pub type_: String,
    /// `True` or `False`.
    pub status: String,
    /// Last change of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// A kind of group: its spec and status.
pub trait GroupKind: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned {
    /// The spec, opaque.
    fn spec(&self) -> &Value;

    /// The status, opaque.
    fn raw_status(&self) -> &Value;

    /// The status; the default one if it is absent or of another form.
    fn status(&self) -> GroupStatus {
        GroupStatus::deserialize(self.raw_status()).unwrap_or_default()
    }
}

macro_rules! group_kind {
    ($type:ident) => {
        impl GroupKind for $type {
            fn spec(&self) -> &Value {
                &self.spec
            }

            fn raw_status(&self) -> &Value {
                &self.status
            }
        }
    };
}

group_kind!(ClusterGroup);
group_kind!(NamespacedGroup);
