//! Label identities: allocation, quarantine and recovery.

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
    leader::{label_identities::plan_up_to, label_imports::GRACE_PERIOD},
    plan::{Kind, WriteOp},
};

/// The quarantine of these tests, in seconds.
const QUARANTINE: i64 = 600;

pub(super) fn stretched() -> LeaderSnapshot {
    let mut snapshot = leader_snapshot();
    snapshot.config.stretched_network_policy = true;
    snapshot.label_id_shards = Some(ObjectMap::default());
    snapshot
}

pub(super) fn label(i: usize) -> String {
    format!("ns:kubernetes.io/metadata.name=shop&pod:app=web-{i}")
}

pub(super) fn export_of(cluster: &str, label: &str) -> ResourceExport {
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

pub(super) fn unexport(snapshot: &mut LeaderSnapshot, cluster: &str, label: &str) {
    let name = names::label_identity_export(cluster, object_name(&digest(label)));
    delete(&mut snapshot.exports, &NamespacedName::new(NS, name));
}

pub(super) fn identity_import(name: &str, payload: &Value, created: &str) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": name, "namespace": NS, "creationTimestamp": created },
        "spec": { "kind": "LabelIdentity", "labelIdentity": payload },
    }))
}

pub(super) fn identity_import_of(label: &str, id: u32) -> ResourceImport {
    identity_import(
        object_name(&digest(label)),
        &json!({ "label": label, "id": id }),
        NOW,
    )
}

fn number(snapshot: &LeaderSnapshot, label: &str) -> Option<u64> {
    import(snapshot, object_name(&digest(label)))["labelIdentity"]["id"].as_u64()
}

pub(super) fn advance(snapshot: &mut LeaderSnapshot, seconds: i64) {
    snapshot.now = snapshot
        .now
        .checked_add(SignedDuration::from_secs(seconds))
        .unwrap();
    // The members are alive.
    for heartbeat in snapshot.heartbeats.values_mut() {
        heartbeat.seen_at = snapshot.now;
    }
}

#[test]
fn equal_labels_of_two_clusters_have_one_id() {
    let mut snapshot = stretched();
    settle(&mut snapshot);
    for cluster in ["east", "west"] {
        insert(&mut snapshot.exports, export_of(cluster, &label(0)));
    }
    insert(&mut snapshot.exports, export_of("west", &label(1)));
    // The first plan stores the ID, the next one writes the imports.
    let first = reconcile(&mut snapshot);
    assert!(
        matches!(&first[..], [action] if action.target.kind == Kind::ConfigMap),
        "{first:?}"
    );
    settle(&mut snapshot);
    let numbers: BTreeSet<_> = [0, 1].iter().map(|i| number(&snapshot, &label(*i))).collect();
    assert_eq!(numbers, [Some(1), Some(2)].into());
    unexport(&mut snapshot, "east", &label(0));
    advance(&mut snapshot, 3600);
    settle(&mut snapshot);
    assert!(number(&snapshot, &label(0)).is_some(), "west still exports it");
}

#[test]
fn nothing_is_written_while_stretched_policies_are_disabled() {
    let mut snapshot = leader_snapshot();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    insert(&mut snapshot.imports, identity_import_of(&label(1), 7));
    assert_issue(
        &mut snapshot,
        "enableStretchedNetworkPolicy: not enabled here: 1 label identities",
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 1, "an earlier import stays");
}

#[test]
fn a_label_exported_again_keeps_its_id() {
    let mut snapshot = stretched();
    for i in 0..3 {
        insert(&mut snapshot.exports, export_of("east", &label(i)));
    }
    settle(&mut snapshot);
    let before = number(&snapshot, &label(1));
    for away in [1, GRACE_PERIOD.as_secs() + 1, QUARANTINE] {
        unexport(&mut snapshot, "east", &label(1));
        settle(&mut snapshot);
        advance(&mut snapshot, away);
        settle(&mut snapshot);
        assert_eq!(
            number(&snapshot, &label(1)).is_some(),
            away < GRACE_PERIOD.as_secs(),
            "{away} s"
        );
        insert(&mut snapshot.exports, export_of("east", &label(3)));
        settle(&mut snapshot);
        assert_ne!(number(&snapshot, &label(3)), before);
        insert(&mut snapshot.exports, export_of("east", &label(1)));
        settle(&mut snapshot);
        assert_eq!(number(&snapshot, &label(1)), before, "{away} s");
    }
}

#[test]
fn an_id_is_reused_after_the_quarantine() {
    let mut snapshot = stretched();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    settle(&mut snapshot);
    unexport(&mut snapshot, "east", &label(0));
    settle(&mut snapshot);
    assert!(
        make_plan(&mut snapshot).next_requeue.is_some(),
        "a requeue at the end of its grace period"
    );
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    settle(&mut snapshot);
    advance(&mut snapshot, QUARANTINE - 1);
    settle(&mut snapshot);
    insert(&mut snapshot.exports, export_of("east", &label(1)));
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(1)), Some(2));
    advance(&mut snapshot, 1);
    insert(&mut snapshot.exports, export_of("east", &label(2)));
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(2)), Some(1));
}

#[test]
fn the_quarantine_begins_with_the_withdrawal() {
    let mut snapshot = stretched();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    settle(&mut snapshot);
    unexport(&mut snapshot, "east", &label(0));
    settle(&mut snapshot);
    // No leader runs, or no write succeeds, for all that time.
    advance(&mut snapshot, GRACE_PERIOD.as_secs() + QUARANTINE);
    insert(&mut snapshot.exports, export_of("east", &label(1)));
    settle(&mut snapshot);
    assert_eq!(
        (number(&snapshot, &label(0)), number(&snapshot, &label(1))),
        (None, Some(2))
    );
    advance(&mut snapshot, QUARANTINE - 1);
    insert(&mut snapshot.exports, export_of("east", &label(2)));
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(2)), Some(3));
    advance(&mut snapshot, 1);
    insert(&mut snapshot.exports, export_of("east", &label(3)));
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(3)), Some(1));
}

#[test]
fn ids_of_a_previous_leader_are_kept() {
    let mut snapshot = stretched();
    // The export of label 0 was deleted while no leader ran.
    insert(&mut snapshot.imports, identity_import_of(&label(0), 1));
    insert(&mut snapshot.imports, identity_import_of(&label(1), 5));
    insert(&mut snapshot.exports, export_of("east", &label(1)));
    insert(&mut snapshot.exports, export_of("east", &label(2)));
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(1)), Some(5));
    assert_eq!(number(&snapshot, &label(2)), Some(2), "1 is not free yet");
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(0)), None, "an orphan is withdrawn");
    insert(&mut snapshot.exports, export_of("east", &label(3)));
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(3)), Some(3), "its ID is in quarantine");
}

#[test]
fn an_invalid_export_is_rejected_alone() {
    let long = format!("ns:&pod:{}", "x".repeat(20_000));
    let change = |change: fn(&mut ResourceExport)| {
        let mut export = export_of("east", &label(9));
        change(&mut export);
        export
    };
    for (bad, message) in [
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
            "has no accepted MemberClusterAnnounce",
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
        let mut snapshot = stretched();
        insert(&mut snapshot.exports, bad);
        insert(&mut snapshot.exports, export_of("east", &label(0)));
        assert_issue(&mut snapshot, message);
        settle(&mut snapshot);
        assert_eq!(
            (snapshot.imports.len(), number(&snapshot, &label(0))),
            (1, Some(1)),
            "{message}"
        );
    }
    let mut snapshot = stretched();
    let mut other = export_of("east", &label(0));
    other.spec.kind = "Service".to_owned();
    insert(&mut snapshot.exports, other);
    assert_issue(&mut snapshot, "spec.service is missing");
    settle(&mut snapshot);
    assert!(snapshot.imports.is_empty());
}

#[test]
fn invalid_imports_are_corrected() {
    let mut snapshot = stretched();
    let name = |i| object_name(&digest(&label(i))).to_owned();
    // Two imports with one ID: the older one keeps it.
    insert(
        &mut snapshot.imports,
        identity_import(
            &name(0),
            &json!({ "label": label(0), "id": 4 }),
            "2026-01-01T11:00:00Z",
        ),
    );
    insert(
        &mut snapshot.imports,
        identity_import(
            &name(1),
            &json!({ "label": label(1), "id": 4 }),
            "2026-01-01T10:00:00Z",
        ),
    );
    insert(
        &mut snapshot.imports,
        identity_import(&name(2), &json!({ "label": label(2), "id": 0x00FF_FFFF }), NOW),
    );
    insert(
        &mut snapshot.imports,
        identity_import(&name(3), &json!(null), NOW),
    );
    insert(
        &mut snapshot.imports,
        identity_import("0123456789abcdef", &json!({ "label": label(4), "id": 6 }), NOW),
    );
    insert(
        &mut snapshot.imports,
        identity_import("fedcba9876543210", &json!({ "label": "x", "id": 7 }), NOW),
    );
    for i in 0..4 {
        insert(&mut snapshot.exports, export_of("east", &label(i)));
    }
    assert_issue(&mut snapshot, "16777215 is not between 1 and 16777214");
    assert_issue(
        &mut snapshot,
        "ResourceImport 0123456789abcdef: this label belongs to the name",
    );
    settle(&mut snapshot);
    let numbers: Vec<_> = (0..4).map(|i| number(&snapshot, &label(i)).unwrap()).collect();
    assert_eq!(numbers[1], 4);
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 4, "{numbers:?}");
    assert!(!numbers.contains(&6), "an ID that an import of another name had");
    assert_eq!(snapshot.imports.len(), 4);
}

#[test]
fn an_import_of_another_kind_is_left_alone() {
    let mut snapshot = stretched();
    let mut info = cluster_info("east");
    info.metadata.name = Some(object_name(&digest(&label(0))).to_owned());
    insert(&mut snapshot.exports, info);
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    assert_issue(&mut snapshot, "spec.clusterID \"east\" does not match the name");
    settle(&mut snapshot);
    assert!(
        number(&snapshot, &label(0)).is_some(),
        "no ClusterInfo has this name"
    );
    let mut other = identity_import_of(&label(1), 9);
    other.spec.kind = "ExternalEntity".to_owned();
    insert(&mut snapshot.imports, other);
    insert(&mut snapshot.exports, export_of("east", &label(1)));
    settle(&mut snapshot);
    assert_issue(
        &mut snapshot,
        "is taken by a ResourceImport of kind \"ExternalEntity\"",
    );
}

#[test]
fn without_free_ids_only_new_labels_are_pending() {
    let mut snapshot = stretched();
    let run = |snapshot: &mut LeaderSnapshot| {
        for _ in 0..6 {
            let mut plan = Plan::default();
            plan_up_to(snapshot, 3, &mut plan);
            for action in &plan.writes {
                apply_write(&mut snapshot.imports, action);
                apply_write(snapshot.label_id_shards.as_mut().unwrap(), action);
            }
        }
        let mut plan = Plan::default();
        plan_up_to(snapshot, 3, &mut plan);
        assert!(plan.writes.is_empty(), "{:#?}", plan.writes);
        plan
    };
    for i in 0..3 {
        insert(&mut snapshot.exports, export_of("east", &label(i)));
    }
    assert!(run(&mut snapshot).issues.is_empty());
    insert(&mut snapshot.exports, export_of("east", &label(3)));
    let plan = run(&mut snapshot);
    assert!(
        plan.issues[0]
            .message
            .contains("no ID is free for 1 labels: all 3"),
        "{:?}",
        plan.issues
    );
    assert_eq!(snapshot.imports.len(), 3);
    unexport(&mut snapshot, "east", &label(0));
    let plan = run(&mut snapshot);
    let end = snapshot
        .now
        .checked_add(GRACE_PERIOD + SignedDuration::from_secs(QUARANTINE))
        .unwrap();
    assert!(plan.next_requeue.is_some_and(|at| at <= end));
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    assert_eq!(run(&mut snapshot).issues.len(), 1);
    assert_eq!(snapshot.imports.len(), 2);
    advance(&mut snapshot, QUARANTINE);
    assert!(run(&mut snapshot).issues.is_empty());
    assert!(number(&snapshot, &label(3)).is_some());
}

#[test]
fn ids_of_a_malformed_shard_are_kept() {
    let mut snapshot = stretched();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    settle(&mut snapshot);
    let key = NamespacedName::new(NS, names::label_id_shard(0));
    let mut record = snapshot.label_id_shards.as_ref().unwrap()[&key].as_ref().clone();
    let good = record.clone();
    record.data = Some([("identities".to_owned(), "scribble".to_owned())].into());
    insert(snapshot.label_id_shards.as_mut().unwrap(), record);
    insert(&mut snapshot.exports, export_of("east", &label(1)));
    assert_issue(&mut snapshot, "data.identities: line 1: \"scribble\" is not");
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(0)), Some(1));
    assert_eq!(number(&snapshot, &label(1)), Some(4096), "from the next shard");
    unexport(&mut snapshot, "east", &label(0));
    advance(&mut snapshot, 3600);
    settle(&mut snapshot);
    assert_eq!(
        number(&snapshot, &label(0)),
        Some(1),
        "its release cannot be stored"
    );
    insert(snapshot.label_id_shards.as_mut().unwrap(), good);
    settle(&mut snapshot);
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    settle(&mut snapshot);
    assert_eq!(number(&snapshot, &label(0)), None);
}

#[test]
fn a_clock_set_back_does_not_extend_the_grace_period() {
    let mut snapshot = stretched();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    settle(&mut snapshot);
    unexport(&mut snapshot, "east", &label(0));
    settle(&mut snapshot);
    advance(&mut snapshot, -1_000_000);
    settle(&mut snapshot);
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    settle(&mut snapshot);
    assert!(snapshot.imports.is_empty(), "still imported");
}

/// An API server with its clock and delayed writes.
struct Server {
    state: LeaderSnapshot,
    /// Delayed writes, with the time of sending.
    delayed: Vec<(Write, Timestamp)>,
    version: u64,
    /// Clusters and labels ever exported.
    exported: BTreeSet<(String, String)>,
    /// By ID: the label it had last, and the time of that.
    last_labels: BTreeMap<u32, (String, Timestamp)>,
}

#[derive(Clone, Debug)]
enum Step {
    Export(usize, usize),
    Unexport(usize, usize),
    /// A leader makes a plan; each of its writes is executed, lost or delayed.
    Plan(usize, Vec<u8>),
    /// A leader's cache of one kind is updated.
    Refresh(usize, usize),
    ExecuteDelayed,
    Advance(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        3 => (0usize..2, 0usize..6).prop_map(|(c, l)| Step::Export(c, l)),
        3 => (0usize..2, 0usize..6).prop_map(|(c, l)| Step::Unexport(c, l)),
        8 => (0usize..2, proptest::collection::vec(0u8..4, 8)).prop_map(|(i, results)| Step::Plan(i, results)),
        6 => (0usize..2, 0usize..3).prop_map(|(i, k)| Step::Refresh(i, k)),
        2 => Just(Step::ExecuteDelayed),
        2 => (0i64..20).prop_map(Step::Advance),
        1 => Just(Step::Advance(50)),
    ];
    proptest::collection::vec(one, 0..120)
}

impl Server {
    fn new() -> Self {
        Self {
            state: stretched(),
            delayed: vec![],
            version: 0,
            exported: BTreeSet::new(),
            last_labels: BTreeMap::new(),
        }
    }

    fn execute(&mut self, action: &Write) {
        match action.target.kind {
            Kind::ConfigMap => Self::write(
                self.state.label_id_shards.as_mut().unwrap(),
                action,
                &mut self.version,
            ),
            Kind::ResourceImport => Self::write(&mut self.state.imports, action, &mut self.version),
            kind => panic!("{kind:?}"),
        }
        self.check();
    }

    /// As an API server does: rejects the creation of an existing object and a patch of another version.
    fn write<K>(objects: &mut ObjectMap<K>, action: &Write, version: &mut u64)
    where
        K: crate::plan::WritableKind + Clone + Resource + serde::de::DeserializeOwned,
    {
        let key = NamespacedName::new(action.target.namespace.as_str(), action.target.name.as_str());
        let old = objects.get(&key).cloned();
        let rejected = match (&action.op, &old) {
            (WriteOp::Create(_), old) => old.is_some(),
            // A patch without a version is unconditional.
            (WriteOp::Patch(patch), Some(old)) => patch.value()["metadata"]["resourceVersion"]
                .as_str()
                .is_some_and(|version| Some(version) != old.meta().resource_version.as_deref()),
            (WriteOp::Delete { uid, .. }, Some(old)) => *uid != old.meta().uid,
            (_, old) => old.is_none() && !matches!(action.op, WriteOp::Apply(_)),
        };
        if rejected {
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

    /// Checks the imports: no ID has two labels, or another label before the end of its quarantine, and no label has a
    /// cluster that never exported it.
    fn check(&mut self) {
        let mut seen = BTreeMap::new();
        for import in self.state.imports.values() {
            let payload = import.spec.label_identity.as_ref().unwrap();
            let label = payload["label"].as_str().unwrap().to_owned();
            let id = u32::try_from(payload["id"].as_u64().unwrap()).unwrap();
            assert_eq!(seen.insert(id, label.clone()), None, "{id} has two labels");
            for cluster in payload["clusters"].as_array().unwrap() {
                let claim = (cluster.as_str().unwrap().to_owned(), label.clone());
                assert!(self.exported.contains(&claim), "{claim:?} was never exported");
            }
            if let Some((before, until)) = self.last_labels.get(&id) {
                let elapsed = self.state.now.duration_since(*until).as_secs();
                assert!(
                    *before == label || elapsed >= QUARANTINE,
                    "{id} had {before} {elapsed} s ago and has {label} now"
                );
            }
            for (other, (before, until)) in &self.last_labels {
                let elapsed = self.state.now.duration_since(*until).as_secs();
                assert!(
                    *other == id || *before != label || elapsed >= QUARANTINE,
                    "{label} had {other} {elapsed} s ago and has {id} now"
                );
            }
            self.last_labels.insert(id, (label, self.state.now));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// With lost and delayed writes, caches up to a minute old and two leaders at a time: no ID has two labels, or
    /// another label before the end of its quarantine, no label changes its ID, and none has a cluster that never
    /// exported it. After the last fault exactly the exported labels have an ID, and the clusters that export them.
    #[test]
    fn ids_are_unique_and_stable(steps in steps()) {
        let mut server = Server::new();
        let mut leaders = [stretched(), stretched()];
        let mut seen = [[server.state.now; 3]; 2];
        let clusters = ["east", "west"];
        let refresh = |server: &Server, leader: &mut LeaderSnapshot, kind: usize| match kind {
            0 => leader.exports = server.state.exports.clone(),
            1 => leader.imports = server.state.imports.clone(),
            _ => leader.label_id_shards.clone_from(&server.state.label_id_shards),
        };
        for step in steps {
            match step {
                Step::Export(c, l) => {
                    server.exported.insert((clusters[c].to_owned(), label(l)));
                    insert(&mut server.state.exports, export_of(clusters[c], &label(l)));
                }
                Step::Unexport(c, l) => unexport(&mut server.state, clusters[c], &label(l)),
                Step::Refresh(i, kind) => {
                    refresh(&server, &mut leaders[i], kind);
                    seen[i][kind] = server.state.now;
                }
                Step::Plan(i, results) => {
                    let mut plan = Plan::default();
                    plan_up_to(&leaders[i], 40, &mut plan);
                    for (action, result) in plan.writes.into_iter().zip(results.into_iter().cycle()) {
                        match result {
                            0 => {}
                            1 => server.delayed.push((action, server.state.now)),
                            _ => server.execute(&action),
                        }
                    }
                }
                Step::ExecuteDelayed => {
                    if !server.delayed.is_empty() {
                        let (action, _) = server.delayed.remove(0);
                        server.execute(&action);
                    }
                }
                Step::Advance(seconds) => {
                    advance(&mut server.state, seconds);
                    server.check();
                    let now = server.state.now;
                    server.delayed.retain(|(_, at)| now.duration_since(*at).as_secs() < 60);
                    for (i, leader) in leaders.iter_mut().enumerate() {
                        leader.now = now;
                        for (kind, at) in seen[i].iter_mut().enumerate() {
                            if now.duration_since(*at).as_secs() >= 60 {
                                refresh(&server, leader, kind);
                                *at = now;
                            }
                        }
                    }
                }
            }
        }
        let mut empty_plans = 0;
        for _ in 0..12 {
            for _ in 0..6 {
                for kind in 0..3 {
                    refresh(&server, &mut leaders[0], kind);
                }
                leaders[0].now = server.state.now;
                let mut plan = Plan::default();
                plan_up_to(&leaders[0], 40, &mut plan);
                empty_plans = if plan.writes.is_empty() { empty_plans + 1 } else { 0 };
                for action in plan.writes {
                    server.execute(&action);
                }
            }
            advance(&mut server.state, 15);
        }
        prop_assert!(empty_plans > 6, "not converged");
        let mut exported: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for export in server.state.exports.values() {
            let label = export.spec.label_identity.as_ref().unwrap()["normalizedLabel"].as_str().unwrap();
            exported.entry(label.to_owned()).or_default().insert(export.spec.cluster_id.clone());
        }
        let imported: BTreeMap<_, BTreeSet<_>> = server.state.imports.values()
            .map(|i| {
                let payload = i.spec.label_identity.as_ref().unwrap();
                let clusters = payload["clusters"].as_array().unwrap().iter();
                let clusters = clusters.map(|c| c.as_str().unwrap().to_owned()).collect();
                (payload["label"].as_str().unwrap().to_owned(), clusters)
            })
            .collect();
        prop_assert_eq!(imported, exported);
        let records: &ObjectMap<ConfigMap> = server.state.label_id_shards.as_ref().unwrap();
        prop_assert!(records.len() <= 1);
    }
}
