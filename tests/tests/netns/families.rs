//! IPv4 and IPv6, inside and outside, in both formats: one test body for all of them.

use std::time::Duration;

use mc_tests::{
    capture::{Capture, Direction},
    topology::{Cluster, Family, Format, Inner, Masquerade, Place, Topology, Variant, write_manifests},
    wait::wait_for,
};

use crate::bed::{SOON, a_hundred_connections, options, wait_for_log, with_two_gateways};

pub(crate) fn bed(name: &str, inner: Inner, outer: Family, format: Format) -> Topology {
    let mut options = options(name);
    options.inner = inner;
    options.outer = outer;
    options.format = format;
    options.masquerade = Masquerade::LeavingCluster;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

/// Ping, TCP and UDP from Pod to Pod in one family, with the client's address kept.
pub(crate) fn talk(bed: &Topology, family: Family) {
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
    let report = stream.finish(SOON).expect("a report");
    assert!(
        report.ended && report.lost == 0 && report.duplicated == 0,
        "{family:?}: {report:?}"
    );
}

/// How many frames between the gateways are UDP to `port` over `outer`, out of how many IP frames.
fn on_the_wire(bed: &Topology, outer: Family, port: u16, traffic: impl FnOnce()) -> (usize, usize) {
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
    // ICMPv6 between neighbours and multicast listeners is the link's own.
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

fn all_of(name: &str, inner: Inner, outer: Family) {
    for (format, port) in [(Format::Geneve, 6081), (Format::Vxlan, 4789)] {
        let bed = bed(name, inner, outer, format);
        let (tunnelled, all) = on_the_wire(&bed, outer, port, || {
            for family in inner.families() {
                talk(&bed, *family);
            }
        });
        assert!(tunnelled > 1_000, "{format:?}: {tunnelled} of {all} frames");
        assert_eq!(tunnelled, all, "{format:?}: something else is on the wire");
        for node in [Place::NodeEast, Place::NodeWest] {
            assert_eq!(bed.masqueraded(node).expect("a counter"), 0, "{}", node.name());
        }
        withdrawn(&bed, inner);
    }
}

/// Once the other cluster is gone, so are its routes; packets to it are not sent out in clear.
fn withdrawn(bed: &Topology, inner: Inner) {
    let file = bed.manifests_dir(Cluster::East).join("west.yaml");
    std::fs::remove_file(file).expect("remove");
    for place in [Place::NodeEast, Place::GatewayEast] {
        wait_for("routes to the other cluster gone", SOON, || {
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
    all_of("f44", Inner::V4, Family::V4);
}

#[test]
fn ipv4_in_ipv6() {
    all_of("f46", Inner::V4, Family::V6);
}

#[test]
fn ipv6_in_ipv4() {
    all_of("f64", Inner::V6, Family::V4);
}

#[test]
fn ipv6_in_ipv6() {
    all_of("f66", Inner::V6, Family::V6);
}

#[test]
fn both_families_in_either() {
    all_of("fd4", Inner::Dual, Family::V4);
    all_of("fd6", Inner::Dual, Family::V6);
}

#[test]
fn mc0_is_silent_in_ipv6() {
    let bed = bed("quiet", Inner::V6, Family::V6, Format::Geneve);
    talk(&bed, Family::V6);
    for place in Place::NODES {
        let link_only = ["-6", "-o", "addr", "show", "dev", "mc0", "scope", "link"];
        let addresses = bed.netns(place).run("ip", link_only);
        assert_eq!(addresses.expect("addresses"), "", "{}", place.name());
        let drops = mc_tests::counters::Counters::read(&bed.bpf_dir(place)).expect("counters");
        assert_eq!(drops.drops.len(), 0, "{}: {drops:?}", place.name());
    }
}

#[test]
fn an_underlay_too_small_for_ipv6_is_named() {
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
    // What fits still passes, in both families.
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
    talk(&bed, Family::V4);
    a_hundred_connections(&bed);
    let transit = |place: Place| {
        mc_tests::counters::Counters::read(&bed.bpf_dir(place))
            .expect("counters")
            .packets(mc_gateway_common::verdict::Path::Transit)
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
fn pods_whose_addresses_follow_no_node() {
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
        talk(&bed, family);
    }
    // Once the Pod is gone, so is its address.
    std::fs::remove_file(bed.manifests_dir(Cluster::West).join("pod.yaml")).expect("remove");
    wait_for("a Pod that cannot be reached any more", SOON, || {
        let server = Cluster::West.pod_ip().to_string();
        let args = ["ping", &server, "--count", "1", "--timeout", "0.2"];
        match bed.traffic().run(bed.netns(Place::PodEast), &args) {
            Ok(report) => Err(report),
            Err(_) => Ok(()),
        }
    })
    .expect("withdrawn");
}
