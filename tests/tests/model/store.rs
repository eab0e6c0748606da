//! The objects of one API server: what each kind of write does to them, and the history watches are served from.
//!
//! Modelled: resource versions, generation, UIDs, creation and deletion times, finalizers, preconditions, the status
//! subresource, field ownership, JSON merge patch and server-side apply, Namespaces that are missing or going, cluster
//! IPs and defaults, lists of an older version, compaction. Not modelled: `managedFields` as part of an object, schemas
//! beyond what `valid` checks, patches of other types.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    defaults,
    fields::{self, Owners},
    kinds::{Kind, Kinds, Resource, Trait},
    refusal::{Refusal, check, no_such_uid, precondition, same_uid},
    schema,
};

/// Namespace (empty for cluster-scoped kinds) and name.
pub(crate) type Key = (String, String);

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    /// A person, or anything that is not part of this project.
    User,
    /// What every cluster has: garbage collection, the Namespaces' end.
    Cluster,
    /// The leader controller.
    Leader,
    /// The member controller of the cluster of that index.
    Member(usize),
}

/// One version of one object.
#[derive(Debug)]
pub(crate) struct Stored {
    /// As it is served.
    pub(crate) value: Value,
    /// The same as text.
    pub(crate) text: String,
    /// Who owns which fields.
    pub(crate) owners: Owners,
    /// Who created it.
    pub(crate) maker: Actor,
}

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Of this kind.
    pub(crate) resource: Resource,
    /// To this object.
    pub(crate) key: Key,
    /// When.
    pub(crate) version: u64,
    /// Before; `None`: created.
    pub(crate) old: Option<Arc<Stored>>,
    /// After, or how it was when it was deleted.
    pub(crate) new: Arc<Stored>,
    /// Whether it is gone.
    pub(crate) deleted: bool,
}

/// Everything of one kind.
#[derive(Clone, Debug, Default)]
struct Table {
    objects: BTreeMap<Key, Arc<Stored>>,
    /// All writes, oldest first.
    log: Vec<Change>,
    /// How everything was before the first of them.
    base: BTreeMap<Key, Arc<Stored>>,
    notify: Arc<Notify>,
}

/// What no write changes.
const KEPT: [&str; 8] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status, where that is a resource of its own.
    Main,
    /// The status alone.
    Status,
    /// Everything; only what is no controller of ours writes that way.
    Both,
}

/// What a deletion came to.
#[derive(Clone, Debug)]
pub(crate) enum Deletion {
    /// Finalizers hold it.
    Held(Arc<Stored>),
    /// It is gone; how it was.
    Done(Arc<Stored>),
}

/// Everything a write says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    /// Who.
    pub(crate) actor: Actor,
    /// The field manager.
    pub(crate) manager: &'a str,
    /// The time of day there.
    pub(crate) now: jiff::Timestamp,
}

/// The objects of one API server.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    kinds: Arc<Kinds>,
    tables: BTreeMap<Resource, Table>,
    version: u64,
    compacted: u64,
    uids: u64,
    /// Distinguishes UIDs of different servers, and its cluster IPs.
    number: u64,
    addresses: u64,
    /// Writes that nobody has looked at yet.
    pub(crate) changes: Vec<Change>,
}

// === impl Stored ===

impl Stored {
    /// A part of `metadata`.
    pub(crate) fn meta(&self, field: &str) -> &Value {
        &self.value["metadata"][field]
    }

    /// Its UID.
    pub(crate) fn uid(&self) -> &str {
        self.meta("uid").as_str().unwrap_or_default()
    }

    /// Whether its end was asked for.
    pub(crate) fn is_going(&self) -> bool {
        !self.meta("deletionTimestamp").is_null()
    }

    /// A label.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.meta("labels")[name].as_str()
    }

    /// An annotation.
    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.meta("annotations")[name].as_str()
    }
}

// === impl Store ===

impl Store {
    /// An empty server; `number` makes its UIDs and addresses differ from those of other servers.
    pub(crate) fn new(kinds: Arc<Kinds>, number: u64) -> Self {
        Self {
            kinds,
            tables: BTreeMap::new(),
            version: 1000 * (number + 1),
            compacted: 0,
            uids: 0,
            number,
            addresses: 0,
            changes: vec![],
        }
    }

    /// What is known of a kind.
    pub(crate) fn kind(&self, resource: &Resource) -> Arc<Kind> {
        self.kinds.get(resource)
    }

    /// The version of the newest write.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The oldest version a watch can start from.
    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Forgets the history before `version`.
    pub(crate) fn compact(&mut self, version: u64) {
        self.compacted = self.compacted.max(version.min(self.version));
    }

    /// Told of every write to a kind.
    pub(crate) fn notify(&mut self, resource: &Resource) -> Arc<Notify> {
        self.tables.entry(resource.clone()).or_default().notify.clone()
    }

    /// An object.
    pub(crate) fn get(&self, resource: &Resource, key: &Key) -> Option<&Arc<Stored>> {
        self.tables.get(resource)?.objects.get(key)
    }

    /// All objects of a kind.
    pub(crate) fn all<'a>(
        &'a self,
        resource: &Resource,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> + use<'a> {
        self.tables.get(resource).into_iter().flat_map(|t| &t.objects)
    }

    /// Every kind there is anything of.
    pub(crate) fn resources(&self) -> Vec<Resource> {
        self.tables.keys().cloned().collect()
    }

    /// All objects of a kind as they were at a version.
    pub(crate) fn at(&self, resource: &Resource, version: u64) -> BTreeMap<Key, Arc<Stored>> {
        let Some(table) = self.tables.get(resource) else {
            return BTreeMap::new();
        };
        if version >= self.version {
            return table.objects.clone();
        }
        let mut objects = table.base.clone();
        for change in table.log.iter().take_while(|c| c.version <= version) {
            if change.deleted {
                objects.remove(&change.key);
            } else {
                objects.insert(change.key.clone(), change.new.clone());
            }
        }
        objects
    }

    /// The writes to a kind after a version.
    pub(crate) fn since(&self, resource: &Resource, version: u64) -> &[Change] {
        let Some(table) = self.tables.get(resource) else {
            return &[];
        };
        let first = table.log.partition_point(|c| c.version <= version);
        table.log.get(first..).unwrap_or_default()
    }

    /// Everything as it was in `older`; versions go on far above, and no watch survives, as `etcdutl snapshot restore
    /// --bump-revision --mark-compacted` does it.
    pub(crate) fn restore(&mut self, older: &Self) {
        self.version += 100_000;
        self.compacted = self.version;
        for (resource, table) in &mut self.tables {
            let objects = older
                .tables
                .get(resource)
                .map(|t| t.objects.clone())
                .unwrap_or_default();
            table.log.clear();
            table.base.clone_from(&objects);
            table.objects = objects;
        }
    }

    /// Creates an object.
    pub(crate) fn create(
        &mut self,
        resource: &Resource,
        namespace: &str,
        mut body: Value,
        writer: Writer<'_>,
        part: Part,
    ) -> Result<Arc<Stored>, Refusal> {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(Refusal::new(422, "metadata.name: Required value"));
        }
        let key = (namespace.to_owned(), name);
        if !namespace.is_empty() {
            self.room(namespace)?;
            body["metadata"]["namespace"] = json!(namespace);
        }
        if resource.1 == "services" && body["spec"]["clusterIP"] == "0.0.0.0" {
            return Err(Refusal::new(
                422,
                format!(
                    "spec.clusterIPs: Invalid value: [\"0.0.0.0\"]: failed to allocate IP 0.0.0.0: the provided network \
                     does not match the current range. The range of valid IPs is 10.{}.0.0/16",
                    100 + self.number
                ),
            ));
        }
        let kind = self.kinds.get(resource);
        if kind.has(Trait::Status) && part == Part::Main {
            without_status(&mut body);
        }
        let versioned = !body["metadata"]["resourceVersion"].is_null();
        self.born(resource, &kind, &mut body, writer);
        check(resource, &kind, None, &mut body, part)?;
        if versioned {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(Refusal::unnamed(500, why));
        }
        if self.get(resource, &key).is_some() {
            let mut refusal = Refusal::new(409, format!("{} {:?} already exists", resource.1, key.1));
            refusal.reason = "AlreadyExists";
            return Err(refusal);
        }
        let mut owners = Owners::new();
        fields::written(None, &body, &mut owners, writer.manager);
        Ok(self.commit(resource, key, None, body, owners, writer.actor))
    }

    /// JSON merge patch.
    pub(crate) fn patch(
        &mut self,
        resource: &Resource,
        key: &Key,
        patch: &Value,
        writer: Writer<'_>,
        part: Part,
    ) -> Result<Arc<Stored>, Refusal> {
        let old = self.found(resource, key)?;
        precondition(&old, &patch["metadata"]["resourceVersion"], "resourceVersion")?;
        if part != Part::Status {
            same_uid(&old, patch)?;
        }
        let mut new = old.value.clone();
        fields::merge(&mut new, patch);
        self.update(resource, key, &old, new, writer, part)
    }

    /// Replaces an object.
    pub(crate) fn replace(
        &mut self,
        resource: &Resource,
        key: &Key,
        body: Value,
        writer: Writer<'_>,
        part: Part,
    ) -> Result<Arc<Stored>, Refusal> {
        let kind = self.kinds.get(resource);
        if kind.has(Trait::Upsert) && part == Part::Main && self.get(resource, key).is_none() {
            let mut body = body;
            if body["metadata"]["uid"].is_string() {
                return Err(no_such_uid(key));
            }
            if let Some(metadata) = body["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            return self.create(resource, &key.0, body, writer, part);
        }
        let old = self.found(resource, key)?;
        let metadata = &body["metadata"];
        precondition(&old, &metadata["uid"], "uid")?;
        if metadata["resourceVersion"].is_null() && !kind.has(Trait::Blind) {
            let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
            return Err(Refusal::new(422, why));
        }
        precondition(&old, &metadata["resourceVersion"], "resourceVersion")?;
        self.update(resource, key, &old, body, writer, part)
    }

    /// Server-side apply.
    pub(crate) fn apply(
        &mut self,
        resource: &Resource,
        key: &Key,
        mut body: Value,
        force: bool,
        writer: Writer<'_>,
    ) -> Result<Arc<Stored>, Refusal> {
        let kind = self.kinds.get(resource);
        if let Some(path) = schema::unknown(&kind.schema, &body) {
            let why = format!("failed to create typed patch object: {path}: field not declared in schema");
            return Err(Refusal::unnamed(500, why));
        }
        if kind.has(Trait::Status) {
            without_status(&mut body);
        }
        let Some(old) = self.get(resource, key).cloned() else {
            let mut owners = Owners::new();
            let mut new = fields::apply(&json!({}), &mut owners, &body, writer.manager, true)
                .map_err(|hindrance| Refusal::hindrance(&hindrance))?;
            if body["metadata"]["uid"].is_string() {
                return Err(no_such_uid(key));
            }
            if !key.0.is_empty() {
                self.room(&key.0)?;
            }
            for field in ["apiVersion", "kind"] {
                new[field] = body[field].clone();
            }
            new["metadata"]["name"] = json!(key.1);
            if !key.0.is_empty() {
                new["metadata"]["namespace"] = json!(key.0);
            }
            self.born(resource, &kind, &mut new, writer);
            check(resource, &kind, None, &mut new, Part::Main)?;
            return Ok(self.commit(resource, key.clone(), None, new, owners, writer.actor));
        };
        let mut owners = old.owners.clone();
        let mut new = fields::apply(&old.value, &mut owners, &body, writer.manager, force)
            .map_err(|hindrance| Refusal::hindrance(&hindrance))?;
        precondition(&old, &body["metadata"]["resourceVersion"], "resourceVersion")?;
        same_uid(&old, &body)?;
        self.keep(resource, &kind, &old, &mut new, Part::Main)?;
        if defaults::kept(resource, new.clone()) == old.value && owners == old.owners {
            return Ok(old);
        }
        Ok(self.commit(resource, key.clone(), Some(old), new, owners, writer.actor))
    }

    /// Deletes an object, or marks it where finalizers hold it.
    pub(crate) fn delete(
        &mut self,
        resource: &Resource,
        key: &Key,
        preconditions: &Value,
        writer: Writer<'_>,
    ) -> Result<Deletion, Refusal> {
        let old = self.found(resource, key)?;
        for field in ["uid", "resourceVersion"] {
            precondition(&old, &preconditions[field], field)?;
        }
        if old.is_going() {
            return Ok(Deletion::Held(old));
        }
        let held = old.meta("finalizers").as_array().is_some_and(|f| !f.is_empty());
        if !held && resource.1 != "namespaces" {
            return Ok(Deletion::Done(self.remove(resource, key, &old)));
        }
        let mut new = old.value.clone();
        new["metadata"]["deletionTimestamp"] = time(writer.now);
        if let Some(generation) = old.meta("generation").as_u64() {
            new["metadata"]["generation"] = json!(generation + 1);
        }
        if resource.1 == "namespaces" {
            new["status"]["phase"] = json!("Terminating");
        } else {
            new["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        }
        let owners = old.owners.clone();
        let held = self.commit(resource, key.clone(), Some(old), new, owners, writer.actor);
        Ok(Deletion::Held(held))
    }

    /// Takes an object away, whatever holds it: for what a cluster does itself.
    pub(crate) fn end(&mut self, resource: &Resource, key: &Key) {
        if let Some(old) = self.get(resource, key).cloned() {
            self.remove(resource, key, &old);
        }
    }

    fn found(&self, resource: &Resource, key: &Key) -> Result<Arc<Stored>, Refusal> {
        self.get(resource, key)
            .cloned()
            .ok_or_else(|| Refusal::new(404, format!("{} {:?} not found", resource.1, key.1)))
    }

    /// Whether something can be created in a Namespace.
    fn room(&self, namespace: &str) -> Result<(), Refusal> {
        let key = (String::new(), namespace.to_owned());
        match self.get(&(String::new(), "namespaces".to_owned()), &key) {
            None => Err(Refusal::new(404, format!("namespaces {namespace:?} not found"))),
            Some(found) if found.is_going() => Err(Refusal::new(
                403,
                format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                ),
            )),
            Some(_) => Ok(()),
        }
    }

    fn update(
        &mut self,
        resource: &Resource,
        key: &Key,
        old: &Arc<Stored>,
        mut new: Value,
        writer: Writer<'_>,
        part: Part,
    ) -> Result<Arc<Stored>, Refusal> {
        let kind = self.kinds.get(resource);
        self.keep(resource, &kind, old, &mut new, part)?;
        let mut owners = old.owners.clone();
        fields::written(Some(&old.value), &new, &mut owners, writer.manager);
        // Who owns what is part of an object.
        if defaults::kept(resource, new.clone()) == old.value && owners == old.owners {
            return Ok(old.clone());
        }
        Ok(self.commit(
            resource,
            key.clone(),
            Some(old.clone()),
            new,
            owners,
            writer.actor,
        ))
    }

    /// Puts back what this write cannot change, counts the generation, checks what is left.
    fn keep(
        &mut self,
        resource: &Resource,
        kind: &Kind,
        old: &Stored,
        new: &mut Value,
        part: Part,
    ) -> Result<(), Refusal> {
        match part {
            Part::Main if kind.has(Trait::Status) => put(new, "status", &old.value["status"]),
            Part::Status => {
                let status = new["status"].clone();
                new.clone_from(&old.value);
                put(new, "status", &status);
            }
            Part::Main | Part::Both => {}
        }
        for field in ["apiVersion", "kind"] {
            put(new, field, &old.value[field]);
        }
        for field in KEPT {
            put(&mut new["metadata"], field, old.meta(field));
        }
        let no_list = vec![];
        let before = old.meta("finalizers").as_array().unwrap_or(&no_list).clone();
        let added = new["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|f| f.iter().any(|f| !before.contains(f)));
        if old.is_going() && added {
            return Err(Refusal::new(
                422,
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
            ));
        }
        self.fill(resource, new, Some(&old.value));
        check(resource, kind, Some(&old.value), new, part)?;
        let body = |v: &Value| {
            let mut v = v.clone();
            if let Some(map) = v.as_object_mut() {
                map.remove("metadata");
                if kind.has(Trait::Status) {
                    map.remove("status");
                }
            }
            v
        };
        let labels = |v: &Value| kind.has(Trait::Labels).then(|| v["metadata"]["labels"].clone());
        let same = body(&defaults::kept(resource, new.clone())) == body(&old.value)
            && labels(new) == labels(&old.value);
        if kind.has(Trait::Generation) && !same {
            new["metadata"]["generation"] = json!(old.meta("generation").as_u64().unwrap_or(0) + 1);
        }
        Ok(())
    }

    fn born(&mut self, resource: &Resource, kind: &Kind, body: &mut Value, writer: Writer<'_>) {
        self.uids += 1;
        let metadata = &mut body["metadata"];
        metadata["uid"] = json!(format!("{:08x}-0000-4000-8000-{:012x}", self.number, self.uids));
        metadata["creationTimestamp"] = time(writer.now);
        if kind.has(Trait::Generation) {
            metadata["generation"] = json!(1);
        }
        if let Some(map) = metadata.as_object_mut() {
            map.remove("deletionTimestamp");
            map.remove("resourceVersion");
        }
        if body["kind"].is_null() {
            body["kind"] = json!(kind.name);
        }
        if resource.1 == "namespaces" {
            body["status"]["phase"] = json!("Active");
        }
        self.fill(resource, body, None);
    }

    fn fill(&mut self, resource: &Resource, body: &mut Value, old: Option<&Value>) {
        let (number, addresses) = (self.number, &mut self.addresses);
        defaults::fill(resource, body, old, || {
            *addresses += 1;
            let n = *addresses;
            format!("10.{}.{}.{}", 100 + number, n / 250, 1 + n % 250)
        });
    }

    fn remove(&mut self, resource: &Resource, key: &Key, old: &Arc<Stored>) -> Arc<Stored> {
        self.version += 1;
        let new = stored(old.value.clone(), self.version, old.owners.clone(), old.maker);
        let change = Change {
            resource: resource.clone(),
            key: key.clone(),
            version: self.version,
            old: Some(old.clone()),
            new: new.clone(),
            deleted: true,
        };
        let table = self.tables.entry(resource.clone()).or_default();
        table.objects.remove(key);
        self.log(change);
        new
    }

    fn commit(
        &mut self,
        resource: &Resource,
        key: Key,
        old: Option<Arc<Stored>>,
        value: Value,
        owners: Owners,
        actor: Actor,
    ) -> Arc<Stored> {
        let free = value["metadata"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty);
        let going = !value["metadata"]["deletionTimestamp"].is_null();
        if let Some(old) = old
            .as_ref()
            .filter(|_| going && free && resource.1 != "namespaces")
        {
            // Watches are shown how it was before; who did it is shown what came of it, in no version of its own.
            self.remove(resource, &key, old);
            return Arc::new(Stored {
                text: value.to_string(),
                value,
                owners,
                maker: old.maker,
            });
        }
        self.version += 1;
        let maker = old.as_ref().map_or(actor, |o| o.maker);
        let new = stored(defaults::kept(resource, value), self.version, owners, maker);
        let table = self.tables.entry(resource.clone()).or_default();
        table.objects.insert(key.clone(), new.clone());
        self.log(Change {
            resource: resource.clone(),
            key,
            version: self.version,
            old,
            new: new.clone(),
            deleted: false,
        });
        new
    }

    fn log(&mut self, change: Change) {
        let table = self.tables.entry(change.resource.clone()).or_default();
        table.log.push(change.clone());
        table.notify.notify_waiters();
        self.changes.push(change);
    }
}

fn stored(mut value: Value, version: u64, owners: Owners, maker: Actor) -> Arc<Stored> {
    value["metadata"]["resourceVersion"] = json!(version.to_string());
    let text = value.to_string();
    Arc::new(Stored {
        value,
        text,
        owners,
        maker,
    })
}

fn without_status(body: &mut Value) {
    if let Some(map) = body.as_object_mut() {
        map.remove("status");
    }
}

fn put(object: &mut Value, field: &str, value: &Value) {
    if let Some(map) = object.as_object_mut() {
        if value.is_null() {
            map.remove(field);
        } else {
            map.insert(field.to_owned(), value.clone());
        }
    }
}

/// As the API writes it, in whole seconds.
fn time(now: jiff::Timestamp) -> Value {
    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
