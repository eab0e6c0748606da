//! A server under test: runs operations and keeps the events for its clients.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use http::{Method, Request};
use kube::{Client, core::WatchEvent};
use serde_json::{Value, json};

use super::{
    body::UID_OF,
    normalize::Normalizer,
    object_ref::ObjectRef,
    op::{Action, Op, Precondition},
};
use mc_test_kit::fake_apiserver::fields::json_merge_patch;

use crate::api::send;

/// A UID that no object has.
const UNUSED_UID: &str = "00000000-0000-4000-8000-00000000dead";
/// Timeout of the last event of a watch.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Continuation of a list.
#[derive(Clone, Debug)]
struct Page {
    path: String,
    next: String,
    version: String,
}

/// One server during one trace.
pub(super) struct Server {
    client: Client,
    normalizer: Normalizer,
    /// UIDs of Namespaces.
    namespaces: BTreeMap<String, String>,
    seen: BTreeMap<ObjectRef, Vec<Value>>,
    page: Option<Page>,
    /// Resource versions of lists.
    list_versions: Vec<String>,
}

/// Normalised result of an operation, equal on both servers.
pub(super) type Outcome = Value;

// === impl Side ===

impl Server {
    pub(super) fn new(client: Client, namespaces: BTreeMap<String, String>) -> Self {
        let mut names = Normalizer::default();
        for (namespace, uid) in &namespaces {
            names.name_uid(uid, namespace);
        }
        Self {
            client,
            normalizer: names,
            namespaces,
            seen: BTreeMap::new(),
            page: None,
            list_versions: vec![],
        }
    }

    /// Runs an operation.
    pub(super) async fn run(&mut self, op: &Op) -> Outcome {
        let manager = format!("fieldManager={}", op.manager);
        let object = &op.object;
        match &op.action {
            Action::Get => self.request(object, Method::GET, object.path(false), None).await,
            Action::List {
                everywhere,
                selector,
                limit,
            } => {
                let mut query = vec![];
                query.extend(selector.map(|s| format!("labelSelector={}", s.replace('=', "%3D"))));
                query.extend(limit.map(|l| format!("limit={l}")));
                let path = format!("{}?{}", object.list(*everywhere), query.join("&"));
                self.list(path, None).await
            }
            Action::Next => match self.page.take() {
                Some(page) => self.list(page.path.clone(), Some(page)).await,
                None => Value::Null,
            },
            Action::Create { body, dry } => {
                let dry = if *dry { "&dryRun=All" } else { "" };
                let path = format!("{}?{manager}{dry}", object.list(false));
                let body = self.resolve(body, op);
                self.request(object, Method::POST, path, Some(("application/json", body)))
                    .await
            }
            Action::Replace { body } => {
                let body = self.resolve(body, op);
                self.put(op, body, false).await
            }
            Action::Edit { patch, status } => {
                let Some(mut body) = self.seen.get(object).and_then(|s| s.last()).cloned() else {
                    return Value::Null;
                };
                json_merge_patch(&mut body, &self.resolve(patch, op));
                body["metadata"]
                    .as_object_mut()
                    .map(|m| m.remove("managedFields"));
                if op.version == Precondition::Absent {
                    body["metadata"]
                        .as_object_mut()
                        .map(|m| m.remove("resourceVersion"));
                }
                self.put(op, body, *status).await
            }
            Action::Merge { patch, status } => {
                let path = format!("{}?{manager}", object.path(*status));
                let body = ("application/merge-patch+json", self.resolve(patch, op));
                self.request(object, Method::PATCH, path, Some(body)).await
            }
            Action::Apply { body, force } => {
                let path = format!("{}?{manager}&force={force}", object.path(false));
                let body = ("application/apply-patch+yaml", self.resolve(body, op));
                self.request(object, Method::PATCH, path, Some(body)).await
            }
            Action::Delete => {
                let mut body = json!({});
                self.add_preconditions(op, &mut body["preconditions"]);
                let body = Some(("application/json", body));
                self.request(object, Method::DELETE, object.path(false), body)
                    .await
            }
        }
    }

    async fn put(&mut self, op: &Op, body: Value, status: bool) -> Outcome {
        let path = format!("{}?fieldManager={}", op.object.path(status), op.manager);
        let body = Some(("application/json", body));
        self.request(&op.object, Method::PUT, path, body).await
    }

    /// A body with this server's UIDs and versions.
    fn resolve(&self, body: &Value, op: &Op) -> Value {
        let mut body = body.clone();
        self.add_preconditions(op, &mut body["metadata"]);
        let owners = body
            .pointer_mut("/metadata/ownerReferences")
            .and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten() {
            if let Some(namespace) = owner["uid"].as_str().and_then(|uid| uid.strip_prefix(UID_OF)) {
                owner["uid"] = json!(self.namespaces.get(namespace));
            }
        }
        if body["metadata"].is_null() {
            body.as_object_mut().map(|b| b.remove("metadata"));
        }
        body
    }

    /// Adds the UID and resource version preconditions.
    fn add_preconditions(&self, op: &Op, into: &mut Value) {
        for (which, field, invented) in [(op.uid, "uid", UNUSED_UID), (op.version, "resourceVersion", "1")] {
            let seen = self.seen.get(&op.object).into_iter().flatten();
            let mut seen: Vec<_> = seen.map(|o| o["metadata"][field].clone()).collect();
            seen.dedup();
            let value = match which {
                Precondition::Absent => None,
                Precondition::Current => seen.pop(),
                Precondition::Previous => seen.pop().and(seen.pop()),
                Precondition::Unknown => Some(json!(invented)),
            };
            if let Some(value) = value {
                into[field] = value;
            }
        }
    }

    /// Sends a request for one object.
    async fn request(
        &mut self,
        object: &ObjectRef,
        method: Method,
        path: String,
        body: Option<(&str, Value)>,
    ) -> Outcome {
        let (code, reply) = send(&self.client, method, &path, body).await;
        if reply["kind"] == "Status" {
            return json!([code, self.normalizer.status(&reply)]);
        }
        // A dry run allocates nothing that needs a name.
        if !path.contains("dryRun") {
            self.seen.entry(object.clone()).or_default().push(reply.clone());
            return json!([code, self.normalizer.object(reply)]);
        }
        let mut reply = Normalizer::default().object(reply);
        reply["metadata"]
            .as_object_mut()
            .map(|m| m.remove("ownerReferences"));
        json!([code, reply])
    }

    async fn list(&mut self, path: String, page: Option<Page>) -> Outcome {
        let path = page.as_ref().map_or_else(
            || path.clone(),
            |page| {
                format!(
                    "{path}&continue={}",
                    page.next.replace('|', "%7C").replace('=', "%3D")
                )
            },
        );
        let (code, reply) = send(&self.client, Method::GET, &path, None).await;
        if reply["kind"] == "Status" {
            return json!([code, self.normalizer.status(&reply)]);
        }
        let version = reply["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let right = match &page {
            Some(page) => page.version == version,
            None => version.parse().is_ok_and(|v: u64| v >= self.normalizer.newest()),
        };
        self.list_versions.push(version.to_owned());
        let next = reply["metadata"]["continue"].as_str().unwrap_or_default();
        self.page = (!next.is_empty()).then(|| Page {
            path,
            next: next.to_owned(),
            version: version.to_owned(),
        });
        let items = reply["items"].as_array().cloned().unwrap_or_default();
        let items: Vec<_> = items
            .into_iter()
            .map(|item| {
                let mut item = self.normalizer.object(item);
                // List items may omit apiVersion and kind.
                for field in ["apiVersion", "kind"] {
                    item.as_object_mut().map(|i| i.remove(field));
                }
                item
            })
            .collect();
        json!([code, { "items": items, "more": !next.is_empty(), "version is right": right }])
    }

    /// Number of lists.
    pub(super) fn list_count(&self) -> usize {
        self.list_versions.len()
    }

    /// Events since a list, until the end object appears.
    pub(super) async fn watch(
        &mut self,
        list: usize,
        everywhere: bool,
        selector: Option<&str>,
        end: &ObjectRef,
    ) -> Outcome {
        let mut path = format!(
            "{}?watch=true&resourceVersion={}",
            end.list(everywhere),
            self.list_versions[list]
        );
        if let Some(selector) = selector {
            path = format!("{path}&labelSelector={}", selector.replace('=', "%3D"));
        }
        let request = Request::get(path).body(vec![]).expect("a request");
        let mut events = match self.client.request_events::<Value>(request).await {
            Ok(events) => Box::pin(events),
            Err(error) => return json!(error.to_string()),
        };
        let mut events_seen = vec![];
        loop {
            let (type_, object) = match tokio::time::timeout(EVENT_TIMEOUT, events.next()).await {
                Ok(Some(Ok(WatchEvent::Added(object)))) => ("ADDED", object),
                Ok(Some(Ok(WatchEvent::Modified(object)))) => ("MODIFIED", object),
                Ok(Some(Ok(WatchEvent::Deleted(object)))) => ("DELETED", object),
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
                other => {
                    events_seen.push(json!(format!("instead of the end: {other:?}")));
                    break;
                }
            };
            let ends =
                object["metadata"]["name"] == end.name && object["metadata"]["namespace"] == end.namespace;
            events_seen.push(json!([type_, self.normalizer.object(object)]));
            if ends {
                break;
            }
        }
        Value::Array(events_seen)
    }

    /// Order of all named versions.
    pub(super) fn order(&self) -> Outcome {
        json!(self.normalizer.order())
    }

    /// All objects that may exist.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        self.seen.keys()
    }
}
