//! One of two servers: carries out operations and remembers what it has seen, as its clients would.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use http::{Method, Request};
use kube::{Client, core::WatchEvent};
use serde_json::{Value, json};

use super::{
    body::UID_OF,
    names::Names,
    op::{Op, What, Which},
    place::Place,
};
use crate::{api::send, model::fields::merge};

/// A UID that no object has.
const NOBODY: &str = "00000000-0000-4000-8000-00000000dead";
/// How long the last event of a watch may take.
const LATE: Duration = Duration::from_secs(20);

/// Where a list goes on.
#[derive(Clone, Debug)]
struct Page {
    path: String,
    next: String,
    version: String,
}

/// One server, as it is seen in one trace.
pub(super) struct Side {
    client: Client,
    names: Names,
    /// UIDs of Namespaces.
    spaces: BTreeMap<String, String>,
    seen: BTreeMap<Place, Vec<Value>>,
    page: Option<Page>,
    /// Versions of lists.
    marks: Vec<String>,
}

/// What an operation came to; the same on both sides, or there is a difference.
pub(super) type Answer = Value;

// === impl Side ===

impl Side {
    pub(super) fn new(client: Client, spaces: BTreeMap<String, String>) -> Self {
        let mut names = Names::default();
        for (space, uid) in &spaces {
            names.call(uid, space);
        }
        Self {
            client,
            names,
            spaces,
            seen: BTreeMap::new(),
            page: None,
            marks: vec![],
        }
    }

    /// Carries out an operation.
    pub(super) async fn run(&mut self, op: &Op) -> Answer {
        let manager = format!("fieldManager={}", op.manager);
        let place = &op.place;
        match &op.what {
            What::Get => self.ask(place, Method::GET, place.path(false), None).await,
            What::List {
                everywhere,
                selector,
                limit,
            } => {
                let mut query = vec![];
                query.extend(selector.map(|s| format!("labelSelector={}", s.replace('=', "%3D"))));
                query.extend(limit.map(|l| format!("limit={l}")));
                let path = format!("{}?{}", place.list(*everywhere), query.join("&"));
                self.list(path, None).await
            }
            What::Next => match self.page.take() {
                Some(page) => self.list(page.path.clone(), Some(page)).await,
                None => Value::Null,
            },
            What::Create { body, dry } => {
                let dry = if *dry { "&dryRun=All" } else { "" };
                let path = format!("{}?{manager}{dry}", place.list(false));
                let body = self.finish(body, op);
                self.ask(place, Method::POST, path, Some(("application/json", body)))
                    .await
            }
            What::Replace { body } => {
                let body = self.finish(body, op);
                self.put(op, body, false).await
            }
            What::Edit { patch, status } => {
                let Some(mut body) = self.seen.get(place).and_then(|s| s.last()).cloned() else {
                    return Value::Null;
                };
                merge(&mut body, &self.finish(patch, op));
                body["metadata"]
                    .as_object_mut()
                    .map(|m| m.remove("managedFields"));
                if op.version == Which::Unsaid {
                    body["metadata"]
                        .as_object_mut()
                        .map(|m| m.remove("resourceVersion"));
                }
                self.put(op, body, *status).await
            }
            What::Merge { patch, status } => {
                let path = format!("{}?{manager}", place.path(*status));
                let body = ("application/merge-patch+json", self.finish(patch, op));
                self.ask(place, Method::PATCH, path, Some(body)).await
            }
            What::Apply { body, force } => {
                let path = format!("{}?{manager}&force={force}", place.path(false));
                let body = ("application/apply-patch+yaml", self.finish(body, op));
                self.ask(place, Method::PATCH, path, Some(body)).await
            }
            What::Delete => {
                let mut body = json!({});
                self.named(op, &mut body["preconditions"]);
                let body = Some(("application/json", body));
                self.ask(place, Method::DELETE, place.path(false), body).await
            }
        }
    }

    async fn put(&mut self, op: &Op, body: Value, status: bool) -> Answer {
        let path = format!("{}?fieldManager={}", op.place.path(status), op.manager);
        let body = Some(("application/json", body));
        self.ask(&op.place, Method::PUT, path, body).await
    }

    /// A body as this server has to read it.
    fn finish(&self, body: &Value, op: &Op) -> Value {
        let mut body = body.clone();
        self.named(op, &mut body["metadata"]);
        let owners = body
            .pointer_mut("/metadata/ownerReferences")
            .and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten() {
            if let Some(space) = owner["uid"].as_str().and_then(|uid| uid.strip_prefix(UID_OF)) {
                owner["uid"] = json!(self.spaces.get(space));
            }
        }
        if body["metadata"].is_null() {
            body.as_object_mut().map(|b| b.remove("metadata"));
        }
        body
    }

    /// Which object is meant, in which version.
    fn named(&self, op: &Op, into: &mut Value) {
        for (which, field, invented) in [(op.uid, "uid", NOBODY), (op.version, "resourceVersion", "1")] {
            let seen = self.seen.get(&op.place).into_iter().flatten();
            let mut seen: Vec<_> = seen.map(|o| o["metadata"][field].clone()).collect();
            seen.dedup();
            let value = match which {
                Which::Unsaid => None,
                Which::Seen => seen.pop(),
                Which::Old => seen.pop().and(seen.pop()),
                Which::Invented => Some(json!(invented)),
            };
            if let Some(value) = value {
                into[field] = value;
            }
        }
    }

    /// One request about one object.
    async fn ask(
        &mut self,
        place: &Place,
        method: Method,
        path: String,
        body: Option<(&str, Value)>,
    ) -> Answer {
        let (code, said) = send(&self.client, method, &path, body).await;
        if said["kind"] == "Status" {
            return json!([code, self.names.status(&said)]);
        }
        // A dry run leaves nothing to be named.
        if !path.contains("dryRun") {
            self.seen.entry(place.clone()).or_default().push(said.clone());
            return json!([code, self.names.object(said)]);
        }
        let mut said = Names::default().object(said);
        said["metadata"]
            .as_object_mut()
            .map(|m| m.remove("ownerReferences"));
        json!([code, said])
    }

    async fn list(&mut self, path: String, page: Option<Page>) -> Answer {
        let asked = page.as_ref().map_or_else(
            || path.clone(),
            |page| {
                format!(
                    "{path}&continue={}",
                    page.next.replace('|', "%7C").replace('=', "%3D")
                )
            },
        );
        let (code, said) = send(&self.client, Method::GET, &asked, None).await;
        if said["kind"] == "Status" {
            return json!([code, self.names.status(&said)]);
        }
        let version = said["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let right = match &page {
            Some(page) => page.version == version,
            None => version.parse().is_ok_and(|v: u64| v >= self.names.newest()),
        };
        self.marks.push(version.to_owned());
        let next = said["metadata"]["continue"].as_str().unwrap_or_default();
        self.page = (!next.is_empty()).then(|| Page {
            path,
            next: next.to_owned(),
            version: version.to_owned(),
        });
        let items = said["items"].as_array().cloned().unwrap_or_default();
        let items: Vec<_> = items
            .into_iter()
            .map(|item| {
                let mut item = self.names.object(item);
                // What a list is of need not be said of each.
                for field in ["apiVersion", "kind"] {
                    item.as_object_mut().map(|i| i.remove(field));
                }
                item
            })
            .collect();
        json!([code, { "items": items, "more": !next.is_empty(), "version is right": right }])
    }

    /// How many lists there were.
    pub(super) fn lists(&self) -> usize {
        self.marks.len()
    }

    /// The events of a kind since a list, until an object is there.
    pub(super) async fn watch(
        &mut self,
        list: usize,
        everywhere: bool,
        selector: Option<&str>,
        end: &Place,
    ) -> Answer {
        let mut path = format!(
            "{}?watch=true&resourceVersion={}",
            end.list(everywhere),
            self.marks[list]
        );
        if let Some(selector) = selector {
            path = format!("{path}&labelSelector={}", selector.replace('=', "%3D"));
        }
        let request = Request::get(path).body(vec![]).expect("a request");
        let mut events = match self.client.request_events::<Value>(request).await {
            Ok(events) => Box::pin(events),
            Err(error) => return json!(error.to_string()),
        };
        let mut told = vec![];
        loop {
            let (type_, object) = match tokio::time::timeout(LATE, events.next()).await {
                Ok(Some(Ok(WatchEvent::Added(object)))) => ("ADDED", object),
                Ok(Some(Ok(WatchEvent::Modified(object)))) => ("MODIFIED", object),
                Ok(Some(Ok(WatchEvent::Deleted(object)))) => ("DELETED", object),
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
                other => {
                    told.push(json!(format!("instead of the end: {other:?}")));
                    break;
                }
            };
            let ends = object["metadata"]["name"] == end.name && object["metadata"]["namespace"] == end.space;
            told.push(json!([type_, self.names.object(object)]));
            if ends {
                break;
            }
        }
        Value::Array(told)
    }

    /// In which order the versions that were named are.
    pub(super) fn order(&self) -> Answer {
        json!(self.names.order())
    }

    /// The objects there may be.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        self.seen.keys()
    }
}
