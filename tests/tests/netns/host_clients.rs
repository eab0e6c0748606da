//! Clients other than Pods: processes on nodes, and packets forwarded by a service proxy.

use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use mc_tests::{
    counters::Counters,
    topology::{Cluster, Family, Inner, Masquerade, Place, Topology, Variant, write_manifests},
    wait::wait_for,
};

use crate::fixture::{TIMEOUT, options};

/// Ports of a Service: its own, its Pod's and its node port.
const SERVICE_PORT: u16 = 80;
const POD_PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;

/// Default gateway of Pods behind a routing CNI.
const fn router(family: Family) -> &'static str {
    match family {
        Family::V4 => "169.254.1.1",
        Family::V6 => "fe80::1",
    }
}

/// Writes the manifests of a cluster with Pod addresses outside of node CIDRs.
fn use_pod_objects(bed: &Topology, cluster: Cluster) {
    let directory = bed.manifests_dir(cluster);
    write_manifests(cluster, bed.options(), &directory).expect("manifests");
    let file = directory.join("nodes.yaml");
    let text = fs::read_to_string(&file).expect("a manifest");
    let without = text.lines().filter(|line| {
        !line.contains("podCIDRs") && !line.contains('/') && *line != "spec:" || line.contains("apiVersion")
    });
    let text = without.flat_map(|line| [line, "\n"]).collect::<String>();
    fs::write(&file, text).expect("write");
    let [v4, v6] = [Family::V4, Family::V6].map(|family| cluster.pod_addr(family));
    let node = cluster.node().name();
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: n}}\nspec: {{nodeName: {node}, containers: []}}\n\
         status: {{phase: Running, podIP: {v4}, podIPs: [{{ip: {v4}}}, {{ip: \"{v6}\"}}]}}\n"
    );
    fs::write(directory.join("pod.yaml"), pod).expect("write");
}

/// Annotates each node with its own address among such Pods, as Calico does.
fn annotate_node_addresses(bed: &Topology) {
    for cluster in Cluster::ALL {
        use_pod_objects(bed, cluster);
        let file = bed.manifests_dir(cluster).join("nodes.yaml");
        let text = fs::read_to_string(&file).expect("a manifest");
        let [v4, v6] = [Family::V4, Family::V6].map(|family| cluster.nets(family).pod_gateway.addr());
        let node = cluster.node().name();
        let own = format!(
            "  name: {node}\n  annotations:\n    projectcalico.org/IPv4VXLANTunnelAddr: {v4}\n    projectcalico.org/IPv6VXLANTunnelAddr: \"{v6}\"\n",
        );
        fs::write(&file, text.replace(&format!("  name: {node}\n"), &own)).expect("write");
    }
}

/// The address in the Service CIDR reserved for a node.
fn reserved_addr(node: Place, family: Family) -> IpAddr {
    let nth = if node == node.cluster().node() { 200 } else { 201 };
    let mut hosts = node.cluster().nets(family).services.hosts();
    hosts.nth(nth).expect("an address")
}

/// Uses Pod addresses outside of node CIDRs, with addresses reserved for nodes as their agents do through the API.
fn reserve_addresses(bed: &Topology) {
    for cluster in Cluster::ALL {
        use_pod_objects(bed, cluster);
        let services = [cluster.node(), cluster.gateway()].map(|node| {
            let [v4, v6] = [Family::V4, Family::V6].map(|family| reserved_addr(node, family));
            format!(
                "apiVersion: v1\nkind: Service\nmetadata:\n  name: mc-node-{}\n  namespace: kube-system\n\
                 \x20 labels: {{mc-gateway.io/reserved-for: node}}\n\
                 spec: {{clusterIP: {v4}, clusterIPs: [{v4}, \"{v6}\"], ports: [{{port: 9}}]}}\n",
                node.name()
            )
        });
        let file = bed.manifests_dir(cluster).join("reserved.yaml");
        fs::write(file, services.join("---\n")).expect("write");
    }
}

fn create(name: &str, bridge: bool) -> Topology {
    let mut options = options(name);
    options.inner = Inner::Dual;
    options.bridge = bridge;
    options.masquerade = Masquerade::LeavingCluster;
    Topology::create(options).expect("the namespaces")
}

/// Configures a routing CNI: the nodes' devices have no address in the Pod CIDRs.
fn use_routed_cni(bed: &Topology) {
    for cluster in Cluster::ALL {
        let [pod, node, _] = cluster.places().map(|place| bed.netns(place));
        for family in [Family::V4, Family::V6] {
            let nets = cluster.nets(family);
            let (own, before, router) = (nets.pod.addr(), nets.pod_gateway, router(family));
            let (one, rest, any) = match family {
                Family::V4 => ("32", "", "0.0.0.0/0"),
                Family::V6 => ("128", " nodad", "::/0"),
            };
            node.ip(&[
                format!("addr del {before} dev pod0"),
                format!("addr add {router}/{one} dev pod0{rest}"),
                format!("route add {own}/{one} dev pod0"),
            ])
            .expect("a node that routes");
            pod.ip(&[
                format!("addr del {} dev eth0", nets.pod),
                format!("addr add {own}/{one} dev eth0{rest}"),
                format!("route add {router}/{one} dev eth0"),
                format!("route replace {any} via {router} dev eth0"),
            ])
            .expect("a Pod behind it");
        }
    }
}

fn connected(name: &str, bridge: bool) -> Topology {
    let mut bed = create(name, bridge);
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// The n-th unreserved Service address of a cluster.
fn service_addr(cluster: Cluster, family: Family, nth: usize) -> SocketAddr {
    let mut hosts = cluster.nets(family).services.hosts();
    SocketAddr::new(hosts.nth(10 + nth).expect("an address"), SERVICE_PORT)
}

/// Exports west's Service. Without endpoints its gateway leaves it to the service proxy.
fn export_without_endpoints(bed: &Topology) {
    let [v4, v6] = [Family::V4, Family::V6].map(|family| service_addr(Cluster::West, family, 0).ip());
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{clusterIP: {v4}, clusterIPs: [{v4}, \"{v6}\"], ports: [{{port: {SERVICE_PORT}}}]}}\n---\n\
         apiVersion: multicluster.x-k8s.io/v1alpha1\nkind: ServiceExport\nmetadata: {{name: web, namespace: shop}}\n"
    );
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), text).expect("a manifest");
    let exported = || {
        let out = bed.run_agent(Place::GatewayWest, &["inspect", "services", "-o", "json"]);
        let text = String::from_utf8_lossy(&out.expect("inspect").stdout).into_owned();
        match text.matches("service proxy").count() {
            2 => Ok(()),
            _ => Err(text),
        }
    };
    wait_for("the exported Service at the gateway", TIMEOUT, exported).expect("a Service");
}

/// Installs the rules of a service proxy: DNAT at the usual priority, and masquerading for clients other than Pods.
fn install_proxy_rules(bed: &Topology, place: Place, family: Family, services: &[(SocketAddr, SocketAddr)]) {
    let ip = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    let pods = place.cluster().nets(family).pods;
    let mut rules = String::new();
    for (from, to) in services {
        let matched = format!("{ip} daddr {} tcp dport {}", from.ip(), from.port());
        writeln!(
            rules,
            "        {ip} saddr != {pods} {matched} meta mark set 0x4000\n        {matched} dnat to {to}"
        )
        .expect("rules");
    }
    bed.netns(place)
        .nft(&format!(
            "table {ip} proxy {{
    chain output {{
        type nat hook output priority -100; policy accept;
{rules}    }}
    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
{rules}    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        meta mark 0x4000 counter masquerade
    }}
}}
"
        ))
        .expect("a service proxy");
}

fn get(bed: &Topology, from: Place, to: SocketAddr) -> String {
    let answer = bed.traffic().get(bed.netns(from), &format!("http://{to}/"));
    let answer = answer.map_err(|error| format!("request from {} to {to}: {error:#}", from.name()));
    answer.expect("a response")
}

/// Dropped packets by node.
fn drops(bed: &Topology) -> Vec<String> {
    let all = bed.nodes().into_iter().filter_map(|place| {
        let counters = Counters::read(&bed.bpf_dir(place)).expect("counters");
        (!counters.drops.is_empty()).then(|| format!("{}: {counters:?}", place.name()))
    });
    all.collect()
}

/// Requests from a process on a regular node to Pods and Services of the other cluster over all paths.
fn check_node_processes(bed: &Topology, own: impl Fn(Family) -> IpAddr) {
    export_without_endpoints(bed);
    let traffic = bed.traffic();
    let (node, west) = (Place::NodeEast, bed.netns(Place::PodWest));
    let _web = traffic.echo_server(west, "west", POD_PORT).expect("a server");
    for family in [Family::V4, Family::V6] {
        let east = Cluster::East.nets(family);
        let pod = SocketAddr::new(Cluster::West.pod_addr(family), POD_PORT);
        let [imported, by_address] = [0, 1].map(|nth| service_addr(Cluster::East, family, nth));
        let exported = service_addr(Cluster::West, family, 0);
        let on_node = SocketAddr::new(east.node.addr(), NODE_PORT);
        let services = [(imported, pod), (by_address, exported), (on_node, pod)];
        // The route lookup for a Service address precedes its translation: the default route.
        let anywhere = format!("via {}", east.internal[0].addr());
        bed.netns(node).route(east.services, &anywhere).expect("a route");
        install_proxy_rules(bed, node, family, &services);
        install_proxy_rules(bed, Place::GatewayWest, family, &[(exported, pod)]);

        let expected = format!("west {}", own(family));
        let ping = traffic.ping(bed.netns(node), pod.ip(), 2).expect("ping");
        assert_eq!((ping.sent, ping.received), (2, 2), "{family:?}");
        assert_eq!(get(bed, node, pod), expected, "a Pod");
        assert_eq!(
            get(bed, node, imported),
            expected,
            "a Service with a Pod as endpoint"
        );
        // From another address of the node.
        let other = unrelated_addr(family);
        let bound = format!("{} dev mc0 src {other}", pod.ip());
        let address: IpAddr = other.parse().expect("an address");
        bed.netns(node).add_address("lo", address).expect("an address");
        bed.netns(node)
            .ip(&[format!("route add {bound}")])
            .expect("a route");
        assert_eq!(get(bed, node, pod), expected, "from {other}");
        bed.netns(node)
            .ip(&[format!("route del {bound}")])
            .expect("no route");
        assert!(
            get(bed, node, by_address).starts_with("west "),
            "a Service address"
        );
        // Forwarded by the proxy for a client other than a Pod.
        assert_eq!(get(bed, Place::GatewayEast, on_node), expected, "a node port");
        let stream = traffic
            .sequenced(bed.netns(node), west, pod.ip(), 1_000, Duration::from_millis(300))
            .expect("a stream");
        let report = stream.finish(TIMEOUT).expect("a report");
        assert!(report.ended && report.lost == 0, "{family:?}: {report:?}");
        // Pods keep their addresses.
        let client = format!("west {}", Cluster::East.pod_addr(family));
        assert_eq!(get(bed, Place::PodEast, pod), client, "a Pod's request");
        assert_eq!(
            get(bed, Place::PodEast, imported),
            client,
            "a Pod's request to a Service"
        );
        let masqueraded = bed.netns(node).run("nft", ["list", "table", ip(family), "proxy"]);
        let masqueraded = masqueraded.expect("rules");
        assert!(masqueraded.contains("counter packets 0"), "{masqueraded}");
    }
    assert_eq!(drops(bed), Vec::<String>::new());
}

/// The regular node's address in the network of its Pods.
fn pod_side_addr(family: Family) -> IpAddr {
    Cluster::East.nets(family).pod_gateway.addr()
}

/// The network address of its Pods.
fn pod_network_addr(family: Family) -> IpAddr {
    Cluster::East.nets(family).pod_gateway.network()
}

/// An address outside of all networks of the clusters.
const fn unrelated_addr(family: Family) -> &'static str {
    match family {
        Family::V4 => "198.51.100.9",
        Family::V6 => "2001:db8::9",
    }
}

const fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

#[test]
fn node_processes_reach_pods_and_services_behind_a_bridge() {
    check_node_processes(&connected("hostbr", true), pod_side_addr);
}

#[test]
fn node_processes_reach_pods_and_services_behind_routed_devices() {
    check_node_processes(&connected("hostveth", false), pod_side_addr);
}

#[test]
fn node_processes_reach_pods_and_services_with_annotated_node_addresses() {
    let mut bed = create("hostcal", false);
    annotate_node_addresses(&bed);
    bed.configure(Variant::McGateway).expect("the agents");
    check_node_processes(&bed, pod_side_addr);
}

#[test]
fn node_processes_reach_pods_and_services_from_reserved_addresses() {
    let mut bed = create("hostres", false);
    use_routed_cni(&bed);
    reserve_addresses(&bed);
    bed.configure(Variant::McGateway).expect("the agents");
    check_node_processes(&bed, |family| reserved_addr(Place::NodeEast, family));
    // Processes on the gateway use its reserved address.
    let west = bed.netns(Place::PodWest);
    let _web = bed
        .traffic()
        .echo_server(west, "west", POD_PORT)
        .expect("a server");
    for family in [Family::V4, Family::V6] {
        let pod = SocketAddr::new(Cluster::West.pod_addr(family), POD_PORT);
        let expected = format!("west {}", reserved_addr(Place::GatewayEast, family));
        assert_eq!(get(&bed, Place::GatewayEast, pod), expected);
    }
}

#[test]
fn node_processes_reach_pods_and_services_with_a_routing_cni() {
    let mut bed = create("hostroute", false);
    use_routed_cni(&bed);
    bed.configure(Variant::McGateway).expect("the agents");
    check_node_processes(&bed, pod_network_addr);
    // The kernel selects it for nothing else.
    for family in [Family::V4, Family::V6] {
        let pod = Cluster::East.pod_addr(family).to_string();
        let route = bed.netns(Place::NodeEast).run("ip", ["route", "get", &pod]);
        let route = route.expect("a route to the node's own Pod");
        assert!(
            route.contains("dev pod0") && !route.contains(&format!("src {} ", pod_network_addr(family))),
            "{route}"
        );
    }
}

/// The agent's routes of a family on a node.
fn routes(bed: &Topology, place: Place, family: &str) -> String {
    let args = [family, "route", "show", "proto", "109"];
    bed.netns(place).run("ip", args).expect("routes")
}

/// Waits until the routes of both families have these sources.
fn wait_source(bed: &Topology, place: Place, sources: [&str; 2]) {
    wait_for(&format!("routes from {sources:?}"), TIMEOUT, || {
        let seen = ["-4", "-6"].map(|family| routes(bed, place, family));
        let good = seen
            .iter()
            .zip(sources)
            .all(|(routes, addr)| routes.contains(&format!(" src {addr} ")));
        if good { Ok(()) } else { Err(seen.concat()) }
    })
    .expect("routes");
}

#[test]
fn the_node_address_in_the_pod_cidr_may_change() {
    let bed = connected("hostaddr", false);
    let (traffic, gateway) = (bed.traffic(), Place::GatewayEast);
    let netns = bed.netns(gateway);
    let _web = traffic
        .echo_server(bed.netns(Place::PodWest), "west", POD_PORT)
        .expect("a server");
    // The network address of the node's Pod CIDR is the fallback.
    let without = ["10.11.0.0", "fd00:11::"];
    wait_source(&bed, gateway, without);
    let held = [Family::V4, Family::V6].map(|family| {
        let url = format!(
            "http://{}/",
            SocketAddr::new(Cluster::West.pod_addr(family), POD_PORT)
        );
        let log = bed.directory().join(format!("hold-{family:?}.log"));
        let args = ["keepalive", &url, "--interval", "5", "--duration", "120"];
        let mut held = netns
            .spawn(&bed.options().traffic, args, &log)
            .expect("a connection");
        held.wait_for_line("connected", TIMEOUT).expect("a connection");
        held
    });
    // The CNI creates the bridge for the first Pod.
    let addresses = ["10.11.0.1", "fd00:11::1"];
    let [v4, v6] = addresses;
    netns
        .ip(&[
            "link add cni0 type bridge",
            "link set cni0 up",
            &format!("addr add {v4}/24 dev cni0"),
            &format!("addr add {v6}/64 dev cni0"),
        ])
        .expect("a bridge");
    wait_source(&bed, gateway, addresses);
    for (family, addr) in [(Family::V4, v4), (Family::V6, v6)] {
        let pod = SocketAddr::new(Cluster::West.pod_addr(family), POD_PORT);
        assert_eq!(get(&bed, gateway, pod), format!("west {addr}"));
    }
    for mut held in held {
        held.stop_cleanly(TIMEOUT)
            .expect("connections from the previous address survive");
    }
    // The kernel removes the routes with the address; a route exists at any time.
    netns
        .ip(&[
            format!("addr del {v4}/24 dev cni0"),
            format!("addr del {v6}/64 dev cni0"),
        ])
        .expect("no address");
    for family in ["-4", "-6"] {
        assert!(routes(&bed, gateway, family).contains("dev mc0"), "{family}");
    }
    wait_source(&bed, gateway, without);
    for family in [Family::V4, Family::V6] {
        let pod = Cluster::West.pod_addr(family);
        let ping = traffic.ping(bed.netns(Place::PodEast), pod, 1).expect("ping");
        assert_eq!(ping.received, 1, "{family:?}");
    }
}
