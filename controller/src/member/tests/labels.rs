//! Label identities of this cluster and of the set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    api::{
        config::IdentityExport,
        label_identity::{LabelIdentity, digest, name_of},
    },
    world::PodLabels,
};

fn stretched() -> MemberWorld {
    let mut world = world();
    world.config.stretched_policy = true;
    world.pod_labels = Some(PodLabels::default());
    world
}

fn pods(world: &mut MemberWorld, labels: &[(&str, &str)]) {
    let counted = labels
        .iter()
        .map(|(ns, l)| (((*ns).to_owned(), Arc::from(*l)), 1))
        .collect();
    world.pod_labels = Some(Arc::new(counted));
}

fn label(pod: &str) -> String {
    format!("ns:kubernetes.io/metadata.name=shop&pod:{pod}")
}

fn name(label: &str) -> String {
    name_of(&digest(label)).to_owned()
}

fn exported(world: &MemberWorld) -> BTreeSet<String> {
    let exports = world.leader.as_ref().unwrap().exports.values();
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

fn local(world: &mut MemberWorld) -> &mut Objects<LabelIdentity> {
    match &mut world.label_identities {
        Optional::Present(objects) => objects,
        other => panic!("{other:?}"),
    }
}

fn numbers(world: &mut MemberWorld) -> BTreeMap<String, u32> {
    let local = local(world).values();
    local.map(|i| (i.spec.label.clone(), i.spec.id)).collect()
}

fn identity(name: &str, label: &str, id: u32, ours: bool) -> LabelIdentity {
    let mut identity: LabelIdentity = object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "LabelIdentity",
        "metadata": { "name": name }, "spec": { "label": label, "id": id },
    }));
    if ours {
        identity
            .labels_mut()
            .insert(names::LABEL_MADE_BY.to_owned(), names::MANAGED_BY.to_owned());
    }
    identity
}

#[test]
fn labels_of_pods_are_exported_and_withdrawn() {
    let mut world = stretched();
    pods(
        &mut world,
        &[("shop", "app=web"), ("shop", ""), ("elsewhere", "app=web")],
    );
    settle(&mut world);
    assert_eq!(
        exported(&world),
        [label("app=web"), label("")].into(),
        "a Namespace nobody has seen waits"
    );
    let export = export(&world, &format!("east-{}", name(&label("app=web")))).unwrap();
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
        &mut world.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "shop", "labels": {
            "kubernetes.io/metadata.name": "shop", "tier": "front",
        } } })),
    );
    pods(&mut world, &[("shop", "app=web")]);
    settle(&mut world);
    let changed = "ns:kubernetes.io/metadata.name=shop,tier=front&pod:app=web".to_owned();
    assert_eq!(exported(&world), [changed].into());
}

#[test]
fn nothing_is_exported_while_it_is_off_or_unknown() {
    let mut world = stretched();
    pods(&mut world, &[("shop", "app=web")]);
    insert(&mut leader(&mut world).imports, told_of("app=db", 2));
    insert(local(&mut world), identity("theirs", "x", 9, false));
    settle(&mut world);
    assert_eq!((exported(&world).len(), local(&mut world).len()), (1, 2));
    // A controller that has just started knows no Pod; that is no reason to take anything back.
    world.pod_labels = None;
    assert!(step(&mut world).is_empty());
    world.config.stretched_policy = false;
    settle(&mut world);
    assert!(exported(&world).is_empty());
    assert_eq!(
        local(&mut world).keys().map(|k| k.1.as_str()).collect::<Vec<_>>(),
        ["theirs"]
    );
}

#[test]
fn only_what_a_selector_of_the_set_means_is_exported() {
    let mut world = stretched();
    world.config.identity_export = IdentityExport::Selected;
    pods(&mut world, &[("shop", "app=web"), ("shop", "app=db")]);
    settle(&mut world);
    assert!(exported(&world).is_empty());
    let policy: ResourceImport = object(json!({
        "metadata": { "name": "p-antreaclusternetworkpolicy", "namespace": LEADER_NS },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": "p", "clusternetworkpolicy": {
            "ingress": [{ "action": "Allow", "from": [
                { "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": "web" } } },
            ] }],
        } },
    }));
    insert(&mut leader(&mut world).imports, policy);
    settle(&mut world);
    assert_eq!(exported(&world), [label("app=web")].into());
}

#[test]
fn labels_that_are_too_long_are_not_exported() {
    let mut world = stretched();
    let long = format!("app={}", "x".repeat(20_000));
    pods(&mut world, &[("shop", "app=web"), ("shop", &long)]);
    says(&plan(&world), "Pods of Namespace shop with labels \"app=xxx");
    says(&plan(&world), "is longer than 16384");
    settle(&mut world);
    assert_eq!(exported(&world), [label("app=web")].into());
}

#[test]
fn thousands_are_written_in_batches() {
    let mut world = stretched();
    settle(&mut world);
    let labels: Vec<_> = (0..700).map(|i| format!("app=web-{i}")).collect();
    pods(
        &mut world,
        &labels.iter().map(|l| ("shop", l.as_str())).collect::<Vec<_>>(),
    );
    for (label, id) in labels.iter().zip(1..) {
        insert(&mut leader(&mut world).imports, told_of(label, id));
    }
    assert_eq!(step(&mut world).len(), 2 * crate::plan::BATCH, "here and there");
    settle(&mut world);
    assert_eq!((exported(&world).len(), numbers(&mut world).len()), (700, 700));
    world.config.stretched_policy = false;
    assert_eq!(step(&mut world).len(), 2 * crate::plan::BATCH);
    settle(&mut world);
    assert_eq!((exported(&world).len(), numbers(&mut world).len()), (0, 0));
}

#[test]
fn an_export_somebody_changed_is_put_right() {
    let mut world = stretched();
    pods(&mut world, &[("shop", "app=web")]);
    settle(&mut world);
    let name = format!("east-{}", name(&label("app=web")));
    let mut forged = export(&world, &name).unwrap().as_ref().clone();
    forged.spec.label_identity = Some(json!({ "normalizedLabel": "ns:&pod:" }));
    insert(&mut leader(&mut world).exports, forged);
    settle(&mut world);
    assert_eq!(exported(&world), [label("app=web")].into());
}

#[test]
fn numbers_are_imported_and_withdrawn() {
    let mut world = stretched();
    insert(&mut leader(&mut world).imports, told_of("app=web", 1));
    insert(&mut leader(&mut world).imports, told_of("app=db", 0x00FF_FFFE));
    settle(&mut world);
    assert_eq!(
        numbers(&mut world),
        [(label("app=web"), 1), (label("app=db"), 0x00FF_FFFE)].into()
    );
    let key = (LEADER_NS.to_owned(), name(&label("app=db")));
    Arc::make_mut(&mut leader(&mut world).imports).remove(&key);
    settle(&mut world);
    assert_eq!(numbers(&mut world), [(label("app=web"), 1)].into());
    // Silence is no word.
    leader(&mut world).synced = false;
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    world.link = Link::Down {
        error: "gone".to_owned(),
    };
    world.leader = None;
    assert!(
        plan(&world)
            .actions
            .iter()
            .all(|a| a.target.kind != crate::plan::Kind::LabelIdentity)
    );
    // Leaving is.
    world.cluster_sets = Objects::default();
    settle_without_leader(&mut world);
    assert!(numbers(&mut world).is_empty());
}

fn settle_without_leader(world: &mut MemberWorld) {
    for action in plan(world).actions {
        carry_out(local(world), &action);
    }
}

#[test]
fn a_number_changes_hands_one_after_the_other() {
    let mut world = stretched();
    insert(&mut leader(&mut world).imports, told_of("app=web", 1));
    settle(&mut world);
    leader(&mut world).imports = Objects::default();
    insert(&mut leader(&mut world).imports, told_of("app=db", 1));
    let first = step(&mut world);
    assert!(
        matches!(
            &first[..],
            [Action {
                op: crate::plan::Op::Delete { .. },
                ..
            }]
        ),
        "{first:?}"
    );
    settle(&mut world);
    assert_eq!(numbers(&mut world), [(label("app=db"), 1)].into());
    // Two that change places do not wait for each other.
    insert(&mut leader(&mut world).imports, told_of("app=web", 2));
    settle(&mut world);
    insert(&mut leader(&mut world).imports, told_of("app=db", 2));
    insert(&mut leader(&mut world).imports, told_of("app=web", 1));
    settle(&mut world);
    assert_eq!(
        numbers(&mut world),
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
            "is no normalised label",
        ),
        (
            told("0123456789abcdef", &label("app=bad"), 5),
            "this label belongs to the name",
        ),
    ] {
        let mut world = stretched();
        // It was good before; the leader has not taken that back.
        let bad_name = bad.name_any();
        insert(local(&mut world), identity(&bad_name, "before", 7, true));
        insert(&mut leader(&mut world).imports, bad);
        insert(&mut leader(&mut world).imports, told_of("app=web", 1));
        says(&plan(&world), why);
        settle(&mut world);
        assert_eq!(
            numbers(&mut world),
            [("before".to_owned(), 7), (label("app=web"), 1)].into(),
            "{why}"
        );
        // Its number is given to another one: then it has to go.
        insert(&mut leader(&mut world).imports, told_of("app=new", 7));
        settle(&mut world);
        assert_eq!(
            numbers(&mut world),
            [(label("app=new"), 7), (label("app=web"), 1)].into()
        );
    }
    let mut world = stretched();
    let mut other = told_of("app=web", 1);
    other.spec.kind = "ServiceImport".to_owned();
    insert(&mut leader(&mut world).imports, other);
    settle(&mut world);
    assert!(numbers(&mut world).is_empty());
}

#[test]
fn of_two_with_one_number_the_one_that_is_here_counts() {
    for here in ["app=a", "app=b"] {
        let mut world = stretched();
        insert(&mut leader(&mut world).imports, told_of(here, 3));
        settle(&mut world);
        for pod in ["app=a", "app=b"] {
            insert(&mut leader(&mut world).imports, told_of(pod, 3));
        }
        insert(&mut leader(&mut world).imports, told_of("app=c", 4));
        says(&plan(&world), "not imported: its number 3 is that of");
        settle(&mut world);
        assert_eq!(
            numbers(&mut world),
            [(label(here), 3), (label("app=c"), 4)].into()
        );
    }
}

#[test]
fn somebody_elses_identities_are_not_deleted() {
    let mut world = stretched();
    insert(local(&mut world), identity("theirs", "x", 9, false));
    // One that an Antrea controller made of the same import is taken over.
    let web = name(&label("app=web"));
    insert(local(&mut world), identity(&web, &label("app=web"), 1, false));
    insert(&mut leader(&mut world).imports, told_of("app=web", 1));
    insert(&mut leader(&mut world).imports, told_of("app=db", 9));
    says(
        &plan(&world),
        "LabelIdentity theirs: was made by somebody else and has the number 9",
    );
    settle(&mut world);
    assert_eq!(
        numbers(&mut world),
        [("x".to_owned(), 9), (label("app=web"), 1)].into()
    );
    assert!(
        local(&mut world)[&(String::new(), web)]
            .labels()
            .contains_key(names::LABEL_MADE_BY)
    );
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    assert_eq!(numbers(&mut world), [("x".to_owned(), 9)].into());
}

#[test]
fn without_the_crd_it_is_said() {
    let mut world = stretched();
    world.label_identities = Optional::Absent;
    insert(&mut leader(&mut world).imports, told_of("app=web", 1));
    says(
        &plan(&world),
        "labelidentities.multicluster.crd.antrea.io: this CRD is missing",
    );
    let kinds: Vec<_> = step(&mut world).iter().map(|a| a.target.kind).collect();
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
        let mut world = stretched();
        for (there, told) in rounds {
            let labels: Vec<_> = there.iter().map(|i| format!("app=web-{i}")).collect();
            pods(&mut world, &labels.iter().map(|l| ("shop", l.as_str())).collect::<Vec<_>>());
            leader(&mut world).imports = Objects::default();
            for (pod, id) in &told {
                insert(&mut leader(&mut world).imports, told_of(&format!("app=web-{pod}"), *id));
            }
            settle(&mut world);
            prop_assert_eq!(exported(&world), labels.iter().map(|l| label(l)).collect::<BTreeSet<_>>());
            let here = numbers(&mut world);
            let distinct: BTreeSet<_> = here.values().copied().collect();
            prop_assert_eq!(distinct.len(), here.len(), "{:?}", here);
            let good: BTreeSet<_> = told.values().filter(|id| **id >= 1).collect();
            for id in good {
                let id = u32::try_from(*id).unwrap();
                let holders: Vec<_> = here.iter().filter(|(_, i)| **i == id).collect();
                prop_assert_eq!(holders.len(), 1, "{}", id);
            }
        }
        world.config.stretched_policy = false;
        settle(&mut world);
        prop_assert!(exported(&world).is_empty() && numbers(&mut world).is_empty());
    }
}
