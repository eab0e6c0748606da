//! Imported Services.

use kube::ResourceExt;
use proptest::prelude::*;

use super::*;

#[test]
fn an_import_becomes_a_service_with_slices_by_cluster_and_our_own_pods() {
    let mut world = world();
    insert(&mut world.services, web());
    insert(
        &mut world.slices,
        slice(&[("10.11.0.5", true), ("10.11.0.6", false)]),
    );
    insert(&mut leader(&mut world).imports, import_service("shop", "web"));
    let clusters = [
        ("east", vec!["10.20.0.5".to_owned()]),
        ("west", vec!["10.30.0.9".to_owned()]),
    ];
    insert(
        &mut leader(&mut world).imports,
        import_endpoints("shop", "web", &clusters),
    );
    settle(&mut world);
    let ips = imported_ips(&world);
    assert_eq!(
        ips["east"],
        ["10.11.0.5"],
        "our own ready Pods, never the cluster IP"
    );
    assert_eq!(ips["west"], ["10.30.0.9"]);
    let service = &world.services[&("shop".to_owned(), "antrea-mc-web".to_owned())];
    assert_eq!(service.annotations()[names::ANNOTATION_IMPORTED_SERVICE], "true");
    for slice in world.slices.values().filter(|s| s.name_any() != "web-1") {
        assert_eq!(slice.labels()["kubernetes.io/service-name"], "antrea-mc-web");
        assert_eq!(slice.owner_references()[0].uid, service.uid().unwrap());
    }
    let import = world.service_imports.values().next().unwrap();
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
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    assert_eq!(
        (
            world.services.len(),
            world.slices.len(),
            world.service_imports.len()
        ),
        (1, 1, 0)
    );
}

#[test]
fn endpoints_of_another_leader_are_told_apart_by_address() {
    let mut world = world();
    insert(&mut world.services, web());
    insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
    insert(&mut leader(&mut world).imports, import_service("shop", "web"));
    let mut plain = import_endpoints(
        "shop",
        "web",
        &[("", vec!["10.20.0.5".into(), "10.30.0.9".into()])],
    );
    plain.spec.endpoints.as_mut().unwrap().clusters.clear();
    insert(&mut leader(&mut world).imports, plain);
    settle(&mut world);
    let ips = imported_ips(&world);
    assert_eq!(
        (&ips[""][..], &ips["east"][..]),
        (&["10.30.0.9".to_owned()][..], &["10.11.0.5".to_owned()][..])
    );
}

#[test]
fn somebody_elses_objects_are_not_touched() {
    let mut world = world();
    let own = service(
        "antrea-mc-web",
        &json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] }),
    );
    insert(&mut world.services, own);
    insert(&mut leader(&mut world).imports, import_service("shop", "web"));
    says(
        &plan(&world),
        "Service shop/antrea-mc-web: exists and was not imported",
    );
    settle(&mut world);
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    assert_eq!(world.services.len(), 1);
}

#[test]
fn what_cannot_exist_here_is_said() {
    let mut world = world();
    insert(&mut leader(&mut world).imports, import_service("nowhere", "web"));
    let long = "w".repeat(60);
    insert(&mut leader(&mut world).imports, import_service("shop", &long));
    says(
        &plan(&world),
        "spec.namespace: Namespace \"nowhere\" does not exist in this cluster",
    );
    says(&plan(&world), "no Service can have this name");
    settle(&mut world);
    assert!(world.services.is_empty());
    insert(
        &mut world.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "nowhere" } })),
    );
    settle(&mut world);
    assert_eq!(world.services.len(), 1);
}

#[test]
fn many_endpoints_make_many_slices() {
    let mut world = world();
    let ips: Vec<_> = (0..250)
        .map(|i| format!("10.12.{}.{}", i / 200, i % 200))
        .collect();
    insert(&mut leader(&mut world).imports, import_service("shop", "web"));
    insert(
        &mut leader(&mut world).imports,
        import_endpoints("shop", "web", &[("west", ips.clone())]),
    );
    settle(&mut world);
    let sizes: Vec<_> = world.slices.values().map(|s| s.endpoints.len()).collect();
    assert_eq!(sizes, [100, 100, 50]);
    insert(
        &mut leader(&mut world).imports,
        import_endpoints("shop", "web", &[("west", ips[..120].to_vec())]),
    );
    settle(&mut world);
    assert_eq!(world.slices.len(), 2);
}

proptest! {
    /// Whatever is offered: the plan comes to rest, the slices hold exactly what each other cluster offers, and
    /// when nothing is offered any more nothing of ours is left.
    #[test]
    fn imports_come_to_rest_and_leave_no_trace(
        offers in proptest::collection::vec((0usize..3, 0usize..3, proptest::collection::btree_set(1u8..250, 0..5)), 0..8),
        local in proptest::collection::btree_set(1u8..250, 0..3),
    ) {
        let mut world = world();
        insert(&mut world.services, web());
        let ready: Vec<_> = local.iter().map(|i| format!("10.11.0.{i}")).collect();
        insert(&mut world.slices, slice(&ready.iter().map(|ip| (ip.as_str(), true)).collect::<Vec<_>>()));
        let mut wanted: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
        for (service, cluster, ips) in offers {
            let (service, cluster) = (["web", "api", "db"][service], ["east", "west", "south"][cluster]);
            let ips = ips.iter().map(|i| format!("10.30.0.{i}")).collect();
            wanted.entry(service).or_default().insert(cluster, ips);
        }
        for (name, clusters) in &wanted {
            insert(&mut leader(&mut world).imports, import_service("shop", name));
            let clusters: Vec<_> = clusters.iter().map(|(c, ips)| (*c, ips.clone())).collect();
            insert(&mut leader(&mut world).imports, import_endpoints("shop", name, &clusters));
        }
        settle(&mut world);
        for (name, clusters) in &wanted {
            for (cluster, ips) in clusters {
                let mut found: Vec<_> = world.slices.values()
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
        leader(&mut world).imports = Objects::default();
        settle(&mut world);
        prop_assert_eq!((world.services.len(), world.slices.len(), world.service_imports.len()), (1, 1, 0));
    }
}
