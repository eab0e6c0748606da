//! A Pod on a gateway that forges its source. The gateway of the other cluster cannot detect it: to that gateway, all
//! Pods of this cluster belong to one peer.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use mc_tests::{
    counters::Counters,
    netns::Netns,
    topology::{Cluster, Place, Topology},
};

use crate::fixture::connected;

const GATEWAY: Place = Place::GatewayEast;
/// Devices of the Pod and of the gateway's end.
const POD: &str = "eth0";
const TO_POD: &str = "pod0";

/// The address `host` of the gateway's Pod CIDR.
fn gateway_pod_net(host: u32) -> Ipv4Net {
    let net = Cluster::East.gateway_pod_cidr();
    let addr = Ipv4Addr::from(u32::from(net.network()) + host);
    Ipv4Net::new(addr, net.prefix_len()).expect("a network")
}

/// A Pod on the gateway of cluster east, which accepts any source from it.
fn pod_on_gateway(bed: &Topology) -> Netns {
    let pod = Netns::create(&format!("{}-pod-gw", bed.options().prefix)).expect("a namespace");
    let gateway = bed.netns(GATEWAY);
    let mtu = 1400;
    pod.veth(POD, gateway, TO_POD).expect("a device");
    pod.configure_device(POD, gateway_pod_net(9), mtu)
        .expect("an address");
    gateway
        .configure_device(TO_POD, gateway_pod_net(8), mtu)
        .expect("an address");
    pod.ip(&[format!("route add 0.0.0.0/0 via {}", gateway_pod_net(8).addr())])
        .expect("a route");
    let devices = ["all", TO_POD].map(|device| format!("net.ipv4.conf.{device}.rp_filter"));
    let loose: Vec<(&str, &str)> = devices.iter().map(|name| (name.as_str(), "0")).collect();
    gateway.sysctl(&loose).expect("no reverse-path filter");
    pod
}

/// Echo requests that the Pod of cluster west has received.
fn received_pings(bed: &Topology) -> u64 {
    let text = bed
        .netns(Place::PodWest)
        .run("cat", ["/proc/net/snmp"])
        .expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut all = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = all.find(|(name, _)| *name == "InEchos").expect("a counter");
    value.parse().expect("a number")
}

fn spoofed_sources(bed: &Topology) -> u64 {
    let counters = Counters::read(&bed.bpf_dir(GATEWAY)).expect("counters");
    counters.drops.get("inner-source").copied().unwrap_or_default()
}

#[test]
fn a_pod_on_a_gateway_cannot_send_as_a_pod_of_another_node() {
    let bed = connected("spoof");
    let pod = pod_on_gateway(&bed);
    let west = Cluster::West.pod_ip();
    let own = bed.traffic().ping(&pod, west, 3).expect("ping");
    assert_eq!((own.sent, own.received), (3, 3), "from its own address");
    let unused = |net: Ipv4Net| Ipv4Addr::from(u32::from(net.network()) + 77);
    for forged in [
        Cluster::East.pod_ip(),
        unused(Cluster::East.node_pod_cidr()),
        unused(Cluster::West.node_pod_cidr()),
        Ipv4Addr::new(198, 51, 100, 9),
    ] {
        pod.ip(&[
            format!("addr add {forged}/32 dev lo"),
            format!(
                "route add {west}/32 via {} src {forged}",
                gateway_pod_net(8).addr()
            ),
        ])
        .expect("a forged address");
        let (arrived, dropped) = (received_pings(&bed), spoofed_sources(&bed));
        let ping = bed.traffic().ping(&pod, west, 1);
        assert!(
            ping.map_or(true, |report| report.received == 0),
            "{forged}: a reply"
        );
        assert_eq!(
            received_pings(&bed),
            arrived,
            "{forged} arrived in the other cluster"
        );
        assert_eq!(spoofed_sources(&bed), dropped + 1, "{forged}");
        pod.ip(&[
            format!("route del {west}/32"),
            format!("addr del {forged}/32 dev lo"),
        ])
        .expect("no forged address");
    }
    let own = bed.traffic().ping(&pod, west, 3).expect("ping");
    assert_eq!((own.sent, own.received), (3, 3), "from its own address again");
}
