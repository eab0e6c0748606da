//! Label identities: those of this cluster's Pods, told to the leader; and those of the set, with their numbers.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;

use super::{Session, exports, selectors::Selectors};
use crate::{
    api::{
        config::IdentityExport,
        label_identity::{self, Exclusions, LabelIdentity, LabelIdentitySpec, digest, name_of, normalized},
        names,
        resource_export::{ResourceExport, ResourceExportSpec, kind as export_kind},
        resource_import::{ResourceImport, kind},
    },
    plan::{Plan, Side},
    world::{Key, MemberWorld, Objects, Optional, get},
};

/// What the leader says the identities are.
#[derive(Default)]
struct Offered {
    /// By name.
    good: BTreeMap<String, LabelIdentitySpec>,
    /// Names whose import says nothing that could be used: what is there stays.
    unclear: BTreeSet<String>,
}

/// Exports and imports, or neither.
pub fn plan(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) {
    if world.config.stretched_policy {
        export(world, session, plan);
        import(world, session, plan);
        return;
    }
    let before = plan.actions.len();
    for old in own(session) {
        if plan.has_room(before) {
            plan.delete(Side::Leader, old);
        }
    }
    withdraw(world, plan);
}

/// No membership, no identities.
pub fn withdraw(world: &MemberWorld, plan: &mut Plan) {
    let before = plan.actions.len();
    for old in world
        .label_identities
        .objects()
        .into_iter()
        .flat_map(|o| o.values())
    {
        if made_by_us(old) && plan.has_room(before) {
            plan.delete(Side::Local, old.as_ref());
        }
    }
}

/// This cluster's exports of this kind.
fn own<'a>(session: &Session<'a>) -> impl Iterator<Item = &'a ResourceExport> {
    let ours = session.cluster_id;
    session
        .leader
        .exports
        .values()
        .filter(move |e| e.spec.kind == export_kind::LABEL_IDENTITY && e.spec.cluster_id == ours)
        .map(AsRef::as_ref)
}

/// One export for each label that Pods have.
fn export(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) {
    let Some(wanted) = wanted(world, session, plan) else {
        return;
    };
    let before = plan.actions.len();
    for (name, label) in &wanted {
        if !plan.has_room(before) {
            return;
        }
        let Some(old) = exports::own(session, name) else {
            plan.create(Side::Leader, &offer(session, name, label));
            continue;
        };
        // One that is on its way out is written anew when it is gone.
        if old.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let same = old.spec.kind == export_kind::LABEL_IDENTITY
            && old.spec.cluster_id == session.cluster_id
            && label_identity::exported(old.spec.label_identity.as_ref()) == Ok(label)
            && old.labels().get(names::LABEL_SOURCE_KIND).map(String::as_str)
                == Some(export_kind::LABEL_IDENTITY);
        if !same {
            plan.apply(Side::Leader, &offer(session, name, label));
        }
    }
    for old in own(session).filter(|o| !wanted.contains_key(&o.name_any())) {
        if plan.has_room(before) {
            plan.delete(Side::Leader, old);
        }
    }
}

/// Names of exports with their labels; nothing while the Pods are not known.
fn wanted(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) -> Option<BTreeMap<String, String>> {
    let pods = world.pod_labels.as_ref()?;
    let exclusions = &world.config.excluded_labels;
    let selectors = (world.config.identity_export == IdentityExport::Selected).then(|| {
        let imports = offered_policies(session);
        Selectors::of(imports.filter_map(|i| i.spec.cluster_network_policy.as_ref()))
    });
    let mut wanted = BTreeMap::new();
    let mut bad = vec![];
    for (namespace, labels) in pods.keys() {
        // A Pod whose Namespace is not seen yet, or not any more.
        let Some(found) = get(&world.namespaces, "", namespace) else {
            continue;
        };
        if selectors
            .as_ref()
            .is_some_and(|s| !s.mean(&kept(found.labels(), exclusions), &parsed(labels)))
        {
            continue;
        }
        let label = normalized(namespace, found.labels(), labels, exclusions);
        let subject = || {
            format!(
                "Pods of Namespace {namespace} with labels {:?}",
                shortened(labels)
            )
        };
        if let Err(why) = label_identity::check(&label) {
            bad.push((subject(), format!("have no label identity: {why}")));
            continue;
        }
        let digest = digest(&label);
        match wanted.entry(names::label_identity_export(session.cluster_id, name_of(&digest))) {
            Entry::Vacant(free) => {
                free.insert(label);
            }
            Entry::Occupied(taken) if *taken.get() != label => bad.push((
                subject(),
                format!(
                    "have no label identity: another label has the hash {}, too",
                    name_of(&digest)
                ),
            )),
            Entry::Occupied(_) => {}
        }
    }
    plan.notices("Pods without label identity", bad);
    Some(wanted)
}

/// The replicated policies.
pub(super) fn offered_policies<'a>(session: &Session<'a>) -> impl Iterator<Item = &'a ResourceImport> {
    let cluster = session.cluster_id;
    session
        .leader
        .imports
        .values()
        .filter(move |i| i.spec.kind == kind::CLUSTER_NETWORK_POLICY && offers(i, cluster))
        .map(AsRef::as_ref)
}

/// Whether an import stands, and for this cluster.
fn offers(import: &ResourceImport, cluster: &str) -> bool {
    let targets = &import.spec.cluster_ids;
    import.metadata.deletion_timestamp.is_none()
        && (targets.is_empty() || targets.iter().any(|c| c == cluster))
}

fn kept(labels: &BTreeMap<String, String>, exclusions: &Exclusions) -> BTreeMap<String, String> {
    let kept = labels.iter().filter(|(key, _)| !exclusions.excludes(key));
    kept.map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// What [`label_identity::sorted`] was made of: neither keys nor values have a comma or an equals sign in them.
fn parsed(labels: &str) -> BTreeMap<String, String> {
    labels
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn shortened(labels: &str) -> String {
    labels.chars().take(80).collect()
}

/// An export of a label; it has no finalizer, as Antrea's have none.
fn offer(session: &Session<'_>, name: &str, label: &str) -> ResourceExport {
    let labels = [
        (names::LABEL_SOURCE_KIND, export_kind::LABEL_IDENTITY),
        (names::LABEL_SOURCE_CLUSTER_ID, session.cluster_id),
    ];
    ResourceExport {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(session.leader_namespace.to_owned()),
            labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: ResourceExportSpec {
            cluster_id: session.cluster_id.to_owned(),
            kind: export_kind::LABEL_IDENTITY.to_owned(),
            label_identity: Some(json!({ "normalizedLabel": label })),
            ..ResourceExportSpec::default()
        },
        status: None,
    }
}

/// One `LabelIdentity` for each label of the set. What the leader does not withdraw stays.
fn import(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) {
    let local = match &world.label_identities {
        Optional::Present(local) => local,
        Optional::Pending => return,
        Optional::Absent => {
            return plan.notice(
                "labelidentities.multicluster.crd.antrea.io",
                "this CRD is missing: the numbers of label identities are not imported",
            );
        }
    };
    let offered = offered(session, local, plan);
    let by_number: BTreeMap<u32, &str> = offered.good.iter().map(|(n, i)| (i.id, n.as_str())).collect();
    let mut holders: BTreeMap<u32, Vec<(&str, bool)>> = BTreeMap::new();
    for ((_, name), old) in local.iter() {
        holders
            .entry(old.spec.id)
            .or_default()
            .push((name, made_by_us(old)));
    }
    let before = plan.actions.len();
    let mut going = BTreeSet::new();
    for old in local.values().filter(|o| made_by_us(o)) {
        let name = old.name_any();
        let replaced = by_number.get(&old.spec.id).is_some_and(|n| *n != name);
        let unclear = offered.unclear.contains(&name) && !replaced;
        if !offered.good.contains_key(&name) && !unclear {
            going.insert(name);
            if plan.has_room(before) {
                plan.delete(Side::Local, old.as_ref());
            }
        }
    }
    for (name, spec) in &offered.good {
        if !plan.has_room(before) {
            return;
        }
        let old = get(local, "", name);
        if old.is_some_and(|o| o.spec == *spec && made_by_us(o)) {
            continue;
        }
        // Never two labels with one number, not even for a moment.
        let others = holders.get(&spec.id).into_iter().flatten();
        let holder = others.copied().find(|(other, _)| other != name);
        match holder {
            Some((holder, _)) if going.contains(holder) => {}
            Some((holder, false)) if !offered.good.contains_key(holder) => plan.notice(
                format!("LabelIdentity {holder}"),
                format!(
                    "was made by somebody else and has the number {} of {name}, which is not imported: delete it",
                    spec.id
                ),
            ),
            _ => {
                let mut new = LabelIdentity::new(name, spec.clone());
                new.labels_mut()
                    .insert(names::LABEL_MADE_BY.to_owned(), names::MANAGED_BY.to_owned());
                plan.apply(Side::Local, &new);
            }
        }
    }
}

/// What the leader says, each import for itself; of two with one number the one that is here already counts, else
/// the older.
fn offered(session: &Session<'_>, local: &Objects<LabelIdentity>, plan: &mut Plan) -> Offered {
    let mut offered = Offered::default();
    let mut bad = vec![];
    let mut by_number: BTreeMap<u32, Vec<(&Arc<ResourceImport>, &str)>> = BTreeMap::new();
    for import in session
        .leader
        .imports
        .values()
        .filter(|i| i.spec.kind == kind::LABEL_IDENTITY && offers(i, session.cluster_id))
    {
        let name = import.name_any();
        let why = match label_identity::imported(import.spec.label_identity.as_ref()) {
            Ok((label, _)) if name_of(&digest(label)) != name => {
                format!("this label belongs to the name {:?}", name_of(&digest(label)))
            }
            Ok((label, id)) => {
                by_number.entry(id).or_default().push((import, label));
                continue;
            }
            Err(error) => error.to_string(),
        };
        bad.push((format!("ResourceImport {name}"), format!("not imported: {why}")));
        offered.unclear.insert(name);
    }
    for (id, mut claims) in by_number {
        claims.sort_by_key(|(import, label)| {
            let key: Key = (String::new(), import.name_any());
            let here = local.get(&key);
            let here = here.is_some_and(|o| o.spec.id == id && o.spec.label == *label);
            (!here, import.creation_timestamp(), import.name_any())
        });
        let mut claims = claims.into_iter();
        let winner = claims.next().map(|(import, label)| (import.name_any(), label));
        for (loser, _) in claims {
            let loser = loser.name_any();
            let winner = winner.as_ref().map_or("", |(name, _)| name);
            bad.push((
                format!("ResourceImport {loser}"),
                format!("not imported: its number {id} is that of {winner}, too"),
            ));
            offered.unclear.insert(loser);
        }
        if let Some((name, label)) = winner {
            let label = label.to_owned();
            offered.good.insert(name, LabelIdentitySpec { label, id });
        }
    }
    plan.notices("ResourceImports of kind LabelIdentity", bad);
    offered
}

fn made_by_us(identity: &LabelIdentity) -> bool {
    identity
        .labels()
        .get(names::LABEL_MADE_BY)
        .is_some_and(|v| v == names::MANAGED_BY)
}
