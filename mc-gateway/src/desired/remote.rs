//! Remote clusters: the valid parts of every ClusterInfoImport.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::antrea;
use super::local::{LocalCluster, field_error};
use super::prefix_ownership::PrefixOwners;
use super::{Established, LocalNode};
use crate::cidr::{parse_address, split_list};
use crate::ids::stable_id;
use crate::objects::{FieldError, Objects, RemoteCluster, RemoteGateway};

/// A validated remote cluster.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) object: String,
    pub(super) cluster_id: String,
    /// ID of the cluster in the maps.
    pub(super) id: u32,
    pub(super) prefixes: BTreeSet<IpNet>,
    /// Addresses and weights, sorted with drained gateways last: every local gateway uses the same ones if there are
    /// too many.
    pub(super) gateways: Vec<(IpAddr, u32)>,
    /// Whether it has an Antrea gateway.
    pub(super) antrea: bool,
    /// Alias of that gateway inside the local cluster.
    pub(super) alias: Option<Ipv4Addr>,
}

/// The remote clusters in the order in which they obtain prefixes, IDs and addresses: those with established prefixes,
/// then the older ones, then by name.
pub(super) fn by_seniority<'o>(objects: &'o Objects, established: &Established) -> Vec<&'o RemoteCluster> {
    let mut infos: Vec<&RemoteCluster> = objects.remotes.iter().collect();
    infos.sort_by_cached_key(|info| {
        (
            established.of_cluster(info).is_empty(),
            info.created.clone(),
            info.name.clone(),
        )
    });
    infos
}

/// All remote clusters. A prefix, ID or address that two of them state belongs to the first one.
pub(super) fn validate(
    infos: &[&RemoteCluster],
    cluster: &LocalCluster,
    me: &LocalNode,
    rejected: &mut Vec<FieldError>,
) -> Vec<Remote> {
    let mut claims = cluster.prefix_owners.clone();
    let mut ids: BTreeMap<u32, (String, String)> = BTreeMap::new();
    let mut gateway_owners: BTreeMap<IpAddr, String> = BTreeMap::new();
    let mut remotes = Vec::new();
    for info in infos {
        let object = info.object();
        let Some(id) = cluster_number(info, &object, me, &mut ids, rejected) else {
            continue;
        };
        let is_antrea = me.antrea_clusters.contains(&info.cluster_id);
        let listed = if is_antrea {
            antrea::active_gateways(info)
        } else {
            &info.gateways
        };
        let gateways = usable_gateways(listed, &object, cluster, &claims, &mut gateway_owners, rejected);
        let mut prefixes = BTreeSet::new();
        let pods = info.pod_cidrs.iter().enumerate();
        let mut services: Vec<&str> = split_list(&info.service_cidr).collect();
        // One of Pod CIDRs and Service CIDR is sufficient.
        if services.is_empty() && info.pod_cidrs.is_empty() {
            services.push("");
        }
        let fields = services
            .into_iter()
            .map(|text| ("spec.serviceCIDR".to_owned(), text))
            .chain(pods.map(|(index, text)| (format!("spec.podCIDRs[{index}]"), text.as_str())));
        for (field, text) in fields {
            let Some(prefix) = claims.parse_and_assign(&object, &field, text, rejected) else {
                continue;
            };
            // Outer packets must not be routed into the tunnel.
            let own = cluster
                .addresses
                .iter()
                .map(|(addr, owner)| (*addr, owner.as_str()));
            let theirs = gateway_owners.iter().map(|(addr, owner)| (*addr, owner.as_str()));
            if let Some((addr, owner)) = own.chain(theirs).find(|(addr, _)| prefix.contains(addr)) {
                claims.release(prefix, &object);
                rejected.push(FieldError {
                    object: object.clone(),
                    field,
                    value: text.to_owned(),
                    reason: format!("contains the underlay address {addr} of {owner}"),
                });
                continue;
            }
            if let Some((addr, owner)) = cluster.pod_within(prefix) {
                claims.release(prefix, &object);
                rejected.push(FieldError {
                    object: object.clone(),
                    field,
                    value: text.to_owned(),
                    reason: format!("contains the address {addr} of {owner}"),
                });
                continue;
            }
            prefixes.insert(prefix);
        }
        let alias = is_antrea
            .then(|| antrea::alias(info, &prefixes, &object, rejected))
            .flatten();
        remotes.push(Remote {
            antrea: is_antrea,
            alias,
            object,
            cluster_id: info.cluster_id.clone(),
            id,
            prefixes,
            gateways,
        });
    }
    remotes
}

/// The ID of the cluster in the maps, if its cluster ID is valid and unique.
fn cluster_number(
    info: &RemoteCluster,
    object: &str,
    me: &LocalNode,
    ids: &mut BTreeMap<u32, (String, String)>,
    rejected: &mut Vec<FieldError>,
) -> Option<u32> {
    let id = stable_id(&info.cluster_id);
    let reason = if info.cluster_id.is_empty() {
        "is missing".to_owned()
    } else if me.cluster_id.as_deref() == Some(info.cluster_id.as_str()) {
        "is the local cluster's ID".to_owned()
    } else if let Some((other, by)) = ids.get(&id) {
        if *other == info.cluster_id {
            format!("is already the ID of {by}")
        } else {
            format!("has the same hash as {other:?} of {by}; rename one of the clusters")
        }
    } else {
        ids.insert(id, (info.cluster_id.clone(), object.to_owned()));
        return Some(id);
    };
    rejected.push(FieldError {
        object: object.to_owned(),
        field: "spec.clusterID".to_owned(),
        value: info.cluster_id.clone(),
        reason,
    });
    None
}

/// The valid gateway addresses: each belongs to one cluster, to no local Node, and to no prefix of another owner, which
/// would receive its packets.
fn usable_gateways(
    listed: &[RemoteGateway],
    object: &str,
    cluster: &LocalCluster,
    claims: &PrefixOwners,
    owners: &mut BTreeMap<IpAddr, String>,
    rejected: &mut Vec<FieldError>,
) -> Vec<(IpAddr, u32)> {
    let mut usable: Vec<(IpAddr, u32)> = Vec::new();
    for (index, gateway) in listed.iter().enumerate() {
        let text = &gateway.ip;
        let field = format!("spec.gatewayInfos[{index}].gatewayIP");
        let addr = match parse_address(text) {
            Ok(addr) => addr,
            Err(error) => {
                rejected.push(field_error(object, &field, text, &error));
                continue;
            }
        };
        let own = cluster
            .addresses
            .iter()
            .find(|(own, _)| *own == addr)
            .map(|(_, owner)| owner);
        let other = owners.get(&addr).filter(|owner| *owner != object);
        if let Some(owner) = own.or(other) {
            rejected.push(FieldError {
                object: object.to_owned(),
                field,
                value: text.clone(),
                reason: format!("is the address of {owner}"),
            });
            continue;
        }
        if let Some(reason) = claims.address_conflict(addr, object) {
            rejected.push(FieldError {
                object: object.to_owned(),
                field,
                value: text.clone(),
                reason,
            });
            continue;
        }
        owners.insert(addr, object.to_owned());
        if !usable.iter().any(|(known, _)| *known == addr) {
            usable.push((addr, gateway.weight));
        }
    }
    if usable.is_empty() {
        rejected.push(FieldError {
            object: object.to_owned(),
            field: "spec.gatewayInfos".to_owned(),
            value: listed
                .iter()
                .map(|gateway| gateway.ip.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            reason: "has no valid gatewayIP: packets to this cluster are dropped".to_owned(),
        });
    }
    usable.sort_by_key(|(addr, weight)| (*weight == 0, *addr));
    usable
}
