//! The exchange of label identities: exports of this cluster's Pod labels, imports of the set's with their IDs.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use kube::ResourceExt;
use mc_api::{
    config::IdentityExport,
    label_identity::{
        self, ImportedIdentity, LabelIdentity, LabelIdentitySpec, LabelKeyFilter, digest, normalize,
        object_name,
    },
    names,
    resource_export::{ResourceExport, ResourceExportSpec, kind as export_kind},
    resource_import::{ResourceImport, kind},
};
use serde_json::json;

use super::{
    ActiveMembership,
    import_owner::{self, is_own},
    policy_selectors::PeerSelectors,
    resource_exports::{self, existing_export},
    selector_exports::offered_peers,
    set_managed,
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, NamespacedName, ObjectMap, OptionalKind, get},
};

/// The identities offered by the leader.
#[derive(Default)]
struct OfferedIdentities {
    /// Valid identities by name.
    valid: BTreeMap<String, LabelIdentitySpec>,
    /// Names with an invalid import: the local object is kept.
    undetermined: BTreeSet<String>,
}

/// Exports and imports label identities, or deletes both.
pub fn plan(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    if snapshot.config.stretched_network_policy {
        export(snapshot, membership, plan);
        import(snapshot, membership, plan);
        return;
    }
    let before = plan.writes.len();
    for old in own_exports(membership) {
        if plan.has_room(before) {
            plan.delete(ApiServer::Leader, old);
        }
    }
    withdraw(snapshot, plan);
}

/// Deletes all imported identities: there is no membership.
pub fn withdraw(snapshot: &MemberSnapshot, plan: &mut Plan) {
    let before = plan.writes.len();
    for old in snapshot
        .label_identities
        .objects()
        .into_iter()
        .flat_map(|o| o.values())
    {
        if is_own(snapshot, old.as_ref()) && plan.has_room(before) {
            plan.delete(ApiServer::Local, old.as_ref());
        }
    }
}

/// This cluster's exports of this kind.
fn own_exports<'a>(membership: &ActiveMembership<'a>) -> impl Iterator<Item = &'a ResourceExport> {
    let ours = membership.cluster_id;
    membership
        .leader
        .exports
        .values()
        .filter(move |e| e.spec.kind == export_kind::LABEL_IDENTITY && e.spec.cluster_id == ours)
        .map(AsRef::as_ref)
}

/// Keeps one export per distinct label set of Pods.
fn export(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let Some(wanted) = desired_exports(snapshot, membership, plan) else {
        return;
    };
    let before = plan.writes.len();
    for (name, label) in &wanted {
        if !plan.has_room(before) {
            return;
        }
        let Some(old) = existing_export(membership, name) else {
            plan.create(ApiServer::Leader, &label_export(membership, name, label));
            continue;
        };
        // An export that is being deleted is created again when it is gone.
        if old.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let same = old.spec.kind == export_kind::LABEL_IDENTITY
            && old.spec.cluster_id == membership.cluster_id
            && label_identity::parse_export(old.spec.label_identity.as_ref()) == Ok(label)
            && old.labels().get(names::LABEL_SOURCE_KIND).map(String::as_str)
                == Some(export_kind::LABEL_IDENTITY);
        if !same {
            plan.apply(ApiServer::Leader, &label_export(membership, name, label));
        }
    }
    for old in own_exports(membership).filter(|o| !wanted.contains_key(&o.name_any())) {
        if plan.has_room(before) {
            plan.delete(ApiServer::Leader, old);
        }
    }
}

/// The desired exports: label by name; `None` while the list of Pods is incomplete.
fn desired_exports(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    plan: &mut Plan,
) -> Option<BTreeMap<String, String>> {
    let pods = snapshot.pod_labels.as_ref()?;
    let exclusions = &snapshot.config.excluded_labels;
    let selectors = match snapshot.config.identity_export {
        IdentityExport::All => None,
        IdentityExport::Selected => {
            let policies =
                offered_policies(membership).filter_map(|i| i.spec.cluster_network_policy.as_ref());
            Some(PeerSelectors::new(policies, &offered_peers(membership, plan)?))
        }
    };
    let mut wanted = BTreeMap::new();
    let mut bad = vec![];
    for (namespace, labels) in pods.keys() {
        // The caches of Pods and namespaces are not in step.
        let Some(found) = get(&snapshot.namespaces, "", namespace) else {
            continue;
        };
        if selectors.as_ref().is_some_and(|s| {
            !s.matches(
                &namespace_labels(namespace, found.labels(), exclusions),
                &parse_labels(labels),
            )
        }) {
            continue;
        }
        let label = normalize(namespace, found.labels(), labels, exclusions);
        let subject = || {
            format!(
                "Pods of Namespace {namespace} with labels {:?}",
                shortened(labels)
            )
        };
        if let Err(why) = label_identity::validate(&label) {
            bad.push((subject(), format!("have no label identity: {why}")));
            continue;
        }
        let digest = digest(&label);
        match wanted.entry(names::label_identity_export(
            membership.cluster_id,
            object_name(&digest),
        )) {
            Entry::Vacant(free) => {
                free.insert(label);
            }
            Entry::Occupied(taken) if *taken.get() != label => bad.push((
                subject(),
                format!(
                    "have no label identity: another label has the same hash {}",
                    object_name(&digest)
                ),
            )),
            Entry::Occupied(_) => {}
        }
    }
    plan.issues(IssueCode::LabelNotExported, "Pods without label identity", bad);
    Some(wanted)
}

/// The replicated policies.
pub(super) fn offered_policies<'a>(
    membership: &ActiveMembership<'a>,
) -> impl Iterator<Item = &'a ResourceImport> {
    let cluster = membership.cluster_id;
    membership
        .leader
        .imports
        .values()
        .filter(move |i| i.spec.kind == kind::CLUSTER_NETWORK_POLICY && applies_to(i, cluster))
        .map(AsRef::as_ref)
}

/// Whether an import is active and for this cluster.
fn applies_to(import: &ResourceImport, cluster: &str) -> bool {
    let targets = &import.spec.cluster_ids;
    import.metadata.deletion_timestamp.is_none()
        && (targets.is_empty() || targets.iter().any(|c| c == cluster))
}

/// The labels of a Namespace as its identities have them.
fn namespace_labels(
    namespace: &str,
    labels: &BTreeMap<String, String>,
    exclusions: &LabelKeyFilter,
) -> BTreeMap<String, String> {
    let name = (label_identity::NAMESPACE_NAME.to_owned(), namespace.to_owned());
    let all = [(&name.0, &name.1)].into_iter().chain(labels);
    let kept = all.filter(|(key, _)| !exclusions.excludes(key));
    kept.map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// The inverse of [`label_identity::join_labels`]: keys and values contain neither a comma nor an equals sign.
fn parse_labels(labels: &str) -> BTreeMap<String, String> {
    labels
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn shortened(labels: &str) -> String {
    labels.chars().take(80).collect()
}

fn label_export(membership: &ActiveMembership<'_>, name: &str, label: &str) -> ResourceExport {
    let spec = ResourceExportSpec {
        cluster_id: membership.cluster_id.to_owned(),
        kind: export_kind::LABEL_IDENTITY.to_owned(),
        label_identity: Some(json!({ "normalizedLabel": label })),
        ..ResourceExportSpec::default()
    };
    resource_exports::export(membership, name, spec)
}

/// Keeps one `LabelIdentity` per label of the set; identities with an invalid import are kept.
fn import(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let local = match &snapshot.label_identities {
        OptionalKind::Present(local) => local,
        OptionalKind::Pending => return,
        OptionalKind::Absent => {
            return plan.issue(
                IssueCode::LabelKindMissing,
                "labelidentities.multicluster.crd.antrea.io",
                "this CRD is missing: label identities are not imported",
            );
        }
    };
    let offered = offered_identities(membership, local, plan);
    let by_id: BTreeMap<u32, &str> = offered.valid.iter().map(|(n, i)| (i.id, n.as_str())).collect();
    let mut holders: BTreeMap<u32, Vec<(&str, bool)>> = BTreeMap::new();
    for (name, old) in local.iter() {
        holders
            .entry(old.spec.id)
            .or_default()
            .push((name.name.as_str(), is_own(snapshot, old.as_ref())));
    }
    let before = plan.writes.len();
    let mut deleted = BTreeSet::new();
    for old in local.values().filter(|o| is_own(snapshot, o.as_ref())) {
        let name = old.name_any();
        let replaced = by_id.get(&old.spec.id).is_some_and(|n| *n != name);
        let unclear = offered.undetermined.contains(&name) && !replaced;
        if !offered.valid.contains_key(&name) && !unclear {
            deleted.insert(name);
            if plan.has_room(before) {
                plan.delete(ApiServer::Local, old.as_ref());
            }
        }
    }
    // Deletions that are held leave room for changes.
    let before = plan.writes.len();
    // Changes of clusters only are last: in a batch, a new identity does not wait for them.
    let (rewritten, changed): (Vec<_>, Vec<_>) = offered.valid.iter().partition(|(name, spec)| {
        get(local, "", name).is_some_and(|o| (&o.spec.label, o.spec.id) == (&spec.label, spec.id))
    });
    for (name, spec) in changed.into_iter().chain(rewritten) {
        if !plan.has_room(before) {
            return;
        }
        let old = get(local, "", name);
        if let Some(owner) = old.and_then(|o| import_owner::other_owner(snapshot, o.as_ref())) {
            plan.issue(
                IssueCode::LabelNotImported,
                format!("LabelIdentity {name}"),
                import_owner::conflict(owner),
            );
            continue;
        }
        let is_current = |o: &LabelIdentity| {
            o.spec == *spec && is_own(snapshot, o) && import_owner::is_marked(snapshot, o)
        };
        if old.is_some_and(|o| is_current(o)) {
            continue;
        }
        // Two labels never share an ID, not even temporarily.
        let others = holders.get(&spec.id).into_iter().flatten();
        let holder = others.copied().find(|(other, _)| other != name);
        match holder {
            Some((holder, _)) if deleted.contains(holder) => {}
            Some((holder, false)) if !offered.valid.contains_key(holder) => plan.issue(
                IssueCode::LabelNotImported,
                format!("LabelIdentity {holder}"),
                format!(
                    "has another owner and the ID {} of {name}, which is not imported: delete it",
                    spec.id
                ),
            ),
            _ => {
                let mut new = LabelIdentity::new(name, spec.clone());
                set_managed(&mut new);
                import_owner::mark(snapshot, &mut new);
                plan.apply(ApiServer::Local, &new);
            }
        }
    }
}

/// The identities offered by the leader. Of two with one ID the one imported already is valid, else the older.
fn offered_identities(
    membership: &ActiveMembership<'_>,
    local: &ObjectMap<LabelIdentity>,
    plan: &mut Plan,
) -> OfferedIdentities {
    let mut offered = OfferedIdentities::default();
    let mut bad = vec![];
    let mut by_id: BTreeMap<u32, Vec<(&ResourceImport, ImportedIdentity<'_>)>> = BTreeMap::new();
    for import in membership
        .leader
        .imports
        .values()
        .filter(|i| i.spec.kind == kind::LABEL_IDENTITY && applies_to(i, membership.cluster_id))
    {
        let name = import.name_any();
        let why = match label_identity::parse_import(import.spec.label_identity.as_ref()) {
            Ok(identity) if object_name(&digest(identity.label)) != name => {
                format!(
                    "the name of this label is {:?}",
                    object_name(&digest(identity.label))
                )
            }
            Ok(identity) => {
                by_id.entry(identity.id).or_default().push((import, identity));
                continue;
            }
            Err(error) => error.to_string(),
        };
        bad.push((format!("ResourceImport {name}"), format!("not imported: {why}")));
        offered.undetermined.insert(name);
    }
    for (id, mut candidates) in by_id {
        candidates.sort_by_key(|(import, identity)| {
            let key = NamespacedName::new("", import.name_any());
            let here = local.get(&key);
            let here = here.is_some_and(|o| o.spec.id == id && o.spec.label == identity.label);
            (!here, import.creation_timestamp(), import.name_any())
        });
        let mut candidates = candidates.into_iter();
        let winner = candidates
            .next()
            .map(|(import, identity)| (import.name_any(), identity));
        for (loser, _) in candidates {
            let loser = loser.name_any();
            let winner = winner.as_ref().map_or("", |(name, _)| name);
            bad.push((
                format!("ResourceImport {loser}"),
                format!("not imported: its ID {id} is that of {winner}, too"),
            ));
            offered.undetermined.insert(loser);
        }
        if let Some((name, ImportedIdentity { label, clusters, .. })) = winner {
            let spec = LabelIdentitySpec {
                label: label.to_owned(),
                id,
                clusters: clusters.map(|all| all.into_iter().map(str::to_owned).collect()),
            };
            offered.valid.insert(name, spec);
        }
    }
    plan.issues(
        IssueCode::LabelNotImported,
        "ResourceImports of kind LabelIdentity",
        bad,
    );
    offered
}
