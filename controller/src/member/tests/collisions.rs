//! `ServiceExport`s with the same derived name in the leader cluster, and exports that it rejects.

use super::*;
use crate::plan::{Kind, ObjectRef, WriteOp};

/// Two Services with exports of the same derived name, `east-prod-web-api-service`.
const OLD: (&str, &str) = ("prod-web", "api");
const YOUNG: (&str, &str) = ("prod", "web-api");

fn export_service(snapshot: &mut MemberSnapshot, (namespace, name): (&str, &str), since: &str) {
    let meta = json!({ "name": name, "namespace": namespace, "uid": "u", "creationTimestamp": since });
    let mut service = web();
    service.metadata = serde_json::from_value(meta.clone()).unwrap();
    insert(&mut snapshot.services, service);
    let mut slice = slice(&[("10.11.0.5", true)]);
    slice.metadata.name = Some(format!("{name}-1"));
    slice.metadata.namespace = Some(namespace.to_owned());
    slice.metadata.labels = Some([("kubernetes.io/service-name".to_owned(), name.to_owned())].into());
    insert(&mut snapshot.endpoint_slices, slice);
    insert(
        &mut snapshot.service_exports,
        object::<ServiceExport>(json!({ "metadata": meta })),
    );
}

fn condition_texts(snapshot: &MemberSnapshot, (namespace, name): (&str, &str)) -> Vec<String> {
    let key = NamespacedName::new(namespace, name);
    let status = snapshot.service_exports[&key].status.clone().unwrap_or_default();
    let text = |c: &Condition| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message);
    status.conditions.iter().map(text).collect()
}

fn exported(snapshot: &MemberSnapshot) -> Option<(String, String)> {
    let export = export(snapshot, "east-prod-web-api-service")?;
    Some((export.spec.namespace.clone(), export.spec.name.clone()))
}

/// Completes the deletion of exports, as the leader does.
fn complete_deletions(snapshot: &mut MemberSnapshot) {
    let exports = Arc::make_mut(&mut leader(snapshot).exports);
    exports.retain(|_, e| e.metadata.deletion_timestamp.is_none());
}

#[test]
fn of_two_exports_the_older_gets_the_derived_name() {
    let mut snapshot = snapshot();
    export_service(&mut snapshot, YOUNG, "2026-01-02T00:00:00Z");
    export_service(&mut snapshot, OLD, "2026-01-01T00:00:00Z");
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), Some(("prod-web".into(), "api".into())));
    assert_eq!(
        condition_texts(&snapshot, OLD)[0].split(':').next(),
        Some("Valid=True Succeed")
    );
    let taken =
        "the name \"east-prod-web-api-service\" in the leader cluster is taken by ServiceExport prod-web/api";
    assert_eq!(
        condition_texts(&snapshot, YOUNG),
        [
            format!("Valid=False NameTaken: {taken}"),
            format!("Ready=False Failed: {taken}")
        ]
    );

    // The younger export gets the free name by a new object: the Service of an export never changes.
    snapshot.service_exports = ObjectMap::default();
    export_service(&mut snapshot, YOUNG, "2026-01-02T00:00:00Z");
    let writes = reconcile(&mut snapshot);
    let on_leader: Vec<_> = writes
        .iter()
        .filter(|a| a.target.side == ApiServer::Leader)
        .collect();
    assert!(
        on_leader.iter().all(|a| matches!(a.op, WriteOp::Delete { .. })),
        "{on_leader:#?}"
    );
    settle(&mut snapshot);
    complete_deletions(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), Some(("prod".into(), "web-api".into())));
    assert_eq!(
        condition_texts(&snapshot, YOUNG)[0].split(':').next(),
        Some("Valid=True Succeed")
    );
}

#[test]
fn a_service_with_one_deleted_export_keeps_the_name() {
    for end in ["-service", "-endpoints"] {
        let mut snapshot = snapshot();
        export_service(&mut snapshot, YOUNG, "2026-01-02T00:00:00Z");
        settle(&mut snapshot);
        export_service(&mut snapshot, OLD, "2026-01-01T00:00:00Z");
        Arc::make_mut(&mut leader(&mut snapshot).exports).retain(|key, _| !key.name.ends_with(end));
        settle(&mut snapshot);
        assert_eq!(
            exported(&snapshot),
            Some(("prod".into(), "web-api".into())),
            "{end}"
        );
    }
}

#[test]
fn the_current_owner_keeps_the_name() {
    let mut snapshot = snapshot();
    export_service(&mut snapshot, YOUNG, "2026-01-02T00:00:00Z");
    settle(&mut snapshot);
    export_service(&mut snapshot, OLD, "2026-01-01T00:00:00Z");
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), Some(("prod".into(), "web-api".into())));
    assert!(condition_texts(&snapshot, OLD)[0].starts_with("Valid=False NameTaken"));
    // A Service that cannot be exported requests no name, but one without endpoints keeps it until its withdrawal.
    let slices = Arc::make_mut(&mut snapshot.endpoint_slices);
    slices.retain(|key, _| key.namespace != "prod");
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), Some(("prod".into(), "web-api".into())));
    advance(&mut snapshot, 300);
    settle(&mut snapshot);
    complete_deletions(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(exported(&snapshot), Some(("prod-web".into(), "api".into())));
}

#[test]
fn a_rejection_by_the_leader_cluster_is_a_condition() {
    let mut snapshot = exporting();
    let target = ObjectRef {
        side: ApiServer::Leader,
        kind: Kind::ResourceExport,
        namespace: LEADER_NS.to_owned(),
        name: "east-shop-web-endpoints".to_owned(),
    };
    snapshot.persistent_failures = [(target, "denied".to_owned())].into();
    let _ = reconcile(&mut snapshot);
    assert_eq!(
        condition_texts(&snapshot, ("shop", "web")),
        ["Ready=False Failed: The leader cluster rejects ResourceExport east-shop-web-endpoints: denied"]
    );
    // The leader cluster accepts it later.
    snapshot.persistent_failures.clear();
    settle(&mut snapshot);
    assert!(condition_texts(&snapshot, ("shop", "web"))[1].starts_with("Ready=True Exported"));
}
