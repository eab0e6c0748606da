//! The cluster IDs of `ServiceAccount`s in the leader cluster.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mc_api::{member_cluster_announce::MemberClusterAnnounce, names};

/// The cluster IDs of `ServiceAccount`s.
#[derive(Debug, Default)]
pub struct AccountBindings {
    /// The IDs by names of accounts. An account with the empty ID may write nothing.
    pub ids: BTreeMap<String, String>,
    /// The clusters that are accepted once their binding is recorded.
    pub unrecorded: BTreeSet<String>,
}

// === impl AccountBindings ===

impl AccountBindings {
    /// The account that an announce states, if it is bound to its cluster.
    #[must_use]
    pub fn bound_account<'a>(&self, announce: &'a MemberClusterAnnounce) -> Option<&'a str> {
        let stated = announce.annotations().get(names::ANNOTATION_SERVICE_ACCOUNT)?;
        let id = self.ids.get(stated)?;
        (*id == announce.cluster_id).then_some(stated.as_str())
    }
}
