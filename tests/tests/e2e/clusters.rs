//! The clusters, and changes with kubectl as a user makes them.

use std::{
    env,
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use mc_tests::{counters::Counters, wait::wait_for};
use serde_json::{Value, json};

use crate::api;

/// The DaemonSet of the agents.
const AGENTS: &str = "daemonset/mc-gateway";
/// Timeout for operations of the control plane, on a machine that runs three clusters on two cores.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for Pod starts and image unpacking.
pub(crate) const LONG_TIMEOUT: Duration = Duration::from_mins(2);

/// The `ClusterSet` of the test clusters.
pub(crate) const SET: &str = "test-clusterset";
/// The Namespace of the members' own objects.
pub(crate) const MEMBER_NAMESPACE: &str = "kube-system";
/// The Namespace of the exchanged objects in the leader cluster.
pub(crate) const LEADER_NAMESPACE: &str = "antrea-multicluster";

/// A cluster, by its kubeconfig context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster(pub(crate) &'static str);

pub(crate) const LEADER: Cluster = Cluster("leader");
pub(crate) const EAST: Cluster = Cluster("east");
pub(crate) const WEST: Cluster = Cluster("west");

impl Cluster {
    pub(crate) fn command(self) -> Command {
        let variable = |name: &str| {
            env::var_os(name)
                .unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test --suite e2e`"))
        };
        let mut command = Command::new(variable("MC_KUBECTL"));
        command
            .arg("--kubeconfig")
            .arg(variable("MC_KUBECONFIG"))
            .args(["--context", self.0]);
        command
    }

    /// Runs kubectl; `Err` is its standard error.
    pub(crate) fn try_kubectl(self, args: &[&str]) -> Result<String, String> {
        let out = self.command().args(args).output().expect("kubectl");
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }

    /// The same with standard input.
    pub(crate) fn try_kubectl_stdin(self, args: &[&str], stdin: &str) -> Result<String, String> {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl");
        let sent = child.stdin.take().expect("stdin").write_all(stdin.as_bytes());
        // If kubectl exits before it has read everything, its output has the reason.
        sent.unwrap_or_default();
        let out = child.wait_with_output().expect("kubectl");
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }

    pub(crate) fn kubectl(self, args: &[&str]) -> String {
        self.try_kubectl(args)
            .unwrap_or_else(|error| panic!("{}: kubectl {}: {error}", self.0, args.join(" ")))
    }

    pub(crate) fn apply(self, yaml: &str) {
        let mut child = self
            .command()
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("kubectl");
        child
            .stdin
            .take()
            .expect("stdin")
            .write_all(yaml.as_bytes())
            .expect("write");
        assert!(
            child.wait().expect("kubectl").success(),
            "{}: apply\n{yaml}",
            self.0
        );
    }

    /// An object, or `None` if it does not exist.
    pub(crate) fn get(self, namespace: &str, kind: &str, name: &str) -> Option<Value> {
        api::get(self, namespace, kind, name)
            .unwrap_or_else(|error| panic!("{}: {kind} {namespace}/{name}: {error}", self.0))
    }

    pub(crate) fn list(self, namespace: &str, kind: &str, selector: &str) -> Vec<Value> {
        api::list(self, namespace, kind, selector)
            .unwrap_or_else(|error| panic!("{}: {kind} in {namespace}: {error}", self.0))
    }

    /// Waits until the object is gone; returns the time this took.
    pub(crate) fn wait_gone(self, namespace: &str, kind: &str, name: &str, deadline: Duration) -> Duration {
        let start = Instant::now();
        wait_for(
            &format!("{}: {kind} {namespace}/{name} gone", self.0),
            deadline,
            || {
                self.get(namespace, kind, name)
                    .map_or(Ok(()), |object| Err(object.to_string()))
            },
        )
        .expect("gone");
        start.elapsed()
    }

    pub(crate) fn wait_for<T>(
        self,
        what: &str,
        deadline: Duration,
        probe: impl FnMut() -> Result<T, String>,
    ) -> T {
        wait_for(&format!("{}: {what}", self.0), deadline, probe).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Sets a key of the member controller's configuration as in the user guide: ConfigMap, then restart.
    pub(crate) fn configure(self, key: &str, value: &str) {
        self.configure_in("kube-system", key, value);
    }

    /// The same for the controller in a Namespace.
    pub(crate) fn configure_in(self, namespace: &str, key: &str, value: &str) {
        let config = "antrea-mc-controller-config";
        let path = "jsonpath={.data.controller_manager_config\\.yaml}";
        let text = self.kubectl(&["get", "configmap", config, "-n", namespace, "-o", path]);
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !line.starts_with(&format!("{key}:")))
            .map(str::to_owned)
            .collect();
        lines.push(format!("{key}: {value}"));
        let changed =
            serde_json::json!({"data": {"controller_manager_config.yaml": lines.join("\n") + "\n"}});
        self.kubectl(&[
            "patch",
            "configmap",
            config,
            "-n",
            namespace,
            "-p",
            &changed.to_string(),
        ]);
        self.restart_controller(namespace);
    }

    /// Waits for the rollout of the agents.
    pub(crate) fn wait_agents(self) {
        let args = ["rollout", "status", AGENTS, "-n", "kube-system", "--timeout=120s"];
        self.kubectl(&args);
    }

    /// Adds a flag of the agents or removes it, and waits for the rollout.
    pub(crate) fn set_agent_flag(self, flag: &str, on: bool) {
        let path = "jsonpath={.spec.template.spec.containers[0].args}";
        let flags = self.kubectl(&["get", AGENTS, "-n", "kube-system", "-o", path]);
        let flags: Vec<String> = serde_json::from_str(&flags).expect("flags");
        let list = "/spec/template/spec/containers/0/args";
        let change = match flags.iter().position(|known| known == flag) {
            None if on => serde_json::json!([{ "op": "add", "path": format!("{list}/-"), "value": flag }]),
            Some(at) if !on => serde_json::json!([{ "op": "remove", "path": format!("{list}/{at}") }]),
            _ => return,
        };
        let change = change.to_string();
        self.kubectl(&["patch", AGENTS, "-n", "kube-system", "--type=json", "-p", &change]);
        self.wait_agents();
    }

    pub(crate) fn restart_controller(self, namespace: &str) {
        let deployment = "deployment/antrea-mc-controller";
        // kubectl rejects a second restart within the same second.
        self.wait_for("the restart of the controller", SHORT_TIMEOUT, || {
            self.try_kubectl(&["rollout", "restart", deployment, "-n", namespace])
        });
        self.kubectl(&["rollout", "status", deployment, "-n", namespace, "--timeout=120s"]);
    }

    /// A member's `ClusterSet`, without status and metadata of the API server: it can be applied again.
    pub(crate) fn member_cluster_set(self) -> Value {
        let set = self.get(MEMBER_NAMESPACE, "clusterset", SET);
        let set = set.expect("the cluster is a member");
        json!({
            "apiVersion": set["apiVersion"],
            "kind": "ClusterSet",
            "metadata": { "name": SET, "namespace": MEMBER_NAMESPACE },
            "spec": set["spec"],
        })
    }

    /// The controller's Pod that is not terminating.
    pub(crate) fn controller_pod(self, namespace: &str) -> Value {
        let mut pods = self.list(namespace, "pods", "component=antrea-mc-controller");
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods.pop().expect("a Pod of the controller")
    }

    /// Waits until the member controller that is not terminating has had its Lease for this time.
    pub(crate) fn wait_controller_age(self, wanted: SignedDuration) {
        self.wait_for(&format!("a controller for {wanted:?}"), LONG_TIMEOUT, || {
            let lease = self.get(MEMBER_NAMESPACE, "lease", "mc-controller-member");
            let lease = lease.unwrap_or_default();
            let pod = self.controller_pod(MEMBER_NAMESPACE);
            let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if !holder.contains(pod) {
                return Err(format!("{holder:?} has the Lease, not {pod:?}"));
            }
            let since = lease["spec"]["acquireTime"].as_str().unwrap_or_default();
            let since: Timestamp = since.parse().map_err(|error| format!("{since:?}: {error}"))?;
            let age = Timestamp::now().duration_since(since);
            if age >= wanted {
                Ok(())
            } else {
                Err(format!("{age:?}"))
            }
        });
    }

    /// The first internal address of a Node.
    pub(crate) fn node_ip(self, node: &str) -> String {
        let path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
        let all = self.kubectl(&["get", "node", node, "-o", path]);
        all.split(' ').next().unwrap_or_default().to_owned()
    }
}

/// Runs a program in the network namespace of a Node; `Err` is its standard error.
pub(crate) fn try_on_node(node: &str, program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &format!("mc-{node}"), program])
        .args(args);
    let out = command.output().expect("ip netns exec");
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// The same for a program that has to succeed.
pub(crate) fn on_node(node: &str, program: &str, args: &[&str]) -> String {
    try_on_node(node, program, args).unwrap_or_else(|error| panic!("{node}: {program} {args:?}: {error}"))
}

/// PID of the agent on a Node.
pub(crate) fn agent_pid(node: &str) -> u32 {
    let out = Command::new("ip")
        .args(["netns", "pids", &format!("mc-{node}")])
        .output()
        .expect("ip netns pids");
    String::from_utf8_lossy(&out.stdout)
        .split_whitespace()
        .find(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.starts_with("Name:\tmc-gateway\n")
        })
        .unwrap_or_else(|| panic!("no agent runs on {node}"))
        .parse()
        .expect("a pid")
}

/// The data-path counters of a Node.
pub(crate) fn counters(node: &str) -> Counters {
    // The pins are in the Node's own bpf file system.
    let dir = format!("/proc/{}/root/sys/fs/bpf/mc-gateway/{node}", agent_pid(node));
    Counters::read(dir.as_ref()).unwrap_or_else(|error| panic!("{node}: {error:#}"))
}
