//! The exchange of cluster networks: Service and Pod CIDRs, gateways.

use std::collections::BTreeSet;

use ipnet::IpNet;
use kube::ResourceExt;
use mc_api::{
    cluster_info::{ClusterInfo, ClusterInfoImport, GatewayInfo},
    gateway::Gateway,
    names,
    resource_export::{FAILURE, ResourceExportSpec, kind as export_kind},
    resource_import::kind,
    validation,
};

use super::{
    ActiveMembership,
    export_status::condition_of,
    is_managed,
    membership::active_cluster_set,
    network_problems::{self, ImportedNetwork, NetworkProblem},
    pod_cidrs::pod_cidrs,
    resource_exports::{apply_export, existing_export},
    set_managed,
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, get},
};

/// The reason of Events about prefixes that the leader refuses.
const NETWORK_REFUSED: &str = "ClusterInfoRefused";

/// Keeps the export of this cluster's network; withdraws it with the last gateway.
pub fn export(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    gateways: &[Gateway],
    plan: &mut Plan,
) {
    let name = names::cluster_info(membership.cluster_id);
    let old = existing_export(membership, &name);
    report_refusal(snapshot, membership, &name, plan);
    let previous = old.and_then(|o| o.spec.cluster_info.as_ref());
    let gateways = ordered_gateways(gateways, previous.map_or(&[], |f| &f.gateway_infos));
    let Some(primary) = gateways.first() else {
        // Without the Service CIDR no gateway is planned yet, which is no withdrawal.
        if let Some(old) = old.filter(|_| !snapshot.service_cidrs.is_empty()) {
            plan.delete(ApiServer::Leader, old);
        }
        return;
    };
    let spec = ResourceExportSpec {
        cluster_id: membership.cluster_id.to_owned(),
        name: membership.cluster_id.to_owned(),
        namespace: snapshot.namespace.clone(),
        kind: export_kind::CLUSTER_INFO.to_owned(),
        cluster_info: Some(Box::new(ClusterInfo {
            cluster_id: membership.cluster_id.to_owned(),
            service_cidr: primary_cidr(&snapshot.service_cidrs),
            service_cidrs: dual_stack_cidrs(&snapshot.service_cidrs),
            gateway_infos: gateways
                .iter()
                .map(|g| GatewayInfo {
                    gateway_ip: g.gateway_ip.clone(),
                    weight: g.weight,
                    public_key: g.public_key.clone(),
                })
                .collect(),
            pod_cidrs: pod_cidrs(snapshot).iter().map(ToString::to_string).collect(),
            wire_guard: primary.wire_guard.clone(),
        })),
        ..ResourceExportSpec::default()
    };
    apply_export(membership, &name, spec, plan);
}

/// Reports prefixes that the leader does not distribute, on the `ClusterSet`.
fn report_refusal(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    export: &str,
    plan: &mut Plan,
) {
    let failure = condition_of(membership, export, FAILURE);
    if let Some((failure, set)) = failure.zip(active_cluster_set(snapshot)) {
        plan.warning_event(ApiServer::Local, set, NETWORK_REFUSED, failure.message.clone());
        plan.issue(
            IssueCode::PrefixesRefused,
            format!("ClusterSet {}", set.name_any()),
            failure.message.clone(),
        );
    }
}

/// The CIDR for implementations with a single Service CIDR: IPv4 if there is one.
fn primary_cidr(cidrs: &[IpNet]) -> String {
    let v4 = cidrs.iter().find(|cidr| matches!(cidr, IpNet::V4(_)));
    v4.or(cidrs.first()).map(ToString::to_string).unwrap_or_default()
}

/// All CIDRs of a dual-stack cluster; empty for one CIDR, as other implementations write it.
fn dual_stack_cidrs(cidrs: &[IpNet]) -> Vec<String> {
    let all = cidrs.iter().map(ToString::to_string);
    all.filter(|_| cidrs.len() > 1).collect()
}

/// Each address once: the primary, the only one that Antrea clusters use, then the other active gateways, then draining
/// ones, each group in the previously exported order.
fn ordered_gateways<'a>(gateways: &'a [Gateway], previous: &[GatewayInfo]) -> Vec<&'a Gateway> {
    let mut order: Vec<_> = gateways.iter().collect();
    order.sort_by_key(|g| {
        let place = previous.iter().position(|f| f.gateway_ip == g.gateway_ip);
        let first = gateways
            .first()
            .is_some_and(|first| first.gateway_ip == g.gateway_ip);
        (g.weight() == 0, !first, place.is_none(), place)
    });
    let mut seen = BTreeSet::new();
    order.retain(|g| seen.insert(&g.gateway_ip));
    order
}

/// One `ClusterInfoImport` for each other cluster.
pub fn import(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let mut desired = vec![];
    for import in membership
        .leader
        .imports
        .values()
        .filter(|i| i.spec.kind == kind::CLUSTER_INFO)
    {
        let Some(info) = &import.spec.cluster_info else {
            continue;
        };
        if info.cluster_id == membership.cluster_id || import.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (info, problems) = accepted(snapshot, info);
        let mut import = ClusterInfoImport::new(&import.name_any(), info);
        import.metadata.namespace = Some(snapshot.namespace.clone());
        set_managed(&mut import);
        desired.push(ImportedNetwork { import, problems });
    }
    network_problems::find(snapshot, &mut desired);
    for network in &desired {
        let new = &network.import;
        let old = get(&snapshot.cluster_infos, &snapshot.namespace, &new.name_any());
        if old.is_none_or(|o| o.spec != new.spec || !is_managed(o.as_ref())) {
            plan.apply(ApiServer::Local, new);
        }
        network_problems::report(snapshot, network, old.map(AsRef::as_ref), plan);
    }
    for old in snapshot.cluster_infos.values().filter(|o| is_managed(o.as_ref())) {
        if !desired.iter().any(|d| d.import.name_any() == old.name_any()) {
            plan.delete(ApiServer::Local, old.as_ref());
        }
    }
}

/// The network without the prefixes that this cluster does not accept, and those.
fn accepted(snapshot: &MemberSnapshot, info: &ClusterInfo) -> (ClusterInfo, Vec<NetworkProblem>) {
    let accepted = &snapshot.config.accepted_cidrs;
    let mut info = info.clone();
    let mut problems = vec![];
    if accepted.is_empty() {
        return (info, problems);
    }
    let mut is_accepted = |cidr: &str| {
        // The agents report an invalid one.
        let is_accepted = validation::cidr(cidr).map_or(true, |prefix| {
            accepted.iter().any(|range| range.contains(&prefix))
        });
        if !is_accepted {
            problems.push(NetworkProblem::not_accepted(cidr));
        }
        is_accepted
    };
    info.service_cidrs.retain(|cidr| is_accepted(cidr));
    info.pod_cidrs.retain(|cidr| is_accepted(cidr));
    if !info.service_cidr.is_empty() && !is_accepted(&info.service_cidr) {
        info.service_cidr.clear();
    }
    (info, problems)
}

/// Deletes the networks of other clusters: there is no membership.
pub fn withdraw(snapshot: &MemberSnapshot, plan: &mut Plan) {
    for old in snapshot.cluster_infos.values().filter(|o| is_managed(o.as_ref())) {
        plan.delete(ApiServer::Local, old.as_ref());
    }
}
