//! Field paths and field ownership for server-side apply.
//!
//! Maps are granular. Lists are atomic, except those with a `ListKey`, whose entries have their own owners.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Separates the steps of a path.
const STEP: char = '\u{1}';
/// Marks a step that is a list entry.
const ENTRY: char = '\u{2}';

/// A path: steps, each preceded by a separator.
pub type Path = String;

/// Field manager; the flag is true for server-side apply.
pub type Manager = (String, bool);

/// The fields of each manager, as in `metadata.managedFields`.
pub type ManagedFields = BTreeMap<Manager, BTreeSet<Path>>;

/// Merge key of a list with `listType` set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListKey {
    /// The value itself.
    Value,
    /// `uid`; an entry is atomic.
    Uid,
    /// `port` and `protocol`; each field of an entry has its own owners.
    Port,
}

// === impl Keyed ===

impl ListKey {
    /// The merge key of the list at a path; `None` for atomic lists.
    fn from_path(kind: &Value, path: &str) -> Option<Self> {
        match path {
            "\u{1}metadata\u{1}finalizers" => Some(Self::Value),
            "\u{1}metadata\u{1}ownerReferences" => Some(Self::Uid),
            "\u{1}spec\u{1}ports" if kind == "Service" => Some(Self::Port),
            _ => None,
        }
    }

    /// The path step of an entry, in the notation of API server messages.
    fn key(self, entry: &Value) -> String {
        match self {
            Self::Value => format!("{ENTRY}[={entry}]"),
            Self::Uid => format!("{ENTRY}[uid={}]", entry["uid"]),
            Self::Port => {
                let protocol = entry["protocol"].as_str().unwrap_or("TCP");
                format!("{ENTRY}[port={},protocol={protocol:?}]", entry["port"])
            }
        }
    }
}

/// All ownable fields and their values.
#[must_use]
pub fn leaf_fields(object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    collect_fields(&object["kind"], object, false, &mut String::new(), &mut found);
    found
}

/// All ownable fields with their enclosing maps and lists: updates also own the presence of those.
fn all_fields(object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    collect_fields(&object["kind"], object, true, &mut String::new(), &mut found);
    found
}

/// True for fields that the API server sets or that identify the object: they have no owner.
fn is_unowned(path: &str) -> bool {
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

fn collect_fields(
    kind: &Value,
    value: &Value,
    around: bool,
    path: &mut String,
    found: &mut BTreeMap<Path, Value>,
) {
    if is_unowned(path) {
        return;
    }
    // Records the presence of a container.
    let present = |path: &String, found: &mut BTreeMap<Path, Value>| {
        if around && !path.is_empty() && path != "\u{1}metadata" {
            found.insert(path.clone(), Value::Null);
        }
    };
    match (value, ListKey::from_path(kind, path)) {
        (Value::Object(map), _) if !map.is_empty() => {
            present(path, found);
            for (key, value) in map {
                let length = push_step(path, key);
                collect_fields(kind, value, around, path, found);
                path.truncate(length);
            }
        }
        (Value::Array(list), Some(keyed)) if !list.is_empty() => {
            present(path, found);
            for entry in list {
                let length = push_step(path, &keyed.key(entry));
                if keyed == ListKey::Port {
                    // The presence of the entry is owned, too.
                    found.insert(path.clone(), Value::Null);
                    collect_fields(kind, entry, around, path, found);
                } else {
                    found.insert(path.clone(), entry.clone());
                }
                path.truncate(length);
            }
        }
        _ if path.is_empty() => {}
        // An empty keyed list has no fields; an empty map counts as one.
        (Value::Array(_), Some(_)) => {}
        (Value::Object(_), _) if around => present(path, found),
        _ => {
            found.insert(path.clone(), value.clone());
        }
    }
}

/// Appends a step; returns the previous length.
fn push_step(path: &mut String, step: &str) -> usize {
    let length = path.len();
    path.push(STEP);
    path.push_str(step);
    length
}

/// Rejection of a server-side apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// Fields with another value that other managers own, and those managers.
    Conflicts(Vec<(Path, String)>),
    /// Two entries of a list have the same key.
    DuplicateKey(Path),
}

/// Applies `body` as `manager` to `live`.
pub fn apply(
    live: &Value,
    managed_fields: &mut ManagedFields,
    body: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    if let Some(path) = duplicate_key(body) {
        return Err(ApplyError::DuplicateKey(path));
    }
    let mut result = live.clone();
    merge_applied(&body["kind"], &mut result, body, &mut String::new());
    let me = (manager.to_owned(), true);
    let wanted: BTreeSet<_> = leaf_fields(body).into_keys().collect();
    let before = managed_fields
        .insert(me.clone(), wanted.clone())
        .unwrap_or_default();
    for path in before.difference(&wanted) {
        let within = format!("{path}{STEP}");
        // A map stays if other managers own fields in it; a list entry is removed with its fields.
        let wants = |owned: &Path| owned == path || !is_entry(path) && owned.starts_with(&within);
        if !managed_fields.values().any(|fields| fields.iter().any(wants)) {
            remove_field(&mut result, path, managed_fields);
        }
    }
    let (had, has) = (all_fields(live), all_fields(&result));
    let mut conflicts = vec![];
    for (path, _) in has.iter().filter(|(path, value)| had.get(*path) != Some(*value)) {
        for (other, fields) in managed_fields.iter_mut().filter(|(other, _)| **other != me) {
            if fields.contains(path) {
                conflicts.push((path.clone(), other.0.clone()));
                if force {
                    fields.remove(path);
                }
            }
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    for fields in managed_fields.values_mut() {
        fields.retain(|path| has.contains_key(path) || !had.contains_key(path));
    }
    managed_fields.retain(|_, fields| !fields.is_empty());
    Ok(result)
}

/// True if the path ends at a list entry.
fn is_entry(path: &str) -> bool {
    path.rsplit(STEP)
        .next()
        .is_some_and(|step| step.starts_with(ENTRY))
}

/// The first list with a repeated key.
fn duplicate_key(body: &Value) -> Option<Path> {
    let lists = [
        "\u{1}metadata\u{1}finalizers",
        "\u{1}metadata\u{1}ownerReferences",
        "\u{1}spec\u{1}ports",
    ];
    lists.into_iter().find_map(|path| {
        let keyed = ListKey::from_path(&body["kind"], path)?;
        let list = body.pointer(&path.replace(STEP, "/"))?.as_array()?;
        let keys: BTreeSet<_> = list.iter().map(|entry| keyed.key(entry)).collect();
        (keys.len() < list.len()).then(|| path.to_owned())
    })
}

/// Merges all fields of `body` into an object.
fn merge_applied(kind: &Value, object: &mut Value, body: &Value, path: &mut String) {
    match (body, ListKey::from_path(kind, path)) {
        (Value::Object(body), _) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (key, value) in body {
                let length = push_step(path, key);
                if !is_unowned(path) {
                    merge_applied(kind, &mut object[key], value, path);
                }
                path.truncate(length);
            }
        }
        (Value::Array(body), Some(keyed)) => {
            let old = object.as_array().cloned().unwrap_or_default();
            *object = Value::Array(merge_lists(kind, keyed, old, body, path));
        }
        _ => object.clone_from(body),
    }
}

/// Merges two lists in the order of the second; entries only in the first keep their position relative to their
/// successors.
fn merge_lists(
    kind: &Value,
    keyed: ListKey,
    old: Vec<Value>,
    new: &[Value],
    path: &mut String,
) -> Vec<Value> {
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
            // A shared entry that appears later in the new order.
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
                if keyed == ListKey::Port {
                    let length = push_step(path, &right);
                    merge_applied(kind, &mut merged, entry, path);
                    path.truncate(length);
                } else {
                    merged.clone_from(entry);
                }
                out.push(merged);
            }
        }
    }
}

/// Updates ownership after a create or update by `manager`.
pub fn record_update(old: Option<&Value>, new: &Value, managed_fields: &mut ManagedFields, manager: &str) {
    let before = old.map(all_fields).unwrap_or_default();
    let after = all_fields(new);
    for fields in managed_fields.values_mut() {
        // Owners of fields absent before and after are kept.
        fields.retain(|path| after.get(path) == before.get(path));
    }
    let changed = after
        .iter()
        .filter(|(path, value)| before.get(*path) != Some(value))
        .map(|(path, _)| path.clone());
    managed_fields
        .entry((manager.to_owned(), false))
        .or_default()
        .extend(changed);
    managed_fields.retain(|_, fields| !fields.is_empty());
}

/// A path in the notation of API server messages.
#[must_use]
pub fn display_path(path: &str) -> String {
    let text = path.replace([STEP, ENTRY], ".");
    text.replace("..[", "[")
}

/// JSON merge patch (RFC 7386).
pub fn json_merge_patch(target: &mut Value, patch: &Value) {
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
            json_merge_patch(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Removes a field and the containers that become empty; an owned empty container becomes null.
fn remove_field(object: &mut Value, path: &str, managed_fields: &ManagedFields) {
    let steps: Vec<_> = path.split(STEP).skip(1).collect();
    let kind = object["kind"].clone();
    remove_steps(&kind, object, &steps, &mut String::new(), managed_fields);
}

fn remove_steps(
    kind: &Value,
    at: &mut Value,
    steps: &[&str],
    path: &mut String,
    managed_fields: &ManagedFields,
) {
    let [first, rest @ ..] = steps else { return };
    match at {
        Value::Object(map) if rest.is_empty() => {
            map.remove(*first);
        }
        Value::Object(map) => {
            let Some(next) = map.get_mut(*first) else { return };
            let length = push_step(path, first);
            remove_steps(kind, next, rest, path, managed_fields);
            path.truncate(length + STEP.len_utf8() + first.len());
            let empty =
                next.as_object().is_some_and(Map::is_empty) || next.as_array().is_some_and(Vec::is_empty);
            if empty && managed_fields.values().any(|fields| fields.contains(path)) {
                *next = Value::Null;
            } else if empty {
                map.remove(*first);
            }
        }
        Value::Array(list) => {
            let Some(keyed) = ListKey::from_path(kind, path) else {
                return;
            };
            let is_it = |entry: &Value| keyed.key(entry) == *first;
            if rest.is_empty() {
                list.retain(|entry| !is_it(entry));
            } else if let Some(entry) = list.iter_mut().find(|entry| is_it(entry)) {
                push_step(path, first);
                remove_steps(kind, entry, rest, path, managed_fields);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_no_longer_applied_is_removed_unless_another_manager_owns_it() {
        let mut managed_fields = ManagedFields::new();
        let first = json!({ "metadata": { "labels": { "a": "1" }, "finalizers": ["x"] }, "spec": { "b": [1], "c": 2 } });
        let live = apply(&json!({}), &mut managed_fields, &first, "us", false).unwrap();
        let mut other = live.clone();
        json_merge_patch(
            &mut other,
            &json!({ "metadata": { "labels": { "theirs": "2" } }, "spec": { "c": 3 } }),
        );
        record_update(Some(&live), &other, &mut managed_fields, "them");
        let second = json!({ "metadata": { "labels": {} }, "spec": { "b": [2], "c": 3 } });
        let live = apply(&other, &mut managed_fields, &second, "us", false).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({ "theirs": "2" }));
        assert_eq!(live["metadata"]["finalizers"], Value::Null);
        assert_eq!(live["spec"], json!({ "b": [2], "c": 3 }));
    }

    #[test]
    fn another_managers_value_conflicts_unless_forced() {
        let mut managed_fields = ManagedFields::new();
        let live = json!({ "spec": { "a": 1 } });
        record_update(None, &live, &mut managed_fields, "them");
        let body = json!({ "spec": { "a": 2 } });
        assert!(apply(&live, &mut managed_fields, &body, "us", false).is_err());
        let live = apply(&live, &mut managed_fields, &body, "us", true).unwrap();
        assert_eq!(live["spec"]["a"], 2);
        // The presence of `spec` still has its first owner.
        let theirs = &managed_fields[&("them".to_owned(), false)];
        assert_eq!(
            theirs.iter().map(|path| display_path(path)).collect::<Vec<_>>(),
            [".spec"]
        );
    }

    #[test]
    fn applied_entries_keep_their_order_and_other_entries_their_place() {
        let port = |port: u16| json!({ "port": port, "protocol": "TCP" });
        let service = |ports: &[u16]| {
            let ports: Vec<_> = ports.iter().map(|p| port(*p)).collect();
            json!({ "kind": "Service", "spec": { "ports": ports } })
        };
        let mut managed_fields = ManagedFields::new();
        let live = service(&[1, 2, 3]);
        record_update(None, &live, &mut managed_fields, "them");
        let live = apply(&live, &mut managed_fields, &service(&[4, 3, 1]), "us", false).unwrap();
        assert_eq!(live, service(&[2, 4, 3, 1]));
    }

    #[test]
    fn an_emptied_map_is_null_while_a_manager_owns_it() {
        let mut managed_fields = ManagedFields::new();
        let full = json!({ "spec": { "a": { "x": 1 } } });
        let live = apply(&json!({}), &mut managed_fields, &full, "us", false).unwrap();
        let live = apply(&live, &mut managed_fields, &json!({ "spec": {} }), "us", false).unwrap();
        assert_eq!(live, json!({ "spec": null }));
    }
}
