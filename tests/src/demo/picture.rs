//! The path of a packet as a picture with real addresses, and what a person can try. Pure.

use ipnet::Ipv4Net;

use crate::topology::{Cluster, Place, Topology};

/// Device between the gateways.
pub(super) fn between_device() -> &'static str {
    Place::GatewayWest
        .underlay_devices()
        .last()
        .copied()
        .unwrap_or_default()
}

/// The path from the Pod in east down to its gateway, over to the other gateway, and up to the Pod in west.
pub(super) fn picture() -> String {
    let [east, west] = Cluster::ALL;
    let both = |left: &str, right: &str| format!("{left:<36}{right}\n");
    let hosts = |what: &str, address: fn(Cluster) -> Ipv4Net| {
        let host = |cluster| format!("{what:<14}{}", address(cluster).addr());
        both(&host(east), &host(west))
    };
    let between = format!("{:<14}{} -- Geneve -->", "", east.gateway_net().addr());
    [
        both("cluster east", "cluster west"),
        both("", ""),
        hosts("Pod", Cluster::pod_net),
        both("  |", "  ^"),
        hosts("regular node", Cluster::node_net),
        both(
            "  |  to_remote: encapsulate",
            "  ^  from_underlay: check, unwrap,",
        ),
        both("  |", "  |  deliver through mc0"),
        both("  | Geneve", "  | Geneve"),
        both("  v", "  |"),
        hosts("gateway", Cluster::internal_net),
        format!("{between:<50}{}\n", west.gateway_net().addr()),
        both(
            "     from_underlay: check, rewrite",
            "     from_underlay: check, rewrite",
        ),
        both("     the outer header, send on", "     the outer header, send on"),
    ]
    .concat()
}

/// What to look at in a topology that was left up.
pub(super) fn try_this(topology: &Topology) -> String {
    let prefix = &topology.options().prefix;
    let (pod, gateway) = (Place::PodEast.in_lab(prefix), Place::GatewayEast.in_lab(prefix));
    let server = Cluster::West.pod_ip();
    let bpf_dir = topology.bpf_dir(Place::GatewayEast);
    let manifests = topology.manifests_dir(Cluster::East);
    let traffic = topology.options().traffic.display();
    let device = between_device();
    let remove =
        std::env::current_exe().map_or_else(|_| "mc-demo".to_owned(), |own| own.display().to_string());
    format!(
        "\
a shell in the Pod of east        nsenter --net=/run/netns/{pod} bash
  and in it                       {traffic} ping {server}
packets between the gateways      nsenter --net=/run/netns/{gateway} tcpdump -ni {device} udp port 6081
programs, maps and where attached find {bpf_dir}
routes to the other cluster       ip -n {gateway} route show proto 109
packets by path, per CPU          bpftool map dump pinned {bpf_dir}/maps-v2/mc_paths
drops by reason, per CPU          bpftool map dump pinned {bpf_dir}/maps-v2/mc_drops
what an agent says                cat {logs}/agent-{name}.log
change a manifest, it notices     $EDITOR {manifests}/west.yaml
remove everything                 {remove} --prefix {prefix} --remove
",
        bpf_dir = bpf_dir.display(),
        logs = topology.directory().display(),
        name = Place::GatewayEast.name(),
        manifests = manifests.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_every_address_and_fits_a_screen() {
        let picture = picture();
        for cluster in Cluster::ALL {
            for net in [
                cluster.pod_net(),
                cluster.node_net(),
                cluster.internal_net(),
                cluster.gateway_net(),
            ] {
                assert!(picture.contains(&net.addr().to_string()), "{net}");
            }
        }
        assert!(picture.lines().all(|line| line.chars().count() <= 100));
    }
}
