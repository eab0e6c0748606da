//! The older guides, step by step: two `ClusterClaim`s and a `ClusterSet` v1alpha1 in each cluster.
//!
//! The leader of the guide is another one, in a Namespace of its own; east leaves its set, joins that one and goes back.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, LATER, LEADER, SOON, WEST},
    workload::Namespace,
};

/// As the leader's Namespace is called in the guide of v1.5.
const GUIDE: &str = "antrea-mcs-ns";
const MEMBER: &str = "kube-system";
const SET: &str = "test-clusterset";
/// One file for the leader; the guide puts another Namespace into it with sed.
const MANIFEST: &str = include_str!("../../../deploy/mc-gateway-leader.yml");

/// One of the forms claims had: v1.5 has free names, v1.9 that of the property.
#[derive(Clone, Copy, Debug)]
enum Form {
    V1alpha1,
    V1alpha2,
}

impl Form {
    fn claims(self, namespace: &str, id: &str) -> String {
        let claim = |name: &str, property: &str, value: &str| match self {
            Self::V1alpha1 => format!(
                "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterClaim
metadata: {{name: {name}, namespace: {namespace}}}
name: {property}
value: {value}
---
"
            ),
            Self::V1alpha2 => format!(
                "apiVersion: multicluster.crd.antrea.io/v1alpha2
kind: ClusterClaim
metadata: {{name: {}, namespace: {namespace}}}
value: {value}
---
",
                property.to_lowercase()
            ),
        };
        claim("membercluster-id", "id.k8s.io", id) + &claim("clusterset-id", "clusterSet.k8s.io", SET)
    }

    /// The member's `ClusterSet`.
    fn set(self, secret: &str, server: &str) -> String {
        let members = match self {
            Self::V1alpha1 => "  members: [{clusterID: test-cluster-east}]\n",
            Self::V1alpha2 => "",
        };
        format!(
            "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterSet
metadata: {{name: {SET}, namespace: {MEMBER}}}
spec:
  leaders: [{{clusterID: test-cluster-north, secret: {secret}, server: {server:?}}}]
{members}  namespace: {GUIDE}
"
        )
    }
}

/// East's membership of before; it is restored whatever happens.
struct Former {
    set: Value,
    restored: RefCell<bool>,
}

impl Former {
    fn take() -> Self {
        let seen = EAST.get(MEMBER, "clusterset", SET).expect("east is a member");
        let set = json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha2",
            "kind": "ClusterSet",
            "metadata": {"name": SET, "namespace": MEMBER},
            "spec": seen["spec"],
        });
        Self {
            set,
            restored: RefCell::new(false),
        }
    }

    fn server(&self) -> &str {
        self.set["spec"]["leaders"][0]["server"]
            .as_str()
            .expect("the leader's URL")
    }

    /// What the guide made goes, and east is again what it was.
    fn restore(&self) -> Result<(), String> {
        leave()?;
        gone(LEADER, GUIDE, "memberclusterannounces")?;
        let namespace = ["delete", "namespace", GUIDE, "--ignore-not-found", "--wait=false"];
        LEADER.try_kubectl(&namespace)?;
        EAST.try_kubectl_with(&["apply", "-f", "-"], &self.set.to_string())?;
        soon(|| match condition(EAST).0.as_str() {
            "True" => Ok(()),
            other => Err(format!("east is not ready: {other}")),
        })?;
        for (cluster, other) in [(EAST, "west"), (WEST, "east")] {
            let info = format!("test-cluster-{other}-clusterinfo");
            soon(|| cluster.try_kubectl(&["get", "clusterinfoimport", &info, "-n", MEMBER]))?;
        }
        *self.restored.borrow_mut() = true;
        Ok(())
    }
}

impl Drop for Former {
    fn drop(&mut self) {
        if *self.restored.borrow() {
            return;
        }
        if let Err(error) = self.restore() {
            eprintln!("east is not what it was: {error}");
        }
    }
}

/// Waits without panicking.
fn soon<T>(mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let what = "what was before";
    mc_tests::wait::wait_for(what, LATER, &mut probe).map_err(|error| format!("{error:#}"))
}

fn leave() -> Result<(), String> {
    for kind in ["clusterset", "clusterclaims"] {
        EAST.try_kubectl(&["delete", kind, "--all", "-n", MEMBER])?;
    }
    Ok(())
}

/// Waits until no object of the kind is left.
fn gone(cluster: Cluster, namespace: &str, kind: &str) -> Result<(), String> {
    soon(|| {
        let left = cluster.try_kubectl(&["get", kind, "-n", namespace, "-o", "name"])?;
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })
}

/// Status and message of the condition `Ready` of a member's `ClusterSet`.
fn condition(cluster: Cluster) -> (String, String) {
    let set = cluster.get(MEMBER, "clusterset", SET).unwrap_or_default();
    let ready = &set["status"]["conditions"][0];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&ready["status"]), text(&ready["message"]))
}

/// "Deploy in a dedicated leader cluster", "initialize ClusterSet": two members, each with its ServiceAccount.
fn deploy_leader() {
    LEADER.kubectl(&["create", "namespace", GUIDE]);
    LEADER.apply(&MANIFEST.replace("antrea-multicluster", GUIDE));
    let deployment = "deployment/antrea-mc-controller";
    LEADER.kubectl(&["rollout", "status", deployment, "-n", GUIDE, "--timeout=120s"]);
    LEADER.apply(&format!(
        "{}apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterSet
metadata: {{name: {SET}, namespace: {GUIDE}}}
spec:
  leaders: [{{clusterID: test-cluster-north}}]
  members:
  - {{clusterID: test-cluster-east, serviceAccount: member-east-access-sa}}
  - {{clusterID: test-cluster-west, serviceAccount: member-west-access-sa}}
  namespace: {GUIDE}
",
        Form::V1alpha1.claims(GUIDE, "test-cluster-north")
    ));
    LEADER.wait_for("the leader's ID", SOON, || {
        let set = LEADER.get(GUIDE, "clusterset", SET).unwrap_or_default();
        if set["spec"]["clusterID"] == "test-cluster-north"
            && set["status"]["conditions"][0]["status"] == "True"
        {
            Ok(())
        } else {
            Err(set.to_string())
        }
    });
}

/// "Setting up access to leader cluster": the token of an account without annotation, copied to the member.
fn give_access() {
    LEADER.apply(&format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: member-east-access-sa, namespace: {GUIDE}}}
---
apiVersion: v1
kind: Secret
metadata:
  name: member-east-access-token
  namespace: {GUIDE}
  annotations: {{kubernetes.io/service-account.name: member-east-access-sa}}
type: kubernetes.io/service-account-token
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: member-east-access-rolebinding, namespace: {GUIDE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: antrea-mc-member-cluster-role}}
subjects:
- {{kind: ServiceAccount, name: member-east-access-sa, namespace: {GUIDE}}}
"
    ));
    let data = LEADER.wait_for("the token", SOON, || {
        let secret = LEADER
            .get(GUIDE, "secret", "member-east-access-token")
            .unwrap_or_default();
        match secret["data"]["token"] {
            Value::String(_) => Ok(secret["data"].clone()),
            _ => Err("no token".to_owned()),
        }
    });
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {"name": "member-east-access-token", "namespace": MEMBER},
    });
    EAST.apply(&copy.to_string());
    LEADER.wait_for("the account bound by spec.members", SOON, || {
        let map = LEADER
            .get(GUIDE, "configmap", "antrea-mc-member-identities")
            .unwrap_or_default();
        if map["data"] == json!({"member-east-access-sa": "test-cluster-east"}) {
            Ok(())
        } else {
            Err(map["data"].to_string())
        }
    });
}

/// What webhooks of Antrea deny is denied.
fn refusals() {
    let id = r#"{"spec":{"clusterID":"test-cluster-other"}}"#;
    let no_id = r#"{"spec":{"clusterID":null}}"#;
    let leader = r#"{"spec":{"leaders":[{"clusterID":"test-cluster-south"}]}}"#;
    for version in ["v1alpha1", "v1alpha2"] {
        for (patch, field) in [
            (id, "clusterID"),
            (no_id, "clusterID"),
            (leader, "leaders[0].clusterID"),
        ] {
            let kind = format!("clustersets.{version}.multicluster.crd.antrea.io");
            let patch = ["patch", &kind, SET, "-n", MEMBER, "--type=merge", "-p", patch];
            let said = EAST.try_kubectl(&patch).expect_err("an ID changes");
            let right =
                said.contains(field) && (said.contains("may not change") || said.contains("Required"));
            assert!(right, "{said}");
        }
    }
    let other = |cluster: Cluster, namespace: &str| {
        let set = json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
            "metadata": {"name": "another", "namespace": namespace},
            "spec": {"clusterID": "a", "leaders": [{"clusterID": "b"}]},
        });
        cluster
            .try_kubectl_with(&["create", "-f", "-"], &set.to_string())
            .expect_err("a second ClusterSet")
    };
    for said in [other(EAST, MEMBER), other(LEADER, GUIDE)] {
        assert!(
            said.contains("ClusterSet test-clusterset is already in this Namespace"),
            "{said}"
        );
    }
    let said = LEADER
        .try_kubectl(&["delete", "clusterset", SET, "-n", GUIDE])
        .expect_err("it has a member");
    assert!(said.contains("member-announce-from-test-cluster-east"), "{said}");
    let gateway = json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "Gateway",
        "metadata": {"name": "by-hand", "namespace": MEMBER}, "gatewayIP": "192.0.2.1", "internalIP": "192.0.2.1",
    });
    let said = EAST
        .try_kubectl_with(&["create", "-f", "-"], &gateway.to_string())
        .expect_err("a Gateway by hand");
    assert!(said.contains("annotate a Node"), "{said}");
}

/// East joins by one of the older forms, exports, and leaves.
fn join(form: Form, former: &Former, ns: &Namespace) {
    let set = form.set("member-east-access-token", former.server());
    EAST.apply(&set);
    EAST.wait_for("the condition that names the missing claim", SOON, || {
        let (status, message) = condition(EAST);
        if status == "False" && message.contains("no ClusterClaim \"id.k8s.io\"") {
            Ok(())
        } else {
            Err(format!("{status}: {message}"))
        }
    });
    let start = Instant::now();
    EAST.apply(&form.claims(MEMBER, "test-cluster-east"));
    EAST.wait_for("Ready", SOON, || match condition(EAST) {
        (status, _) if status == "True" => Ok(()),
        (status, message) => Err(format!("{status}: {message}")),
    });
    println!("{form:?}: ready {:?} after the claims", start.elapsed());
    // What was written is written, in both versions, and the guide may be followed again.
    EAST.apply(&(form.claims(MEMBER, "test-cluster-east") + &set));
    for version in ["v1alpha1", "v1alpha2"] {
        let kind = format!("clustersets.{version}.multicluster.crd.antrea.io");
        let seen = EAST.get(MEMBER, &kind, SET).expect("the ClusterSet");
        assert_eq!(seen["spec"]["clusterID"], "test-cluster-east", "{seen}");
        if let Form::V1alpha1 = form {
            assert_eq!(
                seen["spec"]["members"][0]["clusterID"], "test-cluster-east",
                "{seen}"
            );
        }
    }
    let announce = LEADER.get(
        GUIDE,
        "memberclusterannounce",
        "member-announce-from-test-cluster-east",
    );
    assert_eq!(announce.expect("the announce")["clusterSetID"], SET);
    ns.export(EAST);
    ns.wait_imported(EAST, 1);
    let export = format!("test-cluster-east-{}-web-service", ns.0);
    assert!(
        LEADER.get(GUIDE, "resourceexport", &export).is_some(),
        "no {export}"
    );
    refusals();
    leave().expect("east leaves");
    LEADER.wait_gone(
        GUIDE,
        "memberclusterannounce",
        "member-announce-from-test-cluster-east",
        SOON,
    );
    LEADER.wait_gone(GUIDE, "resourceexport", &export, SOON);
    EAST.wait_gone(ns.0, "serviceimport", "web", SOON);
}

#[test]
fn the_older_guides_steps_work() {
    let former = Former::take();
    let ns = Namespace::create("e2e-claims");
    ns.serve(EAST, "east-n2", 1);
    deploy_leader();
    give_access();
    leave().expect("east leaves the set of before");
    LEADER.wait_gone(
        "antrea-multicluster",
        "memberclusterannounce",
        "member-announce-from-test-cluster-east",
        Duration::from_secs(10),
    );
    for form in [Form::V1alpha1, Form::V1alpha2] {
        join(form, &former, &ns);
    }
    // Without members the leader's goes, too.
    LEADER.wait_for("the end of the leader's ClusterSet", SOON, || {
        LEADER.try_kubectl(&["delete", "clusterset", SET, "-n", GUIDE])
    });
    former.restore().expect("east is what it was");
}
