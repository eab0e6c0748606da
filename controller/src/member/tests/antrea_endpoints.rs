//! `Endpoints` that Antrea's controller left beside imported Services.

use super::*;
use crate::plan::{Kind, WriteOp};

/// An imported Service, and a slice of it that mirrors an `Endpoints` object.
fn mirrored() -> MemberSnapshot {
    let mut snapshot = snapshot();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    settle(&mut snapshot);
    insert(&mut snapshot.endpoint_slices, mirror());
    snapshot
}

fn mirror() -> EndpointSlice {
    object(json!({
        "metadata": {
            "name": "antrea-mc-web-x", "namespace": "shop",
            "labels": {
                "kubernetes.io/service-name": "antrea-mc-web",
                "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
            },
            "annotations": { names::ANNOTATION_IMPORTED_SERVICE: "true" },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Endpoints", "name": "antrea-mc-web", "uid": "of-endpoints" },
            ],
        },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["10.99.0.1"] }],
    }))
}

#[test]
fn leftover_endpoints_of_an_imported_service_are_deleted_by_their_uid() {
    let writes = plan(&mirrored()).writes;
    let [write] = &writes[..] else {
        panic!("{writes:#?}");
    };
    assert_eq!(write.target.kind, Kind::Endpoints);
    assert_eq!(
        (write.target.namespace.as_str(), write.target.name.as_str()),
        ("shop", "antrea-mc-web")
    );
    let uid = Some("of-endpoints".to_owned());
    assert_eq!(write.op, WriteOp::Delete { uid, version: None });
}

#[test]
fn endpoints_of_others_are_left_alone() {
    let with = |change: &dyn Fn(&mut EndpointSlice)| {
        let (mut snapshot, mut slice) = (mirrored(), mirror());
        change(&mut slice);
        insert(&mut snapshot.endpoint_slices, slice);
        plan(&snapshot).writes
    };
    let without_annotation = with(&|slice| slice.metadata.annotations = None);
    assert_eq!(without_annotation, [], "of a user");
    let managed_by = |value: &'static str| {
        with(&|slice: &mut EndpointSlice| {
            let labels = slice.labels_mut();
            labels.insert(names::LABEL_MANAGED_BY.to_owned(), value.to_owned());
        })
    };
    assert_eq!(managed_by("endpointslice-controller.k8s.io"), [], "no mirror");
    let of_another = with(&|slice: &mut EndpointSlice| {
        let labels = slice.labels_mut();
        labels.insert(names::LABEL_SERVICE_NAME.to_owned(), "antrea-mc-own".to_owned());
    });
    assert_eq!(of_another, [], "of a Service that is not imported");
    assert_eq!(with(&|slice| slice.metadata.owner_references = None), []);
}
