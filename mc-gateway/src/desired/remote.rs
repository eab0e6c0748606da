//! Remote clusters: the valid parts of every ClusterInfoImport.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::antrea;
use super::local::LocalCluster;
use super::prefix_ownership::PrefixOwners;
use super::{Established, LocalNode};
use crate::cidr::{parse_address, split_list};
use crate::ids::cluster_id;
use crate::objects::{FieldError, Objects, RemoteCluster, RemoteGateway};
use crate::peer_secret::{PeerAuth, PublicKey, PublicKeyError, SecretPolicy};

/// A validated remote cluster.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) object: String,
    pub(super) cluster_id: String,
    /// ID of the cluster in the maps.
    pub(super) id: u64,
    pub(super) prefixes: BTreeSet<IpNet>,
    /// Sorted with drained gateways last: every local gateway uses the same ones if there are too many.
    pub(super) gateways: Vec<Gateway>,
    /// Whether it has an Antrea gateway.
    pub(super) antrea: bool,
    /// Alias of that gateway inside the local cluster.
    pub(super) alias: Option<Ipv4Addr>,
}

/// A gateway of a remote cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gateway {
    pub(super) addr: IpAddr,
    /// Share of the flows.
    pub(super) weight: u32,
    pub(super) auth: PeerAuth,
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
    let mut ids: BTreeMap<u64, (String, String)> = BTreeMap::new();
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
        // An Antrea gateway never has a secret.
        let unkeyed = is_antrea || me.secrets.unkeyed_clusters.contains(&info.cluster_id);
        let mut gateways = GatewayReader {
            object: &object,
            cluster,
            claims: &claims,
            owners: &mut gateway_owners,
            policy: if unkeyed {
                SecretPolicy::Optional
            } else {
                SecretPolicy::Required
            },
            rejected,
        };
        let gateways = gateways.usable(listed);
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
    ids: &mut BTreeMap<u64, (String, String)>,
    rejected: &mut Vec<FieldError>,
) -> Option<u64> {
    let id = cluster_id(&me.cluster_id_key, &info.cluster_id);
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

/// Validation of the gateways of a cluster.
struct GatewayReader<'r> {
    /// The ClusterInfoImport.
    object: &'r str,
    cluster: &'r LocalCluster,
    claims: &'r PrefixOwners,
    /// Owners of the gateway addresses of all clusters so far.
    owners: &'r mut BTreeMap<IpAddr, String>,
    policy: SecretPolicy,
    rejected: &'r mut Vec<FieldError>,
}

impl GatewayReader<'_> {
    /// The valid gateways: each address belongs to one cluster, to no local Node, and to no prefix of another owner,
    /// which would receive its packets.
    fn usable(&mut self, listed: &[RemoteGateway]) -> Vec<Gateway> {
        let mut usable: Vec<Gateway> = Vec::new();
        for (index, gateway) in listed.iter().enumerate() {
            let addr = match self.address(&gateway.ip) {
                Ok(addr) => addr,
                Err(reason) => {
                    self.reject(
                        format!("spec.gatewayInfos[{index}].gatewayIP"),
                        &gateway.ip,
                        reason,
                    );
                    continue;
                }
            };
            let key = self.public_key(index, &gateway.public_key);
            self.owners.insert(addr, self.object.to_owned());
            if !usable.iter().any(|known| known.addr == addr) {
                usable.push(Gateway {
                    addr,
                    weight: gateway.weight,
                    auth: PeerAuth::new(key, self.policy),
                });
            }
        }
        if usable.is_empty() {
            let all: Vec<_> = listed.iter().map(|gateway| gateway.ip.as_str()).collect();
            let reason = "has no valid gatewayIP: packets to this cluster are dropped".to_owned();
            self.reject("spec.gatewayInfos".to_owned(), &all.join(", "), reason);
        }
        usable.sort_by_key(|gateway| (gateway.weight == 0, gateway.addr));
        usable
    }

    fn address(&self, text: &str) -> Result<IpAddr, String> {
        let addr = parse_address(text).map_err(|error| error.to_string())?;
        let mut own = self.cluster.addresses.iter().filter(|(own, _)| *own == addr);
        let own = own.next().map(|(_, owner)| owner);
        let other = self.owners.get(&addr).filter(|owner| *owner != self.object);
        if let Some(owner) = own.or(other) {
            return Err(format!("is the address of {owner}"));
        }
        self.claims
            .address_conflict(addr, self.object)
            .map_or(Ok(addr), Err)
    }

    fn public_key(&mut self, index: usize, text: &str) -> Option<PublicKey> {
        if text.is_empty() && self.policy != SecretPolicy::Required {
            return None;
        }
        let field = format!("spec.gatewayInfos[{index}].publicKey");
        if text.is_empty() {
            let reason = "is missing: packets of this gateway are dropped, and it gets none; upgrade it, or name the \
                          cluster in --unkeyed-clusters";
            self.reject(field, text, reason.to_owned());
            return None;
        }
        let key = text.parse();
        if let Err(error) = &key {
            let error: &PublicKeyError = error;
            self.reject(field, text, error.to_string());
        }
        key.ok()
    }

    fn reject(&mut self, field: String, value: &str, reason: String) {
        self.rejected.push(FieldError {
            object: self.object.to_owned(),
            field,
            value: value.to_owned(),
            reason,
        });
    }
}
