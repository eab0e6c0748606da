//! Kubeconfig files: one per user, and the merged one for kubectl.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::{pki::CertificateFiles, topology::Cluster};

/// A kubeconfig file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Kubeconfig {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    clusters: Vec<Named<ClusterEntry>>,
    users: Vec<Named<UserEntry>>,
    contexts: Vec<Named<ContextEntry>>,
    current_context: String,
}

/// A list item of a kubeconfig: a name and a payload under its own key.
#[derive(Debug, Serialize)]
struct Named<T> {
    name: String,
    #[serde(flatten)]
    entry: T,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ClusterEntry {
    #[serde(rename_all = "kebab-case")]
    Cluster {
        server: String,
        certificate_authority: String,
    },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum UserEntry {
    #[serde(rename_all = "kebab-case")]
    User {
        client_certificate: String,
        client_key: String,
    },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ContextEntry {
    Context { cluster: String, user: String },
}

// === impl Kubeconfig ===

impl Kubeconfig {
    /// The kubeconfig of a user of `cluster`.
    pub(crate) fn new(cluster: &Cluster, authority: &Path, identity: &CertificateFiles) -> Self {
        let name = cluster.name().to_owned();
        Self {
            api_version: "v1",
            kind: "Config",
            clusters: vec![Named {
                name: name.clone(),
                entry: ClusterEntry::Cluster {
                    server: cluster.api_url(),
                    certificate_authority: authority.display().to_string(),
                },
            }],
            users: vec![Named {
                name: name.clone(),
                entry: UserEntry::User {
                    client_certificate: identity.certificate.display().to_string(),
                    client_key: identity.key.display().to_string(),
                },
            }],
            contexts: vec![Named {
                name: name.clone(),
                entry: ContextEntry::Context {
                    cluster: name.clone(),
                    user: name.clone(),
                },
            }],
            current_context: name,
        }
    }

    /// One file with the contexts of all; the first context is the current one.
    pub(crate) fn merge(files: impl IntoIterator<Item = Self>) -> Option<Self> {
        files.into_iter().reduce(|mut merged, file| {
            merged.clusters.extend(file.clusters);
            merged.users.extend(file.users);
            merged.contexts.extend(file.contexts);
            merged
        })
    }

    /// The file's text.
    pub(crate) fn to_yaml(&self) -> Result<String> {
        Ok(serde_yaml_ng::to_string(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::Topology;

    #[test]
    fn the_merged_file_has_every_context_once() {
        let topology = Topology::default();
        let files = topology.clusters().iter().map(|cluster| {
            let base = Path::new("/state").join(cluster.name());
            let identity = CertificateFiles {
                certificate: base.join("admin.crt"),
                key: base.join("admin.key"),
            };
            Kubeconfig::new(cluster, &base.join("ca.crt"), &identity)
        });
        let text = Kubeconfig::merge(files).unwrap().to_yaml().unwrap();
        let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap();
        assert_eq!(yaml["current-context"], "leader");
        let contexts = yaml["contexts"].as_sequence().unwrap();
        let names: Vec<_> = contexts.iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["leader", "east", "west"]);
        assert_eq!(contexts[1]["context"]["user"], "east");
        assert_eq!(
            yaml["clusters"][2]["cluster"]["server"],
            "https://172.30.3.254:6443"
        );
        assert_eq!(
            yaml["clusters"][2]["cluster"]["certificate-authority"],
            "/state/west/ca.crt"
        );
        assert_eq!(
            yaml["users"][0]["user"]["client-certificate"],
            "/state/leader/admin.crt"
        );
    }
}
