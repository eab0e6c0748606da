//! Endpoints of unreachable clusters: not ready while another cluster serves the same ports.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mc_api::names;

use super::{
    gateway_candidates::NodeHealth,
    imported_endpoints::EndpointsByCluster,
    ip_families::IpFamily,
    node_owner::owns,
    slices::{self, EndpointGroup},
};
use crate::snapshot::{MemberSnapshot, OptionalKind, get};

/// The clusters that the gateways of all Ready Nodes report as unreachable; draining gateways do not count. The set is
/// empty while a gateway has no report, and without a gateway.
pub(super) fn unreachable_clusters(snapshot: &MemberSnapshot) -> BTreeSet<&str> {
    let reports = match &snapshot.node_reachabilities {
        OptionalKind::Present(reports) => reports,
        OptionalKind::Absent => return BTreeSet::new(),
        // After a start the earlier readiness stays.
        OptionalKind::Pending => return marked_clusters(snapshot),
    };
    let active = snapshot.gateways.values().filter(|gateway| gateway.weight() != 0);
    let nodes = active.filter_map(|gateway| get(&snapshot.nodes, "", gateway.metadata.name.as_deref()?));
    let lists = nodes
        .filter(|node| NodeHealth::of(node).is_ready())
        .map(|node| -> BTreeSet<&str> {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let report =
                get(reports, &snapshot.namespace, name).filter(|report| owns(node, &report.metadata));
            let clusters = report.iter().flat_map(|report| &report.spec.unreachable);
            clusters.map(String::as_str).collect()
        });
    lists
        .reduce(|all, list| all.intersection(&list).copied().collect())
        .unwrap_or_default()
}

/// The clusters with an endpoint that is not ready in an imported Service.
fn marked_clusters(snapshot: &MemberSnapshot) -> BTreeSet<&str> {
    let slices = snapshot.endpoint_slices.values();
    let marked = slices.filter(|slice| {
        slices::is_managed(slice) && slice.endpoints.iter().any(|endpoint| !slices::is_ready(endpoint))
    });
    marked
        .filter_map(|slice| slice.labels().get(names::LABEL_MCS_SOURCE_CLUSTER))
        .map(String::as_str)
        .collect()
}

/// Marks the endpoints of these clusters as not ready where another cluster serves every port of theirs in their IP
/// family: the last endpoints of a port stay ready, because silence may be an error of the probes.
pub(super) fn mark_unreachable(clusters: &mut EndpointsByCluster, unreachable: &BTreeSet<&str>) {
    if unreachable.is_empty() {
        return;
    }
    let mut served: BTreeSet<(IpFamily, Option<String>)> = BTreeSet::new();
    for (_, groups) in clusters
        .iter()
        .filter(|(cluster, _)| !unreachable.contains(cluster.as_str()))
    {
        for group in groups {
            for family in group.endpoints.iter().filter_map(slices::ip_family) {
                served.extend(port_names(group).map(|name| (family, name)));
            }
        }
    }
    let dead = clusters
        .iter_mut()
        .filter(|(cluster, _)| unreachable.contains(cluster.as_str()));
    for group in dead.flat_map(|(_, groups)| groups) {
        let names: Vec<_> = port_names(group).collect();
        for endpoint in &mut group.endpoints {
            let Some(family) = slices::ip_family(endpoint) else {
                continue;
            };
            if names.iter().all(|name| served.contains(&(family, name.clone()))) {
                endpoint.conditions.get_or_insert_default().ready = Some(false);
            }
        }
    }
}

fn port_names(group: &EndpointGroup) -> impl Iterator<Item = Option<String>> {
    // Endpoints of a headless Service may have no ports.
    let none = group.ports.is_empty().then_some(None);
    let ports = group.ports.iter();
    ports
        .map(|port| Some(port.name.clone().unwrap_or_default()))
        .chain(none)
}
