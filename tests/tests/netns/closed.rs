//! Refused packets: forged by a Pod or a host process, and connections of other clusters to nodes and to Services that
//! are not exported.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use ipnet::IpNet;
use mc_gateway_common::verdict::DropReason;
use mc_test_kit::datapath::packets::{Ip, Tunnel, udp, with_checksum};
use mc_tests::{
    counters::Counters,
    topology::{Cluster, Family, Format, Inner, Masquerade, Place, Topology, Variant},
    wait::wait_for,
};
use serde_json::Value;

use crate::fixture::{TIMEOUT, options, web_service};

/// UDP port of the attacked Pod.
const VICTIM_PORT: u16 = 9000;
/// TCP port of every server.
const SERVER_PORT: u16 = 8080;
/// A Service of west.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 102, 0, 10);
/// Bytes of a frame in front of the tunnel header: Ethernet, IP, UDP.
const OUTER_LEN: usize = 14 + 20 + 8;

fn connected(name: &str, flags: &[&str], format: Format) -> Topology {
    let mut options = options(name);
    options.masquerade = Masquerade::LeavingCluster;
    options.format = format;
    options
        .agent_flags
        .extend(flags.iter().map(|flag| (*flag).to_owned()));
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// Packets counted by the rules of the agent's nftables table with this comment; 0 without such rules.
fn nft_counter(bed: &Topology, place: Place, reason: &str) -> u64 {
    let list = ["-j", "list", "table", "inet", "mc_gateway"];
    let text = bed.netns(place).run("nft", list).expect("the table");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let items = json["nftables"].as_array().expect("items");
    let rules = items.iter().filter(|item| item["rule"]["comment"] == reason);
    let statements = rules.flat_map(|item| item["rule"]["expr"].as_array().expect("statements"));
    statements
        .filter_map(|statement| statement["counter"]["packets"].as_u64())
        .sum()
}

fn wait_for_counter(bed: &Topology, place: Place, name: &str, least: u64) {
    wait_for(
        &format!("{least} packets in {name} of {}", place.name()),
        TIMEOUT,
        || {
            let seen = nft_counter(bed, place, name);
            (seen >= least).then_some(()).ok_or(seen.to_string())
        },
    )
    .expect("a count");
}

/// The payload of a tunnel datagram with a datagram from `src` to the attacked Pod.
fn forged(src: IpAddr, format: Format) -> Vec<u8> {
    let dst = IpAddr::from(Cluster::West.pod_ip());
    let datagram = with_checksum(src, dst, 17, udp(1, VICTIM_PORT, b"forged"), 6);
    let any = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut tunnel = Tunnel::new(any, any, &Ip::new(src, dst, 17, datagram));
    tunnel.vxlan = format == Format::Vxlan;
    tunnel.frame().split_off(OUTER_LEN)
}

fn send(bed: &Topology, from: Place, payload: &[u8], to: SocketAddr) {
    let sent = bed.netns(from).enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        Ok(socket.send_to(payload, to))
    });
    // The output hook refuses the datagram of a local socket with EPERM.
    drop(sent.expect("a socket"));
}

/// Any Pod could send in the name of another one of its node to another cluster: the CNI gave its datagram the address
/// of the node, which is a peer. The same with the socket of an unprivileged host process.
#[test]
fn neither_pods_nor_host_processes_send_through_the_tunnel() {
    for (format, port) in [(Format::Geneve, 6081), (Format::Vxlan, 4789)] {
        let bed = connected("forge", &[], format);
        let east = Cluster::East.nets(Family::V4);
        let gateway = SocketAddr::new(east.internal[0].addr(), port);
        let remote = SocketAddr::new(Cluster::West.nets(Family::V4).gateway[0].addr(), port);
        let victim = bed
            .netns(Place::PodWest)
            .enter(|| Ok(UdpSocket::bind(("0.0.0.0", VICTIM_PORT))?));
        let victim = victim.expect("a socket");
        victim.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let neighbour = Ipv4Addr::new(10, 11, 1, 77).into();
        let of_gateway = Ipv4Addr::new(10, 11, 0, 77).into();
        let mut refused = Vec::new();
        for (from, guard, src, to) in [
            (Place::PodEast, Place::NodeEast, neighbour, gateway),
            (Place::NodeEast, Place::NodeEast, neighbour, gateway),
            (Place::GatewayEast, Place::GatewayEast, of_gateway, remote),
        ] {
            let before = nft_counter(&bed, guard, "tunnel-guard");
            for _ in 0..10 {
                send(&bed, from, &forged(src, format), to);
            }
            refused.push((guard, before + 10));
        }
        // A forged datagram would have arrived before this one.
        send(
            &bed,
            Place::PodEast,
            b"genuine",
            (Cluster::West.pod_ip(), VICTIM_PORT).into(),
        );
        let mut buffer = [0; 16];
        let (len, sender) = victim.recv_from(&mut buffer).expect("a datagram");
        assert_eq!(
            (&buffer[..len], sender.ip()),
            (&b"genuine"[..], Cluster::East.pod_ip().into())
        );
        for (guard, packets) in refused {
            wait_for_counter(&bed, guard, "tunnel-guard", packets);
        }
    }
}

/// Packets of a kernel tunnel have the port of the guard, and another inner MAC address.
#[test]
fn a_kernel_tunnel_shares_the_port() {
    let bed = connected("share", &[], Format::Vxlan);
    let east = Cluster::East.nets(Family::V4);
    let (node, gateway) = (east.node.addr(), east.internal[0].addr());
    for (place, local, remote, inner) in [
        (Place::NodeEast, node, gateway, "172.31.0.1/30"),
        (Place::GatewayEast, gateway, node, "172.31.0.2/30"),
    ] {
        bed.netns(place)
            .ip(&[
                format!("link add cni0 type vxlan id 7 dstport 4789 local {local} remote {remote}"),
                "link set cni0 up".to_owned(),
                format!("address add {inner} dev cni0"),
            ])
            .expect("a kernel tunnel");
    }
    let report = bed
        .traffic()
        .ping(bed.netns(Place::NodeEast), Ipv4Addr::new(172, 31, 0, 2), 3)
        .expect("replies");
    assert_eq!(report.received, 3, "{report:?}");
    let across = bed
        .traffic()
        .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 3);
    assert_eq!(across.expect("replies").received, 3);
    for place in [Place::NodeEast, Place::GatewayEast] {
        assert_eq!(nft_counter(&bed, place, "tunnel-guard"), 0, "{}", place.name());
    }
}

/// Opens a connection from east's Pod.
fn connect(bed: &Topology, to: SocketAddr) -> std::io::Result<TcpStream> {
    let pod = bed.netns(Place::PodEast);
    let connected = pod.enter(|| Ok(TcpStream::connect_timeout(&to, Duration::from_secs(1))));
    connected.expect("the Pod's namespace")
}

/// West's addresses that no other cluster has to reach: those of its node in the Pod network, and a `NodePort`.
fn node_ports(family: Family) -> [SocketAddr; 2] {
    let node = Cluster::West.nets(family).pod_gateway.addr();
    [SERVER_PORT, 30_080].map(|port| SocketAddr::new(node, port))
}

/// A `NodePort` of the Pod on west's node.
fn install_node_port(bed: &Topology) {
    for (ip, family) in [("ip", Family::V4), ("ip6", Family::V6)] {
        let pod = SocketAddr::new(Cluster::West.pod_addr(family), SERVER_PORT);
        let node = Cluster::West.nets(family).pod_gateway.addr();
        bed.netns(Place::NodeWest)
            .nft(&format!(
                "table {ip} proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
                 {ip} daddr {node} tcp dport 30080 dnat to {pod}; }}; }}"
            ))
            .expect("a service proxy");
    }
}

/// The kubelet and every `NodePort` of a node were reachable at its address in the Pod network.
#[test]
fn other_clusters_do_not_reach_nodes() {
    for (name, flags, reachable) in [
        ("nodes", &[][..], false),
        ("nodesopen", &["--expose-nodes"][..], true),
    ] {
        let mut options = options(name);
        options.inner = Inner::Dual;
        options
            .agent_flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut bed = Topology::create(options).expect("the namespaces");
        bed.configure(Variant::McGateway).expect("the agents");
        let traffic = bed.traffic();
        let _servers = [(Place::NodeWest, "node"), (Place::PodWest, "pod")].map(|(place, name)| {
            traffic
                .echo_server(bed.netns(place), name, SERVER_PORT)
                .expect("a server")
        });
        install_node_port(&bed);
        for family in [Family::V4, Family::V6] {
            let pod = SocketAddr::new(Cluster::West.pod_addr(family), SERVER_PORT);
            connect(&bed, pod).expect("the Pod is reachable");
            for target in node_ports(family) {
                let before = nft_counter(&bed, Place::NodeWest, "not-for-nodes");
                let opened = connect(&bed, target);
                assert_eq!(opened.is_ok(), reachable, "{name}: {target}: {opened:?}");
                if !reachable {
                    wait_for_counter(&bed, Place::NodeWest, "not-for-nodes", before + 1);
                }
            }
        }
        // Replies to the node's own connections are no new connections.
        let server = bed
            .traffic()
            .echo_server(bed.netns(Place::PodEast), "east", SERVER_PORT);
        let _server = server.expect("a server");
        let url = format!("http://{}:{SERVER_PORT}/", Cluster::East.pod_ip());
        let answer = bed.traffic().get(bed.netns(Place::NodeWest), &url);
        assert!(answer.expect("an answer").starts_with("east"));
    }
}

/// A backend in the host network has the node's underlay address.
#[test]
fn a_host_network_backend_of_an_exported_service_is_reachable() {
    let bed = connected("hostnet", &[], Format::Geneve);
    let server = bed
        .traffic()
        .echo_server(bed.netns(Place::NodeWest), "host", SERVER_PORT);
    let _server = server.expect("a server");
    let node = Cluster::West.node_net().addr();
    let text = web_service(&SERVICE.to_string(), "None", &[(node, "node-west")]);
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), text).expect("a manifest");
    let url = format!("http://{SERVICE}/");
    wait_for("an answer of the host network", TIMEOUT, || {
        bed.traffic()
            .get(bed.netns(Place::PodEast), &url)
            .map_err(|error| format!("{error:#}"))
    })
    .map(|answer| assert!(answer.starts_with("host"), "{answer}"))
    .expect("an answer");
}

fn not_exported(bed: &Topology) -> u64 {
    let counters = Counters::read(&bed.bpf_dir(Place::GatewayWest)).expect("counters");
    counters
        .drops
        .get(DropReason::NotExported.name())
        .copied()
        .unwrap_or_default()
}

/// Every Service of the cluster was reachable with the gateway's address as client, and a packet to an unused Service
/// address left by the gateway's default route.
#[test]
fn services_that_are_not_exported_are_not_reachable() {
    for (name, flags, reachable) in [
        ("unexported", &[][..], false),
        ("allservices", &["--expose-all-services"][..], true),
    ] {
        let bed = connected(name, flags, Format::Geneve);
        let pod = bed
            .traffic()
            .echo_server(bed.netns(Place::PodWest), "pod", SERVER_PORT);
        let _pod = pod.expect("a server");
        let gateway = bed.netns(Place::GatewayWest);
        gateway
            .nft(&format!(
                "table ip proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
                 ip daddr {SERVICE} tcp dport 80 dnat to {}:{SERVER_PORT}; }}; }}",
                Cluster::West.pod_ip()
            ))
            .expect("a service proxy");
        let router = Cluster::West.node_net().addr();
        gateway
            .route(
                IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
                &format!("via {router}"),
            )
            .expect("a default route");
        let before = not_exported(&bed);
        let opened = connect(&bed, (SERVICE, 80).into());
        assert_eq!(opened.is_ok(), reachable, "{name}: {opened:?}");
        assert_eq!(not_exported(&bed) > before, !reachable);
        let unused = Ipv4Addr::new(10, 102, 0, 99);
        let unused = connect(&bed, (unused, 80).into());
        assert!(unused.is_err(), "{unused:?}");
        let dropped = nft_counter(&bed, Place::GatewayWest, "not-exported");
        assert_eq!(dropped > 0, reachable, "{name}: {dropped} untranslated packets");
    }
}

/// The rules of the chain `forward` with their handles.
fn forward_rules(bed: &Topology) -> String {
    let list = ["-a", "list", "chain", "inet", "mc_gateway", "forward"];
    bed.netns(Place::NodeEast).run("nft", list).expect("the chain")
}

/// The agent compared the number of rules only.
#[test]
fn a_rule_that_another_program_replaces_is_restored() {
    let bed = connected("replaced", &[], Format::Geneve);
    let rules = forward_rules(&bed);
    let guard = rules
        .lines()
        .find(|line| line.contains("tunnel-guard"))
        .expect("the guard");
    let (_, handle) = guard.split_once("# handle ").expect("a handle");
    let replace = [
        "replace",
        "rule",
        "inet",
        "mc_gateway",
        "forward",
        "handle",
        handle.trim(),
        "udp",
        "dport",
        "1",
        "accept",
    ];
    bed.netns(Place::NodeEast)
        .run("nft", replace)
        .expect("another rule");
    wait_for("the guard", TIMEOUT, || {
        let rules = forward_rules(&bed);
        rules.contains("tunnel-guard").then_some(()).ok_or(rules)
    })
    .expect("the agent's rule");
}
