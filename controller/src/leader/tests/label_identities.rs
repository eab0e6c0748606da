//! Numbers of labels.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource, ResourceExt};
use mc_api::{
    label_identity::{digest, object_name},
    resource_import::ResourceImport,
};
use serde_json::Value;

use super::*;
use crate::{
    leader::label_identities::{GRACE_PERIOD, plan_up_to},
    plan::{Kind, WriteOp},
};

/// The quarantine of these tests, in seconds.
const QUARANTINE: i64 = 600;

fn stretched() -> LeaderSnapshot {
    let mut world = world();
    world.config.stretched_network_policy = true;
    world.label_id_shards = Some(ObjectMap::default());
    world
}

fn label(i: usize) -> String {
    format!("ns:kubernetes.io/metadata.name=shop&pod:app=web-{i}")
}

fn export_of(cluster: &str, label: &str) -> ResourceExport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": names::label_identity_export(cluster, object_name(&digest(label))), "namespace": NS,
            "creationTimestamp": NOW, "uid": "u",
            "labels": { "sourceClusterID": cluster, "sourceKind": "LabelIdentity" },
        },
        "spec": {
            "clusterID": cluster, "kind": "LabelIdentity", "labelIdentity": { "normalizedLabel": label },
        },
    }))
}

fn unexport(world: &mut LeaderSnapshot, cluster: &str, label: &str) {
    let name = names::label_identity_export(cluster, object_name(&digest(label)));
    delete(&mut world.exports, &NamespacedName::new(NS, name));
}

fn told(name: &str, payload: &Value, created: &str) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": name, "namespace": NS, "creationTimestamp": created },
        "spec": { "kind": "LabelIdentity", "labelIdentity": payload },
    }))
}

fn told_of(label: &str, id: u32) -> ResourceImport {
    told(
        object_name(&digest(label)),
        &json!({ "label": label, "id": id }),
        NOW,
    )
}

fn number(world: &LeaderSnapshot, label: &str) -> Option<u64> {
    import(world, object_name(&digest(label)))["labelIdentity"]["id"].as_u64()
}

fn pass(world: &mut LeaderSnapshot, seconds: i64) {
    world.now = world.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
}

fn says(world: &mut LeaderSnapshot, text: &str) {
    let plan = look(world);
    let found = plan
        .issues
        .iter()
        .any(|n| format!("{}: {}", n.subject, n.message).contains(text));
    assert!(found, "{text:?} not in {:#?}", plan.issues);
}

#[test]
fn labels_of_two_clusters_share_a_number() {
    let mut world = stretched();
    settle(&mut world);
    for cluster in ["east", "west"] {
        insert(&mut world.exports, export_of(cluster, &label(0)));
    }
    insert(&mut world.exports, export_of("west", &label(1)));
    // The record comes first, the members are told by the next plan.
    let first = step(&mut world);
    assert!(
        matches!(&first[..], [action] if action.target.kind == Kind::ConfigMap),
        "{first:?}"
    );
    settle(&mut world);
    let numbers: BTreeSet<_> = [0, 1].iter().map(|i| number(&world, &label(*i))).collect();
    assert_eq!(numbers, [Some(1), Some(2)].into());
    unexport(&mut world, "east", &label(0));
    pass(&mut world, 3600);
    settle(&mut world);
    assert!(number(&world, &label(0)).is_some(), "west has it still");
}

#[test]
fn nothing_happens_while_it_is_off() {
    let mut world = world();
    insert(&mut world.exports, export_of("east", &label(0)));
    insert(&mut world.imports, told_of(&label(1), 7));
    says(
        &mut world,
        "enableStretchedNetworkPolicy: not enabled here: 1 label identities",
    );
    settle(&mut world);
    assert_eq!(world.imports.len(), 1, "what was told before stands");
}

#[test]
fn a_label_that_comes_back_has_its_number() {
    let mut world = stretched();
    for i in 0..3 {
        insert(&mut world.exports, export_of("east", &label(i)));
    }
    settle(&mut world);
    let before = number(&world, &label(1));
    for away in [1, GRACE_PERIOD.as_secs() + 1, QUARANTINE] {
        unexport(&mut world, "east", &label(1));
        settle(&mut world);
        pass(&mut world, away);
        settle(&mut world);
        assert_eq!(
            number(&world, &label(1)).is_some(),
            away < GRACE_PERIOD.as_secs(),
            "{away} s"
        );
        insert(&mut world.exports, export_of("east", &label(3)));
        settle(&mut world);
        assert_ne!(number(&world, &label(3)), before);
        insert(&mut world.exports, export_of("east", &label(1)));
        settle(&mut world);
        assert_eq!(number(&world, &label(1)), before, "{away} s");
    }
}

#[test]
fn a_number_is_given_again_after_the_quarantine() {
    let mut world = stretched();
    insert(&mut world.exports, export_of("east", &label(0)));
    settle(&mut world);
    unexport(&mut world, "east", &label(0));
    settle(&mut world);
    assert!(
        look(&mut world).next_requeue.is_some(),
        "the end of its grace is waited for"
    );
    pass(&mut world, GRACE_PERIOD.as_secs());
    settle(&mut world);
    pass(&mut world, QUARANTINE - 1);
    settle(&mut world);
    insert(&mut world.exports, export_of("east", &label(1)));
    settle(&mut world);
    assert_eq!(number(&world, &label(1)), Some(2));
    pass(&mut world, 1);
    insert(&mut world.exports, export_of("east", &label(2)));
    settle(&mut world);
    assert_eq!(number(&world, &label(2)), Some(1));
}

#[test]
fn a_number_rests_from_when_the_members_were_told() {
    let mut world = stretched();
    insert(&mut world.exports, export_of("east", &label(0)));
    settle(&mut world);
    unexport(&mut world, "east", &label(0));
    settle(&mut world);
    // Nobody looks, or nothing can be deleted, for all that time.
    pass(&mut world, GRACE_PERIOD.as_secs() + QUARANTINE);
    insert(&mut world.exports, export_of("east", &label(1)));
    settle(&mut world);
    assert_eq!(
        (number(&world, &label(0)), number(&world, &label(1))),
        (None, Some(2))
    );
    pass(&mut world, QUARANTINE - 1);
    insert(&mut world.exports, export_of("east", &label(2)));
    settle(&mut world);
    assert_eq!(number(&world, &label(2)), Some(3));
    pass(&mut world, 1);
    insert(&mut world.exports, export_of("east", &label(3)));
    settle(&mut world);
    assert_eq!(number(&world, &label(3)), Some(1));
}

#[test]
fn what_a_leader_before_us_gave_stays() {
    let mut world = stretched();
    // Its exports went while nobody looked.
    insert(&mut world.imports, told_of(&label(0), 1));
    insert(&mut world.imports, told_of(&label(1), 5));
    insert(&mut world.exports, export_of("east", &label(1)));
    insert(&mut world.exports, export_of("east", &label(2)));
    settle(&mut world);
    assert_eq!(number(&world, &label(1)), Some(5));
    assert_eq!(number(&world, &label(2)), Some(2), "1 is not free yet");
    pass(&mut world, GRACE_PERIOD.as_secs());
    settle(&mut world);
    assert_eq!(number(&world, &label(0)), None, "an orphan goes");
    insert(&mut world.exports, export_of("east", &label(3)));
    settle(&mut world);
    assert_eq!(number(&world, &label(3)), Some(3), "and its number rests");
}

#[test]
fn a_bad_export_stops_only_itself() {
    let long = format!("ns:&pod:{}", "x".repeat(20_000));
    let change = |change: fn(&mut ResourceExport)| {
        let mut export = export_of("east", &label(9));
        change(&mut export);
        export
    };
    for (bad, why) in [
        (
            change(|e| e.spec.label_identity = None),
            "normalizedLabel is missing or not a string",
        ),
        (
            change(|e| e.spec.label_identity = Some(json!({ "normalizedLabel": 5 }))),
            "normalizedLabel is missing or not a string",
        ),
        (
            change(|e| e.spec.label_identity = Some(json!({ "normalizedLabel": "app=web" }))),
            "is not a normalised label",
        ),
        (
            change(|e| e.spec.cluster_id = "west".to_owned()),
            "belong to the name \"west-",
        ),
        (
            change(|e| e.spec.cluster_id = String::new()),
            "spec.clusterID is empty",
        ),
        (
            change(|e| {
                drop(
                    e.labels_mut()
                        .insert("sourceClusterID".to_owned(), "west".to_owned()),
                );
            }),
            "is not the label sourceClusterID, \"west\"",
        ),
        (
            change(|e| e.metadata.name = Some("east-0123456789abcdef".to_owned())),
            "belong to the name \"east-",
        ),
        (export_of("east", &long), "is longer than 16384"),
    ] {
        let mut world = stretched();
        insert(&mut world.exports, bad);
        insert(&mut world.exports, export_of("east", &label(0)));
        says(&mut world, why);
        settle(&mut world);
        assert_eq!(
            (world.imports.len(), number(&world, &label(0))),
            (1, Some(1)),
            "{why}"
        );
    }
    let mut world = stretched();
    let mut other = export_of("east", &label(0));
    other.spec.kind = "Service".to_owned();
    insert(&mut world.exports, other);
    says(&mut world, "spec.service is missing");
    settle(&mut world);
    assert!(world.imports.is_empty());
}

#[test]
fn bad_imports_are_put_right() {
    let mut world = stretched();
    let name = |i| object_name(&digest(&label(i))).to_owned();
    // Two with one number: the older keeps it.
    insert(
        &mut world.imports,
        told(
            &name(0),
            &json!({ "label": label(0), "id": 4 }),
            "2026-01-01T11:00:00Z",
        ),
    );
    insert(
        &mut world.imports,
        told(
            &name(1),
            &json!({ "label": label(1), "id": 4 }),
            "2026-01-01T10:00:00Z",
        ),
    );
    insert(
        &mut world.imports,
        told(&name(2), &json!({ "label": label(2), "id": 0x00FF_FFFF }), NOW),
    );
    insert(&mut world.imports, told(&name(3), &json!(null), NOW));
    insert(
        &mut world.imports,
        told("0123456789abcdef", &json!({ "label": label(4), "id": 6 }), NOW),
    );
    insert(
        &mut world.imports,
        told("fedcba9876543210", &json!({ "label": "x", "id": 7 }), NOW),
    );
    for i in 0..4 {
        insert(&mut world.exports, export_of("east", &label(i)));
    }
    says(&mut world, "16777215 is not between 1 and 16777214");
    says(
        &mut world,
        "ResourceImport 0123456789abcdef: this label belongs to the name",
    );
    settle(&mut world);
    let numbers: Vec<_> = (0..4).map(|i| number(&world, &label(i)).unwrap()).collect();
    assert_eq!(numbers[1], 4);
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 4, "{numbers:?}");
    assert!(!numbers.contains(&6), "it was somebody's, under whatever name");
    assert_eq!(world.imports.len(), 4);
}

#[test]
fn a_name_that_is_taken_by_another_kind_is_left_alone() {
    let mut world = stretched();
    let mut info = cluster_info("east");
    info.metadata.name = Some(object_name(&digest(&label(0))).to_owned());
    insert(&mut world.exports, info);
    insert(&mut world.exports, export_of("east", &label(0)));
    says(&mut world, "spec.clusterID \"east\" does not match the name");
    settle(&mut world);
    assert!(
        number(&world, &label(0)).is_some(),
        "no ClusterInfo has that name"
    );
    let mut other = told_of(&label(1), 9);
    other.spec.kind = "ExternalEntity".to_owned();
    insert(&mut world.imports, other);
    insert(&mut world.exports, export_of("east", &label(1)));
    settle(&mut world);
    says(
        &mut world,
        "is taken by a ResourceImport of kind \"ExternalEntity\"",
    );
}

#[test]
fn when_numbers_run_out_only_new_labels_wait() {
    let mut world = stretched();
    let run = |world: &mut LeaderSnapshot| {
        for _ in 0..6 {
            let mut plan = Plan::default();
            plan_up_to(world, 3, &mut plan);
            for action in &plan.writes {
                apply_write(&mut world.imports, action);
                apply_write(world.label_id_shards.as_mut().unwrap(), action);
            }
        }
        let mut plan = Plan::default();
        plan_up_to(world, 3, &mut plan);
        assert!(plan.writes.is_empty(), "{:#?}", plan.writes);
        plan
    };
    for i in 0..3 {
        insert(&mut world.exports, export_of("east", &label(i)));
    }
    assert!(run(&mut world).issues.is_empty());
    insert(&mut world.exports, export_of("east", &label(3)));
    let plan = run(&mut world);
    assert!(
        plan.issues[0]
            .message
            .contains("no ID is free for 1 labels: all 3"),
        "{:?}",
        plan.issues
    );
    assert_eq!(world.imports.len(), 3);
    unexport(&mut world, "east", &label(0));
    let plan = run(&mut world);
    let end = world
        .now
        .checked_add(GRACE_PERIOD + SignedDuration::from_secs(QUARANTINE))
        .unwrap();
    assert!(plan.next_requeue.is_some_and(|at| at <= end));
    pass(&mut world, GRACE_PERIOD.as_secs());
    assert_eq!(run(&mut world).issues.len(), 1);
    assert_eq!(world.imports.len(), 2);
    pass(&mut world, QUARANTINE);
    assert!(run(&mut world).issues.is_empty());
    assert!(number(&world, &label(3)).is_some());
}

#[test]
fn a_record_that_cannot_be_read_freezes_its_numbers() {
    let mut world = stretched();
    insert(&mut world.exports, export_of("east", &label(0)));
    settle(&mut world);
    let key = NamespacedName::new(NS, names::label_id_shard(0));
    let mut record = world.label_id_shards.as_ref().unwrap()[&key].as_ref().clone();
    let good = record.clone();
    record.data = Some([("identities".to_owned(), "scribble".to_owned())].into());
    insert(world.label_id_shards.as_mut().unwrap(), record);
    insert(&mut world.exports, export_of("east", &label(1)));
    says(&mut world, "data.identities: line 1: \"scribble\" is not");
    settle(&mut world);
    assert_eq!(number(&world, &label(0)), Some(1));
    assert_eq!(number(&world, &label(1)), Some(4096), "from the next part");
    unexport(&mut world, "east", &label(0));
    pass(&mut world, 3600);
    settle(&mut world);
    assert_eq!(
        number(&world, &label(0)),
        Some(1),
        "nobody could say that it is gone"
    );
    insert(world.label_id_shards.as_mut().unwrap(), good);
    settle(&mut world);
    pass(&mut world, GRACE_PERIOD.as_secs());
    settle(&mut world);
    assert_eq!(number(&world, &label(0)), None);
}

#[test]
fn clocks_that_are_set_back_do_no_harm() {
    let mut world = stretched();
    insert(&mut world.exports, export_of("east", &label(0)));
    settle(&mut world);
    unexport(&mut world, "east", &label(0));
    settle(&mut world);
    pass(&mut world, -1_000_000);
    settle(&mut world);
    pass(&mut world, GRACE_PERIOD.as_secs());
    settle(&mut world);
    assert!(world.imports.is_empty(), "not in eleven days");
}

/// An API server with its clock, and what is on its way to it.
struct Server {
    truth: LeaderSnapshot,
    /// What was sent, when, and has not arrived.
    sent: Vec<(Write, Timestamp)>,
    version: u64,
    /// The label each number meant last, and until when.
    meant: BTreeMap<u32, (String, Timestamp)>,
}

#[derive(Clone, Debug)]
enum Step {
    Export(usize, usize),
    Unexport(usize, usize),
    /// A leader makes a plan; of its writes some arrive, some are lost, some arrive later.
    Look(usize, Vec<u8>),
    /// A leader sees the newest of one kind.
    See(usize, usize),
    Arrive,
    Pass(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        3 => (0usize..2, 0usize..6).prop_map(|(c, l)| Step::Export(c, l)),
        3 => (0usize..2, 0usize..6).prop_map(|(c, l)| Step::Unexport(c, l)),
        8 => (0usize..2, proptest::collection::vec(0u8..4, 8)).prop_map(|(i, fates)| Step::Look(i, fates)),
        6 => (0usize..2, 0usize..3).prop_map(|(i, k)| Step::See(i, k)),
        2 => Just(Step::Arrive),
        2 => (0i64..20).prop_map(Step::Pass),
        1 => Just(Step::Pass(50)),
    ];
    proptest::collection::vec(one, 0..120)
}

impl Server {
    fn new() -> Self {
        Self {
            truth: stretched(),
            sent: vec![],
            version: 0,
            meant: BTreeMap::new(),
        }
    }

    fn execute(&mut self, action: &Write) {
        match action.target.kind {
            Kind::ConfigMap => Self::write(
                self.truth.label_id_shards.as_mut().unwrap(),
                action,
                &mut self.version,
            ),
            Kind::ResourceImport => Self::write(&mut self.truth.imports, action, &mut self.version),
            kind => panic!("{kind:?}"),
        }
        self.check();
    }

    /// As an API server does: what was created is not created again, and what changed since is not patched.
    fn write<K>(objects: &mut ObjectMap<K>, action: &Write, version: &mut u64)
    where
        K: crate::plan::WritableKind + Clone + Resource + serde::de::DeserializeOwned,
    {
        let key = NamespacedName::new(action.target.namespace.as_str(), action.target.name.as_str());
        let old = objects.get(&key).cloned();
        let refused = match (&action.op, &old) {
            (WriteOp::Create(_), old) => old.is_some(),
            (WriteOp::Patch(patch), Some(old)) => {
                patch.value()["metadata"]["resourceVersion"].as_str()
                    != old.meta().resource_version.as_deref()
            }
            (WriteOp::Delete { uid, .. }, Some(old)) => *uid != old.meta().uid,
            (_, old) => old.is_none() && !matches!(action.op, WriteOp::Apply(_)),
        };
        if refused {
            return;
        }
        apply_write(objects, action);
        *version += 1;
        if let Some(new) = Arc::make_mut(objects).get_mut(&key) {
            let meta = Arc::make_mut(new).meta_mut();
            meta.resource_version = Some(version.to_string());
            if old.is_none() {
                meta.uid = Some(format!("uid-{version}"));
            }
        }
    }

    /// What members are told: no number means two labels, nor another label too soon.
    fn check(&mut self) {
        let mut seen = BTreeMap::new();
        for import in self.truth.imports.values() {
            let payload = import.spec.label_identity.as_ref().unwrap();
            let label = payload["label"].as_str().unwrap().to_owned();
            let id = u32::try_from(payload["id"].as_u64().unwrap()).unwrap();
            assert_eq!(seen.insert(id, label.clone()), None, "{id} means two labels");
            if let Some((before, until)) = self.meant.get(&id) {
                let rested = self.truth.now.duration_since(*until).as_secs();
                assert!(
                    *before == label || rested >= QUARANTINE,
                    "{id} meant {before} {rested} s ago and means {label} now"
                );
            }
            for (other, (before, until)) in &self.meant {
                let rested = self.truth.now.duration_since(*until).as_secs();
                assert!(
                    *other == id || *before != label || rested >= QUARANTINE,
                    "{label} had {other} {rested} s ago and has {id} now"
                );
            }
            self.meant.insert(id, (label, self.truth.now));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever arrives, is lost or late, however old what a leader sees is (up to a minute), with two leaders at a
    /// time: a number never means two labels, nor another one before its time, and no label's number changes. And
    /// when all of that ends, everybody has a number and nobody else.
    #[test]
    fn numbers_are_for_good(steps in steps()) {
        let mut server = Server::new();
        let mut leaders = [stretched(), stretched()];
        let mut seen = [[server.truth.now; 3]; 2];
        let clusters = ["east", "west"];
        let see = |server: &Server, leader: &mut LeaderSnapshot, kind: usize| match kind {
            0 => leader.exports = server.truth.exports.clone(),
            1 => leader.imports = server.truth.imports.clone(),
            _ => leader.label_id_shards.clone_from(&server.truth.label_id_shards),
        };
        for step in steps {
            match step {
                Step::Export(c, l) => {
                    insert(&mut server.truth.exports, export_of(clusters[c], &label(l)));
                }
                Step::Unexport(c, l) => unexport(&mut server.truth, clusters[c], &label(l)),
                Step::See(i, kind) => {
                    see(&server, &mut leaders[i], kind);
                    seen[i][kind] = server.truth.now;
                }
                Step::Look(i, fates) => {
                    let mut plan = Plan::default();
                    plan_up_to(&leaders[i], 40, &mut plan);
                    for (action, fate) in plan.writes.into_iter().zip(fates.into_iter().cycle()) {
                        match fate {
                            0 => {}
                            1 => server.sent.push((action, server.truth.now)),
                            _ => server.execute(&action),
                        }
                    }
                }
                Step::Arrive => {
                    if !server.sent.is_empty() {
                        let (action, _) = server.sent.remove(0);
                        server.execute(&action);
                    }
                }
                Step::Pass(seconds) => {
                    pass(&mut server.truth, seconds);
                    server.check();
                    let now = server.truth.now;
                    server.sent.retain(|(_, at)| now.duration_since(*at).as_secs() < 60);
                    for (i, leader) in leaders.iter_mut().enumerate() {
                        leader.now = now;
                        for (kind, at) in seen[i].iter_mut().enumerate() {
                            if now.duration_since(*at).as_secs() >= 60 {
                                see(&server, leader, kind);
                                *at = now;
                            }
                        }
                    }
                }
            }
        }
        let mut quiet = 0;
        for _ in 0..12 {
            for _ in 0..6 {
                for kind in 0..3 {
                    see(&server, &mut leaders[0], kind);
                }
                leaders[0].now = server.truth.now;
                let mut plan = Plan::default();
                plan_up_to(&leaders[0], 40, &mut plan);
                quiet = if plan.writes.is_empty() { quiet + 1 } else { 0 };
                for action in plan.writes {
                    server.execute(&action);
                }
            }
            pass(&mut server.truth, 15);
        }
        prop_assert!(quiet > 6, "still to do");
        let exported: BTreeSet<_> = server.truth.exports.values()
            .map(|e| e.spec.label_identity.as_ref().unwrap()["normalizedLabel"].as_str().unwrap().to_owned())
            .collect();
        let told: BTreeSet<_> = server.truth.imports.values()
            .map(|i| i.spec.label_identity.as_ref().unwrap()["label"].as_str().unwrap().to_owned())
            .collect();
        prop_assert_eq!(told, exported);
        let records: &ObjectMap<ConfigMap> = server.truth.label_id_shards.as_ref().unwrap();
        prop_assert!(records.len() <= 1);
    }
}
