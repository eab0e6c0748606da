//! Stand-alone mode: objects from the YAML and JSON files of a directory, watched with inotify.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use mc_api::cluster_info::ClusterInfoImport;
use mc_api::gateway::Gateway;
use mc_api::service_export::ServiceExport;
use mc_kube::NamespacedName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::{Deserializer, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, error, info, warn};

use super::pod::{self, Pod};
use super::{Receiver, SourceError, convert};
use crate::objects::{GatewayInfo, NodeInfo, Objects, PodInfo, RemoteCluster};
use crate::service_objects::{ServiceInfo, SliceInfo, exported_services};

/// Quiet time after a burst of events …
const QUIET: Duration = Duration::from_millis(50);
/// … and the longest delay by a burst.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// Interval of attempts to open a missing directory.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// An object of a supported kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// `v1` Node.
    Node(NodeInfo),
    /// Gateway.
    Gateway(GatewayInfo),
    /// ClusterInfoImport.
    Remote(RemoteCluster),
    /// `v1` Pod.
    Pod(Arc<PodInfo>),
    /// `v1` Service.
    Service(ServiceInfo),
    /// EndpointSlice.
    Slice(SliceInfo),
    /// ServiceExport.
    Export(NamespacedName),
}

/// Kind, and name or `namespace/name`.
type ObjectKey = (&'static str, String);

impl Object {
    fn key(&self) -> ObjectKey {
        match self {
            Self::Node(node) => ("Node", node.name.clone()),
            Self::Gateway(gateway) => ("Gateway", gateway.name.clone()),
            Self::Remote(remote) => ("ClusterInfoImport", remote.name.clone()),
            Self::Pod(pod) => ("Pod", pod.name.clone()),
            Self::Service(service) => ("Service", format!("{}/{}", service.namespace, service.name)),
            Self::Slice(slice) => ("EndpointSlice", format!("{}/{}", slice.namespace, slice.name)),
            Self::Export(name) => ("ServiceExport", name.to_string()),
        }
    }
}

/// An invalid document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestError {
    /// The file.
    pub file: PathBuf,
    /// Number of the document in the file, from 1; none if the file cannot be read.
    pub document: Option<usize>,
    /// The error of the parser, with field and value.
    pub reason: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(document) = self.document {
            write!(f, "document {document}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parsed {
    objects: Vec<Object>,
    /// Number and error of invalid documents.
    errors: Vec<(Option<usize>, String)>,
    /// Objects with invalid fields.
    invalid: BTreeSet<ObjectKey>,
    /// Whether the text after the last object is unreadable.
    truncated: bool,
    /// Unsupported kinds.
    ignored: BTreeSet<String>,
}

/// Parses all documents of a file.
fn parse(text: &str) -> Parsed {
    let mut parsed = Parsed::default();
    let mut values = Vec::new();
    for document in Deserializer::from_str(text) {
        match Value::deserialize(document) {
            Ok(value) => values.push(value),
            Err(error) => {
                let number = values.len().saturating_add(1);
                parsed
                    .errors
                    .push((Some(number), format!("malformed YAML: {error}")));
                parsed.truncated = true;
                break;
            }
        }
    }
    // The second pass parses the text, so that errors contain field, value and line.
    for (index, (value, document)) in values.iter().zip(Deserializer::from_str(text)).enumerate() {
        let number = index.saturating_add(1);
        let kind = string(value, "kind");
        match (kind.as_str(), value) {
            (_, Value::Null) => {}
            ("List", _) => {
                let items = value.get("items").and_then(Value::as_sequence);
                for item in items.into_iter().flatten() {
                    parsed.add(number, item, item.clone());
                }
            }
            _ => parsed.add(number, value, document),
        }
    }
    parsed
}

/// The name in the key of an object: with namespace for namespaced kinds.
fn object_name(kind: &str, value: &Value, name: String) -> String {
    if !matches!(kind, "Pod" | "Service" | "EndpointSlice" | "ServiceExport") {
        return name;
    }
    let metadata = value.get("metadata");
    let namespace = metadata.map(|metadata| string(metadata, "namespace"));
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    format!("{}/{name}", namespace.as_deref().unwrap_or("default"))
}

fn string(value: &Value, field: &str) -> String {
    value
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

impl Parsed {
    fn add<'de, D: serde::Deserializer<'de>>(&mut self, number: usize, value: &Value, document: D)
    where
        D::Error: fmt::Display,
    {
        let kind = string(value, "kind");
        let version = string(value, "apiVersion");
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        match (kind.as_str(), group) {
            ("Node", "") => self.read("Node", number, value, document, |node: Node| {
                Object::Node(convert::node(&node))
            }),
            ("Pod", "") => self.read("Pod", number, value, document, |pod: Pod| {
                Object::Pod(pod::convert(&pod))
            }),
            ("Gateway", convert::GROUP) => {
                self.read("Gateway", number, value, document, |gateway: Gateway| {
                    Object::Gateway(convert::gateway(&gateway))
                });
            }
            ("ClusterInfoImport", convert::GROUP) => {
                self.read(
                    "ClusterInfoImport",
                    number,
                    value,
                    document,
                    |import: ClusterInfoImport| Object::Remote(convert::remote(&import)),
                );
            }
            ("Service", "") => self.read("Service", number, value, document, |service: Service| {
                Object::Service(convert::service(&service))
            }),
            ("EndpointSlice", convert::DISCOVERY_GROUP) => {
                self.read(
                    "EndpointSlice",
                    number,
                    value,
                    document,
                    |slice: EndpointSlice| Object::Slice(convert::slice(&slice)),
                );
            }
            ("ServiceExport", convert::MCS_GROUP) => {
                self.read(
                    "ServiceExport",
                    number,
                    value,
                    document,
                    |export: ServiceExport| Object::Export(convert::export(&export)),
                );
            }
            ("", _) => {
                let reason = format!("kind: {kind:?} is missing: not a Kubernetes object");
                self.errors.push((Some(number), reason));
            }
            _ => {
                self.ignored.insert(format!("{kind} ({version})"));
            }
        }
    }

    fn read<'de, T: DeserializeOwned, D: serde::Deserializer<'de>>(
        &mut self,
        kind: &'static str,
        number: usize,
        value: &Value,
        document: D,
        convert: impl Fn(T) -> Object,
    ) where
        D::Error: fmt::Display,
    {
        let name = value
            .get("metadata")
            .map(|metadata| string(metadata, "name"))
            .unwrap_or_default();
        if name.is_empty() {
            let reason = format!("{kind}: metadata.name: {name:?} is missing");
            self.errors.push((Some(number), reason));
            return;
        }
        match T::deserialize(document) {
            Ok(object) => self.objects.push(convert(object)),
            Err(error) => {
                self.errors
                    .push((Some(number), format!("{kind} {name}: {error}")));
                self.invalid.insert((kind, object_name(kind, value, name)));
            }
        }
    }
}

/// The last valid objects of each file.
#[derive(Debug, Default)]
struct ManifestStore {
    files: BTreeMap<PathBuf, Vec<Object>>,
}

impl ManifestStore {
    /// Replaces the texts of all files; other files no longer exist. Returns the errors and the ignored kinds.
    ///
    /// *Guarantees*: an object that became invalid keeps its last valid state, as do all objects of a file that cannot
    /// be read or parsed completely; only objects missing from a readable file are removed.
    fn update(
        &mut self,
        texts: BTreeMap<PathBuf, Result<String, String>>,
    ) -> (Vec<ManifestError>, BTreeSet<String>) {
        let mut errors = Vec::new();
        let mut ignored = BTreeSet::new();
        let mut files = BTreeMap::new();
        for (file, text) in texts {
            let old = self.files.remove(&file).unwrap_or_default();
            let mut parsed = match text {
                Ok(text) => parse(&text),
                Err(reason) => Parsed {
                    errors: vec![(None, reason)],
                    truncated: true,
                    ..Parsed::default()
                },
            };
            let new: BTreeSet<ObjectKey> = parsed.objects.iter().map(Object::key).collect();
            let kept = old.into_iter().filter(|object| {
                let key = object.key();
                (parsed.truncated || parsed.invalid.contains(&key)) && !new.contains(&key)
            });
            parsed.objects.extend(kept);
            errors.extend(parsed.errors.into_iter().map(|(document, reason)| ManifestError {
                file: file.clone(),
                document,
                reason,
            }));
            ignored.append(&mut parsed.ignored);
            files.insert(file, parsed.objects);
        }
        self.files = files;
        (errors, ignored)
    }

    /// All objects; of two with the same kind and name the one in the first file is used.
    fn objects(&self) -> (Objects, Vec<ManifestError>) {
        let mut objects = Objects::default();
        let mut errors = Vec::new();
        let mut seen: BTreeMap<ObjectKey, &Path> = BTreeMap::new();
        let (mut services, mut slices, mut exports) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (file, object) in self
            .files
            .iter()
            .flat_map(|(file, all)| all.iter().map(move |one| (file, one)))
        {
            let key = object.key();
            if let Some(first) = seen.get(&key) {
                errors.push(ManifestError {
                    file: file.clone(),
                    document: None,
                    reason: format!("{} {}: is already in {}", key.0, key.1, first.display()),
                });
                continue;
            }
            seen.insert(key, file);
            match object.clone() {
                Object::Node(node) => objects.nodes.push(node),
                Object::Gateway(gateway) => objects.gateways.push(gateway),
                Object::Remote(remote) => objects.remotes.push(remote),
                Object::Pod(pod) => objects.pods.push(pod),
                Object::Service(service) => services.push(service),
                Object::Slice(slice) => slices.push(slice),
                Object::Export(name) => {
                    exports.insert(name);
                }
            }
        }
        objects.services = Some(exported_services(&services, &slices, &exports));
        services.retain(|service| service.reserves);
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        objects.reservations = services;
        objects.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        objects.gateways.sort_by(|a, b| a.name.cmp(&b.name));
        objects.remotes.sort_by(|a, b| a.name.cmp(&b.name));
        objects.pods.sort_by(|a, b| a.name.cmp(&b.name));
        (objects, errors)
    }
}

/// The objects in the text of a file, and its errors.
#[must_use]
pub fn parse_objects(text: &str) -> (Objects, Vec<ManifestError>) {
    let mut directory = ManifestStore::default();
    let (mut errors, _) = directory.update(BTreeMap::from([(PathBuf::new(), Ok(text.to_owned()))]));
    let (objects, duplicates) = directory.objects();
    errors.extend(duplicates);
    (objects, errors)
}

/// Reads `dir` and keeps watching it.
pub(super) fn start(dir: &Path) -> Result<Receiver, SourceError> {
    let failed = |operation| {
        let dir = dir.to_owned();
        move |source| SourceError::Directory {
            dir,
            operation,
            source,
        }
    };
    let mut reader = ManifestReader::new(dir);
    // Watched before it is read, so that no change is missed.
    let events = watch_directory(dir).map_err(failed("cannot be watched"))?;
    reader.read().map_err(failed("cannot be read"))?;
    let (sender, receiver) = watch::channel(Some(reader.objects()));
    tokio::spawn(run(reader, events, sender));
    Ok(receiver)
}

type Events = inotify::EventStream<[u8; 4096]>;

fn watch_directory(dir: &Path) -> io::Result<Events> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    inotify.watches().add(dir, mask)?;
    inotify.into_event_stream([0; 4096])
}

/// Reads the directory after every change, and publishes changed objects.
async fn run(mut reader: ManifestReader, mut events: Events, sender: watch::Sender<Option<Objects>>) {
    while !sender.is_closed() {
        match events.next().await {
            Some(Ok(_)) => debounce(&mut events).await,
            other => debug!(?other, "inotify"),
        }
        // The watch is opened anew: the path may refer to another directory now.
        events = loop {
            match watch_directory(&reader.dir) {
                Ok(events) => break events,
                Err(error) => {
                    reader.report(vec![ManifestError {
                        file: reader.dir.clone(),
                        document: None,
                        reason: format!("cannot be watched ({error}); keeping the last state"),
                    }]);
                    sleep(REOPEN_INTERVAL).await;
                }
            }
        };
        if let Err(error) = reader.read() {
            reader.report(vec![ManifestError {
                file: reader.dir.clone(),
                document: None,
                reason: format!("cannot be read ({error}); keeping the last state"),
            }]);
            continue;
        }
        let objects = reader.objects();
        sender.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&objects);
            *known = Some(objects);
            changed
        });
    }
}

/// Waits for the end of a burst of events.
async fn debounce(events: &mut Events) {
    let end = Instant::now() + MAX_DELAY;
    while Instant::now() < end {
        if timeout(QUIET, events.next()).await.is_err() {
            return;
        }
    }
}

/// The directory, its objects and the errors logged.
#[derive(Debug)]
struct ManifestReader {
    dir: PathBuf,
    directory: ManifestStore,
    reported: BTreeSet<ManifestError>,
    ignored: BTreeSet<String>,
}

impl ManifestReader {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            directory: ManifestStore::default(),
            reported: BTreeSet::new(),
            ignored: BTreeSet::new(),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut texts = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if is_manifest(&path) && path.is_file() {
                let text = fs::read_to_string(&path).map_err(|error| format!("cannot be read: {error}"));
                texts.insert(path, text);
            }
        }
        let (mut errors, ignored) = self.directory.update(texts);
        errors.extend(self.directory.objects().1);
        for kind in ignored.difference(&self.ignored) {
            info!(%kind, "unsupported kind ignored");
        }
        self.ignored = ignored;
        self.report(errors);
        Ok(())
    }

    fn objects(&self) -> Objects {
        self.directory.objects().0
    }

    /// Logs each error once until it is resolved.
    fn report(&mut self, errors: Vec<ManifestError>) {
        let errors: BTreeSet<ManifestError> = errors.into_iter().collect();
        for error in errors.difference(&self.reported) {
            error!(%error, "invalid manifest; keeping the previous objects");
        }
        for error in self.reported.difference(&errors) {
            warn!(file = %error.file.display(), document = error.document, "manifest valid again");
        }
        self.reported = errors;
    }
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.to_string_lossy().starts_with('.'));
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    !hidden && matches!(extension.as_deref(), Some("yaml" | "yml" | "json"))
}

#[cfg(test)]
mod tests;
