//! Request handling: one request in, one response out.

use serde_json::{Value, json};

use super::{
    request::{ApiRequest, Filter, Verb},
    resources::KindTrait,
    status_error::StatusError,
    store::{Actor, Deletion, Store, StoredObject, WriteContext, WriteScope},
};

/// A success response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResponse {
    /// HTTP status code.
    pub code: u16,
    /// Body.
    pub text: String,
}

// === impl ApiResponse ===

impl ApiResponse {
    /// The `Status` of a completed deletion.
    fn deleted(request: &ApiRequest, gone: &StoredObject) -> Self {
        let (group, plural) = &request.resource;
        let mut details = json!({ "name": request.name, "kind": plural, "uid": gone.uid() });
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
    /// Handles all requests except lists and watches.
    pub fn handle(
        &mut self,
        request: &ApiRequest,
        actor: Actor,
        now: jiff::Timestamp,
    ) -> Result<ApiResponse, StatusError> {
        let key = request.key();
        let manager = request.query.get("fieldManager").map_or("client", String::as_str);
        let writer = WriteContext { actor, manager, now };
        let part = if request.status {
            WriteScope::Status
        } else {
            WriteScope::ExceptStatus
        };
        let code = |new: bool| if new { 201 } else { 200 };
        let response = |stored: &StoredObject, new: bool| ApiResponse {
            code: code(new),
            text: serialize_object(stored, request),
        };
        let resource = &request.resource;
        if request.query.contains_key("dryRun") {
            let mut copy = self.clone();
            let done = copy.create(resource, &request.namespace, request.body.clone(), writer, part)?;
            // A dry run allocates no resource version.
            let mut value = done.value.clone();
            if let Some(metadata) = value["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            return Ok(ApiResponse {
                code: 201,
                text: convert(&value, request),
            });
        }
        let new = self.get(resource, &key).is_none();
        let done = match request.verb {
            Verb::Get => self
                .get(resource, &key)
                .cloned()
                .ok_or_else(|| StatusError::new(404, format!("{} {:?} not found", resource.1, request.name))),
            Verb::Create => self.create(resource, &request.namespace, request.body.clone(), writer, part),
            Verb::Replace => self.replace(resource, &key, request.body.clone(), writer, part),
            Verb::Merge => self.patch(resource, &key, &request.body, writer, part),
            Verb::Apply => {
                let force = request.query.get("force").is_some_and(|f| f == "true");
                self.apply(resource, &key, request.body.clone(), force, writer)
            }
            Verb::Delete => match self.delete(resource, &key, &request.body["preconditions"], writer)? {
                Deletion::Deleted(gone) if !self.kind(resource).has(KindTrait::ReturnDeletedObject) => {
                    return Ok(ApiResponse::deleted(request, &gone));
                }
                Deletion::Deleted(object) | Deletion::Pending(object) => Ok(object),
            },
            Verb::List | Verb::Watch => Err(StatusError::new(400, "not here")),
        };
        done.map(|stored| response(&stored, new))
    }

    /// The list at version `newest`, at most `page` objects.
    pub fn list(&self, request: &ApiRequest, newest: u64, page: usize) -> Result<ApiResponse, StatusError> {
        let filter = Filter::new(request);
        let (version, after) = match request.query.get("continue").and_then(|c| c.split_once('|')) {
            Some((version, after)) => (version.parse().unwrap_or(0), after.to_owned()),
            None => (self.version().min(newest).max(self.compacted()), String::new()),
        };
        if version < self.compacted() {
            return Err(StatusError::new(
                410,
                "The provided continue parameter is too old",
            ));
        }
        let limit = page.min(request.query_number("limit").unwrap_or(500));
        let objects = self.objects_at(&request.resource, version);
        // etcd key order: "shop-a/web" sorts before "shop/web".
        let mut rest: Vec<_> = objects
            .iter()
            .filter(|(key, _)| request.namespace.is_empty() || key.0 == request.namespace)
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
            if filter.matches(key, stored) {
                items.push(serialize_object(stored, request));
            }
            last = place;
        }
        // As in etcd, remaining keys make a continue token even if none of them matches.
        let next = rest
            .peek()
            .map(|_| format!("{version}|{last}"))
            .unwrap_or_default();
        let metadata = json!({ "resourceVersion": version.to_string(), "continue": next });
        let text = format!(
            "{{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"items\":[{}]}}",
            items.join(",")
        );
        Ok(ApiResponse { code: 200, text })
    }

    /// The next event after `position`, and its version.
    pub fn next_event(
        &self,
        request: &ApiRequest,
        filter: &Filter,
        position: &mut u64,
    ) -> Option<(String, u64)> {
        for change in self.changes_since(&request.resource, *position) {
            if let Some(type_) = filter.event_type(change) {
                let text = if type_ == "DELETED" && !change.deleted {
                    // An object that no longer matches is sent in its last matching state.
                    let mut value = change.old.as_ref().map(|o| o.value.clone()).unwrap_or_default();
                    value["metadata"]["resourceVersion"] = json!(change.version.to_string());
                    convert(&value, request)
                } else {
                    serialize_object(&change.new, request)
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

/// Serialises an object in the requested version.
fn serialize_object(stored: &StoredObject, request: &ApiRequest) -> String {
    if stored.value["apiVersion"] == request.api_version().as_str() {
        return stored.text.clone();
    }
    convert(&stored.value, request)
}

fn convert(value: &Value, request: &ApiRequest) -> String {
    let mut value = value.clone();
    value["apiVersion"] = json!(request.api_version());
    value.to_string()
}
