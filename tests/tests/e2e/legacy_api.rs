//! The older Antrea guides, step by step: two `ClusterClaim`s and a `ClusterSet` v1alpha1 in each cluster.
//!
//! The guide's leader runs in a Namespace of its own; east leaves its ClusterSet, joins that leader, and returns.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, LEADER, LONG_TIMEOUT, MEMBER_NAMESPACE, SET, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

/// The leader's Namespace in the guide of v1.5.
const GUIDE_NAMESPACE: &str = "antrea-mcs-ns";
/// The leader's manifest; the guide replaces its Namespace with sed.
const MANIFEST: &str = include_str!("../../../deploy/mc-gateway-leader.yml");

/// API version of the claims: names are free in v1alpha1 (guide of v1.5), the property's name in v1alpha2 (v1.9).
#[derive(Clone, Copy, Debug)]
enum ClaimVersion {
    V1alpha1,
    V1alpha2,
}

impl ClaimVersion {
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
    fn cluster_set(self, secret: &str, server: &str) -> String {
        let members = match self {
            Self::V1alpha1 => "  members: [{clusterID: test-cluster-east}]\n",
            Self::V1alpha2 => "",
        };
        format!(
            "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterSet
metadata: {{name: {SET}, namespace: {MEMBER_NAMESPACE}}}
spec:
  leaders: [{{clusterID: test-cluster-north, secret: {secret}, server: {server:?}}}]
{members}  namespace: {GUIDE_NAMESPACE}
"
        )
    }
}

/// East's original membership, restored on drop.
struct OriginalMembership {
    set: Value,
    /// The annotated Nodes.
    gateways: Vec<String>,
    restored: RefCell<bool>,
}

impl OriginalMembership {
    fn save() -> Self {
        let gateways = EAST.list(MEMBER_NAMESPACE, "gateway", "");
        let name = |gateway: &Value| gateway["metadata"]["name"].as_str().map(str::to_owned);
        Self {
            set: EAST.member_cluster_set(),
            gateways: gateways.iter().filter_map(name).collect(),
            restored: RefCell::new(false),
        }
    }

    fn server(&self) -> &str {
        self.set["spec"]["leaders"][0]["server"]
            .as_str()
            .expect("the leader's URL")
    }

    /// Removes the objects of the guide and restores east's membership.
    fn restore(&self) -> Result<(), String> {
        leave()?;
        wait_none_left(LEADER, GUIDE_NAMESPACE, "memberclusterannounces")?;
        let namespace = [
            "delete",
            "namespace",
            GUIDE_NAMESPACE,
            "--ignore-not-found",
            "--wait=false",
        ];
        LEADER.try_kubectl(&namespace)?;
        for node in &self.gateways {
            let annotation = "multicluster.antrea.io/gateway=true";
            EAST.try_kubectl(&["annotate", "node", node, annotation, "--overwrite"])?;
        }
        EAST.try_kubectl_stdin(&["apply", "-f", "-"], &self.set.to_string())?;
        eventually(|| match condition(EAST).0.as_str() {
            "True" => Ok(()),
            other => Err(format!("east is not ready: {other}")),
        })?;
        for (cluster, other) in [(EAST, "west"), (WEST, "east")] {
            let info = format!("test-cluster-{other}-clusterinfo");
            eventually(|| cluster.try_kubectl(&["get", "clusterinfoimport", &info, "-n", MEMBER_NAMESPACE]))?;
        }
        *self.restored.borrow_mut() = true;
        Ok(())
    }
}

impl Drop for OriginalMembership {
    fn drop(&mut self) {
        if *self.restored.borrow() {
            return;
        }
        if let Err(error) = self.restore() {
            eprintln!("east is not restored: {error}");
        }
    }
}

/// Waits without panicking.
fn eventually<T>(mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let what = "the original state";
    mc_tests::wait::wait_for(what, LONG_TIMEOUT, &mut probe).map_err(|error| format!("{error:#}"))
}

/// Guide: "Delete all ServiceExports and the Multi-cluster Gateway annotation on the Gateway Nodes", "delete the
/// ClusterSet". The membership ends at once.
fn leave() -> Result<(), String> {
    EAST.try_kubectl(&["delete", "serviceexports", "--all", "--all-namespaces"])?;
    EAST.try_kubectl(&["annotate", "node", "--all", "multicluster.antrea.io/gateway-"])?;
    for kind in ["clusterset", "clusterclaims"] {
        EAST.try_kubectl(&["delete", kind, "--all", "-n", MEMBER_NAMESPACE])?;
    }
    Ok(())
}

/// Waits until no object of the kind is left.
fn wait_none_left(cluster: Cluster, namespace: &str, kind: &str) -> Result<(), String> {
    eventually(|| {
        let left = cluster.try_kubectl(&["get", kind, "-n", namespace, "-o", "name"])?;
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })
}

/// Status and message of the condition `Ready` of a member's `ClusterSet`.
fn condition(cluster: Cluster) -> (String, String) {
    let set = cluster
        .get(MEMBER_NAMESPACE, "clusterset", SET)
        .unwrap_or_default();
    let ready = &set["status"]["conditions"][0];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&ready["status"]), text(&ready["message"]))
}

/// Guide: "Deploy in a dedicated leader cluster", "Initialize ClusterSet"; two members with a ServiceAccount each.
fn deploy_leader() {
    LEADER.kubectl(&["create", "namespace", GUIDE_NAMESPACE]);
    LEADER.apply(&MANIFEST.replace("antrea-multicluster", GUIDE_NAMESPACE));
    let deployment = "deployment/antrea-mc-controller";
    LEADER.kubectl(&[
        "rollout",
        "status",
        deployment,
        "-n",
        GUIDE_NAMESPACE,
        "--timeout=120s",
    ]);
    LEADER.apply(&format!(
        "{}apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterSet
metadata: {{name: {SET}, namespace: {GUIDE_NAMESPACE}}}
spec:
  leaders: [{{clusterID: test-cluster-north}}]
  members:
  - {{clusterID: test-cluster-east, serviceAccount: member-east-access-sa}}
  - {{clusterID: test-cluster-west, serviceAccount: member-west-access-sa}}
  namespace: {GUIDE_NAMESPACE}
",
        ClaimVersion::V1alpha1.claims(GUIDE_NAMESPACE, "test-cluster-north")
    ));
    LEADER.wait_for("the leader's ID", SHORT_TIMEOUT, || {
        let set = LEADER.get(GUIDE_NAMESPACE, "clusterset", SET).unwrap_or_default();
        if set["spec"]["clusterID"] == "test-cluster-north"
            && set["status"]["conditions"][0]["status"] == "True"
        {
            Ok(())
        } else {
            Err(set.to_string())
        }
    });
}

/// Guide: "Setting up access to leader cluster"; the token of an account without annotation, copied to the member.
fn grant_access() {
    LEADER.apply(&format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: member-east-access-sa, namespace: {GUIDE_NAMESPACE}}}
---
apiVersion: v1
kind: Secret
metadata:
  name: member-east-access-token
  namespace: {GUIDE_NAMESPACE}
  annotations: {{kubernetes.io/service-account.name: member-east-access-sa}}
type: kubernetes.io/service-account-token
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: member-east-access-rolebinding, namespace: {GUIDE_NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: antrea-mc-member-cluster-role}}
subjects:
- {{kind: ServiceAccount, name: member-east-access-sa, namespace: {GUIDE_NAMESPACE}}}
"
    ));
    let data = LEADER.wait_for("the token", SHORT_TIMEOUT, || {
        let secret = LEADER
            .get(GUIDE_NAMESPACE, "secret", "member-east-access-token")
            .unwrap_or_default();
        match secret["data"]["token"] {
            Value::String(_) => Ok(secret["data"].clone()),
            _ => Err("no token".to_owned()),
        }
    });
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {"name": "member-east-access-token", "namespace": MEMBER_NAMESPACE},
    });
    EAST.apply(&copy.to_string());
    LEADER.wait_for("the account bound by spec.members", SHORT_TIMEOUT, || {
        let map = LEADER
            .get(GUIDE_NAMESPACE, "configmap", "antrea-mc-member-identities")
            .unwrap_or_default();
        if map["data"] == json!({"member-east-access-sa": "test-cluster-east"}) {
            Ok(())
        } else {
            Err(map["data"].to_string())
        }
    });
}

/// Changes that Antrea's webhooks deny are denied here, too.
fn check_denied_changes() {
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
            let patch = [
                "patch",
                &kind,
                SET,
                "-n",
                MEMBER_NAMESPACE,
                "--type=merge",
                "-p",
                patch,
            ];
            let reply = EAST.try_kubectl(&patch).expect_err("an ID changes");
            let right =
                reply.contains(field) && (reply.contains("may not change") || reply.contains("Required"));
            assert!(right, "{reply}");
        }
    }
    let other = |cluster: Cluster, namespace: &str| {
        let set = json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
            "metadata": {"name": "another", "namespace": namespace},
            "spec": {"clusterID": "a", "leaders": [{"clusterID": "b"}]},
        });
        cluster
            .try_kubectl_stdin(&["create", "-f", "-"], &set.to_string())
            .expect_err("a second ClusterSet")
    };
    for reply in [other(EAST, MEMBER_NAMESPACE), other(LEADER, GUIDE_NAMESPACE)] {
        assert!(
            reply.contains("ClusterSet test-clusterset is already in this Namespace"),
            "{reply}"
        );
    }
    let reply = LEADER
        .try_kubectl(&["delete", "clusterset", SET, "-n", GUIDE_NAMESPACE])
        .expect_err("it has a member");
    assert!(
        reply.contains("member-announce-from-test-cluster-east"),
        "{reply}"
    );
    let gateway = json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "Gateway",
        "metadata": {"name": "by-hand", "namespace": MEMBER_NAMESPACE}, "gatewayIP": "192.0.2.1", "internalIP": "192.0.2.1",
    });
    let reply = EAST
        .try_kubectl_stdin(&["create", "-f", "-"], &gateway.to_string())
        .expect_err("a Gateway by hand");
    assert!(reply.contains("annotate a Node"), "{reply}");
}

/// East joins with older objects, exports a Service, and leaves.
fn join(form: ClaimVersion, original: &OriginalMembership, ns: &Namespace) {
    let set = form.cluster_set("member-east-access-token", original.server());
    EAST.apply(&set);
    EAST.wait_for(
        "the condition that names the missing claim",
        SHORT_TIMEOUT,
        || {
            let (status, message) = condition(EAST);
            if status == "False" && message.contains("no ClusterClaim \"id.k8s.io\"") {
                Ok(())
            } else {
                Err(format!("{status}: {message}"))
            }
        },
    );
    let start = Instant::now();
    EAST.apply(&form.claims(MEMBER_NAMESPACE, "test-cluster-east"));
    EAST.wait_for("Ready", SHORT_TIMEOUT, || match condition(EAST) {
        (status, _) if status == "True" => Ok(()),
        (status, message) => Err(format!("{status}: {message}")),
    });
    println!("{form:?}: ready {:?} after the claims", start.elapsed());
    // Both versions show the resolved ID, and the guide's objects can be applied again.
    EAST.apply(&(form.claims(MEMBER_NAMESPACE, "test-cluster-east") + &set));
    for version in ["v1alpha1", "v1alpha2"] {
        let kind = format!("clustersets.{version}.multicluster.crd.antrea.io");
        let seen = EAST.get(MEMBER_NAMESPACE, &kind, SET).expect("the ClusterSet");
        assert_eq!(seen["spec"]["clusterID"], "test-cluster-east", "{seen}");
        if let ClaimVersion::V1alpha1 = form {
            assert_eq!(
                seen["spec"]["members"][0]["clusterID"], "test-cluster-east",
                "{seen}"
            );
        }
    }
    let announce = LEADER.get(
        GUIDE_NAMESPACE,
        "memberclusterannounce",
        "member-announce-from-test-cluster-east",
    );
    assert_eq!(announce.expect("the announce")["clusterSetID"], SET);
    ns.export(EAST);
    ns.wait_imported(EAST, 1);
    let export = format!("test-cluster-east-{}-web-service", ns.0);
    assert!(
        LEADER.get(GUIDE_NAMESPACE, "resourceexport", &export).is_some(),
        "no {export}"
    );
    check_denied_changes();
    leave().expect("east leaves");
    LEADER.wait_gone(
        GUIDE_NAMESPACE,
        "memberclusterannounce",
        "member-announce-from-test-cluster-east",
        SHORT_TIMEOUT,
    );
    LEADER.wait_gone(GUIDE_NAMESPACE, "resourceexport", &export, SHORT_TIMEOUT);
    EAST.wait_gone(ns.0, "serviceimport", "web", SHORT_TIMEOUT);
}

#[test]
fn the_steps_of_older_guides_work() {
    let original = OriginalMembership::save();
    let ns = Namespace::create("e2e-claims");
    ns.serve(EAST, "east-n2", 1);
    deploy_leader();
    grant_access();
    leave().expect("east leaves its original set");
    LEADER.wait_gone(
        "antrea-multicluster",
        "memberclusterannounce",
        "member-announce-from-test-cluster-east",
        Duration::from_secs(10),
    );
    for form in [ClaimVersion::V1alpha1, ClaimVersion::V1alpha2] {
        join(form, &original, &ns);
    }
    // The leader's ClusterSet can be deleted once it has no member.
    LEADER.wait_for("the end of the leader's ClusterSet", SHORT_TIMEOUT, || {
        LEADER.try_kubectl(&["delete", "clusterset", SET, "-n", GUIDE_NAMESPACE])
    });
    original.restore().expect("the original state of east");
}
