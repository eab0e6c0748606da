//! What is to be done, as data: the pure part decides, [`crate::apply`] carries out.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Resource, ResourceExt, core::ApiResource};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::{
        cluster_info::ClusterInfoImport, cluster_set::ClusterSet, gateway::Gateway,
        label_identity::LabelIdentity, member_cluster_announce::MemberClusterAnnounce,
        network_policy::ClusterNetworkPolicy, resource_export::ResourceExport,
        resource_import::ResourceImport, service_export::ServiceExport, service_import::ServiceImport,
    },
    body::Body,
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
    ClusterNetworkPolicy,
    ClusterSet,
    ConfigMap,
    EndpointSlice,
    Gateway,
    LabelIdentity,
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
    /// Its Namespace; empty where the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What is done to one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Create it; an object of that name that is there already is left alone.
    Create(Body),
    /// Server-side apply: the object is ours, fields that vanish from the value vanish from the object.
    Apply(Body),
    /// JSON merge patch; with `metadata.resourceVersion` only if nobody wrote in between.
    Patch(Body),
    /// JSON merge patch of the status subresource.
    Status(Body),
    /// Delete it, if it still has this UID.
    Delete {
        /// The UID it was seen with.
        uid: Option<String>,
        /// The resource version it has to have still, if so.
        version: Option<String>,
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

/// Something the people of a cluster should know, told on an object there: an Event of type Warning, once while it
/// stays true.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// The object it is about, which exists.
    pub about: Target,
    /// Its UID.
    pub uid: String,
    /// In one word.
    pub reason: String,
    /// In a sentence.
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
    /// What the people of a cluster should know on the object itself.
    pub remarks: Vec<Remark>,
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

            /// As objects say it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)* }
            }
        }
    };
}

known!(
    ClusterInfoImport,
    ClusterNetworkPolicy,
    ClusterSet,
    ConfigMap,
    EndpointSlice,
    Gateway,
    LabelIdentity,
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
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{:?} {}{slash}{}{at}", self.kind, self.namespace, self.name)
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
        self.push(Target::of(side, object), Op::Patch(patch.into()));
    }

    /// Change `object` as the JSON merge patch says, whatever else changed.
    pub fn merge<K: Known>(&mut self, side: Side, object: &K, patch: Value) {
        self.push(Target::of(side, object), Op::Patch(patch.into()));
    }

    /// Replace the status of `object`.
    pub fn status<K: Known>(&mut self, side: Side, object: &K, status: &impl Serialize) {
        let status = serde_json::to_value(status).unwrap_or_default();
        self.push(
            Target::of(side, object),
            Op::Status(json!({ "status": status }).into()),
        );
    }

    /// Delete `object` as it was seen, unless that is under way.
    pub fn delete<K: Known>(&mut self, side: Side, object: &K) {
        if object.meta().deletion_timestamp.is_none() {
            let (uid, version) = (object.uid(), None);
            self.push(Target::of(side, object), Op::Delete { uid, version });
        }
    }

    /// Delete `object` as it was seen, unless somebody changed it since.
    pub fn delete_unchanged<K: Known>(&mut self, side: Side, object: &K) {
        if object.meta().deletion_timestamp.is_none() {
            let (uid, version) = (object.uid(), object.resource_version());
            self.push(Target::of(side, object), Op::Delete { uid, version });
        }
    }

    /// Tell people.
    pub fn notice(&mut self, subject: impl Into<String>, message: impl Into<String>) {
        self.notices.push(Notice {
            subject: subject.into(),
            message: message.into(),
        });
    }

    /// Tell the people of the cluster `object` is in, on the object.
    pub fn remark<K: Known>(
        &mut self,
        side: Side,
        object: &K,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.remarks.push(Remark {
            about: Target::of(side, object),
            uid: object.uid().unwrap_or_default(),
            reason: reason.into(),
            message: message.into(),
        });
    }

    /// Tell people of each of many things: of the first ten in full, of the others how many.
    pub fn notices(&mut self, about: &str, all: Vec<(String, String)>) {
        let more = all.len().saturating_sub(MANY);
        for (subject, message) in all.into_iter().take(MANY) {
            self.notice(subject, message);
        }
        if more > 0 {
            self.notice(about, format!("the same is true of {more} more"));
        }
    }

    /// Whether there is room for another step of a kind of which there may be thousands. `before` is how many steps
    /// there were before the first of it. What is left out comes with the next plan, and heartbeats with it.
    #[must_use]
    pub fn has_room(&self, before: usize) -> bool {
        self.actions.len() < before.saturating_add(BATCH)
    }

    /// Look again at `at`, or earlier.
    pub fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |old| old.min(at)));
    }

    fn push(&mut self, target: Target, op: Op) {
        self.actions.push(Action { target, op });
    }
}

/// So many steps of one sort are in one plan: a second's work, more or less.
pub const BATCH: usize = 256;
/// So many notices of one sort are given in full.
const MANY: usize = 10;

fn body<K: Known>(object: &K) -> Body {
    let mut body = serde_json::to_value(object).unwrap_or_default();
    // The status belongs to the subresource; sending it along would only be ignored.
    if let Some(body) = body.as_object_mut() {
        body.remove("status");
    }
    body.into()
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
        let body = body.value();
        assert_eq!(body["apiVersion"], "multicluster.crd.antrea.io/v1alpha1");
        assert_eq!(body["kind"], "ResourceExport");
    }

    #[test]
    fn of_many_things_of_one_sort_some_are_told() {
        let mut plan = Plan::default();
        plan.notices(
            "exports",
            (0..25).map(|i| (i.to_string(), "bad".to_owned())).collect(),
        );
        assert_eq!(plan.notices.len(), 11);
        assert_eq!(plan.notices[10].message, "the same is true of 15 more");
        let identity = LabelIdentity::new(
            "c5d961e1f6175a5a",
            crate::api::label_identity::LabelIdentitySpec::default(),
        );
        assert_eq!(
            Target::of(Side::Local, &identity).to_string(),
            "LabelIdentity c5d961e1f6175a5a"
        );
    }
}
