//! Label identities of the Pods of a node.

use mc_gateway_common::abi::IDENTITY_UNKNOWN;

use super::*;
use crate::identity_objects::{IdentityInfo, NamespaceInfo};

pub(super) const WEB: &str = "ns:kubernetes.io/metadata.name=shop&pod:app=web";
pub(super) const DB: &str = "ns:kubernetes.io/metadata.name=shop&pod:app=db";

pub(super) fn identity(label: &str, id: u32) -> Arc<IdentityInfo> {
    let name = object_name(&digest(label)).to_owned();
    Arc::new(IdentityInfo {
        name: name.clone(),
        label_name: name,
        label: label.to_owned(),
        id,
        ..IdentityInfo::default()
    })
}

pub(super) fn pod(name: &str, node: &str, ip: &str, labels: &str) -> Arc<PodInfo> {
    Arc::new(PodInfo {
        name: format!("shop/{name}"),
        node: node.into(),
        ips: vec![ip.into()],
        labels: labels.into(),
        ..PodInfo::default()
    })
}

/// A Namespace, and the identities of two labels.
pub(super) fn with_identities(identities: Vec<Arc<IdentityInfo>>, pods: Vec<Arc<PodInfo>>) -> Objects {
    let namespace = NamespaceInfo {
        name: "shop".into(),
        ..NamespaceInfo::default()
    };
    Objects {
        pods,
        identities: Some(IdentityObjects {
            namespaces: vec![Arc::new(namespace)],
            identities,
        }),
        ..objects()
    }
}

/// The identities on node b by address, and the rejected fields.
fn found(objects: &Objects) -> (Vec<(String, u32)>, Vec<String>) {
    let (desired, rejected) = on("b", objects);
    let known = desired.identities.expect("the cluster has identities");
    let known = known.into_iter().map(|(addr, id)| (addr.to_string(), id));
    (
        known.collect(),
        rejected.iter().map(ToString::to_string).collect(),
    )
}

#[test]
fn a_pod_has_the_number_of_its_labels() {
    let pods = vec![
        pod("db", "b", "10.1.1.6", "app=db"),
        pod("elsewhere", "a", "10.1.0.5", "app=web"),
        pod("new", "b", "10.1.1.7", "app=new"),
        pod("web", "b", "10.1.1.5", "app=web"),
    ];
    let objects = with_identities(vec![identity(WEB, 7), identity(DB, 9)], pods);
    let (known, rejected) = found(&objects);
    let text = |addr: &str, id| (addr.to_owned(), id);
    assert_eq!(
        known,
        [
            text("10.1.1.5", 7),
            text("10.1.1.6", 9),
            text("10.1.1.7", IDENTITY_UNKNOWN)
        ]
    );
    assert!(rejected.is_empty(), "{rejected:?}");
}

#[test]
fn a_pod_in_an_unknown_namespace_is_unknown() {
    let mut objects = with_identities(
        vec![identity(WEB, 7)],
        vec![pod("web", "b", "10.1.1.5", "app=web")],
    );
    objects.identities.as_mut().unwrap().namespaces.clear();
    assert_eq!(found(&objects).0, [("10.1.1.5".to_owned(), IDENTITY_UNKNOWN)]);
}

#[test]
fn a_cluster_without_identities_has_none() {
    let objects = with_identities(vec![], vec![pod("web", "b", "10.1.1.5", "app=web")]);
    assert_eq!(on("b", &objects).0.identities, None);
}

#[test]
fn pods_are_unknown_while_identities_cannot_be_read() {
    let mut objects = with_identities(vec![], vec![pod("web", "b", "10.1.1.5", "app=web")]);
    objects.identities = None;
    assert_eq!(found(&objects).0, [("10.1.1.5".to_owned(), IDENTITY_UNKNOWN)]);
}

#[test]
fn two_pods_with_one_address_are_unknown() {
    let pods = vec![
        pod("db", "b", "10.1.1.5", "app=db"),
        pod("web", "b", "10.1.1.5", "app=web"),
    ];
    let objects = with_identities(vec![identity(WEB, 7), identity(DB, 9)], pods);
    assert_eq!(found(&objects).0, [("10.1.1.5".to_owned(), IDENTITY_UNKNOWN)]);
}

#[test]
fn excluded_labels_are_in_no_identity() {
    let objects = with_identities(
        vec![identity(WEB, 7)],
        vec![pod("web", "b", "10.1.1.5", "app=web,pod-template-hash=5d9")],
    );
    assert_eq!(found(&objects).0, [("10.1.1.5".to_owned(), IDENTITY_UNKNOWN)]);
    let mut excluded_labels = LabelKeyFilter::default();
    assert!(excluded_labels.add("pod-template-hash"));
    let me = LocalNode {
        node_name: "b".into(),
        excluded_labels,
        ..LocalNode::default()
    };
    let (desired, _) = first(&objects, &me).unwrap();
    assert_eq!(
        desired.identities,
        Some([("10.1.1.5".parse().unwrap(), 7)].into())
    );
}

#[test]
fn invalid_identities_are_rejected_alone() {
    let pods = vec![
        pod("db", "b", "10.1.1.6", "app=db"),
        pod("web", "b", "10.1.1.5", "app=web"),
    ];
    let (web, db) = (identity(WEB, 7), identity(DB, 9));
    for id in [0, IDENTITY_UNKNOWN, u32::MAX] {
        let (known, rejected) = found(&with_identities(
            vec![identity(WEB, id), db.clone()],
            pods.clone(),
        ));
        assert_eq!(known[0].1, IDENTITY_UNKNOWN, "{known:?}");
        assert_eq!(known[1].1, 9, "{known:?}");
        let reason = format!("spec.id: \"{id}\" is not between 1 and 16777214");
        assert!(rejected[0].contains(&reason), "{rejected:?}");
    }
    let mut renamed = IdentityInfo::clone(&db);
    renamed.name = "other".into();
    let (known, rejected) = found(&with_identities(vec![web.clone(), renamed.into()], pods.clone()));
    assert_eq!((known[0].1, known[1].1), (7, IDENTITY_UNKNOWN));
    let reason = format!(
        "metadata.name: \"other\" is not the name of spec.label, {}",
        db.name
    );
    assert!(rejected[0].contains(&reason), "{rejected:?}");
    let (known, rejected) = found(&with_identities(vec![web, identity(DB, 7)], pods));
    assert_eq!((known[0].1, known[1].1), (IDENTITY_UNKNOWN, IDENTITY_UNKNOWN));
    assert!(
        rejected[0].contains("spec.id: \"7\" is the number of LabelIdentity"),
        "{rejected:?}"
    );
}
