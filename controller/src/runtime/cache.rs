//! Stores of different kinds behind one interface.

use kube::Resource;
use mc_kube::{CacheState, NamespacedName, Store};

use crate::plan::{Kind, ObjectRef};

/// A store of any kind.
pub(super) trait DynStore {
    /// Whether it holds objects of `kind`.
    fn has_kind(&self, kind: Kind) -> bool;

    /// Whether its list is complete.
    fn synced(&self) -> bool;

    /// The cache's state of one object.
    fn cache_state(&self, name: &NamespacedName) -> CacheState;
}

/// The cache's state of an object, if one of the stores holds its kind.
pub(super) fn cache_state(stores: &[&dyn DynStore], target: &ObjectRef) -> Option<CacheState> {
    let store = stores.iter().find(|s| s.has_kind(target.kind))?;
    let name = NamespacedName::new(target.namespace.as_str(), target.name.as_str());
    Some(store.cache_state(&name))
}

/// Whether the lists of all stores are complete.
pub(super) fn synced(stores: &[&dyn DynStore]) -> bool {
    stores.iter().all(|s| s.synced())
}

impl<K: Resource<DynamicType = ()>> DynStore for Store<K> {
    fn has_kind(&self, kind: Kind) -> bool {
        let resource = kind.api_resource();
        (resource.group, resource.kind) == (K::group(&()).into_owned(), K::kind(&()).into_owned())
    }

    fn synced(&self) -> bool {
        Self::synced(self)
    }

    fn cache_state(&self, name: &NamespacedName) -> CacheState {
        Self::cache_state(self, name)
    }
}
