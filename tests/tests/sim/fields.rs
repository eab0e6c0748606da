//! Fields of an object by path, and who owns them: what server-side apply needs.
//!
//! Maps are granular; lists belong to one owner as a whole, except `metadata.finalizers`, where each entry has its
//! own, and `metadata.ownerReferences`, which are told apart by UID.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Separates the steps of a path.
const STEP: char = '\u{1}';

/// A path: steps, each behind a separator.
pub(crate) type Path = String;

/// A manager, and whether it applied (true) or wrote otherwise.
pub(crate) type Manager = (String, bool);

/// Who owns which fields.
pub(crate) type Owners = BTreeMap<Manager, BTreeSet<Path>>;

/// All fields of an object that somebody can own, with their values.
pub(crate) fn leaves(object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    walk(object, &mut String::new(), &mut found);
    found
}

/// What the API server keeps itself, or what names the object: nobody owns it.
fn is_given(path: &str) -> bool {
    const GIVEN: [&str; 9] = [
        "apiVersion",
        "kind",
        "metadata\u{1}name",
        "metadata\u{1}namespace",
        "metadata\u{1}uid",
        "metadata\u{1}resourceVersion",
        "metadata\u{1}generation",
        "metadata\u{1}creationTimestamp",
        "metadata\u{1}deletionTimestamp",
    ];
    path.strip_prefix(STEP).is_some_and(|p| GIVEN.contains(&p))
}

fn walk(value: &Value, path: &mut String, found: &mut BTreeMap<Path, Value>) {
    if is_given(path) {
        return;
    }
    let length = path.len();
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                path.push(STEP);
                path.push_str(key);
                walk(value, path, found);
                path.truncate(length);
            }
        }
        Value::Array(list) if keyed(path).is_some() => {
            for entry in list {
                path.push(STEP);
                path.push_str(&entry_key(entry));
                found.insert(path.clone(), entry.clone());
                path.truncate(length);
            }
        }
        _ if path.is_empty() => {}
        _ => {
            found.insert(path.clone(), value.clone());
        }
    }
}

/// The lists whose entries are owned one by one.
fn keyed(path: &str) -> Option<&'static str> {
    [
        "\u{1}metadata\u{1}finalizers",
        "\u{1}metadata\u{1}ownerReferences",
    ]
    .into_iter()
    .find(|list| *list == path)
}

fn entry_key(entry: &Value) -> String {
    entry
        .as_str()
        .or_else(|| entry["uid"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// Server-side apply of `body` by `manager` to `live`; or the first field another owner has with another value.
pub(crate) fn apply(
    live: &Value,
    owners: &mut Owners,
    body: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, String> {
    let wanted = leaves(body);
    let have = leaves(live);
    let me = (manager.to_owned(), true);
    for (path, value) in &wanted {
        if have.get(path) == Some(value) {
            continue;
        }
        for (other, fields) in owners.iter_mut().filter(|(other, _)| **other != me) {
            if fields.contains(path) {
                if !force {
                    return Err(format!("conflict with {:?}: {}", other.0, show(path)));
                }
                fields.remove(path);
            }
        }
    }
    let mut result = live.clone();
    let before = owners
        .insert(me.clone(), wanted.keys().cloned().collect())
        .unwrap_or_default();
    for path in before.iter().filter(|p| !wanted.contains_key(*p)) {
        if !owners.values().any(|fields| fields.contains(path)) {
            remove(&mut result, path);
        }
    }
    for (path, value) in &wanted {
        set(&mut result, path, value);
    }
    owners.retain(|_, fields| !fields.is_empty());
    Ok(result)
}

/// Notes that `manager` made `new` of `old` by any other kind of write.
pub(crate) fn written(old: Option<&Value>, new: &Value, owners: &mut Owners, manager: &str) {
    let before = old.map(leaves).unwrap_or_default();
    let after = leaves(new);
    for fields in owners.values_mut() {
        fields.retain(|path| {
            after
                .get(path)
                .is_some_and(|value| before.get(path) == Some(value))
        });
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

/// A path for people.
pub(crate) fn show(path: &str) -> String {
    path.replace(STEP, ".")
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

/// The list an entry of it belongs to.
fn list_of(path: &str) -> Option<(&str, &str)> {
    let (list, key) = path.rsplit_once(STEP)?;
    keyed(list).map(|_| (list, key))
}

fn set(object: &mut Value, path: &str, value: &Value) {
    let (steps, entry) = match list_of(path) {
        Some((list, key)) => (list, Some(key)),
        None => (path, None),
    };
    let mut at = object;
    for step in steps.split(STEP).skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        let Some(map) = at.as_object_mut() else { return };
        at = map.entry(step).or_insert(Value::Null);
    }
    let Some(key) = entry else {
        // To own an empty map is to own nothing that is in it.
        if at.is_object() && value.as_object().is_some_and(Map::is_empty) {
            return;
        }
        *at = value.clone();
        return;
    };
    if !at.is_array() {
        *at = json!([]);
    }
    let Some(list) = at.as_array_mut() else { return };
    match list.iter_mut().find(|e| entry_key(e) == key) {
        Some(old) => *old = value.clone(),
        None => list.push(value.clone()),
    }
}

/// Removes a field, and the maps and lists that are empty without it.
fn remove(object: &mut Value, path: &str) {
    let steps: Vec<_> = path.split(STEP).skip(1).collect();
    take(object, &steps);
}

fn take(at: &mut Value, steps: &[&str]) {
    let [step, rest @ ..] = steps else { return };
    match at {
        Value::Object(map) if rest.is_empty() => {
            map.remove(*step);
        }
        Value::Object(map) => {
            if let Some(next) = map.get_mut(*step) {
                take(next, rest);
                let empty =
                    next.as_object().is_some_and(Map::is_empty) || next.as_array().is_some_and(Vec::is_empty);
                if empty {
                    map.remove(*step);
                }
            }
        }
        Value::Array(list) => list.retain(|entry| entry_key(entry) != *step),
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
        assert_eq!(owners.len(), 1);
    }
}
