//! Which kinds an API server has, and what differs between them: from the project's CRDs, and for built-in kinds
//! from a table. A kind nobody described is one of a CRD.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controller::api::crd;
use serde_json::Value;

/// A resource: group and plural name.
pub(crate) type Resource = (String, String);

/// What is particular about a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trait {
    /// `/status` is a resource of its own: writes to the object leave the status alone.
    Status,
    /// Its objects have a generation.
    Generation,
    /// Labels count for the generation.
    Labels,
    /// PUT needs no resource version.
    Blind,
    /// PUT creates what is not there.
    Upsert,
    /// Whoever deletes an object is shown it once more.
    Shown,
}

/// What an API server has to know of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    /// As in `kind:`.
    pub(crate) name: String,
    traits: BTreeSet<Trait>,
    /// The schema of its CRD; null: it has none.
    pub(crate) schema: Value,
}

/// All kinds, by resource.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(BTreeMap<Resource, Arc<Kind>>);

/// Built-in kinds: group, plural, kind, and what their strategies in the API server say.
const BUILT_IN: [(&str, &str, &str, &[Trait]); 7] = [
    (
        "",
        "namespaces",
        "Namespace",
        &[Trait::Status, Trait::Blind, Trait::Shown],
    ),
    ("", "nodes", "Node", &[Trait::Status, Trait::Blind]),
    (
        "",
        "services",
        "Service",
        &[Trait::Status, Trait::Blind, Trait::Upsert, Trait::Shown],
    ),
    ("", "secrets", "Secret", &[Trait::Blind]),
    (
        "discovery.k8s.io",
        "endpointslices",
        "EndpointSlice",
        &[Trait::Generation, Trait::Labels, Trait::Blind],
    ),
    (
        "networking.k8s.io",
        "servicecidrs",
        "ServiceCIDR",
        &[Trait::Status, Trait::Blind],
    ),
    ("coordination.k8s.io", "leases", "Lease", &[Trait::Upsert]),
];

// === impl Kind ===

impl Kind {
    /// Whether something is particular about it.
    pub(crate) fn has(&self, one: Trait) -> bool {
        self.traits.contains(&one)
    }
}

// === impl Kinds ===

impl Kinds {
    /// The built-in kinds and those of all CRDs of leader and members.
    pub(crate) fn new() -> Self {
        let mut kinds = BTreeMap::new();
        for (group, plural, name, traits) in BUILT_IN {
            let kind = Kind {
                name: name.to_owned(),
                traits: traits.iter().copied().collect(),
                schema: Value::Null,
            };
            kinds.insert((group.to_owned(), plural.to_owned()), Arc::new(kind));
        }
        for crd in crd::leader().into_iter().chain(crd::member()) {
            let has_status = crd
                .spec
                .versions
                .iter()
                .any(|v| v.subresources.as_ref().is_some_and(|s| s.status.is_some()));
            let stored = crd.spec.versions.iter().find(|v| v.storage);
            let schema = stored.and_then(|v| v.schema.as_ref()?.open_api_v3_schema.as_ref());
            let status = has_status.then_some(Trait::Status);
            let kind = Kind {
                name: crd.spec.names.kind,
                traits: status.into_iter().chain([Trait::Generation]).collect(),
                schema: serde_json::to_value(schema).unwrap_or_default(),
            };
            kinds.insert((crd.spec.group, crd.spec.names.plural), Arc::new(kind));
        }
        Self(kinds)
    }

    /// What is known of a resource.
    pub(crate) fn get(&self, resource: &Resource) -> Arc<Kind> {
        self.0.get(resource).cloned().unwrap_or_else(|| {
            Arc::new(Kind {
                name: resource.1.clone(),
                traits: [Trait::Status, Trait::Generation].into(),
                schema: Value::Null,
            })
        })
    }
}
