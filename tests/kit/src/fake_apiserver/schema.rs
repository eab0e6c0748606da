//! Validation and pruning by CRD schema, without patterns and formats.

use serde_json::{Map, Value};

/// Fields that a schema does not describe.
const NOT_IN_SCHEMA: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The first schema violation; unchanged invalid fields are tolerated (ratcheting).
pub(super) fn validation_error(schema: &Value, old: Option<&Value>, new: &Value) -> Option<String> {
    let same = |field: &str| old.is_some_and(|old| old.get(field) == new.get(field));
    let missing = required(schema).find(|field| new.get(field).is_none() && !same(field));
    if let Some(field) = missing {
        return Some(format!("{field}: Required value"));
    }
    new.as_object()?
        .iter()
        .filter(|(field, _)| !NOT_IN_SCHEMA.contains(&field.as_str()) && !same(field))
        .find_map(|(field, value)| value_error(schema["properties"].get(field)?, value, field))
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    let all = schema["required"].as_array().into_iter().flatten();
    all.filter_map(Value::as_str)
}

/// The first schema violation of the value at `path`.
fn value_error(schema: &Value, value: &Value, path: &str) -> Option<String> {
    let is_null = value.is_null();
    let right = match schema["type"].as_str() {
        _ if is_null => schema["nullable"] == true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => true,
    };
    if !right {
        return Some(format!("{path}: Invalid value: {value}: must be of another type"));
    }
    let limit = |field: &str| schema[field].as_f64();
    let length = |value: &str| u32::try_from(value.chars().count()).map_or(f64::MAX, f64::from);
    let bad = match value {
        Value::String(text) => {
            limit("maxLength").is_some_and(|most| length(text) > most)
                || limit("minLength").is_some_and(|least| length(text) < least)
                || schema["enum"].as_array().is_some_and(|all| !all.contains(value))
        }
        Value::Number(number) => number.as_f64().is_some_and(|n| {
            limit("maximum").is_some_and(|most| n > most) || limit("minimum").is_some_and(|least| n < least)
        }),
        Value::Array(list) => {
            let count = u32::try_from(list.len()).map_or(f64::MAX, f64::from);
            limit("maxItems").is_some_and(|most| count > most)
        }
        _ => false,
    };
    if bad {
        return Some(format!("{path}: Invalid value: {value}"));
    }
    match value {
        Value::Object(map) => object_error(schema, map, path),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .find_map(|(i, entry)| value_error(schema.get("items")?, entry, &format!("{path}[{i}]"))),
        _ => None,
    }
}

fn object_error(schema: &Value, map: &Map<String, Value>, path: &str) -> Option<String> {
    if let Some(field) = required(schema).find(|field| !map.contains_key(*field)) {
        return Some(format!("{path}.{field}: Required value"));
    }
    map.iter().find_map(|(field, value)| {
        let known = schema["properties"].get(field);
        value_error(
            known.or(schema.get("additionalProperties"))?,
            value,
            &format!("{path}.{field}"),
        )
    })
}

/// The first field that the schema does not declare.
pub(super) fn unknown_field(schema: &Value, object: &Value) -> Option<String> {
    let mut copy = object.clone();
    let mut gone = None;
    prune(schema, &mut copy, &mut String::new(), &mut gone);
    gone
}

/// Removes undeclared fields.
pub(super) fn prune_unknown(schema: &Value, object: &mut Value) {
    prune(schema, object, &mut String::new(), &mut None);
}

fn prune(schema: &Value, value: &mut Value, path: &mut String, gone: &mut Option<String>) {
    match value {
        Value::Array(list) => {
            for entry in list {
                if let Some(schema) = schema.get("items") {
                    prune(schema, entry, path, gone);
                }
            }
        }
        Value::Object(map) if schema["type"] == "object" => {
            let top = path.is_empty();
            let all = schema["x-kubernetes-preserve-unknown-fields"] == true;
            let length = path.len();
            map.retain(|field, value| {
                if top && NOT_IN_SCHEMA.contains(&field.as_str()) {
                    return true;
                }
                path.push('.');
                path.push_str(field);
                let known = schema["properties"]
                    .get(field)
                    .or(schema.get("additionalProperties"));
                match known {
                    Some(known) => prune(known, value, path, gone),
                    None if !all => *gone = gone.take().or(Some(path.clone())),
                    None => {}
                }
                path.truncate(length);
                known.is_some() || all
            });
        }
        _ => {}
    }
}
