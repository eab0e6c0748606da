//! Network policies at the devices of Pods: on packets between Pods of one cluster, and on those that Pods send.

use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::Duration,
};

use mc_gateway_common::verdict::Outcome;
use mc_tests::{
    counters::Counters,
    netns::Netns,
    process::Process,
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};
use nix::errno::Errno;
use serde_json::json;

use crate::{
    fixture::{options, wait_for_log},
    identities::{pod_manifest, remove, write},
    observability::{inspect, row},
    pod_guard,
    policies::{self, PORT, TIMEOUT, enforce, get_from, wait_dropped_from, wait_passing_from, write_policy},
};

/// The address of a Service of west, which the nodes translate to the server.
pub(crate) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 102, 0, 80);
/// Pods of west: on the server's node, and on the gateway.
pub(crate) const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 12, 1, 20);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 12, 0, 20);
/// The first addresses of the nodes' ranges, which their Pods use as gateways.
pub(crate) const NODE_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 12, 1, 1);
const GATEWAY_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 12, 0, 1);

/// Longest wait for the answer to a datagram.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);

/// Clusters whose agents enforce policies, a server in west, and more Pods there.
pub(crate) struct Bed {
    pub(crate) hosts: Topology,
    pub(crate) local: Netns,
    pub(crate) far: Netns,
    _server: Process,
}

/// A Pod on a node of west, behind a device of its own, or on the bridge of the node.
pub(crate) fn add_pod(
    bed: &Topology,
    node: Place,
    name: &str,
    ip: Ipv4Addr,
    gateway: Ipv4Addr,
    bridge: bool,
) -> Netns {
    let pod = Netns::create(&format!("{}-{name}", bed.options().prefix)).expect("a namespace");
    let host = bed.netns(node);
    pod.veth("eth0", host, name).expect("a pair of devices");
    let mtu = bed.options().mtu - 100;
    if bridge {
        host.ip(&[format!("link set {name} master cni0 mtu {mtu} up")])
            .expect("a port");
        pod.configure_device("eth0", ipnet::Ipv4Net::new(ip, 24).expect("a net"), mtu)
            .expect("an address");
        pod.ip(&[format!("route add default via {gateway}")])
            .expect("a route");
        return pod;
    }
    host.ip(&[
        format!("link set {name} mtu {mtu} up"),
        format!("route add {ip}/32 dev {name}"),
    ])
    .expect("a route");
    host.sysctl(&[(&format!("net.ipv4.conf.{name}.proxy_arp"), "1")])
        .expect("proxy ARP");
    pod.configure_device("eth0", ipnet::Ipv4Net::new(ip, 32).expect("a net"), mtu)
        .expect("an address");
    pod.ip(&[
        format!("route add {gateway} dev eth0"),
        format!("route add default via {gateway}"),
    ])
    .expect("a route");
    pod
}

pub(crate) fn start(name: &str, bridge: bool) -> Bed {
    let mut options = options(name);
    options.bridge = bridge;
    enforce(&mut options);
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.netns(Place::GatewayWest)
        .ip(&[format!("address add {GATEWAY_GATEWAY}/32 dev lo")])
        .expect("an address");
    if !bridge {
        // Pods of one range reach each other through their node.
        bed.netns(Place::NodeWest)
            .sysctl(&[("net.ipv4.conf.pod0.proxy_arp", "1")])
            .expect("proxy ARP");
    }
    let local = add_pod(&bed, Place::NodeWest, "local", LOCAL, NODE_GATEWAY, bridge);
    let far = add_pod(&bed, Place::GatewayWest, "far", FAR, GATEWAY_GATEWAY, false);
    let process = policies::start(&mut bed);
    let bed = Bed {
        hosts: bed,
        local,
        far,
        _server: process,
    };
    bed.write_pod("local", Place::NodeWest, LOCAL, "other");
    bed.write_pod("far", Place::GatewayWest, FAR, "client");
    for (what, client) in bed.clients() {
        bed.wait_passing(client, server(), what);
    }
    bed
}

/// Address of the server.
pub(crate) fn server() -> Ipv4Addr {
    Cluster::West.pod_ip()
}

impl Bed {
    pub(crate) fn write_pod(&self, name: &str, node: Place, ip: Ipv4Addr, app: &str) {
        let text = pod_manifest(name, node, &[ip.into()], app, "Running");
        write(&self.hosts, Cluster::West, &format!("pod-{name}.yaml"), &text);
    }

    /// A server in a Pod, which answers with this name.
    pub(crate) fn serve(&self, pod: &Netns, name: &str) -> Process {
        let server = self.hosts.traffic().echo_server(pod, name, PORT);
        server.expect("a server")
    }

    /// All clients: Pods, the node of the server, and another one.
    pub(crate) fn clients(&self) -> [(&'static str, &Netns); 5] {
        [
            ("a Pod of the node", &self.local),
            ("a Pod of another node", &self.far),
            ("the node", self.hosts.netns(Place::NodeWest)),
            ("another node", self.hosts.netns(Place::GatewayWest)),
            ("another cluster", self.hosts.netns(Place::PodEast)),
        ]
    }

    pub(crate) fn wait_passing(&self, client: &Netns, to: Ipv4Addr, what: &str) {
        wait_passing_from(&self.hosts, client, to, what);
    }

    pub(crate) fn wait_dropped(&self, client: &Netns, to: Ipv4Addr, reason: &str, what: &str) {
        wait_dropped_from(&self.hosts, client, to, reason, what);
    }

    /// Waits until requests are refused, which a client sees at once.
    pub(crate) fn wait_refused(&self, client: &Netns, to: Ipv4Addr, what: &str) {
        policies::wait_refused(what, || get_from(&self.hosts, client, to));
    }

    /// Each datagram is answered with an ICMP error, which a client sees at once. A long one from another cluster is
    /// dropped: the kernel does not trim a packet that is marked as tunnelled.
    fn check_unreachable(&self, client: &Netns, to: Ipv4Addr, what: &str) {
        let outcomes = || Counters::read(&self.hosts.bpf_dir(Place::NodeWest)).expect("counters");
        let rejected = || outcomes().outcomes[Outcome::Rejected.name()].packets;
        let before = rejected();
        for size in [1, 100, 520] {
            let error = datagram_error(client, to.into(), size);
            assert_eq!(error, Some(Errno::EHOSTUNREACH), "{size} bytes from {what}");
        }
        let long = (what != "another cluster").then_some(Errno::EHOSTUNREACH);
        assert_eq!(
            datagram_error(client, to.into(), 1_000),
            long,
            "a long datagram from {what}"
        );
        let answered = if long.is_some() { 4 } else { 3 };
        assert_eq!(rejected() - before, answered, "{what}");
    }

    /// Traces name the rule of [`CLIENTS_ONLY`] that decides, and agree with the programs.
    fn check_traces(&self, server: Ipv4Addr) {
        let (local, far, server) = (LOCAL.to_string(), FAR.to_string(), server.to_string());
        let east = Cluster::East.pod_ip().to_string();
        let allowed = "ClusterNetworkPolicy policy spec.ingress[0] decides: Allow";
        let dropped = "ClusterNetworkPolicy policy spec.ingress[1] decides: Drop";
        let cases: [(&[&str], i32, &[&str]); 5] = [
            (
                &[&local, &server, "tcp:8080", "--from", "pod"],
                0,
                &["in from_pod", "in to_pod", allowed, "=> pass"],
            ),
            (
                &[&far, &server, "tcp:8080", "--from", "pod"],
                1,
                &["in to_pod", dropped, "=> dropped: policy"],
            ),
            (
                &[&server, &east, "tcp:80", "--from", "pod"],
                0,
                &["in from_pod", "in to_remote", "=> encap"],
            ),
            (
                &[&east, &server, "tcp:8080", "--from", "gw-west", "--identity", "1"],
                1,
                &["=> deliver", "in from_remote", dropped],
            ),
            (
                &[&far, &local, "udp:53", "--from", "pod"],
                0,
                &["in to_pod", "=> pass"],
            ),
        ];
        for (args, code, words) in cases {
            self.check_trace(args, code, words);
        }
    }

    /// A trace at the server's node has these words and this exit code, and agrees with the programs.
    pub(crate) fn check_trace(&self, args: &[&str], code: i32, words: &[&str]) {
        let out = self
            .hosts
            .run_agent(Place::NodeWest, &[&["trace"], args].concat())
            .expect("trace");
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        for word in words.iter().chain(&["program agrees"]) {
            assert!(text.contains(word), "{args:?}: no {word} in\n{text}");
        }
    }

    /// Traces show the answers to packets that a rule rejects as such.
    fn check_traces_of_answers(&self, server: Ipv4Addr) {
        let (far, server) = (FAR.to_string(), server.to_string());
        let east = Cluster::East.pod_ip().to_string();
        for (protocol, answer) in [("tcp:8080", "=> reset"), ("udp:53", "=> rejected")] {
            self.check_trace(
                &[&far, &server, protocol, "--from", "pod"],
                1,
                &["in to_pod", answer],
            );
            let from_east: &[&str] = &[&east, &server, protocol, "--from", "gw-west", "--identity", "1"];
            self.check_trace(from_east, 1, &["in from_remote", answer]);
        }
    }

    /// A policy that selects senders by `ServiceAccount`.
    fn check_service_accounts(&self, server: Ipv4Addr) {
        let policy = "  - action: Allow\n    from: [{serviceAccount: {name: job, namespace: shop}}]\n  - action: Drop\n";
        write_policy(&self.hosts, Cluster::West, policy);
        self.wait_dropped(&self.far, server, "policy", "another account");
        let pod = pod_manifest("far", Place::GatewayWest, &[FAR.into()], "other", "Running");
        let of_account = pod.replace("containers:", "serviceAccountName: job, containers:");
        write(&self.hosts, Cluster::West, "pod-far.yaml", &of_account);
        self.wait_passing(&self.far, server, "the account of the rule");
        self.wait_dropped(
            &self.local,
            server,
            "policy",
            "a Pod of the node with another account",
        );
    }

    /// Names of the links to devices of Pods on the server's node.
    pub(crate) fn links(&self) -> Vec<String> {
        let links = fs::read_dir(self.hosts.bpf_dir(Place::NodeWest).join("links")).expect("links");
        let names = links.map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        });
        let mut names: Vec<_> = names.filter(|name| name.contains("_pod-")).collect();
        names.sort();
        names
    }
}

/// The error that a connected socket gets after it has sent a datagram, if it gets one before the timeout.
pub(crate) fn datagram_error(client: &Netns, to: IpAddr, size: usize) -> Option<Errno> {
    let any = match to {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let error = client.enter(|| {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((to, PORT))?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.send(&vec![0; size])?;
        Ok(socket.recv(&mut [0]).expect_err("no datagram"))
    });
    let error = error
        .expect("a datagram")
        .raw_os_error()
        .expect("an error of the kernel");
    Some(Errno::from_raw(error)).filter(|error| *error != Errno::EAGAIN)
}

/// Allows requests of clients in the own cluster to the server, and nothing else.
pub(crate) const CLIENTS_ONLY: &str = "  \
  - action: Allow
    from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{protocol: TCP, port: 8080}]
  - action: Drop
";

/// Waits for the log line of a packet to the server that the last rule drops.
fn wait_logged(bed: &mut Bed, sender: [&str; 2]) {
    let [pod, labels] = sender;
    let words = [
        "packet dropped",
        "program=\"to_pod\"",
        "policy=\"ClusterNetworkPolicy policy\"",
        "rule=\"spec.ingress[1]\"",
        pod,
        labels,
        "dst_pod=\"shop/p\"",
        "dst_labels=\"app=server\"",
    ];
    wait_for_log(&mut bed.hosts, Place::NodeWest, &words);
}

fn check_own_cluster(name: &str, bridge: bool) {
    let mut bed = start(name, bridge);
    let server = server();
    assert_eq!(bed.links(), Vec::<String>::new(), "no policy");
    write_policy(&bed.hosts, Cluster::West, CLIENTS_ONLY);
    bed.wait_dropped(
        &bed.local,
        server,
        "policy",
        "a Pod of the node with another label",
    );
    wait_logged(&mut bed, ["src_pod=\"shop/local\"", "src_labels=\"app=other\""]);
    bed.wait_passing(&bed.far, server, "a client on another node");
    bed.wait_passing(
        bed.hosts.netns(Place::NodeWest),
        server,
        "the kubelet of the node",
    );
    bed.wait_dropped(
        bed.hosts.netns(Place::GatewayWest),
        server,
        "policy",
        "another node",
    );
    bed.wait_dropped(
        bed.hosts.netns(Place::PodEast),
        server,
        "policy",
        "a client of another cluster",
    );
    // The server itself reaches every Pod: replies pass.
    let ping = bed
        .hosts
        .traffic()
        .ping(bed.hosts.netns(Place::PodWest), LOCAL, 3);
    assert_eq!(ping.expect("ping").received, 3, "replies to the server");
    // The programs enforce policies without an agent, and a new one replaces them.
    bed.hosts.stop_agent(Place::NodeWest).expect("SIGTERM");
    bed.wait_dropped(&bed.local, server, "policy", "without an agent");
    bed.hosts.start_agent(Place::NodeWest).expect("an agent");
    bed.wait_dropped(&bed.local, server, "policy", "a new agent");
    bed.write_pod("local", Place::NodeWest, LOCAL, "client");
    bed.wait_passing(&bed.local, server, "the label of the rule");
    bed.write_pod("far", Place::GatewayWest, FAR, "other");
    bed.wait_dropped(&bed.far, server, "policy", "another label on another node");
    let rules = inspect(&bed.hosts, Place::NodeWest, "rules");
    let rules: Vec<_> = ["spec.ingress[0]", "spec.ingress[1]"]
        .map(|rule| row(&rules, "rule", rule))
        .map(|row| (&row["policy"], &row["action"], row["packets"].as_u64() > Some(0)))
        .into();
    let policy = json!("ClusterNetworkPolicy policy");
    let expected = [(&policy, &json!("Allow"), true), (&policy, &json!("Drop"), true)];
    assert_eq!(rules, expected);
    wait_logged(&mut bed, ["src_pod=\"shop/far\"", "src_labels=\"app=other\""]);
    bed.check_traces(server);
    bed.check_service_accounts(server);
    write_policy(&bed.hosts, Cluster::West, "  - action: Reject\n");
    for (what, client) in bed.clients() {
        if what == "the node" {
            bed.wait_passing(client, server, "the kubelet of the node");
        } else {
            bed.wait_refused(client, server, what);
            bed.check_unreachable(client, server, what);
        }
    }
    bed.check_traces_of_answers(server);
    remove(&bed.hosts, Cluster::West, "policy.yaml");
    bed.wait_passing(&bed.far, server, "no policy");
    wait_for("no programs at the devices of Pods", TIMEOUT, || {
        let links = bed.links();
        if links.is_empty() {
            Ok(())
        } else {
            Err(format!("{links:?}"))
        }
    })
    .expect("no links");
}

#[test]
fn packets_of_the_own_cluster_are_decided_at_the_devices_of_routed_pods() {
    check_own_cluster("pod-routed", false);
}

#[test]
fn packets_of_the_own_cluster_are_decided_at_the_devices_of_bridged_pods() {
    check_own_cluster("pod-bridge", true);
}

/// Slices with the address of the gateway's node: one address group for each revision.
fn address_groups(apps: &[(i64, &str)], complete: bool) -> String {
    let mut text = String::new();
    for (revision, app) in apps {
        writeln!(
            text,
            "---\napiVersion: mc-gateway.io/v1alpha1\nkind: AddressGroupSlice\nmetadata: {{name: pods-{revision}}}\n\
             spec:\n  revision: {revision}\n  groups:\n  - {{namespace: shop, labels: {{app: {app}}}, \
             serviceAccount: default, addresses: [{}]}}",
            Cluster::West.internal_net().addr()
        )
        .expect("text");
    }
    if complete {
        text += "---\napiVersion: mc-gateway.io/v1alpha1\nkind: AddressGroupSlice\nmetadata: {name: complete}\n\
                 spec: {revision: 1, complete: true}\n";
    }
    text
}

/// The agents have no Pod with the address of the client, which is the gateway's node.
#[test]
fn a_peer_without_a_pod_is_known_by_its_address_group() {
    fn client(bed: &Bed) -> &Netns {
        bed.hosts.netns(Place::GatewayWest)
    }
    let mut bed = start("addrgroup", false);
    let server = server();
    let write_groups = |bed: &Bed, apps: &[(i64, &str)], complete| {
        let text = address_groups(apps, complete);
        write(&bed.hosts, Cluster::West, "groups.yaml", &text);
    };
    write_groups(&bed, &[(1, "other")], true);
    write_policy(&bed.hosts, Cluster::West, CLIENTS_ONLY);
    bed.wait_dropped(client(&bed), server, "policy", "a group with another label");
    wait_logged(&mut bed, ["src_pod=\"shop/\"", "src_labels=\"app=other\""]);
    write_groups(&bed, &[(1, "other"), (2, "client")], true);
    bed.wait_passing(client(&bed), server, "a newer group with the label of the rule");
    write_groups(&bed, &[(2, "client"), (3, "other")], true);
    bed.wait_dropped(client(&bed), server, "policy", "moved to another slice");
    write_groups(&bed, &[(4, "client")], true);
    bed.wait_passing(client(&bed), server, "the label of the rule again");
    write_groups(&bed, &[(4, "client")], false);
    bed.wait_dropped(client(&bed), server, "policy", "slices that lack Pods");
}

/// The address of a Pod is closed until the agent has seen the Pod.
fn check_new_pod(name: &str, bridge: bool) {
    const LATE: Ipv4Addr = Ipv4Addr::new(10, 12, 1, 21);
    let bed = start(name, bridge);
    write_policy(&bed.hosts, Cluster::West, CLIENTS_ONLY);
    bed.wait_dropped(&bed.local, server(), "policy", "another label");
    let (_late, _server) = bed.add_new_pod("late", LATE, bridge);
    pod_guard::wait_guarded(&bed, &bed.far, LATE, "a Pod that the agent has not seen");
    bed.wait_passing(bed.hosts.netns(Place::NodeWest), LATE, "its kubelet");
    bed.write_pod("late", Place::NodeWest, LATE, "unselected");
    bed.wait_passing(&bed.far, LATE, "a Pod that no policy selects");
    bed.write_pod("late", Place::NodeWest, LATE, "server");
    bed.wait_dropped(&bed.local, LATE, "policy", "a Pod that the policy selects");
    bed.wait_passing(&bed.far, LATE, "a client");
}

#[test]
fn a_routed_pod_is_closed_until_the_agent_has_seen_it() {
    check_new_pod("pod-new", false);
}

#[test]
fn a_bridged_pod_is_closed_until_the_agent_has_seen_it() {
    check_new_pod("pod-newbr", true);
}

#[test]
fn a_routed_pod_that_no_policy_selects_has_no_programs() {
    let bed = start("pod-free", false);
    write_policy(&bed.hosts, Cluster::West, CLIENTS_ONLY);
    bed.wait_dropped(&bed.local, server(), "policy", "another label");
    let wait_programs = |what: &str, programs: &[&str]| {
        wait_for(what, TIMEOUT, || {
            let all = bed.links();
            let found: Vec<_> = all.iter().filter(|name| name.contains("-local")).collect();
            let complete = programs
                .iter()
                .zip(&found)
                .all(|(program, name)| name.contains(program));
            if complete && found.len() == programs.len() {
                Ok(())
            } else {
                Err(format!("{all:?}"))
            }
        })
        .expect("the links of the device");
    };
    wait_programs("no programs while no policy selects the Pod", &[]);
    assert_eq!(bed.links().len(), 2, "those of the server: {:?}", bed.links());
    let _server = bed.serve(&bed.local, "local");
    bed.wait_passing(&bed.far, LOCAL, "a Pod that no policy selects");
    bed.write_pod("far", Place::GatewayWest, FAR, "other");
    bed.wait_passing(&bed.far, LOCAL, "another label");
    bed.write_pod("local", Place::NodeWest, LOCAL, "server");
    bed.wait_dropped(&bed.far, LOCAL, "policy", "a Pod that the policy selects");
    wait_programs(
        "programs of a Pod that the policy selects",
        &["from_pod", "to_pod"],
    );
    bed.write_pod("local", Place::NodeWest, LOCAL, "other");
    bed.wait_passing(&bed.far, LOCAL, "a Pod that the policy selects no longer");
    wait_programs("no programs after that", &[]);
    // The device outlives the object of its Pod, and any Pod may have the address now.
    remove(&bed.hosts, Cluster::West, "pod-local.yaml");
    wait_programs(
        "programs of a Pod that the agent has not seen",
        &["from_pod", "to_pod"],
    );
}

#[test]
fn packets_of_a_pod_to_a_service_are_dropped_at_its_device() {
    let bed = start("pod-egress", false);
    let server = server();
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: antrea-mc-secured, namespace: shop}}\n\
         spec: {{clusterIPs: [{SERVICE}], ports: [{{port: {PORT}, protocol: TCP}}]}}\n"
    );
    write(&bed.hosts, Cluster::West, "service.yaml", &service);
    // The service proxy of the nodes.
    bed.hosts
        .netns(Place::NodeWest)
        .nft(&format!(
            "table ip proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; ip daddr {SERVICE} dnat to {server}; }}\n}}\n"
        ))
        .expect("a rule");
    bed.wait_passing(&bed.local, SERVICE, "the Service");
    let policy = "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: egress}\nspec:\n  priority: 1\n  \
         tier: securityops\n  appliedTo: [{podSelector: {matchLabels: {app: other}}}]\n  egress:\n  - action: Drop\n    \
         toServices: [{name: secured, namespace: shop, scope: ClusterSet}]\n";
    write(&bed.hosts, Cluster::West, "egress.yaml", policy);
    bed.wait_dropped(&bed.local, SERVICE, "policy", "the Service of the rule");
    bed.wait_passing(&bed.local, server, "its backend by address, as with Antrea");
    write(
        &bed.hosts,
        Cluster::West,
        "egress.yaml",
        &policy.replace("Drop", "Reject"),
    );
    bed.wait_refused(&bed.local, SERVICE, "the Service of the rule");
    write(&bed.hosts, Cluster::West, "egress.yaml", policy);
    bed.wait_dropped(&bed.local, SERVICE, "policy", "the Service again");
    bed.wait_passing(&bed.far, server, "requests to the Pod are no concern of the rule");
    // Another label, and a new Pod that the agent has not seen.
    bed.write_pod("local", Place::NodeWest, LOCAL, "unselected");
    bed.wait_passing(&bed.local, SERVICE, "another label");
    // A rule for egress stays in force for the node's other Pods.
    bed.write_pod("p2", Place::NodeWest, Ipv4Addr::new(10, 12, 1, 22), "other");
    remove(&bed.hosts, Cluster::West, "pod-local.yaml");
    bed.wait_dropped(
        &bed.local,
        SERVICE,
        "policy-pod",
        "a Pod that the agent has not seen",
    );
}
