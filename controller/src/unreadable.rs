//! Objects that this version has never decoded: absent from its snapshot, but not from the API server.
//!
//! Another version of a controller may have written them. An object that was decoded once is in the snapshot with its
//! last readable spec instead ([`mc_kube::Store`]).

use std::collections::BTreeSet;

use mc_kube::{NamespacedName, ObjectMap};

/// The names of the unreadable objects of a kind that have no readable version.
#[must_use]
pub(crate) fn never_read<K>(
    unreadable: &BTreeSet<NamespacedName>,
    objects: &ObjectMap<K>,
) -> BTreeSet<String> {
    let never = unreadable.iter().filter(|name| !objects.contains_key(*name));
    never.map(|name| name.name.clone()).collect()
}
