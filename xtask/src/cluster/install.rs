//! `cargo xtask cluster up --install`: applies the manifests and joins the clusters to one ClusterSet, following the
//! documentation.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{
    Layout, binaries,
    kubectl::Kubectl,
    topology::{Cluster, Topology},
    up,
};
use crate::{
    cmd, images,
    wait::{Poll, Progress, wait_for},
};

const CLUSTER_SET: &str = "test-clusterset";
const LEADER_NAMESPACE: &str = "antrea-multicluster";
const MEMBER_NAMESPACE: &str = "kube-system";
const CONTROLLER: &str = "deployment/antrea-mc-controller";
const GATEWAY: &str = "daemonset/mc-gateway";
const CONFIG_MAP: &str = "antrea-mc-controller-config";
const CONFIG_KEY: &str = "controller_manager_config.yaml";
const TIMEOUT: Duration = Duration::from_mins(2);

/// Endpoints of exported Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EndpointIpType {
    /// The exporting cluster's Service address.
    #[value(name = "ClusterIP")]
    ClusterIp,
    /// The addresses of the Pods.
    #[value(name = "PodIP")]
    PodIp,
}

impl EndpointIpType {
    fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::PodIp => "PodIP",
        }
    }
}

/// Settings of the members' controllers that differ from the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct Configuration {
    /// Endpoints of exported Services (with --install).
    #[arg(long, value_enum, requires = "install")]
    endpoint_ip_type: Option<EndpointIpType>,
    /// Drain period of gateways, such as 10s (with --install).
    #[arg(long, value_name = "DURATION", requires = "install")]
    gateway_drain_period: Option<String>,
}

// === impl Configuration ===

impl Configuration {
    /// With this drain period.
    pub(crate) fn with_drain_period(period: &str) -> Self {
        Self {
            gateway_drain_period: Some(period.to_owned()),
            ..Self::default()
        }
    }

    /// The configuration file with these values in it.
    fn apply_to(&self, config: &str) -> Result<String> {
        let mut value: serde_yaml_ng::Mapping = serde_yaml_ng::from_str(config).context(CONFIG_KEY)?;
        let former = value.clone();
        for (key, wanted) in [
            (
                "endpointIPType",
                self.endpoint_ip_type.map(EndpointIpType::as_str),
            ),
            ("gatewayDrainPeriod", self.gateway_drain_period.as_deref()),
        ] {
            if let Some(wanted) = wanted {
                value.insert(key.into(), wanted.into());
            }
        }
        if value == former {
            return Ok(config.to_owned());
        }
        Ok(serde_yaml_ng::to_string(&value)?)
    }
}

/// Builds and loads the images, applies the manifests, joins the clusters and waits for the imports.
pub(crate) fn install(
    layout: &Layout,
    topology: &Topology,
    configuration: &Configuration,
    progress: Progress,
) -> Result<()> {
    let Some((leader, members)) = topology.clusters().split_first() else {
        bail!("no clusters");
    };
    let tars = images::pack(&images::directory())?;
    progress.report("images built");
    up::load(layout, &tars, progress)?;
    let start = Progress::start();
    let installer = Installer {
        layout,
        program: binaries::kubectl()?,
        leader,
        configuration,
    };
    thread::scope(|scope| {
        let installer = &installer;
        let threads: Vec<_> = std::iter::once(scope.spawn(move || installer.leader()))
            .chain(
                members
                    .iter()
                    .map(|member| scope.spawn(move || installer.member(member))),
            )
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        })
    })?;
    progress.report("controllers and gateways run");
    for member in members {
        installer
            .join(member)
            .with_context(|| format!("joining {}", member.name()))?;
    }
    progress.report("ClusterSets created, gateways annotated");
    for cluster in topology.clusters() {
        installer.wait_ready(cluster)?;
    }
    for member in members {
        let others = members.iter().filter(|other| other.name() != member.name());
        installer.wait_imports(member, others)?;
    }
    progress.report(format_args!(
        "installed: {} members of {CLUSTER_SET} have imported each other, {:.1} s after the images",
        members.len(),
        start.seconds()
    ));
    Ok(())
}

/// Inputs of every step.
#[derive(Debug)]
struct Installer<'a> {
    layout: &'a Layout,
    program: PathBuf,
    leader: &'a Cluster,
    configuration: &'a Configuration,
}

// === impl Installer ===

impl Installer<'_> {
    fn kubectl(&self, cluster: &Cluster) -> Kubectl {
        Kubectl::new(&self.program, &self.layout.kubeconfig(), cluster.name())
    }

    fn leader(&self) -> Result<()> {
        let kubectl = self.kubectl(self.leader);
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEADER_NAMESPACE}});
        kubectl.apply(&[namespace])?;
        let renewed = is_installed(&kubectl, LEADER_NAMESPACE, CONTROLLER);
        apply_base(&kubectl, "leader")?;
        if renewed {
            restart(&kubectl, LEADER_NAMESPACE, CONTROLLER)?;
        }
        wait_rollout(&kubectl, LEADER_NAMESPACE, CONTROLLER)?;
        kubectl.apply(&[cluster_set(
            &cluster_id(self.leader),
            LEADER_NAMESPACE,
            None,
            &self.leader_id(),
        )])
    }

    fn member(&self, member: &Cluster) -> Result<()> {
        let kubectl = self.kubectl(member);
        let parts = [CONTROLLER, GATEWAY];
        let renewed = parts.map(|part| is_installed(&kubectl, MEMBER_NAMESPACE, part));
        apply_base(&kubectl, "member")?;
        apply_base(&kubectl, "gateway")?;
        let configured = configure(&kubectl, self.configuration)?;
        for (part, renewed) in parts.into_iter().zip(renewed) {
            if renewed || (configured && part == CONTROLLER) {
                restart(&kubectl, MEMBER_NAMESPACE, part)?;
            }
        }
        parts
            .iter()
            .try_for_each(|part| wait_rollout(&kubectl, MEMBER_NAMESPACE, part))
    }

    /// Grants a member access to the leader, creates its ClusterSet and annotates its gateway.
    fn join(&self, member: &Cluster) -> Result<()> {
        let (leader, kubectl) = (self.kubectl(self.leader), self.kubectl(member));
        let account = format!("member-{}", member.name());
        let secret = format!("{account}-token");
        leader.apply(&member_access(&account, &secret, &cluster_id(member)))?;
        let data = wait_for(&format!("the token in Secret {secret}"), TIMEOUT, || {
            let text = leader.output(&[
                "--namespace",
                LEADER_NAMESPACE,
                "get",
                "secret",
                &secret,
                "-o",
                "json",
            ])?;
            let object: Value = serde_json::from_str(&text).with_context(|| secret.clone())?;
            Ok(match object.pointer("/data/token") {
                Some(_) => Poll::Ready(object.get("data").cloned().unwrap_or_default()),
                None => Poll::Pending("no token".to_owned()),
            })
        })?;
        let copy = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "namespace": MEMBER_NAMESPACE},
            "type": "Opaque",
            "data": data,
        });
        let access = Some((secret.as_str(), self.leader.api_url()));
        let set = cluster_set(&cluster_id(member), MEMBER_NAMESPACE, access, &self.leader_id());
        kubectl.apply(&[copy, set])?;
        let gateway = member
            .nodes()
            .next()
            .with_context(|| format!("{} has no nodes", member.name()))?;
        let annotation = "multicluster.antrea.io/gateway=true";
        kubectl
            .output(&["annotate", "--overwrite", "node", gateway.name(), annotation])
            .map(drop)
    }

    /// Waits for the cluster's ClusterSet to be ready.
    fn wait_ready(&self, cluster: &Cluster) -> Result<()> {
        let kubectl = self.kubectl(cluster);
        let namespace = self.namespace(cluster);
        wait_for(
            &format!("ClusterSet {CLUSTER_SET} of {} to be Ready", cluster.name()),
            TIMEOUT,
            || {
                let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} {.status}";
                let text =
                    kubectl.output(&["-n", namespace, "get", "clusterset", CLUSTER_SET, "-o", path])?;
                Ok(if text.starts_with("True ") {
                    Poll::Ready(())
                } else {
                    Poll::Pending(text)
                })
            },
        )
    }

    /// Waits until a member has imported the others.
    fn wait_imports<'c>(&self, member: &Cluster, others: impl Iterator<Item = &'c Cluster>) -> Result<()> {
        let kubectl = self.kubectl(member);
        let wanted: Vec<_> = others
            .map(|other| format!("{}-clusterinfo", cluster_id(other)))
            .collect();
        wait_for(
            &format!("ClusterInfoImports {} in {}", wanted.join(", "), member.name()),
            TIMEOUT,
            || {
                let text =
                    kubectl.output(&["-n", MEMBER_NAMESPACE, "get", "clusterinfoimport", "-o", "name"])?;
                let names: Vec<_> = text.lines().filter_map(|line| line.rsplit('/').next()).collect();
                let all = wanted.iter().all(|name| names.contains(&name.as_str()));
                Ok(if all {
                    Poll::Ready(())
                } else {
                    Poll::Pending(names.join(", "))
                })
            },
        )
    }

    fn namespace(&self, cluster: &Cluster) -> &'static str {
        if cluster.name() == self.leader.name() {
            LEADER_NAMESPACE
        } else {
            MEMBER_NAMESPACE
        }
    }

    /// The leader's cluster ID.
    fn leader_id(&self) -> String {
        cluster_id(self.leader)
    }
}

/// The cluster ID in the ClusterSet.
fn cluster_id(cluster: &Cluster) -> String {
    // The documentation's name for the leader of its examples.
    let name = if cluster.name() == "leader" {
        "north"
    } else {
        cluster.name()
    };
    format!("test-cluster-{name}")
}

/// A member's ServiceAccount in the leader cluster, with its token and role binding.
fn member_access(account: &str, secret: &str, id: &str) -> [Value; 3] {
    [
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "name": account,
                "namespace": LEADER_NAMESPACE,
                "annotations": {"multicluster.antrea.io/cluster-id": id},
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": secret,
                "namespace": LEADER_NAMESPACE,
                "annotations": {"kubernetes.io/service-account.name": account},
            },
            "type": "kubernetes.io/service-account-token",
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": account, "namespace": LEADER_NAMESPACE},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "antrea-mc-member-cluster-role",
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": LEADER_NAMESPACE}],
        }),
    ]
}

/// A ClusterSet object; a member's has the leader's URL and the Secret with the token.
fn cluster_set(id: &str, namespace: &str, access: Option<(&str, String)>, leader: &str) -> Value {
    let mut entry = json!({"clusterID": leader});
    let mut spec = json!({"clusterID": id});
    if let (Some((secret, server)), Some(entry), Some(spec)) =
        (access, entry.as_object_mut(), spec.as_object_mut())
    {
        entry.insert("secret".into(), secret.into());
        entry.insert("server".into(), server.into());
        spec.insert("namespace".into(), LEADER_NAMESPACE.into());
    }
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("leaders".into(), json!([entry]));
    }
    json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha2",
        "kind": "ClusterSet",
        "metadata": {"name": CLUSTER_SET, "namespace": namespace},
        "spec": spec,
    })
}

fn apply_base(kubectl: &Kubectl, base: &str) -> Result<()> {
    let path = cmd::workspace().join("deploy/base").join(base);
    let mut command = kubectl.command();
    cmd::output(
        command
            .args(["apply", "--server-side", "--force-conflicts", "-k"])
            .arg(path),
    )?;
    kubectl
        .output(&[
            "wait",
            "--for=condition=Established",
            "--timeout=30s",
            "crd",
            "--all",
        ])
        .map(drop)
}

fn is_installed(kubectl: &Kubectl, namespace: &str, part: &str) -> bool {
    kubectl.output(&["-n", namespace, "get", part]).is_ok()
}

/// Restarts a workload: rebuilt images keep their tag, so only new Pods run them.
fn restart(kubectl: &Kubectl, namespace: &str, part: &str) -> Result<()> {
    kubectl
        .output(&["-n", namespace, "rollout", "restart", part])
        .map(drop)
}

/// Waits for a rollout; on failure the error has the Pods and their logs.
fn wait_rollout(kubectl: &Kubectl, namespace: &str, part: &str) -> Result<()> {
    let timeout = format!("--timeout={}s", TIMEOUT.as_secs());
    let result = kubectl
        .output(&["-n", namespace, "rollout", "status", part, &timeout])
        .map(drop);
    result.map_err(|error| {
        let pods = kubectl.output(&["-n", namespace, "get", "pods", "-o", "wide"]);
        let logs = kubectl.output(&["-n", namespace, "logs", "--tail=20", part]);
        let or_error = |text: Result<String>| text.unwrap_or_else(|error| format!("{error:#}"));
        error.context(format!("{part}\n{}\n{}", or_error(pods), or_error(logs)))
    })
}

/// Configures a member's controller; returns whether the configuration changed.
fn configure(kubectl: &Kubectl, configuration: &Configuration) -> Result<bool> {
    let text = kubectl.output(&[
        "-n",
        MEMBER_NAMESPACE,
        "get",
        "configmap",
        CONFIG_MAP,
        "-o",
        "json",
    ])?;
    let object: Value = serde_json::from_str(&text).context(CONFIG_MAP)?;
    let former = object
        .get("data")
        .and_then(|data| data.get(CONFIG_KEY))
        .and_then(Value::as_str);
    let former = former.with_context(|| format!("ConfigMap {CONFIG_MAP} has no key {CONFIG_KEY}"))?;
    let new = configuration.apply_to(former)?;
    if new == former {
        return Ok(false);
    }
    let patch = json!({"data": {CONFIG_KEY: new}}).to_string();
    kubectl.output(&[
        "-n",
        MEMBER_NAMESPACE,
        "patch",
        "configmap",
        CONFIG_MAP,
        "--type=merge",
        "-p",
        &patch,
    ])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_sets_are_those_of_the_documentation() {
        let leader = cluster_set("test-cluster-north", LEADER_NAMESPACE, None, "test-cluster-north");
        assert_eq!(
            leader["spec"],
            json!({"clusterID": "test-cluster-north", "leaders": [{"clusterID": "test-cluster-north"}]})
        );
        let access = Some(("member-east-token", "https://172.30.1.254:6443".to_owned()));
        let east = cluster_set(
            "test-cluster-east",
            MEMBER_NAMESPACE,
            access,
            "test-cluster-north",
        );
        assert_eq!(
            east["spec"],
            json!({
                "clusterID": "test-cluster-east",
                "leaders": [{
                    "clusterID": "test-cluster-north",
                    "secret": "member-east-token",
                    "server": "https://172.30.1.254:6443",
                }],
                "namespace": "antrea-multicluster",
            })
        );
    }

    #[test]
    fn only_differences_change_the_configuration() {
        let config = "kind: MultiClusterConfig\nendpointIPType: \"ClusterIP\" # the default\n";
        let wanted = |endpoints, drain: Option<&str>| Configuration {
            endpoint_ip_type: endpoints,
            gateway_drain_period: drain.map(str::to_owned),
        };
        for same in [wanted(None, None), wanted(Some(EndpointIpType::ClusterIp), None)] {
            assert_eq!(same.apply_to(config).unwrap(), config);
        }
        let changed = wanted(Some(EndpointIpType::PodIp), Some("10s"))
            .apply_to(config)
            .unwrap();
        let value: serde_yaml_ng::Value = serde_yaml_ng::from_str(&changed).unwrap();
        assert_eq!(value["endpointIPType"], "PodIP");
        assert_eq!(value["gatewayDrainPeriod"], "10s");
        assert_eq!(value["kind"], "MultiClusterConfig");
    }
}
