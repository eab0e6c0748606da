//! The output of a reconcile as data: [`crate::leader`] and [`crate::member`] decide, [`crate::runtime`] executes.
//!
//! Instead of the `Controller` of kube, which reconciles one object at a time: imports depend on all exports of a name,
//! and names and label IDs on all objects of a kind.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Endpoints, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Resource, ResourceExt, core::ApiResource};
use mc_api::{
    address_group_slice::AddressGroupSlice,
    cluster_info::ClusterInfoImport,
    cluster_set::ClusterSet,
    gateway::Gateway,
    label_identity::LabelIdentity,
    member_cluster_announce::MemberClusterAnnounce,
    network_policy::{ClusterGroup, ClusterNetworkPolicy, NamespacedGroup as Group, NetworkPolicy, Tier},
    resource_export::ResourceExport,
    resource_import::ResourceImport,
    service_export::ServiceExport,
    service_import::ServiceImport,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{issue_code::IssueCode, raw_json::RawJson};

/// The API server of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiServer {
    /// That of the own cluster.
    Local,
    /// That of the leader cluster, accessed with the member's token.
    Leader,
}

/// The kinds written by the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the variants are named like the kinds")]
pub enum Kind {
    AddressGroupSlice,
    ClusterGroup,
    ClusterInfoImport,
    ClusterNetworkPolicy,
    ClusterSet,
    ConfigMap,
    EndpointSlice,
    Endpoints,
    Gateway,
    Group,
    LabelIdentity,
    MemberClusterAnnounce,
    NetworkPolicy,
    ResourceExport,
    ResourceImport,
    Service,
    ServiceExport,
    ServiceImport,
    Tier,
}

/// A reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// The API server.
    pub side: ApiServer,
    /// The kind.
    pub kind: Kind,
    /// The Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The operation of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOp {
    /// Create; an existing object of the name is not changed.
    Create(RawJson),
    /// Server-side apply: fields absent from the value are removed from the object.
    Apply(RawJson),
    /// JSON merge patch; with `metadata.resourceVersion` it fails if the object has changed.
    Patch(RawJson),
    /// JSON merge patch of the status subresource.
    Status(RawJson),
    /// Delete, with preconditions.
    Delete {
        /// The UID in the snapshot.
        uid: Option<String>,
        /// The required resource version, if any.
        version: Option<String>,
    },
}

/// One write to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The object.
    pub target: ObjectRef,
    /// The operation.
    pub op: WriteOp,
}

/// A problem for the log; logged once while it persists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Issue {
    /// The kind of problem.
    pub code: IssueCode,
    /// Kind and name of the object, such as `Node node-1`.
    pub subject: String,
    /// Field, value and effect.
    pub message: String,
}

/// An Event of type Warning on an object; published once while its cause persists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WarningEvent {
    /// The regarding object, which exists.
    pub object: ObjectRef,
    /// Its UID.
    pub uid: String,
    /// The reason in `CamelCase`.
    pub reason: String,
    /// The message.
    pub message: String,
}

/// The result of one reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a plan has no effect until it is applied"]
pub struct Plan {
    /// In order: additions before removals.
    pub writes: Vec<Write>,
    /// Problems for the log.
    pub issues: Vec<Issue>,
    /// Events for the objects.
    pub warning_events: Vec<WarningEvent>,
    /// Time of the next reconcile without a change.
    pub next_requeue: Option<Timestamp>,
}

/// A kind of [`Kind`].
pub trait WritableKind: Resource<DynamicType = ()> + Serialize {
    /// The kind.
    const KIND: Kind;
}

macro_rules! writable_kinds {
    ($($kind:ident),*) => {
        $(impl WritableKind for $kind { const KIND: Kind = Kind::$kind; })*

        impl Kind {
            /// Group, version and plural name.
            #[must_use]
            pub fn api_resource(self) -> ApiResource {
                match self { $(Self::$kind => ApiResource::erase::<$kind>(&()),)* }
            }

            /// The kind's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)* }
            }
        }
    };
}

writable_kinds!(
    AddressGroupSlice,
    ClusterGroup,
    ClusterInfoImport,
    ClusterNetworkPolicy,
    ClusterSet,
    ConfigMap,
    EndpointSlice,
    Endpoints,
    Gateway,
    Group,
    LabelIdentity,
    MemberClusterAnnounce,
    NetworkPolicy,
    ResourceExport,
    ResourceImport,
    Service,
    ServiceExport,
    ServiceImport,
    Tier
);

// === impl ObjectRef ===

impl ObjectRef {
    /// The reference to `object`.
    pub fn new<K: WritableKind>(side: ApiServer, object: &K) -> Self {
        Self {
            side,
            kind: K::KIND,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match self.side {
            ApiServer::Local => "",
            ApiServer::Leader => " in the leader cluster",
        };
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{:?} {}{slash}{}{at}", self.kind, self.namespace, self.name)
    }
}

// === impl WriteOp ===

impl WriteOp {
    /// The verb for logs.
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
    /// Creates `object`.
    pub fn create<K: WritableKind>(&mut self, side: ApiServer, object: &K) {
        self.push(ObjectRef::new(side, object), WriteOp::Create(body(object)));
    }

    /// Applies `object` server-side.
    pub fn apply<K: WritableKind>(&mut self, side: ApiServer, object: &K) {
        self.push(ObjectRef::new(side, object), WriteOp::Apply(body(object)));
    }

    /// Applies a JSON merge patch, conditional on the resource version of `object`.
    pub fn patch<K: WritableKind>(&mut self, side: ApiServer, object: &K, mut patch: Value) {
        if let (Some(version), Some(patch)) = (object.resource_version(), patch.as_object_mut()) {
            let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".to_owned(), json!(version));
            }
        }
        self.push(ObjectRef::new(side, object), WriteOp::Patch(patch.into()));
    }

    /// Applies a JSON merge patch unconditionally.
    pub fn merge<K: WritableKind>(&mut self, side: ApiServer, object: &K, patch: Value) {
        self.push(ObjectRef::new(side, object), WriteOp::Patch(patch.into()));
    }

    /// Patches the status of `object`.
    pub fn status<K: WritableKind>(&mut self, side: ApiServer, object: &K, status: &impl Serialize) {
        let status = serde_json::to_value(status).unwrap_or_default();
        self.push(
            ObjectRef::new(side, object),
            WriteOp::Status(json!({ "status": status }).into()),
        );
    }

    /// Deletes `object` by its UID, unless it is being deleted.
    pub fn delete<K: WritableKind>(&mut self, side: ApiServer, object: &K) {
        if object.meta().deletion_timestamp.is_none() {
            let (uid, version) = (object.uid(), None);
            self.push(ObjectRef::new(side, object), WriteOp::Delete { uid, version });
        }
    }

    /// Deletes `object` by its UID and resource version, unless it is being deleted.
    pub fn delete_unchanged<K: WritableKind>(&mut self, side: ApiServer, object: &K) {
        if object.meta().deletion_timestamp.is_none() {
            let (uid, version) = (object.uid(), object.resource_version());
            self.push(ObjectRef::new(side, object), WriteOp::Delete { uid, version });
        }
    }

    /// Reports an issue.
    pub fn issue(&mut self, code: IssueCode, subject: impl Into<String>, message: impl Into<String>) {
        self.issues.push(Issue {
            code,
            subject: subject.into(),
            message: message.into(),
        });
    }

    /// Reports an Event on `object`.
    pub fn warning_event<K: WritableKind>(
        &mut self,
        side: ApiServer,
        object: &K,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.warning_events.push(WarningEvent {
            object: ObjectRef::new(side, object),
            uid: object.uid().unwrap_or_default(),
            reason: reason.into(),
            message: message.into(),
        });
    }

    /// Reports up to `MAX_ISSUES` issues and the number of the others under `summary_subject`.
    pub fn issues(&mut self, code: IssueCode, summary_subject: &str, all: Vec<(String, String)>) {
        let more = all.len().saturating_sub(MAX_ISSUES);
        for (subject, message) in all.into_iter().take(MAX_ISSUES) {
            self.issue(code, subject, message);
        }
        if more > 0 {
            self.issue(code, summary_subject, format!("{more} more issues of this kind"));
        }
    }

    /// Whether a batch that began at write number `before` has room for another write. The next plan continues with the
    /// rest, so that thousands of writes do not delay heartbeats.
    #[must_use]
    pub fn has_room(&self, before: usize) -> bool {
        self.writes.len() < before.saturating_add(BATCH)
    }

    /// Requeues at `at` or earlier.
    pub fn requeue_at(&mut self, at: Timestamp) {
        self.next_requeue = Some(self.next_requeue.map_or(at, |old| old.min(at)));
    }

    fn push(&mut self, target: ObjectRef, op: WriteOp) {
        self.writes.push(Write { target, op });
    }
}

/// Maximum number of writes of one batch: about a second of work.
pub const BATCH: usize = 256;
/// Maximum number of issues of one kind reported in full.
const MAX_ISSUES: usize = 10;

fn body<K: WritableKind>(object: &K) -> RawJson {
    let mut body = serde_json::to_value(object).unwrap_or_default();
    // The API server ignores the status here: it is a subresource.
    if let Some(body) = body.as_object_mut() {
        body.remove("status");
    }
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_their_type() {
        let mut plan = Plan::default();
        let mut export = ResourceExport::new("x", mc_api::resource_export::ResourceExportSpec::default());
        export.metadata.namespace = Some("ns".to_owned());
        plan.apply(ApiServer::Leader, &export);
        let [
            Write {
                target,
                op: WriteOp::Apply(body),
            },
        ] = &plan.writes[..]
        else {
            panic!("{plan:?}")
        };
        assert_eq!(target.to_string(), "ResourceExport ns/x in the leader cluster");
        let body = body.value();
        assert_eq!(body["apiVersion"], "multicluster.crd.antrea.io/v1alpha1");
        assert_eq!(body["kind"], "ResourceExport");
    }

    #[test]
    fn only_some_of_many_issues_are_reported_in_full() {
        let mut plan = Plan::default();
        plan.issues(
            IssueCode::ExportRefused,
            "exports",
            (0..25).map(|i| (i.to_string(), "bad".to_owned())).collect(),
        );
        assert_eq!(plan.issues.len(), 11);
        assert_eq!(plan.issues[10].message, "15 more issues of this kind");
        let identity = LabelIdentity::new(
            "c5d961e1f6175a5a",
            mc_api::label_identity::LabelIdentitySpec::default(),
        );
        assert_eq!(
            ObjectRef::new(ApiServer::Local, &identity).to_string(),
            "LabelIdentity c5d961e1f6175a5a"
        );
    }
}
