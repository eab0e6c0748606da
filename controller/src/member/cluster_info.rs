//! This cluster's network, told to the others; and theirs, told to us.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, core::ObjectMeta};

use super::{Session, exports};
use crate::{
    api::{
        cluster_info::{ClusterInfo, ClusterInfoImport, GatewayInfo},
        gateway::Gateway,
        names,
        resource_export::{ResourceExportSpec, kind as export_kind},
        resource_import::kind,
        validation,
    },
    plan::{Plan, Side},
    world::MemberWorld,
};

/// Keeps the export of this cluster's network: updated in place, withdrawn with the last gateway.
pub fn export(world: &MemberWorld, session: &Session<'_>, gateways: &[Gateway], plan: &mut Plan) {
    let name = names::cluster_info(session.cluster_id);
    let old = exports::own(session, &name);
    let former = old.and_then(|o| o.spec.cluster_info.as_ref());
    let gateways = in_order(gateways, former.map_or(&[], |f| &f.gateway_infos));
    let Some(primary) = gateways.first() else {
        // Without the Service CIDR no gateway is planned yet: that is not knowing, not a withdrawal.
        if let Some(old) = old.filter(|_| !world.service_cidrs.is_empty()) {
            plan.delete(Side::Leader, old);
        }
        return;
    };
    let spec = ResourceExportSpec {
        cluster_id: session.cluster_id.to_owned(),
        name: session.cluster_id.to_owned(),
        namespace: world.namespace.clone(),
        kind: export_kind::CLUSTER_INFO.to_owned(),
        cluster_info: Some(Box::new(ClusterInfo {
            cluster_id: session.cluster_id.to_owned(),
            service_cidr: first_of(&world.service_cidrs),
            service_cidrs: more_than_one(&world.service_cidrs),
            gateway_infos: gateways
                .iter()
                .map(|g| GatewayInfo {
                    gateway_ip: g.gateway_ip.clone(),
                    weight: g.weight,
                })
                .collect(),
            pod_cidrs: pod_cidrs(world).iter().map(ToString::to_string).collect(),
            wire_guard: primary.wire_guard.clone(),
        })),
        ..ResourceExportSpec::default()
    };
    exports::put(session, &name, spec, plan);
}

/// The one that implementations which know one Service CIDR use: IPv4 where there is any.
fn first_of(cidrs: &[IpNet]) -> String {
    let v4 = cidrs.iter().find(|cidr| matches!(cidr, IpNet::V4(_)));
    v4.or(cidrs.first()).map(ToString::to_string).unwrap_or_default()
}

/// Not written where other implementations would not write it either.
fn more_than_one(cidrs: &[IpNet]) -> Vec<String> {
    let all = cidrs.iter().map(ToString::to_string);
    all.filter(|_| cidrs.len() > 1).collect()
}

/// Each address once: the first one, which is the only one that some clusters use, then the others, active gateways
/// before those being drained, and otherwise as told before.
fn in_order<'a>(gateways: &'a [Gateway], former: &[GatewayInfo]) -> Vec<&'a Gateway> {
    let mut order: Vec<_> = gateways.iter().collect();
    order.sort_by_key(|g| {
        let place = former.iter().position(|f| f.gateway_ip == g.gateway_ip);
        let first = gateways
            .first()
            .is_some_and(|first| first.gateway_ip == g.gateway_ip);
        (g.weight() == 0, !first, place.is_none(), place)
    });
    let mut seen = BTreeSet::new();
    order.retain(|g| seen.insert(&g.gateway_ip));
    order
}

/// Configured, else what the Nodes have; adjacent ones joined.
pub(super) fn pod_cidrs(world: &MemberWorld) -> Vec<IpNet> {
    if !world.config.pod_cidrs.is_empty() {
        return world.config.pod_cidrs.clone();
    }
    let mut all: Vec<_> = world.nodes.values().flat_map(|n| node_cidrs(n)).collect();
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

/// One `ClusterInfoImport` for each other cluster.
pub fn import(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) {
    let mut wanted = vec![];
    for import in session
        .leader
        .imports
        .values()
        .filter(|i| i.spec.kind == kind::CLUSTER_INFO)
    {
        let Some(info) = &import.spec.cluster_info else {
            continue;
        };
        if info.cluster_id == session.cluster_id || import.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let mut new = ClusterInfoImport::new(&import.name_any(), (**info).clone());
        new.metadata.namespace = Some(world.namespace.clone());
        new.labels_mut()
            .insert(names::LABEL_MADE_BY.to_owned(), names::MANAGED_BY.to_owned());
        wanted.push(new);
    }
    check(world, &wanted, plan);
    for new in &wanted {
        let old = world
            .cluster_infos
            .values()
            .find(|o| o.name_any() == new.name_any());
        if old.is_none_or(|o| o.spec != new.spec || !made_by_us(&o.metadata)) {
            plan.apply(Side::Local, new);
        }
    }
    for old in world.cluster_infos.values().filter(|o| made_by_us(&o.metadata)) {
        if !wanted.iter().any(|w| w.name_any() == old.name_any()) {
            plan.delete(Side::Local, old.as_ref());
        }
    }
}

/// No membership, no other clusters.
pub fn withdraw(world: &MemberWorld, plan: &mut Plan) {
    for old in world.cluster_infos.values().filter(|o| made_by_us(&o.metadata)) {
        plan.delete(Side::Local, old.as_ref());
    }
}

fn made_by_us(metadata: &ObjectMeta) -> bool {
    metadata
        .labels
        .as_ref()
        .and_then(|l| l.get(names::LABEL_MADE_BY))
        .is_some_and(|v| v == names::MANAGED_BY)
}

/// What the gateways will refuse. They are told all the same, so that the refusal shows where traffic is missed.
fn check(world: &MemberWorld, infos: &[ClusterInfoImport], plan: &mut Plan) {
    let own = world
        .service_cidrs
        .iter()
        .map(|c| ("this cluster's Service CIDR".to_owned(), *c));
    let own = own.chain(
        pod_cidrs(world)
            .into_iter()
            .map(|c| ("this cluster's Pod CIDR".to_owned(), c)),
    );
    let mut taken: Vec<(String, IpNet)> = own.collect();
    for info in infos {
        let subject = format!("ClusterInfoImport {}", info.name_any());
        let service = info.spec.service_cidrs();
        let service = service.iter().map(|(field, cidr)| (field.clone(), *cidr));
        let pods = info
            .spec
            .pod_cidrs
            .iter()
            .enumerate()
            .map(|(i, c)| (format!("spec.podCIDRs[{i}]"), c.as_str()));
        let mut theirs = vec![];
        for (field, value) in service.chain(pods) {
            match validation::cidr(value) {
                Err(cause) => plan.notice(&subject, format!("{field}: {cause}")),
                Ok(net) => {
                    for (whose, other) in &taken {
                        if overlap(*other, net) {
                            plan.notice(&subject, format!("{field}: {net} overlaps {whose}, {other}"));
                        }
                    }
                    theirs.push((format!("{field} of cluster {:?}", info.spec.cluster_id), net));
                }
            }
        }
        for (i, gateway) in info.spec.gateway_infos.iter().enumerate() {
            if let Err(cause) = validation::gateway_ip(&gateway.gateway_ip) {
                plan.notice(&subject, format!("spec.gatewayInfos[{i}].gatewayIP: {cause}"));
            }
        }
        if info.spec.gateway_infos.is_empty() {
            plan.notice(
                &subject,
                "spec.gatewayInfos is empty: the cluster cannot be reached",
            );
        }
        taken.extend(theirs);
    }
}

fn overlap(a: IpNet, b: IpNet) -> bool {
    let first = |n: IpNet| -> IpAddr { n.network() };
    a.contains(&first(b)) || b.contains(&first(a))
}
