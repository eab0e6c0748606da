//! A leader cluster that is also a member of its own ClusterSet, as in the guide's sections "Deploy leader and member
//! in one cluster" and "Initialize ClusterSet for a dual-role cluster".
//!
//! It has one Node and one IP family; the other members have two of each.

use serde_json::{Value, json};

use crate::{
    clusters::{
        Cluster, EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, MEMBER_NAMESPACE, SET, SHORT_TIMEOUT, WEST,
    },
    workload::{Client, Namespace},
};

const ID: &str = "test-cluster-north";
const NODE: &str = "leader-n1";
const SECRET: &str = "member-north-token";
const SECRET_OF_EAST: &str = "member-east-token";
/// Manifests of a member cluster.
const MANIFESTS: [&str; 2] = [
    include_str!("../../../deploy/mc-gateway-member.yml"),
    include_str!("../../../deploy/mc-gateway-datapath.yml"),
];
/// Documents that stay: the leader needs some of them, and unused CRDs have no effect.
const KEPT_DOCUMENTS: [&str; 2] = ["kind: CustomResourceDefinition", "name: antrea-mc-clustersets"];

/// The leader cluster's membership, ended on drop.
struct LeaderMembership;

impl LeaderMembership {
    /// Guide: "Follow the steps in section Deploy in a Member Cluster".
    fn install() -> Self {
        for manifest in MANIFESTS {
            LEADER.apply(manifest);
        }
        let membership = Self;
        for workload in ["deployment/antrea-mc-controller", "daemonset/mc-gateway"] {
            LEADER.kubectl(&[
                "rollout",
                "status",
                workload,
                "-n",
                MEMBER_NAMESPACE,
                "--timeout=120s",
            ]);
        }
        membership
    }

    /// Guide: "repeat the steps in Set up Access to Leader Cluster", and annotate the Node.
    fn join() {
        LEADER.apply(&access());
        let data = LEADER.wait_for("the token", SHORT_TIMEOUT, || {
            let secret = LEADER.get(LEADER_NAMESPACE, "secret", SECRET).unwrap_or_default();
            match secret["data"]["token"] {
                Value::String(_) => Ok(secret["data"].clone()),
                _ => Err("no token".to_owned()),
            }
        });
        let copy = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
            "metadata": {"name": SECRET, "namespace": MEMBER_NAMESPACE},
        });
        LEADER.apply(&copy.to_string());
        let others = EAST
            .get(MEMBER_NAMESPACE, "clusterset", SET)
            .expect("east is a member");
        let server = &others["spec"]["leaders"][0]["server"];
        let set = json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
            "metadata": {"name": SET, "namespace": MEMBER_NAMESPACE},
            "spec": {
                "clusterID": ID, "namespace": LEADER_NAMESPACE,
                "leaders": [{"clusterID": ID, "secret": SECRET, "server": server}],
            },
        });
        LEADER.apply(&set.to_string());
        annotate("multicluster.antrea.io/gateway=true").expect("a gateway");
    }

    /// Leaves the ClusterSet and removes the member's components.
    fn leave() -> Result<(), String> {
        let gone = ["--ignore-not-found", "-n", MEMBER_NAMESPACE];
        LEADER.try_kubectl(&["delete", "serviceexports", "--all", "--all-namespaces"])?;
        annotate("multicluster.antrea.io/gateway-")?;
        LEADER.try_kubectl(&[&["delete", "clusterset", SET][..], &gone].concat())?;
        eventually(|| {
            let announce = format!("member-announce-from-{ID}");
            let found = LEADER.get(LEADER_NAMESPACE, "memberclusterannounce", &announce);
            let record = LEADER.get(MEMBER_NAMESPACE, "configmap", "mc-gateway-memberships");
            match found.or(record) {
                None => Ok(()),
                Some(left) => Err(left.to_string()),
            }
        })?;
        eventually(|| match &LEADER.list(MEMBER_NAMESPACE, "gateway", "")[..] {
            [] => Ok(()),
            left => Err(format!("{left:?}")),
        })?;
        let of_members = |document: &&str| !KEPT_DOCUMENTS.iter().any(|line| document.contains(line));
        for manifest in MANIFESTS {
            let documents: Vec<_> = manifest.split("\n---\n").filter(of_members).collect();
            let args = ["delete", "--ignore-not-found", "-f", "-"];
            LEADER.try_kubectl_stdin(&args, &documents.join("\n---\n"))?;
        }
        LEADER.try_kubectl(&[&["delete", "secret", SECRET, SECRET_OF_EAST][..], &gone].concat())?;
        LEADER.try_kubectl_stdin(&["delete", "--ignore-not-found", "-f", "-"], &access())?;
        wait_ready(LEADER, LEADER_NAMESPACE, 2)
    }
}

impl Drop for LeaderMembership {
    fn drop(&mut self) {
        if let Err(error) = Self::leave() {
            eprintln!("the leader is not restored: {error}");
            assert!(std::thread::panicking(), "the leader is not restored: {error}");
        }
    }
}

fn annotate(annotation: &str) -> Result<(), String> {
    let args = ["annotate", "--overwrite", "node", NODE, annotation];
    LEADER.try_kubectl(&args).map(drop)
}

/// Waits without panicking.
fn eventually<T>(mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    mc_tests::wait::wait_for("the leader's original state", LONG_TIMEOUT, &mut probe)
        .map_err(|error| format!("{error:#}"))
}

/// The guide's ServiceAccount with token, bound to the cluster ID.
fn access() -> String {
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata:
  name: member-north
  namespace: {LEADER_NAMESPACE}
  annotations: {{multicluster.antrea.io/cluster-id: {ID}}}
---
apiVersion: v1
kind: Secret
metadata:
  name: {SECRET}
  namespace: {LEADER_NAMESPACE}
  annotations: {{kubernetes.io/service-account.name: member-north}}
type: kubernetes.io/service-account-token
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: member-north, namespace: {LEADER_NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: antrea-mc-member-cluster-role}}
subjects:
- {{kind: ServiceAccount, name: member-north, namespace: {LEADER_NAMESPACE}}}
"
    )
}

/// Waits until a `ClusterSet` is ready; for a leader with this number of members.
fn wait_ready(cluster: Cluster, namespace: &str, members: u64) -> Result<(), String> {
    eventually(|| {
        let status = cluster
            .get(namespace, "clusterset", SET)
            .map(|set| set["status"].clone())
            .unwrap_or_default();
        let counted = namespace != LEADER_NAMESPACE
            || [&status["totalClusters"], &status["readyClusters"]].map(Value::as_u64) == [Some(members); 2];
        if counted && status["conditions"][0]["status"] == "True" {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
}

/// Waits for the other cluster's ClusterInfoImport.
fn wait_known(cluster: Cluster, other: &str) {
    let info = format!("test-cluster-{other}-clusterinfo");
    cluster.wait_for(&info, LONG_TIMEOUT, || {
        let found = cluster.get(MEMBER_NAMESPACE, "clusterinfoimport", &info);
        found.map(drop).ok_or_else(|| "missing".to_owned())
    });
}

/// Every request is answered, in the end with the client's own address: until the gateway has the export, its service
/// proxy answers.
fn check_answers(client: Client) {
    let (url, ip) = (client.imported_url(), client.ip());
    client.get(&url);
    LEADER.wait_for(
        "answers that name the client's own address",
        SHORT_TIMEOUT,
        || {
            let answers = client.get_many(&url, 20);
            let kept = answers.iter().all(|answer| answer.ends_with(&format!(" {ip}")));
            if kept { Ok(()) } else { Err(format!("{answers:?}")) }
        },
    );
}

/// A Service without a supported IP family is reported as such.
fn check_unsupported_family(ns: &Namespace) {
    EAST.apply(&format!(
        "apiVersion: v1
kind: Service
metadata: {{name: six, namespace: {0}}}
spec:
  selector: {{app: web}}
  ipFamilies: [IPv6]
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {{name: six, namespace: {0}}}
",
        ns.0
    ));
    LEADER.wait_for("ServiceImport six that is not ready", SHORT_TIMEOUT, || {
        let import = LEADER.get(ns.0, "serviceimport", "six").unwrap_or_default();
        let mut conditions = import["status"]["conditions"].as_array().into_iter().flatten();
        match conditions.find(|c| c["type"] == "Ready") {
            Some(ready) if ready["reason"] == "IPFamilyNotSupported" => Ok(()),
            _ => Err(import.to_string()),
        }
    });
}

/// UIDs of east's announce, of its export and of the Service imported from it.
fn objects_of_east(ns: &Namespace) -> [Option<Value>; 3] {
    let export = format!("test-cluster-east-{}-web-service", ns.0);
    [
        LEADER.get(
            LEADER_NAMESPACE,
            "memberclusterannounce",
            "member-announce-from-test-cluster-east",
        ),
        LEADER.get(LEADER_NAMESPACE, "resourceexport", &export),
        WEST.get(ns.0, "service", "antrea-mc-web"),
    ]
    .map(|object| object.map(|object| object["metadata"]["uid"].clone()))
}

/// The leader cluster as a copy of east, with its `ClusterSet` and its token as from a backup of these objects: east
/// loses nothing while the copy runs, and nothing when it leaves.
fn check_copy_of_east(ns: &Namespace) {
    ns.serve(EAST, "east-n2", 1);
    ns.export(EAST);
    ns.wait_imported(WEST, 1);
    let before = objects_of_east(ns);
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let set = EAST.member_cluster_set();
    let secret = set["spec"]["leaders"][0]["secret"].as_str().expect("a Secret");
    assert_eq!(secret, SECRET_OF_EAST);
    let data = EAST.get(MEMBER_NAMESPACE, "secret", secret).expect("the token")["data"].clone();
    LEADER.apply(&format!(
        "{}\n---\n{set}\n",
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
            "metadata": {"name": secret, "namespace": MEMBER_NAMESPACE},
        })
    ));
    LEADER.wait_for("the copy is recognised", SHORT_TIMEOUT, || {
        let set = LEADER
            .get(MEMBER_NAMESPACE, "clusterset", SET)
            .unwrap_or_default();
        let status = &set["status"];
        let ready = &status["conditions"][0];
        if ready["status"] == "False" && ready["reason"] == "ClonedCluster" {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    LEADER.kubectl(&["delete", "clusterset", SET, "-n", MEMBER_NAMESPACE]);
    // The record ends once the deregistration is confirmed.
    LEADER.wait_gone(
        MEMBER_NAMESPACE,
        "configmap",
        "mc-gateway-memberships",
        LONG_TIMEOUT,
    );
    assert_eq!(objects_of_east(ns), before);
    wait_ready(EAST, MEMBER_NAMESPACE, 2).expect("east is ready");
    ns.unexport(EAST);
    WEST.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
}

#[test]
fn a_leader_cluster_can_be_a_member_too() {
    let ns = Namespace::create_in("e2e-dual-role", &[LEADER, EAST, WEST]);
    {
        let _north = LeaderMembership::install();
        check_copy_of_east(&ns);
        LeaderMembership::join();
        wait_ready(LEADER, MEMBER_NAMESPACE, 3).expect("a member that is ready");
        wait_ready(LEADER, LEADER_NAMESPACE, 3).expect("a leader of three members");
        for (cluster, other) in [
            (LEADER, "east"),
            (LEADER, "west"),
            (EAST, "north"),
            (WEST, "north"),
        ] {
            wait_known(cluster, other);
        }
        // Both directions, between one single-stack Node and regular dual-stack Nodes.
        ns.serve(LEADER, NODE, 1);
        ns.serve(EAST, "east-n2", 1);
        ns.export(LEADER);
        let from_west = ns.client(WEST, "west-n2");
        ns.wait_imported(WEST, 1);
        check_answers(from_west);
        ns.unexport(LEADER);
        for cluster in [LEADER, WEST] {
            cluster.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
        }
        let both = r#"{"spec":{"ipFamilyPolicy":"PreferDualStack"}}"#;
        EAST.kubectl(&["patch", "service", "web", "-n", ns.0, "-p", both]);
        ns.export(EAST);
        let from_north = ns.client(LEADER, NODE);
        // Slices of both families; the single-stack cluster uses its own.
        ns.wait_imported(LEADER, 2);
        let service = LEADER.get(ns.0, "service", "antrea-mc-web").expect("a Service");
        assert_eq!(service["spec"]["ipFamilies"], json!(["IPv4"]), "{service}");
        check_answers(from_north);
        check_unsupported_family(&ns);
        let reply = LEADER
            .try_kubectl(&["delete", "clusterset", SET, "-n", LEADER_NAMESPACE])
            .expect_err("the leader's ClusterSet has members, this cluster among them");
        assert!(reply.contains("still has members"), "{reply}");
    }
    assert!(
        LEADER
            .get(LEADER_NAMESPACE, "deployment", "antrea-mc-controller")
            .is_some()
    );
    for other in [EAST, WEST] {
        other.wait_gone(
            MEMBER_NAMESPACE,
            "clusterinfoimport",
            "test-cluster-north-clusterinfo",
            SHORT_TIMEOUT,
        );
    }
}
