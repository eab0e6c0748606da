//! Remote clusters: the valid parts of every ClusterInfoImport.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

use super::antrea;
use super::local::{LocalCluster, field_error, first_within};
use super::prefix_ownership::PrefixOwners;
use super::{Established, LocalNode};
use crate::cidr::{parse_address, parse_prefix, split_list};
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
    /// Sorted and unique.
    pub(super) prefixes: Vec<IpNet>,
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

/// Position of a cluster in the order in which clusters obtain prefixes, IDs and addresses: those with established
/// prefixes, then the older ones, then by name.
pub(super) fn seniority(info: &RemoteCluster, is_established: bool) -> impl Ord {
    (!is_established, &info.created, &info.name)
}

/// The remote clusters by seniority. Each has its established prefixes.
pub(super) fn by_seniority<'o>(
    objects: &'o Objects,
    established: &Established,
) -> Vec<(&'o Arc<RemoteCluster>, BTreeSet<IpNet>)> {
    let remotes = objects.remotes.iter();
    let mut infos: Vec<(&Arc<RemoteCluster>, BTreeSet<IpNet>)> =
        remotes.map(|info| (info, established.of_cluster(info))).collect();
    infos.sort_by(|(a, a_prefixes), (b, b_prefixes)| {
        seniority(a, !a_prefixes.is_empty()).cmp(&seniority(b, !b_prefixes.is_empty()))
    });
    infos
}

/// The valid part of a ClusterInfoImport.
#[derive(Clone, Debug)]
pub(super) struct ReadCluster {
    pub(super) info: Arc<RemoteCluster>,
    /// None without a valid cluster ID.
    pub(super) remote: Option<Arc<Remote>>,
    pub(super) rejected: Vec<FieldError>,
}

/// The remote clusters with their prefixes and addresses.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    /// By seniority.
    pub(super) clusters: Vec<ReadCluster>,
    /// Owners of all gateway addresses.
    pub(super) gateway_owners: BTreeMap<IpAddr, Arc<str>>,
    /// Whether two statements exclude each other: two clusters, a cluster and the local one, or a prefix and a gateway
    /// of one cluster. Otherwise each cluster is as if it were alone.
    pub(super) collide: bool,
}

/// All remote clusters. A prefix, ID or address that two of them state belongs to the first one. `claims` are the
/// established prefixes and those of the local cluster.
pub(super) fn validate<'o>(
    infos: impl IntoIterator<Item = &'o Arc<RemoteCluster>>,
    cluster: &LocalCluster,
    claims: PrefixOwners,
    me: &LocalNode,
) -> Remotes {
    let mut reader = Reader::new(cluster, claims, me);
    for info in infos {
        reader.read(info, &[]);
    }
    reader.remotes
}

/// Validation of the remote clusters, one after the other.
pub(super) struct Reader<'r> {
    cluster: &'r LocalCluster,
    me: &'r LocalNode,
    claims: PrefixOwners,
    /// Cluster ID and object of each ID in the maps.
    ids: BTreeMap<u64, (String, Arc<str>)>,
    pub(super) remotes: Remotes,
    /// Rejected fields of the present cluster.
    rejected: Vec<FieldError>,
}

impl<'r> Reader<'r> {
    pub(super) fn new(cluster: &'r LocalCluster, claims: PrefixOwners, me: &'r LocalNode) -> Self {
        Self {
            cluster,
            me,
            claims,
            ids: BTreeMap::new(),
            remotes: Remotes::default(),
            rejected: Vec::new(),
        }
    }

    /// Adds a cluster that is valid already, except its prefixes to the claims.
    pub(super) fn adopt(&mut self, known: ReadCluster) {
        if let Some(remote) = &known.remote {
            let object: Arc<str> = remote.object.as_str().into();
            for gateway in &remote.gateways {
                let owners = &mut self.remotes.gateway_owners;
                owners.insert(gateway.addr, Arc::clone(&object));
            }
            self.ids.insert(remote.id, (remote.cluster_id.clone(), object));
        }
        self.remotes.clusters.push(known);
    }

    /// Validates a cluster. Its prefixes among `known`, which are sorted, are valid already.
    pub(super) fn read(&mut self, info: &Arc<RemoteCluster>, known: &[IpNet]) {
        let object: Arc<str> = info.object().into();
        let remote = match self.id(info, &object) {
            Ok(id) => Some(self.remote(info, id, &object, known).into()),
            Err(reason) => {
                let error = field_error(&object, "spec.clusterID", &info.cluster_id, &reason);
                self.rejected.push(error);
                None
            }
        };
        self.remotes.clusters.push(ReadCluster {
            info: Arc::clone(info),
            remote,
            rejected: std::mem::take(&mut self.rejected),
        });
    }

    fn remote(&mut self, info: &RemoteCluster, id: u64, object: &Arc<str>, known: &[IpNet]) -> Remote {
        let is_antrea = self.me.antrea_clusters.contains(&info.cluster_id);
        let listed = if is_antrea {
            antrea::active_gateways(info)
        } else {
            &info.gateways
        };
        // An Antrea gateway never has a secret.
        let unkeyed = is_antrea || self.me.secrets.unkeyed_clusters.contains(&info.cluster_id);
        let mut gateways = GatewayReader {
            object,
            cluster: self.cluster,
            claims: &self.claims,
            owners: &mut self.remotes.gateway_owners,
            collide: &mut self.remotes.collide,
            policy: if unkeyed {
                SecretPolicy::Optional
            } else {
                SecretPolicy::Required
            },
            rejected: &mut self.rejected,
        };
        let gateways = gateways.usable(listed);
        let prefixes = self.prefixes(info, object, known);
        let alias = is_antrea
            .then(|| antrea::alias(info, &prefixes, object, &mut self.rejected))
            .flatten();
        Remote {
            antrea: is_antrea,
            alias,
            object: object.to_string(),
            cluster_id: info.cluster_id.clone(),
            id,
            prefixes,
            gateways,
        }
    }

    /// The ID of the cluster in the maps, if its cluster ID is valid and unique.
    fn id(&mut self, info: &RemoteCluster, object: &Arc<str>) -> Result<u64, String> {
        let id = cluster_id(&self.me.cluster_id_key, &info.cluster_id);
        if info.cluster_id.is_empty() {
            return Err("is missing".to_owned());
        }
        if self.me.cluster_id.as_deref() == Some(info.cluster_id.as_str()) {
            return Err("is the local cluster's ID".to_owned());
        }
        if let Some((other, by)) = self.ids.get(&id) {
            self.remotes.collide = true;
            return Err(if *other == info.cluster_id {
                format!("is already the ID of {by}")
            } else {
                format!("has the same hash as {other:?} of {by}; rename one of the clusters")
            });
        }
        self.ids.insert(id, (info.cluster_id.clone(), Arc::clone(object)));
        Ok(id)
    }

    /// The prefixes of the cluster. One of Pod CIDRs and Service CIDR is sufficient.
    fn prefixes(&mut self, info: &RemoteCluster, object: &Arc<str>, known: &[IpNet]) -> Vec<IpNet> {
        let mut services: Vec<&str> = split_list(&info.service_cidr).collect();
        if services.is_empty() && info.pod_cidrs.is_empty() {
            services.push("");
        }
        let pods = info.pod_cidrs.iter().enumerate();
        let pods = pods.map(|(index, text)| (Some(index), text.as_str()));
        let fields = services.into_iter().map(|text| (None, text)).chain(pods);
        // A prefix that is stated again is not searched for again.
        let mut refused: BTreeMap<IpNet, String> = BTreeMap::new();
        let mut valid = Vec::new();
        for (index, text) in fields {
            let parsed = parse_prefix(text).map_err(|error| error.to_string());
            let checked = parsed.and_then(|prefix| {
                if known.binary_search(&prefix).is_ok() {
                    return Ok(prefix);
                }
                if let Some(reason) = refused.get(&prefix) {
                    return Err(reason.clone());
                }
                self.assign(prefix, object).inspect_err(|reason| {
                    refused.insert(prefix, reason.clone());
                })
            });
            match checked {
                Ok(prefix) => valid.push(prefix),
                Err(reason) => {
                    let field = index.map_or("spec.serviceCIDR".to_owned(), |index| {
                        format!("spec.podCIDRs[{index}]")
                    });
                    self.rejected.push(field_error(object, &field, text, &reason));
                }
            }
        }
        valid.sort_unstable();
        valid.dedup();
        valid.shrink_to_fit();
        valid
    }

    /// Assigns the prefix to the cluster, or returns the reason why it cannot be the cluster's.
    fn assign(&mut self, prefix: IpNet, object: &Arc<str>) -> Result<IpNet, String> {
        let taken = self.claims.conflict(prefix, object);
        // Outer packets must not be routed into the tunnel.
        let underlay = first_within(&self.cluster.addresses, prefix)
            .or_else(|| first_within(&self.remotes.gateway_owners, prefix));
        let reason = if let Some((taken, by)) = taken {
            format!("overlaps {taken} of {by}")
        } else if let Some((addr, owner)) = underlay {
            self.claims.release(prefix);
            format!("contains the underlay address {addr} of {owner}")
        } else if let Some((addr, owner)) = self.cluster.pod_within(prefix) {
            self.claims.release(prefix);
            format!("contains the address {addr} of {owner}")
        } else {
            self.claims.assign(prefix, object);
            return Ok(prefix);
        };
        self.remotes.collide = true;
        Err(reason)
    }
}

/// Validation of the gateways of a cluster.
struct GatewayReader<'r> {
    /// The ClusterInfoImport.
    object: &'r Arc<str>,
    cluster: &'r LocalCluster,
    claims: &'r PrefixOwners,
    /// Owners of the gateway addresses of all clusters so far.
    owners: &'r mut BTreeMap<IpAddr, Arc<str>>,
    /// [`Remotes::collide`].
    collide: &'r mut bool,
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
            self.owners.insert(addr, Arc::clone(self.object));
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

    fn address(&mut self, text: &str) -> Result<IpAddr, String> {
        let addr = parse_address(text).map_err(|error| error.to_string())?;
        let own = self.cluster.addresses.get(&addr);
        let other = self.owners.get(&addr).filter(|owner| *owner != self.object);
        let taken = own.or(other).map(|owner| format!("is the address of {owner}"));
        match taken.or_else(|| self.claims.address_conflict(addr, self.object)) {
            Some(reason) => {
                *self.collide = true;
                Err(reason)
            }
            None => Ok(addr),
        }
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
            object: self.object.to_string(),
            field,
            value: value.to_owned(),
            reason,
        });
    }
}
