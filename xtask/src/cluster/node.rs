//! One node: a network and a mount namespace with its own containerd, kubelet and kube-proxy.
//!
//! The mount namespace gives every node its own `/var/lib`, `/var/log`, `/run` and BPF file system, so that
//! several nodes on one machine have the paths of a real node, and the mounts disappear with the last process of the
//! node.

use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::{
    binaries::Binaries,
    cgroup::Cgroups,
    kubeconfig::Kubeconfig,
    pki::{CertificateAuthority, Subject},
    process::{Launcher, MountNamespace, Program, check_alive, nsenter, output_with_file, write},
    state::{ClusterRecord, Process},
    topology::{Cluster, Node},
};
use crate::{
    setup,
    wait::{Poll, wait_for},
};

const CONTAINERD_TIMEOUT: Duration = Duration::from_mins(1);
/// Name of the image that keeps a Pod's namespaces open.
pub(crate) const PAUSE_IMAGE: &str = "mc-gateway/pause:latest";
/// Where distributions and hand-made installations put the CNI plugins.
const CNI_DIRECTORIES: &[&str] = &["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
/// Private directories of a node.
const PRIVATE: &[&str] = &["/var/lib", "/var/log", "/run"];

/// Runs before containerd, in the new mount namespace. `$1` is the node's directory. The namespace follows
/// the machine's mounts (slave) and allows mount propagation of Pods (shared).
const PREPARE_MOUNTS: &str = "set -e
mount --make-rshared /
mount --bind \"$1/lib\" /var/lib
mount --bind \"$1/log\" /var/log
mount --bind \"$1/run\" /run
mount -t bpf bpf /sys/fs/bpf
shift
exec \"$@\"";

/// A node whose containerd runs.
#[derive(Debug)]
pub(crate) struct NodeRuntime {
    node: Node,
    containerd: Process,
}

// === impl Runtime ===

impl NodeRuntime {
    /// Starts containerd and loads the images that every node needs.
    pub(crate) fn start(launcher: Launcher<'_>, node: Node, images: &[PathBuf]) -> Result<Self> {
        let directory = launcher.directory(node.name());
        for part in ["lib/cni/net.d", "lib/kubelet", "log", "run"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        launcher.cgroups.create(node.name())?;
        let plugins = cni_plugins()?;
        write(
            &directory.join("lib/containerd.toml"),
            &containerd_config(&plugins, snapshotter(&directory)?),
        )?;
        write(
            &directory.join("lib/cni/net.d/10-pod.conflist"),
            &serde_json::to_string_pretty(&cni_config(&node))?,
        )?;
        let program = setup::find_program("containerd").context("containerd is not installed")?;
        let mut command: Vec<String> = [
            "unshare",
            "--mount",
            "--propagation=slave",
            "sh",
            "-c",
            PREPARE_MOUNTS,
            "sh",
        ]
        .map(Into::into)
        .into();
        command.push(directory.display().to_string());
        command.extend([
            program.display().to_string(),
            "--config=/var/lib/containerd.toml".to_owned(),
        ]);
        let containerd = launcher.start(&Program {
            machine: node.name(),
            name: "containerd",
            namespace: &node.namespace(),
            mounts: MountNamespace::Host,
            command,
        })?;
        let runtime = Self { node, containerd };
        let socket = directory.join("run/containerd/containerd.sock");
        wait_for(
            &format!("containerd of {}", runtime.node.name()),
            CONTAINERD_TIMEOUT,
            || {
                check_alive(&runtime.containerd)?;
                // The socket's path may be too long to connect to; through the directory it is short enough.
                Ok(match connect(&socket) {
                    Ok(_) => Poll::Ready(()),
                    Err(error) => Poll::Pending(format!("{}: {error}", socket.display())),
                })
            },
        )?;
        for image in images {
            runtime.load(image)?;
        }
        Ok(runtime)
    }

    /// The node of a running cluster.
    pub(crate) fn from_record(record: &ClusterRecord, node: Node) -> Result<Self> {
        let containerd = record.process(&format!("{}/containerd", node.name()))?.clone();
        check_alive(&containerd)?;
        Ok(Self { node, containerd })
    }

    /// Imports an image tar.
    pub(crate) fn load(&self, image: &Path) -> Result<String> {
        let file = File::open(image).with_context(|| image.display().to_string())?;
        let mut words =
            nsenter(&self.node.namespace(), MountNamespace::Process(&self.containerd)).into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(["ctr", "--namespace=k8s.io", "images", "import", "-"]);
        output_with_file(&mut command, file)
            .with_context(|| format!("{}: importing {}", self.node.name(), image.display()))
    }

    /// Starts kubelet and kube-proxy; the API server must be ready and know the Node.
    pub(crate) fn join(
        &self,
        launcher: Launcher<'_>,
        binaries: &Binaries,
        cluster: &Cluster,
        authority: &CertificateAuthority,
    ) -> Result<()> {
        let node = &self.node;
        let directory = launcher.directory(node.name());
        let user = format!("system:node:{}", node.name());
        let group = Some("system:nodes");
        let identity = authority.client(node.name(), Subject { user: &user, group })?;
        let kubelet_kubeconfig = Kubeconfig::new(cluster, &authority.certificate(), &identity);
        write(
            &directory.join("kubelet.kubeconfig"),
            &kubelet_kubeconfig.to_yaml()?,
        )?;
        let names = [vec![node.name().to_owned()], node.addresses().to_strings()].concat();
        let serving = authority.server(&format!("{}-server", node.name()), &user, &names)?;
        let resolv = directory.join("resolv.conf");
        write(
            &resolv,
            "# No resolver: nothing outside the clusters is reachable.\n",
        )?;
        let kubelet_config = directory.join("kubelet.json");
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": authority.certificate()},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": serving.certificate,
            "tlsPrivateKeyFile": serving.key,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [cluster.dns()],
            "clusterDomain": "cluster.local",
            "resolvConf": resolv,
            // Several kubelets share one machine, so none reserves resources.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": Cgroups::pods(node.name()),
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": [],
            "failCgroupV1": false,
            "failSwapOn": false,
            "localStorageCapacityIsolation": false,
            "makeIPTablesUtilChains": false,
            "oomScoreAdj": 0,
            // A full disk of the machine is not this node's.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        });
        write(&kubelet_config, &serde_json::to_string_pretty(&config)?)?;
        let proxy = Subject {
            user: "system:kube-proxy",
            group: None,
        };
        let proxy_identity = authority.client(&format!("{}-kube-proxy", node.name()), proxy)?;
        let proxy_kubeconfig = directory.join("kube-proxy.kubeconfig");
        write(
            &proxy_kubeconfig,
            &Kubeconfig::new(cluster, &authority.certificate(), &proxy_identity).to_yaml()?,
        )?;
        let proxy_config = directory.join("kube-proxy.json");
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": cluster.pod_cidrs().to_string(),
            "hostnameOverride": node.name(),
            "clientConnection": {"kubeconfig": proxy_kubeconfig},
            // The machine's own limit; a namespace may not change it.
            "conntrack": {"maxPerCore": 0},
        });
        write(&proxy_config, &serde_json::to_string_pretty(&config)?)?;
        let launch = |name: &str, options: Vec<String>| {
            let mut command = vec![binaries.path(name)?.display().to_string()];
            command.extend(options);
            launcher.start(&Program {
                machine: node.name(),
                name,
                namespace: &node.namespace(),
                mounts: MountNamespace::Process(&self.containerd),
                command,
            })
        };
        launch(
            "kubelet",
            vec![
                format!("--config={}", kubelet_config.display()),
                format!("--kubeconfig={}", directory.join("kubelet.kubeconfig").display()),
                format!("--hostname-override={}", node.name()),
                format!("--node-ip={}", node.addresses()),
            ],
        )?;
        launch("kube-proxy", vec![format!("--config={}", proxy_config.display())])?;
        Ok(())
    }
}

/// Runs a command in a node's namespaces; none starts a shell.
pub(crate) fn enter(record: &ClusterRecord, name: &str, command: &[String]) -> Result<ExitStatus> {
    let topology = record.topology()?;
    let node = topology.nodes().find(|node| node.name() == name);
    let runtime = NodeRuntime::from_record(
        record,
        node.with_context(|| format!("no node `{name}` in `{topology}`"))?,
    )?;
    let mut words = nsenter(
        &runtime.node.namespace(),
        MountNamespace::Process(&runtime.containerd),
    )
    .into_iter();
    let mut entered = Command::new(words.next().unwrap_or_default());
    entered.args(words);
    if command.is_empty() {
        entered.arg("sh").env("PS1", format!("{name} # "));
    }
    entered.args(command).status().context("nsenter")
}

/// The Node object, created before its kubelet starts so that its Pod CIDRs are those of the topology.
pub(crate) fn node_object(node: &Node) -> serde_json::Value {
    let cidrs = node.pod_cidrs();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name()},
        "spec": {"podCIDR": cidrs.v4, "podCIDRs": cidrs.to_strings()},
    })
}

/// Fails if a node's private directories hide a file that it needs.
pub(crate) fn check_visible(path: &Path) -> Result<()> {
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    if let Some(hiding) = PRIVATE.iter().find(|private| path.starts_with(private)) {
        bail!(
            "{} is below {hiding}, which is private to every node: move the checkout (or XDG_CACHE_HOME) elsewhere",
            path.display()
        );
    }
    Ok(())
}

fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    use std::os::fd::AsRawFd as _;
    let directory = File::open(socket.parent().unwrap_or(Path::new("/")))?;
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

fn cni_plugins() -> Result<PathBuf> {
    let found = CNI_DIRECTORIES
        .iter()
        .map(PathBuf::from)
        .find(|path| path.join("bridge").exists());
    found.with_context(|| format!("no CNI plugin `bridge` in {}", CNI_DIRECTORIES.join(", ")))
}

/// Whether the CNI plugins are installed.
pub(crate) fn has_cni_plugins() -> bool {
    cni_plugins().is_ok()
}

/// overlayfs cannot be stacked on itself: where the checkout is on one (in a container), files are copied.
fn snapshotter(directory: &Path) -> Result<&'static str> {
    let kind = crate::cmd::output(Command::new("stat").args(["-f", "-c", "%T"]).arg(directory))?;
    Ok(if kind.trim() == "overlayfs" {
        "native"
    } else {
        "overlayfs"
    })
}

fn containerd_config(plugins: &Path, snapshotter: &str) -> String {
    format!(
        r#"version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{}"
conf_dir = "/var/lib/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
"#,
        plugins.display()
    )
}

/// A bridge network that masquerades packets to addresses outside of the cluster, which gateways must work with.
fn cni_config(node: &Node) -> serde_json::Value {
    let cidrs = node.pod_cidrs();
    let ranges: Vec<_> = cidrs
        .to_strings()
        .into_iter()
        .map(|net| json!([{"subnet": net}]))
        .collect();
    let v6 = cidrs.v6.map(|_| json!({"dst": "::/0"}));
    let routes: Vec<_> = std::iter::once(json!({"dst": "0.0.0.0/0"})).chain(v6).collect();
    json!({
        "cniVersion": "0.4.0",
        "name": "pod",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": ranges,
                    "routes": routes,
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::Topology;

    #[test]
    fn the_node_and_its_network_agree_on_the_pod_cidrs() {
        let node = Topology::default().nodes().nth(2).unwrap();
        assert_eq!(node.name(), "east-n2");
        let spec = node_object(&node)["spec"].clone();
        assert_eq!(spec["podCIDR"], "10.12.2.0/24");
        assert_eq!(spec["podCIDRs"], json!(["10.12.2.0/24", "fd00:10:2:2::/64"]));
        let bridge = cni_config(&node)["plugins"][0].clone();
        assert_eq!(
            bridge["ipam"]["ranges"],
            json!([[{"subnet": "10.12.2.0/24"}], [{"subnet": "fd00:10:2:2::/64"}]])
        );
        assert_eq!(
            bridge["ipam"]["routes"],
            json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}])
        );
        assert_eq!(bridge["ipMasq"], true);
        let leader = Topology::default().nodes().next().unwrap();
        assert_eq!(
            cni_config(&leader)["plugins"][0]["ipam"]["routes"],
            json!([{"dst": "0.0.0.0/0"}])
        );
    }

    #[test]
    fn a_hidden_directory_is_refused() {
        let error = check_visible(Path::new("/var/lib")).unwrap_err().to_string();
        assert!(error.contains("/var/lib"), "{error}");
        check_visible(Path::new("/usr")).unwrap();
    }
}
