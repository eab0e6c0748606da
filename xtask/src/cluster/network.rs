//! Namespaces, the underlay that connects them, and the routes between the nodes of a cluster.

use std::{fmt::Write as _, fs, process::Command};

use anyhow::{Context as _, Result};

use super::{
    process::output_with_input,
    topology::{
        BLACKHOLE_GATEWAY, BLACKHOLE_GATEWAY_V6, Cluster, HOST_ADDRESS, Node, Topology, UNDERLAY_LENGTH,
        UNDERLAY_LENGTH_V6, UNDERLAY_NAMESPACE,
    },
};
use crate::cmd;

/// The bridge, in its own namespace, where the host's bridge filters do not apply.
const BRIDGE: &str = "underlay";
/// The machine's own port on the underlay.
pub(crate) const HOST_DEVICE: &str = "mcund0";

/// Creates every namespace and connects it.
pub(crate) fn create(topology: &Topology) -> Result<()> {
    let mut namespaces = String::new();
    for name in topology
        .namespaces()
        .iter()
        .map(String::as_str)
        .chain([UNDERLAY_NAMESPACE])
    {
        push_line(&mut namespaces, format_args!("netns add {name}"));
    }
    ip_batch(None, &namespaces).context("network namespaces")?;
    for name in topology.namespaces() {
        cmd::output(
            Command::new("nsenter")
                .arg(format!("--net=/run/netns/{name}"))
                .args([
                    "sh",
                    "-c",
                    // Forwarding first: it resets other settings. Many distributions set strict reverse-path
                    // filtering, so gateways must work with it. There are no router advertisements.
                    "cd /proc/sys/net/ipv4 && echo 1 >ip_forward && echo 1 >conf/all/rp_filter \
                     && echo 1 >conf/default/rp_filter \
                     && cd ../ipv6/conf && echo 1 >all/forwarding && echo 0 >default/accept_ra",
                ]),
        )
        .with_context(|| format!("settings of {name}"))?;
    }
    let mut underlay = format!("link add {BRIDGE} type bridge\nlink set {BRIDGE} up\nlink set lo up\n");
    // The host's namespace has no name; the ID of this process identifies it.
    add_bridge_port(
        &mut underlay,
        "host",
        &format!("name {HOST_DEVICE} netns {}", std::process::id()),
    );
    for cluster in topology.clusters() {
        add_bridge_port(
            &mut underlay,
            &cluster.control_plane(),
            &format!("name eth0 netns {}", cluster.namespace()),
        );
        for node in cluster.nodes() {
            add_bridge_port(
                &mut underlay,
                node.name(),
                &format!("name eth0 netns {}", node.namespace()),
            );
        }
    }
    ip_batch(Some(UNDERLAY_NAMESPACE), &underlay).context("underlay")?;
    ip_batch(
        None,
        &format!("addr add {HOST_ADDRESS}/{UNDERLAY_LENGTH} dev {HOST_DEVICE}\nlink set {HOST_DEVICE} up\n"),
    )?;
    for cluster in topology.clusters() {
        connect(cluster).with_context(|| format!("network of cluster {}", cluster.name()))?;
    }
    Ok(())
}

/// Gives a cluster's machines their addresses and the routes to its Pods.
fn connect(cluster: &Cluster) -> Result<()> {
    ip_batch(Some(&cluster.namespace()), &control_plane_commands(cluster))?;
    for node in cluster.nodes() {
        let namespace = node.namespace();
        ip_batch(Some(&namespace), &node_commands(cluster, &node))?;
        let mut nft = Command::new("ip");
        nft.args(["netns", "exec", &namespace, "nft", "-f", "-"]);
        output_with_input(&mut nft, &unmasqueraded(cluster)).context("nft")?;
    }
    Ok(())
}

/// A table that exempts packets between Pods of a cluster from the masquerading of the CNI, as Kubernetes requires of
/// networks: in front of it, their source is mapped onto itself.
fn unmasqueraded(cluster: &Cluster) -> String {
    let pods = cluster.pod_cidrs();
    let rules: String = [("ip", Some(&pods.v4)), ("ip6", pods.v6.as_ref())]
        .into_iter()
        .filter_map(|(family, net)| {
            let net = net?;
            Some(format!(
                "    {family} saddr {net} {family} daddr {net} snat {family} to {family} saddr\n"
            ))
        })
        .collect();
    format!(
        "table inet cluster_pods {{\n  chain postrouting {{\n    type nat hook postrouting priority srcnat - 10; \
         policy accept;\n{rules}  }}\n}}\n"
    )
}

/// The control plane, IPv4 only.
fn control_plane_commands(cluster: &Cluster) -> String {
    let mut text = underlay_commands(&cluster.api_address().to_string());
    for node in cluster.nodes() {
        let (pods, via) = (node.pod_cidrs().v4, node.addresses().v4);
        push_line(&mut text, format_args!("route add {pods} via {via}"));
    }
    text
}

fn node_commands(cluster: &Cluster, node: &Node) -> String {
    let addresses = node.addresses();
    let mut text = underlay_commands(&addresses.v4.to_string());
    if let Some(address) = addresses.v6 {
        // The address is unique: no duplicate address detection.
        push_line(
            &mut text,
            format_args!("addr add {address}/{UNDERLAY_LENGTH_V6} dev eth0 nodad"),
        );
        push_line(
            &mut text,
            format_args!("route add default via {BLACKHOLE_GATEWAY_V6} dev eth0"),
        );
    }
    for other in cluster.nodes().filter(|other| other.name() != node.name()) {
        let ways = other
            .pod_cidrs()
            .to_strings()
            .into_iter()
            .zip(other.addresses().to_strings());
        for (pods, via) in ways {
            push_line(&mut text, format_args!("route add {pods} via {via}"));
        }
    }
    text
}

/// The commands for every machine.
fn underlay_commands(address: &str) -> String {
    format!(
        "link set lo up\naddr add {address}/{UNDERLAY_LENGTH} dev eth0\nlink set eth0 up\n\
         route add default via {BLACKHOLE_GATEWAY}\n"
    )
}

/// A port of the bridge, and its other end.
fn add_bridge_port(text: &mut String, name: &str, peer: &str) {
    push_line(text, format_args!("link add p-{name} type veth peer {peer}"));
    push_line(text, format_args!("link set p-{name} master {BRIDGE} up"));
}

fn push_line(text: &mut String, command: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _infallible = writeln!(text, "{command}");
}

/// Runs `ip` commands in one process.
fn ip_batch(namespace: Option<&str>, commands: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    output_with_input(command.args(["-batch", "-"]), commands).map(drop)
}

/// Deletes namespaces that exist, and with them every device in them.
pub(crate) fn delete(namespaces: &[String]) -> Result<()> {
    let ours = namespaces.iter().map(String::as_str).chain([UNDERLAY_NAMESPACE]);
    let mut commands = String::new();
    for name in ours.filter(|name| fs::exists(format!("/run/netns/{name}")).unwrap_or(false)) {
        push_line(&mut commands, format_args!("netns del {name}"));
    }
    // The kernel empties a namespace some time after its deletion; this end would stay until then.
    if fs::exists(format!("/sys/class/net/{HOST_DEVICE}")).unwrap_or(false) {
        push_line(&mut commands, format_args!("link del {HOST_DEVICE}"));
    }
    if commands.is_empty() {
        return Ok(());
    }
    ip_batch(None, &commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_the_other_nodes_are_reached_in_both_families() {
        let topology = Topology::default();
        let [leader, _, west] = topology.clusters() else {
            panic!("{topology}");
        };
        let first = west.nodes().next().unwrap();
        let text = node_commands(west, &first);
        for wanted in [
            "addr add 172.30.3.1/16 dev eth0\n",
            "addr add fd00:30:0:3::1/48 dev eth0 nodad\n",
            "route add default via 172.30.255.254\n",
            "route add default via fd00:30:0:ffff::fffe dev eth0\n",
            "route add 10.13.2.0/24 via 172.30.3.2\n",
            "route add fd00:10:3:2::/64 via fd00:30:0:3::2\n",
        ] {
            assert!(text.contains(wanted), "{wanted}{text}");
        }
        assert!(
            !text.contains("10.13.1.0/24"),
            "its own Pods are behind its bridge: {text}"
        );
        // A single-stack cluster has nothing of the other family.
        let only = leader.nodes().next().unwrap();
        assert!(!node_commands(leader, &only).contains("fd00:"));
        assert!(control_plane_commands(west).contains("route add 10.13.1.0/24 via 172.30.3.1\n"));
    }
}
