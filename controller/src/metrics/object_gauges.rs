//! Numbers of objects in a snapshot. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{
    condition::{Condition, FALSE, TRUE},
    names,
    resource_export::{self, ResourceExport},
    resource_import::kind as import_kind,
    service_export::{CONFLICT, READY, ServiceExport, VALID},
};

use crate::{
    member::{
        announce,
        imported_service::is_imported,
        imports::targets_cluster,
        membership::{self, Acceptance},
    },
    snapshot::{LeaderConnectionState, LeaderSnapshot, MemberSnapshot},
};

/// The label value of unknown clusters and kinds.
const OTHER: &str = "other";

/// The numbers of objects of a controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ObjectGauges {
    /// No reconcile yet.
    #[default]
    None,
    /// The numbers of a leader.
    Leader(LeaderGauges),
    /// The numbers of a member.
    Member(MemberGauges),
}

/// The numbers of a leader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaderGauges {
    /// The accepted members with the time of their last heartbeat, by the leader's clock.
    pub members: BTreeMap<String, Timestamp>,
    /// Rejected clusters.
    pub rejected: u64,
    /// `ResourceExport`s by cluster and kind.
    pub exports: BTreeMap<(String, &'static str), u64>,
    /// `ResourceExport`s that are not imported, by cluster.
    pub failed: BTreeMap<String, u64>,
    /// `ResourceExport`s in conflict with other clusters, by cluster.
    pub conflicting: BTreeMap<String, u64>,
    /// `ResourceImport`s by kind.
    pub imports: BTreeMap<&'static str, u64>,
}

/// The numbers of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberGauges {
    /// Whether there is a `ClusterSet`.
    pub joined: bool,
    /// Whether the last request to the leader succeeded.
    pub connected: bool,
    /// Whether the leader has accepted this cluster.
    pub accepted: bool,
    /// The last heartbeat in the leader cluster, by the member's clock.
    pub heartbeat: Option<Timestamp>,
    /// `ServiceExport`s.
    pub exports: u64,
    /// `ServiceExport`s with condition Ready.
    pub ready: u64,
    /// `ServiceExport`s that are not Valid, by reason.
    pub invalid: BTreeMap<String, u64>,
    /// `ServiceExport`s in conflict with other clusters, by reason.
    pub conflicting: BTreeMap<String, u64>,
    /// Services offered to this cluster.
    pub offered: u64,
    /// Imported Services.
    pub imported: u64,
    /// Gateways.
    pub gateways: u64,
    /// Other clusters with a known network.
    pub clusters: u64,
    /// Label identities, if the API server serves the kind.
    pub label_identities: Option<u64>,
}

// === impl Leader ===

impl LeaderGauges {
    /// Counts the objects of a leader's snapshot.
    #[must_use]
    pub fn from_snapshot(snapshot: &LeaderSnapshot) -> Self {
        let mut counts = Self::default();
        for announce in snapshot.announces.values() {
            if announce.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let finalizer = names::member_announce_finalizer(&announce.cluster_id);
            if names::ANNOTATION_REJECTED_REASON.get(announce.as_ref()).is_some() {
                add(&mut counts.rejected);
            } else if announce.finalizers().contains(&finalizer) {
                let heartbeat = snapshot.heartbeats.get(&announce.name_any());
                let at = heartbeat.map_or(snapshot.now, |h| h.seen_at);
                counts.members.insert(announce.cluster_id.clone(), at);
            }
        }
        let mut exports: BTreeMap<_, u64> = BTreeMap::new();
        let (mut failed, mut conflicting) = (BTreeMap::<&str, u64>::new(), BTreeMap::<&str, u64>::new());
        for export in snapshot.exports.values() {
            // The writer of an export must not be able to create metric series.
            let id = export.spec.cluster_id.as_str();
            let known = counts.members.contains_key(id);
            let cluster = if known { id } else { OTHER };
            let kind = known_kind(&EXPORT_KINDS, &export.spec.kind);
            add(exports.entry((cluster, kind)).or_default());
            if has_condition(export, resource_export::FAILURE, FALSE) {
                add(failed.entry(cluster).or_default());
            }
            if has_condition(export, CONFLICT, TRUE) {
                add(conflicting.entry(cluster).or_default());
            }
        }
        let owned =
            |counts: BTreeMap<&str, u64>| counts.into_iter().map(|(c, n)| (c.to_owned(), n)).collect();
        counts.exports = exports
            .into_iter()
            .map(|((cluster, kind), n)| ((cluster.to_owned(), kind), n))
            .collect();
        counts.failed = owned(failed);
        counts.conflicting = owned(conflicting);
        for import in snapshot.imports.values() {
            let kind = known_kind(&IMPORT_KINDS, &import.spec.kind);
            add(counts.imports.entry(kind).or_default());
        }
        counts
    }
}

// === impl Member ===

impl MemberGauges {
    /// Counts the objects of a member's snapshot.
    #[must_use]
    pub fn from_snapshot(snapshot: &MemberSnapshot) -> Self {
        let mut counts = Self {
            gateways: number(snapshot.gateways.len()),
            clusters: number(snapshot.cluster_infos.len()),
            label_identities: snapshot.label_identities.objects().map(|o| number(o.len())),
            imported: number(snapshot.services.values().filter(|s| is_imported(s)).count()),
            exports: number(snapshot.service_exports.len()),
            ..Self::default()
        };
        for export in snapshot.service_exports.values() {
            if condition(export, READY, TRUE).is_some() {
                add(&mut counts.ready);
            }
            if let Some(why) = condition(export, VALID, FALSE) {
                add(counts.invalid.entry(why.reason.clone()).or_default());
            }
            if let Some(why) = condition(export, CONFLICT, TRUE) {
                add(counts.conflicting.entry(why.reason.clone()).or_default());
            }
        }
        let Some(set) = membership::active_cluster_set(snapshot) else {
            return counts;
        };
        counts.joined = true;
        counts.connected = snapshot.connection == LeaderConnectionState::Up;
        let Some(leader) = snapshot.leader.as_ref().filter(|l| l.synced) else {
            return counts;
        };
        counts.accepted = membership::acceptance(leader, set) == Acceptance::Accepted;
        counts.heartbeat = announce::announce(leader, set).and_then(|a| a.heartbeat().parse().ok());
        let offered = leader.imports.values().filter(|i| {
            i.spec.kind == import_kind::SERVICE_IMPORT
                && i.metadata.deletion_timestamp.is_none()
                && targets_cluster(i, &set.spec.cluster_id)
        });
        counts.offered = number(offered.count());
        counts
    }
}

/// Kinds of `ResourceExport`s.
const EXPORT_KINDS: [&str; 7] = [
    resource_export::kind::SERVICE,
    resource_export::kind::ENDPOINTS,
    resource_export::kind::CLUSTER_INFO,
    resource_export::kind::LABEL_IDENTITY,
    resource_export::kind::CLUSTER_NETWORK_POLICY,
    resource_export::kind::POLICY_SELECTORS,
    resource_export::kind::IMPORT_FAILURES,
];
/// Kinds of `ResourceImport`s.
const IMPORT_KINDS: [&str; 5] = [
    import_kind::SERVICE_IMPORT,
    import_kind::ENDPOINTS,
    import_kind::CLUSTER_INFO,
    import_kind::LABEL_IDENTITY,
    import_kind::CLUSTER_NETWORK_POLICY,
];

fn known_kind(known: &[&'static str], kind: &str) -> &'static str {
    known.iter().copied().find(|k| *k == kind).unwrap_or(OTHER)
}

fn has_condition(export: &ResourceExport, type_: &str, status: &str) -> bool {
    let conditions = export.status.iter().flat_map(|s| &s.conditions);
    find(conditions, type_, status).is_some()
}

fn condition<'a>(export: &'a ServiceExport, type_: &str, status: &str) -> Option<&'a Condition> {
    let conditions = export.status.iter().flat_map(|s| &s.conditions);
    find(conditions, type_, status)
}

fn find<'a>(
    mut conditions: impl Iterator<Item = &'a Condition>,
    type_: &str,
    status: &str,
) -> Option<&'a Condition> {
    conditions.find(|c| c.type_ == type_ && c.status == status)
}

fn add(count: &mut u64) {
    *count = count.saturating_add(1);
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
