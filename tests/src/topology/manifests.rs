//! What the agents are told, as a user would write it: YAML of Nodes, Gateways and `ClusterInfoImport`s.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::plan::Cluster;

/// The manifests of a cluster as `(file name, content)`.
#[must_use]
pub fn manifests(cluster: Cluster) -> Vec<(String, String)> {
    let [_, node, gateway] = cluster.places();
    let other = cluster.other();
    let nodes = [
        (node, cluster.node_pod_cidr(), cluster.node_net()),
        (gateway, cluster.gateway_pod_cidr(), cluster.internal_net()),
    ]
    .map(|(place, pod_cidr, address)| {
        format!(
            "\
apiVersion: v1
kind: Node
metadata:
  name: {name}
spec:
  podCIDR: {pod_cidr}
  podCIDRs:
  - {pod_cidr}
status:
  addresses:
  - type: InternalIP
    address: {address}
",
            name = place.name(),
            address = address.addr(),
        )
    });
    let gateway = format!(
        "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: Gateway
metadata:
  name: {name}
  namespace: kube-system
gatewayIP: {gateway_ip}
internalIP: {internal_ip}
serviceCIDR: {service_cidr}
",
        name = gateway.name(),
        gateway_ip = cluster.gateway_net().addr(),
        internal_ip = cluster.internal_net().addr(),
        service_cidr = cluster.service_cidr(),
    );
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
  - gatewayIP: {gateway_ip}
  podCIDRs:
  - {pod_cidr}
  serviceCIDR: {service_cidr}
",
        name = other.name(),
        gateway_ip = other.gateway_net().addr(),
        pod_cidr = other.pod_cidr(),
        service_cidr = other.service_cidr(),
    );
    vec![
        ("nodes.yaml".to_owned(), nodes.join("---\n")),
        ("gateway.yaml".to_owned(), gateway),
        (format!("{}.yaml", other.name()), import),
    ]
}

/// Writes the manifests of a cluster into a directory, which is created.
pub fn write_manifests(cluster: Cluster, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for (name, content) in manifests(cluster) {
        let path = directory.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_east_name_its_own_nodes_and_the_other_cluster() {
        let files = manifests(Cluster::East);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nodes.yaml", "gateway.yaml", "west.yaml"]);
        let [nodes, gateway, west] = &files[..] else {
            panic!("{files:?}")
        };
        assert!(nodes.1.contains("name: node-east") && nodes.1.contains("---\napiVersion: v1"));
        assert!(
            gateway
                .1
                .contains("gatewayIP: 192.168.100.1\ninternalIP: 192.168.11.1\n")
        );
        assert!(west.1.contains("clusterID: west") && west.1.contains("- gatewayIP: 192.168.100.2"));
    }
}
