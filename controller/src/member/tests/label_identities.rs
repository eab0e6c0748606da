//! Label identities of this cluster and of the set.

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

fn told(name: &str, label: &str, id: i64) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": name, "namespace": LEADER_NS, "creationTimestamp": NOW },
        "spec": { "kind": "LabelIdentity", "labelIdentity": { "label": label, "id": id } },
    }))
}

fn told_of(pod: &str, id: i64) -> ResourceImport {
    told(&name(&label(pod)), &label(pod), id)
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

fn identity(name: &str, label: &str, id: u32, ours: bool) -> LabelIdentity {
    let mut identity: LabelIdentity = object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "LabelIdentity",
        "metadata": { "name": name }, "spec": { "label": label, "id": id },
    }));
    if ours {
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
        "a Namespace nobody has seen waits"
    );
    let export = export(&snapshot, &format!("east-{}", name(&label("app=web")))).unwrap();
    assert_eq!(export.labels()["sourceClusterID"], "east");
    assert_eq!(export.labels()["sourceKind"], "LabelIdentity");
    assert_eq!(export.labels().len(), 2);
    assert_eq!(export.metadata.finalizers, None, "as Antrea's");
    assert_eq!(
        serde_json::to_value(&export.spec).unwrap(),
        json!({
            "clusterID": "east", "kind": "LabelIdentity",
            "labelIdentity": { "normalizedLabel": label("app=web") },
        })
    );
    // Labels of the Namespace belong to it.
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
fn nothing_is_exported_while_it_is_off_or_unknown() {
    let mut snapshot = stretched();
    pods(&mut snapshot, &[("shop", "app=web")]);
    insert(&mut leader(&mut snapshot).imports, told_of("app=db", 2));
    insert(local(&mut snapshot), identity("theirs", "x", 9, false));
    settle(&mut snapshot);
    assert_eq!((exported(&snapshot).len(), local(&mut snapshot).len()), (1, 2));
    // A controller that has just started knows no Pod; that is no reason to take anything back.
    snapshot.pod_labels = None;
    assert!(step(&mut snapshot).is_empty());
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
fn only_what_a_selector_of_the_set_means_is_exported() {
    let mut snapshot = stretched();
    snapshot.config.identity_export = IdentityExport::Selected;
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
    says(&plan(&snapshot), "Pods of Namespace shop with labels \"app=xxx");
    says(&plan(&snapshot), "is longer than 16384");
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), [label("app=web")].into());
}

#[test]
fn thousands_are_written_in_batches() {
    let mut snapshot = stretched();
    settle(&mut snapshot);
    let labels: Vec<_> = (0..700).map(|i| format!("app=web-{i}")).collect();
    pods(
        &mut snapshot,
        &labels.iter().map(|l| ("shop", l.as_str())).collect::<Vec<_>>(),
    );
    for (label, id) in labels.iter().zip(1..) {
        insert(&mut leader(&mut snapshot).imports, told_of(label, id));
    }
    assert_eq!(
        step(&mut snapshot).len(),
        2 * crate::plan::BATCH,
        "here and there"
    );
    settle(&mut snapshot);
    assert_eq!(
        (exported(&snapshot).len(), numbers(&mut snapshot).len()),
        (700, 700)
    );
    snapshot.config.stretched_network_policy = false;
    assert_eq!(step(&mut snapshot).len(), 2 * crate::plan::BATCH);
    settle(&mut snapshot);
    assert_eq!((exported(&snapshot).len(), numbers(&mut snapshot).len()), (0, 0));
}

#[test]
fn an_export_somebody_changed_is_put_right() {
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
fn numbers_are_imported_and_withdrawn() {
    let mut snapshot = stretched();
    insert(&mut leader(&mut snapshot).imports, told_of("app=web", 1));
    insert(&mut leader(&mut snapshot).imports, told_of("app=db", 0x00FF_FFFE));
    settle(&mut snapshot);
    assert_eq!(
        numbers(&mut snapshot),
        [(label("app=web"), 1), (label("app=db"), 0x00FF_FFFE)].into()
    );
    let key = NamespacedName::new(LEADER_NS, name(&label("app=db")));
    Arc::make_mut(&mut leader(&mut snapshot).imports).remove(&key);
    settle(&mut snapshot);
    assert_eq!(numbers(&mut snapshot), [(label("app=web"), 1)].into());
    // Silence is no word.
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
    // Leaving is.
    snapshot.cluster_sets = ObjectMap::default();
    settle_without_leader(&mut snapshot);
    assert!(numbers(&mut snapshot).is_empty());
}

fn settle_without_leader(snapshot: &mut MemberSnapshot) {
    for action in plan(snapshot).writes {
        apply_write(local(snapshot), &action);
    }
}

#[test]
fn a_number_changes_hands_one_after_the_other() {
    let mut snapshot = stretched();
    insert(&mut leader(&mut snapshot).imports, told_of("app=web", 1));
    settle(&mut snapshot);
    leader(&mut snapshot).imports = ObjectMap::default();
    insert(&mut leader(&mut snapshot).imports, told_of("app=db", 1));
    let first = step(&mut snapshot);
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
    // Two that change places do not wait for each other.
    insert(&mut leader(&mut snapshot).imports, told_of("app=web", 2));
    settle(&mut snapshot);
    insert(&mut leader(&mut snapshot).imports, told_of("app=db", 2));
    insert(&mut leader(&mut snapshot).imports, told_of("app=web", 1));
    settle(&mut snapshot);
    assert_eq!(
        numbers(&mut snapshot),
        [(label("app=db"), 2), (label("app=web"), 1)].into()
    );
}

#[test]
fn a_bad_import_stops_only_itself() {
    for (bad, why) in [
        (
            told(&name(&label("app=bad")), &label("app=bad"), 0),
            "0 is not between 1 and",
        ),
        (
            told(&name(&label("app=bad")), &label("app=bad"), 0x00FF_FFFF),
            "16777215 is not between",
        ),
        (
            told(&name(&label("app=bad")), "app=bad", 5),
            "is not a normalised label",
        ),
        (
            told("0123456789abcdef", &label("app=bad"), 5),
            "the name of this label is",
        ),
    ] {
        let mut snapshot = stretched();
        // It was good before; the leader has not taken that back.
        let bad_name = bad.name_any();
        insert(local(&mut snapshot), identity(&bad_name, "before", 7, true));
        insert(&mut leader(&mut snapshot).imports, bad);
        insert(&mut leader(&mut snapshot).imports, told_of("app=web", 1));
        says(&plan(&snapshot), why);
        settle(&mut snapshot);
        assert_eq!(
            numbers(&mut snapshot),
            [("before".to_owned(), 7), (label("app=web"), 1)].into(),
            "{why}"
        );
        // Its number is given to another one: then it has to go.
        insert(&mut leader(&mut snapshot).imports, told_of("app=new", 7));
        settle(&mut snapshot);
        assert_eq!(
            numbers(&mut snapshot),
            [(label("app=new"), 7), (label("app=web"), 1)].into()
        );
    }
    let mut snapshot = stretched();
    let mut other = told_of("app=web", 1);
    other.spec.kind = "ServiceImport".to_owned();
    insert(&mut leader(&mut snapshot).imports, other);
    settle(&mut snapshot);
    assert!(numbers(&mut snapshot).is_empty());
}

#[test]
fn of_two_with_one_number_the_one_that_is_here_counts() {
    for here in ["app=a", "app=b"] {
        let mut snapshot = stretched();
        insert(&mut leader(&mut snapshot).imports, told_of(here, 3));
        settle(&mut snapshot);
        for pod in ["app=a", "app=b"] {
            insert(&mut leader(&mut snapshot).imports, told_of(pod, 3));
        }
        insert(&mut leader(&mut snapshot).imports, told_of("app=c", 4));
        says(&plan(&snapshot), "not imported: its ID 3 is that of");
        settle(&mut snapshot);
        assert_eq!(
            numbers(&mut snapshot),
            [(label(here), 3), (label("app=c"), 4)].into()
        );
    }
}

#[test]
fn somebody_elses_identities_are_not_deleted() {
    let mut snapshot = stretched();
    insert(local(&mut snapshot), identity("theirs", "x", 9, false));
    // One that an Antrea controller made of the same import is taken over.
    let web = name(&label("app=web"));
    insert(local(&mut snapshot), identity(&web, &label("app=web"), 1, false));
    insert(&mut leader(&mut snapshot).imports, told_of("app=web", 1));
    insert(&mut leader(&mut snapshot).imports, told_of("app=db", 9));
    says(
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
fn without_the_crd_it_is_said() {
    let mut snapshot = stretched();
    snapshot.label_identities = OptionalKind::Absent;
    insert(&mut leader(&mut snapshot).imports, told_of("app=web", 1));
    says(
        &plan(&snapshot),
        "labelidentities.multicluster.crd.antrea.io: this CRD is missing",
    );
    let kinds: Vec<_> = step(&mut snapshot).iter().map(|a| a.target.kind).collect();
    assert!(!kinds.contains(&crate::plan::Kind::LabelIdentity), "{kinds:?}");
}

proptest! {
    /// Whatever Pods there are and whatever the leader says: plans come to rest, every label is exported, every
    /// good import is here, no number is here twice, and at the end nothing of ours is left.
    #[test]
    fn identities_come_to_rest_and_leave_no_trace(
        rounds in proptest::collection::vec(
            (proptest::collection::btree_set(0usize..6, 0..5), proptest::collection::btree_map(0usize..6, -1i64..6, 0..6)),
            1..4,
        ),
    ) {
        let mut snapshot = stretched();
        for (there, told) in rounds {
            let labels: Vec<_> = there.iter().map(|i| format!("app=web-{i}")).collect();
            pods(&mut snapshot, &labels.iter().map(|l| ("shop", l.as_str())).collect::<Vec<_>>());
            leader(&mut snapshot).imports = ObjectMap::default();
            for (pod, id) in &told {
                insert(&mut leader(&mut snapshot).imports, told_of(&format!("app=web-{pod}"), *id));
            }
            settle(&mut snapshot);
            prop_assert_eq!(exported(&snapshot), labels.iter().map(|l| label(l)).collect::<BTreeSet<_>>());
            let here = numbers(&mut snapshot);
            let distinct: BTreeSet<_> = here.values().copied().collect();
            prop_assert_eq!(distinct.len(), here.len(), "{:?}", here);
            let good: BTreeSet<_> = told.values().filter(|id| **id >= 1).collect();
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
