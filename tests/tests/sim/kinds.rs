//! Which kinds an API server has, and what differs between them: from the project's CRDs, and for built-in kinds
//! from a table. A kind nobody described is namespaced and has a status.

use std::collections::BTreeMap;

use controller::api::crd;

/// A resource: group and plural name.
pub(crate) type Resource = (String, String);

/// What an API server has to know of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    /// As in `kind:`.
    pub(crate) name: String,
    /// Whether `/status` is a resource of its own, so that writes to the object leave the status alone.
    pub(crate) status: bool,
}

/// All kinds, by resource.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(BTreeMap<Resource, Kind>);

/// Built-in kinds: group, plural, kind.
const BUILT_IN: [(&str, &str, &str); 6] = [
    ("", "namespaces", "Namespace"),
    ("", "nodes", "Node"),
    ("", "services", "Service"),
    ("", "secrets", "Secret"),
    ("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    ("networking.k8s.io", "servicecidrs", "ServiceCIDR"),
];

// === impl Kinds ===

impl Kinds {
    /// The built-in kinds and those of all CRDs of leader and members.
    pub(crate) fn new() -> Self {
        let mut kinds = BTreeMap::new();
        for (group, plural, name) in BUILT_IN {
            let kind = Kind {
                name: name.to_owned(),
                status: plural != "secrets" && plural != "endpointslices",
            };
            kinds.insert((group.to_owned(), plural.to_owned()), kind);
        }
        for crd in crd::leader().into_iter().chain(crd::member()) {
            let status = crd
                .spec
                .versions
                .iter()
                .any(|v| v.subresources.as_ref().is_some_and(|s| s.status.is_some()));
            let kind = Kind {
                name: crd.spec.names.kind,
                status,
            };
            kinds.insert((crd.spec.group, crd.spec.names.plural), kind);
        }
        Self(kinds)
    }

    /// What is known of a resource.
    pub(crate) fn get(&self, resource: &Resource) -> Kind {
        self.0.get(resource).cloned().unwrap_or(Kind {
            name: resource.1.clone(),
            status: true,
        })
    }
}
