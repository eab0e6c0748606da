//! Objects of all manifest files; invalid input keeps its last valid state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::parse::{ManifestError, Object, ObjectKey, ParsedFile, parse};
use crate::identity_objects::IdentityObjects;
use crate::objects::Objects;
use crate::service_objects::exported_services;
use crate::source::address_groups;

/// The last valid objects of each file.
#[derive(Debug, Default)]
pub(super) struct ManifestStore {
    files: BTreeMap<PathBuf, Vec<Object>>,
}

impl ManifestStore {
    /// Replaces the texts of all files, each once; other files no longer exist. Returns the errors and the ignored
    /// kinds.
    ///
    /// *Guarantees*: an object that became invalid keeps its last valid state, as do all objects of a file that cannot
    /// be read or parsed completely; only objects missing from a readable file are removed.
    pub(super) fn update(
        &mut self,
        texts: impl IntoIterator<Item = (PathBuf, Result<String, String>)>,
    ) -> (Vec<ManifestError>, BTreeSet<String>) {
        let mut errors = Vec::new();
        let mut ignored = BTreeSet::new();
        let mut files = BTreeMap::new();
        for (file, text) in texts {
            let old = self.files.remove(&file).unwrap_or_default();
            let mut parsed = match text {
                Ok(text) => parse(&text),
                Err(reason) => ParsedFile {
                    errors: vec![(None, reason)],
                    truncated: true,
                    ..ParsedFile::default()
                },
            };
            share_unchanged(&mut parsed.objects, &old);
            let new: BTreeSet<ObjectKey> = parsed.objects.iter().map(Object::key).collect();
            let kept = old.into_iter().filter(|object| {
                let key = object.key();
                (parsed.truncated || parsed.invalid.contains(&key)) && !new.contains(&key)
            });
            parsed.objects.extend(kept);
            parsed.objects.shrink_to_fit();
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
    pub(super) fn objects(&self) -> (Objects, Vec<ManifestError>) {
        let mut objects = Objects::default();
        let mut errors = Vec::new();
        let mut seen: BTreeMap<ObjectKey, &Path> = BTreeMap::new();
        let mut identities = IdentityObjects::default();
        let mut groups = Vec::new();
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
                Object::Node(node) => objects.nodes.push(*node),
                Object::Gateway(gateway) => objects.gateways.push(*gateway),
                Object::Remote(remote) => objects.remotes.push(remote),
                Object::Pod(pod) => objects.pods.push(pod),
                Object::AddressGroups(slice) => groups.push(slice),
                Object::NodeKey(key) => objects.node_keys.push(*key),
                Object::Namespace(namespace) => identities.namespaces.push(namespace),
                Object::Identity(identity) => identities.identities.push(identity),
                Object::Policy(policy) => objects.policies.policies.push(policy),
                Object::Group(group) => objects.policies.groups.push(group),
                Object::Tier(tier) => objects.policies.tiers.push(tier),
                Object::Service(service) => services.push(*service),
                Object::Slice(slice) => slices.push(*slice),
                Object::Export(name) => {
                    exports.insert(*name);
                }
            }
        }
        objects.services = Some(exported_services(&services, &slices, &exports));
        objects.policies.add_services(&services, &slices);
        services.retain(|service| service.reserves);
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        objects.reservations = services;
        objects.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        objects.gateways.sort_by(|a, b| a.name.cmp(&b.name));
        objects.remotes.sort_by(|a, b| a.name.cmp(&b.name));
        objects.pods.sort_by(|a, b| a.name.cmp(&b.name));
        if address_groups::are_complete(&groups) {
            objects.address_groups = address_groups::further_groups(&objects.pods, &groups);
        }
        objects.node_keys.sort_by(|a, b| a.name.cmp(&b.name));
        identities.namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        identities.identities.sort_by(|a, b| a.name.cmp(&b.name));
        objects.identities = Some(identities);
        objects.policies.policies.sort_by(|a, b| a.key.cmp(&b.key));
        objects.policies.groups.sort_by(|a, b| a.key.cmp(&b.key));
        objects.policies.tiers.sort_by(|a, b| a.key.cmp(&b.key));
        (objects, errors)
    }
}

/// Replaces new objects that equal old ones by these, which are in memory already: a change of a file parses all.
fn share_unchanged(new: &mut [Object], old: &[Object]) {
    let old: BTreeMap<ObjectKey, &Object> = old.iter().map(|object| (object.key(), object)).collect();
    for object in new {
        if let Some(known) = old.get(&object.key())
            && *known == object
        {
            object.clone_from(known);
        }
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
