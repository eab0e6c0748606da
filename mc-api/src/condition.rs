//! `Condition`, shared by all kinds of this API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The condition holds.
pub const TRUE: &str = "True";
/// The condition does not hold; the message has the cause.
pub const FALSE: &str = "False";
/// Not determined yet.
pub const UNKNOWN: &str = "Unknown";

// All fields have defaults: an object of another implementation must not fail a watch.
/// One observed aspect of an object.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type, such as `Ready` or `Valid`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Last change of `status` or `reason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Human-readable explanation.
    pub message: String,
    /// Machine-readable cause in `CamelCase`.
    pub reason: String,
}

impl Condition {
    /// A condition without a transition time; [`upsert`] sets it.
    #[must_use]
    pub fn new(type_: &str, status: &str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: type_.to_owned(),
            status: status.to_owned(),
            last_transition_time: None,
            message: message.into(),
            reason: reason.to_owned(),
        }
    }

    /// Sets the transition time.
    #[must_use]
    pub fn with_transition_time(mut self, now: &Time) -> Self {
        self.last_transition_time = Some(now.clone());
        self
    }

    /// Whether the condition holds.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.status == TRUE
    }
}

/// Inserts or replaces the condition of `new`'s type; the transition time changes with status and reason only.
pub fn upsert(conditions: &mut Vec<Condition>, new: Condition, now: &Time) {
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            let is_same = old.status == new.status && old.reason == new.reason;
            // A time in the future is that of a clock that was set back since: a wait that begins with it would last
            // until the clock has passed it.
            let time = old.last_transition_time.take();
            let time = time.filter(|time| is_same && time.0 <= now.0);
            let time = time.or_else(|| Some(now.clone()));
            *old = Condition {
                last_transition_time: time,
                ..new
            };
        }
        None => conditions.push(new.with_transition_time(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: &str) -> Time {
        serde_json::from_value(serde_json::json!(s)).unwrap()
    }

    #[test]
    fn a_time_of_a_clock_that_was_set_back_is_replaced() {
        let ready = || Condition::new("Ready", FALSE, "Waiting", "");
        let mut conditions = vec![ready().with_transition_time(&at("2026-01-03T00:00:00Z"))];
        upsert(&mut conditions, ready(), &at("2026-01-01T00:00:00Z"));
        upsert(&mut conditions, ready(), &at("2026-01-02T00:00:00Z"));
        assert_eq!(
            conditions[0].last_transition_time,
            Some(at("2026-01-01T00:00:00Z"))
        );
    }

    #[test]
    fn the_transition_time_changes_only_with_status_or_reason() {
        let (one, two) = (at("2026-01-01T00:00:01Z"), at("2026-01-01T00:00:02Z"));
        let mut list = vec![];
        upsert(&mut list, Condition::new("Ready", TRUE, "Connected", "a"), &one);
        upsert(&mut list, Condition::new("Ready", TRUE, "Connected", "b"), &two);
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].message, "b");
        assert_eq!(list[0].last_transition_time, Some(one));
        upsert(
            &mut list,
            Condition::new("Ready", FALSE, "Disconnected", "b"),
            &two,
        );
        assert_eq!(list[0].last_transition_time, Some(two));
    }
}
