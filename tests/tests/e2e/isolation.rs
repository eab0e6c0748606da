//! What a member's token may not do: write, take over or forge what is another member's, on a real API server.
//!
//! Every cell is one request as the member's ServiceAccount; all have to be refused, and the last line counts them.

use serde_json::{Value, json};

use crate::{
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
const ANNOUNCE: &str = "memberclusterannounces.multicluster.crd.antrea.io";

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

/// A request of the member: what kubectl said.
fn try_as(member: Member, args: &[&str], stdin: Option<&Value>) -> Result<String, String> {
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:{}", member.account);
    let groups = [
        "--as-group=system:serviceaccounts".to_owned(),
        format!("--as-group=system:serviceaccounts:{NAMESPACE}"),
        "--as-group=system:authenticated".to_owned(),
    ];
    let mut all: Vec<&str> = args.to_vec();
    all.push(&account);
    all.extend(groups.iter().map(String::as_str));
    all.extend(["-n", NAMESPACE]);
    match stdin {
        None => LEADER.try_kubectl(&all),
        Some(object) => LEADER.try_kubectl_with(&all, &object.to_string()),
    }
}

/// Refused cells, and those that were not.
#[derive(Default)]
struct Cells {
    refused: usize,
    allowed: Vec<String>,
}

impl Cells {
    fn refused(&mut self, what: &str, outcome: Result<String, String>) {
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
    let mut objects: Vec<(String, String, Value)> = KINDS
        .iter()
        .map(|kind| {
            let object = export(other.id, kind);
            let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
            (format!("{EXPORT}/{name}"), (*kind).to_owned(), object)
        })
        .collect();
    let announced = format!("member-announce-from-{}", other.id);
    objects.push((
        format!("{ANNOUNCE}/{announced}"),
        "announce".to_owned(),
        announce(other.id),
    ));
    for (object, what, body) in &objects {
        let cell = |verb: &str| format!("{}: {verb} {what} of {}", me.account, other.id);
        // One that is held is being deleted already, which asks nobody.
        if what != "LabelIdentity" {
            cells.refused(
                &cell("delete"),
                try_as(me, &["delete", object, "--dry-run=server"], None),
            );
        }
        let annotate = r#"{"metadata":{"annotations":{"isolation":"x"}}}"#;
        cells.refused(
            &cell("patch"),
            try_as(
                me,
                &[
                    "patch",
                    object,
                    "--type=merge",
                    "--dry-run=server",
                    "-p",
                    annotate,
                ],
                None,
            ),
        );
        let free = r#"{"metadata":{"finalizers":null,"annotations":{"isolation":"x"}}}"#;
        cells.refused(
            &cell("patch finalizers of"),
            try_as(
                me,
                &["patch", object, "--type=merge", "--dry-run=server", "-p", free],
                None,
            ),
        );
        let mine = json!({ "spec": { "clusterID": me.id }, "clusterID": me.id }).to_string();
        cells.refused(
            &cell("take over"),
            try_as(
                me,
                &["patch", object, "--type=merge", "--dry-run=server", "-p", &mine],
                None,
            ),
        );
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "-f",
            "-",
        ];
        cells.refused(&cell("apply"), try_as(me, &apply, Some(body)));
        if what != "announce" {
            let status = r#"{"status":{"conditions":[{"type":"Failure","status":"False","message":"","reason":"x"}]}}"#;
            cells.refused(
                &cell("report on"),
                try_as(
                    me,
                    &[
                        "patch",
                        object,
                        "--subresource=status",
                        "--type=merge",
                        "--dry-run=server",
                        "-p",
                        status,
                    ],
                    None,
                ),
            );
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
        let create = ["create", "--dry-run=server", "-f", "-"];
        cells.refused(
            &format!("{}: create {what}", me.account),
            try_as(me, &create, Some(&object)),
        );
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
    let create = ["create", "--dry-run=server", "-f", "-"];
    let own = LEADER.wait_for("an export of a cluster nobody is bound to", SOON, || {
        try_as(plain, &create, Some(&export(plain.id, "Service")))
    });
    assert!(own.contains("created"), "{own}");
    for other in MEMBERS {
        for kind in KINDS {
            let mut fresh = export(other.id, kind);
            if kind == "LabelIdentity" {
                fresh["metadata"]["name"] = json!(format!("{}-fedcba9876543210", other.id));
            }
            cells.refused(
                &format!("unbound: create {kind} of {}", other.id),
                try_as(plain, &create, Some(&fresh)),
            );
        }
        cells.refused(
            &format!("unbound: announce of {}", other.id),
            try_as(plain, &create, Some(&announce(other.id))),
        );
        let mut near = announce(other.id);
        let id = format!("{}-2", other.id);
        near["clusterID"] = json!(id);
        near["metadata"]["name"] = json!(format!("member-announce-from-{id}"));
        cells.refused(
            &format!("unbound: announce of {id}"),
            try_as(plain, &create, Some(&near)),
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

/// What the Role does not give: asked in one request for all.
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
    let count = reviews.len();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": reviews }).to_string();
    let said = LEADER
        .try_kubectl_with(&["create", "-f", "-", "-o", "json"], &list)
        .expect("reviews");
    let answers: Vec<Value> = serde_json::Deserializer::from_str(&said)
        .into_iter::<Value>()
        .map(|answer| answer.expect("JSON"))
        .flat_map(|answer| match answer["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![answer],
        })
        .collect();
    assert_eq!(answers.len(), count, "as many answers as questions");
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
                || try_as(member, &["apply", "--server-side", "-f", "-"], Some(&held)),
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
