//! Endpoints of unreachable clusters: not ready while another cluster serves the same ports.

use std::collections::{BTreeMap, BTreeSet};

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

/// The reports of this cluster's gateways on Ready Nodes. Draining gateways do not count.
#[derive(Debug, Default)]
pub(super) struct GatewayReports<'a> {
    gateways: usize,
    /// The numbers of gateways that reach each cluster.
    reaching: BTreeMap<&'a str, usize>,
    /// The numbers of gateways that report each cluster as unreachable.
    not_reaching: BTreeMap<&'a str, usize>,
}

/// The reports of the gateways. Unless the agents' reports are listed, all gateways are without one.
pub(super) fn gateway_reports(snapshot: &MemberSnapshot) -> GatewayReports<'_> {
    let mut all = GatewayReports::default();
    let active = snapshot.gateways.values().filter(|gateway| gateway.weight() != 0);
    let nodes = active.filter_map(|gateway| get(&snapshot.nodes, "", gateway.metadata.name.as_deref()?));
    for node in nodes.filter(|node| NodeHealth::of(node).is_ready()) {
        all.gateways = all.gateways.saturating_add(1);
        let OptionalKind::Present(reports) = &snapshot.node_reachabilities else {
            continue;
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let report = get(reports, &snapshot.namespace, name).filter(|report| owns(node, &report.metadata));
        if let Some(report) = report {
            count(&mut all.reaching, &report.spec.reachable);
            count(&mut all.not_reaching, &report.spec.unreachable);
        }
    }
    all
}

/// Counts a gateway for each cluster of its list.
fn count<'a>(gateways: &mut BTreeMap<&'a str, usize>, clusters: &'a [String]) {
    let clusters: BTreeSet<_> = clusters.iter().map(String::as_str).collect();
    for cluster in clusters {
        let number = gateways.entry(cluster).or_default();
        *number = number.saturating_add(1);
    }
}

/// The clusters that the gateways of all Ready Nodes report as unreachable. The set is empty while a gateway has no
/// report, and without a gateway.
pub(super) fn unreachable_clusters(snapshot: &MemberSnapshot) -> BTreeSet<&str> {
    // After a start the earlier readiness stays.
    if matches!(snapshot.node_reachabilities, OptionalKind::Pending) {
        return marked_clusters(snapshot);
    }
    let reports = gateway_reports(snapshot);
    let of_all = reports
        .not_reaching
        .iter()
        .filter(|(_, number)| **number == reports.gateways);
    of_all.map(|(cluster, _)| *cluster).collect()
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

// === impl GatewayReports ===

impl GatewayReports<'_> {
    /// The number of gateways.
    pub(super) const fn gateways(&self) -> usize {
        self.gateways
    }

    /// The number of gateways that reach a cluster.
    pub(super) fn reaching(&self, cluster: &str) -> usize {
        self.reaching.get(cluster).copied().unwrap_or_default()
    }

    /// The number of gateways that report a cluster as unreachable.
    pub(super) fn not_reaching(&self, cluster: &str) -> usize {
        self.not_reaching.get(cluster).copied().unwrap_or_default()
    }
}
