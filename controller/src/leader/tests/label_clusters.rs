//! The clusters in imports of label identities.

use kube::ResourceExt;
use mc_api::{
    label_identity::{MAX_CLUSTERS, digest, object_name},
    resource_import::ResourceImport,
};

use super::{label_identities::*, *};
use crate::{
    leader::label_imports::GRACE_PERIOD,
    plan::{BATCH, Kind, WriteOp},
};

fn imported(snapshot: &LeaderSnapshot, label: &str) -> serde_json::Value {
    import(snapshot, object_name(&digest(label)))["labelIdentity"].clone()
}

/// Asserts that the next plan has one write, the patch of an import, and the following one none.
fn assert_one_patch(snapshot: &mut LeaderSnapshot) {
    let writes = reconcile(snapshot);
    assert!(
        matches!(&writes[..], [write] if write.target.kind == Kind::ResourceImport
            && matches!(write.op, WriteOp::Patch(_))),
        "{writes:?}"
    );
    assert_eq!(reconcile(snapshot), vec![]);
}

/// An import as the API server has it, with a resource version.
fn versioned(mut import: ResourceImport) -> ResourceImport {
    import.metadata.resource_version = Some("7".to_owned());
    import
}

#[test]
fn an_import_names_the_clusters_that_export_its_label() {
    let mut snapshot = stretched();
    insert(&mut snapshot.announces, accepted("north"));
    for cluster in ["west", "east"] {
        insert(&mut snapshot.exports, export_of(cluster, &label(0)));
    }
    insert(&mut snapshot.exports, export_of("west", &label(1)));
    settle(&mut snapshot);
    let (first, second) = (imported(&snapshot, &label(0)), imported(&snapshot, &label(1)));
    assert_eq!(first["clusters"], json!(["east", "west"]));
    assert_eq!(second["clusters"], json!(["west"]));
    assert_eq!(reconcile(&mut snapshot), vec![]);
    insert(&mut snapshot.exports, export_of("north", &label(0)));
    assert_one_patch(&mut snapshot);
    assert_eq!(
        imported(&snapshot, &label(0)),
        json!({ "label": label(0), "id": first["id"], "clusters": ["east", "north", "west"] })
    );
    unexport(&mut snapshot, "east", &label(0));
    assert_one_patch(&mut snapshot);
    assert_eq!(
        imported(&snapshot, &label(0))["clusters"],
        json!(["north", "west"])
    );
    assert_eq!(imported(&snapshot, &label(1)), second);
}

#[test]
fn an_export_that_is_being_deleted_names_no_cluster() {
    let mut snapshot = stretched();
    for cluster in ["west", "east"] {
        insert(&mut snapshot.exports, export_of(cluster, &label(0)));
    }
    settle(&mut snapshot);
    let mut going = export_of("east", &label(0));
    going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
    going.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    insert(&mut snapshot.exports, going);
    assert_one_patch(&mut snapshot);
    assert_eq!(imported(&snapshot, &label(0))["clusters"], json!(["west"]));
}

#[test]
fn a_label_without_exports_has_no_clusters_until_it_returns() {
    let mut snapshot = stretched();
    for cluster in ["east", "west"] {
        insert(&mut snapshot.exports, export_of(cluster, &label(0)));
    }
    settle(&mut snapshot);
    let before = imported(&snapshot, &label(0));
    for cluster in ["east", "west"] {
        unexport(&mut snapshot, cluster, &label(0));
    }
    settle(&mut snapshot);
    let kept = imported(&snapshot, &label(0));
    assert_eq!(
        kept,
        json!({ "label": label(0), "id": before["id"], "clusters": [] })
    );
    advance(&mut snapshot, GRACE_PERIOD.as_secs() - 1);
    assert_eq!(reconcile(&mut snapshot), vec![]);
    insert(&mut snapshot.exports, export_of("west", &label(0)));
    settle(&mut snapshot);
    assert_eq!(
        imported(&snapshot, &label(0)),
        json!({ "label": label(0), "id": before["id"], "clusters": ["west"] })
    );
    // No leader runs until the end of the grace period: the import is deleted without a change.
    unexport(&mut snapshot, "west", &label(0));
    drop(reconcile(&mut snapshot));
    insert(
        &mut snapshot.imports,
        identity_import(
            object_name(&digest(&label(0))),
            &json!({ "label": label(0), "id": before["id"], "clusters": ["west"] }),
            NOW,
        ),
    );
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    let writes = reconcile(&mut snapshot);
    assert!(
        matches!(&writes[..], [write] if matches!(write.op, WriteOp::Delete { .. })),
        "{writes:?}"
    );
}

#[test]
fn a_rejected_export_names_no_cluster() {
    let mut snapshot = stretched();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    let mut no_cluster = export_of("", &label(0));
    no_cluster.metadata.name = Some("west-none".to_owned());
    let mut claimed = export_of("west", &label(0));
    claimed.spec.cluster_id = "north".to_owned();
    let mut other_source = export_of("south", &label(0));
    other_source
        .labels_mut()
        .insert("sourceClusterID".to_owned(), "west".to_owned());
    for bad in [no_cluster, claimed, other_source] {
        insert(&mut snapshot.exports, bad);
    }
    settle(&mut snapshot);
    assert_eq!(imported(&snapshot, &label(0))["clusters"], json!(["east"]));
}

#[test]
fn clusters_are_added_to_an_import_of_an_antrea_leader() {
    let mut snapshot = stretched();
    settle(&mut snapshot);
    for i in [0, 1] {
        insert(
            &mut snapshot.imports,
            versioned(identity_import_of(&label(i), 5 + u32::try_from(i).unwrap())),
        );
    }
    for cluster in ["east", "west"] {
        insert(&mut snapshot.exports, export_of(cluster, &label(0)));
    }
    // Its number is recorded first.
    let kinds = |writes: &[Write]| writes.iter().map(|w| w.target.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&reconcile(&mut snapshot)), [Kind::ConfigMap]);
    let writes = reconcile(&mut snapshot);
    assert_eq!(kinds(&writes), [Kind::ResourceImport; 2]);
    for write in &writes {
        let WriteOp::Patch(patch) = &write.op else {
            panic!("{write:?}")
        };
        assert_eq!(patch.value()["metadata"]["resourceVersion"], "7", "{write:?}");
    }
    assert_eq!(reconcile(&mut snapshot), vec![]);
    assert_eq!(
        imported(&snapshot, &label(0)),
        json!({ "label": label(0), "id": 5, "clusters": ["east", "west"] })
    );
    assert_eq!(imported(&snapshot, &label(1))["clusters"], json!([]), "an orphan");
}

#[test]
fn malformed_clusters_are_corrected() {
    for (bad, why) in [
        (
            json!("east"),
            "spec.labelIdentity.clusters: \"east\" is not a list",
        ),
        (
            json!(["east", 7]),
            "spec.labelIdentity.clusters[1]: 7 is not a cluster ID",
        ),
        (
            json!([""]),
            "spec.labelIdentity.clusters[0]: \"\" is not a cluster ID",
        ),
        (
            json!(vec!["east"; MAX_CLUSTERS + 1]),
            "spec.labelIdentity.clusters: 1001 entries are more than 1000",
        ),
    ] {
        let mut snapshot = stretched();
        insert(&mut snapshot.exports, export_of("east", &label(0)));
        settle(&mut snapshot);
        let good = imported(&snapshot, &label(0));
        let mut payload = good.clone();
        payload["clusters"] = bad.clone();
        let name = object_name(&digest(&label(0))).to_owned();
        insert(&mut snapshot.imports, identity_import(&name, &payload, NOW));
        payload["label"] = json!(label(1));
        let name = object_name(&digest(&label(1))).to_owned();
        insert(&mut snapshot.imports, identity_import(&name, &payload, NOW));
        assert_issue(&mut snapshot, why);
        settle(&mut snapshot);
        assert_eq!(imported(&snapshot, &label(0)), good, "{bad}");
        assert_eq!(
            snapshot.imports.len(),
            1,
            "{bad}: no cluster exports the other label"
        );
    }
}

#[test]
fn clusters_of_a_malformed_shard_are_corrected() {
    let mut snapshot = stretched();
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    insert(&mut snapshot.exports, export_of("east", &label(1)));
    settle(&mut snapshot);
    let key = NamespacedName::new(NS, names::label_id_shard(0));
    let mut record = snapshot.label_id_shards.as_ref().unwrap()[&key].as_ref().clone();
    record.data = Some([("identities".to_owned(), "scribble".to_owned())].into());
    insert(snapshot.label_id_shards.as_mut().unwrap(), record);
    insert(&mut snapshot.exports, export_of("west", &label(0)));
    unexport(&mut snapshot, "east", &label(1));
    settle(&mut snapshot);
    assert_eq!(
        imported(&snapshot, &label(0))["clusters"],
        json!(["east", "west"])
    );
    assert_eq!(imported(&snapshot, &label(1))["clusters"], json!([]));
}

#[test]
fn changes_of_clusters_are_batched_after_new_identities() {
    let mut snapshot = stretched();
    insert(&mut snapshot.announces, accepted("north"));
    for i in 0..=BATCH {
        insert(&mut snapshot.exports, export_of("east", &label(i)));
    }
    settle(&mut snapshot);
    for i in 0..=BATCH {
        insert(&mut snapshot.exports, export_of("west", &label(i)));
    }
    insert(&mut snapshot.exports, export_of("west", &label(BATCH + 1)));
    // The record of the new label, and a batch.
    assert_eq!(reconcile(&mut snapshot).len(), 1 + BATCH);
    for i in 0..=BATCH {
        insert(&mut snapshot.exports, export_of("north", &label(i)));
    }
    let writes = reconcile(&mut snapshot);
    assert_eq!(writes.len(), BATCH);
    assert!(matches!(writes[0].op, WriteOp::Create(_)), "{:?}", writes[0]);
    settle(&mut snapshot);
    for i in 0..=BATCH {
        let clusters = json!(["east", "north", "west"]);
        assert_eq!(imported(&snapshot, &label(i))["clusters"], clusters, "{i}");
    }
}

#[test]
fn clusters_beyond_the_limit_are_not_named() {
    let mut snapshot = stretched();
    for i in 0..=MAX_CLUSTERS {
        let cluster = format!("c{i:04}");
        insert(&mut snapshot.announces, accepted(&cluster));
        insert(&mut snapshot.exports, export_of(&cluster, &label(0)));
    }
    assert_issue(
        &mut snapshot,
        "1 clusters are not in its import, which names 1000 at most",
    );
    settle(&mut snapshot);
    let clusters = imported(&snapshot, &label(0))["clusters"].clone();
    let clusters = clusters.as_array().unwrap();
    assert_eq!(clusters.len(), MAX_CLUSTERS);
    assert_eq!(clusters.last().unwrap(), "c0999");
}
