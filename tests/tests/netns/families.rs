//! All combinations of inner and outer family in both formats, with one test body.

use std::time::Duration;

use mc_tests::{
    capture::{Capture, Direction},
    topology::{Cluster, Family, Format, Inner, Masquerade, Place, Topology, Variant, write_manifests},
    wait::wait_for,
};

use crate::fixture::{TIMEOUT, open_hundred_connections, options, wait_for_log, with_two_gateways};

pub(crate) fn connected(name: &str, inner: Inner, outer: Family, format: Format) -> Topology {
    let mut options = options(name);
    options.inner = inner;
    options.outer = outer;
    options.format = format;
    options.masquerade = Masquerade::LeavingCluster;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// Asserts ping, TCP and UDP between the Pods in one family, with the client's address preserved.
pub(crate) fn assert_connectivity(bed: &Topology, family: Family) {
    let traffic = bed.traffic();
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let [client, server] = Cluster::ALL.map(|cluster| cluster.pod_addr(family));
    let ping = traffic.ping(east, server, 2).expect("ping");
    assert_eq!((ping.sent, ping.received), (2, 2), "{family:?}");
    let _web = traffic.echo_server(west, "west", 8080).expect("a server");
    let url = format!("http://{}/", std::net::SocketAddr::new(server, 8080));
    let answer = traffic.get(east, &url).expect("an answer");
    assert_eq!(answer, format!("west {client}"));
    let stream = traffic
        .sequenced(east, west, server, 2_000, Duration::from_millis(500))
        .expect("a stream");
    let report = stream.finish(TIMEOUT).expect("a report");
    assert!(
        report.ended && report.lost == 0 && report.duplicated == 0,
        "{family:?}: {report:?}"
    );
}

/// Counts frames between the gateways: UDP to `port` over `outer`, and all IP frames.
fn count_tunnel_frames(bed: &Topology, outer: Family, port: u16, traffic: impl FnOnce()) -> (usize, usize) {
    let file = bed.directory().join("between.pcap");
    let device = Place::GatewayEast.underlay_devices()[1];
    let netns = bed.netns(Place::GatewayEast);
    let capture =
        Capture::start(bed.traffic(), netns, device, Direction::Both, None, &file).expect("a capture");
    traffic();
    let frames = capture.finish().expect("frames");
    let (ether_type, proto, header) = match outer {
        Family::V4 => ([0x08, 0x00], 23, 20),
        Family::V6 => ([0x86, 0xdd], 20, 40),
    };
    let is_tunnel = |frame: &&Vec<u8>| {
        frame[12..14] == ether_type
            && frame[proto] == 17
            && frame[14 + header + 2..14 + header + 4] == port.to_be_bytes()
    };
    // Excludes neighbour and multicast listener discovery.
    let is_other = |frame: &&Vec<u8>| match frame[12..14] {
        [0x08, 0x00] => true,
        [0x86, 0xdd] => frame[20] != 58 && frame[20] != 0,
        _ => false,
    };
    (
        frames.iter().filter(is_tunnel).count(),
        frames.iter().filter(is_other).count(),
    )
}

fn check_families(name: &str, inner: Inner, outer: Family) {
    for (format, port) in [(Format::Geneve, 6081), (Format::Vxlan, 4789)] {
        let bed = connected(name, inner, outer, format);
        let (tunnelled, all) = count_tunnel_frames(&bed, outer, port, || {
            for family in inner.families() {
                assert_connectivity(&bed, *family);
            }
        });
        assert!(tunnelled > 1_000, "{format:?}: {tunnelled} of {all} frames");
        assert_eq!(tunnelled, all, "{format:?}: frames outside the tunnel");
        for node in [Place::NodeEast, Place::NodeWest] {
            assert_eq!(bed.masqueraded(node).expect("a counter"), 0, "{}", node.name());
        }
        check_withdrawal(&bed, inner);
    }
}

/// Asserts that routes to a removed cluster are withdrawn and packets to it do not leave unencapsulated.
fn check_withdrawal(bed: &Topology, inner: Inner) {
    let file = bed.manifests_dir(Cluster::East).join("west.yaml");
    std::fs::remove_file(file).expect("remove");
    for place in [Place::NodeEast, Place::GatewayEast] {
        wait_for("the withdrawal of routes to the other cluster", TIMEOUT, || {
            let seen: Vec<String> = ["-4", "-6"]
                .into_iter()
                .filter_map(|family| {
                    bed.netns(place)
                        .run("ip", [family, "route", "show", "proto", "109"])
                        .ok()
                })
                .filter(|routes| !routes.is_empty())
                .collect();
            if seen.is_empty() {
                Ok(())
            } else {
                Err(seen.concat())
            }
        })
        .expect("withdrawn routes");
    }
    for family in inner.families() {
        let server = Cluster::West.pod_addr(*family);
        let ping = bed.traffic().run(
            bed.netns(Place::PodEast),
            &["ping", &server.to_string(), "--count", "1", "--timeout", "0.2"],
        );
        assert!(ping.is_err(), "{family:?}: {ping:?}");
    }
}

#[test]
fn ipv4_in_ipv4() {
    check_families("f44", Inner::V4, Family::V4);
}

#[test]
fn ipv4_in_ipv6() {
    check_families("f46", Inner::V4, Family::V6);
}

#[test]
fn ipv6_in_ipv4() {
    check_families("f64", Inner::V6, Family::V4);
}

#[test]
fn ipv6_in_ipv6() {
    check_families("f66", Inner::V6, Family::V6);
}

#[test]
fn dual_stack_in_either() {
    check_families("fd4", Inner::Dual, Family::V4);
    check_families("fd6", Inner::Dual, Family::V6);
}

#[test]
fn mc0_sends_no_ipv6_of_its_own() {
    let bed = connected("quiet", Inner::V6, Family::V6, Format::Geneve);
    assert_connectivity(&bed, Family::V6);
    for place in Place::NODES {
        let link_only = ["-6", "-o", "addr", "show", "dev", "mc0", "scope", "link"];
        let addresses = bed.netns(place).run("ip", link_only);
        assert_eq!(addresses.expect("addresses"), "", "{}", place.name());
        let drops = mc_tests::counters::Counters::read(&bed.bpf_dir(place)).expect("counters");
        assert_eq!(drops.drops.len(), 0, "{}: {drops:?}", place.name());
    }
}

#[test]
fn an_underlay_mtu_too_small_for_ipv6_is_reported() {
    let mut options = options("small");
    options.inner = Inner::Dual;
    options.mtu = 1320;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    wait_for_log(
        &mut bed,
        Place::NodeEast,
        &["MTU of 1320", "IPv6 packets need 1280", "raise it to 1330"],
    );
    // Smaller packets pass in both families.
    for family in [Family::V4, Family::V6] {
        let ping = bed
            .traffic()
            .ping(bed.netns(Place::PodEast), Cluster::West.pod_addr(family), 1)
            .expect("ping");
        assert_eq!(ping.received, 1, "{family:?}");
    }
}

#[test]
fn two_gateways_share_the_flows() {
    let bed = with_two_gateways("two");
    assert_connectivity(&bed, Family::V4);
    open_hundred_connections(&bed);
    let transit = |place: Place| {
        mc_tests::counters::Counters::read(&bed.bpf_dir(place))
            .expect("counters")
            .packets(mc_gateway_common::verdict::Outcome::Transit)
    };
    for cluster in Cluster::ALL {
        let both = [transit(cluster.gateway()), transit(cluster.second_gateway())];
        assert!(
            both.iter().all(|packets| *packets > 100),
            "{}: {both:?}",
            cluster.name()
        );
    }
}

#[test]
fn pods_with_addresses_outside_node_cidrs_are_reachable() {
    let mut options = options("cloud");
    options.inner = Inner::Dual;
    let mut bed = Topology::create(options).expect("the namespaces");
    for cluster in Cluster::ALL {
        let directory = bed.manifests_dir(cluster);
        write_manifests(cluster, bed.options(), &directory).expect("manifests");
        let file = directory.join("nodes.yaml");
        let nodes = std::fs::read_to_string(&file).expect("a manifest");
        let without: Vec<&str> = nodes
            .lines()
            .filter(|line| !line.contains("podCIDRs") && !line.contains('/'))
            .collect();
        let without = without.join("\n").replace("spec:\n", "") + "\n";
        assert!(
            without.contains("InternalIP") && !without.contains("podCIDRs"),
            "{without}"
        );
        std::fs::write(&file, without).expect("write");
        let [v4, v6] = [Family::V4, Family::V6].map(|family| cluster.pod_addr(family));
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: n}}\nspec: {{nodeName: {node}, containers: []}}\n\
             status: {{phase: Running, podIP: {v4}, podIPs: [{{ip: {v4}}}, {{ip: \"{v6}\"}}]}}\n",
            node = cluster.node().name()
        );
        std::fs::write(directory.join("pod.yaml"), pod).expect("write");
    }
    bed.configure(Variant::McGateway).expect("the agents");
    for family in [Family::V4, Family::V6] {
        assert_connectivity(&bed, family);
    }
    // The address is withdrawn with its Pod.
    std::fs::remove_file(bed.manifests_dir(Cluster::West).join("pod.yaml")).expect("remove");
    wait_for("the Pod to become unreachable", TIMEOUT, || {
        let server = Cluster::West.pod_ip().to_string();
        let args = ["ping", &server, "--count", "1", "--timeout", "0.2"];
        match bed.traffic().run(bed.netns(Place::PodEast), &args) {
            Ok(report) => Err(report),
            Err(_) => Ok(()),
        }
    })
    .expect("withdrawn");
}
