//! Deregistration from a former leader: this cluster's announce, then its exports.
//!
//! Pure. The leader deletes a former member's exports itself when the announce disappears; exports that it did not know
//! at that time remain, so the former member deletes them once the announce is gone.

use kube::ResourceExt;
use mc_api::{
    cluster_set::ClusterSet, member_cluster_announce::MemberClusterAnnounce, names,
    resource_export::ResourceExport,
};

use super::{
    cluster_copy::AnnounceOwner,
    membership_record::{LeaderEndpoint, MembershipRecord},
};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::Membership,
};

/// The objects of a former member in the leader cluster.
#[derive(Clone, Debug, Default)]
pub struct FormerMemberObjects {
    /// The announce of that cluster ID, of whichever set.
    pub announce: Option<MemberClusterAnnounce>,
    /// The exports of the namespace; read only once the announce is gone.
    pub exports: Vec<ResourceExport>,
}

/// The recorded memberships that have ended, with the endpoints of their leaders.
pub fn ended<'a>(
    record: &'a MembershipRecord,
    set: Option<&'a ClusterSet>,
) -> impl Iterator<Item = (&'a Membership, &'a LeaderEndpoint)> {
    record
        .endpoints
        .iter()
        .filter(move |(membership, _)| membership.has_ended(set))
}

/// The deletions that deregister `membership`; empty once the leader has nothing of it.
pub fn plan(membership: &Membership, owner: AnnounceOwner, objects: &FormerMemberObjects) -> Plan {
    let mut plan = Plan::default();
    if let Some(announce) = &objects.announce {
        // An announce of another set belongs to another membership of this cluster, and a foreign one to a cluster of
        // which this one is a copy.
        if owner == AnnounceOwner::Own && announce.cluster_set_id == membership.cluster_set {
            plan.delete(ApiServer::Leader, announce);
        }
        return plan;
    }
    for export in &objects.exports {
        // The leader keeps copies of the exports of a member that has moved into a Namespace of its own.
        let is_copy = export.labels().contains_key(names::LABEL_COPIED_FROM);
        if export.spec.cluster_id == membership.cluster_id && !is_copy {
            plan.delete(ApiServer::Leader, export);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::fake::{NOW, object};

    fn membership() -> Membership {
        Membership {
            cluster_set: "set".to_owned(),
            cluster_id: "west".to_owned(),
            namespace: "mc".to_owned(),
        }
    }

    fn announce(set: &str) -> MemberClusterAnnounce {
        object(json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "MemberClusterAnnounce",
            "metadata": { "name": "member-announce-from-west", "namespace": "mc", "uid": "1" },
            "clusterID": "west", "clusterSetID": set, "leaderClusterID": "north",
        }))
    }

    fn export(cluster: &str) -> ResourceExport {
        object(json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
            "metadata": { "name": format!("{cluster}-shop-web-service"), "namespace": "mc", "uid": "2" },
            "spec": { "clusterID": cluster, "name": "web", "namespace": "shop", "kind": "Service" },
        }))
    }

    fn deleted(objects: &FormerMemberObjects) -> Vec<String> {
        let plan = plan(&membership(), AnnounceOwner::Own, objects);
        plan.writes.iter().map(|a| a.target.name.clone()).collect()
    }

    #[test]
    fn the_announce_is_deleted_before_the_exports() {
        let mut objects = FormerMemberObjects {
            announce: Some(announce("set")),
            exports: vec![export("west"), export("east")],
        };
        assert_eq!(deleted(&objects), ["member-announce-from-west"]);
        let meta = objects.announce.as_mut().map(|a| &mut a.metadata);
        meta.unwrap().deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
        assert!(deleted(&objects).is_empty(), "its deletion is in progress");
        objects.announce = None;
        assert_eq!(deleted(&objects), ["west-shop-web-service"]);
        objects.exports.clear();
        assert!(deleted(&objects).is_empty());
    }

    #[test]
    fn copies_by_the_leader_are_kept() {
        let mut copy = export("west");
        copy.labels_mut()
            .insert(names::LABEL_COPIED_FROM.to_owned(), "member-west".to_owned());
        let objects = FormerMemberObjects {
            announce: None,
            exports: vec![copy],
        };
        assert!(deleted(&objects).is_empty());
    }

    #[test]
    fn the_announce_of_another_set_is_kept() {
        let objects = FormerMemberObjects {
            announce: Some(announce("other")),
            exports: vec![export("west")],
        };
        assert!(deleted(&objects).is_empty());
    }

    #[test]
    fn an_announce_without_a_known_owner_is_kept() {
        let objects = FormerMemberObjects {
            announce: Some(announce("set")),
            exports: vec![],
        };
        for (owner, deletions) in [
            (AnnounceOwner::Own, 1),
            (AnnounceOwner::Other, 0),
            (AnnounceOwner::Unknown, 0),
        ] {
            let plan = plan(&membership(), owner, &objects);
            assert_eq!(plan.writes.len(), deletions, "{owner:?}");
        }
    }
}
