//! Isolation of members: a member's token cannot write, take over or forge another member's objects.
//!
//! Requests are sent as the member's ServiceAccount to a real API server, most as dry runs, some to be persisted; all
//! must be denied. `SubjectAccessReview`s, which only evaluate the Role, are counted apart.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use http::Method;
use mc_test_kit::fake_apiserver::fields::json_merge_patch;
use serde_json::{Value, json};

use crate::{
    api::{connect, connect_as, send, wait},
    clusters::{EAST, LEADER, SHORT_TIMEOUT, WEST},
    mcs,
    workload::Namespace,
};

const NAMESPACE: &str = "antrea-multicluster";
/// Namespace of the Service that both members export.
const NS: &str = "e2e-isolation";
/// Finalizer on objects that their member would delete.
const HOLD: &str = "mc-gateway.io/isolation-test";
const EXPORT: &str = "resourceexports.multicluster.crd.antrea.io";
const EXPORTS: &str = "resourceexports";
const ANNOUNCES: &str = "memberclusterannounces";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Promised number of denied requests, without access reviews.
const MIN_REQUESTS: usize = 300;
/// Attempts of a replacement that conflicts with the object's controller.
const REPLACE_ATTEMPTS: usize = 10;

/// ServiceAccount and ID of a member.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) account: &'static str,
    pub(crate) id: &'static str,
}

const MEMBERS: [Member; 2] = [
    Member {
        account: "member-east",
        id: "test-cluster-east",
    },
    Member {
        account: "member-west",
        id: "test-cluster-west",
    },
];

/// Resource and name of an object.
pub(crate) type ObjectName<'a> = (&'a str, &'a str);

/// A request about one object.
pub(crate) enum MemberRequest<'a> {
    Create(&'a Value),
    Apply(&'a Value),
    /// PUT of the current object after this merge patch.
    Replace(ObjectName<'a>, Value),
    /// JSON merge patch.
    Patch(ObjectName<'a>, Value),
    /// JSON patch (RFC 6902).
    JsonPatch(ObjectName<'a>, Value),
    /// JSON merge patch of the status.
    PatchStatus(ObjectName<'a>, Value),
    /// PUT of the status after this merge patch.
    ReplaceStatus(ObjectName<'a>, Value),
    Delete(ObjectName<'a>),
}

/// Whether a request is persisted if it is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    DryRun,
    Persisted,
}

fn collection(resource: &str) -> String {
    format!("/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/{NAMESPACE}/{resource}")
}

fn path_of((resource, name): ObjectName<'_>) -> String {
    format!("{}/{name}", collection(resource))
}

fn resource_of(object: &Value) -> &'static str {
    if object["kind"] == "ResourceExport" {
        EXPORTS
    } else {
        ANNOUNCES
    }
}

fn merge_patch(patch: &Value) -> (&'static str, Value) {
    ("application/merge-patch+json", patch.clone())
}

/// Sends a request as the member; returns the object, or the error response.
pub(crate) fn request_as(member: Member, request: &MemberRequest<'_>, mode: Mode) -> Result<Value, String> {
    let json = |body: Value| Some(("application/json", body));
    let (method, path, body) = match request {
        MemberRequest::Create(object) => (
            Method::POST,
            collection(resource_of(object)),
            json((*object).clone()),
        ),
        MemberRequest::Apply(object) => (
            Method::PATCH,
            format!("{}?force=true", path_of((resource_of(object), &name_of(object)))),
            Some(("application/apply-patch+yaml", (*object).clone())),
        ),
        MemberRequest::Patch(object, patch) => (Method::PATCH, path_of(*object), Some(merge_patch(patch))),
        MemberRequest::JsonPatch(object, patch) => (
            Method::PATCH,
            path_of(*object),
            Some(("application/json-patch+json", patch.clone())),
        ),
        MemberRequest::PatchStatus(object, patch) => (
            Method::PATCH,
            path_of(*object) + "/status",
            Some(merge_patch(patch)),
        ),
        MemberRequest::Delete(object) => (Method::DELETE, path_of(*object), None),
        MemberRequest::Replace(object, patch) => return replace_as(member, *object, patch, "", mode),
        MemberRequest::ReplaceStatus(object, patch) => {
            return replace_as(member, *object, patch, "/status", mode);
        }
    };
    let and = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{and}{}", parameters(mode));
    let (code, answer) = wait(async {
        let client = connect_as(LEADER, Some((NAMESPACE, member.account))).await;
        send(&client, method, &path, body).await
    });
    if code < 300 {
        Ok(answer)
    } else {
        Err(answer.to_string())
    }
}

/// Reads an object as the member, which the Role allows, and replaces it.
fn replace_as(
    member: Member,
    object: ObjectName<'_>,
    patch: &Value,
    subresource: &str,
    mode: Mode,
) -> Result<Value, String> {
    wait(async {
        let client = connect_as(LEADER, Some((NAMESPACE, member.account))).await;
        let mut answer = Value::Null;
        for _ in 0..REPLACE_ATTEMPTS {
            let (code, mut body) = send(&client, Method::GET, &path_of(object), None).await;
            if code != 200 {
                return Err(format!("not read: {body}"));
            }
            json_merge_patch(&mut body, patch);
            let target = format!("{}{subresource}?{}", path_of(object), parameters(mode));
            let (code, reply) = send(&client, Method::PUT, &target, Some(("application/json", body))).await;
            match code {
                // Its controller wrote in between.
                409 => answer = reply,
                code if code < 300 => return Ok(reply),
                _ => return Err(reply.to_string()),
            }
        }
        Err(answer.to_string())
    })
}

fn parameters(mode: Mode) -> &'static str {
    match mode {
        Mode::DryRun => "fieldManager=isolation&dryRun=All",
        Mode::Persisted => "fieldManager=isolation",
    }
}

/// Counts of denied requests, and failures.
#[derive(Default)]
struct Cells {
    dry_runs: usize,
    persisted: usize,
    /// `SubjectAccessReview`s.
    reviews: usize,
    failures: Vec<String>,
}

impl Cells {
    /// Sends a request that must be denied.
    fn deny(&mut self, cell: &str, member: Member, request: &MemberRequest<'_>, mode: Mode) {
        self.denied(cell, request_as(member, request, mode), mode);
    }

    fn denied(&mut self, cell: &str, result: Result<Value, String>, mode: Mode) {
        match result {
            // By admission or authorization, not because the request is invalid.
            Err(error) if error.contains("denied request") || error.contains("orbidden") => match mode {
                Mode::DryRun => self.dry_runs += 1,
                Mode::Persisted => self.persisted += 1,
            },
            Err(error) => self.failures.push(format!("{cell}: another error: {error}")),
            Ok(object) => self.failures.push(format!("{cell}: allowed: {object}")),
        }
    }

    fn requests(&self) -> usize {
        self.dry_runs + self.persisted
    }
}

fn export(id: &str, kind: &str) -> Value {
    let (name, of, payload) = match kind {
        "Service" => (
            format!("{id}-{NS}-web-service"),
            json!({ "namespace": NS, "name": "web" }),
            json!({ "service": { "serviceSpec": { "ports": [{ "port": 80 }] } } }),
        ),
        "Endpoints" => (
            format!("{id}-{NS}-web-endpoints"),
            json!({ "namespace": NS, "name": "web" }),
            json!({ "endpoints": { "subsets": [{ "addresses": [{ "ip": "10.99.0.1" }], "ports": [{ "port": 80 }] }] } }),
        ),
        "ClusterInfo" => (
            format!("{id}-clusterinfo"),
            json!({ "namespace": "kube-system", "name": id }),
            json!({ "clusterInfo": { "clusterID": id, "serviceCIDR": "10.99.0.0/16" } }),
        ),
        "LabelIdentity" => (
            format!("{id}-0123456789abcdef"),
            json!({}),
            json!({ "labelIdentity": { "normalizedLabel": "ns:a&pod:b" } }),
        ),
        "PolicySelectors" | "ImportFailures" => (
            format!("{id}-{}", kind.to_lowercase()),
            json!({}),
            json!({ "raw": { "data": "eyJwZWVycyI6W10sImZhaWx1cmVzIjpbXX0=" } }),
        ),
        other => (
            format!("{id}-isolation-{other}"),
            json!({ "name": "isolation" }),
            json!({}),
        ),
    };
    let mut spec = json!({ "clusterID": id, "kind": kind });
    let mut labels = json!({ "sourceClusterID": id, "sourceKind": kind });
    for (key, value) in of.as_object().expect("an object") {
        spec[key] = value.clone();
        let label = if key == "name" {
            "sourceName"
        } else {
            "sourceNamespace"
        };
        labels[label] = value.clone();
    }
    for (key, value) in payload.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": labels,
            "finalizers": ["resourceexport.antrea.io/finalizer"],
        },
        "spec": spec,
    })
}

/// The announce of a member.
pub(crate) fn announce(id: &str) -> Value {
    json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "MemberClusterAnnounce",
        "metadata": { "name": format!("member-announce-from-{id}"), "namespace": NAMESPACE },
        "clusterID": id, "clusterSetID": "test-clusterset", "leaderClusterID": "test-cluster-north",
    })
}

const KINDS: [&str; 6] = [
    "Service",
    "Endpoints",
    "ClusterInfo",
    "LabelIdentity",
    "PolicySelectors",
    "ImportFailures",
];

/// The kinds without the leader's finalizer, of which the test writes one for each member.
const HELD_KINDS: [&str; 3] = ["LabelIdentity", "PolicySelectors", "ImportFailures"];

/// Merge patches of another member's object.
fn mutations(kind: &str, me: Member) -> Vec<(&'static str, Value)> {
    let payload = match kind {
        "Service" => json!({ "spec": { "service": { "serviceSpec": { "ports": [{ "port": 81 }] } } } }),
        "Endpoints" => json!({ "spec": { "endpoints": {
            "subsets": [{ "addresses": [{ "ip": "10.99.0.2" }], "ports": [{ "port": 80 }] }],
        } } }),
        "ClusterInfo" => json!({ "spec": { "clusterInfo": { "serviceCIDR": "10.98.0.0/16" } } }),
        "LabelIdentity" => json!({ "spec": { "labelIdentity": { "normalizedLabel": "ns:x&pod:y" } } }),
        "PolicySelectors" | "ImportFailures" => {
            json!({ "spec": { "raw": { "data": "eyJwZWVycyI6W3t9XSwiZmFpbHVyZXMiOlsxXX0=" } } })
        }
        _ => json!({ "leaderClusterID": "test-cluster-south" }),
    };
    vec![
        (
            "annotate",
            json!({ "metadata": { "annotations": { "isolation": "x" } } }),
        ),
        (
            "clear finalizers of",
            json!({ "metadata": { "finalizers": null, "annotations": { "isolation": "x" } } }),
        ),
        (
            "take over",
            json!({ "spec": { "clusterID": me.id }, "clusterID": me.id }),
        ),
        (
            "relabel",
            json!({ "metadata": { "labels": { "sourceClusterID": me.id } } }),
        ),
        ("change payload of", payload),
    ]
}

/// Changes, takeovers, deletions and status writes of another member's objects.
fn others(cells: &mut Cells, me: Member, other: Member) {
    let mut objects: Vec<(&str, &str, Value)> = KINDS
        .iter()
        .map(|kind| (EXPORTS, *kind, export(other.id, kind)))
        .collect();
    objects.push((ANNOUNCES, "announce", announce(other.id)));
    for (resource, kind, body) in &objects {
        let name = name_of(body);
        let object = (*resource, name.as_str());
        let mut deny = |verb: &str, request: MemberRequest<'_>, mode: Mode| {
            let cell = format!("{}: {verb} {kind} of {} ({mode:?})", me.account, other.id);
            cells.deny(&cell, me, &request, mode);
        };
        for (verb, mut patch) in mutations(kind, me) {
            // A merge patch writes the announce's top-level fields, an export has none.
            if *kind == "announce" {
                patch.as_object_mut().expect("an object").remove("spec");
            }
            let persisted = ["annotate", "change payload of"].contains(&verb);
            let modes: &[Mode] = if persisted {
                &[Mode::DryRun, Mode::Persisted]
            } else {
                &[Mode::DryRun]
            };
            for mode in modes {
                deny(verb, MemberRequest::Patch(object, patch.clone()), *mode);
                let put = format!("replace to {verb}");
                deny(&put, MemberRequest::Replace(object, patch.clone()), *mode);
            }
        }
        for mode in [Mode::DryRun, Mode::Persisted] {
            // A held object is terminating: a second deletion passes no admission.
            if !HELD_KINDS.contains(kind) {
                deny("delete", MemberRequest::Delete(object), mode);
            }
            deny("apply", MemberRequest::Apply(body), mode);
        }
        if *kind != "announce" {
            let add = json!([{ "op": "add", "path": "/metadata/labels/isolation", "value": "x" }]);
            deny(
                "JSON patch of",
                MemberRequest::JsonPatch(object, add),
                Mode::DryRun,
            );
            let condition = json!({ "type": "Failure", "status": "False", "message": "", "reason": "x" });
            let status = json!({ "status": { "conditions": [condition] } });
            for mode in [Mode::DryRun, Mode::Persisted] {
                deny(
                    "patch status of",
                    MemberRequest::PatchStatus(object, status.clone()),
                    mode,
                );
                deny(
                    "replace status of",
                    MemberRequest::ReplaceStatus(object, status.clone()),
                    mode,
                );
            }
        }
    }
}

/// Creations that claim another identity or that no member may make.
fn forged(cells: &mut Cells, me: Member, other: Member) {
    let mut forgeries: Vec<(String, Value)> = Vec::new();
    for kind in KINDS {
        let own = export(me.id, kind);
        let mut with = |what: &str, path: &str, value: Value| {
            let mut object = own.clone();
            *object.pointer_mut(path).expect("a field of the object") = value;
            // A new name, so that the request is a creation.
            if !path.ends_with("metadata/name") && kind == "LabelIdentity" {
                object["metadata"]["name"] = json!(format!("{}-fedcba9876543210", me.id));
            }
            forgeries.push((format!("{kind} with {what}"), object));
        };
        with("the other's ID", "/spec/clusterID", json!(other.id));
        with(
            "the other's label",
            "/metadata/labels/sourceClusterID",
            json!(other.id),
        );
        with(
            "another kind's label",
            "/metadata/labels/sourceKind",
            json!("AntreaClusterNetworkPolicy"),
        );
        let stolen = export(other.id, kind)["metadata"]["name"].clone();
        with("the other's name", "/metadata/name", stolen);
        with(
            "a kind of administrators",
            "/spec/kind",
            json!("AntreaClusterNetworkPolicy"),
        );
        with("no kind", "/spec/kind", json!(""));
        if !HELD_KINDS.contains(&kind) {
            with("no finalizer", "/metadata/finalizers", json!([]));
        }
        match kind {
            "Service" => with("no payload", "/spec/service", Value::Null),
            "Endpoints" => with("no payload", "/spec/endpoints", Value::Null),
            "ClusterInfo" => with(
                "the other's network",
                "/spec/clusterInfo/clusterID",
                json!(other.id),
            ),
            "PolicySelectors" | "ImportFailures" => with("no payload", "/spec/raw", Value::Null),
            _ => with("no payload", "/spec/labelIdentity", Value::Null),
        }
        if kind == "Service" || kind == "Endpoints" {
            with("no DNS label", "/spec/namespace", json!("Not A Label"));
            with("a name it does not have", "/spec/name", json!("other"));
            with(
                "another Service's label",
                "/metadata/labels/sourceName",
                json!("other"),
            );
        }
    }
    let mut with = |what: &str, path: &str, value: Value| {
        let mut object = announce(me.id);
        *object.pointer_mut(path).expect("a field") = value;
        forgeries.push((format!("announce with {what}"), object));
    };
    with("the other's ID", "/clusterID", json!(other.id));
    with(
        "an odd name",
        "/metadata/name",
        json!("member-announce-from-unknown"),
    );
    for (what, object) in forgeries {
        let cell = format!("{}: create {what}", me.account);
        for mode in [Mode::DryRun, Mode::Persisted] {
            cells.deny(&cell, me, &MemberRequest::Create(&object), mode);
        }
    }
}

/// A ServiceAccount bound to no cluster, as the guides of older releases create it.
fn unbound(cells: &mut Cells) {
    let plain = Member {
        account: "default",
        id: "test-cluster-plain",
    };
    let role = "rolebinding/isolation-plain";
    let bind = [
        "create",
        "rolebinding",
        "isolation-plain",
        "-n",
        NAMESPACE,
        "--role=antrea-mc-member-cluster-role",
        "--serviceaccount=antrea-multicluster:default",
    ];
    LEADER.kubectl(&bind);
    let own = export(plain.id, "Service");
    let made = LEADER.wait_for("an export of an unbound cluster", SHORT_TIMEOUT, || {
        request_as(plain, &MemberRequest::Create(&own), Mode::DryRun)
    });
    assert_eq!(made["spec"]["clusterID"], plain.id, "{made}");
    for other in MEMBERS {
        for kind in KINDS {
            let mut fresh = export(other.id, kind);
            if kind == "LabelIdentity" {
                fresh["metadata"]["name"] = json!(format!("{}-fedcba9876543210", other.id));
            }
            let cell = format!("unbound: create {kind} of {}", other.id);
            cells.deny(&cell, plain, &MemberRequest::Create(&fresh), Mode::DryRun);
        }
        let cell = format!("unbound: announce of {}", other.id);
        let own = announce(other.id);
        cells.deny(&cell, plain, &MemberRequest::Create(&own), Mode::DryRun);
        let mut near = announce(other.id);
        let id = format!("{}-2", other.id);
        near["clusterID"] = json!(id);
        near["metadata"]["name"] = json!(format!("member-announce-from-{id}"));
        let cell = format!("unbound: announce of {id}");
        cells.deny(&cell, plain, &MemberRequest::Create(&near), Mode::DryRun);
    }
    LEADER.kubectl(&["delete", role, "-n", NAMESPACE]);
}

/// Namespace (empty for cluster-scoped), group, resource with subresource, verb.
type Access = (&'static str, &'static str, &'static str, &'static str);

const ANTREA: &str = "multicluster.crd.antrea.io";

/// A `SubjectAccessReview` of the member.
fn access_review(me: Member, (namespace, group, resource, verb): Access) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{NAMESPACE}:{}", me.account),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{NAMESPACE}"), "system:authenticated"],
            "resourceAttributes": {
                "namespace": namespace, "group": group, "resource": resource,
                "subresource": subresource, "verb": verb,
            },
        },
    })
}

/// Method and path of the request that needs this access; `None` for verbs that a subresource does not have.
fn access_request((namespace, group, resource, verb): Access) -> Option<(Method, String)> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let root = match (group, resource) {
        ("", _) => "/api/v1".to_owned(),
        (ANTREA, "clustersets") => format!("/apis/{ANTREA}/v1alpha2"),
        (ANTREA, _) => format!("/apis/{ANTREA}/v1alpha1"),
        _ => format!("/apis/{group}/v1"),
    };
    let collection = if namespace.is_empty() {
        format!("{root}/{resource}")
    } else {
        format!("{root}/namespaces/{namespace}/{resource}")
    };
    let object = if subresource.is_empty() {
        format!("{collection}/isolation")
    } else {
        format!("{collection}/isolation/{subresource}")
    };
    let dry = "dryRun=All";
    let request = match (verb, subresource) {
        ("get", _) => (Method::GET, object),
        ("update", _) => (Method::PUT, format!("{object}?{dry}")),
        ("patch", _) => (Method::PATCH, format!("{object}?{dry}")),
        ("delete", _) => (Method::DELETE, format!("{object}?{dry}")),
        ("create", "") => (Method::POST, format!("{collection}?{dry}")),
        ("create", _) => (Method::POST, format!("{object}?{dry}")),
        ("list", "") => (Method::GET, collection),
        ("watch", "") => (Method::GET, format!("{collection}?watch=true&timeoutSeconds=1")),
        ("deletecollection", "") => (Method::DELETE, format!("{collection}?{dry}")),
        _ => return None,
    };
    Some(request)
}

/// All access that the members' Role does not grant.
fn ungranted_access() -> Vec<Access> {
    let verbs = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ];
    let everywhere = [
        ("", "secrets"),
        ("", "configmaps"),
        ("", "serviceaccounts"),
        ("", "serviceaccounts/token"),
        ("", "pods"),
        ("", "pods/exec"),
        ("", "services"),
        ("apps", "deployments"),
        ("rbac.authorization.k8s.io", "roles"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("coordination.k8s.io", "leases"),
        (ANTREA, "clustersets"),
    ];
    let cluster_scoped = [
        ("", "namespaces"),
        ("", "nodes"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ];
    let mut all = Vec::new();
    for verb in verbs {
        for (group, resource) in everywhere {
            all.push((NAMESPACE, group, resource, verb));
            all.push(("kube-system", group, resource, verb));
        }
        for resource in ["resourceexports", "resourceimports", "memberclusterannounces"] {
            all.push(("kube-system", ANTREA, resource, verb));
        }
        all.extend(cluster_scoped.map(|(group, resource)| ("", group, resource, verb)));
    }
    let read_only = [
        "resourceimports",
        "resourceimports/status",
        "memberclusterannounces/status",
    ];
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        all.extend(read_only.map(|resource| (NAMESPACE, ANTREA, resource, verb)));
    }
    for resource in ["resourceexports", "memberclusterannounces"] {
        all.push((NAMESPACE, ANTREA, resource, "deletecollection"));
    }
    all
}

/// Access beyond the Role: one request and one access review each.
fn ungranted(cells: &mut Cells, me: Member) {
    let all = ungranted_access();
    let reviews = all.iter().map(|access| access_review(me, *access));
    let answers = wait(async {
        let client = &connect(LEADER).await;
        stream::iter(reviews)
            .map(|review| async move {
                let body = Some(("application/json", review));
                let (code, answer) = send(client, Method::POST, REVIEWS, body).await;
                assert_eq!(code, 201, "{answer}");
                answer
            })
            .buffer_unordered(8)
            .collect::<Vec<_>>()
            .await
    });
    for answer in answers {
        if answer["status"]["allowed"] == json!(false) {
            cells.reviews += 1;
        } else {
            let access = &answer["spec"]["resourceAttributes"];
            cells
                .failures
                .push(format!("{}: review: allowed: {access}", me.account));
        }
    }
    let requests = all.iter().filter_map(|access| access_request(*access));
    let answers = wait(async {
        let client = &connect_as(LEADER, Some((NAMESPACE, me.account))).await;
        stream::iter(requests)
            .map(|(method, path)| async move {
                let type_ = if method == Method::PATCH {
                    "application/merge-patch+json"
                } else {
                    "application/json"
                };
                let body = (method != Method::GET && method != Method::DELETE).then(|| (type_, json!({})));
                let (code, answer) = send(client, method.clone(), &path, body).await;
                (format!("{method} {path}"), code, answer)
            })
            .buffer_unordered(8)
            .collect::<Vec<_>>()
            .await
    });
    for (request, code, answer) in answers {
        let cell = format!("{}: {request}", me.account);
        let result = if code < 300 {
            Ok(answer)
        } else {
            Err(answer.to_string())
        };
        cells.denied(&cell, result, Mode::DryRun);
    }
}

/// Objects of both members, so that changes reach admission: exported Services, and the held kinds written by hand.
struct Objects(#[expect(dead_code, reason = "removed at the end")] Namespace);

impl Objects {
    fn create() -> Self {
        let ns = Namespace::create(NS);
        let spec = json!({ "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] });
        for (cluster, address) in [(EAST, "10.12.2.200"), (WEST, "10.13.2.200")] {
            mcs::serve(&ns, cluster, &spec, address);
            mcs::export(&ns, cluster, &json!({}));
        }
        let objects = Self(ns);
        for member in MEMBERS {
            for kind in ["Service", "Endpoints"] {
                let name = name_of(&export(member.id, kind));
                LEADER.wait_for(&format!("ResourceExport {name}"), SHORT_TIMEOUT, || {
                    LEADER
                        .get(NAMESPACE, EXPORT, &name)
                        .ok_or_else(|| "missing".to_owned())
                });
            }
            for kind in HELD_KINDS {
                let mut held = export(member.id, kind);
                held["metadata"]["finalizers"] = json!([HOLD]);
                LEADER.wait_for(
                    &format!("{kind} of {} created by its own account", member.id),
                    SHORT_TIMEOUT,
                    || request_as(member, &MemberRequest::Apply(&held), Mode::Persisted),
                );
            }
        }
        objects
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for (member, kind) in MEMBERS
            .into_iter()
            .flat_map(|member| HELD_KINDS.map(|kind| (member, kind)))
        {
            let object = format!("{EXPORT}/{}", name_of(&export(member.id, kind)));
            let free = r#"{"metadata":{"finalizers":null}}"#;
            let freed = LEADER.try_kubectl(&["patch", &object, "-n", NAMESPACE, "--type=merge", "-p", free]);
            let gone = LEADER.try_kubectl(&["delete", &object, "-n", NAMESPACE, "--ignore-not-found"]);
            if let Err(error) = freed.and(gone) {
                eprintln!("{object}: {error}");
            }
        }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// UID, spec, labels and annotations of the members' objects, by name, without heartbeats and failures of imports.
fn contents() -> BTreeMap<String, Value> {
    let mut contents = BTreeMap::new();
    for member in MEMBERS {
        let exports = KINDS.map(|kind| (EXPORT, name_of(&export(member.id, kind))));
        let announce = ("memberclusterannounce", name_of(&announce(member.id)));
        for (resource, name) in exports.into_iter().chain([announce]) {
            let mut object = LEADER.get(NAMESPACE, resource, &name).unwrap_or_default();
            let metadata = object["metadata"].take();
            let heartbeat = json!({ "touch-ts": null, "mc-gateway.io/controller-instance": null });
            let mut annotations = metadata["annotations"].clone();
            json_merge_patch(&mut annotations, &heartbeat);
            object.as_object_mut().map(|fields| fields.remove("status"));
            if object["spec"]["kind"] == "ImportFailures" {
                object["spec"]["raw"].take();
            }
            object["metadata"] = json!([metadata["uid"], metadata["labels"], annotations]);
            contents.insert(name, object);
        }
    }
    contents
}

#[test]
fn a_member_cannot_write_or_forge_objects_of_another() {
    let _objects = Objects::create();
    let before = contents();
    let mut cells = Cells::default();
    for (me, other) in [(MEMBERS[0], MEMBERS[1]), (MEMBERS[1], MEMBERS[0])] {
        others(&mut cells, me, other);
        forged(&mut cells, me, other);
        ungranted(&mut cells, me);
    }
    unbound(&mut cells);
    println!(
        "isolation: {} requests denied ({} dry runs, {} persisted), {} access reviews denied, {} failures",
        cells.requests(),
        cells.dry_runs,
        cells.persisted,
        cells.reviews,
        cells.failures.len()
    );
    assert!(cells.failures.is_empty(), "{:#?}", cells.failures);
    assert!(
        cells.requests() >= MIN_REQUESTS,
        "only {} requests",
        cells.requests()
    );
    assert_eq!(contents(), before, "denied requests changed an object");
    // A member's own object is really written, so that a denial of everything is no success.
    for member in MEMBERS {
        let name = name_of(&export(member.id, "Service"));
        let patch = json!({ "metadata": { "annotations": { "isolation": member.id } } });
        let own = MemberRequest::Patch((EXPORTS, &name), patch);
        let written = request_as(member, &own, Mode::Persisted).expect("a change of the member's own export");
        assert_eq!(written["metadata"]["annotations"]["isolation"], member.id);
    }
    // The members stay Ready.
    for member in [EAST, WEST] {
        let path = "jsonpath={.items[0].status.conditions[0].status}";
        let ready = member.kubectl(&["get", "clusterset", "-n", "kube-system", "-o", path]);
        assert_eq!(ready, "True", "{}", member.0);
    }
}
