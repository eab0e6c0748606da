//! Label identities of the Pods of this node.
//!
//! *Guarantees*: a Pod whose identity is not certain is unknown to receivers, never a host or another Pod: without a
//! `LabelIdentity` for its labels, while the objects cannot be read, or with an address or a number used twice.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use mc_api::label_identity::{
    LabelKeyFilter, MAX_ID, MIN_ID, digest, normalize, object_name, without_excluded,
};
use mc_gateway_common::abi::IDENTITY_UNKNOWN;

use crate::cidr::parse_address;
use crate::identity_objects::IdentityInfo;
use crate::objects::{FieldError, Objects, PodInfo};

use super::local::field_error;

/// The numbers of labels, kept while the objects are the same: a set of clusters may have 10,000.
#[derive(Clone, Debug, Default)]
pub(super) struct IdentityCache {
    identities: Vec<Arc<IdentityInfo>>,
    /// Numbers by the name of their label.
    numbers: BTreeMap<String, u32>,
    rejected: Vec<FieldError>,
}

impl IdentityCache {
    /// The numbers of these identities.
    fn update(&mut self, identities: &[Arc<IdentityInfo>]) -> &Self {
        if self.identities != identities {
            let mut rejected = Vec::new();
            *self = Self {
                identities: identities.to_vec(),
                numbers: valid_identities(identities, &mut rejected),
                rejected,
            };
        }
        self
    }
}

/// Identities of this node's Pods by address; none in a cluster without label identities.
pub(super) fn local_identities(
    objects: &Objects,
    node: &str,
    excluded: &LabelKeyFilter,
    cache: &mut IdentityCache,
    rejected: &mut Vec<FieldError>,
) -> Option<BTreeMap<IpAddr, u32>> {
    let known = objects.identities.as_ref();
    if known.is_some_and(|known| known.identities.is_empty()) {
        return None;
    }
    let cache = cache.update(known.map_or(&[], |known| &known.identities));
    rejected.extend(cache.rejected.iter().cloned());
    let numbers = &cache.numbers;
    let namespaces = known.map_or(&[][..], |known| &known.namespaces);
    let number = |pod: &PodInfo| {
        let (name, _) = pod.name.split_once('/')?;
        let at = namespaces.binary_search_by(|namespace| namespace.name.as_str().cmp(name));
        let namespace = namespaces.get(at.ok()?)?;
        let labels: Arc<str> = without_excluded(&pod.labels, excluded).into();
        let label = normalize(name, &namespace.labels, &labels, excluded);
        numbers.get(object_name(&digest(&label))).copied()
    };
    let mut found: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for pod in objects.pods.iter().filter(|pod| pod.node == node) {
        let mut identity = None;
        // `read_pods` reports invalid addresses.
        for addr in pod.ips.iter().filter_map(|text| parse_address(text).ok()) {
            let identity = *identity.get_or_insert_with(|| number(pod).unwrap_or(IDENTITY_UNKNOWN));
            found
                .entry(addr)
                .and_modify(|known| {
                    if *known != identity {
                        *known = IDENTITY_UNKNOWN;
                    }
                })
                .or_insert(identity);
        }
    }
    Some(found)
}

/// The numbers of labels by their name. An invalid identity is rejected, and so are all with the same number: a packet
/// with it would be from Pods of either label.
fn valid_identities(all: &[Arc<IdentityInfo>], rejected: &mut Vec<FieldError>) -> BTreeMap<String, u32> {
    let mut by_number: BTreeMap<u32, &IdentityInfo> = BTreeMap::new();
    let mut names = BTreeMap::new();
    for info in all {
        let object = format!("LabelIdentity {}", info.name);
        let number = info.id.to_string();
        if !(MIN_ID..=MAX_ID).contains(&info.id) {
            let reason = format!("is not between {MIN_ID} and {MAX_ID}");
            rejected.push(field_error(&object, "spec.id", &number, &reason));
        } else if info.label_name != info.name {
            let reason = format!("is not the name of spec.label, {}", info.label_name);
            rejected.push(field_error(&object, "metadata.name", &info.name, &reason));
        } else if let Some(other) = by_number.insert(info.id, info) {
            let reason = format!(
                "is the number of LabelIdentity {}, too: Pods of both are unknown",
                other.name
            );
            rejected.push(field_error(&object, "spec.id", &number, &reason));
            names.insert(other.label_name.clone(), IDENTITY_UNKNOWN);
            names.insert(info.label_name.clone(), IDENTITY_UNKNOWN);
        } else {
            names.insert(info.label_name.clone(), info.id);
        }
    }
    names
}
