//! Topologies and helpers that the suites `netns` and `restart` share.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "a test fails by panicking, and uses the results"
)]

use std::{env, fs, net::Ipv4Addr, path::PathBuf, time::Duration};

use crate::{
    failover::wait_all_in_use,
    topology::{Cluster, Masquerade, Options, Place, Topology, Variant},
    wait::wait_for,
};

/// Timeout for steps that take milliseconds on a quiet machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Upper bound for streams that run during a test step.
pub const MAX_STREAM: Duration = Duration::from_mins(5);

/// The agent under test (`MC_AGENT`).
pub fn agent_program() -> PathBuf {
    env::var_os("MC_AGENT")
        .map(PathBuf::from)
        .expect("MC_AGENT is the path of the agent: run `cargo xtask test --suite netns`")
}

/// The object of the programs (`MC_GATEWAY_EBPF_OBJECT`).
pub fn ebpf_object() -> PathBuf {
    object_path("MC_GATEWAY_EBPF_OBJECT", "mc-gateway-ebpf.o")
}

/// The object of the programs that log (`MC_GATEWAY_EBPF_LOG_OBJECT`).
pub fn logging_ebpf_object() -> PathBuf {
    object_path("MC_GATEWAY_EBPF_LOG_OBJECT", "mc-gateway-ebpf-log.o")
}

fn object_path(variable: &str, default: &str) -> PathBuf {
    env::var_os(variable).map_or_else(
        || {
            PathBuf::from(env!("CARGO_MANIFEST_DIR"))
                .join("../target/bpf")
                .join(default)
        },
        PathBuf::from,
    )
}

/// Options of a topology with the programs and flags of the environment. `MC_XDP=1` selects [`Options::with_xdp`].
pub fn options(name: &str) -> Options {
    let prefix = env::var("MC_PREFIX").unwrap_or_else(|_| "nt".to_owned());
    let mut options = Options::new(&format!("{prefix}-{name}"), Some(agent_program())).expect("options");
    if let Some(traffic) = env::var_os("MC_TRAFFIC") {
        options.traffic = traffic.into();
    }
    if let Ok(flags) = env::var("MC_AGENT_FLAGS") {
        options.agent_flags = flags.split_whitespace().map(str::to_owned).collect();
    }
    if env::var("MC_XDP").is_ok_and(|value| value == "1") {
        options = options.with_xdp();
    }
    options
}

/// Manifests of the exported Service `web`, with an endpoint for each address and Node.
pub fn web_service(ip: &str, affinity: &str, endpoints: &[(Ipv4Addr, &str)]) -> String {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(address, node)| format!("{{addresses: [{address}], nodeName: {node}}}"))
        .collect();
    let endpoints = endpoints.join(", ");
    format!(
        "\
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  clusterIP: {ip}
  sessionAffinity: {affinity}
  ports: [{{name: http, port: 80}}, {{name: dns, port: 53, protocol: UDP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}, {{name: dns, port: 8080, protocol: UDP}}]
endpoints: [{endpoints}]
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {{name: web, namespace: shop}}
"
    )
}

/// Two clusters connected through mc-gateway, with a masquerading CNI.
pub fn connected(name: &str) -> Topology {
    let mut options = options(name);
    options.masquerade = Masquerade::LeavingCluster;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// Two connected clusters with two gateways each, all in use: a next hop is dead while its agent starts.
pub fn with_two_gateways(name: &str) -> Topology {
    let mut options = options(name);
    options.two_gateways = true;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    wait_all_in_use(&mut bed).expect("all next hops in use");
    bed
}

/// Opens a hundred connections from the Pod in east to the Pod in west, one after the other.
pub fn open_hundred_connections(bed: &Topology) {
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let _web = bed.traffic().echo_server(west, "west", 8081).expect("a server");
    let url = format!("http://{}:8081/", Cluster::West.pod_ip());
    bed.traffic()
        .run(east, &["get", &url, "--count", "100"])
        .expect("answers");
}

/// Waits for a log line of a node's agent that contains all words.
pub fn wait_for_log(bed: &mut Topology, place: Place, words: &[&str]) -> String {
    wait_for(
        &format!("a line with {words:?} in the log of {}", place.name()),
        TIMEOUT,
        || {
            let log = bed.agent_log(place).unwrap_or_else(|error| error.to_string());
            log.lines()
                .find(|line| words.iter().all(|word| line.contains(word)))
                .map(str::to_owned)
                .ok_or(log.clone())
        },
    )
    .expect("a log line")
}

/// A node's routes to other clusters.
pub fn routes(bed: &Topology, place: Place) -> String {
    bed.netns(place)
        .run("ip", ["route", "show", "proto", "109"])
        .expect("routes")
}

/// A device as `ip -json -stats link show` describes it.
pub fn shown_device(bed: &Topology, place: Place, device: &str) -> serde_json::Value {
    let args = ["-json", "-stats", "link", "show", "dev", device];
    let shown = bed.netns(place).run("ip", args).expect("a device");
    let mut shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    shown.get_mut(0).expect("one device").take()
}

/// Output of bpftool.
pub fn bpftool(args: &[&str]) -> String {
    let out = std::process::Command::new("bpftool")
        .args(args)
        .output()
        .expect("bpftool");
    assert!(
        out.status.success(),
        "bpftool {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether long runs are selected (`cargo xtask test --long`): tests that take minutes run, and promised times are
/// asserted.
#[must_use]
pub fn is_long_run() -> bool {
    env::var_os("MC_LONG").is_some_and(|value| value == "1")
}

/// Names of an agent's map directories, sorted.
pub fn map_dirs(bed: &Topology, place: Place) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(bed.bpf_dir(place))
        .expect("the pin directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with("maps"))
        .collect();
    names.sort();
    names
}
