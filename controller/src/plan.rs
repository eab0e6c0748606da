//! What is to be done, as data: the pure part decides, [`crate::apply`] carries out.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Resource, ResourceExt, core::ApiResource};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{
    cluster_info::ClusterInfoImport, cluster_set::ClusterSet, gateway::Gateway,
    member_cluster_announce::MemberClusterAnnounce, resource_export::ResourceExport,
    resource_import::ResourceImport, service_export::ServiceExport, service_import::ServiceImport,
};

/// Which API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// That of the cluster this controller runs in.
    Local,
    /// That of the leader, reached with the member's token.
    Leader,
}

/// The kinds this controller writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the kind of that name")]
pub enum Kind {
    ClusterInfoImport,
    ClusterSet,
    EndpointSlice,
    Gateway,
    MemberClusterAnnounce,
    ResourceExport,
    ResourceImport,
    Service,
    ServiceExport,
    ServiceImport,
}

/// One object, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Which API server.
    pub side: Side,
    /// What kind of object.
    pub kind: Kind,
    /// Its Namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What is done to one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Create it; an object of that name that is there already is left alone.
    Create(Value),
    /// Server-side apply: the object is ours, fields that vanish from the value vanish from the object.
    Apply(Value),
    /// JSON merge patch; with `metadata.resourceVersion` only if nobody wrote in between.
    Patch(Value),
    /// JSON merge patch of the status subresource.
    Status(Value),
    /// Delete it, if it still has this UID.
    Delete {
        /// The UID it was seen with.
        uid: Option<String>,
    },
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// To which object.
    pub target: Target,
    /// What.
    pub op: Op,
}

/// Something a person should know; reported once for as long as it stays true.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The object it is about, `Node node-1` for example.
    pub subject: String,
    /// Field, value and consequence.
    pub message: String,
}

/// Everything one look at the world asks for.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a plan that nobody applies changes nothing"]
pub struct Plan {
    /// In this order where order matters: what is added comes before what is removed.
    pub actions: Vec<Action>,
    /// What a person should know.
    pub notices: Vec<Notice>,
    /// When to look again even if nothing happens.
    pub wake_at: Option<Timestamp>,
}

/// A kind with a name in [`Kind`].
pub trait Known: Resource<DynamicType = ()> + Serialize {
    /// Which.
    const KIND: Kind;
}

macro_rules! known {
    ($($kind:ident),*) => {
        $(impl Known for $kind { const KIND: Kind = Kind::$kind; })*

        impl Kind {
            /// How the API server calls it.
            #[must_use]
            pub fn api_resource(self) -> ApiResource {
                match self { $(Self::$kind => ApiResource::erase::<$kind>(&()),)* }
            }
        }
    };
}

known!(
    ClusterInfoImport,
    ClusterSet,
    EndpointSlice,
    Gateway,
    MemberClusterAnnounce,
    ResourceExport,
    ResourceImport,
    Service,
    ServiceExport,
    ServiceImport
);

// === impl Target ===

impl Target {
    /// Where `object` is.
    pub fn of<K: Known>(side: Side, object: &K) -> Self {
        Self {
            side,
            kind: K::KIND,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match self.side {
            Side::Local => "",
            Side::Leader => " in the leader cluster",
        };
        write!(f, "{:?} {}/{}{at}", self.kind, self.namespace, self.name)
    }
}

// === impl Op ===

impl Op {
    /// For logs.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Apply(_) => "apply",
            Self::Patch(_) => "patch",
            Self::Status(_) => "set status of",
            Self::Delete { .. } => "delete",
        }
    }
}

// === impl Plan ===

impl Plan {
    /// Create `object`.
    pub fn create<K: Known>(&mut self, side: Side, object: &K) {
        self.push(Target::of(side, object), Op::Create(body(object)));
    }

    /// Make `object` what it is here.
    pub fn apply<K: Known>(&mut self, side: Side, object: &K) {
        self.push(Target::of(side, object), Op::Apply(body(object)));
    }

    /// Change `object` as the JSON merge patch says, unless somebody else changed it since.
    pub fn patch<K: Known>(&mut self, side: Side, object: &K, mut patch: Value) {
        if let (Some(version), Some(patch)) = (object.resource_version(), patch.as_object_mut()) {
            let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".to_owned(), json!(version));
            }
        }
        self.push(Target::of(side, object), Op::Patch(patch));
    }

    /// Change `object` as the JSON merge patch says, whatever else changed.
    pub fn merge<K: Known>(&mut self, side: Side, object: &K, patch: Value) {
        self.push(Target::of(side, object), Op::Patch(patch));
    }

    /// Replace the status of `object`.
    pub fn status<K: Known>(&mut self, side: Side, object: &K, status: &impl Serialize) {
        let status = serde_json::to_value(status).unwrap_or_default();
        self.push(Target::of(side, object), Op::Status(json!({ "status": status })));
    }

    /// Delete `object` as it was seen, unless that is under way.
    pub fn delete<K: Known>(&mut self, side: Side, object: &K) {
        if object.meta().deletion_timestamp.is_none() {
            self.push(Target::of(side, object), Op::Delete { uid: object.uid() });
        }
    }

    /// Tell people.
    pub fn notice(&mut self, subject: impl Into<String>, message: impl Into<String>) {
        self.notices.push(Notice {
            subject: subject.into(),
            message: message.into(),
        });
    }

    /// Look again at `at`, or earlier.
    pub fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |old| old.min(at)));
    }

    fn push(&mut self, target: Target, op: Op) {
        self.actions.push(Action { target, op });
    }
}

fn body<K: Known>(object: &K) -> Value {
    let mut body = serde_json::to_value(object).unwrap_or_default();
    // The status belongs to the subresource; sending it along would only be ignored.
    if let Some(body) = body.as_object_mut() {
        body.remove("status");
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_say_what_they_are() {
        let mut plan = Plan::default();
        let mut export = ResourceExport::new("x", crate::api::resource_export::ResourceExportSpec::default());
        export.metadata.namespace = Some("ns".to_owned());
        plan.apply(Side::Leader, &export);
        let [
            Action {
                target,
                op: Op::Apply(body),
            },
        ] = &plan.actions[..]
        else {
            panic!("{plan:?}")
        };
        assert_eq!(target.to_string(), "ResourceExport ns/x in the leader cluster");
        assert_eq!(body["apiVersion"], "multicluster.crd.antrea.io/v1alpha1");
        assert_eq!(body["kind"], "ResourceExport");
    }
}
