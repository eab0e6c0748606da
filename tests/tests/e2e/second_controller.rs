//! A second member controller with the ID, the token and the ClusterSet of a cluster, which exports less: it yields,
//! and the objects of the first one remain.

use std::{
    env,
    fs::{self, File},
    process::{Child, Command, Stdio},
};

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::{
    clusters::{EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, MEMBER_NAMESPACE, SET, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

const SECRET: &str = "member-west-token";
const ANNOUNCE: &str = "member-announce-from-test-cluster-west";
/// The Namespace of the second controller.
const SECOND: &str = "e2e-second";
/// Longer than the time after which an instance has precedence (20 s).
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(25);
/// No Namespace but its own is open for exports.
const CONFIG: &str = "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: MultiClusterConfig
namespacePolicy: Strict
allowedNamespaces: [e2e-second]
";

/// The second controller, as a process on this machine; killed on drop.
struct SecondController {
    process: Child,
    log: std::path::PathBuf,
}

impl SecondController {
    fn start() -> Self {
        let directory = env::temp_dir().join(format!("mc-second-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let kubeconfig = WEST.kubectl(&["config", "view", "--raw", "--minify", "--flatten"]);
        let write = |name: &str, content: &str| {
            let path = directory.join(name);
            fs::write(&path, content).expect("a file");
            path
        };
        let (kubeconfig, config) = (write("kubeconfig", &kubeconfig), write("config", CONFIG));
        let log = directory.join("log");
        let program =
            env::var_os("MC_CONTROLLER").expect("MC_CONTROLLER: run `cargo xtask test --suite e2e`");
        let process = Command::new(program)
            .arg("member")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--config")
            .arg(config)
            .args([
                "--namespace",
                SECOND,
                "--health-probe-bind-address=0",
                "--metrics-bind-address=0",
            ])
            .stdout(File::create(&log).expect("a log file"))
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a process");
        Self { process, log }
    }
}

impl Drop for SecondController {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait().map(drop)) {
            println!("second controller: {error}");
        }
        if let Some(Err(error)) = self.log.parent().map(fs::remove_dir_all) {
            println!("{}: {error}", self.log.display());
        }
    }
}

/// Status, reason and last change of the condition `Ready` of west's ClusterSet in a Namespace.
fn ready(namespace: &str) -> [Value; 3] {
    let set = WEST.get(namespace, "clusterset", SET).unwrap_or_default();
    let conditions = set["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ready = conditions
        .into_iter()
        .find(|condition| condition["type"] == "Ready");
    let ready = ready.unwrap_or_default();
    ["status", "reason", "lastTransitionTime"].map(|field| ready[field].clone())
}

/// The UIDs of the first controller's objects: announce, export, and the imported Service in east.
fn uids(ns: &Namespace) -> [Option<Value>; 3] {
    let uid = |object: Option<Value>| object.map(|object| object["metadata"]["uid"].clone());
    let export = format!("test-cluster-west-{}-web-service", ns.0);
    [
        uid(LEADER.get(LEADER_NAMESPACE, "memberclusterannounces", ANNOUNCE)),
        uid(LEADER.get(LEADER_NAMESPACE, "resourceexports", &export)),
        uid(EAST.get(ns.0, "service", "antrea-mc-web")),
    ]
}

/// Copies token and ClusterSet into the Namespace of the second controller.
fn join() {
    let secret = WEST
        .get(MEMBER_NAMESPACE, "secret", SECRET)
        .expect("west's token");
    let mut set = WEST.member_cluster_set();
    set["metadata"]["namespace"] = json!(SECOND);
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": SECRET, "namespace": SECOND },
        "data": secret["data"],
    });
    WEST.apply(&format!("{copy}\n---\n{set}\n"));
}

#[test]
fn a_second_controller_of_a_cluster_yields_to_the_first() {
    let ns = Namespace::create("e2e-second-web");
    let _second = Namespace::create_in(SECOND, &[WEST]);
    ns.serve(WEST, "west-n1", 1);
    ns.export(WEST);
    let endpoints = ns.wait_imported(EAST, 1);
    let (before, first) = (uids(&ns), ready(MEMBER_NAMESPACE));
    assert!(before.iter().all(Option::is_some), "{before:?}");
    assert_eq!(first[0], "True", "{first:?}");
    WEST.wait_controller_age(SETTLED_AFTER);
    join();
    let _controller = SecondController::start();
    WEST.wait_for("the second controller yields", SHORT_TIMEOUT, || {
        match ready(SECOND) {
            [status, reason, _] if status == "False" && reason == "ClonedCluster" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    // It leaves: the announce is not its own.
    WEST.kubectl(&["-n", SECOND, "delete", "clusterset", SET]);
    WEST.wait_gone(SECOND, "configmap", "mc-gateway-memberships", LONG_TIMEOUT);
    assert_eq!(uids(&ns), before);
    assert_eq!(ready(MEMBER_NAMESPACE), first, "the first controller goes on");
    assert_eq!(ns.wait_imported(EAST, 1), endpoints);
}
