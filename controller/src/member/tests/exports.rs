//! `ServiceExport`s.

use std::time::Duration;

use kube::ResourceExt;
use mc_api::{
    config::{EndpointIpType, MultiClusterConfig},
    resource_export::{EndpointsExport, ServiceExportPayload},
};

use super::*;
use crate::{
    member::imported_service::is_imported,
    plan::WriteOp,
    snapshot::{api_time, fake::delete},
};

/// The export of the Service `web`.
fn exported_service(snapshot: &MemberSnapshot) -> ServiceExportPayload {
    let spec = &export(snapshot, "east-shop-web-service").unwrap().spec;
    *spec.service.clone().unwrap()
}

/// The export of its endpoints.
fn exported_endpoints(snapshot: &MemberSnapshot) -> EndpointsExport {
    let spec = &export(snapshot, "east-shop-web-endpoints").unwrap().spec;
    spec.endpoints.clone().unwrap()
}

#[test]
fn a_service_is_exported_by_its_cluster_ip_or_its_pods() {
    for (kind, ips, port) in [
        (EndpointIpType::ClusterIp, vec!["10.20.0.5"], 80),
        (EndpointIpType::PodIp, vec!["10.11.0.5", "10.11.0.6"], 8080),
    ] {
        let mut snapshot = snapshot();
        snapshot.config.endpoint_ip_type = kind;
        insert(&mut snapshot.services, web());
        insert(
            &mut snapshot.endpoint_slices,
            slice(&[("10.11.0.6", true), ("10.11.0.5", true), ("10.11.0.7", false)]),
        );
        insert(&mut snapshot.service_exports, service_export());
        settle(&mut snapshot);
        assert_eq!(valid(&snapshot), ("True".to_owned(), "Succeed".to_owned()));
        let service = export(&snapshot, "east-shop-web-service").unwrap();
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
        let endpoints = exported_endpoints(&snapshot);
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
fn an_unexportable_service_is_withdrawn_with_a_reason() {
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
        let mut snapshot = exporting();
        snapshot.config.withdraw_after = SignedDuration::ZERO;
        settle(&mut snapshot);
        assert!(export(&snapshot, "east-shop-web-service").is_some());
        snapshot.services = ObjectMap::default();
        if let Some(service) = service {
            insert(&mut snapshot.services, service);
        }
        insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", ready)]));
        let plan = plan(&snapshot);
        let deletes = plan
            .writes
            .iter()
            .filter(|a| matches!(a.op, WriteOp::Delete { .. }))
            .count();
        assert_eq!(deletes, 2, "{reason}");
        reconcile(&mut snapshot);
        assert_eq!(valid(&snapshot), ("False".to_owned(), reason.to_owned()));
    }
}

#[test]
fn the_leaders_status_is_copied_to_the_service_export() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    let mut failed = export(&snapshot, "east-shop-web-service")
        .unwrap()
        .as_ref()
        .clone();
    failed.status = Some(object(json!({ "conditions": [{
        "type": "Failure", "status": "False", "reason": "ConvergeFailure", "message": "ports don't match",
    }]})));
    insert(&mut leader(&mut snapshot).exports, failed.clone());
    settle(&mut snapshot);
    let conditions = conditions(&snapshot);
    let summaries: Vec<_> = conditions
        .iter()
        .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str()))
        .collect();
    assert_eq!(
        summaries,
        [
            ("Valid", "True", "Succeed"),
            ("Ready", "False", "Failed"),
            ("Conflict", "True", "Conflict")
        ]
    );
    assert_eq!(conditions[2].message, "ports don't match");
    failed.status = None;
    insert(&mut leader(&mut snapshot).exports, failed);
    settle(&mut snapshot);
    assert_eq!(condition_summaries(&snapshot).len(), 2);
}

/// The Service itself is imported: no cluster contradicts it.
#[test]
fn a_failure_of_the_endpoints_is_no_conflict() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    let condition =
        |type_: &str, status: &str| json!([{ "type": type_, "status": status, "message": "too large" }]);
    for (name, conditions) in [
        ("east-shop-web-service", condition("Succeeded", "True")),
        ("east-shop-web-endpoints", condition("Failure", "False")),
    ] {
        let mut changed = export(&snapshot, name).unwrap().as_ref().clone();
        changed.status = Some(object(json!({ "conditions": conditions })));
        insert(&mut leader(&mut snapshot).exports, changed);
    }
    settle(&mut snapshot);
    let summaries: Vec<_> = condition_summaries(&snapshot)
        .into_iter()
        .map(|(type_, status, _)| (type_, status))
        .collect();
    let condition = |type_: &str, status: &str| (type_.to_owned(), status.to_owned());
    assert_eq!(
        summaries,
        [
            condition("Valid", "True"),
            condition("Ready", "False"),
            condition("Conflict", "False")
        ]
    );
    assert_eq!(conditions(&snapshot)[1].message, "too large");
}

/// Type, status and reason of the conditions of the only `ServiceExport`.
fn condition_summaries(snapshot: &MemberSnapshot) -> Vec<(String, String, String)> {
    let conditions = conditions(snapshot).into_iter();
    conditions.map(|c| (c.type_, c.status, c.reason)).collect()
}

#[test]
fn a_conflict_has_the_leaders_reasons_and_ends() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    let with_leader_status = |snapshot: &mut MemberSnapshot, conditions: Value| {
        let mut changed = export(snapshot, "east-shop-web-service")
            .unwrap()
            .as_ref()
            .clone();
        changed.status = Some(object(json!({ "conditions": conditions })));
        insert(&mut leader(snapshot).exports, changed);
        settle(snapshot);
        condition_summaries(snapshot)
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
        with_leader_status(&mut snapshot, json!([succeeded, conflict])),
        [
            &exported[..],
            &[condition("Conflict", "True", "PortConflict,TypeConflict")]
        ]
        .concat()
    );
    assert_eq!(
        with_leader_status(&mut snapshot, json!([succeeded])),
        [&exported[..], &[condition("Conflict", "False", "NoConflicts")]].concat()
    );
}

#[test]
fn an_export_that_the_leader_lacks_is_not_ready() {
    let mut snapshot = exporting();
    snapshot.leader = None;
    settle(&mut snapshot);
    let pending = ("Ready".to_owned(), "False".to_owned(), "Pending".to_owned());
    assert_eq!(condition_summaries(&snapshot), [pending]);
}

#[test]
fn the_status_of_a_new_export_is_written_once() {
    let mut young = exporting();
    let mut export = service_export();
    export.metadata.creation_timestamp = Some(api_time(young.now));
    insert(&mut young.service_exports, export);
    let has_status =
        |snapshot: &MemberSnapshot| snapshot.service_exports.values().next().unwrap().status.is_some();
    settle(&mut young);
    assert!(!has_status(&young), "before the leader's status");
    let until = young.now.checked_add(Duration::from_secs(10)).unwrap();
    assert_eq!(plan(&young).next_requeue.map(|at| at <= until), Some(true));

    let mut merged = young.clone();
    let mut remote = super::export(&merged, "east-shop-web-service")
        .unwrap()
        .as_ref()
        .clone();
    remote.status = Some(object(
        json!({ "conditions": [{ "type": "Succeeded", "status": "True" }] }),
    ));
    insert(&mut leader(&mut merged).exports, remote);
    assert_eq!(reconcile(&mut merged).len(), 1);
    assert_eq!(condition_summaries(&merged).len(), 3);
    assert!(plan(&merged).writes.is_empty());

    let mut timed_out = young.clone();
    timed_out.now = until;
    settle(&mut timed_out);
    assert_eq!(
        condition_summaries(&timed_out).len(),
        2,
        "conditions without the leader's status"
    );

    let mut behind = young.clone();
    behind.now = behind.now.checked_sub(Duration::from_mins(1)).unwrap();
    settle(&mut behind);
    assert!(has_status(&behind), "a clock set back does not delay the status");
}

#[test]
fn a_headless_service_is_exported_by_its_pods_with_their_names() {
    let mut snapshot = snapshot();
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }]);
    insert(
        &mut snapshot.services,
        service(
            "web",
            &json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": ports }),
        ),
    );
    let mut slice = slice(&[("10.11.0.5", true), ("10.11.0.6", false)]);
    slice.endpoints[0].hostname = Some("web-0".to_owned());
    insert(&mut snapshot.endpoint_slices, slice);
    insert(&mut snapshot.service_exports, service_export());
    settle(&mut snapshot);
    assert_eq!(valid(&snapshot), ("True".to_owned(), "Succeed".to_owned()));
    let service = exported_service(&snapshot);
    assert_eq!(service.service_spec.cluster_ip.as_deref(), Some("None"));
    let endpoints = exported_endpoints(&snapshot);
    assert_eq!(
        serde_json::to_value(&endpoints.subsets).unwrap(),
        json!([{
            "addresses": [{ "ip": "10.11.0.5", "hostname": "web-0" }],
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        }])
    );
}

#[test]
fn only_addresses_in_announced_networks_are_exported() {
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
        let mut snapshot = snapshot();
        snapshot
            .service_cidrs
            .extend(more.map(|cidr| cidr.parse::<ipnet::IpNet>().unwrap()));
        insert(&mut snapshot.services, service("web", &spec));
        insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", true)]));
        insert(&mut snapshot.service_exports, service_export());
        settle(&mut snapshot);
        let service = exported_service(&snapshot);
        assert_eq!(json!(service.service_spec.ip_families), families);
        let endpoints = exported_endpoints(&snapshot);
        let addresses = endpoints.subsets[0].addresses.iter().flatten();
        assert_eq!(addresses.map(|a| a.ip.as_str()).collect::<Vec<_>>(), ips);
    }
}

#[test]
fn an_unknown_service_cidr_withdraws_nothing() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    // The controller has restarted, and the API server does not answer yet.
    snapshot.service_cidrs.clear();
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", false)]));
    assert_eq!(plan(&snapshot).writes, []);
    assert_eq!(valid(&snapshot), ("True".to_owned(), "Succeed".to_owned()));
}

#[test]
fn exported_metadata_is_exported_and_validated() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.services, web());
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", true)]));
    let with = |spec: Value| -> ServiceExport {
        object(json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": spec }))
    };
    insert(
        &mut snapshot.service_exports,
        with(
            json!({ "exportedLabels": { "team": "web" }, "exportedAnnotations": { "note": "of any kind" } }),
        ),
    );
    settle(&mut snapshot);
    let payload = exported_service(&snapshot);
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
        insert(&mut snapshot.service_exports, with(spec));
        settle(&mut snapshot);
        assert_eq!(
            valid(&snapshot),
            ("False".to_owned(), "InvalidExportedMetadata".to_owned())
        );
        let conditions = conditions(&snapshot);
        assert!(
            conditions[0].message.starts_with(message),
            "{}",
            conditions[0].message
        );
        assert!(
            export(&snapshot, "east-shop-web-service")
                .is_none_or(|e| e.metadata.deletion_timestamp.is_some())
        );
    }
}

/// `antrea-mc-` and the name are at most 63 characters long.
#[test]
fn a_name_that_no_cluster_can_import_is_not_exported() {
    for (len, reason) in [(53, "Succeed"), (54, "NameNotImportable")] {
        let name = "x".repeat(len);
        let mut snapshot = snapshot();
        let mut web = web();
        web.metadata.name = Some(name.clone());
        insert(&mut snapshot.services, web);
        let mut slice = slice(&[("10.11.0.5", true)]);
        slice
            .labels_mut()
            .insert("kubernetes.io/service-name".to_owned(), name.clone());
        insert(&mut snapshot.endpoint_slices, slice);
        let export = object(json!({ "metadata": { "name": name, "namespace": "shop" } }));
        insert(&mut snapshot.service_exports, export);
        settle(&mut snapshot);
        assert_eq!(valid(&snapshot).1, reason, "{len}");
        assert_eq!(leader(&mut snapshot).exports.is_empty(), len > 53);
    }
}

#[test]
fn a_closed_namespace_exports_and_imports_nothing() {
    let mut snapshot = exporting();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "api"));
    settle(&mut snapshot);
    let counts = |snapshot: &mut MemberSnapshot| {
        let imported = snapshot.services.values().filter(|s| is_imported(s)).count();
        let exports = leader(snapshot).exports.values();
        let exported =
            exports.filter(|e| e.metadata.deletion_timestamp.is_none() && !e.spec.namespace.is_empty());
        (exported.count(), imported)
    };
    assert_eq!(counts(&mut snapshot), (2, 1));
    let strict = |allowed: &str| {
        let file = json!({ "namespacePolicy": "Strict", "allowedNamespaces": [allowed] });
        let file: MultiClusterConfig = serde_json::from_value(file).unwrap();
        Config::try_from(file).unwrap().namespace_policy
    };
    snapshot.config.namespace_policy = strict("team-*");
    settle(&mut snapshot);
    assert_eq!(counts(&mut snapshot), (0, 0));
    let conditions = &snapshot
        .service_exports
        .values()
        .next()
        .unwrap()
        .status
        .as_ref()
        .unwrap()
        .conditions;
    let refused = conditions.iter().find(|c| c.type_ == "Valid").unwrap();
    assert_eq!(
        (refused.reason.as_str(), refused.message.as_str()),
        (
            "NamespaceNotAllowed",
            "metadata.namespace \"shop\": namespacePolicy in the controller's configuration does not allow it"
        )
    );
    assert_issue(
        &plan(&snapshot),
        "ResourceImport shop-api-service: spec.namespace: namespacePolicy in the controller's configuration does not \
         allow \"shop\"",
    );
    // The leader removes the finalizers of withdrawn exports.
    leader(&mut snapshot).exports = ObjectMap::default();
    snapshot.config.namespace_policy = strict("shop");
    settle(&mut snapshot);
    assert_eq!(counts(&mut snapshot), (2, 1));
}

#[test]
fn keys_of_reserved_domains_are_not_exported() {
    let mut snapshot = exporting();
    let export = object(json!({
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": {
            "exportedLabels": { "app.kubernetes.io/name": "web", "argocd.argoproj.io/instance": "infra" },
            "exportedAnnotations": { "service.cilium.io/global": "true" },
        },
    }));
    insert(&mut snapshot.service_exports, export);
    settle(&mut snapshot);
    let payload = exported_service(&snapshot);
    let labels = BTreeMap::from([("app.kubernetes.io/name".to_owned(), "web".to_owned())]);
    assert_eq!(payload.exported_labels, labels);
    assert_eq!(payload.exported_annotations, BTreeMap::new());
    assert_eq!(valid(&snapshot), ("True".to_owned(), "Succeed".to_owned()));
    let events = plan(&snapshot).warning_events;
    let [event] = &events[..] else {
        panic!("{events:#?}");
    };
    assert_eq!(
        event.message,
        r#"spec.exportedLabels: key "argocd.argoproj.io/instance" and 1 more of a reserved domain: not exported"#
    );
}

#[test]
fn an_export_being_deleted_is_left_alone() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    for name in ["east-shop-web-service", "east-shop-web-endpoints"] {
        delete(
            &mut leader(&mut snapshot).exports,
            &NamespacedName::new(LEADER_NS, name),
        );
    }
    assert_eq!(plan(&snapshot).writes, []);
    // Also if the Service has changed.
    let mut changed = web();
    let ports = changed
        .spec
        .as_mut()
        .and_then(|spec| spec.ports.as_mut())
        .unwrap();
    ports[0].port += 1;
    insert(&mut snapshot.services, changed);
    let written = |a: &Write| a.target.side == ApiServer::Leader;
    assert!(!plan(&snapshot).writes.iter().any(written));
    leader(&mut snapshot).exports = ObjectMap::default();
    settle(&mut snapshot);
    assert!(
        export(&snapshot, "east-shop-web-endpoints").is_some(),
        "created again"
    );
}
