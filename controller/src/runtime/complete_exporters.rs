//! The clusters of which the leader has all exports, and the times since which this connection knows that.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{names, resource_export::ResourceExport};
use mc_kube::ObjectMap;

use crate::snapshot::CompleteExports;

/// Clusters with the label [`names::LABEL_EXPORTS_COMPLETE`]; empty on a new connection.
#[derive(Clone, Debug, Default)]
pub(super) struct CompleteExporters {
    leader: LeaderState,
    clusters: Arc<BTreeMap<String, CompleteExports>>,
}

/// A change of it means that the leader may have lost objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderState {
    /// The UID of the own announce.
    pub(super) announce: Option<String>,
    /// The number of relists of imports.
    pub(super) relists: u32,
}

// === impl CompleteExporters ===

impl CompleteExporters {
    /// Adds the clusters of a snapshot of their exports of kind `ImportFailures`, and removes those that have lost the
    /// label. The time begins again with another label or state of the leader, and where it is in the future: the clock
    /// was set back.
    pub(super) fn update(
        &mut self,
        leader: LeaderState,
        exports: &ObjectMap<ResourceExport>,
        now: Timestamp,
    ) -> Arc<BTreeMap<String, CompleteExports>> {
        let is_same = self.leader == leader;
        self.leader = leader;
        let active = exports.values().filter(|export| {
            export.metadata.deletion_timestamp.is_none()
                && export.name_any() == names::import_failures_export(&export.spec.cluster_id)
        });
        let labelled = active.filter_map(|export| {
            let announce = export.labels().get(names::LABEL_EXPORTS_COMPLETE)?;
            Some((&export.spec.cluster_id, announce))
        });
        let complete: BTreeMap<_, _> = labelled
            .map(|(cluster, announce)| {
                let old = self.clusters.get(cluster).filter(|_| is_same);
                let old = old.filter(|old| old.since <= now && old.announce == *announce);
                let new = || CompleteExports {
                    announce: announce.clone(),
                    since: now,
                };
                (cluster.clone(), old.cloned().unwrap_or_else(new))
            })
            .collect();
        if complete != *self.clusters {
            self.clusters = Arc::new(complete);
        }
        self.clusters.clone()
    }
}

#[cfg(test)]
mod tests {
    use mc_kube::NamespacedName;
    use serde_json::json;

    use super::*;
    use crate::snapshot::fake::{delete, insert, object};

    fn export(name: &str, labels: &serde_json::Value) -> ResourceExport {
        object(json!({
            "metadata": { "name": name, "namespace": "mc", "labels": labels },
            "spec": { "kind": "ImportFailures", "clusterID": "west" },
        }))
    }

    #[test]
    fn a_cluster_is_complete_while_its_own_export_has_the_label() {
        let at = |seconds: i64| Timestamp::from_second(1_700_000_000 + seconds).unwrap();
        let label = |uid| json!({ names::LABEL_EXPORTS_COMPLETE: uid });
        let state = |relists| LeaderState {
            announce: None,
            relists,
        };
        let mut exports = ObjectMap::default();
        let mut complete = CompleteExporters::default();
        insert(&mut exports, export("west-importfailures", &json!({})));
        insert(&mut exports, export("south-importfailures", &label("uid")));
        assert!(complete.update(state(0), &exports, at(0)).is_empty());
        insert(&mut exports, export("west-importfailures", &label("uid")));
        let complete_with = |uid: &str, seconds| {
            let announce = uid.to_owned();
            let complete = CompleteExports {
                announce,
                since: at(seconds),
            };
            BTreeMap::from([("west".to_owned(), complete)])
        };
        let since = |seconds| complete_with("uid", seconds);
        assert_eq!(*complete.update(state(0), &exports, at(1)), since(1));
        assert_eq!(*complete.update(state(0), &exports, at(9)), since(1));
        assert_eq!(
            *complete.update(state(0), &exports, at(0)),
            since(0),
            "the clock was set back"
        );
        insert(&mut exports, export("west-importfailures", &label("other")));
        assert_eq!(
            *complete.update(state(0), &exports, at(3)),
            complete_with("other", 3)
        );
        assert_eq!(
            *complete.update(state(1), &exports, at(5)),
            complete_with("other", 5),
            "a relist"
        );
        delete(&mut exports, &NamespacedName::new("mc", "west-importfailures"));
        assert!(complete.update(state(0), &exports, at(9)).is_empty());
    }
}
