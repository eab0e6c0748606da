//! The owner of an imported object: the member controller that has made it, by its Namespace.
//!
//! Services and other kinds outside of that Namespace are shared by all member controllers of a cluster. Guarantee: a
//! controller neither changes nor deletes what one in another Namespace has made. Objects without an owner, of earlier
//! versions and of Antrea, belong to the first that reconciles them.

use kube::ResourceExt;
use mc_api::names;

use super::is_managed;
use crate::snapshot::MemberSnapshot;

/// The Namespace of another member controller, if that has made the object.
pub(super) fn other_owner<'a, K: ResourceExt>(snapshot: &MemberSnapshot, object: &'a K) -> Option<&'a str> {
    let owner = object.annotations().get(names::ANNOTATION_IMPORT_OWNER)?;
    Some(owner.as_str()).filter(|owner| *owner != snapshot.namespace)
}

/// Whether an object is labelled as written by a member controller, and not by one in another Namespace.
pub(super) fn is_own<K: ResourceExt>(snapshot: &MemberSnapshot, object: &K) -> bool {
    is_managed(object) && other_owner(snapshot, object).is_none()
}

/// Whether an object has the annotation of this controller.
pub(super) fn is_marked<K: ResourceExt>(snapshot: &MemberSnapshot, object: &K) -> bool {
    let owner = object.annotations().get(names::ANNOTATION_IMPORT_OWNER);
    owner == Some(&snapshot.namespace)
}

/// Annotates an object as made by this controller.
pub(super) fn mark<K: ResourceExt>(snapshot: &MemberSnapshot, object: &mut K) {
    let (key, owner) = (names::ANNOTATION_IMPORT_OWNER, &snapshot.namespace);
    object.annotations_mut().insert(key.to_owned(), owner.clone());
}

/// The reason not to import over an object of another member controller.
pub(super) fn conflict(owner: &str) -> String {
    format!("is an import of the member controller in Namespace {owner:?}")
}
