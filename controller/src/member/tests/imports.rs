//! Imported Services.

use kube::ResourceExt;
use mc_api::service_import::ServiceImport;
use proptest::prelude::*;

use super::*;
use crate::plan::Kind;

#[test]
fn an_import_becomes_a_service_with_slices_by_cluster_and_local_pods() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.services, web());
    insert(
        &mut snapshot.endpoint_slices,
        slice(&[("10.11.0.5", true), ("10.11.0.6", false)]),
    );
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    let clusters = [
        ("east", vec!["10.20.0.5".to_owned()]),
        ("west", vec!["10.30.0.9".to_owned()]),
    ];
    insert(
        &mut leader(&mut snapshot).imports,
        import_endpoints("shop", "web", &clusters),
    );
    settle(&mut snapshot);
    let ips = imported_ips(&snapshot);
    assert_eq!(
        ips["east"],
        ["10.11.0.5"],
        "local ready Pods, never the cluster IP"
    );
    assert_eq!(ips["west"], ["10.30.0.9"]);
    let service = &snapshot.services[&NamespacedName::new("shop", "antrea-mc-web")];
    assert_eq!(service.annotations()[names::ANNOTATION_IMPORTED_SERVICE], "true");
    for slice in snapshot
        .endpoint_slices
        .values()
        .filter(|s| s.name_any() != "web-1")
    {
        assert_eq!(slice.labels()["kubernetes.io/service-name"], "antrea-mc-web");
        assert_eq!(slice.owner_references()[0].uid, service.uid().unwrap());
    }
    let import = snapshot.service_imports.values().next().unwrap();
    assert_eq!(import.spec.ips, ["10.20.0.77"]);
    let clusters: Vec<_> = import
        .status
        .clone()
        .unwrap()
        .clusters
        .into_iter()
        .map(|c| c.cluster)
        .collect();
    assert_eq!(clusters, ["east", "west"]);
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(
        (
            snapshot.services.len(),
            snapshot.endpoint_slices.len(),
            snapshot.service_imports.len()
        ),
        (1, 1, 0)
    );
}

#[test]
fn the_deletion_guard_keeps_imports_that_a_restored_leader_lacks() {
    let mut snapshot = snapshot();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    settle(&mut snapshot);
    let until = snapshot.now + SignedDuration::from_secs(60);
    leader(&mut snapshot).suppress_deletions_until = Some(until);
    let missing = std::mem::take(&mut leader(&mut snapshot).imports);
    let held = plan(&snapshot);
    assert!(held.writes.is_empty(), "{held:?}");
    assert!(held.next_requeue.is_some_and(|at| at <= until), "{held:?}");
    assert!(held.issues.iter().any(|issue| issue.subject == "leader"));
    leader(&mut snapshot).imports = missing;
    assert_eq!(plan(&snapshot).issues, []);
    leader(&mut snapshot).imports = ObjectMap::default();
    leader(&mut snapshot).suppress_deletions_until = None;
    settle(&mut snapshot);
    assert_eq!((snapshot.services.len(), snapshot.service_imports.len()), (0, 0));
}

#[test]
fn endpoints_without_cluster_ids_are_split_by_address() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.services, web());
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", true)]));
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    let mut plain = import_endpoints(
        "shop",
        "web",
        &[("", vec!["10.20.0.5".into(), "10.30.0.9".into()])],
    );
    plain.spec.endpoints.as_mut().unwrap().clusters.clear();
    insert(&mut leader(&mut snapshot).imports, plain);
    settle(&mut snapshot);
    let ips = imported_ips(&snapshot);
    assert_eq!(
        (&ips[""][..], &ips["east"][..]),
        (&["10.30.0.9".to_owned()][..], &["10.11.0.5".to_owned()][..])
    );
}

#[test]
fn a_foreign_service_is_not_changed() {
    let mut snapshot = snapshot();
    let own = service(
        "antrea-mc-web",
        &json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] }),
    );
    insert(&mut snapshot.services, own);
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    assert_issue(
        &plan(&snapshot),
        "Service shop/antrea-mc-web: exists and is not an import",
    );
    settle(&mut snapshot);
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(snapshot.services.len(), 1);
}

#[test]
fn an_impossible_import_is_reported() {
    let mut snapshot = snapshot();
    insert(
        &mut leader(&mut snapshot).imports,
        import_service("nowhere", "web"),
    );
    let long = "w".repeat(60);
    insert(&mut leader(&mut snapshot).imports, import_service("shop", &long));
    assert_issue(
        &plan(&snapshot),
        "spec.namespace: Namespace \"nowhere\" does not exist in this cluster",
    );
    assert_issue(&plan(&snapshot), "no Service can have this name");
    settle(&mut snapshot);
    assert!(snapshot.services.is_empty());
    insert(
        &mut snapshot.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "nowhere" } })),
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.services.len(), 1);
}

#[test]
fn endpoints_are_split_into_slices() {
    let mut snapshot = snapshot();
    let ips: Vec<_> = (0..250)
        .map(|i| format!("10.12.{}.{}", i / 200, i % 200))
        .collect();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    insert(
        &mut leader(&mut snapshot).imports,
        import_endpoints("shop", "web", &[("west", ips.clone())]),
    );
    settle(&mut snapshot);
    let sizes: Vec<_> = snapshot
        .endpoint_slices
        .values()
        .map(|s| s.endpoints.len())
        .collect();
    assert_eq!(sizes, [100, 100, 50]);
    insert(
        &mut leader(&mut snapshot).imports,
        import_endpoints("shop", "web", &[("west", ips[..120].to_vec())]),
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.endpoint_slices.len(), 2);
}

fn import_with(spec: Value, labels: Value) -> ResourceImport {
    let mut import = import_service("shop", "web");
    let payload = import.spec.service_import.as_mut().unwrap();
    payload.spec = object(spec);
    payload.metadata.labels = object(labels);
    import
}

fn imported(snapshot: &MemberSnapshot) -> k8s_openapi::api::core::v1::ServiceSpec {
    let service = &snapshot.services[&NamespacedName::new("shop", "antrea-mc-web")];
    service.spec.clone().unwrap()
}

#[test]
fn a_service_has_the_spec_of_its_import() {
    let mut snapshot = snapshot();
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP", "appProtocol": "http" }]);
    let rules = json!({
        "type": "ClusterSetIP", "ports": ports, "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10 } },
        "internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose",
    });
    insert(
        &mut leader(&mut snapshot).imports,
        import_with(rules.clone(), json!({})),
    );
    settle(&mut snapshot);
    let spec = imported(&snapshot);
    assert_eq!(spec.session_affinity.as_deref(), Some("ClientIP"));
    assert_eq!(
        spec.session_affinity_config
            .unwrap()
            .client_ip
            .unwrap()
            .timeout_seconds,
        Some(10)
    );
    assert_eq!(spec.internal_traffic_policy.as_deref(), Some("Local"));
    assert_eq!(spec.traffic_distribution.as_deref(), Some("PreferClose"));
    assert_eq!(spec.ports.unwrap()[0].app_protocol.as_deref(), Some("http"));
    let import = snapshot.service_imports.values().next().unwrap();
    let mut shown = serde_json::to_value(&import.spec).unwrap();
    assert_eq!(
        (&shown["ips"], &shown["ipFamilies"]),
        (&json!(["10.20.0.77"]), &json!(["IPv4"]))
    );
    for field in ["ips", "ipFamilies"] {
        shown.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(shown, rules);
    let status = serde_json::to_value(import.status.as_ref().unwrap()).unwrap();
    assert_eq!(
        (
            &status["conditions"][0]["type"],
            &status["conditions"][0]["status"]
        ),
        (&json!("Ready"), &json!("True"))
    );
    assert_eq!(status["endpointSliceObjects"], "Present");
    // Removed fields return to their defaults.
    insert(
        &mut leader(&mut snapshot).imports,
        import_with(json!({ "type": "ClusterSetIP", "ports": ports }), json!({})),
    );
    settle(&mut snapshot);
    let spec = imported(&snapshot);
    assert_eq!(spec.session_affinity.as_deref(), Some("None"));
    assert_eq!(
        (spec.session_affinity_config, spec.traffic_distribution),
        (None, None)
    );
}

#[test]
fn a_headless_import_has_hostnames_and_no_address() {
    let mut snapshot = snapshot();
    let spec = json!({ "type": "Headless", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] });
    insert(&mut leader(&mut snapshot).imports, import_with(spec, json!({})));
    let mut endpoints = import_endpoints("shop", "web", &[("west", vec!["10.30.0.9".to_owned()])]);
    let subsets = &mut endpoints.spec.endpoints.as_mut().unwrap().clusters[0].subsets;
    subsets[0].addresses.as_mut().unwrap()[0].hostname = Some("web-0".to_owned());
    insert(&mut leader(&mut snapshot).imports, endpoints);
    settle(&mut snapshot);
    assert_eq!(imported(&snapshot).cluster_ip.as_deref(), Some("None"));
    let import = snapshot.service_imports.values().next().unwrap();
    assert_eq!(
        (import.spec.type_.as_str(), import.spec.ips.len()),
        ("Headless", 0)
    );
    assert!(import.status.as_ref().unwrap().conditions[0].is_true());
    let slice = snapshot.endpoint_slices.values().next().unwrap();
    assert_eq!(slice.endpoints[0].hostname.as_deref(), Some("web-0"));
    assert!(slice.labels().contains_key("service.kubernetes.io/headless"));
    // A headless Service that becomes a ClusterSetIP is created again.
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    settle(&mut snapshot);
    assert_eq!(imported(&snapshot).cluster_ip.as_deref(), Some("10.20.0.77"));
    assert_eq!(
        snapshot.service_imports.values().next().unwrap().spec.ips,
        ["10.20.0.77"]
    );
}

#[test]
fn an_import_has_the_ip_families_of_its_export() {
    for (families, policy, given, ips) in [
        (json!([]), "SingleStack", json!(["IPv4"]), json!(["10.20.0.77"])),
        (
            json!(["IPv6"]),
            "SingleStack",
            json!(["IPv6"]),
            json!(["fd00:20::77"]),
        ),
        (
            json!(["IPv6", "IPv4"]),
            "PreferDualStack",
            json!(["IPv4", "IPv6"]),
            json!(["10.20.0.77", "fd00:20::77"]),
        ),
    ] {
        let mut snapshot = snapshot();
        let spec = json!({ "type": "ClusterSetIP", "ports": [{ "port": 80 }], "ipFamilies": families });
        insert(&mut leader(&mut snapshot).imports, import_with(spec, json!({})));
        let both = ["10.30.0.9", "fd00:30::9"].map(str::to_owned).to_vec();
        insert(
            &mut leader(&mut snapshot).imports,
            import_endpoints("shop", "web", &[("west", both)]),
        );
        settle(&mut snapshot);
        let service = imported(&snapshot);
        assert_eq!(service.ip_family_policy.as_deref(), Some(policy));
        assert_eq!(json!(service.ip_families), given);
        // Each address once: an API server rejects duplicates.
        let import = &snapshot.service_imports.values().next().unwrap().spec;
        assert_eq!((json!(import.ip_families), json!(import.ips)), (given, ips));
        let mut slices: Vec<_> = snapshot
            .endpoint_slices
            .values()
            .map(|s| (s.address_type.as_str(), s.endpoints[0].addresses[0].as_str()))
            .collect();
        slices.sort_unstable();
        assert_eq!(slices, [("IPv4", "10.30.0.9"), ("IPv6", "fd00:30::9")]);
    }
}

#[test]
fn exported_labels_follow_the_export_and_never_replace_managed_by() {
    let mut snapshot = snapshot();
    let spec = json!({ "type": "ClusterSetIP", "ports": [{ "port": 80 }] });
    let labels = json!({ "team": "web", "app.kubernetes.io/managed-by": "another" });
    insert(
        &mut leader(&mut snapshot).imports,
        import_with(spec.clone(), labels),
    );
    settle(&mut snapshot);
    let import = snapshot.service_imports.values().next().unwrap();
    assert_eq!(import.labels()["team"], "web");
    assert_eq!(import.labels()["app.kubernetes.io/managed-by"], names::MANAGED_BY);
    insert(&mut leader(&mut snapshot).imports, import_with(spec, json!({})));
    settle(&mut snapshot);
    let import = snapshot.service_imports.values().next().unwrap();
    assert!(!import.labels().contains_key("team"), "{:?}", import.labels());
}

/// A member, or a leader that is not ours, may write any key.
#[test]
fn labels_of_reserved_domains_are_not_imported() {
    let mut snapshot = snapshot();
    let spec = json!({ "type": "ClusterSetIP", "ports": [{ "port": 80 }] });
    let labels = json!({ "team": "web", "argocd.argoproj.io/instance": "infra" });
    let mut import = import_with(spec, labels);
    let payload = import.spec.service_import.as_mut().unwrap();
    payload.annotations_mut().insert(
        "service.kubernetes.io/topology-mode".to_owned(),
        "Auto".to_owned(),
    );
    insert(&mut leader(&mut snapshot).imports, import);
    settle(&mut snapshot);
    let import = snapshot.service_imports.values().next().unwrap();
    let keys: Vec<_> = import
        .labels()
        .keys()
        .chain(import.annotations().keys())
        .cloned()
        .collect();
    assert!(keys.contains(&"team".to_owned()), "{keys:?}");
    assert!(
        !keys
            .iter()
            .any(|key| key.contains("argo") || key.contains("topology")),
        "{keys:?}"
    );
    assert!(plan(&snapshot).writes.is_empty());
}

#[test]
fn ports_are_split_into_slices() {
    let mut snapshot = snapshot();
    let ports: Vec<_> = (0..250)
        .map(|i| json!({ "name": format!("p{i}"), "port": 1000 + i }))
        .collect();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    let mut endpoints = import_endpoints("shop", "web", &[("west", vec!["10.30.0.9".to_owned()])]);
    endpoints.spec.endpoints.as_mut().unwrap().clusters[0].subsets[0].ports = object(json!(ports));
    insert(&mut leader(&mut snapshot).imports, endpoints);
    settle(&mut snapshot);
    let mut sizes: Vec<_> = snapshot
        .endpoint_slices
        .values()
        .map(|s| s.ports.as_ref().unwrap().len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
}

#[test]
fn only_accepted_ports_of_local_pods_are_imported() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.services, web());
    let mut pods = slice(&[("10.11.0.5", true)]);
    pods.ports = object(json!([{ "name": "http", "port": 8080 }, { "name": "other", "port": 9090 }]));
    insert(&mut snapshot.endpoint_slices, pods);
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    insert(
        &mut leader(&mut snapshot).imports,
        import_endpoints("shop", "web", &[("east", vec!["10.20.0.5".to_owned()])]),
    );
    settle(&mut snapshot);
    let own: Vec<_> = snapshot
        .endpoint_slices
        .values()
        .filter(|s| s.name_any() != "web-1")
        .collect();
    assert_eq!(own.len(), 1);
    let ports: Vec<_> = own[0]
        .ports
        .iter()
        .flatten()
        .map(|p| (p.name.as_deref(), p.port))
        .collect();
    assert_eq!(ports, [(Some("http"), Some(8080))]);
}

/// Simulation seed 5376: a create that conflicts while the cache lacks the foreign Service is a failure, which creates
/// a ServiceImport without addresses. It stayed once the cache contained the Service.
#[test]
fn a_service_import_is_deleted_when_its_service_has_another_owner() {
    let mut snapshot = snapshot();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    let mut writes = plan(&snapshot).writes.into_iter();
    let creation = writes.find(|w| w.target.kind == Kind::Service).unwrap();
    snapshot.persistent_failures = [(creation.target, "already exists".to_owned())].into();
    reconcile(&mut snapshot);
    assert_eq!(snapshot.service_imports.len(), 1);
    snapshot.persistent_failures.clear();
    let foreign = service(
        "antrea-mc-web",
        &json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] }),
    );
    insert(&mut snapshot.services, foreign);
    settle(&mut snapshot);
    assert_eq!((snapshot.services.len(), snapshot.service_imports.len()), (1, 0));
}

/// A headless import has no address that shows its maker.
#[test]
fn a_foreign_headless_service_import_is_not_taken_over() {
    let mut snapshot = snapshot();
    let mut import = import_service("shop", "web");
    let payload = import.spec.service_import.as_mut().unwrap();
    payload.spec.type_ = "Headless".to_owned();
    insert(&mut leader(&mut snapshot).imports, import);
    let foreign: ServiceImport = object(json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "foreign" },
        "spec": { "type": "Headless", "ports": [{ "port": 9 }] },
    }));
    insert(&mut snapshot.service_imports, foreign.clone());
    settle(&mut snapshot);
    let found = snapshot.service_imports.values().next().unwrap();
    assert_eq!(found.as_ref(), &foreign);
    assert_issue(&plan(&snapshot), "has another owner");
}

proptest! {
    /// For any imports: plans converge, the slices have exactly the endpoints of each other cluster, and without
    /// imports no imported object is left.
    #[test]
    fn imports_converge_and_are_withdrawn_completely(
        imports in proptest::collection::vec((0usize..3, 0usize..3, proptest::collection::btree_set(1u8..250, 0..5)), 0..8),
        local in proptest::collection::btree_set(1u8..250, 0..3),
    ) {
        let mut snapshot = snapshot();
        insert(&mut snapshot.services, web());
        let ready: Vec<_> = local.iter().map(|i| format!("10.11.0.{i}")).collect();
        insert(&mut snapshot.endpoint_slices, slice(&ready.iter().map(|ip| (ip.as_str(), true)).collect::<Vec<_>>()));
        let mut wanted: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
        for (service, cluster, ips) in imports {
            let (service, cluster) = (["web", "api", "db"][service], ["east", "west", "south"][cluster]);
            let ips = ips.iter().map(|i| format!("10.30.0.{i}")).collect();
            wanted.entry(service).or_default().insert(cluster, ips);
        }
        for (name, clusters) in &wanted {
            insert(&mut leader(&mut snapshot).imports, import_service("shop", name));
            let clusters: Vec<_> = clusters.iter().map(|(c, ips)| (*c, ips.clone())).collect();
            insert(&mut leader(&mut snapshot).imports, import_endpoints("shop", name, &clusters));
        }
        settle(&mut snapshot);
        for (name, clusters) in &wanted {
            for (cluster, ips) in clusters {
                let mut found: Vec<_> = snapshot.endpoint_slices.values()
                    .filter(|s| s.labels().get(names::LABEL_MCS_SERVICE_NAME).is_some_and(|n| n == name))
                    .filter(|s| s.labels().get(names::LABEL_MCS_SOURCE_CLUSTER).is_some_and(|c| c == cluster))
                    .flat_map(|s| s.endpoints.iter().map(|e| e.addresses[0].clone()))
                    .collect();
                found.sort();
                let mut expected = match (*cluster, *name) {
                    ("east", "web") => ready.clone(),
                    ("east", _) => vec![],
                    _ => ips.clone(),
                };
                expected.sort();
                prop_assert_eq!(found, expected, "{} of {}", name, cluster);
            }
        }
        leader(&mut snapshot).imports = ObjectMap::default();
        settle(&mut snapshot);
        prop_assert_eq!((snapshot.services.len(), snapshot.endpoint_slices.len(), snapshot.service_imports.len()), (1, 1, 0));
    }
}
