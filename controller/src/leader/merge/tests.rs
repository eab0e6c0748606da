//! Merges with and without conflicts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "called with literals")]
fn payload(spec: Value) -> ServiceExportPayload {
    serde_json::from_value(json!({ "serviceSpec": spec })).unwrap()
}

fn merged(services: &[(&'static str, ServiceExportPayload)]) -> MergeResult {
    let exports: Vec<_> = services
        .iter()
        .map(|(cluster, service)| ExporterSpec { cluster, service })
        .collect();
    merge(&exports).unwrap()
}

fn names(merged: &MergeResult) -> Vec<(&str, i32)> {
    merged
        .spec
        .ports
        .iter()
        .map(|p| (p.name.as_str(), p.port))
        .collect()
}

fn served_ports(merged: &MergeResult, cluster: &str) -> Vec<String> {
    merged
        .ports_by_cluster
        .get(cluster)
        .into_iter()
        .flatten()
        .cloned()
        .collect()
}

#[test]
fn without_exporters_there_is_no_merge() {
    assert_eq!(merge(&[]), None);
}

#[test]
fn equal_exporters_have_no_conflict() {
    let web = payload(json!({
        "ports": [{ "name": "http", "port": 80, "appProtocol": "http" }, { "name": "dns", "port": 53, "protocol": "UDP" }],
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10 } },
        "internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose", "ipFamilies": ["IPv4", "IPv6"],
    }));
    let merged = merged(&[("east", web.clone()), ("west", web)]);
    assert!(merged.conflicts.is_empty(), "{:?}", merged.conflicts);
    assert_eq!(names(&merged), [("http", 80), ("dns", 53)]);
    assert_eq!(served_ports(&merged, "east"), ["dns", "http"]);
    assert_eq!(served_ports(&merged, "west"), ["dns", "http"]);
    assert_eq!(
        serde_json::to_value(&merged.spec).unwrap(),
        json!({
            "ports": [
                { "name": "http", "port": 80, "protocol": "TCP", "appProtocol": "http" },
                { "name": "dns", "port": 53, "protocol": "UDP" },
            ],
            "type": "ClusterSetIP",
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10 } },
            "internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose", "ipFamilies": ["IPv4", "IPv6"],
        })
    );
}

#[test]
fn keys_of_reserved_domains_are_neither_merged_nor_a_conflict() {
    let plain = payload(json!({ "ports": [{ "port": 80 }] }));
    let mut reserved = plain.clone();
    reserved.exported_labels = [("argocd.argoproj.io/instance".to_owned(), "infra".to_owned())].into();
    reserved.exported_annotations = [("service.cilium.io/global".to_owned(), "true".to_owned())].into();
    let merged = merged(&[("east", reserved.clone()), ("west", plain)]);
    assert!(merged.conflicts.is_empty(), "{:?}", merged.conflicts);
    assert!(
        merged.labels.is_empty() && merged.annotations.is_empty(),
        "{merged:?}"
    );
    let import = ServiceImport::new("web", merged.spec);
    assert!(matches_import(&reserved, &import));
}

#[test]
fn an_absent_field_equals_its_default() {
    let explicit = payload(
        json!({ "ports": [{ "port": 80, "protocol": "TCP" }], "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"] }),
    );
    let absent = payload(json!({ "ports": [{ "port": 80 }] }));
    assert!(
        merged(&[("east", explicit.clone()), ("west", absent.clone())])
            .conflicts
            .is_empty()
    );
    assert!(
        merged(&[("west", absent), ("east", explicit)])
            .conflicts
            .is_empty()
    );
}

#[test]
fn ports_are_merged_and_each_cluster_serves_its_own() {
    let east = payload(json!({ "ports": [{ "name": "a", "port": 42 }, { "name": "b", "port": 43 }] }));
    let west = payload(json!({ "ports": [{ "name": "b", "port": 43 }, { "name": "c", "port": 44 }] }));
    let merged = merged(&[("east", east), ("west", west)]);
    assert_eq!(names(&merged), [("a", 42), ("b", 43), ("c", 44)]);
    assert_eq!(served_ports(&merged, "east"), ["a", "b"]);
    assert_eq!(served_ports(&merged, "west"), ["b", "c"]);
    assert_eq!(merged.conflicts.reason(), "PortConflict");
    assert_eq!(
        merged.conflicts.message(),
        "cluster \"east\" has no port \"c\"; cluster \"west\" has no port \"a\""
    );
}

#[test]
fn the_oldest_of_conflicting_ports_is_used() {
    let east = payload(json!({ "ports": [{ "name": "a", "port": 42 }] }));
    for (port, message) in [
        (
            json!({ "name": "a", "port": 43 }),
            "port \"a\" 43/TCP of cluster \"west\" conflicts with port \"a\" 42/TCP, which is used",
        ),
        (
            json!({ "name": "a", "port": 42, "protocol": "UDP" }),
            "port \"a\" 42/UDP of cluster \"west\" conflicts with port \"a\" 42/TCP, which is used",
        ),
        (
            json!({ "name": "z", "port": 42 }),
            "port \"z\" 42/TCP of cluster \"west\" conflicts with port \"a\" 42/TCP, which is used",
        ),
        (
            json!({ "port": 80 }),
            "port \"\" 80/TCP of cluster \"west\" conflicts with port \"a\" 42/TCP, which is used",
        ),
    ] {
        let merged = merged(&[
            ("east", east.clone()),
            ("west", payload(json!({ "ports": [port] }))),
        ]);
        assert_eq!(names(&merged), [("a", 42)]);
        assert_eq!(merged.ports_by_cluster.keys().collect::<Vec<_>>(), ["east"]);
        assert_eq!(merged.conflicts.message(), message);
    }
}

#[test]
fn a_port_with_another_app_protocol_conflicts_and_is_served() {
    let east = payload(json!({ "ports": [{ "name": "a", "port": 42, "appProtocol": "http" }] }));
    let west = payload(json!({ "ports": [{ "name": "a", "port": 42 }] }));
    let merged = merged(&[("east", east), ("west", west)]);
    assert_eq!(served_ports(&merged, "west"), ["a"]);
    assert_eq!(merged.conflicts.reason(), "PortConflict");
    assert_eq!(merged.spec.ports[0].app_protocol.as_deref(), Some("http"));
}

#[test]
fn headless_and_cluster_ip_exports_are_not_merged() {
    let plain = payload(json!({ "ports": [{ "name": "a", "port": 42 }] }));
    // A headless Service without a selector has both families (core/v1): no conflict of its own.
    let families = json!(["IPv4", "IPv6"]);
    let headless = payload(
        json!({ "clusterIP": "None", "ports": [{ "name": "a", "port": 42 }], "ipFamilies": families }),
    );
    for (exports, type_) in [
        (
            [("east", plain.clone()), ("west", headless.clone())],
            "ClusterSetIP",
        ),
        ([("east", headless.clone()), ("west", plain)], "Headless"),
    ] {
        let merged = merged(&exports);
        assert_eq!(merged.spec.type_, type_);
        assert_eq!(merged.ports_by_cluster.keys().collect::<Vec<_>>(), ["east"]);
        assert_eq!(merged.conflicts.reason(), "TypeConflict");
    }
    let portless = payload(json!({ "clusterIP": "None" }));
    let merged = merged(&[("east", portless)]);
    assert_eq!(served_ports(&merged, "east"), [""; 0]);
    assert!(
        merged.ports_by_cluster.contains_key("east"),
        "a headless Service may have no ports"
    );
}

#[test]
fn every_other_conflict_has_its_reason() {
    let base = json!({ "ports": [{ "port": 80 }] });
    let with = |field: &str, value: Value| {
        let mut spec = base.clone();
        spec[field] = value;
        payload(spec)
    };
    let mut labelled = payload(base.clone());
    labelled.exported_labels = [("team".to_owned(), "web".to_owned())].into();
    let mut annotated = payload(base.clone());
    annotated.exported_annotations = [("note".to_owned(), "x".to_owned())].into();
    for (other, reason) in [
        (
            with("sessionAffinity", json!("ClientIP")),
            "SessionAffinityConflict",
        ),
        (
            with(
                "sessionAffinityConfig",
                json!({ "clientIP": { "timeoutSeconds": 1 } }),
            ),
            "SessionAffinityConfigConflict",
        ),
        (
            with("internalTrafficPolicy", json!("Local")),
            "InternalTrafficPolicyConflict",
        ),
        (
            with("trafficDistribution", json!("PreferClose")),
            "TrafficDistributionConflict",
        ),
        (with("ipFamilies", json!(["IPv6"])), "IPFamilyConflict"),
        (labelled, "LabelsConflict"),
        (annotated, "AnnotationsConflict"),
    ] {
        let merged = merged(&[("east", payload(base.clone())), ("west", other)]);
        assert_eq!(merged.conflicts.reason(), reason);
        assert!(
            merged.conflicts.message().contains("\"west\""),
            "{}",
            merged.conflicts.message()
        );
        assert_eq!(merged.spec.session_affinity, "", "the oldest decides");
        assert!(merged.labels.is_empty() && merged.annotations.is_empty());
        assert!(
            merged.ports_by_cluster.contains_key("west"),
            "{reason}: west is still served"
        );
    }
}

#[test]
fn the_message_of_ten_thousand_conflicts_is_short() {
    let many = |first: i32| -> Vec<Value> {
        (0..10_000)
            .map(|i| json!({ "name": format!("p{i}"), "port": first + i }))
            .collect()
    };
    let merged = merged(&[
        ("east", payload(json!({ "ports": many(1) }))),
        ("west", payload(json!({ "ports": many(20_000) }))),
    ]);
    assert!(merged.conflicts.message().len() < 2_000);
    assert!(
        merged.conflicts.message().ends_with("; and 9995 more"),
        "{}",
        merged.conflicts.message()
    );
}

fn any_port() -> impl Strategy<Value = Value> {
    (0..4_u8, 1..5_i32, any::<bool>()).prop_map(|(name, port, tcp)| {
        let name = ["", "a", "b", "c"][usize::from(name)];
        json!({ "name": name, "port": port, "protocol": if tcp { "TCP" } else { "UDP" } })
    })
}

fn any_export() -> impl Strategy<Value = ServiceExportPayload> {
    (proptest::collection::vec(any_port(), 0..4), any::<bool>()).prop_map(|(ports, headless)| {
        let ip = if headless { json!("None") } else { json!(null) };
        payload(json!({ "ports": ports, "clusterIP": ip }))
    })
}

proptest! {
    /// A merge is a Service that the API server accepts, has the ports of the oldest exporter, and directs no request
    /// to a cluster without the port.
    #[test]
    fn a_merge_is_a_valid_service(exports in proptest::collection::vec(any_export(), 1..5)) {
        let clusters = ["a", "b", "c", "d"];
        let exports: Vec<_> = clusters.into_iter().zip(exports).collect();
        let merged = merged(&exports);
        let ports = &merged.spec.ports;
        for (i, port) in ports.iter().enumerate() {
            prop_assert!(ports[..i].iter().all(|p| p.name != port.name), "{ports:?}");
            prop_assert!(ports[..i].iter().all(|p| (p.port, &p.protocol) != (port.port, &port.protocol)), "{ports:?}");
            prop_assert!(ports.len() == 1 || !port.name.is_empty(), "{ports:?}");
        }
        if let Some(first) = super::ports(&exports[0].1).first() {
            prop_assert_eq!(&ports[0], first);
        }
        for (cluster, served) in &merged.ports_by_cluster {
            let (_, service) = exports.iter().find(|(c, _)| c == cluster).unwrap();
            let own = super::ports(service);
            for name in served {
                let used = ports.iter().find(|p| p.name == *name).unwrap();
                prop_assert!(
                    own.iter().any(|p| (&p.name, p.port, &p.protocol) == (&used.name, used.port, &used.protocol)),
                    "{cluster} {name}"
                );
            }
        }
    }

    /// Equal exporters never conflict.
    #[test]
    fn equal_specs_never_conflict(export in any_export()) {
        let alone = merged(&[("a", export.clone())]);
        let both = merged(&[("a", export.clone()), ("b", export)]);
        prop_assert_eq!(&alone.spec, &both.spec);
        // An export that conflicts with itself does so twice.
        prop_assert_eq!(alone.conflicts.is_empty(), both.conflicts.is_empty());
    }
}
