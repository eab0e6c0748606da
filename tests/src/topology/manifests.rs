//! The agents' input: YAML manifests of Nodes, Gateways and `ClusterInfoImport`s.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use ipnet::IpNet;

use super::{
    Options,
    plan::{Cluster, Nets, Place},
    secrets::public_key,
};

/// The manifests of a cluster as `(file name, content)`.
#[must_use]
pub fn manifests(cluster: Cluster, options: &Options) -> Vec<(String, String)> {
    let outer = options.outer_families();
    let inner = options.inner.families();
    let written: Vec<Nets> = inner.iter().map(|family| cluster.nets(*family)).collect();
    let others: Vec<Nets> = inner.iter().map(|family| cluster.other().nets(*family)).collect();
    let underlay: Vec<Nets> = outer.iter().map(|family| cluster.nets(*family)).collect();
    let [_, node, gateway] = cluster.places();
    let gateways = options.gateways();
    let mut nodes = vec![node_manifest(
        node,
        &written.iter().map(|nets| nets.node_pods[0]).collect::<Vec<_>>(),
        &underlay.iter().map(|nets| nets.node).collect::<Vec<_>>(),
    )];
    let mut objects = Vec::new();
    let services = comma(written.iter().map(|nets| nets.services));
    for (index, place) in [gateway, cluster.second_gateway()]
        .into_iter()
        .take(gateways)
        .enumerate()
    {
        let of = |nets: &Nets, all: fn(&Nets) -> &[IpNet], at: usize| all(nets).get(at).copied();
        let pods: Vec<IpNet> = written
            .iter()
            .filter_map(|nets| of(nets, |n| &n.node_pods, index + 1))
            .collect();
        let addresses: Vec<IpNet> = underlay
            .iter()
            .filter_map(|nets| of(nets, |n| &n.internal, index))
            .collect();
        nodes.push(node_manifest(place, &pods, &addresses));
        let nets = cluster.nets(options.outer);
        let address = |net: Option<IpNet>| net.map(|net| net.addr().to_string()).unwrap_or_default();
        objects.push(format!(
            "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: Gateway
metadata:
  name: {name}
  namespace: kube-system
gatewayIP: {gateway_ip}
internalIP: {internal_ip}
serviceCIDR: {services}
",
            name = place.name(),
            gateway_ip = address(nets.gateway.get(index).copied()),
            internal_ip = address(nets.internal.get(index).copied()),
        ));
    }
    let other = cluster.other();
    let to_other = other.nets(options.outer).gateway;
    let other_gateways = [other.places()[2], other.second_gateway()];
    let gateway_infos = yaml_items(
        to_other.iter().take(gateways).zip(other_gateways),
        |(net, place)| gateway_info(place, &net.addr().to_string()),
    );
    let keys: Vec<String> = [node, gateway, cluster.second_gateway()].map(key_manifest).into();
    let pod_cidrs = yaml_items(&others, |nets| format!("  - {}", nets.pods));
    let import = format!(
        "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterInfoImport
metadata:
  name: {name}-clusterinfo
  namespace: kube-system
spec:
  clusterID: {name}
  gatewayInfos:
{gateway_infos}  podCIDRs:
{pod_cidrs}  serviceCIDR: {services}
",
        name = other.name(),
        services = comma(others.iter().map(|nets| nets.services)),
    );
    vec![
        ("nodes.yaml".to_owned(), nodes.join("---\n")),
        ("gateway.yaml".to_owned(), objects.join("---\n")),
        (format!("{}.yaml", other.name()), import),
        ("keys.yaml".to_owned(), keys.join("---\n")),
    ]
}

/// One YAML line for each element.
fn yaml_items<T>(of: impl IntoIterator<Item = T>, line: impl Fn(T) -> String) -> String {
    of.into_iter()
        .flat_map(|one| [line(one), "\n".to_owned()])
        .collect()
}

fn comma(nets: impl Iterator<Item = IpNet>) -> String {
    nets.map(|net| net.to_string()).collect::<Vec<_>>().join(",")
}

fn node_manifest(place: Place, pods: &[IpNet], addresses: &[IpNet]) -> String {
    let pod_cidrs = yaml_items(pods, |net| format!("  - {net}"));
    let internal = yaml_items(addresses, |net| {
        format!("  - type: InternalIP\n    address: {}", net.addr())
    });
    format!(
        "\
apiVersion: v1
kind: Node
metadata:
  name: {name}
spec:
  podCIDRs:
{pod_cidrs}status:
  addresses:
{internal}",
        name = place.name(),
    )
}

/// The line of a gateway in `gatewayInfos`.
#[must_use]
pub fn gateway_info(place: Place, address: &str) -> String {
    format!(
        "  - {{gatewayIP: \"{address}\", publicKey: \"{}\"}}",
        public_key(place)
    )
}

fn key_manifest(place: Place) -> String {
    let node = place.name();
    format!(
        "\
apiVersion: mc-gateway.io/v1alpha1
kind: NodeKey
metadata:
  name: {node}
  namespace: kube-system
  ownerReferences:
  - {{apiVersion: v1, kind: Node, name: {node}, uid: uid-of-{node}}}
spec:
  publicKey: {key}
",
        key = public_key(place),
    )
}

/// Creates a directory with the manifests of a cluster.
pub fn write_manifests(cluster: Cluster, options: &Options, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for (name, content) in manifests(cluster, options) {
        let path = directory.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Family, Format, Inner, Links, Masquerade, Secrets};
    use super::*;

    fn options() -> Options {
        Options {
            prefix: "t".to_owned(),
            mtu: 1500,
            bridge: false,
            links: Links::default(),
            masquerade: Masquerade::Off,
            traffic: "mc-traffic".into(),
            agent: None,
            agent_flags: Vec::new(),
            secrets: Secrets::default(),
            inner: Inner::V4,
            outer: Family::V4,
            format: Format::Geneve,
            two_gateways: false,
        }
    }

    #[test]
    fn two_gateways_and_both_families() {
        let mut options = options();
        options.inner = Inner::Dual;
        options.outer = Family::V6;
        options.two_gateways = true;
        let files = manifests(Cluster::East, &options);
        let [nodes, gateways, west, keys] = &files[..] else {
            panic!("{files:?}")
        };
        assert_eq!(nodes.1.matches("kind: Node").count(), 3);
        assert_eq!(gateways.1.matches("kind: Gateway").count(), 2);
        assert!(
            gateways
                .1
                .contains("internalIP: fd00:c011::3\nserviceCIDR: 10.101.0.0/16,fd00:9611::/108\n")
        );
        assert_eq!(keys.1.matches("kind: NodeKey").count(), 3);
        for place in [Cluster::West.places()[2], Cluster::West.second_gateway()] {
            let key = public_key(place).to_string();
            assert!(
                west.1.contains(&format!(", publicKey: \"{key}\"}}\n")),
                "{}",
                place.name()
            );
        }
    }

    #[test]
    fn manifests_of_east_contain_its_nodes_and_the_other_cluster() {
        let files = manifests(Cluster::East, &options());
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nodes.yaml", "gateway.yaml", "west.yaml", "keys.yaml"]);
        let [nodes, gateway, west, _] = &files[..] else {
            panic!("{files:?}")
        };
        assert!(nodes.1.contains("name: node-east") && nodes.1.contains("---\napiVersion: v1"));
        assert!(
            gateway
                .1
                .contains("gatewayIP: 192.168.100.1\ninternalIP: 192.168.11.1\n")
        );
        assert!(west.1.contains("clusterID: west") && west.1.contains("- {gatewayIP: \"192.168.100.2\", "));
    }
}
