//! `ServiceExport`s.

use kube::ResourceExt;

use super::*;
use crate::{api::config::EndpointIpType, plan::Op, world::fake::delete};

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
        let endpoints = export(&world, "east-shop-web-endpoints")
            .unwrap()
            .spec
            .endpoints
            .clone()
            .unwrap();
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
    let headless = service(
        "web",
        &json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": ports }),
    );
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
        (Some(headless), true, "ServiceNoClusterIP"),
        (Some(v6), true, "ServiceNoClusterIP"),
        (Some(imported), true, "ImportedService"),
        (Some(web()), false, "ServiceWithoutEndpoints"),
    ] {
        let mut world = world();
        insert(&mut world.services, web());
        insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
        insert(&mut world.service_exports, service_export());
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
    let mut world = world();
    insert(&mut world.services, web());
    insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
    insert(&mut world.service_exports, service_export());
    settle(&mut world);
    let mut failed = export(&world, "east-shop-web-service").unwrap().as_ref().clone();
    failed.status = Some(object(json!({ "conditions": [{
        "type": "Failure", "status": "False", "reason": "ConvergeFailure", "message": "ports don't match",
    }]})));
    insert(&mut leader(&mut world).exports, failed.clone());
    settle(&mut world);
    let conditions = world
        .service_exports
        .values()
        .next()
        .unwrap()
        .status
        .clone()
        .unwrap()
        .conditions;
    assert_eq!(
        (conditions[1].type_.as_str(), conditions[1].message.as_str()),
        ("Conflict", "ports don't match")
    );
    failed.status = None;
    insert(&mut leader(&mut world).exports, failed);
    settle(&mut world);
    assert_eq!(
        world
            .service_exports
            .values()
            .next()
            .unwrap()
            .status
            .clone()
            .unwrap()
            .conditions
            .len(),
        1
    );
}

#[test]
fn an_export_on_its_way_out_is_left_alone() {
    let mut world = world();
    insert(&mut world.services, web());
    insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
    insert(&mut world.service_exports, service_export());
    settle(&mut world);
    for name in ["east-shop-web-service", "east-shop-web-endpoints"] {
        delete(
            &mut leader(&mut world).exports,
            &(LEADER_NS.to_owned(), name.to_owned()),
        );
    }
    assert_eq!(plan(&world).actions, []);
    leader(&mut world).exports = Objects::default();
    settle(&mut world);
    assert!(
        export(&world, "east-shop-web-endpoints").is_some(),
        "written anew"
    );
}
