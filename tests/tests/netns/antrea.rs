//! A cluster with an Antrea gateway: west has no agents. A stand-in of kernel parts follows Antrea's flows: one tunnel
//! to our first gateway, SNAT to its own address for requests of its clients, and the tunnel for replies to ours.
//!
//! Antrea's gateway is Open vSwitch with in-cluster tunnels; the stand-in routes plainly within its cluster.

use std::fs;

use mc_tests::{
    counters::Counters,
    failover::wait_alive,
    topology::{Cluster, Format, Masquerade, Place, Topology, write_manifests},
    wait::wait_for,
};

use crate::fixture::{TIMEOUT, bpftool, options, web_service};

/// `gatewayIP`s of the two gateways.
const OURS: &str = "192.168.100.1";
const THEIRS: &str = "192.168.100.2";
/// A Service of each cluster: port 80 by TCP, 53 by UDP.
const SERVICE_EAST: &str = "10.101.0.10";
const SERVICE_WEST: &str = "10.102.0.10";
/// Alias of west's clients in east.
const ALIAS: &str = "10.102.0.0";
/// Pods on east's gateways, with addresses in their Pod CIDRs.
const GATEWAY_PODS: [(Place, &str); 2] = [
    (Place::GatewayEast, "10.11.0.5"),
    (Place::SecondGatewayEast, "10.11.2.5"),
];
/// East's nodes.
const EAST: [Place; 3] = [Place::NodeEast, Place::GatewayEast, Place::SecondGatewayEast];

/// Tunnel device of the stand-in.
const TUNNEL: &str = "antrea0";
/// Next hop of routes through the tunnel: an unused address with the multi-cluster MAC address.
const VIA: &str = "via 169.254.9.1 dev antrea0 onlink";

/// Manifests of east's Service.
fn service() -> String {
    web_service(SERVICE_EAST, "None", &[(Cluster::East.pod_ip(), "node-east")])
}

/// Configures west's gateway and node like Antrea.
fn configure_stand_in(bed: &Topology) {
    let gateway = bed.netns(Place::GatewayWest);
    let (pods, services) = (Cluster::East.pod_cidr(), Cluster::East.service_cidr());
    let west_pod = Cluster::West.pod_ip();
    gateway
        .ip(&[
            format!(
                "link add {TUNNEL} address aa:bb:cc:dd:ee:f0 type vxlan id 0 dstport 4789 local {THEIRS} nolearning"
            ),
            format!("link set {TUNNEL} mtu 1450 up"),
            format!("neighbour add 169.254.9.1 lladdr aa:bb:cc:dd:ee:f0 dev {TUNNEL} nud permanent"),
            format!("route add {pods} {VIA}"),
            format!("route add {services} {VIA}"),
            format!("route add default {VIA} src {THEIRS} table 100"),
            // Only for forwarded packets: encapsulated ones inherit the mark of their inner packets.
            "rule add iif eth0 fwmark 1 lookup 100".to_owned(),
        ])
        .expect("a tunnel");
    let to_ours = ["fdb", "append", "aa:bb:cc:dd:ee:f0", "dev", TUNNEL, "dst", OURS];
    gateway.run("bridge", to_ours).expect("a neighbour");
    let devices = ["all", "eth0", "eth1", TUNNEL].map(|device| format!("net.ipv4.conf.{device}.rp_filter"));
    for device in &devices {
        gateway.sysctl(&[(device, "0")]).expect("no filter");
    }
    gateway
        .nft(&format!(
            "\
table ip antrea {{
    chain classify {{
        type filter hook prerouting priority mangle;
        ct direction reply ip daddr {OURS} meta mark set 1
        iifname {TUNNEL} ct direction original ip saddr {OURS} counter comment \"ours\"
        iifname {TUNNEL} ct direction original ip saddr != {OURS} counter comment \"foreign\"
    }}
    chain proxy {{
        type nat hook prerouting priority dstnat;
        ip daddr {SERVICE_WEST} tcp dport 80 dnat to {west_pod}:8080
        ip daddr {SERVICE_WEST} udp dport 53 dnat to {west_pod}:8080
    }}
    chain hide {{
        type nat hook postrouting priority srcnat;
        oifname {TUNNEL} ip daddr {{ {pods}, {services} }} snat to {THEIRS}
    }}
}}
"
        ))
        .expect("rules");
    let via = "via 192.168.12.1";
    bed.netns(Place::NodeWest)
        .ip(&[
            format!("route add {pods} {via}"),
            format!("route add {services} {via}"),
            format!("route add {OURS} {via}"),
        ])
        .expect("routes");
}

/// East with two gateways and agents, west with neither.
fn connected(name: &str) -> Topology {
    let mut options = options(name);
    options.two_gateways = true;
    options.format = Format::Vxlan;
    options.masquerade = Masquerade::LeavingCluster;
    // The Pods of the gateways are addresses of their namespaces.
    options
        .agent_flags
        .extend(["--antrea-clusters", "west", "--expose-nodes"].map(str::to_owned));
    let mut bed = Topology::create(options).expect("the namespaces");
    for (place, pod) in GATEWAY_PODS {
        bed.netns(place)
            .ip(&[format!("address add {pod}/32 dev lo")])
            .expect("an address");
    }
    let manifests = bed.manifests_dir(Cluster::East);
    write_manifests(Cluster::East, bed.options(), &manifests).expect("manifests");
    fs::write(manifests.join("web.yaml"), service()).expect("a manifest");
    configure_stand_in(&bed);
    for place in EAST {
        bed.spawn_agent(place).expect("an agent");
    }
    for place in EAST {
        bed.wait_agent(place).expect("an agent");
    }
    // An agent that starts late lets the others count probes without an answer.
    wait_alive(&mut bed, &EAST).expect("all alive");
    wait_for("the Service at the gateway", TIMEOUT, || {
        let map = bed
            .bpf_dir(Place::GatewayEast)
            .join(mc_gateway_common::abi::MAPS_DIR);
        let dump = bpftool(&[
            "map",
            "dump",
            "pinned",
            &map.join("mc_services").display().to_string(),
        ]);
        if dump.contains("Found 2 elements") || dump.matches("\"key\"").count() == 2 {
            Ok(())
        } else {
            Err(dump)
        }
    })
    .expect("the Service");
    bed
}

fn get(bed: &Topology, from: Place, to: &str) -> String {
    bed.traffic()
        .get(bed.netns(from), &format!("http://{to}/"))
        .unwrap_or_else(|error| format!("{error:#}"))
}

/// Sends a datagram from a connected socket and returns the reply.
fn udp_request(bed: &Topology, from: Place, to: &str) -> String {
    let script = format!("exec 3<>/dev/udp/{to}; printf hello >&3; timeout 5 head -c 5 <&3 2>&1 || true");
    bed.netns(from)
        .run("bash", ["-c", script.as_str()])
        .expect("bash")
}

/// Sum of the packet counters of nftables rules that contain `words`.
fn nft_packets(bed: &Topology, place: Place, words: &str) -> u64 {
    let rules = bed.netns(place).run("nft", ["list", "ruleset"]).expect("rules");
    let lines = rules.lines().filter(|line| line.contains(words));
    let packets = lines.filter_map(|line| {
        let (_, rest) = line.split_once("counter packets ")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    });
    packets.sum()
}

/// Asserts that east's nodes dropped no packet and west saw no source but our gateway.
fn assert_no_drops(bed: &Topology) {
    for place in EAST {
        let counters = Counters::read(&bed.bpf_dir(place)).expect("counters");
        assert!(
            counters.drops.is_empty() && !counters.events.contains_key("all-next-hops-dead"),
            "{}: {counters:?}",
            place.name()
        );
    }
    assert_eq!(nft_packets(bed, Place::GatewayEast, "ip daddr 192.168.100.1"), 0);
    assert_eq!(nft_packets(bed, Place::GatewayWest, "comment \"foreign\""), 0);
}

#[test]
fn traffic_to_and_from_a_cluster_with_an_antrea_gateway() {
    let mut bed = connected("antrea");
    let [east, west] = [Place::PodEast, Place::PodWest].map(|pod| bed.netns(pod));
    let _west = bed.traffic().echo_server(west, "west", 8080).expect("a server");
    let _east = bed.traffic().echo_server(east, "east", 8080).expect("a server");
    let (pod_east, pod_west) = (Cluster::East.pod_ip(), Cluster::West.pod_ip());
    // Outbound: every client has our gateway's address.
    let hidden = format!("west {OURS}");
    assert_eq!(get(&bed, Place::PodEast, SERVICE_WEST), hidden);
    assert_eq!(get(&bed, Place::PodEast, &format!("{pod_west}:8080")), hidden);
    assert_eq!(
        udp_request(&bed, Place::PodEast, &format!("{SERVICE_WEST}/53")),
        "hello"
    );
    for (place, _) in GATEWAY_PODS {
        assert_eq!(get(&bed, place, SERVICE_WEST), hidden, "from {}", place.name());
    }
    // Inbound: all clients have the alias, for every Pod, and Services are translated.
    let alias = format!("east {ALIAS}");
    assert_eq!(get(&bed, Place::PodWest, SERVICE_EAST), alias);
    assert_eq!(get(&bed, Place::PodWest, &format!("{pod_east}:8080")), alias);
    assert_eq!(
        udp_request(&bed, Place::PodWest, &format!("{SERVICE_EAST}/53")),
        "hello"
    );
    for (place, pod) in GATEWAY_PODS {
        let _server = bed
            .traffic()
            .echo_server(bed.netns(place), "gw", 8080)
            .expect("a server");
        let answer = get(&bed, Place::PodWest, &format!("{pod}:8080"));
        assert_eq!(answer, format!("gw {ALIAS}"), "from {}", place.name());
    }
    let traffic = bed.traffic();
    for (from, to) in [(Place::PodEast, pod_west), (Place::PodWest, pod_east)] {
        let pings = traffic.ping(bed.netns(from), to, 3).expect("pings");
        assert_eq!(pings.received, 3, "{} to {to}: {pings:?}", from.name());
        // No listener: the client receives an ICMP error about its own packet.
        let answer = udp_request(&bed, from, &format!("{to}/9"));
        assert!(answer.contains("refused"), "{} to {to}: {answer:?}", from.name());
    }
    assert_no_drops(&bed);
    let ours = nft_packets(&bed, Place::GatewayWest, "comment \"ours\"");
    assert!(ours > 0, "no packet of our gateway was counted");
    let out = bed
        .run_agent(Place::GatewayEast, &["inspect", "peers"])
        .expect("inspect");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.contains("antrea") && text.contains(&format!("alias {ALIAS}")),
        "{text}"
    );
    for place in EAST {
        bed.stop_agent(place).expect("SIGTERM");
        bed.cleanup_agent(place).expect("cleanup");
        let left = bed.agent_leaks(place).expect("leftovers");
        assert!(left.is_empty(), "{}: {left:?}", place.name());
    }
}

#[test]
fn clients_with_the_same_port_reach_an_antrea_gateway() {
    let bed = connected("antport");
    let west = bed.netns(Place::PodWest);
    let _west = bed.traffic().echo_server(west, "west", 8080).expect("a server");
    // All clients share one port, while earlier connections are still tracked.
    let clients = [Place::PodEast, Place::GatewayEast, Place::SecondGatewayEast];
    for place in clients {
        bed.netns(place)
            .sysctl(&[("net.ipv4.ip_local_port_range", "40000 40001")])
            .expect("a port");
    }
    for place in clients.repeat(2) {
        let answer = get(&bed, place, SERVICE_WEST);
        assert_eq!(answer, format!("west {OURS}"), "from {}", place.name());
    }
    for place in clients {
        assert_eq!(
            udp_request(&bed, place, &format!("{SERVICE_WEST}/53")),
            "hello",
            "from {}",
            place.name()
        );
    }
    assert_no_drops(&bed);
}

#[test]
fn unsolicited_packets_of_an_antrea_gateway_are_dropped() {
    let bed = connected("antguard");
    let gateway = bed.netns(Place::GatewayEast);
    let _server = bed
        .traffic()
        .echo_server(gateway, "gateway", 9999)
        .expect("a server");
    // Outside the tunnel it remains reachable.
    assert!(get(&bed, Place::GatewayWest, &format!("{OURS}:9999")).starts_with("gateway "));
    bed.netns(Place::GatewayWest)
        .ip(&["rule add ipproto tcp to 192.168.100.1 dport 9999 lookup 100"])
        .expect("a rule");
    let answer = get(&bed, Place::GatewayWest, &format!("{OURS}:9999"));
    assert!(!answer.starts_with("gateway "), "{answer}");
    assert!(
        nft_packets(
            &bed,
            Place::GatewayEast,
            "ip daddr 192.168.100.1 ct direction original"
        ) > 0
    );
}
