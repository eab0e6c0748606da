//! Networks of clusters that announce prefixes of each other (finding S1).

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use mc_api::cluster_info::ClusterInfo;

use super::{label_identities::advance, *};
use crate::plan::{Kind, WriteOp};

fn announce_network(snapshot: &mut LeaderSnapshot, cluster: &str, service_cidr: &str, pod_cidrs: &[&str]) {
    insert(
        &mut snapshot.exports,
        network_export(cluster, service_cidr, pod_cidrs),
    );
}

/// West's network, which the leader has distributed.
fn one_network() -> LeaderSnapshot {
    let mut snapshot = leader_snapshot();
    announce_network(&mut snapshot, "west", "10.96.0.0/16", &["10.1.1.1/16"]);
    settle(&mut snapshot);
    snapshot
}

fn network(snapshot: &LeaderSnapshot, cluster: &str) -> Option<ClusterInfo> {
    let name = NamespacedName::new(NS, names::cluster_info(cluster));
    let import = snapshot.imports.get(&name)?;
    import.spec.cluster_info.as_deref().cloned()
}

fn record(snapshot: &LeaderSnapshot) -> BTreeMap<String, String> {
    let name = NamespacedName::new(NS, names::PREFIX_OWNERS);
    let record = snapshot.prefix_owners.get(&name);
    record.and_then(|record| record.data.clone()).unwrap_or_default()
}

#[test]
fn a_prefix_is_recorded_before_it_is_distributed() {
    let mut snapshot = leader_snapshot();
    settle(&mut snapshot);
    announce_network(&mut snapshot, "west", "10.96.0.0/16", &["10.1.1.1/16"]);
    let first = reconcile(&mut snapshot);
    assert!(
        matches!(&first[..], [write] if write.target.name == names::PREFIX_OWNERS
            && matches!(write.op, WriteOp::Create(_))),
        "{first:?}"
    );
    settle(&mut snapshot);
    let lines = "10.1.0.0/16\n10.96.0.0/16\n".to_owned();
    assert_eq!(record(&snapshot), [("west".to_owned(), lines)].into());
    // As announced: host bits are for the importer.
    assert_eq!(network(&snapshot, "west").unwrap().pod_cidrs, ["10.1.1.1/16"]);
}

/// Seed 3934 of `sim`: endpoints that a cluster exported before its network were left out for a moment, because the
/// record had a part of that.
#[test]
fn a_new_network_is_distributed_whole() {
    let mut snapshot = one_network();
    snapshot.imports = ObjectMap::default();
    announce_network(
        &mut snapshot,
        "west",
        "10.96.0.0/16",
        &["10.1.1.1/16", "10.2.0.0/16"],
    );
    let first = reconcile(&mut snapshot);
    assert!(
        matches!(&first[..], [write] if write.target.name == names::PREFIX_OWNERS),
        "{first:?}"
    );
    settle(&mut snapshot);
    let pods = network(&snapshot, "west").unwrap().pod_cidrs;
    assert_eq!(pods, ["10.1.1.1/16", "10.2.0.0/16"]);
}

#[test]
fn a_prefix_of_another_cluster_is_not_distributed() {
    let mut snapshot = one_network();
    let before = network(&snapshot, "west");
    announce_network(
        &mut snapshot,
        "east",
        "10.97.0.0/16",
        &["10.1.0.0/24", "10.5.0.0/16"],
    );
    settle(&mut snapshot);
    let east = network(&snapshot, "east").unwrap();
    assert_eq!(
        (east.service_cidr.as_str(), &east.pod_cidrs[..]),
        ("10.97.0.0/16", &["10.5.0.0/16".to_owned()][..])
    );
    let why = failure(&snapshot, "east-clusterinfo").unwrap();
    assert!(
        why.contains("10.1.0.0/24 overlaps 10.1.0.0/16, which cluster \"west\" announced first"),
        "{why}"
    );
    assert_eq!(network(&snapshot, "west"), before);
    // Of a prefix that contains others it keeps the parts that it owns.
    announce_network(&mut snapshot, "east", "10.96.0.0/12", &["10.5.0.0/15"]);
    settle(&mut snapshot);
    let east = network(&snapshot, "east").unwrap();
    assert_eq!(east.service_cidr, "10.97.0.0/16");
    assert_eq!(network(&snapshot, "west"), before);
}

#[test]
fn a_cluster_with_prefixes_of_others_alone_has_no_network() {
    let mut snapshot = one_network();
    announce_network(&mut snapshot, "east", "10.96.0.0/12", &["10.0.0.0/8"]);
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "east"), None);
    assert!(
        failure(&snapshot, "east-clusterinfo")
            .unwrap()
            .ends_with("and 1 more prefixes are refused")
    );
    // It corrects its configuration.
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &[]);
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "east").unwrap().service_cidr, "10.97.0.0/16");
    assert_eq!(failure(&snapshot, "east-clusterinfo"), None);
}

/// The attack of the finding: the victim has no gateway for a while.
#[test]
fn the_prefixes_of_a_member_without_gateways_stay_its_own() {
    let mut snapshot = one_network();
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, names::cluster_info("west")),
    );
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "west"), None);
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &["10.1.0.0/16"]);
    advance(&mut snapshot, 24 * 3600);
    settle(&mut snapshot);
    assert_eq!(
        network(&snapshot, "east").unwrap().pod_cidrs,
        Vec::<String>::new()
    );
    announce_network(&mut snapshot, "west", "10.96.0.0/16", &["10.1.1.1/16"]);
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "west").unwrap().pod_cidrs, ["10.1.1.1/16"]);
    // A cluster that is evicted loses them.
    evict(&mut snapshot, "west");
    settle(&mut snapshot);
    let requeue = make_plan(&mut snapshot).next_requeue;
    assert!(
        requeue.is_some_and(|at| at <= snapshot.now + SignedDuration::from_secs(30)),
        "{requeue:?}"
    );
    advance(&mut snapshot, 31);
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "east").unwrap().pod_cidrs, ["10.1.0.0/16"]);
}

#[test]
fn an_administrator_assigns_prefixes_by_the_service_account() {
    let mut snapshot = one_network();
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &["10.1.0.0/16"]);
    let account: ServiceAccount = object(json!({
        "metadata": { "name": "member-east", "namespace": NS, "annotations": {
            names::ANNOTATION_CLUSTER_ID: "east",
            names::ANNOTATION_ALLOWED_CIDRS: "10.1.0.0/16, 10.97.0.0/16, ten",
        } },
    }));
    insert(&mut snapshot.service_accounts, account);
    assert_issue(
        &mut snapshot,
        "annotation mc-gateway.io/allowed-cidrs: \"ten\" is not a CIDR such as 10.10.0.0/16; ignored",
    );
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "east").unwrap().pod_cidrs, ["10.1.0.0/16"]);
    assert_eq!(
        network(&snapshot, "west").unwrap().pod_cidrs,
        Vec::<String>::new()
    );
    let why = failure(&snapshot, "west-clusterinfo").unwrap();
    assert!(
        why.contains("10.1.0.0/16 overlaps 10.1.0.0/16, which is reserved to cluster \"east\""),
        "{why}"
    );
}

#[test]
fn an_unusable_record_changes_no_network() {
    let mut snapshot = one_network();
    let before = network(&snapshot, "west");
    let name = NamespacedName::new(NS, names::PREFIX_OWNERS);
    let mut broken: ConfigMap = snapshot.prefix_owners[&name].as_ref().clone();
    broken.data = Some([("west".to_owned(), "everything".to_owned())].into());
    insert(&mut snapshot.prefix_owners, broken);
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &["10.1.0.0/16"]);
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "west"), before);
    assert_eq!(network(&snapshot, "east"), None);
    assert_issue(
        &mut snapshot,
        "data[\"west\"], line 1: \"everything\" is not \"prefix [time]\"; no cluster gets new prefixes",
    );
    // Without a record the distributed networks count.
    delete(&mut snapshot.prefix_owners, &name);
    settle(&mut snapshot);
    assert_eq!(record(&snapshot).len(), 2);
}

/// A leader that is newer than the imports, or was restored from an older state, has no record.
#[test]
fn networks_that_are_distributed_stay_without_a_record() {
    let mut snapshot = one_network();
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &[]);
    settle(&mut snapshot);
    let before = snapshot.imports.clone();
    delete(
        &mut snapshot.prefix_owners,
        &NamespacedName::new(NS, names::PREFIX_OWNERS),
    );
    // East is the first by name.
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &["10.1.0.0/16"]);
    let first = reconcile(&mut snapshot);
    assert!(
        first
            .iter()
            .all(|write| write.target.kind != Kind::ResourceImport),
        "{first:?}"
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.imports, before);
    assert_eq!(record(&snapshot)["east"], "10.97.0.0/16\n");
}

/// Seed 740: after a restore the leader wrote imports by its old record, then read the older one, and deleted them.
#[test]
fn networks_that_are_distributed_stay_with_an_older_record() {
    let mut snapshot = one_network();
    let older = snapshot.prefix_owners.clone();
    announce_network(&mut snapshot, "east", "10.97.0.0/16", &[]);
    settle(&mut snapshot);
    let (before, recorded) = (snapshot.imports.clone(), record(&snapshot));
    snapshot.prefix_owners = older;
    let first = reconcile(&mut snapshot);
    assert!(
        first
            .iter()
            .all(|write| write.target.name == names::PREFIX_OWNERS),
        "{first:?}"
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.imports, before);
    assert_eq!(record(&snapshot), recorded);
}

#[test]
fn a_network_with_too_many_prefixes_is_ignored() {
    let mut snapshot = leader_snapshot();
    let many: Vec<_> = (0..1025)
        .map(|i| format!("10.{}.{}.0/24", i >> 8, i & 255))
        .collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    announce_network(&mut snapshot, "west", "10.96.0.0/16", &many);
    settle(&mut snapshot);
    assert_eq!(network(&snapshot, "west"), None);
    assert_issue(&mut snapshot, "the cluster exceeds its quota of 1024 prefixes");
}
