//! `ServiceExport`s that come to the same name in the leader cluster, and exports it does not take.

use super::*;
use crate::plan::{Kind, Op, Target};

/// Two Services whose exports are both called `east-prod-web-api-service`.
const OLD: (&str, &str) = ("prod-web", "api");
const YOUNG: (&str, &str) = ("prod", "web-api");

fn offer(world: &mut MemberWorld, (namespace, name): (&str, &str), since: &str) {
    let meta = json!({ "name": name, "namespace": namespace, "uid": "u", "creationTimestamp": since });
    let mut service = web();
    service.metadata = serde_json::from_value(meta.clone()).unwrap();
    insert(&mut world.services, service);
    let mut slice = slice(&[("10.11.0.5", true)]);
    slice.metadata.name = Some(format!("{name}-1"));
    slice.metadata.namespace = Some(namespace.to_owned());
    slice.metadata.labels = Some([("kubernetes.io/service-name".to_owned(), name.to_owned())].into());
    insert(&mut world.slices, slice);
    insert(
        &mut world.service_exports,
        object::<ServiceExport>(json!({ "metadata": meta })),
    );
}

fn said(world: &MemberWorld, (namespace, name): (&str, &str)) -> Vec<String> {
    let key = (namespace.to_owned(), name.to_owned());
    let status = world.service_exports[&key].status.clone().unwrap_or_default();
    let say = |c: &Condition| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message);
    status.conditions.iter().map(say).collect()
}

fn exported(world: &MemberWorld) -> Option<(String, String)> {
    let export = export(world, "east-prod-web-api-service")?;
    Some((export.spec.namespace.clone(), export.spec.name.clone()))
}

/// What the leader does with exports that are to go.
fn release(world: &mut MemberWorld) {
    let exports = Arc::make_mut(&mut leader(world).exports);
    exports.retain(|_, e| e.metadata.deletion_timestamp.is_none());
}

#[test]
fn exports_of_one_name_do_not_take_turns() {
    let mut world = world();
    offer(&mut world, YOUNG, "2026-01-02T00:00:00Z");
    offer(&mut world, OLD, "2026-01-01T00:00:00Z");
    settle(&mut world);
    assert_eq!(exported(&world), Some(("prod-web".into(), "api".into())));
    assert_eq!(said(&world, OLD)[0].split(':').next(), Some("Valid=True Succeed"));
    let taken =
        "the name \"east-prod-web-api-service\" in the leader cluster is taken by ServiceExport prod-web/api";
    assert_eq!(
        said(&world, YOUNG),
        [
            format!("Valid=False NameTaken: {taken}"),
            format!("Ready=False Failed: {taken}")
        ]
    );

    // The other one gets it when it is free: never by changing what an export is of.
    world.service_exports = Objects::default();
    offer(&mut world, YOUNG, "2026-01-02T00:00:00Z");
    let actions = step(&mut world);
    let on_leader: Vec<_> = actions.iter().filter(|a| a.target.side == Side::Leader).collect();
    assert!(
        on_leader.iter().all(|a| matches!(a.op, Op::Delete { .. })),
        "{on_leader:#?}"
    );
    settle(&mut world);
    release(&mut world);
    settle(&mut world);
    assert_eq!(exported(&world), Some(("prod".into(), "web-api".into())));
    assert_eq!(
        said(&world, YOUNG)[0].split(':').next(),
        Some("Valid=True Succeed")
    );
}

#[test]
fn a_service_one_of_whose_exports_was_deleted_keeps_the_name() {
    for end in ["-service", "-endpoints"] {
        let mut world = world();
        offer(&mut world, YOUNG, "2026-01-02T00:00:00Z");
        settle(&mut world);
        offer(&mut world, OLD, "2026-01-01T00:00:00Z");
        Arc::make_mut(&mut leader(&mut world).exports).retain(|(_, name), _| !name.ends_with(end));
        settle(&mut world);
        assert_eq!(exported(&world), Some(("prod".into(), "web-api".into())), "{end}");
    }
}

#[test]
fn who_has_the_name_keeps_it() {
    let mut world = world();
    offer(&mut world, YOUNG, "2026-01-02T00:00:00Z");
    settle(&mut world);
    offer(&mut world, OLD, "2026-01-01T00:00:00Z");
    settle(&mut world);
    assert_eq!(exported(&world), Some(("prod".into(), "web-api".into())));
    assert!(said(&world, OLD)[0].starts_with("Valid=False NameTaken"));
    // One that cannot be exported claims nothing.
    let slices = Arc::make_mut(&mut world.slices);
    slices.retain(|(namespace, _), _| namespace != "prod");
    settle(&mut world);
    release(&mut world);
    settle(&mut world);
    assert_eq!(exported(&world), Some(("prod-web".into(), "api".into())));
}

#[test]
fn what_the_leader_cluster_refuses_is_told() {
    let mut world = exporting();
    let target = Target {
        side: Side::Leader,
        kind: Kind::ResourceExport,
        namespace: LEADER_NS.to_owned(),
        name: "east-shop-web-endpoints".to_owned(),
    };
    world.failing = [(target, "denied".to_owned())].into();
    let _ = step(&mut world);
    assert_eq!(
        said(&world, ("shop", "web")),
        [
            "Ready=False Failed: The leader cluster does not take ResourceExport east-shop-web-endpoints: denied"
        ]
    );
    // It takes it after all.
    world.failing.clear();
    settle(&mut world);
    assert!(said(&world, ("shop", "web"))[1].starts_with("Ready=True Exported"));
}
