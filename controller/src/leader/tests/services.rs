//! Conflicting and invalid exports.

use super::*;

fn conditions(snapshot: &LeaderSnapshot, export: &str) -> Vec<(String, String, String)> {
    let status = snapshot.exports[&NamespacedName::new(NS, export)].status.clone();
    let conditions = status.unwrap_or_default().conditions.into_iter();
    conditions.map(|c| (c.type_, c.status, c.reason)).collect()
}

/// Finding C8: etcd refused the import of both, so that changes and deletions of the other cluster had no effect.
#[test]
fn an_oversized_export_freezes_no_other() {
    let mut snapshot = leader_snapshot();
    for cluster in ["east", "west"] {
        insert(&mut snapshot.exports, service(cluster, "shop", "web", 80, NOW));
    }
    let mut large = endpoints("east", "shop", "web", "10.1.0.1");
    let addresses: Vec<_> = (0..40_000)
        .map(|i| json!({ "ip": format!("10.1.{}.{}", i >> 8, i & 255) }))
        .collect();
    large.spec.endpoints = Some(object(json!({ "subsets": [{
        "addresses": addresses, "ports": [{ "name": "http", "port": 80 }],
    }]})));
    insert(&mut snapshot.exports, large);
    for ip in ["10.2.0.1", "10.2.0.2"] {
        insert(&mut snapshot.exports, endpoints("west", "shop", "web", ip));
        settle(&mut snapshot);
        let clusters = &import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"];
        assert_eq!(clusters.as_array().unwrap().len(), 1);
        assert_eq!(clusters[0]["subsets"][0]["addresses"], json!([{ "ip": ip }]));
    }
    let [(type_, status, _)] = &conditions(&snapshot, "east-shop-web-endpoints")[..] else {
        panic!("one condition");
    };
    assert_eq!((type_.as_str(), status.as_str()), ("Failure", "False"));
    let west = NamespacedName::new(NS, "west-shop-web-endpoints");
    delete(&mut snapshot.exports, &west);
    settle(&mut snapshot);
    assert!(
        !snapshot.exports.contains_key(&west),
        "the deleted export is released"
    );
}

#[test]
fn ports_of_all_clusters_are_merged_and_each_exporter_has_the_conflict() {
    let mut snapshot = leader_snapshot();
    let mut west = service("west", "shop", "web", 80, "2026-01-01T11:00:00Z");
    let ports = json!([{ "name": "http", "port": 80 }, { "name": "dns", "port": 53, "protocol": "UDP" }]);
    west.spec.service = Some(object(json!({ "serviceSpec": { "ports": ports } })));
    insert(&mut snapshot.exports, west);
    insert(
        &mut snapshot.exports,
        service("east", "shop", "web", 80, "2026-01-01T11:00:05Z"),
    );
    for cluster in ["east", "west"] {
        let mut endpoints = endpoints(cluster, "shop", "web", "10.1.0.1");
        endpoints.spec.endpoints = Some(object(json!({ "subsets": [{
            "addresses": [{ "ip": "10.1.0.1" }],
            "ports": [{ "name": "http", "port": 80 }, { "name": "dns", "port": 53, "protocol": "UDP" }],
        }]})));
        insert(&mut snapshot.exports, endpoints);
    }
    settle(&mut snapshot);
    let import_ports = &import(&snapshot, "shop-web-service")["serviceImport"]["spec"]["ports"];
    assert_eq!(import_ports.as_array().unwrap().len(), 2);
    let clusters = &import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"];
    let ports = |i: usize| clusters[i]["subsets"][0]["ports"].as_array().unwrap().len();
    assert_eq!(
        (ports(0), ports(1)),
        (1, 2),
        "east serves only its exported ports: {clusters}"
    );
    for export in ["east-shop-web-service", "west-shop-web-service"] {
        let condition = |type_: &str, status: &str, reason: &str| {
            (type_.to_owned(), status.to_owned(), reason.to_owned())
        };
        assert_eq!(
            conditions(&snapshot, export),
            [
                condition("Succeeded", "True", ""),
                condition("Conflict", "True", "PortConflict")
            ]
        );
    }
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, "west-shop-web-service"),
    );
    settle(&mut snapshot);
    assert_eq!(
        conditions(&snapshot, "east-shop-web-service").len(),
        1,
        "no conflicting export is left"
    );
    let status = conditions(&snapshot, "west-shop-web-endpoints");
    assert_eq!(status[0].0, "Failure", "without its Service: {status:?}");
}

#[test]
fn an_invalid_export_is_rejected_alone_with_its_field() {
    let long = "x".repeat(64);
    let annotation = "x".repeat(1 << 20);
    for (payload, reason) in [
        (json!(null), "spec.service is missing".to_owned()),
        (
            json!({ "serviceSpec": { "ports": [{ "port": 80 }, { "name": "b", "port": 81 }] } }),
            "spec.service.serviceSpec.ports[0].name: \"\" is not a DNS label".to_owned(),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "name": long, "port": 80 }] } }),
            format!("spec.service.serviceSpec.ports[0].name: {long:?} is not a DNS label"),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "port": 70_000 }] } }),
            "spec.service.serviceSpec.ports[0].port: 70000 is not a port".to_owned(),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "port": 80, "protocol": "ICMP" }] } }),
            "spec.service.serviceSpec.ports[0].protocol: \"ICMP\" is not TCP, UDP or SCTP".to_owned(),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "name": "a", "port": 80 }, { "name": "a", "port": 81 }] } }),
            "ports[1].name: \"a\" is already spec.service.serviceSpec.ports[0]".to_owned(),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 80 }] } }),
            "ports[1].port: 80/TCP is already spec.service.serviceSpec.ports[0]".to_owned(),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "port": 80 }] }, "exportedLabels": { "a b": "" } }),
            "spec.service.exportedLabels: \"a b\" is not a label or annotation key".to_owned(),
        ),
        (
            json!({ "serviceSpec": { "ports": [{ "port": 80 }] }, "exportedAnnotations": { "a": annotation } }),
            "spec.service.exportedAnnotations: 1048577 bytes of annotations are more than".to_owned(),
        ),
    ] {
        let mut snapshot = leader_snapshot();
        let mut bad = service("west", "shop", "web", 80, "2026-01-01T11:00:00Z");
        bad.spec.service = serde_json::from_value(payload).unwrap();
        insert(&mut snapshot.exports, bad);
        insert(
            &mut snapshot.exports,
            endpoints("west", "shop", "web", "10.2.0.1"),
        );
        insert(&mut snapshot.exports, service("east", "shop", "web", 80, NOW));
        insert(
            &mut snapshot.exports,
            endpoints("east", "shop", "web", "10.1.0.1"),
        );
        settle(&mut snapshot);
        let status = snapshot.exports[&NamespacedName::new(NS, "west-shop-web-service")]
            .status
            .clone()
            .unwrap();
        assert_eq!(status.conditions[0].type_, "Failure");
        assert!(
            status.conditions[0].message.contains(&reason),
            "{reason}: {}",
            status.conditions[0].message
        );
        assert_eq!(
            conditions(&snapshot, "east-shop-web-service").len(),
            1,
            "{reason}"
        );
        let clusters = &import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"];
        assert_eq!(clusters.as_array().unwrap().len(), 1, "{reason}");
    }
}

#[test]
fn unusable_endpoints_are_rejected_with_their_field() {
    for (subset, reason) in [
        (
            json!({ "addresses": [{ "ip": "10.2.0.1" }, { "ip": "ten" }], "ports": [{ "name": "http", "port": 80 }] }),
            "spec.endpoints.subsets[0].addresses[1].ip: \"ten\" is not an IP address",
        ),
        (
            json!({ "addresses": [{ "ip": "::ffff:10.2.0.1" }], "ports": [{ "name": "http", "port": 80 }] }),
            "addresses[0].ip: \"::ffff:10.2.0.1\" is an IPv4-mapped",
        ),
        (
            json!({ "addresses": [{ "ip": "127.0.0.1" }], "ports": [{ "name": "http", "port": 80 }] }),
            "addresses[0].ip: \"127.0.0.1\" is not reachable from other clusters",
        ),
        (
            json!({ "addresses": [{ "ip": "10.2.0.1" }], "ports": [{ "name": "http", "port": 0 }] }),
            "spec.endpoints.subsets[0].ports[0].port: 0 is not a port",
        ),
    ] {
        let mut snapshot = leader_snapshot();
        insert(&mut snapshot.exports, service("west", "shop", "web", 80, NOW));
        let mut bad = endpoints("west", "shop", "web", "10.2.0.1");
        bad.spec.endpoints = Some(object(json!({ "subsets": [subset] })));
        insert(&mut snapshot.exports, bad);
        insert(&mut snapshot.exports, service("east", "shop", "web", 80, NOW));
        insert(
            &mut snapshot.exports,
            endpoints("east", "shop", "web", "10.1.0.1"),
        );
        settle(&mut snapshot);
        let status = snapshot.exports[&NamespacedName::new(NS, "west-shop-web-endpoints")]
            .status
            .clone()
            .unwrap();
        assert!(
            status.conditions[0].message.contains(reason),
            "{reason}: {}",
            status.conditions[0].message
        );
        let clusters = &import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"];
        assert_eq!(clusters.as_array().unwrap().len(), 1);
    }
}

#[test]
fn an_import_wins_over_a_later_export_of_the_same_second() {
    let changes = [
        json!({ "clusterIP": "None" }),
        json!({ "sessionAffinity": "ClientIP" }),
        json!({ "trafficDistribution": "PreferClose" }),
    ];
    for change in changes {
        let mut snapshot = leader_snapshot();
        insert(&mut snapshot.exports, service("west", "shop", "web", 80, NOW));
        insert(
            &mut snapshot.exports,
            endpoints("west", "shop", "web", "10.2.0.1"),
        );
        settle(&mut snapshot);
        let before = import(&snapshot, "shop-web-service");
        // First by name, with the same ports.
        let mut other = serde_json::to_value(service("east", "shop", "web", 80, NOW)).unwrap();
        for (key, value) in change.as_object().unwrap() {
            other["spec"]["service"]["serviceSpec"][key] = value.clone();
        }
        insert(
            &mut snapshot.exports,
            serde_json::from_value::<ResourceExport>(other).unwrap(),
        );
        insert(
            &mut snapshot.exports,
            endpoints("east", "shop", "web", "10.1.0.1"),
        );
        settle(&mut snapshot);
        assert_eq!(import(&snapshot, "shop-web-service"), before, "{change}");
    }
}
