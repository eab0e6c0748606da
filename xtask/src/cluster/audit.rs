//! Audit logs of the API servers: requests of the project's ServiceAccounts only.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{process::write, topology::Topology};

/// Name of the log in the control plane's directory; rotated files have a timestamp in their names.
const LOG: &str = "audit.log";

/// Metadata only. A watch is logged at its begin (`ResponseStarted`), since many outlive the tests.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
omitStages: [RequestReceived]
rules:
- level: Metadata
  users:
  - system:serviceaccount:kube-system:antrea-mc-controller
  - system:serviceaccount:kube-system:mc-gateway
# The leader's controller, and the accounts of its members; the second Namespace is that of the legacy guide.
- level: Metadata
  userGroups:
  - system:serviceaccounts:antrea-multicluster
  - system:serviceaccounts:antrea-mcs-ns
- level: None
";

/// Writes the policy and returns the API server's flags.
pub(crate) fn flags(directory: &Path) -> Result<Vec<String>> {
    let policy = directory.join("audit-policy.yaml");
    write(&policy, POLICY)?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", directory.join(LOG).display()),
        // In MiB; a run of all tests writes some tens.
        "--audit-log-maxsize=100".into(),
        "--audit-log-maxbackup=4".into(),
    ])
}

/// All parts of the logs of all clusters.
pub(crate) fn logs(directory: &Path, topology: &Topology) -> Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for cluster in topology.clusters() {
        let directory = directory.join(cluster.control_plane());
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry.with_context(|| directory.display().to_string())?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let ours = name == "audit" || name.starts_with("audit-");
            if ours && path.extension().is_some_and(|extension| extension == "log") {
                logs.push(path);
            }
        }
    }
    logs.sort();
    Ok(logs)
}
