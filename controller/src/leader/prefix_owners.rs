//! The owners of prefixes: the record of the leader, the allow-lists of administrators, and the networks that members
//! get.
//!
//! A member could announce the range of a registry, of DNS or of another cluster, and get its traffic. The leader
//! distributes a prefix to the cluster alone that announced it first, so that all importers agree. A claim is recorded
//! before it is distributed: a restarted leader decides as the one before.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    cluster_info::ClusterInfo,
    config::Config,
    names,
    resource_import::{ResourceImport, kind},
    validation,
};
use serde_json::{Value, json};

use super::{
    account_bindings,
    eviction::evicted,
    members,
    network_exports::valid_networks,
    prefix_claims::{Announcement, Decision, PrefixClaims, PrefixError, Rules},
};
use crate::{
    endpoint_ranges::EndpointRanges,
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// The prefixes that each cluster may use in the other ones.
#[derive(Debug, Default)]
pub(super) struct OwnedPrefixes {
    /// The networks to distribute, by cluster.
    networks: BTreeMap<String, ClusterInfo>,
    /// All claims, those of members that announce nothing included.
    claims: PrefixClaims,
    refused: BTreeMap<String, Vec<PrefixError>>,
}

/// Decides on the announced prefixes and plans the record of new claims.
pub(super) fn plan(
    snapshot: &LeaderSnapshot,
    bindings: &BTreeMap<String, String>,
    plan: &mut Plan,
) -> OwnedPrefixes {
    let record = get(&snapshot.prefix_owners, &snapshot.namespace, names::PREFIX_OWNERS);
    let data = record.and_then(|record| record.data.clone()).unwrap_or_default();
    let stored = match PrefixClaims::parse(&data) {
        // The leader is newer than the imports, or was restored from an older state.
        Ok(_) if record.is_none() => first_distributed(snapshot),
        Ok(stored) => stored,
        Err(error) => {
            plan.issue(
                IssueCode::InvalidRecord,
                format!("ConfigMap {}/{}", snapshot.namespace, names::PREFIX_OWNERS),
                format!("{error}; no cluster gets new prefixes until it is corrected or deleted"),
            );
            return OwnedPrefixes {
                networks: restricted(snapshot, &distributed(snapshot)),
                ..OwnedPrefixes::default()
            };
        }
    };
    let set = members::current_cluster_set(snapshot);
    let evicted = set.map(evicted).unwrap_or_default();
    let announces = snapshot
        .announces
        .values()
        .map(|announce| announce.cluster_id.as_str());
    let rules = Rules {
        now: snapshot.now,
        members: announces.filter(|id| !evicted.contains(id)).collect(),
        allowed: allow_lists(snapshot, bindings, plan),
    };
    let Decision {
        claims,
        refused,
        next,
    } = stored.decide(announcements(snapshot), &rules);
    if let Some(next) = next {
        plan.requeue_at(next);
    }
    let wanted = claims.format();
    if wanted != data {
        write(snapshot, record.map(AsRef::as_ref), &data, wanted, plan);
    }
    // A record that was restored from an older state, or that an API server answers from one, lacks claims of networks
    // that the members have.
    let distributed = distributed(snapshot);
    let established = stored.union(&distributed);
    let mut networks = restricted(snapshot, &claims.intersection(&established));
    // A network is whole when it is first distributed: endpoints outside of a part would be left out.
    if networks.keys().any(|cluster| !distributed.has(cluster)) {
        let whole = restricted(snapshot, &claims);
        networks.retain(|cluster, network| distributed.has(cluster) || whole.get(cluster) == Some(network));
    }
    OwnedPrefixes {
        networks,
        claims,
        refused,
    }
}

fn write(
    snapshot: &LeaderSnapshot,
    record: Option<&ConfigMap>,
    stored: &BTreeMap<String, String>,
    wanted: BTreeMap<String, String>,
    plan: &mut Plan,
) {
    let Some(record) = record else {
        let record = ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::PREFIX_OWNERS.to_owned()),
                namespace: Some(snapshot.namespace.clone()),
                ..ObjectMeta::default()
            },
            data: Some(wanted),
            ..ConfigMap::default()
        };
        return plan.create(ApiServer::Local, &record);
    };
    let gone = stored.keys().filter(|cluster| !wanted.contains_key(*cluster));
    let mut data: serde_json::Map<_, _> = gone.map(|cluster| (cluster.clone(), Value::Null)).collect();
    data.extend(wanted.into_iter().map(|(cluster, lines)| (cluster, json!(lines))));
    plan.patch(ApiServer::Local, record, json!({ "data": data }));
}

/// The announced networks of all clusters.
fn announcements(snapshot: &LeaderSnapshot) -> Vec<Announcement<'_>> {
    let announced = valid_networks(snapshot).map(|(export, info)| Announcement {
        cluster: &export.spec.cluster_id,
        since: export.creation_timestamp().map(|time| time.0),
        prefixes: info.prefixes(),
    });
    announced.collect()
}

/// The prefixes of the networks as distributed; those of the oldest import where they overlap.
fn first_distributed(snapshot: &LeaderSnapshot) -> PrefixClaims {
    let announcements = distributed_networks(snapshot).map(|(import, info)| Announcement {
        cluster: &info.cluster_id,
        since: import.creation_timestamp().map(|time| time.0),
        prefixes: info.prefixes(),
    });
    let rules = Rules {
        now: snapshot.now,
        members: BTreeSet::new(),
        allowed: BTreeMap::new(),
    };
    PrefixClaims::default()
        .decide(announcements.collect(), &rules)
        .claims
}

/// The prefixes of the networks as distributed.
fn distributed(snapshot: &LeaderSnapshot) -> PrefixClaims {
    let networks = distributed_networks(snapshot);
    PrefixClaims::of_announced(networks.map(|(_, info)| (info.cluster_id.as_str(), info.prefixes())))
}

fn distributed_networks(snapshot: &LeaderSnapshot) -> impl Iterator<Item = (&ResourceImport, &ClusterInfo)> {
    let imports = snapshot.imports.values().map(AsRef::as_ref);
    let imports = imports.filter(|import: &&ResourceImport| import.spec.kind == kind::CLUSTER_INFO);
    imports.filter_map(|import| Some((import, import.spec.cluster_info.as_deref()?)))
}

/// The networks with the prefixes that their clusters own, without those of clusters that own none.
fn restricted(snapshot: &LeaderSnapshot, owned: &PrefixClaims) -> BTreeMap<String, ClusterInfo> {
    let networks = valid_networks(snapshot).filter_map(|(_, info)| restrict(info, owned));
    networks.map(|info| (info.cluster_id.clone(), info)).collect()
}

/// The network with the prefixes that its cluster owns; `None` if it owns none of those it announces. A prefix of which
/// it owns parts is replaced by them. Invalid ones remain: each importer reports them.
fn restrict(info: &ClusterInfo, owned: &PrefixClaims) -> Option<ClusterInfo> {
    let cluster = info.cluster_id.as_str();
    let parts = |cidr: &str| match validation::cidr(cidr) {
        Ok(prefix) if !owned.is_owned(cluster, prefix) => {
            let parts = owned.within(cluster, prefix);
            parts.iter().map(ToString::to_string).collect()
        }
        _ => vec![cidr.to_owned()],
    };
    let mut network = info.clone();
    network.service_cidr = parts(&info.service_cidr).into_iter().next().unwrap_or_default();
    network.service_cidrs = info.service_cidrs.iter().flat_map(|cidr| parts(cidr)).collect();
    let mut known: BTreeSet<String> = network.service_cidrs.iter().cloned().collect();
    known.insert(network.service_cidr.clone());
    let pods = info.pod_cidrs.iter().flat_map(|cidr| parts(cidr));
    network.pod_cidrs = pods.filter(|cidr| known.insert(cidr.clone())).collect();
    (info.prefixes().is_empty() || !network.prefixes().is_empty()).then_some(network)
}

/// The ranges of each cluster with an allow-list. An invalid entry allows nothing.
fn allow_lists(
    snapshot: &LeaderSnapshot,
    bindings: &BTreeMap<String, String>,
    plan: &mut Plan,
) -> BTreeMap<String, Vec<IpNet>> {
    let mut lists: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
    for restricted in account_bindings::restricted_members(snapshot, bindings) {
        let annotation = names::ANNOTATION_ALLOWED_CIDRS;
        let Some(list) = restricted.annotations.get(annotation) else {
            continue;
        };
        let Some(cluster) = restricted.cluster else {
            plan.issue(
                IssueCode::InvalidAnnotation,
                restricted.subject,
                format!("annotation {annotation}: ignored: the account is bound to no cluster"),
            );
            continue;
        };
        let allowed = lists.entry(cluster.to_owned()).or_default();
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match validation::cidr(entry) {
                Ok(range) => allowed.push(range),
                Err(cause) => plan.issue(
                    IssueCode::InvalidAnnotation,
                    restricted.subject.as_str(),
                    format!("annotation {annotation}: {cause}; ignored"),
                ),
            }
        }
    }
    lists
}

// === impl OwnedPrefixes ===

impl OwnedPrefixes {
    /// The network to distribute for a cluster; `None` if it owns none of the prefixes that it announces.
    #[must_use]
    pub(super) fn network(&self, cluster: &str) -> Option<&ClusterInfo> {
        self.networks.get(cluster)
    }

    /// The ranges out of which the members may export endpoints.
    #[must_use]
    pub(super) fn endpoint_ranges(&self, config: &Config) -> EndpointRanges {
        let recorded = self.claims.iter();
        let recorded = recorded.map(|(cluster, prefix)| (cluster.to_owned(), prefix));
        EndpointRanges::new(self.networks.values())
            .with_recorded(recorded.collect())
            .with_additional(config.additional_endpoint_cidrs.clone())
    }

    /// The reason for which other clusters do not use all prefixes of the cluster.
    #[must_use]
    pub(super) fn refusal(&self, cluster: &str) -> Option<String> {
        let errors = self.refused.get(cluster)?;
        let more = errors.len().saturating_sub(1);
        let first = errors.first()?;
        Some(match more {
            0 => first.to_string(),
            more => format!("{first}, and {more} more prefixes are refused"),
        })
    }
}
