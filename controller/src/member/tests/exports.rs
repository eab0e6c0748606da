//! `ServiceExport`s.

use std::time::Duration;

use kube::ResourceExt;

use super::*;
use crate::{
    api::{
        config::EndpointIpType,
        resource_export::{EndpointsExport, ServiceExportPayload},
    },
    plan::Op,
    world::{fake::delete, time},
};

/// What is said of the Service `web` in the leader cluster.
fn offered(world: &MemberWorld) -> ServiceExportPayload {
    let spec = &export(world, "east-shop-web-service").unwrap().spec;
    *spec.service.clone().unwrap()
}

/// What is said there of its endpoints.
fn endpoints(world: &MemberWorld) -> EndpointsExport {
    let spec = &export(world, "east-shop-web-endpoints").unwrap().spec;
    spec.endpoints.clone().unwrap()
}

#[test]
fn a_service_is_exported_by_its_cluster_ip_or_its_pods() {
    for (kind, ips, port) in [
        (EndpointIpType::ClusterIp, vec!["10.20.0.5"], 80),
        (EndpointIpType::PodIp, vec!["10.11.0.5", "10.11.0.6"], 8080),
    ] {
        let mut world = world();
        world.config.endpoint_ip_type = kind;
        insert(&mut world.services, web());
        insert(
            &mut world.slices,
            slice(&[("10.11.0.6", true), ("10.11.0.5", true), ("10.11.0.7", false)]),
        );
        insert(&mut world.service_exports, service_export());
        settle(&mut world);
        assert_eq!(valid(&world), ("True".to_owned(), "Succeed".to_owned()));
        let service = export(&world, "east-shop-web-service").unwrap();
        assert_eq!(service.labels()["sourceClusterID"], "east");
        assert_eq!(service.finalizers(), [names::FINALIZER_RESOURCE_EXPORT]);
        let ports = service
            .spec
            .service
            .as_ref()
            .unwrap()
            .service_spec
            .ports
            .clone()
            .unwrap();
        assert_eq!((ports[0].port, ports[0].node_port), (80, None));
        let endpoints = endpoints(&world);
        assert_eq!(endpoints.subsets.len(), 1);
        let found: Vec<_> = endpoints.subsets[0]
            .addresses
            .iter()
            .flatten()
            .map(|a| a.ip.as_str())
            .collect();
        assert_eq!(found, ips);
        assert_eq!(endpoints.subsets[0].ports.as_ref().unwrap()[0].port, port);
    }
}

#[test]
fn what_cannot_be_exported_is_withdrawn_with_a_reason() {
    let ports = json!([{ "port": 80, "protocol": "TCP" }]);
    let mut imported = web();
    imported
        .annotations_mut()
        .insert(names::ANNOTATION_IMPORTED_SERVICE.to_owned(), "true".to_owned());
    let v6 = service(
        "web",
        &json!({ "clusterIP": "fd00::1", "clusterIPs": ["fd00::1"], "ports": ports }),
    );
    let external = service(
        "web",
        &json!({ "type": "ExternalName", "externalName": "example.com" }),
    );
    for (service, ready, reason) in [
        (None, true, "ServiceNotFound"),
        (Some(external), true, "ServiceTypeNotSupported"),
        (Some(v6), true, "ServiceNoClusterIP"),
        (Some(imported), true, "ImportedService"),
        (Some(web()), false, "ServiceWithoutEndpoints"),
    ] {
        let mut world = exporting();
        settle(&mut world);
        assert!(export(&world, "east-shop-web-service").is_some());
        world.services = Objects::default();
        if let Some(service) = service {
            insert(&mut world.services, service);
        }
        insert(&mut world.slices, slice(&[("10.11.0.5", ready)]));
        let plan = plan(&world);
        let deletes = plan
            .actions
            .iter()
            .filter(|a| matches!(a.op, Op::Delete { .. }))
            .count();
        assert_eq!(deletes, 2, "{reason}");
        step(&mut world);
        assert_eq!(valid(&world), ("False".to_owned(), reason.to_owned()));
    }
}

#[test]
fn the_leaders_verdict_reaches_the_service_export() {
    let mut world = exporting();
    settle(&mut world);
    let mut failed = export(&world, "east-shop-web-service").unwrap().as_ref().clone();
    failed.status = Some(object(json!({ "conditions": [{
        "type": "Failure", "status": "False", "reason": "ConvergeFailure", "message": "ports don't match",
    }]})));
    insert(&mut leader(&mut world).exports, failed.clone());
    settle(&mut world);
    let conditions = conditions(&world);
    let said: Vec<_> = conditions
        .iter()
        .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            ("Valid", "True", "Succeed"),
            ("Ready", "False", "Failed"),
            ("Conflict", "True", "Conflict")
        ]
    );
    assert_eq!(conditions[2].message, "ports don't match");
    failed.status = None;
    insert(&mut leader(&mut world).exports, failed);
    settle(&mut world);
    assert_eq!(told(&world).len(), 2);
}

/// Type, status and reason of the conditions of the only `ServiceExport`.
fn told(world: &MemberWorld) -> Vec<(String, String, String)> {
    let conditions = conditions(world).into_iter();
    conditions.map(|c| (c.type_, c.status, c.reason)).collect()
}

#[test]
fn a_conflict_keeps_its_reasons_and_goes_again() {
    let mut world = exporting();
    settle(&mut world);
    let says = |world: &mut MemberWorld, conditions: Value| {
        let mut judged = export(world, "east-shop-web-service").unwrap().as_ref().clone();
        judged.status = Some(object(json!({ "conditions": conditions })));
        insert(&mut leader(world).exports, judged);
        settle(world);
        told(world)
    };
    let condition =
        |type_: &str, status: &str, reason: &str| (type_.to_owned(), status.to_owned(), reason.to_owned());
    let succeeded = json!({ "type": "Succeeded", "status": "True" });
    let conflict = json!({ "type": "Conflict", "status": "True", "reason": "PortConflict,TypeConflict", "message": "m" });
    let exported = [
        condition("Valid", "True", "Succeed"),
        condition("Ready", "True", "Exported"),
    ];
    assert_eq!(
        says(&mut world, json!([succeeded, conflict])),
        [
            &exported[..],
            &[condition("Conflict", "True", "PortConflict,TypeConflict")]
        ]
        .concat()
    );
    assert_eq!(
        says(&mut world, json!([succeeded])),
        [&exported[..], &[condition("Conflict", "False", "NoConflicts")]].concat()
    );
}

#[test]
fn an_export_the_leader_does_not_have_yet_is_not_ready() {
    let mut world = exporting();
    world.leader = None;
    settle(&mut world);
    let pending = ("Ready".to_owned(), "False".to_owned(), "Pending".to_owned());
    assert_eq!(told(&world), [pending]);
}

#[test]
fn of_a_young_export_one_write_tells_all() {
    let mut young = exporting();
    let mut export = service_export();
    export.metadata.creation_timestamp = Some(time(young.now));
    insert(&mut young.service_exports, export);
    let said = |world: &MemberWorld| world.service_exports.values().next().unwrap().status.is_some();
    settle(&mut young);
    assert!(!said(&young), "the leader has not judged it");
    let until = young.now.checked_add(Duration::from_secs(10)).unwrap();
    assert_eq!(plan(&young).wake_at.map(|at| at <= until), Some(true));

    let mut judged = young.clone();
    let mut theirs = super::export(&judged, "east-shop-web-service")
        .unwrap()
        .as_ref()
        .clone();
    theirs.status = Some(object(
        json!({ "conditions": [{ "type": "Succeeded", "status": "True" }] }),
    ));
    insert(&mut leader(&mut judged).exports, theirs);
    assert_eq!(step(&mut judged).len(), 1);
    assert_eq!(told(&judged).len(), 3);
    assert!(plan(&judged).actions.is_empty());

    let mut silent = young.clone();
    silent.now = until;
    settle(&mut silent);
    assert_eq!(told(&silent).len(), 2, "what is known without the leader");

    let mut behind = young.clone();
    behind.now = behind.now.checked_sub(Duration::from_mins(1)).unwrap();
    settle(&mut behind);
    assert!(said(&behind), "a slow clock keeps nobody waiting");
}

#[test]
fn a_headless_service_is_exported_by_its_pods_with_their_names() {
    let mut world = world();
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }]);
    insert(
        &mut world.services,
        service(
            "web",
            &json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": ports }),
        ),
    );
    let mut slice = slice(&[("10.11.0.5", true), ("10.11.0.6", false)]);
    slice.endpoints[0].hostname = Some("web-0".to_owned());
    insert(&mut world.slices, slice);
    insert(&mut world.service_exports, service_export());
    settle(&mut world);
    assert_eq!(valid(&world), ("True".to_owned(), "Succeed".to_owned()));
    let service = offered(&world);
    assert_eq!(service.service_spec.cluster_ip.as_deref(), Some("None"));
    let endpoints = endpoints(&world);
    assert_eq!(
        serde_json::to_value(&endpoints.subsets).unwrap(),
        json!([{
            "addresses": [{ "ip": "10.11.0.5", "hostname": "web-0" }],
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        }])
    );
}

#[test]
fn addresses_of_a_family_are_exported_where_others_have_a_way_to_them() {
    let spec = json!({
        "clusterIP": "10.20.0.5", "clusterIPs": ["10.20.0.5", "fd00:20::5"], "ipFamilies": ["IPv4", "IPv6"],
        "ports": [{ "name": "http", "port": 80 }],
    });
    for (more, families, ips) in [
        (None, json!(["IPv4"]), vec!["10.20.0.5"]),
        (
            Some("fd00:20::/112"),
            json!(["IPv4", "IPv6"]),
            vec!["10.20.0.5", "fd00:20::5"],
        ),
    ] {
        let mut world = world();
        world
            .service_cidrs
            .extend(more.map(|cidr| cidr.parse::<ipnet::IpNet>().unwrap()));
        insert(&mut world.services, service("web", &spec));
        insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
        insert(&mut world.service_exports, service_export());
        settle(&mut world);
        let service = offered(&world);
        assert_eq!(json!(service.service_spec.ip_families), families);
        let endpoints = endpoints(&world);
        let addresses = endpoints.subsets[0].addresses.iter().flatten();
        assert_eq!(addresses.map(|a| a.ip.as_str()).collect::<Vec<_>>(), ips);
    }
}

#[test]
fn an_unknown_service_cidr_withdraws_nothing() {
    let mut world = exporting();
    settle(&mut world);
    // The controller has started anew, and the API server does not answer yet.
    world.service_cidrs.clear();
    insert(&mut world.slices, slice(&[("10.11.0.5", false)]));
    assert_eq!(plan(&world).actions, []);
    assert_eq!(valid(&world), ("True".to_owned(), "Succeed".to_owned()));
}

#[test]
fn exported_metadata_goes_along_and_is_checked() {
    let mut world = world();
    insert(&mut world.services, web());
    insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
    let with = |spec: Value| -> ServiceExport {
        object(json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": spec }))
    };
    insert(
        &mut world.service_exports,
        with(
            json!({ "exportedLabels": { "team": "web" }, "exportedAnnotations": { "note": "of any kind" } }),
        ),
    );
    settle(&mut world);
    let payload = offered(&world);
    assert_eq!(payload.exported_labels["team"], "web");
    assert_eq!(payload.exported_annotations["note"], "of any kind");
    let long = "x".repeat(1 << 20);
    for (spec, message) in [
        (
            json!({ "exportedLabels": { "team": "a b" } }),
            "spec.exportedLabels: \"a b\" of \"team\" is not a label value",
        ),
        (
            json!({ "exportedAnnotations": { "note": long } }),
            "spec.exportedAnnotations: 1048580 bytes of annotations",
        ),
    ] {
        insert(&mut world.service_exports, with(spec));
        settle(&mut world);
        assert_eq!(
            valid(&world),
            ("False".to_owned(), "InvalidExportedMetadata".to_owned())
        );
        let conditions = conditions(&world);
        assert!(
            conditions[0].message.starts_with(message),
            "{}",
            conditions[0].message
        );
        assert!(
            export(&world, "east-shop-web-service").is_none_or(|e| e.metadata.deletion_timestamp.is_some())
        );
    }
}

#[test]
fn an_export_on_its_way_out_is_left_alone() {
    let mut world = exporting();
    settle(&mut world);
    for name in ["east-shop-web-service", "east-shop-web-endpoints"] {
        delete(
            &mut leader(&mut world).exports,
            &(LEADER_NS.to_owned(), name.to_owned()),
        );
    }
    assert_eq!(plan(&world).actions, []);
    // Also when there is something new to say.
    let mut changed = web();
    let ports = changed
        .spec
        .as_mut()
        .and_then(|spec| spec.ports.as_mut())
        .unwrap();
    ports[0].port += 1;
    insert(&mut world.services, changed);
    let written = |a: &Action| a.target.side == Side::Leader;
    assert!(!plan(&world).actions.iter().any(written));
    leader(&mut world).exports = Objects::default();
    settle(&mut world);
    assert!(
        export(&world, "east-shop-web-endpoints").is_some(),
        "written anew"
    );
}
