//! The endpoints of an imported Service, by exporting cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{EndpointSubset, Service};
use mc_api::{
    names,
    resource_import::{EndpointsImport, kind},
    validation,
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    import_failure::report_failure,
    pod_cidrs::pod_cidrs,
    resource_exports::existing_export,
    slices::{self, SliceIndex},
};
use crate::{
    endpoint_ranges::EndpointRanges,
    plan::{ApiServer, Plan},
    snapshot::MemberSnapshot,
};

/// The endpoints of each exporting cluster; an empty name where the leader does not report the cluster.
pub(super) type EndpointsByCluster = BTreeMap<String, Vec<slices::EndpointGroup>>;

/// The endpoints by cluster; those of this cluster's own export are its Pods.
pub(super) fn endpoints_by_cluster(
    snapshot: &MemberSnapshot,
    local: &SliceIndex<'_>,
    membership: &ActiveMembership<'_>,
    NamespacedName { namespace, name }: &NamespacedName,
    endpoints: &EndpointsImport,
) -> EndpointsByCluster {
    let local = |accepted: &[EndpointSubset]| slices::from_local(local, namespace, name, accepted);
    if !endpoints.clusters.is_empty() {
        return endpoints
            .clusters
            .iter()
            .map(|c| {
                let own = c.cluster_id == membership.cluster_id;
                (
                    c.cluster_id.clone(),
                    if own {
                        local(&c.subsets)
                    } else {
                        slices::from_subsets(&c.subsets)
                    },
                )
            })
            .collect();
    }
    // Antrea's leader sends all subsets in one list; this cluster's own are recognised by their addresses.
    let own_export = names::endpoints_export(membership.cluster_id, namespace, name);
    let own: BTreeSet<_> = existing_export(membership, &own_export)
        .and_then(|e| e.spec.endpoints.as_ref())
        .iter()
        .flat_map(|e| e.subsets.iter().flat_map(|s| s.addresses.iter().flatten()))
        .map(|a| a.ip.as_str())
        .collect();
    let is_own =
        |ip: &str| own.contains(ip) || snapshot.service_cidrs.iter().any(|cidr| cidr_contains(*cidr, ip));
    let (mut others, mut ours) = (endpoints.subsets.clone(), vec![]);
    for subset in &mut others {
        let addresses = subset.addresses.get_or_insert_default();
        let before = addresses.len();
        addresses.retain(|a| !is_own(&a.ip));
        if addresses.len() != before {
            ours.push(subset.clone());
        }
    }
    let mut clusters = EndpointsByCluster::from([(String::new(), slices::from_subsets(&others))]);
    if !ours.is_empty() {
        clusters.insert(membership.cluster_id.to_owned(), local(&ours));
    }
    clusters
}

/// The ranges out of which other clusters may export endpoints to this one.
pub(super) fn endpoint_ranges(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
) -> EndpointRanges {
    let offered = membership.leader.imports.values();
    let offered = offered.filter(|import| import.spec.kind == kind::CLUSTER_INFO);
    let offered = offered.filter_map(|import| import.spec.cluster_info.as_deref());
    // A range that a replaced leader does not have yet stays that of its cluster.
    let known = snapshot.cluster_infos.values().map(|import| &import.spec);
    let announced = offered.chain(known);
    let others = announced.filter(|info| info.cluster_id != membership.cluster_id);
    let nodes = snapshot.nodes.values().flat_map(|node| {
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        addresses.into_iter().flatten()
    });
    let nodes = nodes.filter_map(|address| validation::ip(&address.address).ok());
    let mut local = snapshot.service_cidrs.clone();
    local.extend(pod_cidrs(snapshot));
    local.extend(nodes.map(IpNet::from));
    EndpointRanges::new(others)
        .with_local(local)
        .with_additional(snapshot.config.additional_endpoint_cidrs.clone())
        .with_accepted(snapshot.config.accepted_cidrs.clone())
}

/// Removes the endpoints that their clusters may not export, and reports the first one of each cluster on the Service.
/// Returns the reports.
pub(super) fn leave_out_foreign(
    clusters: &mut EndpointsByCluster,
    (ranges, own_cluster): (&EndpointRanges, &str),
    service: Option<&Service>,
    plan: &mut Plan,
) -> Vec<String> {
    let mut messages = vec![];
    clusters.retain(|cluster, groups| {
        if cluster == own_cluster {
            return true;
        }
        let mut errors = vec![];
        for group in groups.iter_mut() {
            group.endpoints.retain(|endpoint| {
                let ip = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
                let checked = ranges.check(cluster, ip);
                let accepted = checked.is_ok();
                errors.extend(checked.err());
                accepted
            });
        }
        let Some(first) = errors.first() else { return true };
        if let Some(service) = service {
            let more = errors.len().saturating_sub(1);
            let more = if more == 0 {
                String::new()
            } else {
                format!(", and {more} more addresses")
            };
            let message = format!("endpoint of cluster {cluster:?}: {first}; left out{more}");
            messages.push(message.clone());
            report_failure(service, message, plan);
        }
        groups.retain(|group| !group.endpoints.is_empty());
        !groups.is_empty()
    });
    messages
}

fn cidr_contains(cidr: IpNet, ip: &str) -> bool {
    ip.parse::<IpAddr>().is_ok_and(|ip| cidr.contains(&ip))
}

/// Keeps the slices of an imported Service and adds their names to `keep`.
pub(super) fn apply_slices(
    snapshot: &MemberSnapshot,
    service: &Service,
    name: &str,
    clusters: &EndpointsByCluster,
    keep: &mut BTreeSet<NamespacedName>,
    plan: &mut Plan,
) {
    for (cluster, groups) in clusters {
        for slice in slices::build(service, name, cluster, groups.clone()) {
            let key = NamespacedName::from(&slice.metadata);
            if snapshot
                .endpoint_slices
                .get(&key)
                .is_none_or(|old| !slices::is_up_to_date(old, &slice))
            {
                plan.apply(ApiServer::Local, &slice);
            }
            keep.insert(key);
        }
    }
}
