//! Label identities: one number for each label, in all clusters of the set.
//!
//! Guarantees, whatever is repeated, lost or late, and however often the leader starts anew:
//! - a number is told to members only after the record ([`super::label_record`]) says whose it is; so no two labels
//!   ever have one number, and a label that comes back has the number it had;
//! - a label that nobody exports keeps its number for [`GRACE`]; then the members are told, and for the quarantine
//!   nobody else gets the number.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;

use super::{
    cluster_infos::import,
    label_record::{Entry, PART, Record, part_of},
    live, release,
};
use crate::{
    api::{
        label_identity::{self, MAX_ID, MIN_ID, digest, name_of},
        names,
        resource_export::{ResourceExport, kind as export_kind},
        resource_import::{ResourceImport, ResourceImportSpec, kind},
    },
    plan::{Plan, Side},
    world::{LeaderWorld, get, time},
};

/// So long a label that nobody exports keeps its import: Pods come back, and lists may be old.
pub const GRACE: SignedDuration = SignedDuration::from_secs(30);

/// A label that is exported.
struct Wanted<'a> {
    label: &'a str,
    since: Option<Time>,
}

/// What members are told, where it is what the leader would say.
struct Told<'a> {
    import: &'a ResourceImport,
    digest: String,
    id: u32,
}

/// All imports of this kind.
#[derive(Default)]
struct Imports<'a> {
    good: Vec<Told<'a>>,
    bad: Vec<&'a ResourceImport>,
    /// Digests and numbers that stand under a wrong name.
    misnamed: Vec<(String, u32)>,
    /// Every number any of them names.
    numbers: BTreeSet<u32>,
}

/// One import with a number for each exported label.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    plan_up_to(world, MAX_ID, plan);
}

/// The same with numbers up to `last`.
pub(super) fn plan_up_to(world: &LeaderWorld, last: u32, plan: &mut Plan) {
    let exports: Vec<_> = world
        .exports
        .values()
        .filter(|e| e.spec.kind == export_kind::LABEL_IDENTITY)
        .map(AsRef::as_ref)
        .collect();
    // They are not waited for: Antrea's have no finalizer either.
    for export in &exports {
        release(export, plan);
    }
    let Some(records) = world.records.as_ref().filter(|_| world.config.stretched_policy) else {
        let count = exports.iter().filter(|e| live(e)).count();
        if count > 0 {
            plan.notice(
                "enableStretchedNetworkPolicy",
                format!("is not set here: {count} label identities of members are ignored"),
            );
        }
        return;
    };
    let stored = Record::read(&world.namespace, records, plan);
    let imports = imports(world, plan);
    let wanted = wanted(&exports, &imports, plan);
    let mut next = stored.clone();
    let numbers = numbers(world, &mut next, &imports, &wanted);
    let numbers = allocate(world, last, &mut next, &imports, &wanted, numbers, plan);
    next.prune(&stored, |id, entry| {
        numbers.get(&entry.digest) != Some(&id) && expired(world, &imports, id, entry)
    });
    next.write(world, &stored, plan);
    let before = plan.actions.len();
    for (digest, wanted) in &wanted {
        if let Some(id) = numbers.get(digest).filter(|_| plan.has_room(before)) {
            tell(world, &stored, digest, *id, wanted.label, plan);
        }
    }
    withdraw(world, &stored, &imports, &wanted, plan);
}

/// The labels members export. A bad export counts for nobody.
fn wanted<'a>(
    exports: &[&'a ResourceExport],
    imports: &Imports<'_>,
    plan: &mut Plan,
) -> BTreeMap<String, Wanted<'a>> {
    let mut wanted: BTreeMap<String, Wanted<'a>> = BTreeMap::new();
    let mut bad = vec![];
    for export in exports.iter().filter(|e| live(e)) {
        match exported(export) {
            Ok((digest, label)) => {
                let since = export.creation_timestamp();
                let known = wanted.entry(digest).or_insert_with(|| Wanted {
                    label,
                    since: since.clone(),
                });
                known.since = known.since.clone().min(since);
            }
            Err(why) => bad.push((format!("ResourceExport {}", export.name_any()), why)),
        }
    }
    bad.extend(unnamable(&mut wanted, imports));
    plan.notices("ResourceExports of kind LabelIdentity", bad);
    wanted
}

/// Digest and label of an export that says the same in all its fields.
fn exported(export: &ResourceExport) -> Result<(String, &str), String> {
    let spec = &export.spec;
    let label =
        label_identity::exported(spec.label_identity.as_ref()).map_err(|e| format!("ignored: {e}"))?;
    if spec.cluster_id.is_empty() {
        return Err("ignored: spec.clusterID is empty".to_owned());
    }
    let digest = digest(label);
    let name = names::label_identity_export(&spec.cluster_id, name_of(&digest));
    if export.name_any() != name {
        return Err(format!(
            "ignored: spec.clusterID {:?} and this label belong to the name {name:?}",
            spec.cluster_id
        ));
    }
    match export.labels().get(names::LABEL_SOURCE_CLUSTER_ID) {
        Some(id) if *id != spec.cluster_id => Err(format!(
            "ignored: spec.clusterID {:?} is not the label {}, {id:?}",
            spec.cluster_id,
            names::LABEL_SOURCE_CLUSTER_ID
        )),
        _ => Ok((digest, label)),
    }
}

/// Two labels may want one name, which is a part of the digest. The one that has it keeps it.
fn unnamable(wanted: &mut BTreeMap<String, Wanted<'_>>, imports: &Imports<'_>) -> Vec<(String, String)> {
    let mut owners: BTreeMap<String, (bool, Option<Time>, String)> = BTreeMap::new();
    for (digest, label) in wanted.iter() {
        let told = imports.good.iter().any(|t| t.digest == *digest);
        let claim = (!told, label.since.clone(), digest.clone());
        owners
            .entry(name_of(digest).to_owned())
            .and_modify(|old| *old = old.clone().min(claim.clone()))
            .or_insert(claim);
    }
    let lost: Vec<String> = wanted
        .keys()
        .filter(|d| owners.get(name_of(d)).is_some_and(|(_, _, owner)| owner != *d))
        .cloned()
        .collect();
    lost.iter()
        .filter_map(|digest| wanted.remove(digest).map(|w| (digest, w)))
        .map(|(digest, w)| {
            (
                format!("label {:?}", w.label),
                format!("ignored: another label has the hash {}, too", name_of(digest)),
            )
        })
        .collect()
}

fn imports<'a>(world: &'a LeaderWorld, plan: &mut Plan) -> Imports<'a> {
    let mut all = Imports::default();
    let mut notices = vec![];
    for import in world
        .imports
        .values()
        .filter(|i| i.spec.kind == kind::LABEL_IDENTITY)
    {
        let read = label_identity::imported(import.spec.label_identity.as_ref());
        let why = match read {
            Ok((label, id)) => {
                all.numbers.insert(id);
                let digest = digest(label);
                if name_of(&digest) == import.name_any() {
                    all.good.push(Told { import, digest, id });
                    continue;
                }
                all.misnamed.push((digest.clone(), id));
                format!("this label belongs to the name {:?}", name_of(&digest))
            }
            Err(error) => error.to_string(),
        };
        notices.push((format!("ResourceImport {}", import.name_any()), why));
        all.bad.push(import);
    }
    plan.notices("ResourceImports of kind LabelIdentity", notices);
    // Of two with one number the older keeps it.
    all.good
        .sort_by_key(|t| (t.import.creation_timestamp(), t.import.name_any()));
    all
}

/// Whose number is which, from the record and from imports that are in no record (a leader before us wrote them).
/// Notes in the record who is gone and who is back.
fn numbers(
    world: &LeaderWorld,
    next: &mut Record,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, Wanted<'_>>,
) -> BTreeMap<String, u32> {
    let mut numbers = BTreeMap::new();
    for told in &imports.good {
        let ours = match next.get(told.id) {
            _ if next.frozen(told.id) => true,
            Some(entry) => entry.digest == told.digest,
            None => {
                let digest = told.digest.clone();
                next.set(told.id, Entry { digest, gone: None });
                true
            }
        };
        if ours {
            numbers.insert(told.digest.clone(), told.id);
        }
    }
    for (digest, id) in &imports.misnamed {
        if next.get(*id).is_none() {
            let digest = digest.clone();
            next.set(*id, Entry { digest, gone: None });
        }
    }
    let told: BTreeSet<String> = numbers.keys().cloned().collect();
    // Recorded and not told yet; the lowest, should there be two.
    for (id, entry) in next.iter() {
        let digest = &entry.digest;
        if wanted.contains_key(digest) && !told.contains(digest) && !numbers.contains_key(digest) {
            numbers.insert(digest.clone(), id);
        }
    }
    let now = time(world.now).0;
    let mut changes = vec![];
    for (id, entry) in next.iter() {
        let kept = wanted.contains_key(&entry.digest) && numbers.get(&entry.digest) == Some(&id);
        let gone = match entry.gone {
            _ if kept => None,
            None => Some(now),
            // A clock was set back.
            Some(at) if at > now => Some(now),
            // Members have been told of it for longer than was meant; the quarantine begins with its end.
            Some(at) if imports.numbers.contains(&id) && now.duration_since(at) > GRACE + GRACE => {
                now.checked_sub(GRACE).ok()
            }
            Some(at) => Some(at),
        };
        if gone != entry.gone {
            let digest = entry.digest.clone();
            changes.push((id, Entry { digest, gone }));
        }
    }
    for (id, entry) in changes {
        next.set(id, entry);
    }
    numbers
}

/// When the number may be given to somebody else, as far as time goes.
fn free_at(world: &LeaderWorld, gone: Timestamp) -> Timestamp {
    gone.checked_add(GRACE + world.config.quarantine)
        .unwrap_or(Timestamp::MAX)
}

fn expired(world: &LeaderWorld, imports: &Imports<'_>, id: u32, entry: &Entry) -> bool {
    !imports.numbers.contains(&id) && entry.gone.is_some_and(|at| free_at(world, at) <= world.now)
}

/// Gives the lowest free numbers to those who have none: first come, first served.
fn allocate(
    world: &LeaderWorld,
    last: u32,
    next: &mut Record,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, Wanted<'_>>,
    mut numbers: BTreeMap<String, u32>,
    plan: &mut Plan,
) -> BTreeMap<String, u32> {
    let mut without: Vec<_> = wanted.iter().filter(|(d, _)| !numbers.contains_key(*d)).collect();
    without.sort_by_key(|(digest, w)| (w.since.clone(), *digest));
    let mut id = MIN_ID;
    for (digest, _) in &without {
        while id <= last && !free(world, next, imports, id) {
            id = if next.frozen(id) {
                (part_of(id) + 1) * PART
            } else {
                id + 1
            };
        }
        if id > last {
            break;
        }
        let digest = (*digest).clone();
        next.set(
            id,
            Entry {
                digest: digest.clone(),
                gone: None,
            },
        );
        numbers.insert(digest, id);
        id += 1;
    }
    let waiting = without.iter().filter(|(d, _)| !numbers.contains_key(*d)).count();
    if waiting > 0 {
        let held = next.iter().filter(|(_, e)| e.gone.is_some());
        let held: Vec<_> = held.filter_map(|(_, e)| Some(free_at(world, e.gone?))).collect();
        plan.notice(
            "label identities",
            format!(
                "no number is free for {waiting} labels: all {last} are given away, {} of them to labels that are gone \
                 and kept from others for a while",
                held.len()
            ),
        );
        if let Some(first) = held.into_iter().filter(|at| *at > world.now).min() {
            plan.wake(first);
        }
    }
    numbers
}

fn free(world: &LeaderWorld, next: &Record, imports: &Imports<'_>, id: u32) -> bool {
    !next.frozen(id)
        && !imports.numbers.contains(&id)
        && next
            .get(id)
            .is_none_or(|entry| expired(world, imports, id, entry))
}

/// Tells the members, once the record says so.
fn tell(world: &LeaderWorld, stored: &Record, digest: &str, id: u32, label: &str, plan: &mut Plan) {
    let recorded = stored
        .get(id)
        .is_some_and(|e| e.digest == digest && e.gone.is_none());
    if !recorded {
        return;
    }
    let name = name_of(digest);
    let spec = ResourceImportSpec {
        kind: kind::LABEL_IDENTITY.to_owned(),
        label_identity: Some(json!({ "label": label, "id": id })),
        ..ResourceImportSpec::default()
    };
    let new = import(&world.namespace, name, spec);
    let Some(old) = get(&world.imports, &world.namespace, name) else {
        return plan.create(Side::Local, &new);
    };
    if old.spec.kind != kind::LABEL_IDENTITY {
        return plan.notice(
            format!("label {label:?}"),
            format!(
                "has no number: the name {name:?} is taken by a ResourceImport of kind {:?}",
                old.spec.kind
            ),
        );
    }
    let theirs = label_identity::imported(old.spec.label_identity.as_ref());
    let same = matches!(theirs, Ok(theirs) if theirs == (label, id));
    // One of another label with this hash goes first; one that is being deleted, too.
    let other =
        matches!(theirs, Ok((theirs, _)) if theirs != label && name_of(&self::digest(theirs)) == name);
    if !same && !other && old.metadata.deletion_timestamp.is_none() {
        plan.apply(Side::Local, &new);
    }
}

/// Takes back what nobody exports: after its time, and after that is recorded.
fn withdraw(
    world: &LeaderWorld,
    stored: &Record,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, Wanted<'_>>,
    plan: &mut Plan,
) {
    let before = plan.actions.len();
    for told in imports.good.iter().filter(|t| !wanted.contains_key(&t.digest)) {
        if !plan.has_room(before) {
            return;
        }
        if stored.frozen(told.id) {
            continue;
        }
        let Some(entry) = stored.get(told.id) else {
            continue;
        };
        if entry.digest != told.digest {
            // Never its number.
            plan.delete(Side::Local, told.import);
            continue;
        }
        let Some(end) = entry.gone.and_then(|at| at.checked_add(GRACE).ok()) else {
            continue;
        };
        if end <= world.now {
            plan.delete(Side::Local, told.import);
        } else {
            plan.wake(end);
        }
    }
    for bad in imports.bad.iter().copied() {
        // One with a name that is wanted is written anew.
        if !wanted.keys().any(|d| name_of(d) == bad.name_any()) {
            plan.delete(Side::Local, bad);
        }
    }
}
