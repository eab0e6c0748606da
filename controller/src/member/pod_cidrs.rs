//! The Pod CIDRs of this cluster.

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use mc_api::validation;

use crate::snapshot::MemberSnapshot;

/// The configured Pod CIDRs, else those of the Nodes; adjacent ones are aggregated.
pub(super) fn pod_cidrs(snapshot: &MemberSnapshot) -> Vec<IpNet> {
    if !snapshot.config.pod_cidrs.is_empty() {
        return snapshot.config.pod_cidrs.clone();
    }
    let mut all: Vec<_> = snapshot.nodes.values().flat_map(|n| node_cidrs(n)).collect();
    all.sort_unstable();
    IpNet::aggregate(&all)
}

fn node_cidrs(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.as_ref();
    let many = spec
        .and_then(|s| s.pod_cidrs.as_deref())
        .unwrap_or_default()
        .iter();
    let one = spec.and_then(|s| s.pod_cidr.as_ref()).into_iter();
    many.chain(one).filter_map(|c| validation::cidr(c).ok()).collect()
}
