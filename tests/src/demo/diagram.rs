//! Diagram of a packet's path with real addresses, and commands for exploration.

use ipnet::IpNet;

use crate::topology::{Cluster, Family, Nets, Place, Topology};

/// Device between the gateways.
pub(super) fn inter_gateway_device() -> &'static str {
    Place::GatewayWest
        .underlay_devices()
        .last()
        .copied()
        .unwrap_or_default()
}

/// The path from the Pod in east through both gateways to the Pod in west.
pub(super) fn diagram(family: Family) -> String {
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(family));
    let both = |left: &str, right: &str| format!("{left:<36}{right}\n");
    let hosts = |what: &str, address: fn(&Nets) -> IpNet| {
        let host = |nets| format!("{what:<14}{}", address(nets).addr());
        both(&host(&east), &host(&west))
    };
    let between = format!("{:<14}{} -- Geneve -->", "", gateway(&east).addr());
    [
        both("cluster east", "cluster west"),
        both("", ""),
        hosts("Pod", |nets| nets.pod),
        both("  |", "  ^"),
        hosts("regular node", |nets| nets.node),
        both("  |  to_remote: encapsulate", "  ^  from_underlay: check, decap,"),
        both("  |", "  |  deliver through mc0"),
        both("  | Geneve", "  | Geneve"),
        both("  v", "  |"),
        hosts("gateway", internal),
        format!("{between:<50}{}\n", gateway(&west).addr()),
        both(
            "     from_underlay: check, rewrite",
            "     from_underlay: check, rewrite",
        ),
        both("     outer header, forward", "     outer header, forward"),
    ]
    .concat()
}

/// The gateway's address in the network between the clusters.
fn gateway(nets: &Nets) -> IpNet {
    let [gateway, _] = nets.gateway;
    gateway
}

/// The gateway's address in its cluster's network.
fn internal(nets: &Nets) -> IpNet {
    let [internal, _] = nets.internal;
    internal
}

/// Commands for a topology that was kept.
pub(super) fn next_commands(topology: &Topology) -> String {
    let prefix = &topology.options().prefix;
    let (pod, gateway) = (
        Place::PodEast.scoped_name(prefix),
        Place::GatewayEast.scoped_name(prefix),
    );
    let family = topology.options().outer;
    let server = Cluster::West.pod_addr(family);
    let ip = match family {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    };
    let bpf_dir = topology.bpf_dir(Place::GatewayEast);
    let manifests = topology.manifests_dir(Cluster::East);
    let traffic = topology.options().traffic.display();
    let device = inter_gateway_device();
    let remove =
        std::env::current_exe().map_or_else(|_| "mc-demo".to_owned(), |own| own.display().to_string());
    format!(
        "\
shell in the Pod of east          nsenter --net=/run/netns/{pod} bash
  ping the Pod of west from it    {traffic} ping {server}
packets between the gateways      nsenter --net=/run/netns/{gateway} tcpdump -ni {device} udp port 6081
pinned programs, maps and links   find {bpf_dir}
routes to the other cluster       {ip} -n {gateway} route show proto 109
packets by outcome, per CPU       bpftool map dump pinned {bpf_dir}/{maps}/mc_outcomes
drops by reason, per CPU          bpftool map dump pinned {bpf_dir}/{maps}/mc_drops
log of an agent                   cat {logs}/agent-{name}.log
edit a watched manifest           $EDITOR {manifests}/west.yaml
remove everything                 {remove} --prefix {prefix} --remove
",
        bpf_dir = bpf_dir.display(),
        maps = mc_gateway_common::abi::MAPS_DIR,
        logs = topology.directory().display(),
        name = Place::GatewayEast.name(),
        manifests = manifests.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_diagram_has_every_address_and_fits_a_screen() {
        for family in [Family::V4, Family::V6] {
            let picture = diagram(family);
            for cluster in Cluster::ALL {
                let nets = cluster.nets(family);
                for net in [nets.pod, nets.node, internal(&nets), gateway(&nets)] {
                    assert!(picture.contains(&net.addr().to_string()), "{net}");
                }
            }
            assert!(picture.lines().all(|line| line.chars().count() <= 100));
        }
    }
}
