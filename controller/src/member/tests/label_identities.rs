//! Exported and imported label identities.

use std::collections::BTreeSet;

use mc_api::{
    config::IdentityExport,
    label_identity::{LabelIdentity, digest, object_name},
};
use proptest::prelude::*;

use super::*;
use crate::snapshot::PodLabelCounts;

fn stretched() -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.config.stretched_network_policy = true;
    snapshot.pod_labels = Some(PodLabelCounts::default());
    snapshot
}

fn pods(snapshot: &mut MemberSnapshot, labels: &[(&str, &str)]) {
    let counted = labels
        .iter()
        .map(|(ns, l)| (((*ns).to_owned(), Arc::from(*l)), 1))
        .collect();
    snapshot.pod_labels = Some(Arc::new(counted));
}

fn label(pod: &str) -> String {
    format!("ns:kubernetes.io/metadata.name=shop&pod:{pod}")
}

fn name(label: &str) -> String {
    object_name(&digest(label)).to_owned()
}

fn exported(snapshot: &MemberSnapshot) -> BTreeSet<String> {
    let exports = snapshot.leader.as_ref().unwrap().exports.values();
    exports
        .filter(|e| e.spec.kind == "LabelIdentity")
        .map(|e| {
            e.spec.label_identity.as_ref().unwrap()["normalizedLabel"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

fn identity_import(name: &str, label: &str, id: i64) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": name, "namespace": LEADER_NS, "creationTimestamp": NOW },
        "spec": { "kind": "LabelIdentity", "labelIdentity": { "label": label, "id": id } },
    }))
}

fn identity_import_of(pod: &str, id: i64) -> ResourceImport {
    identity_import(&name(&label(pod)), &label(pod), id)
}

/// The import with these clusters.
fn with_clusters(mut import: ResourceImport, clusters: Value) -> ResourceImport {
    import.spec.label_identity.as_mut().unwrap()["clusters"] = clusters;
    import
}

fn clusters(snapshot: &mut MemberSnapshot, pod: &str) -> Option<Vec<String>> {
    let key = NamespacedName::new("", name(&label(pod)));
    local(snapshot)[&key].spec.clusters.clone()
}

fn local(snapshot: &mut MemberSnapshot) -> &mut ObjectMap<LabelIdentity> {
    match &mut snapshot.label_identities {
        OptionalKind::Present(objects) => objects,
        other => panic!("{other:?}"),
    }
}

fn numbers(snapshot: &mut MemberSnapshot) -> BTreeMap<String, u32> {
    let local = local(snapshot).values();
    local.map(|i| (i.spec.label.clone(), i.spec.id)).collect()
}

fn identity(name: &str, label: &str, id: u32, own: bool) -> LabelIdentity {
    let mut identity: LabelIdentity = object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "LabelIdentity",
        "metadata": { "name": name }, "spec": { "label": label, "id": id },
    }));
    if own {
        identity.labels_mut().insert(
            names::LABEL_APP_MANAGED_BY.to_owned(),
            names::MANAGED_BY.to_owned(),
        );
    }
    identity
}

#[test]
fn labels_of_pods_are_exported_and_withdrawn() {
    let mut snapshot = stretched();
    pods(
        &mut snapshot,
        &[("shop", "app=web"), ("shop", ""), ("elsewhere", "app=web")],
    );
    settle(&mut snapshot);
    assert_eq!(
        exported(&snapshot),
        [label("app=web"), label("")].into(),
        "an unknown Namespace is not exported"
    );
    let export = export(&snapshot, &format!("east-{}", name(&label("app=web")))).unwrap();
    assert_eq!(export.labels()["sourceClusterID"], "east");
    assert_eq!(export.labels()["sourceKind"], "LabelIdentity");
    assert_eq!(export.labels().len(), 2);
    assert_eq!(export.metadata.finalizers, None, "as in Antrea");
    assert_eq!(
        serde_json::to_value(&export.spec).unwrap(),
        json!({
            "clusterID": "east", "kind": "LabelIdentity",
            "labelIdentity": { "normalizedLabel": label("app=web") },
        })
    );
    // Labels of the Namespace are part of the identity.
    insert(
        &mut snapshot.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "shop", "labels": {
            "kubernetes.io/metadata.name": "shop", "tier": "front",
        } } })),
    );
    pods(&mut snapshot, &[("shop", "app=web")]);
    settle(&mut snapshot);
    let changed = "ns:kubernetes.io/metadata.name=shop,tier=front&pod:app=web".to_owned();
    assert_eq!(exported(&snapshot), [changed].into());
}

#[test]
fn nothing_is_exported_while_disabled_or_unsynced() {
    let mut snapshot = stretched();
    pods(&mut snapshot, &[("shop", "app=web")]);
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=db", 2),
    );
    insert(local(&mut snapshot), identity("theirs", "x", 9, false));
    settle(&mut snapshot);
    assert_eq!((exported(&snapshot).len(), local(&mut snapshot).len()), (1, 2));
    // A restarted controller without a list of Pods withdraws nothing.
    snapshot.pod_labels = None;
    assert!(reconcile(&mut snapshot).is_empty());
    snapshot.config.stretched_network_policy = false;
    settle(&mut snapshot);
    assert!(exported(&snapshot).is_empty());
    assert_eq!(
        local(&mut snapshot)
            .keys()
            .map(|k| k.name.as_str())
            .collect::<Vec<_>>(),
        ["theirs"]
    );
}

#[test]
fn only_labels_matched_by_a_cluster_set_selector_are_exported() {
    let mut snapshot = stretched();
    snapshot.config.identity_export = IdentityExport::Selected;
    leader(&mut snapshot).policy_selectors = Some(ObjectMap::default());
    pods(&mut snapshot, &[("shop", "app=web"), ("shop", "app=db")]);
    settle(&mut snapshot);
    assert!(exported(&snapshot).is_empty());
    let policy: ResourceImport = object(json!({
        "metadata": { "name": "p-antreaclusternetworkpolicy", "namespace": LEADER_NS },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": "p", "clusternetworkpolicy": {
            "ingress": [{ "action": "Allow", "from": [
                { "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": "web" } } },
            ] }],
        } },
    }));
    insert(&mut leader(&mut snapshot).imports, policy);
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), [label("app=web")].into());
}

#[test]
fn labels_that_are_too_long_are_not_exported() {
    let mut snapshot = stretched();
    let long = format!("app={}", "x".repeat(20_000));
    pods(&mut snapshot, &[("shop", "app=web"), ("shop", &long)]);
    assert_issue(&plan(&snapshot), "Pods of Namespace shop with labels \"app=xxx");
    assert_issue(&plan(&snapshot), "is longer than 16384");
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), [label("app=web")].into());
}

#[test]
fn thousands_of_labels_are_written_in_batches() {
    let mut snapshot = stretched();
    settle(&mut snapshot);
    let labels: Vec<_> = (0..700).map(|i| format!("app=web-{i}")).collect();
    pods(
        &mut snapshot,
        &labels.iter().map(|l| ("shop", l.as_str())).collect::<Vec<_>>(),
    );
    for (label, id) in labels.iter().zip(1..) {
        insert(&mut leader(&mut snapshot).imports, identity_import_of(label, id));
    }
    assert_eq!(
        reconcile(&mut snapshot).len(),
        2 * crate::plan::BATCH,
        "in both clusters"
    );
    settle(&mut snapshot);
    assert_eq!(
        (exported(&snapshot).len(), numbers(&mut snapshot).len()),
        (700, 700)
    );
    snapshot.config.stretched_network_policy = false;
    assert_eq!(reconcile(&mut snapshot).len(), 2 * crate::plan::BATCH);
    settle(&mut snapshot);
    assert_eq!((exported(&snapshot).len(), numbers(&mut snapshot).len()), (0, 0));
}

#[test]
fn a_modified_export_is_corrected() {
    let mut snapshot = stretched();
    pods(&mut snapshot, &[("shop", "app=web")]);
    settle(&mut snapshot);
    let name = format!("east-{}", name(&label("app=web")));
    let mut forged = export(&snapshot, &name).unwrap().as_ref().clone();
    forged.spec.label_identity = Some(json!({ "normalizedLabel": "ns:&pod:" }));
    insert(&mut leader(&mut snapshot).exports, forged);
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), [label("app=web")].into());
}

#[test]
fn ids_are_imported_and_withdrawn() {
    let mut snapshot = stretched();
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 1),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=db", 0x00FF_FFFE),
    );
    settle(&mut snapshot);
    assert_eq!(
        numbers(&mut snapshot),
        [(label("app=web"), 1), (label("app=db"), 0x00FF_FFFE)].into()
    );
    let key = NamespacedName::new(LEADER_NS, name(&label("app=db")));
    Arc::make_mut(&mut leader(&mut snapshot).imports).remove(&key);
    settle(&mut snapshot);
    assert_eq!(numbers(&mut snapshot), [(label("app=web"), 1)].into());
    // An unsynced cache withdraws nothing.
    leader(&mut snapshot).synced = false;
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    snapshot.connection = LeaderConnectionState::Down {
        error: "gone".to_owned(),
    };
    snapshot.leader = None;
    assert!(
        plan(&snapshot)
            .writes
            .iter()
            .all(|a| a.target.kind != crate::plan::Kind::LabelIdentity)
    );
    // Leaving the ClusterSet does.
    leave(&mut snapshot);
    settle_without_leader(&mut snapshot);
    assert!(numbers(&mut snapshot).is_empty());
}

fn settle_without_leader(snapshot: &mut MemberSnapshot) {
    for action in plan(snapshot).writes {
        apply_write(local(snapshot), &action);
    }
}

#[test]
fn a_reassigned_id_is_deleted_before_it_is_created() {
    let mut snapshot = stretched();
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 1),
    );
    settle(&mut snapshot);
    leader(&mut snapshot).imports = ObjectMap::default();
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=db", 1),
    );
    let first = reconcile(&mut snapshot);
    assert!(
        matches!(
            &first[..],
            [Write {
                op: crate::plan::WriteOp::Delete { .. },
                ..
            }]
        ),
        "{first:?}"
    );
    settle(&mut snapshot);
    assert_eq!(numbers(&mut snapshot), [(label("app=db"), 1)].into());
    // A swap of two IDs does not deadlock.
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 2),
    );
    settle(&mut snapshot);
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=db", 2),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 1),
    );
    settle(&mut snapshot);
    assert_eq!(
        numbers(&mut snapshot),
        [(label("app=db"), 2), (label("app=web"), 1)].into()
    );
}

#[test]
fn an_invalid_import_is_rejected_alone() {
    for (bad, message) in [
        (
            identity_import(&name(&label("app=bad")), &label("app=bad"), 0),
            "0 is not between 1 and",
        ),
        (
            identity_import(&name(&label("app=bad")), &label("app=bad"), 0x00FF_FFFF),
            "16777215 is not between",
        ),
        (
            identity_import(&name(&label("app=bad")), "app=bad", 5),
            "is not a normalised label",
        ),
        (
            identity_import("0123456789abcdef", &label("app=bad"), 5),
            "the name of this label is",
        ),
    ] {
        let mut snapshot = stretched();
        // The import was valid before, and the leader has not withdrawn it.
        let bad_name = bad.name_any();
        insert(local(&mut snapshot), identity(&bad_name, "before", 7, true));
        insert(&mut leader(&mut snapshot).imports, bad);
        insert(
            &mut leader(&mut snapshot).imports,
            identity_import_of("app=web", 1),
        );
        assert_issue(&plan(&snapshot), message);
        settle(&mut snapshot);
        assert_eq!(
            numbers(&mut snapshot),
            [("before".to_owned(), 7), (label("app=web"), 1)].into(),
            "{message}"
        );
        // A valid import of its ID replaces it.
        insert(
            &mut leader(&mut snapshot).imports,
            identity_import_of("app=new", 7),
        );
        settle(&mut snapshot);
        assert_eq!(
            numbers(&mut snapshot),
            [(label("app=new"), 7), (label("app=web"), 1)].into()
        );
    }
    let mut snapshot = stretched();
    let mut other = identity_import_of("app=web", 1);
    other.spec.kind = "ServiceImport".to_owned();
    insert(&mut leader(&mut snapshot).imports, other);
    settle(&mut snapshot);
    assert!(numbers(&mut snapshot).is_empty());
}

#[test]
fn clusters_are_copied_and_updated_with_one_write() {
    let mut snapshot = stretched();
    let web = || identity_import_of("app=web", 1);
    settle(&mut snapshot);
    for (offered, copied) in [
        (Some(json!(["east", "west"])), Some(vec!["east", "west"])),
        // The order of the list has no meaning.
        (Some(json!(["west", "north"])), Some(vec!["north", "west"])),
        (Some(json!([])), Some(vec![])),
        // An Antrea leader took over.
        (None, None),
        (Some(json!(["east"])), Some(vec!["east"])),
    ] {
        let import = offered
            .clone()
            .map_or_else(web, |clusters| with_clusters(web(), clusters));
        insert(&mut leader(&mut snapshot).imports, import);
        let writes = reconcile(&mut snapshot);
        assert!(
            matches!(&writes[..], [write] if write.target.kind == crate::plan::Kind::LabelIdentity),
            "{offered:?}: {writes:?}"
        );
        let copied = copied.map(|all| all.into_iter().map(str::to_owned).collect());
        assert_eq!(clusters(&mut snapshot, "app=web"), copied);
        assert_eq!(reconcile(&mut snapshot), vec![], "{offered:?}");
    }
}

#[test]
fn clusters_of_an_antrea_leader_stay_unknown() {
    let mut snapshot = stretched();
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 1),
    );
    settle(&mut snapshot);
    assert_eq!(clusters(&mut snapshot, "app=web"), None);
    let key = NamespacedName::new("", name(&label("app=web")));
    let written = serde_json::to_value(&local(&mut snapshot)[&key].spec).unwrap();
    assert_eq!(written, json!({ "label": label("app=web"), "id": 1 }));
}

#[test]
fn an_import_with_malformed_clusters_changes_nothing() {
    let many: Vec<_> = (0..=1000).map(|i| format!("c{i}")).collect();
    for (bad, message) in [
        (json!(null), "clusters: null is not a list of cluster IDs"),
        (json!({ "east": true }), "is not a list of cluster IDs"),
        (json!(["east", ""]), "clusters[1]: \"\" is not a cluster ID"),
        (json!([1]), "clusters[0]: 1 is not a cluster ID"),
        (json!(many), "clusters: 1001 entries are more than 1000"),
    ] {
        let mut snapshot = stretched();
        let good = with_clusters(identity_import_of("app=web", 1), json!(["east"]));
        insert(&mut leader(&mut snapshot).imports, good.clone());
        settle(&mut snapshot);
        insert(&mut leader(&mut snapshot).imports, with_clusters(good, bad));
        let new = with_clusters(identity_import_of("app=db", 2), json!(["west"]));
        insert(&mut leader(&mut snapshot).imports, new);
        assert_issue(&plan(&snapshot), message);
        settle(&mut snapshot);
        let east = Some(vec!["east".to_owned()]);
        assert_eq!(clusters(&mut snapshot, "app=web"), east, "{message}");
        assert_eq!(clusters(&mut snapshot, "app=db"), Some(vec!["west".to_owned()]));
    }
}

#[test]
fn changes_of_clusters_are_batched_after_new_identities() {
    let mut snapshot = stretched();
    settle(&mut snapshot);
    let many = i64::try_from(crate::plan::BATCH).unwrap() + 1;
    let import = |i: i64| identity_import_of(&format!("app=web-{i}"), i);
    for i in 1..=many {
        insert(&mut leader(&mut snapshot).imports, import(i));
    }
    settle(&mut snapshot);
    for i in 1..=many {
        let import = with_clusters(import(i), json!(["east"]));
        insert(&mut leader(&mut snapshot).imports, import);
    }
    insert(&mut leader(&mut snapshot).imports, import(many + 1));
    let writes = reconcile(&mut snapshot);
    assert_eq!(writes.len(), crate::plan::BATCH);
    let first = name(&label(&format!("app=web-{}", many + 1)));
    assert_eq!(writes[0].target.name, first);
    settle(&mut snapshot);
    let east = Some(vec!["east".to_owned()]);
    assert!((1..=many).all(|i| clusters(&mut snapshot, &format!("app=web-{i}")) == east));
}

#[test]
fn of_two_imports_with_one_id_the_present_one_is_kept() {
    for here in ["app=a", "app=b"] {
        let mut snapshot = stretched();
        insert(&mut leader(&mut snapshot).imports, identity_import_of(here, 3));
        settle(&mut snapshot);
        for pod in ["app=a", "app=b"] {
            insert(&mut leader(&mut snapshot).imports, identity_import_of(pod, 3));
        }
        insert(&mut leader(&mut snapshot).imports, identity_import_of("app=c", 4));
        assert_issue(&plan(&snapshot), "not imported: its ID 3 is that of");
        settle(&mut snapshot);
        assert_eq!(
            numbers(&mut snapshot),
            [(label(here), 3), (label("app=c"), 4)].into()
        );
    }
}

#[test]
fn foreign_identities_are_not_deleted() {
    let mut snapshot = stretched();
    insert(local(&mut snapshot), identity("theirs", "x", 9, false));
    // The object that an Antrea controller created from the same import is adopted.
    let web = name(&label("app=web"));
    insert(local(&mut snapshot), identity(&web, &label("app=web"), 1, false));
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 1),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=db", 9),
    );
    assert_issue(
        &plan(&snapshot),
        "LabelIdentity theirs: has another owner and the ID 9",
    );
    settle(&mut snapshot);
    assert_eq!(
        numbers(&mut snapshot),
        [("x".to_owned(), 9), (label("app=web"), 1)].into()
    );
    assert!(
        local(&mut snapshot)[&NamespacedName::new("", web)]
            .labels()
            .contains_key(names::LABEL_APP_MANAGED_BY)
    );
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(numbers(&mut snapshot), [("x".to_owned(), 9)].into());
}

#[test]
fn a_missing_crd_is_reported() {
    let mut snapshot = stretched();
    snapshot.label_identities = OptionalKind::Absent;
    insert(
        &mut leader(&mut snapshot).imports,
        identity_import_of("app=web", 1),
    );
    assert_issue(
        &plan(&snapshot),
        "labelidentities.multicluster.crd.antrea.io: this CRD is missing",
    );
    let kinds: Vec<_> = reconcile(&mut snapshot).iter().map(|a| a.target.kind).collect();
    assert!(!kinds.contains(&crate::plan::Kind::LabelIdentity), "{kinds:?}");
}

proptest! {
    /// For any Pods and imports: plans converge, every label is exported, every valid import has a LabelIdentity, no ID
    /// is used twice, and once disabled no exported or imported object is left.
    #[test]
    fn identities_converge_and_are_withdrawn_completely(
        rounds in proptest::collection::vec(
            (proptest::collection::btree_set(0usize..6, 0..5), proptest::collection::btree_map(0usize..6, -1i64..6, 0..6)),
            1..4,
        ),
    ) {
        let mut snapshot = stretched();
        for (pod_labels, imports) in rounds {
            let labels: Vec<_> = pod_labels.iter().map(|i| format!("app=web-{i}")).collect();
            pods(&mut snapshot, &labels.iter().map(|l| ("shop", l.as_str())).collect::<Vec<_>>());
            leader(&mut snapshot).imports = ObjectMap::default();
            for (pod, id) in &imports {
                insert(&mut leader(&mut snapshot).imports, identity_import_of(&format!("app=web-{pod}"), *id));
            }
            settle(&mut snapshot);
            prop_assert_eq!(exported(&snapshot), labels.iter().map(|l| label(l)).collect::<BTreeSet<_>>());
            let here = numbers(&mut snapshot);
            let distinct: BTreeSet<_> = here.values().copied().collect();
            prop_assert_eq!(distinct.len(), here.len(), "{:?}", here);
            let good: BTreeSet<_> = imports.values().filter(|id| **id >= 1).collect();
            for id in good {
                let id = u32::try_from(*id).unwrap();
                let holders: Vec<_> = here.iter().filter(|(_, i)| **i == id).collect();
                prop_assert_eq!(holders.len(), 1, "{}", id);
            }
        }
        snapshot.config.stretched_network_policy = false;
        settle(&mut snapshot);
        prop_assert!(exported(&snapshot).is_empty() && numbers(&mut snapshot).is_empty());
    }
}
