//! Exports beyond the quotas of their member (finding S4).

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{
    label_identities::{export_of, label, stretched},
    *,
};

fn limit(snapshot: &mut LeaderSnapshot, cluster: &str, annotation: &str, value: &str) {
    let account: ServiceAccount = object(json!({
        "metadata": { "name": format!("member-{cluster}"), "namespace": NS, "annotations": {
            names::ANNOTATION_CLUSTER_ID: cluster, annotation: value,
        } },
    }));
    insert(&mut snapshot.service_accounts, account);
}

/// Services `web-0` to `web-2` of a cluster; the last ones are the older ones.
fn export_services(snapshot: &mut LeaderSnapshot, cluster: &str) {
    for i in 0..3 {
        let created = format!("2026-01-01T11:00:0{}Z", 9 - i);
        let name = format!("web-{i}");
        insert(
            &mut snapshot.exports,
            service(cluster, "shop", &name, 80, &created),
        );
        insert(
            &mut snapshot.exports,
            endpoints(cluster, "shop", &name, "10.1.0.1"),
        );
    }
}

#[test]
fn the_oldest_services_within_the_quota_are_distributed() {
    let mut snapshot = leader_snapshot();
    for cluster in ["east", "west"] {
        export_services(&mut snapshot, cluster);
    }
    limit(&mut snapshot, "east", names::ANNOTATION_MAX_SERVICES, "2");
    settle(&mut snapshot);
    let clusters = |snapshot: &LeaderSnapshot, i: usize| -> Vec<String> {
        let import = import(snapshot, &format!("shop-web-{i}-endpoints"));
        let clusters = import["endpoints"]["clusters"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        clusters
            .iter()
            .map(|c| c["clusterID"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(clusters(&snapshot, 0), ["west"]);
    assert_eq!(clusters(&snapshot, 1), ["east", "west"]);
    let why = failure(&snapshot, "east-shop-web-0-service").unwrap();
    let expected = "the cluster exceeds its quota of 2 Services (annotation mc-gateway.io/max-services of its \
                    ServiceAccount)";
    assert!(why.contains(expected), "{why}");
    let found = issues(&mut snapshot);
    let issue = format!("cluster \"east\": 1 ResourceExports are ignored: {expected}");
    assert!(found.contains(&issue), "{found:?}");
    // A larger quota, or the deletion of another Service, admits it.
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, "east-shop-web-1-service"),
    );
    settle(&mut snapshot);
    assert_eq!(clusters(&snapshot, 0), ["east", "west"]);
    assert_eq!(failure(&snapshot, "east-shop-web-0-service"), None);
}

#[test]
fn a_deleted_export_beyond_the_quota_is_released() {
    let mut snapshot = leader_snapshot();
    export_services(&mut snapshot, "east");
    limit(&mut snapshot, "east", names::ANNOTATION_MAX_SERVICES, "0");
    settle(&mut snapshot);
    assert!(snapshot.imports.is_empty(), "{:?}", snapshot.imports.keys());
    let name = NamespacedName::new(NS, "east-shop-web-0-service");
    delete(&mut snapshot.exports, &name);
    settle(&mut snapshot);
    assert!(!snapshot.exports.contains_key(&name));
}

#[test]
fn endpoints_labels_and_prefixes_have_quotas() {
    let mut snapshot = stretched();
    export_services(&mut snapshot, "east");
    for i in 0..3 {
        insert(&mut snapshot.exports, export_of("east", &label(i)));
    }
    insert(&mut snapshot.exports, cluster_info("east"));
    settle(&mut snapshot);
    let all = snapshot.imports.len();
    for (annotation, value, fewer) in [
        (names::ANNOTATION_MAX_ENDPOINTS, "2", 1),
        (names::ANNOTATION_MAX_PREFIXES, "0", 1),
        // The import of a label stays for its grace period.
        (names::ANNOTATION_MAX_LABEL_IDENTITIES, "1", 0),
    ] {
        limit(&mut snapshot, "east", annotation, value);
        settle(&mut snapshot);
        assert_eq!(snapshot.imports.len(), all - fewer, "{annotation}");
        let found = issues(&mut snapshot);
        assert!(found.iter().any(|issue| issue.contains(annotation)), "{found:?}");
    }
    let labels = snapshot
        .imports
        .values()
        .filter_map(|i| i.spec.label_identity.as_ref());
    let exported = labels.filter(|label| label["clusters"] == json!(["east"]));
    assert_eq!(exported.count(), 1);
}

#[test]
fn bytes_of_services_and_labels_count_together() {
    let mut snapshot = stretched();
    // The labels, and the JSON of three Services and of their endpoints.
    export_services(&mut snapshot, "east");
    let payloads = snapshot.exports.values().filter_map(|export| {
        let spec = &export.spec;
        let service = spec.service.as_ref().map(|service| json!(service));
        service.or_else(|| spec.endpoints.as_ref().map(|endpoints| json!(endpoints)))
    });
    let sizes = payloads.map(|json| json.to_string().len()).sum::<usize>() + label(0).len();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    settle(&mut snapshot);
    let all = snapshot.imports.len();
    let limit_bytes = |snapshot: &mut LeaderSnapshot, max: usize| {
        limit(snapshot, "east", names::ANNOTATION_MAX_BYTES, &max.to_string());
        settle(snapshot);
    };
    limit_bytes(&mut snapshot, sizes);
    assert_eq!(snapshot.imports.len(), all);
    let failed = |snapshot: &LeaderSnapshot| {
        let names = snapshot.exports.keys().map(|name| name.name.clone());
        names.filter(|name| failure(snapshot, name).is_some()).count()
    };
    assert_eq!(failed(&snapshot), 0);
    limit_bytes(&mut snapshot, sizes - 1);
    assert_eq!(failed(&snapshot), 1);
    limit_bytes(&mut snapshot, sizes);
    // One long text of a port displaces only its own Service, although that is the oldest but one.
    let name = NamespacedName::new(NS, "east-shop-web-1-service");
    let mut export = snapshot.exports[&name].as_ref().clone();
    let spec = &mut export.spec.service.as_mut().unwrap().service_spec;
    spec.ports.as_mut().unwrap()[0].app_protocol = Some("x".repeat(sizes));
    insert(&mut snapshot.exports, export);
    settle(&mut snapshot);
    assert!(
        !snapshot
            .imports
            .contains_key(&NamespacedName::new(NS, "shop-web-1-service"))
    );
    let why = failure(&snapshot, "east-shop-web-1-service").unwrap();
    assert!(
        why.contains("bytes (annotation mc-gateway.io/max-bytes of its ServiceAccount)"),
        "{why}"
    );
    assert_eq!(failure(&snapshot, "east-shop-web-0-service"), None);
}

#[test]
fn an_invalid_quota_is_reported_and_has_no_effect() {
    let mut snapshot = leader_snapshot();
    export_services(&mut snapshot, "east");
    limit(&mut snapshot, "east", names::ANNOTATION_MAX_SERVICES, "-1");
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 6);
    let found = issues(&mut snapshot);
    let expected =
        "ServiceAccount member-east: annotation mc-gateway.io/max-services: \"-1\" is not a number; ignored";
    assert!(found.iter().any(|issue| issue == expected), "{found:?}");
}
