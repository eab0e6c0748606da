//! Network policies on packets from another cluster, by the labels of its Pods.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use mc_tests::{
    counters::Counters,
    netns::Netns,
    process::Process,
    topology::{Cluster, Masquerade, Options, Place, Topology, Variant},
    traffic::KeepaliveReport,
    wait::wait_for,
};

use crate::{
    fixture::{options, wait_for_log},
    identities::{BOTH, OTHER, pod_manifest, remove, write, write_identities, write_pod},
};

/// A new state reaches the packets within this time.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const PORT: u16 = 8080;

/// Two clusters whose agents enforce policies, a server in west and identities of all labels.
pub(crate) fn enforcing(name: &str) -> (Topology, Process) {
    let mut options = options(name);
    options.masquerade = Masquerade::LeavingCluster;
    enforce(&mut options);
    let mut bed = Topology::create(options).expect("the namespaces");
    let server = start(&mut bed);
    wait_passing(&bed, "without policies");
    (bed, server)
}

/// Sets the flags of agents that enforce policies.
pub(crate) fn enforce(options: &mut Options) {
    let flags = ["--policy-enforcement".to_owned(), "all".to_owned()];
    options.agent_flags.extend(flags);
}

/// Starts the agents and a server in west, and writes identities of all labels and the Pods of both clusters.
pub(crate) fn start(bed: &mut Topology) -> Process {
    bed.configure(Variant::McGateway).expect("the agents");
    let server = bed
        .traffic()
        .echo_server(bed.netns(Place::PodWest), "pod-west", PORT)
        .expect("a server");
    write_identities(bed, BOTH);
    write_pod(bed, Cluster::East, "client", "Running");
    write_pod(bed, Cluster::West, "server", "Running");
    server
}

/// Writes a policy for the Pod of a cluster.
pub(crate) fn write_policy(bed: &Topology, cluster: Cluster, ingress: &str) {
    let app = match cluster {
        Cluster::East => "client",
        Cluster::West => "server",
    };
    write(
        bed,
        cluster,
        "policy.yaml",
        &manifest("policy", "{}", app, "ingress", ingress),
    );
}

/// Writes a policy with egress rules for the Pods of a cluster with a label.
pub(crate) fn write_egress_policy(bed: &Topology, cluster: Cluster, app: &str, egress: &str) {
    write(
        bed,
        cluster,
        "egress.yaml",
        &manifest("egress", "{}", app, "egress", egress),
    );
}

/// The manifest of a policy for Pods with a label, with rules for a direction. `annotations` is a YAML mapping.
pub(crate) fn manifest(name: &str, annotations: &str, app: &str, direction: &str, rules: &str) -> String {
    format!(
        "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\n\
         metadata: {{name: {name}, annotations: {annotations}}}\nspec:\n  priority: 1\n  \
         tier: securityops\n  appliedTo: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]\n  {direction}:\n{rules}"
    )
}

/// Rules that allow a TCP port to clients of any cluster, and nothing else.
pub(crate) const CLIENTS_ONLY: &str = "  \
  - action: Allow
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
    ports: [{protocol: TCP, port: 8080}]
  - action: Drop
";

/// The answer to a request of the client to the server.
fn get(bed: &Topology) -> Result<String, String> {
    get_from(bed, bed.netns(Place::PodEast), Cluster::West.pod_ip())
}

/// The answer to a request.
pub(crate) fn get_from(bed: &Topology, client: &Netns, to: Ipv4Addr) -> Result<String, String> {
    get_url(bed, client, &format!("http://{to}:{PORT}/"))
}

/// The answer to a request of a URL.
pub(crate) fn get_url(bed: &Topology, client: &Netns, url: &str) -> Result<String, String> {
    let args = ["get", "--timeout", "0.5", url];
    bed.traffic()
        .run(client, &args)
        .map_err(|error| format!("{error:#}"))
}

/// Waits until a request of the client has an answer.
pub(crate) fn wait_passing(bed: &Topology, what: &str) {
    wait_passing_from(bed, bed.netns(Place::PodEast), Cluster::West.pod_ip(), what);
}

/// Waits until a request has an answer.
pub(crate) fn wait_passing_from(bed: &Topology, client: &Netns, to: Ipv4Addr, what: &str) {
    let get = || get_from(bed, client, to);
    wait_for(&format!("requests pass: {what}"), TIMEOUT, get).expect("an answer");
}

/// Waits until a request is refused, which the client sees at once.
pub(crate) fn wait_refused(what: &str, get: impl Fn() -> Result<String, String>) {
    wait_for(&format!("requests are refused: {what}"), TIMEOUT, || {
        match get() {
            Ok(answer) => Err(format!("answered: {answer}")),
            Err(error) if error.contains("refused") => Ok(()),
            Err(error) => Err(error),
        }
    })
    .expect("a reset");
}

/// Waits until requests of the client are dropped at the server's node with a reason.
pub(crate) fn wait_dropped(bed: &Topology, reason: &str, what: &str) {
    let (client, server) = (bed.netns(Place::PodEast), Cluster::West.pod_ip());
    wait_dropped_from(bed, client, server, reason, what);
}

/// Waits until requests are dropped at the server's node with a reason.
pub(crate) fn wait_dropped_from(bed: &Topology, client: &Netns, to: Ipv4Addr, reason: &str, what: &str) {
    let get = || get_from(bed, client, to);
    wait_dropped_at(bed, Place::NodeWest, reason, what, get);
}

/// Waits until requests are dropped at a node with a reason.
pub(crate) fn wait_dropped_at(
    bed: &Topology,
    place: Place,
    reason: &str,
    what: &str,
    get: impl Fn() -> Result<String, String>,
) {
    let drops = || Counters::read(&bed.bpf_dir(place)).expect("counters").drops;
    wait_counted(reason, what, drops, get);
}

/// Waits until a request gets no answer, and its packets are counted with a reason.
pub(crate) fn wait_counted(
    reason: &str,
    what: &str,
    drops: impl Fn() -> BTreeMap<&'static str, u64>,
    get: impl Fn() -> Result<String, String>,
) {
    let count = || drops().get(reason).copied().unwrap_or_default();
    wait_for(&format!("requests are dropped: {what}"), TIMEOUT, || {
        let before = count();
        match get() {
            Ok(answer) => Err(format!("answered: {answer}")),
            Err(_) if count() > before => Ok(()),
            Err(error) => Err(format!("{error}; {reason} is not counted: {:?}", drops())),
        }
    })
    .expect("drops");
}

/// Waits until a policy without a rule for ICMP drops echo requests.
pub(crate) fn wait_enforced(bed: &Topology) {
    wait_for("no rule allows ICMP", TIMEOUT, || {
        let ping = bed
            .traffic()
            .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 1);
        match ping.map_or(0, |ping| ping.received) {
            0 => Ok(()),
            received => Err(format!("{received} replies")),
        }
    })
    .expect("drops");
}

#[test]
fn a_policy_decides_by_the_labels_of_pods_in_another_cluster() {
    let (mut bed, _server) = enforcing("policy");
    write_policy(&bed, Cluster::West, CLIENTS_ONLY);
    wait_enforced(&bed);
    wait_passing(&bed, "a client");

    write_pod(&bed, Cluster::East, "other", "Running");
    wait_dropped(&bed, "policy", "another label");
    // The programs enforce policies without an agent.
    bed.stop_agent(Place::NodeWest).expect("SIGTERM");
    wait_dropped(&bed, "policy", "another label, without an agent");
    bed.start_agent(Place::NodeWest).expect("an agent");
    wait_dropped(&bed, "policy", "another label, a new agent");

    write_pod(&bed, Cluster::East, "client", "Running");
    wait_passing(&bed, "the label again");
    write_pod(&bed, Cluster::East, "without-a-number", "Running");
    wait_dropped(&bed, "policy", "a label without a number");
    remove(&bed, Cluster::West, "policy.yaml");
    wait_passing(&bed, "no policy");
}

#[test]
fn senders_without_a_valid_identity_are_dropped_where_labels_decide() {
    let (mut bed, _server) = enforcing("policy-identity");
    write_policy(
        &bed,
        Cluster::West,
        "  - action: Drop\n    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: other}}}]\n",
    );
    wait_passing(&bed, "another label");
    write_pod(&bed, Cluster::East, "other", "Running");
    wait_dropped(&bed, "policy", "the label of the rule");
    let log = [
        "packet dropped",
        "program=\"from_remote\"",
        "policy=\"ClusterNetworkPolicy policy\"",
        "rule=\"spec.ingress[0]\"",
        &format!("identity={OTHER}"),
        "src_cluster=\"east\"",
        "src_namespace_labels=\"kubernetes.io/metadata.name=shop\"",
        "src_labels=\"app=other\"",
        "dst_pod=\"shop/p\"",
        "dst_labels=\"app=server\"",
    ];
    wait_for_log(&mut bed, Place::NodeWest, &log);
    write_pod(&bed, Cluster::East, "without-a-number", "Running");
    wait_dropped(&bed, "identity-unknown", "a label without a number");
    // East sends with a number that only west exports.
    write_pod(&bed, Cluster::East, "other", "Running");
    write_identities(&bed, "[west]");
    wait_dropped(&bed, "identity-forged", "an identity of another cluster");
    let log = [
        "packet dropped",
        "reason=\"identity-forged\"",
        "src_cluster=\"east\"",
    ];
    let line = wait_for_log(&mut bed, Place::NodeWest, &log);
    assert!(!line.contains("src_labels"), "labels of another cluster: {line}");
}

#[test]
fn connections_of_a_selected_pod_and_open_ones_keep_working() {
    let (bed, _server) = enforcing("policy-flows");
    // The client itself accepts nothing.
    write_policy(&bed, Cluster::East, "  - action: Drop\n");
    let east = bed.netns(Place::PodEast);
    let from_west = |bed: &Topology| {
        let ping = bed
            .traffic()
            .ping(bed.netns(Place::PodWest), Cluster::East.pod_ip(), 1);
        ping.map_or(0, |ping| ping.received)
    };
    wait_for("west does not reach the client", TIMEOUT, || {
        let received = from_west(&bed);
        if received == 0 {
            Ok(())
        } else {
            Err(received.to_string())
        }
    })
    .expect("drops");
    let answer = get(&bed).expect("an answer to the client");
    assert!(answer.contains("pod-west"), "{answer}");
    let ping = bed.traffic().ping(east, Cluster::West.pod_ip(), 3).expect("ping");
    assert_eq!(ping.received, 3, "replies to the client");
    assert_eq!(from_west(&bed), 0, "its own requests open nothing for others");
    // A connection that is open before a policy stays open.
    let url = format!("http://{}:{PORT}/", Cluster::West.pod_ip());
    let args = ["keepalive", &url, "--interval", "20", "--duration", "120"];
    let mut open = bed
        .traffic()
        .spawn(bed.netns(Place::PodEast), &args)
        .expect("a client");
    open.wait_for_line("connected", TIMEOUT).expect("a connection");
    write_policy(&bed, Cluster::West, "  - action: Drop\n");
    wait_dropped(&bed, "policy", "everything");
    let output = open.stop_cleanly(TIMEOUT).expect("the open connection survives");
    let report = output.lines().next_back().expect("a report");
    let report: KeepaliveReport = serde_json::from_str(report).expect("JSON");
    assert!(report.requests > 0 && report.longest_ms < 1_000.0, "{report:?}");
}

/// Rules that allow a protocol, and nothing else.
fn only(protocol: &str) -> String {
    format!("  - action: Allow\n    ports: [{{protocol: {protocol}}}]\n  - action: Drop\n")
}

/// Datagrams that rules have allowed to a Pod pass while it has the address, and not to the next Pod there.
#[test]
fn a_datagram_flow_ends_with_its_pod() {
    let (bed, _server) = enforcing("policy-flow-end");
    let west = Cluster::West;
    let [client, server] = [Place::PodEast, Place::PodWest].map(|place| bed.netns(place));
    write_policy(&bed, west, &only("UDP"));
    wait_dropped(&bed, "policy", "TCP");
    let stream = bed
        .traffic()
        .sequenced(client, server, west.pod_ip(), 100, 3 * TIMEOUT);
    let mut stream = stream.expect("datagrams that a rule allows");
    write_policy(&bed, west, &only("TCP"));
    wait_passing(&bed, "TCP");
    let dropped = || {
        let counters = Counters::read(&bed.bpf_dir(west.node())).expect("counters");
        counters.drops.get("policy").copied().unwrap_or_default()
    };
    let before = dropped();
    for _request in 0..20 {
        get(&bed).expect("a request between datagrams");
    }
    assert_eq!(dropped(), before, "the flow is open when the rules have changed");
    let next = pod_manifest("next", west.node(), &[west.pod_ip().into()], "server", "Running");
    write(&bed, west, "pod.yaml", &next);
    wait_for("the flow of the first Pod ends", TIMEOUT, || match dropped() {
        now if now > before => Ok(()),
        now => Err(format!("{now} drops")),
    })
    .expect("drops");
    assert!(stream.is_running(), "its datagrams were dropped");
}
