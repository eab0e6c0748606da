//! The guard of Pods: a Pod has no network until the agent has seen it.

use std::net::{IpAddr, Ipv4Addr};

use mc_tests::{
    counters::Counters,
    netns::Netns,
    process::Process,
    topology::{Cluster, Family, Inner, Masquerade, Place, Topology},
    wait::wait_for,
};
use serde_json::Value;

use crate::{
    fixture::options,
    identities::{pod_manifest, remove, write},
    pod_policies::{Bed, CLIENTS_ONLY, FAR, LOCAL, NODE_GATEWAY, add_pod, server, start},
    policies::{self, TIMEOUT, enforce, get_from, wait_counted, write_policy},
};

/// New Pods on the server's node.
const LATE: Ipv4Addr = Ipv4Addr::new(10, 12, 1, 21);
const REUSED: Ipv4Addr = Ipv4Addr::new(10, 12, 1, 23);

/// The tables of the guard.
const TABLES: [&str; 2] = ["inet mc_gateway_pods", "bridge mc_gateway_pods"];

/// Packets that a table of the guard on the server's node has dropped; none without the table.
fn dropped_by(bed: &Topology, table: &str) -> Option<u64> {
    let args = ["-j", "list", "table"].into_iter().chain(table.split(' '));
    let text = bed.netns(Place::NodeWest).run("nft", args).ok()?;
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let items = json["nftables"].as_array().expect("items");
    let rules = items.iter().filter(|item| item["rule"]["comment"] == "pod-guard");
    let statements = rules.flat_map(|item| item["rule"]["expr"].as_array().expect("statements"));
    let packets = statements.filter_map(|statement| statement["counter"]["packets"].as_u64());
    Some(packets.sum())
}

/// Packets that the guard on the server's node has dropped.
fn dropped(bed: &Topology) -> u64 {
    TABLES.iter().filter_map(|table| dropped_by(bed, table)).sum()
}

/// Waits until the guard drops requests.
pub(crate) fn wait_guarded(bed: &Bed, client: &Netns, to: Ipv4Addr, what: &str) {
    const REASON: &str = "pod-guard";
    let drops = || [(REASON, dropped(&bed.hosts))].into();
    wait_counted(REASON, what, drops, || get_from(&bed.hosts, client, to));
}

/// Echo requests that a namespace has received.
fn received_requests(netns: &Netns, family: Family) -> u64 {
    let text = |file| netns.run("cat", [file]).expect("counters");
    let count = match family {
        Family::V4 => {
            let text = text("/proc/net/snmp");
            let rows: Vec<Vec<_>> = text
                .lines()
                .filter_map(|line| Some(line.strip_prefix("Icmp: ")?.split(' ').collect()))
                .collect();
            let at = rows[0]
                .iter()
                .position(|name| *name == "InEchos")
                .expect("a column");
            rows[1][at].to_owned()
        }
        Family::V6 => {
            let text = text("/proc/net/snmp6");
            let row = text.lines().find(|line| line.starts_with("Icmp6InEchos "));
            row.and_then(|row| row.split_whitespace().nth(1))
                .expect("a row")
                .to_owned()
        }
    };
    count.parse().expect("a number")
}

/// As [`dropped`], with packets from other clusters that `from_remote` has dropped before the guard.
fn dropped_unseen(bed: &Topology) -> u64 {
    let counters = Counters::read(&bed.bpf_dir(Place::NodeWest)).expect("counters");
    dropped(bed) + counters.drops.get("policy-pod").copied().unwrap_or_default()
}

/// No packet reaches `to` from this client, and each one is counted.
fn assert_closed(bed: &Topology, client: &Netns, (to, addr): (&Netns, IpAddr), what: &str) {
    const SENT: u32 = 2;
    let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
    let before = (received_requests(to, family), dropped_unseen(bed));
    let (to_addr, count) = (addr.to_string(), SENT.to_string());
    let args = ["ping", &to_addr, "--count", &count, "--timeout", "0.3"];
    let ping = bed.traffic().run(client, &args);
    assert!(ping.is_err(), "{what}: {ping:?}");
    // The kernel holds requests back while it resolves the neighbor.
    wait_for(what, TIMEOUT, || {
        match dropped_unseen(bed).saturating_sub(before.1) {
            dropped if dropped >= SENT.into() => Ok(()),
            dropped => Err(format!("{dropped} counted")),
        }
    })
    .expect("each request is counted");
    assert_eq!(received_requests(to, family), before.0, "{what}");
}

/// The opposite of [`assert_closed`].
fn assert_open(bed: &Topology, client: &Netns, addr: IpAddr, what: &str) {
    let ping = bed.traffic().ping(client, addr, 2).expect("ping");
    assert_eq!(ping.received, 2, "{what}");
}

/// Waits until the guard exists on the server's node, or no longer.
fn wait_guard(bed: &Topology, tables: [bool; 2]) {
    wait_for(&format!("tables {TABLES:?}: {tables:?}"), TIMEOUT, || {
        let found = TABLES.map(|table| dropped_by(bed, table).is_some());
        if found == tables {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .expect("tables");
}

/// Waits until the guard knows a port of the bridge: new tables count from zero.
fn wait_port(bed: &Topology, port: &str) {
    wait_for(&format!("port {port}"), TIMEOUT, || {
        let args = "list set bridge mc_gateway_pods ports".split(' ');
        let text = bed.netns(Place::NodeWest).run("nft", args);
        let text = text.map_err(|error| format!("{error:#}"))?;
        if text.contains(&format!("\"{port}\"")) {
            Ok(())
        } else {
            Err(text)
        }
    })
    .expect("the port");
}

impl Bed {
    /// A Pod with a server on the server's node.
    pub(crate) fn add_new_pod(&self, name: &str, ip: Ipv4Addr, bridge: bool) -> (Netns, Process) {
        let pod = add_pod(&self.hosts, Place::NodeWest, name, ip, NODE_GATEWAY, bridge);
        let server = self.serve(&pod, name);
        (pod, server)
    }

    /// A Pod that the agent has not seen reaches its node only, and is reached by it only.
    fn assert_unseen(&self, (pod, ip): (&Netns, Ipv4Addr), what: &str) {
        let node = self.hosts.netns(Place::NodeWest);
        self.wait_passing(node, ip, &format!("the kubelet: {what}"));
        assert_open(
            &self.hosts,
            pod,
            NODE_GATEWAY.into(),
            &format!("to the node: {what}"),
        );
        for (client, netns) in self.clients() {
            if client != "the node" {
                assert_closed(
                    &self.hosts,
                    netns,
                    (pod, ip.into()),
                    &format!("{what} from {client}"),
                );
            }
        }
        let gateway = self.hosts.netns(Place::GatewayWest);
        let east = Cluster::East.pod_ip();
        for (name, to) in [
            ("a Pod of the node", (&self.local, LOCAL.into())),
            ("a Pod of another node", (&self.far, FAR.into())),
            (
                "another node",
                (gateway, Cluster::West.internal_net().addr().into()),
            ),
            ("another cluster", (self.hosts.netns(Place::PodEast), east.into())),
        ] {
            assert_closed(&self.hosts, pod, to, &format!("{what} to {name}"));
        }
    }
}

/// A Pod that starts while no agent runs has no network, also with the address of a Pod that the agent has seen.
fn check_without_agent(name: &str, bridge: bool) {
    let mut bed = start(name, bridge);
    bed.write_pod("reused", Place::NodeWest, REUSED, "other");
    write_policy(&bed.hosts, Cluster::West, CLIENTS_ONLY);
    bed.wait_dropped(&bed.local, server(), "policy", "another label");
    wait_guard(&bed.hosts, [true, bridge]);
    bed.hosts.kill_agent(Place::NodeWest).expect("kill -9");

    let (late, _late) = bed.add_new_pod("late", LATE, bridge);
    let (reused, _reused) = bed.add_new_pod("reused", REUSED, bridge);
    bed.assert_unseen((&late, LATE), "a new Pod");
    bed.assert_unseen((&reused, REUSED), "a new Pod with a known address");
    if bridge {
        let frames = dropped_by(&bed.hosts, TABLES[1]).expect("the table");
        assert!(frames > 0, "frames between the ports are dropped");
    }
    // Pods seen before keep their network and their verdicts.
    bed.wait_passing(&bed.far, server(), "a client");
    bed.wait_dropped(&bed.local, server(), "policy", "another label, without an agent");
    assert_open(&bed.hosts, &bed.far, LOCAL.into(), "Pods seen before");

    bed.write_pod("late", Place::NodeWest, LATE, "server");
    bed.hosts.start_agent(Place::NodeWest).expect("an agent");
    bed.wait_passing(&bed.far, LATE, "a client of the new Pod");
    bed.wait_dropped(&bed.local, LATE, "policy", "no client of the new Pod");
    bed.wait_passing(&bed.far, REUSED, "the other new Pod");
    assert_open(&bed.hosts, &late, FAR.into(), "from the new Pod");
}

#[test]
fn a_routed_pod_that_starts_without_an_agent_has_no_network() {
    check_without_agent("guard-routed", false);
}

#[test]
fn a_bridged_pod_that_starts_without_an_agent_has_no_network() {
    check_without_agent("guard-bridge", true);
}

/// A policy for Pods elsewhere closes new Pods, without programs at any device, until it is removed.
fn check_other_policy(name: &str, bridge: bool) {
    let bed = start(name, bridge);
    wait_guard(&bed.hosts, [false; 2]);
    let elsewhere = "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: policy}\nspec:\n  \
         priority: 1\n  tier: securityops\n  appliedTo: [{podSelector: {matchLabels: {app: absent}}}]\n  ingress:\n  \
         - action: Drop\n";
    write(&bed.hosts, Cluster::West, "policy.yaml", elsewhere);
    wait_guard(&bed.hosts, [true, bridge]);
    let (late, _server) = bed.add_new_pod("late", LATE, bridge);
    if bridge {
        wait_port(&bed.hosts, "late");
    }
    bed.assert_unseen((&late, LATE), "a new Pod");
    assert_eq!(bed.links(), Vec::<String>::new(), "no program");
    // Tables that another program removes or changes return.
    let node = bed.hosts.netns(Place::NodeWest);
    let list = |table: &str| {
        let args = ["-s", "list", "table"].into_iter().chain(table.split(' '));
        node.run("nft", args).map_err(|error| format!("{error:#}"))
    };
    for table in &TABLES[..=usize::from(bridge)] {
        let original = list(table).expect("the table");
        let element = match *table {
            "inet mc_gateway_pods" => "without_device_ip",
            _ => "pods_ip",
        };
        for change in [
            format!("delete table {table}"),
            format!("flush table {table}"),
            format!("add element {table} {element} {{ {LATE} }}"),
        ] {
            node.nft(&change).expect(&change);
            wait_for(&change, TIMEOUT, || match list(table) {
                Ok(text) if text == original => Ok(()),
                Ok(text) | Err(text) => Err(text),
            })
            .expect("the table");
        }
    }
    bed.assert_unseen((&late, LATE), "repaired tables");
    bed.write_pod("late", Place::NodeWest, LATE, "unselected");
    bed.wait_passing(&bed.far, LATE, "a Pod that the agent has seen");
    assert_open(&bed.hosts, &late, LOCAL.into(), "from the Pod");

    remove(&bed.hosts, Cluster::West, "policy.yaml");
    wait_guard(&bed.hosts, [false; 2]);
    let (_reused, _server) = bed.add_new_pod("reused", REUSED, bridge);
    bed.wait_passing(&bed.far, REUSED, "a new Pod without policies");
}

#[test]
fn a_policy_for_other_pods_closes_new_routed_pods() {
    check_other_policy("guard-other", false);
}

#[test]
fn a_policy_for_other_pods_closes_new_bridged_pods() {
    check_other_policy("guard-othbr", true);
}

#[test]
fn cleanup_removes_the_guard_of_pods() {
    let mut bed = start("guard-clean", true);
    write_policy(&bed.hosts, Cluster::West, CLIENTS_ONLY);
    wait_guard(&bed.hosts, [true; 2]);
    bed.hosts.stop_agent(Place::NodeWest).expect("SIGTERM");
    wait_guard(&bed.hosts, [true; 2]);
    bed.hosts.cleanup_agent(Place::NodeWest).expect("cleanup");
    let rules = bed.hosts.netns(Place::NodeWest).run("nft", ["list", "ruleset"]);
    let rules = rules.expect("rules");
    assert!(!rules.contains("mc_gateway"), "{rules}");
}

/// Gives a Pod on the server's node an IPv6 address and a route.
fn add_v6(bed: &Topology, pod: &Netns, device: &str, ip: IpAddr, bridge: bool) {
    let node = bed.netns(Place::NodeWest);
    if bridge {
        let gateway = Cluster::West.nets(Family::V6).pod_gateway.addr();
        pod.ip(&[
            format!("address add {ip}/64 dev eth0 nodad"),
            format!("route add default via {gateway}"),
        ])
        .expect("an address");
        return;
    }
    node.ip(&[
        format!("address add fe80::1/64 dev {device} nodad"),
        format!("route add {ip}/128 dev {device}"),
    ])
    .expect("a route");
    pod.ip(&[
        format!("address add {ip}/128 dev eth0 nodad"),
        "route add default via fe80::1 dev eth0".to_owned(),
    ])
    .expect("an address");
}

/// The guard closes both families.
fn check_dual_stack(name: &str, bridge: bool) {
    let mut options = options(name);
    options.bridge = bridge;
    options.inner = Inner::Dual;
    options.masquerade = Masquerade::Off;
    enforce(&mut options);
    let mut bed = Topology::create(options).expect("the namespaces");
    let _server = policies::start(&mut bed);
    let addr: IpAddr = match Cluster::West.nets(Family::V6).pod_gateway.addr() {
        IpAddr::V6(gateway) => {
            let mut octets = gateway.octets();
            octets[15] = 0x21;
            octets.into()
        }
        IpAddr::V4(_) => unreachable!("an IPv6 address"),
    };
    let manifest =
        |name: &str, ips: [IpAddr; 2], app: &str| pod_manifest(name, Place::NodeWest, &ips, app, "Running");
    let server = Cluster::West.pod_addr(Family::V6);
    let pod = manifest("p", [Cluster::West.pod_ip().into(), server], "server");
    write(&bed, Cluster::West, "pod.yaml", &pod);
    write_policy(
        &bed,
        Cluster::West,
        "  - action: Drop\n    from: [{ipBlock: {cidr: 192.0.2.0/24}}]\n",
    );
    wait_guard(&bed, [true, bridge]);
    let east = bed.netns(Place::PodEast);
    let ping = |to: IpAddr| {
        wait_for(&format!("replies of {to}"), TIMEOUT, || {
            match bed.traffic().ping(east, to, 1) {
                Ok(report) if report.received == 1 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .expect("replies");
    };
    ping(server);

    let late = add_pod(&bed, Place::NodeWest, "late", LATE, NODE_GATEWAY, bridge);
    add_v6(&bed, &late, "late", addr, bridge);
    if bridge {
        wait_port(&bed, "late");
    }
    let (west, node) = (bed.netns(Place::PodWest), bed.netns(Place::NodeWest));
    if !bridge {
        // Pods of one range reach each other through their node.
        let gateway = Cluster::West.nets(Family::V6).pod_gateway.addr();
        west.ip(&[
            format!("route add {LATE}/32 via {NODE_GATEWAY}"),
            format!("route add {addr}/128 via {gateway}"),
        ])
        .expect("routes");
    }
    for (client, to, addr, what) in [
        (east, &late, addr, "from another cluster"),
        (east, &late, LATE.into(), "from another cluster"),
        (west, &late, LATE.into(), "from a Pod of the node"),
        (
            &late,
            east,
            Cluster::East.pod_addr(Family::V6),
            "to another cluster",
        ),
        (&late, west, server, "to a Pod of the node"),
    ] {
        assert_closed(&bed, client, (to, addr), &format!("{what}: {addr}"));
    }
    for to in [addr, LATE.into()] {
        assert_open(&bed, node, to, "the kubelet");
    }
    let pod = manifest("late", [LATE.into(), addr], "unselected");
    write(&bed, Cluster::West, "pod-late.yaml", &pod);
    ping(addr);
    ping(LATE.into());
    assert_open(&bed, &late, server, "to a Pod of the node");
}

#[test]
fn both_families_of_a_new_routed_pod_are_closed() {
    check_dual_stack("guard-dual", false);
}

#[test]
fn both_families_of_a_new_bridged_pod_are_closed() {
    check_dual_stack("guard-dualbr", true);
}
