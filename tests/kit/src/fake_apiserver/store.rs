//! Object storage of one API server: the effect of each write, and the history for watches.
//!
//! Modelled: resource versions, generation, UIDs, creation and deletion times, finalizers, preconditions, the status
//! subresource, field ownership, JSON merge patch and server-side apply, missing and terminating Namespaces, cluster
//! IPs and defaults, lists of an older version, compaction. Not modelled: `managedFields` as part of an object,
//! validation beyond `prune_and_validate`, other patch types.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    defaults,
    fields::{self, ManagedFields},
    resources::{Kind, KindTrait, Resource, Scheme},
    schema,
    status_error::{StatusError, check_precondition, check_same_uid, prune_and_validate, uid_mismatch},
};

/// Namespace (empty for cluster-scoped kinds) and name.
pub type Key = (String, String);

/// Origin of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// A user, or software outside this project.
    User,
    /// The cluster's own controllers: garbage collection, Namespace deletion.
    Cluster,
    /// The leader controller.
    Leader,
    /// The member controller of the cluster with this index.
    Member(usize),
}

/// One version of one object.
#[derive(Debug)]
pub struct StoredObject {
    /// The object.
    pub value: Value,
    /// The object as JSON text.
    pub text: String,
    /// Field ownership.
    pub managed_fields: ManagedFields,
    /// Origin of the creation.
    pub creator: Actor,
}

/// One committed write.
#[derive(Clone, Debug)]
pub struct Change {
    /// Resource type.
    pub resource: Resource,
    /// Object.
    pub key: Key,
    /// Resource version.
    pub version: u64,
    /// Previous version; `None` for a creation.
    pub old: Option<Arc<StoredObject>>,
    /// New version; for a deletion the last one.
    pub new: Arc<StoredObject>,
    /// True for a deletion.
    pub deleted: bool,
}

/// Objects and history of one resource type.
#[derive(Clone, Debug, Default)]
struct Table {
    objects: BTreeMap<Key, Arc<StoredObject>>,
    /// All changes, oldest first.
    log: Vec<Change>,
    /// Objects before the first change.
    base: BTreeMap<Key, Arc<StoredObject>>,
    notify: Arc<Notify>,
}

/// Metadata that writes cannot change.
const IMMUTABLE_METADATA: [&str; 8] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// The part of an object a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteScope {
    /// All fields except a status subresource.
    ExceptStatus,
    /// The status alone.
    Status,
    /// All fields; for simulated users only.
    All,
}

/// Result of a deletion.
#[derive(Clone, Debug)]
pub enum Deletion {
    /// Finalizers remain.
    Pending(Arc<StoredObject>),
    /// Deleted; the last version.
    Deleted(Arc<StoredObject>),
}

/// Origin, field manager and time of a write.
#[derive(Clone, Copy, Debug)]
pub struct WriteContext<'a> {
    /// Origin.
    pub actor: Actor,
    /// Field manager.
    pub manager: &'a str,
    /// Server time.
    pub now: jiff::Timestamp,
}

/// The objects of one API server.
#[derive(Clone, Debug)]
pub struct Store {
    scheme: Arc<Scheme>,
    tables: BTreeMap<Resource, Table>,
    version: u64,
    compacted: u64,
    uids: u64,
    /// Server index, part of UIDs and cluster IPs.
    number: u64,
    addresses: u64,
    /// Changes not yet processed by the simulation.
    pub changes: Vec<Change>,
}

// === impl Stored ===

impl StoredObject {
    /// A field of `metadata`.
    #[must_use]
    pub fn meta(&self, field: &str) -> &Value {
        &self.value["metadata"][field]
    }

    /// The UID.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.meta("uid").as_str().unwrap_or_default()
    }

    /// True after a deletion request.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        !self.meta("deletionTimestamp").is_null()
    }

    /// A label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.meta("labels")[name].as_str()
    }

    /// An annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.meta("annotations")[name].as_str()
    }
}

// === impl Store ===

impl Store {
    /// An empty server; `number` makes its UIDs and addresses unique.
    #[must_use]
    pub fn new(scheme: Arc<Scheme>, number: u64) -> Self {
        Self {
            scheme,
            tables: BTreeMap::new(),
            version: 1000 * (number + 1),
            compacted: 0,
            uids: 0,
            number,
            addresses: 0,
            changes: vec![],
        }
    }

    /// The type of a resource.
    #[must_use]
    pub fn kind(&self, resource: &Resource) -> Arc<Kind> {
        self.scheme.get(resource)
    }

    /// The newest resource version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The oldest version a watch can start from.
    #[must_use]
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Discards the history before `version`.
    pub fn compact(&mut self, version: u64) {
        self.compacted = self.compacted.max(version.min(self.version));
    }

    /// Notified on each change of a resource.
    pub fn notify(&mut self, resource: &Resource) -> Arc<Notify> {
        self.tables.entry(resource.clone()).or_default().notify.clone()
    }

    /// An object.
    #[must_use]
    pub fn get(&self, resource: &Resource, key: &Key) -> Option<&Arc<StoredObject>> {
        self.tables.get(resource)?.objects.get(key)
    }

    /// All objects of a resource.
    pub fn all<'a>(
        &'a self,
        resource: &Resource,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<StoredObject>)> + use<'a> {
        self.tables.get(resource).into_iter().flat_map(|t| &t.objects)
    }

    /// All resources with objects or history.
    #[must_use]
    pub fn resources(&self) -> Vec<Resource> {
        self.tables.keys().cloned().collect()
    }

    /// All objects of a resource at a version.
    #[must_use]
    pub fn objects_at(&self, resource: &Resource, version: u64) -> BTreeMap<Key, Arc<StoredObject>> {
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

    /// The changes of a resource after a version.
    #[must_use]
    pub fn changes_since(&self, resource: &Resource, version: u64) -> &[Change] {
        let Some(table) = self.tables.get(resource) else {
            return &[];
        };
        let first = table.log.partition_point(|c| c.version <= version);
        table.log.get(first..).unwrap_or_default()
    }

    /// Restores the objects of `older` with a version bump and full compaction, as `etcdutl snapshot restore
    /// --bump-revision --mark-compacted` does.
    pub fn restore(&mut self, older: &Self) {
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
    pub fn create(
        &mut self,
        resource: &Resource,
        namespace: &str,
        mut body: Value,
        writer: WriteContext<'_>,
        part: WriteScope,
    ) -> Result<Arc<StoredObject>, StatusError> {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(StatusError::new(422, "metadata.name: Required value"));
        }
        let key = (namespace.to_owned(), name);
        if !namespace.is_empty() {
            self.check_namespace(namespace)?;
            body["metadata"]["namespace"] = json!(namespace);
        }
        if resource.1 == "services" && body["spec"]["clusterIP"] == "0.0.0.0" {
            return Err(StatusError::new(
                422,
                format!(
                    "spec.clusterIPs: Invalid value: [\"0.0.0.0\"]: failed to allocate IP 0.0.0.0: the provided network \
                     does not match the current range. The range of valid IPs is 10.{}.0.0/16",
                    100 + self.number
                ),
            ));
        }
        let kind = self.scheme.get(resource);
        if kind.has(KindTrait::StatusSubresource) && part == WriteScope::ExceptStatus {
            strip_status(&mut body);
        }
        let versioned = !body["metadata"]["resourceVersion"].is_null();
        self.prepare_create(resource, &kind, &mut body, writer);
        prune_and_validate(resource, &kind, None, &mut body, part)?;
        if versioned {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(StatusError::without_reason(500, why));
        }
        if self.get(resource, &key).is_some() {
            let mut refusal = StatusError::new(409, format!("{} {:?} already exists", resource.1, key.1));
            refusal.reason = "AlreadyExists";
            return Err(refusal);
        }
        let mut managed_fields = ManagedFields::new();
        fields::record_update(None, &body, &mut managed_fields, writer.manager);
        Ok(self.commit(resource, key, None, body, managed_fields, writer.actor))
    }

    /// Applies a JSON merge patch.
    pub fn patch(
        &mut self,
        resource: &Resource,
        key: &Key,
        patch: &Value,
        writer: WriteContext<'_>,
        part: WriteScope,
    ) -> Result<Arc<StoredObject>, StatusError> {
        let old = self.get_or_not_found(resource, key)?;
        check_precondition(&old, &patch["metadata"]["resourceVersion"], "resourceVersion")?;
        if part != WriteScope::Status {
            check_same_uid(&old, patch)?;
        }
        let mut new = old.value.clone();
        fields::json_merge_patch(&mut new, patch);
        self.update(resource, key, &old, new, writer, part)
    }

    /// Replaces an object.
    pub fn replace(
        &mut self,
        resource: &Resource,
        key: &Key,
        body: Value,
        writer: WriteContext<'_>,
        part: WriteScope,
    ) -> Result<Arc<StoredObject>, StatusError> {
        let kind = self.scheme.get(resource);
        if kind.has(KindTrait::CreateOnUpdate)
            && part == WriteScope::ExceptStatus
            && self.get(resource, key).is_none()
        {
            let mut body = body;
            if body["metadata"]["uid"].is_string() {
                return Err(uid_mismatch(key));
            }
            if let Some(metadata) = body["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            return self.create(resource, &key.0, body, writer, part);
        }
        let old = self.get_or_not_found(resource, key)?;
        let metadata = &body["metadata"];
        check_precondition(&old, &metadata["uid"], "uid")?;
        if metadata["resourceVersion"].is_null() && !kind.has(KindTrait::UnconditionalUpdate) {
            let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
            return Err(StatusError::new(422, why));
        }
        check_precondition(&old, &metadata["resourceVersion"], "resourceVersion")?;
        self.update(resource, key, &old, body, writer, part)
    }

    /// Applies an object server-side.
    pub fn apply(
        &mut self,
        resource: &Resource,
        key: &Key,
        mut body: Value,
        force: bool,
        writer: WriteContext<'_>,
    ) -> Result<Arc<StoredObject>, StatusError> {
        let kind = self.scheme.get(resource);
        if let Some(path) = schema::unknown_field(&kind.schema, &body) {
            let why = format!("failed to create typed patch object: {path}: field not declared in schema");
            return Err(StatusError::without_reason(500, why));
        }
        if kind.has(KindTrait::StatusSubresource) {
            strip_status(&mut body);
        }
        let Some(old) = self.get(resource, key).cloned() else {
            let mut managed_fields = ManagedFields::new();
            let mut new = fields::apply(&json!({}), &mut managed_fields, &body, writer.manager, true)
                .map_err(|error| StatusError::from_apply_error(&error))?;
            if body["metadata"]["uid"].is_string() {
                return Err(uid_mismatch(key));
            }
            if !key.0.is_empty() {
                self.check_namespace(&key.0)?;
            }
            for field in ["apiVersion", "kind"] {
                new[field] = body[field].clone();
            }
            new["metadata"]["name"] = json!(key.1);
            if !key.0.is_empty() {
                new["metadata"]["namespace"] = json!(key.0);
            }
            self.prepare_create(resource, &kind, &mut new, writer);
            prune_and_validate(resource, &kind, None, &mut new, WriteScope::ExceptStatus)?;
            return Ok(self.commit(resource, key.clone(), None, new, managed_fields, writer.actor));
        };
        let mut managed_fields = old.managed_fields.clone();
        let mut new = fields::apply(&old.value, &mut managed_fields, &body, writer.manager, force)
            .map_err(|error| StatusError::from_apply_error(&error))?;
        check_precondition(&old, &body["metadata"]["resourceVersion"], "resourceVersion")?;
        check_same_uid(&old, &body)?;
        self.prepare_update(resource, &kind, &old, &mut new, WriteScope::ExceptStatus)?;
        if defaults::normalize(resource, new.clone()) == old.value && managed_fields == old.managed_fields {
            return Ok(old);
        }
        Ok(self.commit(
            resource,
            key.clone(),
            Some(old),
            new,
            managed_fields,
            writer.actor,
        ))
    }

    /// Deletes an object, or marks it while finalizers remain.
    pub fn delete(
        &mut self,
        resource: &Resource,
        key: &Key,
        preconditions: &Value,
        writer: WriteContext<'_>,
    ) -> Result<Deletion, StatusError> {
        let old = self.get_or_not_found(resource, key)?;
        for field in ["uid", "resourceVersion"] {
            check_precondition(&old, &preconditions[field], field)?;
        }
        if old.is_terminating() {
            return Ok(Deletion::Pending(old));
        }
        let held = old.meta("finalizers").as_array().is_some_and(|f| !f.is_empty());
        if !held && resource.1 != "namespaces" {
            return Ok(Deletion::Deleted(self.remove(resource, key, &old)));
        }
        let mut new = old.value.clone();
        new["metadata"]["deletionTimestamp"] = timestamp(writer.now);
        if let Some(generation) = old.meta("generation").as_u64() {
            new["metadata"]["generation"] = json!(generation + 1);
        }
        if resource.1 == "namespaces" {
            new["status"]["phase"] = json!("Terminating");
        } else {
            new["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        }
        let managed_fields = old.managed_fields.clone();
        let held = self.commit(
            resource,
            key.clone(),
            Some(old),
            new,
            managed_fields,
            writer.actor,
        );
        Ok(Deletion::Pending(held))
    }

    /// Removes an object regardless of finalizers, for the cluster's own controllers.
    pub fn remove_forcibly(&mut self, resource: &Resource, key: &Key) {
        if let Some(old) = self.get(resource, key).cloned() {
            self.remove(resource, key, &old);
        }
    }

    fn get_or_not_found(&self, resource: &Resource, key: &Key) -> Result<Arc<StoredObject>, StatusError> {
        self.get(resource, key)
            .cloned()
            .ok_or_else(|| StatusError::new(404, format!("{} {:?} not found", resource.1, key.1)))
    }

    /// Rejects creations in missing or terminating Namespaces.
    fn check_namespace(&self, namespace: &str) -> Result<(), StatusError> {
        let key = (String::new(), namespace.to_owned());
        match self.get(&(String::new(), "namespaces".to_owned()), &key) {
            None => Err(StatusError::new(
                404,
                format!("namespaces {namespace:?} not found"),
            )),
            Some(found) if found.is_terminating() => Err(StatusError::new(
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
        old: &Arc<StoredObject>,
        mut new: Value,
        writer: WriteContext<'_>,
        part: WriteScope,
    ) -> Result<Arc<StoredObject>, StatusError> {
        let kind = self.scheme.get(resource);
        self.prepare_update(resource, &kind, old, &mut new, part)?;
        let mut managed_fields = old.managed_fields.clone();
        fields::record_update(Some(&old.value), &new, &mut managed_fields, writer.manager);
        // Ownership changes alone also make a new version.
        if defaults::normalize(resource, new.clone()) == old.value && managed_fields == old.managed_fields {
            return Ok(old.clone());
        }
        Ok(self.commit(
            resource,
            key.clone(),
            Some(old.clone()),
            new,
            managed_fields,
            writer.actor,
        ))
    }

    /// Restores immutable fields, increments the generation and validates.
    fn prepare_update(
        &mut self,
        resource: &Resource,
        kind: &Kind,
        old: &StoredObject,
        new: &mut Value,
        part: WriteScope,
    ) -> Result<(), StatusError> {
        match part {
            WriteScope::ExceptStatus if kind.has(KindTrait::StatusSubresource) => {
                set_field(new, "status", &old.value["status"]);
            }
            WriteScope::Status => {
                let status = new["status"].clone();
                new.clone_from(&old.value);
                set_field(new, "status", &status);
            }
            WriteScope::ExceptStatus | WriteScope::All => {}
        }
        for field in ["apiVersion", "kind"] {
            set_field(new, field, &old.value[field]);
        }
        for field in IMMUTABLE_METADATA {
            set_field(&mut new["metadata"], field, old.meta(field));
        }
        let no_list = vec![];
        let before = old.meta("finalizers").as_array().unwrap_or(&no_list).clone();
        let added = new["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|f| f.iter().any(|f| !before.contains(f)));
        if old.is_terminating() && added {
            return Err(StatusError::new(
                422,
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
            ));
        }
        self.set_defaults(resource, new, Some(&old.value));
        prune_and_validate(resource, kind, Some(&old.value), new, part)?;
        let body = |v: &Value| {
            let mut v = v.clone();
            if let Some(map) = v.as_object_mut() {
                map.remove("metadata");
                if kind.has(KindTrait::StatusSubresource) {
                    map.remove("status");
                }
            }
            v
        };
        let labels = |v: &Value| {
            kind.has(KindTrait::LabelsInGeneration)
                .then(|| v["metadata"]["labels"].clone())
        };
        let same = body(&defaults::normalize(resource, new.clone())) == body(&old.value)
            && labels(new) == labels(&old.value);
        if kind.has(KindTrait::Generation) && !same {
            new["metadata"]["generation"] = json!(old.meta("generation").as_u64().unwrap_or(0) + 1);
        }
        Ok(())
    }

    fn prepare_create(
        &mut self,
        resource: &Resource,
        kind: &Kind,
        body: &mut Value,
        writer: WriteContext<'_>,
    ) {
        self.uids += 1;
        let metadata = &mut body["metadata"];
        metadata["uid"] = json!(format!("{:08x}-0000-4000-8000-{:012x}", self.number, self.uids));
        metadata["creationTimestamp"] = timestamp(writer.now);
        if kind.has(KindTrait::Generation) {
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
        self.set_defaults(resource, body, None);
    }

    fn set_defaults(&mut self, resource: &Resource, body: &mut Value, old: Option<&Value>) {
        let (number, addresses) = (self.number, &mut self.addresses);
        defaults::set_defaults(resource, body, old, || {
            *addresses += 1;
            let n = *addresses;
            format!("10.{}.{}.{}", 100 + number, n / 250, 1 + n % 250)
        });
    }

    fn remove(&mut self, resource: &Resource, key: &Key, old: &Arc<StoredObject>) -> Arc<StoredObject> {
        self.version += 1;
        let new = stored_object(
            old.value.clone(),
            self.version,
            old.managed_fields.clone(),
            old.creator,
        );
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
        self.record_change(change);
        new
    }

    fn commit(
        &mut self,
        resource: &Resource,
        key: Key,
        old: Option<Arc<StoredObject>>,
        value: Value,
        managed_fields: ManagedFields,
        actor: Actor,
    ) -> Arc<StoredObject> {
        let free = value["metadata"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty);
        let going = !value["metadata"]["deletionTimestamp"].is_null();
        if let Some(old) = old
            .as_ref()
            .filter(|_| going && free && resource.1 != "namespaces")
        {
            // The last finalizer: watches receive the previous state, the writer the new one without a version.
            self.remove(resource, &key, old);
            return Arc::new(StoredObject {
                text: value.to_string(),
                value,
                managed_fields,
                creator: old.creator,
            });
        }
        self.version += 1;
        let maker = old.as_ref().map_or(actor, |o| o.creator);
        let new = stored_object(
            defaults::normalize(resource, value),
            self.version,
            managed_fields,
            maker,
        );
        let table = self.tables.entry(resource.clone()).or_default();
        table.objects.insert(key.clone(), new.clone());
        self.record_change(Change {
            resource: resource.clone(),
            key,
            version: self.version,
            old,
            new: new.clone(),
            deleted: false,
        });
        new
    }

    fn record_change(&mut self, change: Change) {
        let table = self.tables.entry(change.resource.clone()).or_default();
        table.log.push(change.clone());
        table.notify.notify_waiters();
        self.changes.push(change);
    }
}

fn stored_object(
    mut value: Value,
    version: u64,
    managed_fields: ManagedFields,
    creator: Actor,
) -> Arc<StoredObject> {
    value["metadata"]["resourceVersion"] = json!(version.to_string());
    let text = value.to_string();
    Arc::new(StoredObject {
        value,
        text,
        managed_fields,
        creator,
    })
}

fn strip_status(body: &mut Value) {
    if let Some(map) = body.as_object_mut() {
        map.remove("status");
    }
}

fn set_field(object: &mut Value, field: &str, value: &Value) {
    if let Some(map) = object.as_object_mut() {
        if value.is_null() {
            map.remove(field);
        } else {
            map.insert(field.to_owned(), value.clone());
        }
    }
}

/// RFC 3339 in whole seconds, as in API objects.
fn timestamp(now: jiff::Timestamp) -> Value {
    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
