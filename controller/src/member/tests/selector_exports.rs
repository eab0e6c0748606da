//! The peers in a cluster's own policies, exported for clusters with `labelIdentityExport: Selected`.

use std::collections::BTreeSet;

use mc_api::{config::IdentityExport, policy_selectors::PolicySelectors};

use super::*;
use crate::snapshot::PodLabelCounts;

const EXPORT: &str = "east-policyselectors";

/// A member whose own policies are listed: none.
fn stretched() -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.config.stretched_network_policy = true;
    snapshot.pod_labels = Some(PodLabelCounts::default());
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    snapshot.network_policies = OptionalKind::Present(ObjectMap::default());
    snapshot
}

/// A member that exports identities of selected Pods, of which it has three kinds.
fn selected() -> MemberSnapshot {
    let mut snapshot = stretched();
    snapshot.config.identity_export = IdentityExport::Selected;
    leader(&mut snapshot).policy_selectors = Some(ObjectMap::default());
    let pods = ["app=web", "app=db", ""].map(|labels| (("shop".to_owned(), Arc::from(labels)), 1));
    snapshot.pod_labels = Some(Arc::new(pods.into()));
    snapshot
}

fn from(peers: &[Value]) -> Value {
    json!({ "ingress": [{ "action": "Allow", "from": peers }] })
}

fn peer(app: &str) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": app } } })
}

fn stretched_peer(app: &str) -> Value {
    let mut peer = peer(app);
    peer["scope"] = json!("ClusterSet");
    peer
}

fn of_cluster(snapshot: &mut MemberSnapshot, name: &str, spec: &Value, annotations: &Value) {
    let metadata = json!({ "name": name, "annotations": annotations });
    let policy = object(json!({ "metadata": metadata, "spec": spec }));
    insert(present(&mut snapshot.policies), policy);
}

fn of_namespace(snapshot: &mut MemberSnapshot, namespace: &str, spec: &Value) {
    let metadata = json!({ "name": "p", "namespace": namespace });
    let policy = object(json!({ "metadata": metadata, "spec": spec }));
    insert(present(&mut snapshot.network_policies), policy);
}

/// The peers of this cluster's export.
fn exported_peers(snapshot: &MemberSnapshot) -> Option<Vec<Value>> {
    let export = export(snapshot, EXPORT)?;
    let selectors = PolicySelectors::from_raw(export.spec.raw.as_ref()).unwrap();
    Some(selectors.peers().to_vec())
}

/// The export of another cluster.
fn offer(snapshot: &mut MemberSnapshot, name: &str, cluster: &str, raw: &Value) {
    let export = object(json!({
        "metadata": { "name": name, "namespace": LEADER_NS },
        "spec": { "clusterID": cluster, "kind": "PolicySelectors", "raw": raw },
    }));
    let offered = leader(snapshot).policy_selectors.as_mut().unwrap();
    insert(offered, export);
}

fn raw(peers: &[Value]) -> Value {
    PolicySelectors::new(peers.iter().cloned()).to_raw()
}

/// The labels of Pods with exported identities.
fn identities(snapshot: &MemberSnapshot) -> BTreeSet<String> {
    let exports = snapshot.leader.as_ref().unwrap().exports.values();
    let labels = exports.filter_map(|e| e.spec.label_identity.as_ref()?["normalizedLabel"].as_str());
    labels
        .filter_map(|label| Some(label.split_once("&pod:")?.1.to_owned()))
        .collect()
}

#[test]
fn peers_of_own_policies_are_exported_and_withdrawn() {
    let mut snapshot = stretched();
    settle(&mut snapshot);
    assert_eq!(exported_peers(&snapshot), None, "without a policy");
    of_cluster(&mut snapshot, "plain", &from(&[peer("web")]), &json!({}));
    of_cluster(
        &mut snapshot,
        "replicated",
        &from(&[stretched_peer("replicated")]),
        &json!({ "multicluster.antrea.io/imported-acnp": "true" }),
    );
    assert!(
        own_export_writes(&mut snapshot).is_empty(),
        "no peer of scope ClusterSet"
    );
    of_cluster(
        &mut snapshot,
        "web",
        &from(&[stretched_peer("web"), peer("db")]),
        &json!({}),
    );
    of_namespace(&mut snapshot, "shop", &from(&[stretched_peer("client")]));
    settle(&mut snapshot);
    let mut client = peer("client");
    client["namespaceSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": "shop" } });
    assert_eq!(exported_peers(&snapshot), Some(vec![client.clone(), peer("web")]));
    let stored = export(&snapshot, EXPORT).unwrap();
    assert_eq!(stored.metadata.finalizers, None);
    assert_eq!(stored.labels()["sourceClusterID"], "east");
    assert_eq!(stored.labels()["sourceKind"], "PolicySelectors");
    *present(&mut snapshot.policies) = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(exported_peers(&snapshot), Some(vec![client]));
    *present(&mut snapshot.network_policies) = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(exported_peers(&snapshot), None);
}

/// The writes to this cluster's export.
fn own_export_writes(snapshot: &mut MemberSnapshot) -> Vec<Write> {
    let writes = plan(snapshot).writes.into_iter();
    writes.filter(|write| write.target.name == EXPORT).collect()
}

#[test]
fn the_export_stays_while_a_list_is_incomplete_and_ends_with_the_feature() {
    let mut snapshot = stretched();
    of_cluster(&mut snapshot, "web", &from(&[stretched_peer("web")]), &json!({}));
    settle(&mut snapshot);
    let policies = std::mem::replace(&mut snapshot.policies, OptionalKind::Pending);
    assert!(own_export_writes(&mut snapshot).is_empty());
    snapshot.policies = policies;
    snapshot.network_policies = OptionalKind::Pending;
    assert!(own_export_writes(&mut snapshot).is_empty());
    snapshot.network_policies = OptionalKind::Absent;
    settle(&mut snapshot);
    assert_eq!(exported_peers(&snapshot), Some(vec![peer("web")]));
    snapshot.config.stretched_network_policy = false;
    settle(&mut snapshot);
    assert_eq!(exported_peers(&snapshot), None);
}

#[test]
fn identities_are_exported_for_own_policies_of_other_clusters() {
    let mut snapshot = selected();
    of_cluster(&mut snapshot, "own", &from(&[stretched_peer("web")]), &json!({}));
    offer(&mut snapshot, EXPORT, "east", &raw(&[peer("web")]));
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot), [].into(), "own Pods need no identity here");
    let mut in_shop = peer("db");
    in_shop["namespaceSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": "shop" } });
    offer(
        &mut snapshot,
        "west-policyselectors",
        "west",
        &raw(&[in_shop.clone()]),
    );
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot), ["app=db".to_owned()].into());
    in_shop["namespaceSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": "bank" } });
    offer(
        &mut snapshot,
        "west-policyselectors",
        "west",
        &raw(&[in_shop, peer("web")]),
    );
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot), ["app=web".to_owned()].into());
    leader(&mut snapshot).policy_selectors = Some(ObjectMap::default());
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot), [].into());
}

#[test]
fn an_excluded_name_of_a_namespace_matches_no_peer() {
    let mut snapshot = selected();
    let mut in_shop = peer("db");
    in_shop["namespaceSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": "shop" } });
    offer(&mut snapshot, "west-policyselectors", "west", &raw(&[in_shop]));
    assert!(snapshot.config.excluded_labels.add("kubernetes.io/metadata.name"));
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot), [].into());
}

#[test]
fn identities_stay_while_the_peers_are_unknown() {
    let mut snapshot = selected();
    offer(&mut snapshot, "west-policyselectors", "west", &raw(&[json!({})]));
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot).len(), 3);
    let known = leader(&mut snapshot).policy_selectors.take();
    snapshot.pod_labels = Some(PodLabelCounts::default());
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot).len(), 3);
    leader(&mut snapshot).policy_selectors = known;
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot).len(), 0);
}

#[test]
fn an_invalid_export_is_ignored_alone() {
    for (name, cluster, raw_peers, message) in [
        (
            "west-policyselectors",
            "south",
            raw(&[json!({})]),
            "its policy peers are ignored: spec.clusterID \"south\": the name of its export is \"south-policyselectors\"",
        ),
        (
            "west-policyselectors",
            "west",
            json!({ "data": "%" }),
            "its policy peers are ignored: spec.raw.data is missing or not base64 text",
        ),
    ] {
        let mut snapshot = selected();
        offer(&mut snapshot, name, cluster, &raw_peers);
        offer(
            &mut snapshot,
            "north-policyselectors",
            "north",
            &raw(&[peer("db")]),
        );
        assert_issue(&plan(&snapshot), message);
        settle(&mut snapshot);
        assert_eq!(identities(&snapshot), ["app=db".to_owned()].into());
    }
}
