//! Failures of imports, from the importing cluster to the `ServiceExport` of the exporter.

use mc_api::import_failures::{ImportFailure, ImportFailures};

use super::*;

const EXPORT: &str = "east-importfailures";

/// The failures that this cluster reports: Service and reason.
fn reported(snapshot: &MemberSnapshot) -> Vec<(String, String)> {
    let Some(export) = export(snapshot, EXPORT) else {
        return vec![];
    };
    assert_eq!(
        (export.labels()["sourceKind"].as_str(), export.finalizers()),
        ("ImportFailures", &[][..])
    );
    let failures = ImportFailures::from_raw(export.spec.raw.as_ref()).unwrap();
    let all = failures.failures().iter();
    all.map(|f| (format!("{}/{}", f.namespace, f.name), f.reason.clone()))
        .collect()
}

fn assert_reported(snapshot: &MemberSnapshot, service: &str, reason: &str) {
    assert_eq!(reported(snapshot), [(service.to_owned(), reason.to_owned())]);
}

fn offer(snapshot: &mut MemberSnapshot, namespace: &str, name: &str) {
    insert(&mut leader(snapshot).imports, import_service(namespace, name));
    let endpoints = import_endpoints(namespace, name, &[("west", vec!["10.30.0.9".into()])]);
    insert(&mut leader(snapshot).imports, endpoints);
}

#[test]
fn a_missing_namespace_is_reported_until_it_exists() {
    let mut snapshot = snapshot();
    offer(&mut snapshot, "books", "web");
    settle(&mut snapshot);
    assert_reported(&snapshot, "books/web", "NamespaceNotFound");
    insert(
        &mut snapshot.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "books" } })),
    );
    settle(&mut snapshot);
    assert_eq!(reported(&snapshot), []);
    assert!(export(&snapshot, EXPORT).is_none());
}

#[test]
fn each_failure_has_its_reason() {
    // The name of a Service of a user, a ServiceImport of a user, a name that is too long, a closed Namespace, and an
    // endpoint of another cluster.
    let mut taken = snapshot();
    let own = json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] });
    insert(&mut taken.services, service("antrea-mc-web", &own));
    offer(&mut taken, "shop", "web");
    settle(&mut taken);
    assert_reported(&taken, "shop/web", "NameTaken");

    let mut long = snapshot();
    offer(&mut long, "shop", &"a".repeat(54));
    settle(&mut long);
    assert_reported(&long, &format!("shop/{}", "a".repeat(54)), "InvalidName");

    let mut foreign = snapshot();
    for (cluster, cidr) in [("west", "10.30.0.0/16"), ("south", "10.40.0.0/16")] {
        let network = import_info(cluster, cidr, &["172.18.0.9"]);
        insert(&mut leader(&mut foreign).imports, network);
    }
    offer(&mut foreign, "shop", "web");
    let stolen = import_endpoints("shop", "web", &[("west", vec!["10.40.0.9".into()])]);
    insert(&mut leader(&mut foreign).imports, stolen);
    settle(&mut foreign);
    assert_reported(&foreign, "shop/web", "EndpointsLeftOut");
}

/// The exports of failures of other clusters.
fn report(snapshot: &mut MemberSnapshot, cluster: &str, failures: &[(&str, &str)]) {
    let failures = failures.iter().map(|(name, message)| ImportFailure {
        namespace: "shop".to_owned(),
        name: (*name).to_owned(),
        reason: "NamespaceNotFound".to_owned(),
        message: (*message).to_owned(),
    });
    let export: ResourceExport = object(json!({
        "metadata": { "name": format!("{cluster}-importfailures"), "namespace": LEADER_NS },
        "spec": { "clusterID": cluster, "kind": "ImportFailures", "raw": ImportFailures::new(failures).to_raw() },
    }));
    let all = leader(snapshot).import_failures.get_or_insert_default();
    insert(all, export);
}

/// The message of the condition.
fn failed(snapshot: &MemberSnapshot) -> Option<String> {
    let conditions = conditions(snapshot).into_iter();
    let mut failed = conditions.filter(|c| c.type_ == "ImportFailed");
    let condition = failed.next()?;
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("True", "ReportedByClusters")
    );
    Some(condition.message)
}

/// A cluster that exports `shop/web` and has the list of reports.
fn listed() -> MemberSnapshot {
    let mut snapshot = exporting();
    leader(&mut snapshot).import_failures = Some(ObjectMap::default());
    // The leader's answer, without which the status waits.
    advance(&mut snapshot, 60);
    settle(&mut snapshot);
    snapshot
}

#[test]
fn a_failure_of_another_cluster_is_a_condition_until_it_ends() {
    let mut snapshot = listed();
    assert_eq!(failed(&snapshot), None);
    report(
        &mut snapshot,
        "west",
        &[("web", "no Namespace"), ("other", "no Namespace")],
    );
    report(&mut snapshot, "south", &[("web", "taken")]);
    settle(&mut snapshot);
    let message =
        "cluster \"south\": NamespaceNotFound: taken; cluster \"west\": NamespaceNotFound: no Namespace";
    assert_eq!(failed(&snapshot).as_deref(), Some(message));
    // While the list is incomplete, the condition stays.
    let known = leader(&mut snapshot).import_failures.take();
    settle(&mut snapshot);
    assert_eq!(failed(&snapshot).as_deref(), Some(message));
    leader(&mut snapshot).import_failures = known;
    report(&mut snapshot, "west", &[]);
    report(&mut snapshot, "south", &[]);
    settle(&mut snapshot);
    assert_eq!(failed(&snapshot), None);
    assert_eq!(valid(&snapshot).0, "True");
}

#[test]
fn many_reports_are_shortened() {
    let mut snapshot = listed();
    for cluster in 1..=7 {
        report(&mut snapshot, &format!("c{cluster}"), &[("web", "no Namespace")]);
    }
    settle(&mut snapshot);
    let message = failed(&snapshot).unwrap();
    assert!(message.ends_with("; and 2 more clusters"), "{message}");
}

/// Reports of a cluster that has the name of another one, or that cannot be read.
#[test]
fn an_invalid_report_is_ignored_alone() {
    let mut snapshot = listed();
    report(&mut snapshot, "west", &[("web", "no Namespace")]);
    let mut forged: ResourceExport = object(json!({
        "metadata": { "name": "south-importfailures", "namespace": LEADER_NS },
        "spec": { "clusterID": "north", "kind": "ImportFailures" },
    }));
    forged.spec.raw = Some(ImportFailures::default().to_raw());
    let garbled: ResourceExport = object(json!({
        "metadata": { "name": "garbled-importfailures", "namespace": LEADER_NS },
        "spec": { "clusterID": "garbled", "kind": "ImportFailures", "raw": { "data": "e30=" } },
    }));
    for export in [forged, garbled] {
        insert(leader(&mut snapshot).import_failures.as_mut().unwrap(), export);
    }
    settle(&mut snapshot);
    assert!(failed(&snapshot).unwrap().starts_with("cluster \"west\""));
    let next = plan(&snapshot);
    assert_issue(
        &next,
        "spec.clusterID \"north\": the name of its export is \"north-importfailures\"",
    );
    assert_issue(&next, "spec.raw.data is not a list of failures");
}
