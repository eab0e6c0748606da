//! Access to the fields of JSON objects. A null field is equivalent to an absent one.

use serde_json::Value;

use super::error::{Errors, PolicyError};
use crate::label_selector::LabelSelector;

/// A field that is present and rejected; its error is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejected;

/// A JSON object and its path.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// The object at `path`; another type is an error.
    pub(super) fn new(value: &'a Value, path: String, errors: &mut Errors) -> Result<Self, Rejected> {
        if value.is_object() {
            return Ok(Self { value, path });
        }
        errors.add(
            &path,
            value,
            PolicyError::Type {
                expected: "an object",
            },
        );
        Err(Rejected)
    }

    /// The path of a field.
    pub(super) fn path_of(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// The value of a field.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// Whether a field is present.
    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Adds the error of a field.
    pub(super) fn reject(&self, key: &str, reason: PolicyError, errors: &mut Errors) -> Rejected {
        errors.add(&self.path_of(key), self.get(key).unwrap_or(&Value::Null), reason);
        Rejected
    }

    /// Rejects fields other than these; the `unsupported` ones have an error of their own. An empty list is equivalent
    /// to an absent field.
    pub(super) fn only(
        &self,
        known: &[&str],
        unsupported: &[&str],
        errors: &mut Errors,
    ) -> Result<(), Rejected> {
        let mut result = Ok(());
        for (key, value) in self.value.as_object().into_iter().flatten() {
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if is_empty || known.contains(&key.as_str()) {
                continue;
            }
            let reason = if unsupported.contains(&key.as_str()) {
                PolicyError::Unsupported
            } else {
                PolicyError::UnknownField
            };
            result = Err(self.reject(key, reason, errors));
        }
        result
    }

    /// The first of these fields that is present excludes `key`.
    pub(super) fn excludes(
        &self,
        key: &str,
        others: &[&'static str],
        errors: &mut Errors,
    ) -> Result<(), Rejected> {
        let present = others
            .iter()
            .find(|other| self.has(key) && **other != key && self.has(other));
        match present {
            Some(other) => Err(self.reject(key, PolicyError::Excludes { other }, errors)),
            None => Ok(()),
        }
    }

    /// The items of a list; an absent one is empty.
    pub(super) fn list(&self, key: &str, errors: &mut Errors) -> Result<&'a [Value], Rejected> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.reject(key, PolicyError::Type { expected: "a list" }, errors)),
        }
    }

    /// A string; an empty one is equivalent to an absent one.
    pub(super) fn text(&self, key: &str, errors: &mut Errors) -> Result<Option<&'a str>, Rejected> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(self.reject(key, PolicyError::Type { expected: "a string" }, errors)),
        }
    }

    /// A label selector.
    pub(super) fn selector(&self, key: &str, errors: &mut Errors) -> Result<Option<LabelSelector>, Rejected> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        LabelSelector::parse(value)
            .map(Some)
            .map_err(|error| self.reject(key, error.into(), errors))
    }
}
