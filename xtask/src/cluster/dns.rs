//! The DNS of a cluster: CoreDNS, for `cluster.local` and `clusterset.local`.

use std::time::Duration;

use anyhow::Result;

use super::{kubectl::Kubectl, topology::Cluster};
use crate::{
    cmd, images,
    wait::{Poll, wait_for},
};

const OBJECTS: &str = include_str!("dns.yaml");
/// CoreDNS is ready when it has listed all it watches, so this kind has to be there, installed or not.
const SERVICE_IMPORTS: &str = "deploy/crds/member/serviceimports.multicluster.x-k8s.io.yaml";
const NAMESPACE: &str = "kube-system";
const DEPLOYMENT: &str = "deployment/coredns";
const TIMEOUT: Duration = Duration::from_mins(2);

/// Creates it; the API server must be ready.
pub(crate) fn create(kubectl: &Kubectl, cluster: &Cluster) -> Result<()> {
    let crd = cmd::workspace().join(SERVICE_IMPORTS);
    cmd::output(kubectl.command().args(["apply", "--server-side", "-f"]).arg(&crd))?;
    let objects = objects(cluster);
    kubectl
        .output_with_input(&["apply", "--server-side", "-f", "-"], &objects)
        .map(drop)
}

/// Waits until it answers.
pub(crate) fn wait_ready(kubectl: &Kubectl, cluster: &Cluster) -> Result<()> {
    wait_for(&format!("CoreDNS of {}", cluster.name()), TIMEOUT, || {
        let status = kubectl.output(&["-n", NAMESPACE, "get", DEPLOYMENT, "-o", "jsonpath={.status}"])?;
        let ready = status.contains("\"availableReplicas\":1");
        Ok(if ready {
            Poll::Ready(())
        } else {
            Poll::Pending(status)
        })
    })
    .map_err(|error| {
        let or_error = |text: Result<String>| text.unwrap_or_else(|error| format!("{error:#}"));
        let pods = or_error(kubectl.output(&["-n", NAMESPACE, "get", "pods", "-o", "wide"]));
        let log = or_error(kubectl.output(&["-n", NAMESPACE, "logs", "--tail=20", DEPLOYMENT]));
        error.context(format!("{pods}\n{log}"))
    })
}

fn objects(cluster: &Cluster) -> String {
    OBJECTS
        .replace("CLUSTER_DNS", &cluster.dns().to_string())
        .replace("IMAGE", images::COREDNS)
}
