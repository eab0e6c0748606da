//! What a member's token may not do: write, take over or forge what is another member's, on a real API server.
//!
//! Every cell is one request as the member's ServiceAccount; all have to be refused, and the last line counts them.

use futures::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};

use crate::{
    api::{connect, connect_as, send, wait},
    clusters::{EAST, LEADER, SOON, WEST},
    mcs,
    workload::Namespace,
};

const NAMESPACE: &str = "antrea-multicluster";
/// What both members export a Service of.
const NS: &str = "e2e-isolation";
/// Keeps an object there that its member would clear up.
const HOLD: &str = "mc-gateway.io/isolation-test";
const EXPORT: &str = "resourceexports.multicluster.crd.antrea.io";
const EXPORTS: &str = "resourceexports";
const ANNOUNCES: &str = "memberclusterannounces";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A member, as the leader cluster knows it.
#[derive(Clone, Copy)]
struct Member {
    account: &'static str,
    id: &'static str,
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

/// What is asked about one object: its resource and name, or the object itself.
enum Ask<'a> {
    Create(&'a Value),
    Apply(&'a Value),
    /// JSON merge patch.
    Patch((&'a str, &'a str), Value),
    /// The same of the status.
    Status((&'a str, &'a str), Value),
    Delete((&'a str, &'a str)),
}

impl Ask<'_> {
    fn request(&self) -> (Method, String, Option<(&'static str, Value)>) {
        let at = |resource: &str, name: &str| {
            format!("/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/{NAMESPACE}/{resource}{name}")
        };
        let of = |(resource, name): (&str, &str)| at(resource, &format!("/{name}"));
        let resource = |object: &Value| {
            if object["kind"] == "ResourceExport" {
                EXPORTS
            } else {
                ANNOUNCES
            }
        };
        match self {
            Self::Create(object) => (
                Method::POST,
                at(resource(object), ""),
                Some(("application/json", (*object).clone())),
            ),
            Self::Apply(object) => (
                Method::PATCH,
                format!("{}?force=true", of((resource(object), &name_of(object)))),
                Some(("application/apply-patch+yaml", (*object).clone())),
            ),
            Self::Patch(object, patch) => (Method::PATCH, of(*object), Some(merge(patch))),
            Self::Status(object, patch) => (Method::PATCH, of(*object) + "/status", Some(merge(patch))),
            Self::Delete(object) => (Method::DELETE, of(*object), None),
        }
    }
}

fn merge(patch: &Value) -> (&'static str, Value) {
    ("application/merge-patch+json", patch.clone())
}

/// A request of the member: what it gave, or why it was refused.
fn ask_as(member: Member, ask: &Ask<'_>, dry: bool) -> Result<Value, String> {
    let (method, path, body) = ask.request();
    let and = if path.contains('?') { '&' } else { '?' };
    let dry = if dry { "&dryRun=All" } else { "" };
    let path = format!("{path}{and}fieldManager=isolation{dry}");
    let (code, said) = wait(async {
        let client = connect_as(LEADER, Some((NAMESPACE, member.account))).await;
        send(&client, method, &path, body).await
    });
    if code < 300 {
        Ok(said)
    } else {
        Err(said.to_string())
    }
}

/// What would come of it.
fn try_as(member: Member, ask: &Ask<'_>) -> Result<Value, String> {
    ask_as(member, ask, true)
}

/// Refused cells, and those that were not.
#[derive(Default)]
struct Cells {
    refused: usize,
    allowed: Vec<String>,
}

impl Cells {
    fn refused(&mut self, what: &str, outcome: Result<Value, String>) {
        match outcome {
            // Refused for the right reason: by admission or by authorization, not because the request is wrong.
            Err(why) if why.contains("denied request") || why.contains("orbidden") => self.refused += 1,
            Err(why) => self.allowed.push(format!("{what}: not judged: {why}")),
            Ok(said) => self.allowed.push(format!("{what}: {said}")),
        }
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

fn announce(id: &str) -> Value {
    json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "MemberClusterAnnounce",
        "metadata": { "name": format!("member-announce-from-{id}"), "namespace": NAMESPACE },
        "clusterID": id, "clusterSetID": "test-clusterset", "leaderClusterID": "test-cluster-north",
    })
}

const KINDS: [&str; 4] = ["Service", "Endpoints", "ClusterInfo", "LabelIdentity"];

/// Objects of the other member: changed, taken over, deleted, reported on.
fn others(cells: &mut Cells, me: Member, other: Member) {
    let mut objects: Vec<(&str, &str, Value)> = KINDS
        .iter()
        .map(|kind| (EXPORTS, *kind, export(other.id, kind)))
        .collect();
    objects.push((ANNOUNCES, "announce", announce(other.id)));
    for (resource, what, body) in &objects {
        let name = name_of(body);
        let object = (*resource, name.as_str());
        let mut cell = |verb: &str, ask: Ask<'_>| {
            let cell = format!("{}: {verb} {what} of {}", me.account, other.id);
            cells.refused(&cell, try_as(me, &ask));
        };
        // One that is held is being deleted already, which asks nobody.
        if *what != "LabelIdentity" {
            cell("delete", Ask::Delete(object));
        }
        let annotate = json!({ "metadata": { "annotations": { "isolation": "x" } } });
        cell("patch", Ask::Patch(object, annotate));
        let free = json!({ "metadata": { "finalizers": null, "annotations": { "isolation": "x" } } });
        cell("patch finalizers of", Ask::Patch(object, free));
        let mine = json!({ "spec": { "clusterID": me.id }, "clusterID": me.id });
        cell("take over", Ask::Patch(object, mine));
        cell("apply", Ask::Apply(body));
        if *what != "announce" {
            let condition = json!({ "type": "Failure", "status": "False", "message": "", "reason": "x" });
            let status = json!({ "status": { "conditions": [condition] } });
            cell("report on", Ask::Status(object, status));
        }
    }
}

/// Objects of its own that claim to be the other's, or that no member may make.
fn forged(cells: &mut Cells, me: Member, other: Member) {
    let mut forgeries: Vec<(String, Value)> = Vec::new();
    for kind in KINDS {
        let own = export(me.id, kind);
        let mut with = |what: &str, path: &str, value: Value| {
            let mut object = own.clone();
            *object.pointer_mut(path).expect("a field of the object") = value;
            // Fresh names: what is judged is a creation.
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
        if kind != "LabelIdentity" {
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
        json!("member-announce-from-nobody"),
    );
    for (what, object) in forgeries {
        let cell = format!("{}: create {what}", me.account);
        cells.refused(&cell, try_as(me, &Ask::Create(&object)));
    }
}

/// A ServiceAccount that is bound to no cluster: the guides of older releases know no others.
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
    let made = LEADER.wait_for("an export of a cluster nobody is bound to", SOON, || {
        try_as(plain, &Ask::Create(&own))
    });
    assert_eq!(made["spec"]["clusterID"], plain.id, "{made}");
    for other in MEMBERS {
        for kind in KINDS {
            let mut fresh = export(other.id, kind);
            if kind == "LabelIdentity" {
                fresh["metadata"]["name"] = json!(format!("{}-fedcba9876543210", other.id));
            }
            cells.refused(
                &format!("unbound: create {kind} of {}", other.id),
                try_as(plain, &Ask::Create(&fresh)),
            );
        }
        cells.refused(
            &format!("unbound: announce of {}", other.id),
            try_as(plain, &Ask::Create(&announce(other.id))),
        );
        let mut near = announce(other.id);
        let id = format!("{}-2", other.id);
        near["clusterID"] = json!(id);
        near["metadata"]["name"] = json!(format!("member-announce-from-{id}"));
        cells.refused(
            &format!("unbound: announce of {id}"),
            try_as(plain, &Ask::Create(&near)),
        );
    }
    LEADER.kubectl(&["delete", role, "-n", NAMESPACE]);
}

/// Whether the member may do that.
fn access_review(me: Member, namespace: &str, group: &str, resource: &str, verb: &str) -> Value {
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

/// What the Role does not give.
fn ungranted(cells: &mut Cells, me: Member) {
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
        ("multicluster.crd.antrea.io", "clustersets"),
    ];
    let mut reviews = Vec::new();
    let mut review = |namespace: &str, group: &str, resource: &str, verb: &str| {
        reviews.push(access_review(me, namespace, group, resource, verb));
    };
    for verb in verbs {
        for (group, resource) in everywhere {
            review(NAMESPACE, group, resource, verb);
            review("kube-system", group, resource, verb);
        }
        for resource in ["resourceexports", "resourceimports", "memberclusterannounces"] {
            review("kube-system", "multicluster.crd.antrea.io", resource, verb);
        }
        for (group, resource) in [
            ("", "namespaces"),
            ("", "nodes"),
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ] {
            review("", group, resource, verb);
        }
    }
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        review(NAMESPACE, "multicluster.crd.antrea.io", "resourceimports", verb);
        review(
            NAMESPACE,
            "multicluster.crd.antrea.io",
            "resourceimports/status",
            verb,
        );
        review(
            NAMESPACE,
            "multicluster.crd.antrea.io",
            "memberclusterannounces/status",
            verb,
        );
    }
    for resource in ["resourceexports", "memberclusterannounces"] {
        review(
            NAMESPACE,
            "multicluster.crd.antrea.io",
            resource,
            "deletecollection",
        );
    }
    let answers = wait(async {
        let client = &connect(LEADER).await;
        stream::iter(reviews)
            .map(|review| async move {
                let (code, said) =
                    send(client, Method::POST, REVIEWS, Some(("application/json", review))).await;
                assert_eq!(code, 201, "{said}");
                said
            })
            .buffer_unordered(8)
            .collect::<Vec<_>>()
            .await
    });
    for answer in answers {
        if answer["status"]["allowed"] == json!(false) {
            cells.refused += 1;
        } else {
            cells.allowed.push(format!(
                "{}: {}",
                me.account, answer["spec"]["resourceAttributes"]
            ));
        }
    }
}

/// The other's objects have to exist for a change to be judged: exported as users do, and one that is written by hand.
struct Objects(#[expect(dead_code, reason = "removed at the end")] Namespace);

impl Objects {
    fn create() -> Self {
        let ns = Namespace::create(NS);
        let spec = json!({ "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] });
        for (cluster, address) in [(EAST, "10.11.2.200"), (WEST, "10.12.2.200")] {
            mcs::serve(&ns, cluster, &spec, address);
            mcs::export(&ns, cluster, &json!({}));
        }
        let objects = Self(ns);
        for member in MEMBERS {
            for kind in ["Service", "Endpoints"] {
                let name = name_of(&export(member.id, kind));
                LEADER.wait_for(&format!("ResourceExport {name}"), SOON, || {
                    LEADER
                        .get(NAMESPACE, EXPORT, &name)
                        .ok_or_else(|| "not there".to_owned())
                });
            }
            let mut held = export(member.id, "LabelIdentity");
            held["metadata"]["finalizers"] = json!([HOLD]);
            LEADER.wait_for(
                &format!("a LabelIdentity of {} made by itself", member.id),
                SOON,
                || ask_as(member, &Ask::Apply(&held), false),
            );
        }
        objects
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for member in MEMBERS {
            let object = format!("{EXPORT}/{}", name_of(&export(member.id, "LabelIdentity")));
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

#[test]
fn a_member_cannot_write_or_forge_what_is_anothers() {
    let _objects = Objects::create();
    let mut cells = Cells::default();
    for (me, other) in [(MEMBERS[0], MEMBERS[1]), (MEMBERS[1], MEMBERS[0])] {
        others(&mut cells, me, other);
        forged(&mut cells, me, other);
        ungranted(&mut cells, me);
    }
    unbound(&mut cells);
    println!(
        "isolation: {} cells refused, {} allowed",
        cells.refused,
        cells.allowed.len()
    );
    assert!(cells.allowed.is_empty(), "{:#?}", cells.allowed);
    assert!(cells.refused >= 300, "{}", cells.refused);
    // And the members go on meanwhile.
    for member in [EAST, WEST] {
        let ready = member.kubectl(&[
            "get",
            "clusterset",
            "-n",
            "kube-system",
            "-o",
            "jsonpath={.items[0].status.conditions[0].status}",
        ]);
        assert_eq!(ready, "True", "{}", member.0);
    }
}
