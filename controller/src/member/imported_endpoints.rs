//! The endpoints of an imported Service, by exporting cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{EndpointSubset, Service};
use mc_api::{names, resource_import::EndpointsImport};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    resource_exports::existing_export,
    slices::{self, SliceIndex},
};
use crate::{
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
