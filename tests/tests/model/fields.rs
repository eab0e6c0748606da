//! Fields of an object by path, and who owns them: what server-side apply needs.
//!
//! Maps are granular; lists belong to one owner as a whole, except those of [`Keyed`], whose entries have owners of
//! their own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Separates the steps of a path.
const STEP: char = '\u{1}';
/// Begins a step that is an entry of a list.
const ENTRY: char = '\u{2}';

/// A path: steps, each behind a separator.
pub(crate) type Path = String;

/// A manager, and whether it applied (true) or wrote otherwise.
pub(crate) type Manager = (String, bool);

/// Who owns which fields.
pub(crate) type Owners = BTreeMap<Manager, BTreeSet<Path>>;

/// What tells the entries of a list apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyed {
    /// They are words.
    Word,
    /// `uid`; an entry is one value.
    Uid,
    /// `port` and `protocol`; each field of an entry has its own owner.
    Port,
}

// === impl Keyed ===

impl Keyed {
    /// How the list at a path is kept; `None`: as one value.
    fn of(kind: &Value, path: &str) -> Option<Self> {
        match path {
            "\u{1}metadata\u{1}finalizers" => Some(Self::Word),
            "\u{1}metadata\u{1}ownerReferences" => Some(Self::Uid),
            "\u{1}spec\u{1}ports" if kind == "Service" => Some(Self::Port),
            _ => None,
        }
    }

    /// As in the messages of an API server.
    fn key(self, entry: &Value) -> String {
        match self {
            Self::Word => format!("{ENTRY}[={entry}]"),
            Self::Uid => format!("{ENTRY}[uid={}]", entry["uid"]),
            Self::Port => {
                let protocol = entry["protocol"].as_str().unwrap_or("TCP");
                format!("{ENTRY}[port={},protocol={protocol:?}]", entry["port"])
            }
        }
    }
}

/// All fields of an object that somebody can own, with their values.
pub(crate) fn leaves(object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    walk(&object["kind"], object, false, &mut String::new(), &mut found);
    found
}

/// The same and the maps and lists they are in: whoever writes otherwise than by applying owns also that those are there.
fn parts(object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    walk(&object["kind"], object, true, &mut String::new(), &mut found);
    found
}

/// What the API server keeps itself, or what names the object: nobody owns it.
fn is_given(path: &str) -> bool {
    const GIVEN: [&str; 10] = [
        "apiVersion",
        "kind",
        "metadata\u{1}name",
        "metadata\u{1}namespace",
        "metadata\u{1}uid",
        "metadata\u{1}resourceVersion",
        "metadata\u{1}generation",
        "metadata\u{1}creationTimestamp",
        "metadata\u{1}deletionTimestamp",
        "metadata\u{1}deletionGracePeriodSeconds",
    ];
    path.strip_prefix(STEP).is_some_and(|p| GIVEN.contains(&p))
}

fn walk(kind: &Value, value: &Value, around: bool, path: &mut String, found: &mut BTreeMap<Path, Value>) {
    if is_given(path) {
        return;
    }
    // That it is there.
    let present = |path: &String, found: &mut BTreeMap<Path, Value>| {
        if around && !path.is_empty() && path != "\u{1}metadata" {
            found.insert(path.clone(), Value::Null);
        }
    };
    match (value, Keyed::of(kind, path)) {
        (Value::Object(map), _) if !map.is_empty() => {
            present(path, found);
            for (key, value) in map {
                let length = step(path, key);
                walk(kind, value, around, path, found);
                path.truncate(length);
            }
        }
        (Value::Array(list), Some(keyed)) if !list.is_empty() => {
            present(path, found);
            for entry in list {
                let length = step(path, &keyed.key(entry));
                if keyed == Keyed::Port {
                    // Somebody wants the entry to be there.
                    found.insert(path.clone(), Value::Null);
                    walk(kind, entry, around, path, found);
                } else {
                    found.insert(path.clone(), entry.clone());
                }
                path.truncate(length);
            }
        }
        _ if path.is_empty() => {}
        // An empty list of these says nothing, an empty map does.
        (Value::Array(_), Some(_)) => {}
        (Value::Object(_), _) if around => present(path, found),
        _ => {
            found.insert(path.clone(), value.clone());
        }
    }
}

/// Lengthens a path; tells how long it was.
fn step(path: &mut String, step: &str) -> usize {
    let length = path.len();
    path.push(STEP);
    path.push_str(step);
    length
}

/// Why an application is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// The fields other owners have with other values, and whose they are.
    Conflicts(Vec<(Path, String)>),
    /// Two entries of a list cannot be told apart.
    Twice(Path),
}

/// Server-side apply of `body` by `manager` to `live`.
pub(crate) fn apply(
    live: &Value,
    owners: &mut Owners,
    body: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, Hindrance> {
    if let Some(path) = twice(body) {
        return Err(Hindrance::Twice(path));
    }
    let mut result = live.clone();
    overlay(&body["kind"], &mut result, body, &mut String::new());
    let me = (manager.to_owned(), true);
    let wanted: BTreeSet<_> = leaves(body).into_keys().collect();
    let before = owners.insert(me.clone(), wanted.clone()).unwrap_or_default();
    for path in before.difference(&wanted) {
        let within = format!("{path}{STEP}");
        // A map is kept for what others have in it; an entry of a list goes with it.
        let wants = |owned: &Path| owned == path || !is_entry(path) && owned.starts_with(&within);
        if !owners.values().any(|fields| fields.iter().any(wants)) {
            remove(&mut result, path, owners);
        }
    }
    let (had, has) = (parts(live), parts(&result));
    let mut conflicts = vec![];
    for (path, _) in has.iter().filter(|(path, value)| had.get(*path) != Some(*value)) {
        for (other, fields) in owners.iter_mut().filter(|(other, _)| **other != me) {
            if fields.contains(path) {
                conflicts.push((path.clone(), other.0.clone()));
                if force {
                    fields.remove(path);
                }
            }
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(Hindrance::Conflicts(conflicts));
    }
    for fields in owners.values_mut() {
        fields.retain(|path| has.contains_key(path) || !had.contains_key(path));
    }
    owners.retain(|_, fields| !fields.is_empty());
    Ok(result)
}

/// Whether a path is that of an entry of a list.
fn is_entry(path: &str) -> bool {
    path.rsplit(STEP)
        .next()
        .is_some_and(|step| step.starts_with(ENTRY))
}

/// A list with two entries of one key.
fn twice(body: &Value) -> Option<Path> {
    let lists = [
        "\u{1}metadata\u{1}finalizers",
        "\u{1}metadata\u{1}ownerReferences",
        "\u{1}spec\u{1}ports",
    ];
    lists.into_iter().find_map(|path| {
        let keyed = Keyed::of(&body["kind"], path)?;
        let list = body.pointer(&path.replace(STEP, "/"))?.as_array()?;
        let keys: BTreeSet<_> = list.iter().map(|entry| keyed.key(entry)).collect();
        (keys.len() < list.len()).then(|| path.to_owned())
    })
}

/// Puts everything of `body` into an object.
fn overlay(kind: &Value, object: &mut Value, body: &Value, path: &mut String) {
    match (body, Keyed::of(kind, path)) {
        (Value::Object(body), _) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (key, value) in body {
                let length = step(path, key);
                if !is_given(path) {
                    overlay(kind, &mut object[key], value, path);
                }
                path.truncate(length);
            }
        }
        (Value::Array(body), Some(keyed)) => {
            let old = object.as_array().cloned().unwrap_or_default();
            *object = Value::Array(zip(kind, keyed, old, body, path));
        }
        _ => object.clone_from(body),
    }
}

/// The entries of two lists, in the order of the second; those of the first alone stay in front of what they were in
/// front of.
fn zip(kind: &Value, keyed: Keyed, old: Vec<Value>, new: &[Value], path: &mut String) -> Vec<Value> {
    let known: BTreeMap<_, _> = old.iter().map(|e| (keyed.key(e), e.clone())).collect();
    let wanted: BTreeSet<_> = new.iter().map(|e| keyed.key(e)).collect();
    let mut shared = new
        .iter()
        .map(|e| keyed.key(e))
        .filter(|k| known.contains_key(k))
        .peekable();
    let mut old = old.into_iter().peekable();
    let mut new = new.iter().peekable();
    let mut out = vec![];
    loop {
        let left = old.peek().map(|e| keyed.key(e));
        let right = new.peek().map(|e| keyed.key(e));
        match (left, right) {
            (None, None) => return out,
            (Some(left), _) if !wanted.contains(&left) => out.extend(old.next()),
            (Some(_), None) => drop(old.next()),
            // Shared, and its turn comes later.
            (Some(left), Some(right)) if left != right && shared.peek().is_some_and(|next| *next != left) => {
                old.next();
            }
            (left, Some(right)) => {
                if left.as_ref() == Some(&right) {
                    old.next();
                }
                if shared.peek() == Some(&right) {
                    shared.next();
                }
                let Some(entry) = new.next() else { return out };
                let mut merged = known.get(&right).cloned().unwrap_or_default();
                if keyed == Keyed::Port {
                    let length = step(path, &right);
                    overlay(kind, &mut merged, entry, path);
                    path.truncate(length);
                } else {
                    merged.clone_from(entry);
                }
                out.push(merged);
            }
        }
    }
}

/// Notes that `manager` made `new` of `old` by any other kind of write.
pub(crate) fn written(old: Option<&Value>, new: &Value, owners: &mut Owners, manager: &str) {
    let before = old.map(parts).unwrap_or_default();
    let after = parts(new);
    for fields in owners.values_mut() {
        // What is not there and was not there is nobody's business.
        fields.retain(|path| after.get(path) == before.get(path));
    }
    let changed = after
        .iter()
        .filter(|(path, value)| before.get(*path) != Some(value))
        .map(|(path, _)| path.clone());
    owners
        .entry((manager.to_owned(), false))
        .or_default()
        .extend(changed);
    owners.retain(|_, fields| !fields.is_empty());
}

/// A path as an API server writes it.
pub(crate) fn show(path: &str) -> String {
    let text = path.replace([STEP, ENTRY], ".");
    text.replace("..[", "[")
}

/// JSON merge patch, RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Removes a field, and what is empty without it: it is null where somebody wants it to be there.
fn remove(object: &mut Value, path: &str, owners: &Owners) {
    let steps: Vec<_> = path.split(STEP).skip(1).collect();
    let kind = object["kind"].clone();
    take(&kind, object, &steps, &mut String::new(), owners);
}

fn take(kind: &Value, at: &mut Value, steps: &[&str], path: &mut String, owners: &Owners) {
    let [first, rest @ ..] = steps else { return };
    match at {
        Value::Object(map) if rest.is_empty() => {
            map.remove(*first);
        }
        Value::Object(map) => {
            let Some(next) = map.get_mut(*first) else { return };
            let length = step(path, first);
            take(kind, next, rest, path, owners);
            path.truncate(length + STEP.len_utf8() + first.len());
            let empty =
                next.as_object().is_some_and(Map::is_empty) || next.as_array().is_some_and(Vec::is_empty);
            if empty && owners.values().any(|fields| fields.contains(path)) {
                *next = Value::Null;
            } else if empty {
                map.remove(*first);
            }
        }
        Value::Array(list) => {
            let Some(keyed) = Keyed::of(kind, path) else {
                return;
            };
            let is_it = |entry: &Value| keyed.key(entry) == *first;
            if rest.is_empty() {
                list.retain(|entry| !is_it(entry));
            } else if let Some(entry) = list.iter_mut().find(|entry| is_it(entry)) {
                step(path, first);
                take(kind, entry, rest, path, owners);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_applied_no_more_goes_unless_another_owns_it() {
        let mut owners = Owners::new();
        let first = json!({ "metadata": { "labels": { "a": "1" }, "finalizers": ["x"] }, "spec": { "b": [1], "c": 2 } });
        let live = apply(&json!({}), &mut owners, &first, "us", false).unwrap();
        let mut other = live.clone();
        merge(
            &mut other,
            &json!({ "metadata": { "labels": { "theirs": "2" } }, "spec": { "c": 3 } }),
        );
        written(Some(&live), &other, &mut owners, "them");
        let second = json!({ "metadata": { "labels": {} }, "spec": { "b": [2], "c": 3 } });
        let live = apply(&other, &mut owners, &second, "us", false).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({ "theirs": "2" }));
        assert_eq!(live["metadata"]["finalizers"], Value::Null);
        assert_eq!(live["spec"], json!({ "b": [2], "c": 3 }));
    }

    #[test]
    fn anothers_value_is_a_conflict_unless_forced() {
        let mut owners = Owners::new();
        let live = json!({ "spec": { "a": 1 } });
        written(None, &live, &mut owners, "them");
        let body = json!({ "spec": { "a": 2 } });
        assert!(apply(&live, &mut owners, &body, "us", false).is_err());
        let live = apply(&live, &mut owners, &body, "us", true).unwrap();
        assert_eq!(live["spec"]["a"], 2);
        // That there is a spec is still theirs.
        let theirs = &owners[&("them".to_owned(), false)];
        assert_eq!(
            theirs.iter().map(|path| show(path)).collect::<Vec<_>>(),
            [".spec"]
        );
    }

    #[test]
    fn what_is_applied_first_comes_first_and_what_others_have_stays_in_its_place() {
        let port = |port: u16| json!({ "port": port, "protocol": "TCP" });
        let service = |ports: &[u16]| {
            let ports: Vec<_> = ports.iter().map(|p| port(*p)).collect();
            json!({ "kind": "Service", "spec": { "ports": ports } })
        };
        let mut owners = Owners::new();
        let live = service(&[1, 2, 3]);
        written(None, &live, &mut owners, "them");
        let live = apply(&live, &mut owners, &service(&[4, 3, 1]), "us", false).unwrap();
        assert_eq!(live, service(&[2, 4, 3, 1]));
    }

    #[test]
    fn a_map_that_is_emptied_is_null_where_somebody_wants_it() {
        let mut owners = Owners::new();
        let full = json!({ "spec": { "a": { "x": 1 } } });
        let live = apply(&json!({}), &mut owners, &full, "us", false).unwrap();
        let live = apply(&live, &mut owners, &json!({ "spec": {} }), "us", false).unwrap();
        assert_eq!(live, json!({ "spec": null }));
    }
}
