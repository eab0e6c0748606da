//! Resource types and their API server behaviour: built-in kinds from a table, others from the project's CRDs. Unknown
//! kinds behave like custom resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mc_api::crd;
use serde_json::Value;

/// Group and plural name.
pub type Resource = (String, String);

/// Behaviour that differs between kinds, named as in the API server's storage strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KindTrait {
    /// `/status` is a subresource; writes to the main resource keep the status.
    StatusSubresource,
    /// Objects have `metadata.generation`.
    Generation,
    /// Label changes increment the generation.
    LabelsInGeneration,
    /// PUT needs no resource version.
    UnconditionalUpdate,
    /// PUT creates a missing object.
    CreateOnUpdate,
    /// DELETE returns the deleted object.
    ReturnDeletedObject,
}

/// A resource type.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Value of `kind:`.
    pub name: String,
    traits: BTreeSet<KindTrait>,
    /// Schema of the CRD; null for built-in kinds.
    pub schema: Value,
}

/// All resource types.
#[derive(Clone, Debug)]
pub struct Scheme(BTreeMap<Resource, Arc<Kind>>);

/// Built-in kinds: group, plural name, kind, and storage strategy.
const BUILT_IN: [(&str, &str, &str, &[KindTrait]); 7] = [
    (
        "",
        "namespaces",
        "Namespace",
        &[
            KindTrait::StatusSubresource,
            KindTrait::UnconditionalUpdate,
            KindTrait::ReturnDeletedObject,
        ],
    ),
    (
        "",
        "nodes",
        "Node",
        &[KindTrait::StatusSubresource, KindTrait::UnconditionalUpdate],
    ),
    (
        "",
        "services",
        "Service",
        &[
            KindTrait::StatusSubresource,
            KindTrait::UnconditionalUpdate,
            KindTrait::CreateOnUpdate,
            KindTrait::ReturnDeletedObject,
        ],
    ),
    ("", "secrets", "Secret", &[KindTrait::UnconditionalUpdate]),
    (
        "discovery.k8s.io",
        "endpointslices",
        "EndpointSlice",
        &[
            KindTrait::Generation,
            KindTrait::LabelsInGeneration,
            KindTrait::UnconditionalUpdate,
        ],
    ),
    (
        "networking.k8s.io",
        "servicecidrs",
        "ServiceCIDR",
        &[KindTrait::StatusSubresource, KindTrait::UnconditionalUpdate],
    ),
    (
        "coordination.k8s.io",
        "leases",
        "Lease",
        &[KindTrait::CreateOnUpdate],
    ),
];

// === impl Kind ===

impl Kind {
    /// True if the kind has this behaviour.
    #[must_use]
    pub fn has(&self, one: KindTrait) -> bool {
        self.traits.contains(&one)
    }
}

// === impl Kinds ===

impl Default for Scheme {
    fn default() -> Self {
        Self::new()
    }
}

impl Scheme {
    /// Built-in kinds and all CRDs of leader and members.
    #[must_use]
    pub fn new() -> Self {
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
            let status = has_status.then_some(KindTrait::StatusSubresource);
            let kind = Kind {
                name: crd.spec.names.kind,
                traits: status.into_iter().chain([KindTrait::Generation]).collect(),
                schema: serde_json::to_value(schema).unwrap_or_default(),
            };
            kinds.insert((crd.spec.group, crd.spec.names.plural), Arc::new(kind));
        }
        Self(kinds)
    }

    /// The type of a resource.
    #[must_use]
    pub fn get(&self, resource: &Resource) -> Arc<Kind> {
        self.0.get(resource).cloned().unwrap_or_else(|| {
            Arc::new(Kind {
                name: resource.1.clone(),
                traits: [KindTrait::StatusSubresource, KindTrait::Generation].into(),
                schema: Value::Null,
            })
        })
    }
}
