//! Servers and clients in a Namespace per test.

use std::{
    collections::BTreeSet,
    fs::File,
    net::IpAddr,
    path::PathBuf,
    process::{Child, Stdio},
    thread,
};

use mc_tests::nslookup::Answer;

use crate::clusters::{Cluster, EAST, LONG_TIMEOUT, SHORT_TIMEOUT, WEST};

/// Limit of a request stream that is never stopped: ten minutes.
const MAX_STREAM_REQUESTS: u32 = 60_000;

/// Runs the jobs at the same time; returns their results in the order of the jobs.
pub(crate) fn in_parallel<T: Send>(jobs: impl IntoIterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    thread::scope(|scope| {
        let running: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        running
            .into_iter()
            .map(|job| job.join().expect("a job"))
            .collect()
    })
}

/// A Namespace in some clusters, deleted on drop.
pub(crate) struct Namespace(pub(crate) &'static str, &'static [Cluster]);

/// The container of an HTTP server, in a Deployment.
pub(crate) const SERVER_CONTAINER: &str = "      - name: web
        image: mc-gateway/test:latest
        imagePullPolicy: IfNotPresent
        command: [/usr/bin/mc-traffic, echo-server, --port=8080]";

impl Namespace {
    /// In both members.
    pub(crate) fn create(name: &'static str) -> Self {
        Self::create_in(name, &[EAST, WEST])
    }

    pub(crate) fn create_in(name: &'static str, clusters: &'static [Cluster]) -> Self {
        for cluster in clusters {
            cluster.apply(&format!(
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"
            ));
        }
        Self(name, clusters)
    }

    /// A Deployment of HTTP servers on one Node, and Service `web`.
    pub(crate) fn serve(&self, cluster: Cluster, node: &str, replicas: u32) {
        self.service(cluster);
        self.servers(cluster, node, replicas);
    }

    /// The Service alone.
    pub(crate) fn service(&self, cluster: Cluster) {
        let namespace = self.0;
        cluster.apply(&format!(
            "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec:
  selector: {{app: web}}
  ports: [{{name: http, port: 80, targetPort: 8080}}]
"
        ));
    }

    /// The Deployment alone; returns once all Pods are ready.
    pub(crate) fn servers(&self, cluster: Cluster, node: &str, replicas: u32) {
        let namespace = self.0;
        cluster.apply(&format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      nodeName: {node}
      terminationGracePeriodSeconds: 0
      containers:
{SERVER_CONTAINER}
"
        ));
        cluster.kubectl(&[
            "rollout",
            "status",
            "deployment/web",
            "-n",
            namespace,
            "--timeout=120s",
        ]);
    }

    /// A Pod that runs the traffic program once.
    pub(crate) fn pod(&self, cluster: Cluster, node: &str, name: &str, args: &[&str]) {
        self.pod_in(cluster, node, name, args, "false");
    }

    /// A Pod with its own network or its Node's.
    fn pod_in(&self, cluster: Cluster, node: &str, name: &str, args: &[&str], host_network: &str) {
        let namespace = self.0;
        let args = args.join(", ");
        cluster.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  hostNetwork: {host_network}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: {name}
    image: mc-gateway/test:latest
    imagePullPolicy: IfNotPresent
    command: [/usr/bin/mc-traffic, {args}]
"
        ));
        let pod = format!("pod/{name}");
        cluster.kubectl(&[
            "wait",
            "--for=condition=Ready",
            &pod,
            "-n",
            namespace,
            "--timeout=120s",
        ]);
    }

    /// A Pod that sends requests.
    pub(crate) fn client(&self, cluster: Cluster, node: &str) -> Client {
        self.client_named(cluster, node, "client")
    }

    /// A client Pod with this name.
    pub(crate) fn client_named(&self, cluster: Cluster, node: &str, pod: &'static str) -> Client {
        self.pod(cluster, node, pod, &["pause"]);
        Client {
            cluster,
            namespace: self.0,
            pod,
        }
    }

    /// A Pod that sends requests and answers them at port 8080.
    pub(crate) fn client_serving(&self, cluster: Cluster, node: &str, pod: &'static str) -> Client {
        self.pod(cluster, node, pod, &["echo-server", "--port=8080"]);
        Client {
            cluster,
            namespace: self.0,
            pod,
        }
    }

    /// A host-network Pod that sends requests.
    pub(crate) fn host_client(&self, cluster: Cluster, node: &str) -> Client {
        let pod = "host-client";
        self.pod_in(cluster, node, pod, &["pause"], "true");
        Client {
            cluster,
            namespace: self.0,
            pod,
        }
    }

    pub(crate) fn export(&self, cluster: Cluster) {
        cluster.apply(&format!(
            "apiVersion: multicluster.x-k8s.io/v1alpha1\nkind: ServiceExport\nmetadata:\n  name: web\n  namespace: {}\n",
            self.0
        ));
    }

    pub(crate) fn unexport(&self, cluster: Cluster) {
        cluster.kubectl(&[
            "delete",
            "serviceexport",
            "web",
            "-n",
            self.0,
            "--ignore-not-found",
        ]);
    }

    /// Waits until the imported Service has this number of ready endpoints.
    pub(crate) fn wait_imported(&self, cluster: Cluster, endpoints: usize) -> BTreeSet<String> {
        cluster.wait_for(
            &format!("antrea-mc-web with {endpoints} endpoints in {}", self.0),
            LONG_TIMEOUT,
            || {
                if cluster.get(self.0, "service", "antrea-mc-web").is_none() {
                    return Err("no Service antrea-mc-web".to_owned());
                }
                let slices = cluster.list(
                    self.0,
                    "endpointslice",
                    "kubernetes.io/service-name=antrea-mc-web",
                );
                let addresses: BTreeSet<String> = slices
                    .iter()
                    .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
                    .flat_map(|endpoint| endpoint["addresses"].as_array().cloned().unwrap_or_default())
                    .filter_map(|address| address.as_str().map(str::to_owned))
                    .collect();
                if addresses.len() == endpoints {
                    Ok(addresses)
                } else {
                    Err(format!("{addresses:?}"))
                }
            },
        )
    }

    /// Addresses of the selected Pods, by name.
    pub(crate) fn pod_addresses(&self, cluster: Cluster, selector: &str) -> Vec<(String, Vec<IpAddr>)> {
        let pods = cluster.list(self.0, "pods", selector);
        pods.iter()
            .map(|pod| {
                let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
                let ips = ips.filter_map(|ip| ip["ip"].as_str()?.parse().ok());
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                (name.to_owned(), ips.collect())
            })
            .collect()
    }

    pub(crate) fn pod_ip(&self, cluster: Cluster, selector: &str) -> String {
        cluster.kubectl(&[
            "get",
            "pods",
            "-n",
            self.0,
            "-l",
            selector,
            "-o",
            "jsonpath={.items[0].status.podIP}",
        ])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for cluster in self.1 {
            let gone = cluster.try_kubectl(&[
                "delete",
                "namespace",
                self.0,
                "--wait=false",
                "--ignore-not-found",
            ]);
            if let Err(error) = gone {
                println!("{}: namespace {} is left: {error}", cluster.0, self.0);
            }
        }
    }
}

/// A Pod that sends requests.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    cluster: Cluster,
    namespace: &'static str,
    pod: &'static str,
}

impl Client {
    pub(crate) fn ip(&self) -> String {
        self.cluster.kubectl(&[
            "get",
            "pod",
            self.pod,
            "-n",
            self.namespace,
            "-o",
            "jsonpath={.status.podIP}",
        ])
    }

    /// Its addresses.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let path = "jsonpath={.status.podIPs[*].ip}";
        let all = self
            .cluster
            .kubectl(&["get", "pod", self.pod, "-n", self.namespace, "-o", path]);
        all.split(' ').filter_map(|ip| ip.parse().ok()).collect()
    }

    /// Its address of the same family as `like`.
    pub(crate) fn ip_like(&self, like: IpAddr) -> IpAddr {
        let mut all = self.addresses().into_iter();
        all.find(|ip| ip.is_ipv6() == like.is_ipv6())
            .unwrap_or_else(|| panic!("{} has no address like {like}", self.pod))
    }

    /// Runs `nslookup` in the Pod, with the Pod's resolv.conf, `times` times.
    pub(crate) fn lookup(&self, kind: &str, name: &str, times: u32) -> Result<Answer, String> {
        // nslookup fails on NXDOMAIN; the printed answer is parsed.
        let script = format!("for i in $(seq {times}); do nslookup -type={kind} {name} 2>&1 || true; done");
        let args = ["exec", "-n", self.namespace, self.pod, "--", "sh", "-c", &script];
        Answer::parse(&self.cluster.try_kubectl(&args)?)
    }

    /// Namespace and name.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }

    /// Runs a shell script in the Pod.
    pub(crate) fn shell(&self, script: &str) -> Result<String, String> {
        let args = ["exec", "-n", self.namespace, self.pod, "--", "sh", "-c", script];
        self.cluster.try_kubectl(&args)
    }

    /// Name of the Pod.
    pub(crate) fn pod(&self) -> &'static str {
        self.pod
    }

    /// Starts a shell script in the Pod; its output is piped.
    pub(crate) fn spawn_shell(&self, script: &str) -> Child {
        let mut command = self.cluster.command();
        command.args(["exec", "-n", self.namespace, self.pod, "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).spawn().expect("kubectl")
    }

    /// Runs the traffic program in the Pod.
    pub(crate) fn run(&self, args: &[&str]) -> Result<String, String> {
        self.cluster.try_kubectl(&[&self.program()[..], args].concat())
    }

    fn program(&self) -> [&'static str; 6] {
        [
            "exec",
            "-n",
            self.namespace,
            self.pod,
            "--",
            "/usr/bin/mc-traffic",
        ]
    }

    /// Starts a stream of requests, 10 ms apart, each on its own connection, to the Pods of a Deployment `web`.
    pub(crate) fn stream(&self, url: &str) -> RequestStream {
        self.stream_from(url, "web-")
    }

    /// The same to Pods with names that begin with `servers`.
    pub(crate) fn stream_from(&self, url: &str, servers: &'static str) -> RequestStream {
        let log = std::env::temp_dir().join(format!("mc-e2e-{}-{}.log", std::process::id(), self.pod));
        let file = File::create(&log).expect("a log");
        let child = self
            .cluster
            .command()
            .args(self.program())
            .args([
                "get",
                url,
                "--count",
                &MAX_STREAM_REQUESTS.to_string(),
                "--interval=0.01",
            ])
            .stderr(file.try_clone().expect("a log"))
            .stdout(file)
            .spawn()
            .expect("kubectl");
        RequestStream { child, log, servers }
    }

    fn try_get(&self, url: &str, count: u32) -> Result<String, String> {
        self.run(&["get", url, "--count", &count.to_string()])
    }

    /// Waits for a server's answer: `<Pod> <client address>`.
    pub(crate) fn get(&self, url: &str) -> String {
        self.cluster
            .wait_for(&format!("an answer from {url}"), SHORT_TIMEOUT, || {
                self.try_get(url, 1)
            })
            .trim()
            .to_owned()
    }

    /// Sends `count` requests; each must be answered.
    pub(crate) fn get_many(&self, url: &str, count: u32) -> Vec<String> {
        let answers = self
            .try_get(url, count)
            .unwrap_or_else(|error| panic!("{count} × {url}: {error}"));
        answers.lines().map(str::to_owned).collect()
    }

    /// The URL of the imported Service, by its address.
    pub(crate) fn imported_url(&self) -> String {
        let ip = self.cluster.kubectl(&[
            "get",
            "service",
            "antrea-mc-web",
            "-n",
            self.namespace,
            "-o",
            "jsonpath={.spec.clusterIP}",
        ]);
        format!("http://{ip}:80/")
    }
}

/// A running stream of requests.
pub(crate) struct RequestStream {
    child: Child,
    log: PathBuf,
    /// Prefix of the names of the Pods that answer.
    servers: &'static str,
}

impl RequestStream {
    /// Fails unless the stream runs and every request so far was answered.
    pub(crate) fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().expect("kubectl") {
            panic!("the requests ended early, {status}: {}", self.tail());
        }
    }

    /// Stops the stream; fails unless every request was answered.
    pub(crate) fn finish(mut self) {
        self.assert_running();
        self.child.kill().expect("kubectl");
        self.child.wait().expect("kubectl");
        let text = std::fs::read_to_string(&self.log).expect("the log");
        // The last line may be incomplete.
        let lines: Vec<&str> = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .collect();
        let answers = lines.iter().filter(|line| line.starts_with(self.servers)).count();
        assert!(
            answers > 0 && answers == lines.len(),
            "{answers} answers in {} lines: {}",
            lines.len(),
            self.tail()
        );
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        // Either may be over already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        let _removed = std::fs::remove_file(&self.log);
    }
}
