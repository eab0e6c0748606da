//! The control plane of one cluster: etcd, API server, controller manager and scheduler in one namespace.

use std::{
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    audit,
    binaries::Binaries,
    kubeconfig::Kubeconfig,
    kubectl::Kubectl,
    pki::{CertificateAuthority, CertificateFiles, Subject},
    process::{Launcher, MountNamespace, Program, check_alive, write},
    state::Process,
    topology::Cluster,
};
use crate::wait::{Poll, wait_for};

const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// Where etcd listens, in the control plane's network namespace.
pub(super) const ETCD: &str = "http://127.0.0.1:2379";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A control plane whose processes run; the API server may still be starting.
#[derive(Debug)]
pub(crate) struct ControlPlane<'a> {
    cluster: &'a Cluster,
    /// Issues the identities of the nodes.
    pub(crate) authority: CertificateAuthority,
    admin: CertificateFiles,
    token_key: PathBuf,
    server: [Process; 2],
}

impl<'a> ControlPlane<'a> {
    /// Issues certificates and starts etcd and the API server.
    pub(crate) fn start(launcher: Launcher<'_>, binaries: &Binaries, cluster: &'a Cluster) -> Result<Self> {
        let machine = cluster.control_plane();
        let directory = launcher.directory(&machine);
        launcher.cgroups.create(&machine)?;
        let authority = CertificateAuthority::create(&directory.join("pki"), cluster.name())?;
        let group = Some("system:masters");
        let admin = authority.client("admin", Subject { user: "admin", group })?;
        let names = [
            cluster.api_address().to_string(),
            cluster.service_address(1).to_string(),
            "127.0.0.1".to_owned(),
            "localhost".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
            "kubernetes.default.svc.cluster.local".to_owned(),
        ];
        let serving = authority.server("apiserver", "kube-apiserver", &names)?;
        let to_kubelet = Subject {
            user: "kube-apiserver-kubelet-client",
            group,
        };
        let kubelet_client = authority.client("apiserver-kubelet-client", to_kubelet)?;
        let (token_key, token_public) = authority.token_keys()?;

        let launch = |name: &str, command: Vec<String>| {
            launcher.start(&Program {
                machine: &machine,
                name,
                namespace: &cluster.namespace(),
                mounts: MountNamespace::Host,
                command,
            })
        };
        let etcd = launch("etcd", etcd(&binaries.path("etcd")?, &etcd_data(&directory)))?;
        let ca = authority.certificate();
        let mut options = vec![
            text(&binaries.path("kube-apiserver")?),
            format!("--etcd-servers={ETCD}"),
            format!("--advertise-address={}", cluster.api_address()),
            format!("--service-cluster-ip-range={}", cluster.service_cidrs()),
            flag("tls-cert-file", &serving.certificate),
            flag("tls-private-key-file", &serving.key),
            flag("client-ca-file", &ca),
            flag("kubelet-certificate-authority", &ca),
            flag("kubelet-client-certificate", &kubelet_client.certificate),
            flag("kubelet-client-key", &kubelet_client.key),
            flag("service-account-key-file", &token_public),
            flag("service-account-signing-key-file", &token_key),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            // No service proxy runs in this namespace: the API server connects to webhook Pods directly.
            "--enable-aggregator-routing=true".into(),
            "--kubelet-preferred-address-types=InternalIP".into(),
            "--allow-privileged=true".into(),
            "--profiling=false".into(),
        ];
        options.extend(audit::flags(&directory)?);
        let api = launch("kube-apiserver", options)?;
        Ok(Self {
            cluster,
            authority,
            admin,
            token_key,
            server: [etcd, api],
        })
    }

    /// The administrator's kubeconfig.
    pub(crate) fn admin_kubeconfig(&self) -> Kubeconfig {
        Kubeconfig::new(self.cluster, &self.authority.certificate(), &self.admin)
    }

    /// Waits until the API server is ready.
    pub(crate) fn wait_ready(&self, kubectl: &Kubectl) -> Result<()> {
        let address = (self.cluster.api_address(), 6443).into();
        wait_for(
            &format!("the API server of {}", self.cluster.name()),
            READY_TIMEOUT,
            || {
                for process in &self.server {
                    check_alive(process)?;
                }
                // Cheaper than a kubectl that cannot connect.
                if let Err(error) = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                    return Ok(Poll::Pending(format!("{address}: {error}")));
                }
                match kubectl.output(&["get", "--raw=/readyz"]) {
                    Ok(_) => Ok(Poll::Ready(())),
                    Err(error) => Ok(Poll::Pending(format!("{error:#}"))),
                }
            },
        )
    }

    /// Starts the controller manager and the scheduler; the API server must be ready.
    pub(crate) fn start_controllers(&self, launcher: Launcher<'_>, binaries: &Binaries) -> Result<()> {
        let machine = self.cluster.control_plane();
        let manager = [
            format!("--cluster-cidr={}", self.cluster.pod_cidrs()),
            format!("--service-cluster-ip-range={}", self.cluster.service_cidrs()),
            "--allocate-node-cidrs=true".into(),
            "--use-service-account-credentials=true".into(),
            flag("service-account-private-key-file", &self.token_key),
            flag("root-ca-file", &self.authority.certificate()),
        ];
        for (name, options) in [
            ("kube-controller-manager", manager.as_slice()),
            ("kube-scheduler", &[]),
        ] {
            let kubeconfig = self.write_kubeconfig(&launcher.directory(&machine), name)?;
            let mut command = vec![
                text(&binaries.path(name)?),
                flag("kubeconfig", &kubeconfig),
                flag("authentication-kubeconfig", &kubeconfig),
                flag("authorization-kubeconfig", &kubeconfig),
                "--leader-elect=false".into(),
                "--profiling=false".into(),
            ];
            command.extend_from_slice(options);
            launcher.start(&Program {
                machine: &machine,
                name,
                namespace: &self.cluster.namespace(),
                mounts: MountNamespace::Host,
                command,
            })?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self, directory: &Path, name: &str) -> Result<PathBuf> {
        let user = format!("system:{name}");
        let subject = Subject {
            user: &user,
            group: None,
        };
        let identity = self.authority.client(name, subject)?;
        let path = directory.join(format!("{name}.kubeconfig"));
        let file = Kubeconfig::new(self.cluster, &self.authority.certificate(), &identity);
        write(&path, &file.to_yaml().context(user.clone())?)?;
        Ok(path)
    }
}

/// Data directory of etcd.
pub(super) fn etcd_data(directory: &Path) -> PathBuf {
    directory.join("etcd")
}

/// etcd without fsync, for clusters that are removed after use.
fn etcd(program: &Path, data: &Path) -> Vec<String> {
    vec![
        text(program),
        flag("data-dir", data),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380".into(),
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ]
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
