//! What there is in a world, in numbers. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    api::{
        condition::{Condition, FALSE, TRUE},
        names,
        resource_export::{self, ResourceExport},
        resource_import::kind as import_kind,
        service_export::{CONFLICT, READY, ServiceExport, VALID},
    },
    member::{
        exports::is_imported,
        imports::is_for,
        membership::{self, Acceptance},
    },
    world::{LeaderWorld, Link, MemberWorld},
};

/// What whatever is not among the known ones is counted as.
const OTHER: &str = "other";

/// What there was to plan for.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Counts {
    /// Nobody looked.
    #[default]
    None,
    /// At a leader.
    Leader(Leader),
    /// At a member.
    Member(Member),
}

/// What a leader sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leader {
    /// Each accepted member, and when its heartbeat was last seen to change, by our clock.
    pub members: BTreeMap<String, Timestamp>,
    /// Clusters that want to be members and are refused.
    pub refused: u64,
    /// `ResourceExport`s by cluster and kind.
    pub exports: BTreeMap<(String, &'static str), u64>,
    /// Of those the ones that are not imported, by cluster.
    pub failed: BTreeMap<String, u64>,
    /// Of those the ones that others contradict, by cluster.
    pub conflicting: BTreeMap<String, u64>,
    /// `ResourceImport`s by kind.
    pub imports: BTreeMap<&'static str, u64>,
}

/// What a member sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Whether there is a `ClusterSet`.
    pub joined: bool,
    /// Whether the last exchange with the leader succeeded.
    pub connected: bool,
    /// Whether the leader takes this cluster for a member.
    pub accepted: bool,
    /// The last heartbeat the leader has, by our clock.
    pub heartbeat: Option<Timestamp>,
    /// `ServiceExport`s.
    pub exports: u64,
    /// Of those the ones the set imports.
    pub ready: u64,
    /// Of those the ones that cannot be exported, by reason.
    pub invalid: BTreeMap<String, u64>,
    /// Of those the ones that others contradict, by reason.
    pub conflicting: BTreeMap<String, u64>,
    /// Services the set offers to this cluster.
    pub offered: u64,
    /// Services this controller imported.
    pub imported: u64,
    /// Gateways.
    pub gateways: u64,
    /// Other clusters whose networks are known.
    pub clusters: u64,
    /// Label identities, where the API server knows them.
    pub label_identities: Option<u64>,
}

// === impl Leader ===

impl Leader {
    /// Counts what a leader sees.
    #[must_use]
    pub fn of(world: &LeaderWorld) -> Self {
        let mut counts = Self::default();
        for announce in world.announces.values() {
            if announce.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let finalizer = names::member_announce_finalizer(&announce.cluster_id);
            if announce.annotations().contains_key(names::ANNOTATION_REFUSED) {
                add(&mut counts.refused);
            } else if announce.finalizers().contains(&finalizer) {
                let heard = world.heard.get(&announce.name_any());
                let at = heard.map_or(world.now, |h| h.at);
                counts.members.insert(announce.cluster_id.clone(), at);
            }
        }
        let mut exports: BTreeMap<_, u64> = BTreeMap::new();
        let (mut failed, mut conflicting) = (BTreeMap::<&str, u64>::new(), BTreeMap::<&str, u64>::new());
        for export in world.exports.values() {
            // Whoever may write exports must not make up series.
            let id = export.spec.cluster_id.as_str();
            let known = counts.members.contains_key(id);
            let cluster = if known { id } else { OTHER };
            let kind = known_kind(EXPORT_KINDS, &export.spec.kind);
            add(exports.entry((cluster, kind)).or_default());
            if says(export, resource_export::FAILURE, FALSE) {
                add(failed.entry(cluster).or_default());
            }
            if says(export, CONFLICT, TRUE) {
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
        for import in world.imports.values() {
            let kind = known_kind(IMPORT_KINDS, &import.spec.kind);
            add(counts.imports.entry(kind).or_default());
        }
        counts
    }
}

// === impl Member ===

impl Member {
    /// Counts what a member sees.
    #[must_use]
    pub fn of(world: &MemberWorld) -> Self {
        let mut counts = Self {
            gateways: number(world.gateways.len()),
            clusters: number(world.cluster_infos.len()),
            label_identities: world.label_identities.objects().map(|o| number(o.len())),
            imported: number(world.services.values().filter(|s| is_imported(s)).count()),
            exports: number(world.service_exports.len()),
            ..Self::default()
        };
        for export in world.service_exports.values() {
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
        let Some(set) = membership::current(world) else {
            return counts;
        };
        counts.joined = true;
        counts.connected = world.link == Link::Up;
        let Some(leader) = world.leader.as_ref().filter(|l| l.synced) else {
            return counts;
        };
        counts.accepted = membership::acceptance(leader, set) == Acceptance::Accepted;
        counts.heartbeat = membership::announce(leader, set)
            .and_then(|a| a.annotations().get(names::ANNOTATION_TOUCH_TS)?.parse().ok());
        let offered = leader.imports.values().filter(|i| {
            i.spec.kind == import_kind::SERVICE_IMPORT
                && i.metadata.deletion_timestamp.is_none()
                && is_for(i, &set.spec.cluster_id)
        });
        counts.offered = number(offered.count());
        counts
    }
}

/// Kinds of `ResourceExport`s.
const EXPORT_KINDS: [&str; 5] = [
    resource_export::kind::SERVICE,
    resource_export::kind::ENDPOINTS,
    resource_export::kind::CLUSTER_INFO,
    resource_export::kind::LABEL_IDENTITY,
    resource_export::kind::CLUSTER_NETWORK_POLICY,
];
/// Kinds of `ResourceImport`s.
const IMPORT_KINDS: [&str; 5] = [
    import_kind::SERVICE_IMPORT,
    import_kind::ENDPOINTS,
    import_kind::CLUSTER_INFO,
    import_kind::LABEL_IDENTITY,
    import_kind::CLUSTER_NETWORK_POLICY,
];

fn known_kind(known: [&'static str; 5], kind: &str) -> &'static str {
    known.into_iter().find(|k| *k == kind).unwrap_or(OTHER)
}

fn says(export: &ResourceExport, type_: &str, status: &str) -> bool {
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
