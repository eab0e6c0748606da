//! Answers: what a request does to a store, and what it is told.

use serde_json::{Value, json};

use super::{
    ask::{Ask, Filter, Verb},
    kinds::Trait,
    refusal::Refusal,
    store::{Actor, Deletion, Part, Store, Stored, Writer},
};

/// An answer that is no refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// HTTP.
    pub(crate) code: u16,
    /// The body.
    pub(crate) text: String,
}

// === impl Said ===

impl Said {
    /// An object is gone.
    fn done(ask: &Ask, gone: &Stored) -> Self {
        let (group, plural) = &ask.resource;
        let mut details = json!({ "name": ask.name, "kind": plural, "uid": gone.uid() });
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        });
        Self {
            code: 200,
            text: status.to_string(),
        }
    }
}

impl Store {
    /// Everything but lists and watches.
    pub(crate) fn serve(&mut self, ask: &Ask, actor: Actor, now: jiff::Timestamp) -> Result<Said, Refusal> {
        let key = ask.key();
        let manager = ask.query.get("fieldManager").map_or("client", String::as_str);
        let writer = Writer { actor, manager, now };
        let part = if ask.status { Part::Status } else { Part::Main };
        let code = |new: bool| if new { 201 } else { 200 };
        let said = |stored: &Stored, new: bool| Said {
            code: code(new),
            text: object(stored, ask),
        };
        let resource = &ask.resource;
        if ask.query.contains_key("dryRun") {
            let mut copy = self.clone();
            let done = copy.create(resource, &ask.namespace, ask.body.clone(), writer, part)?;
            // What is not kept has no version.
            let mut value = done.value.clone();
            if let Some(metadata) = value["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            return Ok(Said {
                code: 201,
                text: in_version(&value, ask),
            });
        }
        let new = self.get(resource, &key).is_none();
        let done = match ask.verb {
            Verb::Get => self
                .get(resource, &key)
                .cloned()
                .ok_or_else(|| Refusal::new(404, format!("{} {:?} not found", resource.1, ask.name))),
            Verb::Create => self.create(resource, &ask.namespace, ask.body.clone(), writer, part),
            Verb::Replace => self.replace(resource, &key, ask.body.clone(), writer, part),
            Verb::Merge => self.patch(resource, &key, &ask.body, writer, part),
            Verb::Apply => {
                let force = ask.query.get("force").is_some_and(|f| f == "true");
                self.apply(resource, &key, ask.body.clone(), force, writer)
            }
            Verb::Delete => match self.delete(resource, &key, &ask.body["preconditions"], writer)? {
                Deletion::Done(gone) if !self.kind(resource).has(Trait::Shown) => {
                    return Ok(Said::done(ask, &gone));
                }
                Deletion::Done(object) | Deletion::Held(object) => Ok(object),
            },
            Verb::List | Verb::Watch => Err(Refusal::new(400, "not here")),
        };
        done.map(|stored| said(&stored, new))
    }

    /// A list as it was at version `newest`, `page` objects at a time at most.
    pub(crate) fn list(&self, ask: &Ask, newest: u64, page: usize) -> Result<Said, Refusal> {
        let filter = Filter::new(ask);
        let (version, after) = match ask.query.get("continue").and_then(|c| c.split_once('|')) {
            Some((version, after)) => (version.parse().unwrap_or(0), after.to_owned()),
            None => (self.version().min(newest).max(self.compacted()), String::new()),
        };
        if version < self.compacted() {
            return Err(Refusal::new(410, "The provided continue parameter is too old"));
        }
        let limit = page.min(ask.number("limit").unwrap_or(500));
        let objects = self.at(&ask.resource, version);
        // In the order of their paths: "shop-a/web" comes before "shop/web".
        let mut rest: Vec<_> = objects
            .iter()
            .filter(|(key, _)| ask.namespace.is_empty() || key.0 == ask.namespace)
            .map(|(key, stored)| (format!("{}/{}", key.0, key.1), key, stored))
            .filter(|(place, ..)| *place > after)
            .collect();
        rest.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let mut rest = rest.into_iter().peekable();
        let mut items = vec![];
        let mut last = String::new();
        while items.len() < limit
            && let Some((place, key, stored)) = rest.next()
        {
            if filter.takes(key, stored) {
                items.push(object(stored, ask));
            }
            last = place;
        }
        // That none of the rest fits, nobody has looked at.
        let next = rest
            .peek()
            .map(|_| format!("{version}|{last}"))
            .unwrap_or_default();
        let metadata = json!({ "resourceVersion": version.to_string(), "continue": next });
        let text = format!(
            "{{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"items\":[{}]}}",
            items.join(",")
        );
        Ok(Said { code: 200, text })
    }

    /// The next event of a watch that has seen everything up to `position`, and its version.
    pub(crate) fn event(&self, ask: &Ask, filter: &Filter, position: &mut u64) -> Option<(String, u64)> {
        for change in self.since(&ask.resource, *position) {
            if let Some(type_) = filter.event(change) {
                let text = if type_ == "DELETED" && !change.deleted {
                    // What does not fit any more is shown as it was when it did.
                    let mut value = change.old.as_ref().map(|o| o.value.clone()).unwrap_or_default();
                    value["metadata"]["resourceVersion"] = json!(change.version.to_string());
                    in_version(&value, ask)
                } else {
                    object(&change.new, ask)
                };
                return Some((
                    format!("{{\"type\":\"{type_}\",\"object\":{text}}}\n"),
                    change.version,
                ));
            }
            *position = change.version;
        }
        None
    }
}

/// An object in the version that was asked for.
fn object(stored: &Stored, ask: &Ask) -> String {
    if stored.value["apiVersion"] == ask.version().as_str() {
        return stored.text.clone();
    }
    in_version(&stored.value, ask)
}

fn in_version(value: &Value, ask: &Ask) -> String {
    let mut value = value.clone();
    value["apiVersion"] = json!(ask.version());
    value.to_string()
}
