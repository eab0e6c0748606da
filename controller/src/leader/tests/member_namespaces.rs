//! Members with a Namespace of their own in the leader cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use mc_api::{config::Isolation, import_failures::ImportFailures, label_identity};

use super::*;
use crate::snapshot::ExchangedObjects;

/// The Namespace of east.
const EAST: &str = "mc-east";

/// All objects of the leader cluster.
struct World {
    /// Without announces, exports and imports.
    rest: LeaderSnapshot,
    all: ExchangedObjects,
    labelled: ObjectMap<Namespace>,
}

impl World {
    /// West is a member in the common Namespace, east has one of its own.
    fn new() -> Self {
        let mut rest = without_members();
        rest.config.isolation = Isolation::Namespace;
        let mut world = Self {
            rest,
            all: ExchangedObjects::default(),
            labelled: ObjectMap::default(),
        };
        insert(&mut world.all.announces, accepted("west"));
        insert(&mut world.labelled, member_namespace(EAST, "east", NOW));
        world
    }

    fn joined() -> Self {
        let mut world = Self::new();
        world.join_in_own();
        world.export(NS, "west", "10.2.0.1");
        world
    }

    /// East announces itself and exports in its Namespace.
    fn join_in_own(&mut self) {
        let announce = within(EAST, announce("east", "set", "north"));
        insert(&mut self.all.announces, announce);
        self.export(EAST, "east", "10.1.0.1");
    }

    /// A cluster exports the Service `shop/web` with one endpoint.
    fn export(&mut self, namespace: &str, cluster: &str, ip: &str) {
        let exports = [
            service(cluster, "shop", "web", 80, NOW),
            endpoints(cluster, "shop", "web", ip),
        ];
        for export in exports {
            insert(&mut self.all.exports, within(namespace, export));
        }
    }

    fn snapshot(&mut self) -> LeaderSnapshot {
        let recorded =
            crate::leader::account_bindings::recorded_namespaces(&self.rest.service_account_bindings, NS);
        let (ours, member_namespaces) =
            MemberNamespaces::divide(NS, &self.labelled, &recorded, self.all.clone());
        LeaderSnapshot {
            announces: ours.announces,
            exports: ours.exports,
            unreadable_exports: ours.unreadable_exports,
            imports: ours.imports,
            member_namespaces,
            ..self.rest.clone()
        }
    }

    fn plan(&mut self) -> Plan {
        let mut snapshot = self.snapshot();
        let plan = make_plan(&mut snapshot);
        self.rest.heartbeats = snapshot.heartbeats;
        plan
    }

    fn reconcile(&mut self) -> Vec<Write> {
        let plan = self.plan();
        for write in &plan.writes {
            apply_write(&mut self.rest.cluster_sets, write);
            match write.target.name.as_str() {
                names::PREFIX_OWNERS => apply_write(&mut self.rest.prefix_owners, write),
                name if name == names::label_id_shard(0) => {
                    apply_write(self.rest.label_id_shards.as_mut().unwrap(), write);
                }
                _ => apply_write(&mut self.rest.service_account_bindings, write),
            }
            apply_write(&mut self.all.announces, write);
            apply_write(&mut self.all.exports, write);
            apply_write(&mut self.all.imports, write);
        }
        plan.writes
    }

    fn settle(&mut self) {
        let converged = (0..10).any(|_| self.reconcile().is_empty());
        assert!(converged, "{:#?}", self.plan().writes);
    }

    fn names<K>(objects: &ObjectMap<K>, namespace: &str) -> Vec<String> {
        let names = objects.keys().filter(|name| name.namespace == namespace);
        names.map(|name| name.name.clone()).collect()
    }

    /// The clusters of the imported endpoints in a Namespace.
    fn clusters(&self, namespace: &str) -> Vec<String> {
        let name = names::endpoints_import("shop", "web");
        let import = self.all.imports.get(&NamespacedName::new(namespace, name));
        let endpoints = import.and_then(|import| import.spec.endpoints.as_ref());
        let clusters = endpoints.into_iter().flat_map(|endpoints| &endpoints.clusters);
        clusters.map(|cluster| cluster.cluster_id.clone()).collect()
    }

    fn announce(&self, namespace: &str, cluster: &str) -> Option<&MemberClusterAnnounce> {
        let name = NamespacedName::new(namespace, names::member_announce(cluster));
        self.all.announces.get(&name).map(AsRef::as_ref)
    }

    fn issues(&mut self) -> Vec<String> {
        issues(&mut self.snapshot())
    }
}

fn member_namespace(name: &str, cluster: &str, created: &str) -> Namespace {
    object(json!({
        "metadata": {
            "name": name, "creationTimestamp": created,
            "labels": { names::LABEL_MEMBER_NAMESPACE_OF: NS },
            "annotations": { names::ANNOTATION_CLUSTER_ID: cluster },
        },
    }))
}

/// The object in another Namespace.
fn within<K: kube::Resource>(namespace: &str, mut object: K) -> K {
    object.meta_mut().namespace = Some(namespace.to_owned());
    object
}

/// A list of failed imports.
fn failures(cluster: &str) -> ResourceExport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": names::import_failures_export(cluster), "namespace": NS, "creationTimestamp": NOW,
            "labels": {
                "sourceClusterID": cluster, "sourceKind": "ImportFailures", names::LABEL_EXPORTS_COMPLETE: "uid",
                "other": "label",
            },
        },
        "spec": { "clusterID": cluster, "kind": "ImportFailures", "raw": ImportFailures::default().to_raw() },
    }))
}

#[test]
fn a_member_exports_from_its_namespace_and_has_copies_of_all_imports() {
    let mut world = World::joined();
    world.settle();
    let is_accepted = world
        .announce(EAST, "east")
        .unwrap()
        .metadata
        .finalizers
        .is_some();
    assert!(is_accepted);
    assert_eq!(world.clusters(NS), ["east", "west"]);
    assert_eq!(world.clusters(EAST), ["east", "west"]);
    assert_eq!(
        World::names(&world.all.imports, EAST),
        World::names(&world.all.imports, NS)
    );
    assert_eq!(
        World::names(&world.all.exports, EAST).len(),
        2,
        "no export of west"
    );
    assert_eq!(World::names(&world.all.exports, NS).len(), 2, "no export of east");

    // A withdrawn export leaves both, and is released.
    let name = NamespacedName::new(EAST, names::endpoints_export("east", "shop", "web"));
    delete(&mut world.all.exports, &name);
    world.settle();
    assert!(!world.all.exports.contains_key(&name));
    assert_eq!(world.clusters(NS), ["west"]);
    assert_eq!(world.clusters(EAST), ["west"]);
    for kind in ["service", "endpoints"] {
        delete(
            &mut world.all.exports,
            &NamespacedName::new(NS, format!("west-shop-web-{kind}")),
        );
    }
    delete(
        &mut world.all.exports,
        &NamespacedName::new(EAST, "east-shop-web-service"),
    );
    world.settle();
    assert_eq!(World::names(&world.all.imports, EAST), [""; 0]);
}

#[test]
fn the_copy_of_an_import_that_is_created_again_remains() {
    let mut world = World::joined();
    world.settle();
    let import = NamespacedName::new(NS, names::endpoints_import("shop", "web"));
    delete(&mut world.all.imports, &import);
    let writes = world.reconcile();
    assert!(
        writes.iter().any(|write| write.target.name == import.name),
        "{writes:#?}"
    );
    assert!(
        writes.iter().all(|write| write.target.namespace != EAST),
        "{writes:#?}"
    );
    world.settle();
    assert_eq!(world.clusters(EAST), ["east", "west"]);
}

/// Simulation, seed 2577: imports of label identities are created, others are applied.
#[test]
fn the_copy_of_a_label_identity_that_is_created_again_remains() {
    let mut world = World::joined();
    world.rest.config.stretched_network_policy = true;
    world.rest.label_id_shards = Some(ObjectMap::default());
    let label = label_identities::label(1);
    insert(
        &mut world.all.exports,
        label_identities::export_of("west", &label),
    );
    world.settle();
    let name = label_identity::object_name(&label_identity::digest(&label)).to_owned();
    assert!(World::names(&world.all.imports, EAST).contains(&name));
    delete(&mut world.all.imports, &NamespacedName::new(NS, name.clone()));
    let writes = world.reconcile();
    assert!(
        writes.iter().any(|write| write.target.name == name),
        "{writes:#?}"
    );
    assert!(
        writes.iter().all(|write| write.target.namespace != EAST),
        "{writes:#?}"
    );
}

#[test]
fn a_member_leaves_from_its_namespace() {
    let mut world = World::joined();
    world.settle();
    delete(
        &mut world.all.announces,
        &NamespacedName::new(EAST, names::member_announce("east")),
    );
    world.settle();
    assert!(world.announce(EAST, "east").is_none());
    assert_eq!(World::names(&world.all.exports, EAST), [""; 0]);
    assert_eq!(world.clusters(NS), ["west"]);
}

#[test]
fn the_common_namespace_has_no_place_for_a_member_with_its_own() {
    for accepted_first in [false, true] {
        let mut world = World::joined();
        if accepted_first {
            world.settle();
        }
        insert(&mut world.all.announces, announce("east", "set", "north"));
        insert(&mut world.all.exports, service("east", "shop", "stolen", 80, NOW));
        account(&mut world.rest, "thief", None);
        let mut stating = announce("east", "set", "north");
        stating.metadata.annotations =
            Some([(names::ANNOTATION_SERVICE_ACCOUNT.to_owned(), "thief".to_owned())].into());
        insert(&mut world.all.announces, stating);
        world.settle();
        let announce = world.announce(NS, "east").unwrap();
        let reason = names::ANNOTATION_REJECTED_REASON.get(announce).unwrap();
        assert_eq!(
            reason,
            "clusterID \"east\" has the Namespace \"mc-east\" in the leader cluster"
        );
        assert_eq!(announce.metadata.finalizers, None);
        assert_eq!(
            World::names(&world.all.imports, NS),
            ["shop-web-endpoints", "shop-web-service"]
        );
        assert_eq!(
            bound(&world.rest),
            json!({ "-mc-east": "east", "_mc-east": "east" })
        );
        let issues = world.issues();
        assert!(
            issues
                .iter()
                .any(|issue| issue.contains("1 ResourceExports are ignored")),
            "{issues:#?}"
        );
        // It can be removed.
        delete(
            &mut world.all.exports,
            &NamespacedName::new(NS, "east-shop-stolen-service"),
        );
        delete(
            &mut world.all.announces,
            &NamespacedName::new(NS, names::member_announce("east")),
        );
        world.settle();
        assert!(world.announce(NS, "east").is_none());
        assert_eq!(world.clusters(NS), ["east", "west"]);
    }
}

#[test]
fn another_cluster_has_no_place_in_the_namespace_of_a_member() {
    let mut world = World::joined();
    insert(
        &mut world.all.announces,
        within(EAST, announce("south", "set", "north")),
    );
    insert(
        &mut world.all.exports,
        within(EAST, service("west", "shop", "stolen", 80, NOW)),
    );
    insert(
        &mut world.all.exports,
        within(EAST, service("south", "shop", "stolen", 80, NOW)),
    );
    insert(
        &mut world.all.exports,
        within("other", service("west", "shop", "other", 80, NOW)),
    );
    insert(
        &mut world.all.announces,
        within("other", announce("far", "set", "north")),
    );
    world.settle();
    let reason = names::ANNOTATION_REJECTED_REASON.get(world.announce(EAST, "south").unwrap());
    assert_eq!(
        reason,
        Some("clusterID \"south\" is not that of the Namespace \"mc-east\"")
    );
    assert_eq!(
        World::names(&world.all.imports, NS),
        ["shop-web-endpoints", "shop-web-service"]
    );
    let far = world.announce("other", "far").unwrap();
    assert_eq!(
        names::ANNOTATION_REJECTED_REASON.get(far),
        None,
        "a foreign Namespace"
    );
}

#[test]
fn an_accepted_member_moves_into_its_namespace_when_it_announces_itself_there() {
    let mut world = World::joined();
    world.labelled = ObjectMap::default();
    world.all.announces = ObjectMap::default();
    insert(&mut world.all.announces, accepted("east"));
    insert(&mut world.all.announces, accepted("west"));
    world.all.exports = ObjectMap::default();
    world.export(NS, "east", "10.1.0.1");
    world.settle();
    insert(&mut world.labelled, member_namespace(EAST, "east", NOW));
    world.settle();
    assert_eq!(world.clusters(NS), ["east"], "the label alone withdraws nothing");
    world.join_in_own();
    world.settle();
    assert_eq!(world.clusters(EAST), ["east"]);
    assert!(world.announce(NS, "east").is_none());
    assert_eq!(World::names(&world.all.exports, NS), [""; 0]);
    assert_eq!(world.clusters(EAST), ["east"]);
}

#[test]
fn one_namespace_of_a_cluster_is_in_force() {
    let mut world = World::joined();
    insert(
        &mut world.labelled,
        member_namespace("mc-a", "east", "2026-01-02T12:00:00Z"),
    );
    insert(&mut world.labelled, member_namespace("mc-b", "Ea/st", NOW));
    insert(&mut world.labelled, member_namespace(NS, "north", NOW));
    insert(
        &mut world.all.announces,
        within("mc-a", announce("east", "set", "north")),
    );
    world.settle();
    assert_eq!(world.clusters(EAST), ["east", "west"]);
    assert_eq!(World::names(&world.all.imports, "mc-a"), [""; 0]);
    let issues = world.issues().join("\n");
    for text in [
        "Namespace mc-a: is not that of a member: cluster \"east\" has the Namespace \"mc-east\"",
        "Namespace mc-b: is not that of a member: annotation multicluster.antrea.io/cluster-id: \"Ea/st\"",
        "Namespace antrea-multicluster: is not that of a member: it is the Namespace of the leader",
    ] {
        assert!(issues.contains(text), "{text}: {issues}");
    }
    // An older one that gets the label later takes nothing over.
    insert(
        &mut world.labelled,
        member_namespace("mc-old", "east", "2025-01-01T00:00:00Z"),
    );
    insert(
        &mut world.all.announces,
        within("mc-old", announce("east", "set", "north")),
    );
    world.settle();
    assert_eq!(world.clusters(EAST), ["east", "west"]);
}

#[test]
fn a_namespace_without_its_label_withdraws_nothing() {
    let mut world = World::joined();
    world.settle();
    world.labelled = ObjectMap::default();
    world.settle();
    assert_eq!(world.clusters(NS), ["east", "west"]);
    assert_eq!(world.clusters(EAST), ["east", "west"]);
    delete(
        &mut world.all.announces,
        &NamespacedName::new(EAST, names::member_announce("east")),
    );
    world.settle();
    assert_eq!(world.clusters(NS), ["west"]);
    assert_eq!(bound(&world.rest), json!({}));
}

/// Accepted in the common Namespace, with the account that has joined first.
fn in_common() -> World {
    let mut world = World::new();
    world.labelled = ObjectMap::default();
    account(&mut world.rest, "member-east", None);
    let mut joining = announce("east", "set", "north");
    let statement = (
        names::ANNOTATION_SERVICE_ACCOUNT.to_owned(),
        "member-east".to_owned(),
    );
    joining.metadata.annotations.as_mut().unwrap().extend([statement]);
    insert(&mut world.all.announces, joining);
    world.export(NS, "east", "10.1.0.1");
    world.settle();
    assert_eq!(bound(&world.rest), json!({ "member-east": "east" }));
    assert_eq!(world.clusters(NS), ["east"]);
    world
}

#[test]
fn the_label_takes_nothing_from_a_member_in_the_common_namespace() {
    let mut world = in_common();
    insert(&mut world.labelled, member_namespace(EAST, "east", NOW));
    // One of another ClusterSet is not accepted: the member has not moved.
    insert(
        &mut world.all.announces,
        within(EAST, announce("east", "other", "north")),
    );
    insert(
        &mut world.all.announces,
        within(EAST, announce("west", "set", "north")),
    );
    world.settle();
    assert_eq!(world.clusters(NS), ["east"]);
    assert_eq!(world.clusters(EAST), ["east"], "copies for a member that joins");
    let bindings = json!({ "_mc-east": "east", "member-east": "east" });
    assert_eq!(bound(&world.rest), bindings, "its account still writes");
    let rejected = |namespace: &str, cluster: &str| {
        let announce = world.announce(namespace, cluster).unwrap();
        names::ANNOTATION_REJECTED_REASON.get(announce).is_some()
    };
    assert!(rejected(EAST, "east") && rejected(EAST, "west") && !rejected(NS, "east"));
}

#[test]
fn the_leader_ends_the_former_membership_of_a_member_that_has_moved() {
    let mut world = in_common();
    insert(&mut world.labelled, member_namespace(EAST, "east", NOW));
    world.join_in_own();
    world.settle();
    assert!(world.announce(NS, "east").is_none());
    assert_eq!(World::names(&world.all.exports, NS), [""; 0]);
    assert_eq!(world.clusters(EAST), ["east"]);
    let reserved = json!({ "-mc-east": "east", "_mc-east": "east", "member-east": "east" });
    assert_eq!(bound(&world.rest), reserved);
}

#[test]
fn policies_of_administrators_remain_in_the_common_namespace() {
    let mut world = World::joined();
    insert(&mut world.labelled, member_namespace("mc-north", "north", NOW));
    insert(
        &mut world.all.exports,
        object(json!({
            "metadata": { "name": "acnp", "namespace": NS, "creationTimestamp": NOW },
            "spec": {
                "clusterID": "north", "name": "acnp", "kind": "AntreaClusterNetworkPolicy",
                "clusterNetworkPolicy": { "priority": 1, "tier": "securityops" },
            },
        })),
    );
    world.settle();
    let snapshot = world.snapshot();
    let name = NamespacedName::new(NS, "acnp");
    assert!(snapshot.exports.contains_key(&name) && snapshot.member_namespaces.misplaced_exports.is_empty());
}

#[test]
fn a_namespace_with_many_missing_copies_delays_no_other() {
    let mut world = World::joined();
    insert(&mut world.labelled, member_namespace("mc-a", "a", NOW));
    for number in 0..400 {
        insert(
            &mut world.all.exports,
            service("west", "shop", &format!("web-{number}"), 80, NOW),
        );
    }
    for _ in 0..20 {
        world.reconcile();
    }
    Arc::make_mut(&mut world.all.imports).retain(|name, _| name.namespace != "mc-a");
    let copy = NamespacedName::new(EAST, names::service_import("shop", "web"));
    delete(&mut world.all.imports, &copy);
    let writes = world.reconcile();
    assert!(world.all.imports.contains_key(&copy), "{} writes", writes.len());
    assert!(writes.len() < 200, "{} writes", writes.len());
    let converged = (0..20).any(|_| world.reconcile().is_empty());
    assert!(converged);
    assert_eq!(
        World::names(&world.all.imports, "mc-a"),
        World::names(&world.all.imports, NS)
    );
}

#[test]
fn a_leader_without_isolation_withdraws_nothing_of_members_with_namespaces() {
    let mut world = World::joined();
    world.settle();
    world.rest.config.isolation = Isolation::Common;
    // Without the objects in other Namespaces.
    Arc::make_mut(&mut world.all.exports).retain(|name, _| name.namespace == NS);
    assert_eq!(world.reconcile(), []);
    assert!(world.issues()[0].contains("members have the Namespaces mc-east: nothing is reconciled"));
    // An administrator confirms that they have left.
    world.rest.service_account_bindings = ObjectMap::default();
    world.settle();
    assert_eq!(world.clusters(NS), ["west"]);
}

#[test]
fn copies_of_exports_outlast_a_missing_announce() {
    let mut world = World::joined();
    insert(&mut world.all.exports, failures("west"));
    world.settle();
    let copy = NamespacedName::new(EAST, names::import_failures_export("west"));
    assert!(
        world.all.exports.contains_key(&copy),
        "{:#?}",
        world.all.exports.keys()
    );
    Arc::make_mut(&mut world.all.announces).remove(&NamespacedName::new(NS, names::member_announce("west")));
    world.settle();
    assert!(world.all.exports.contains_key(&copy));
}

#[test]
fn labels_of_users_on_a_copy_remain() {
    let mut world = World::joined();
    insert(&mut world.all.exports, failures("west"));
    world.settle();
    let name = NamespacedName::new(EAST, names::import_failures_export("west"));
    let mut copy = world.all.exports[&name].as_ref().clone();
    copy.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("team".to_owned(), "a".to_owned());
    insert(&mut world.all.exports, copy);
    assert_eq!(world.reconcile().len(), 0);
    // An export of another member with the name of a copy is not replaced.
    let mut squatted = failures("west");
    squatted.metadata.labels = None;
    insert(&mut world.all.exports, within(EAST, squatted));
    world.settle();
    assert_eq!(world.all.exports[&name].metadata.labels, None);
}

#[test]
fn lists_of_failed_imports_are_copied_to_all_other_members() {
    let mut world = World::joined();
    insert(&mut world.all.exports, failures("west"));
    insert(&mut world.all.exports, within(EAST, failures("east")));
    insert(&mut world.all.exports, failures("stranger"));
    // Members read the label of complete exports: the imports precede it.
    let copy = NamespacedName::new(EAST, names::import_failures_export("west"));
    let mut is_before = false;
    while world.all.imports.keys().all(|name| name.namespace != EAST) {
        world.reconcile();
        let labels = world
            .all
            .exports
            .get(&copy)
            .and_then(|copy| copy.metadata.labels.as_ref());
        is_before |= labels.is_some_and(|labels| !labels.contains_key(names::LABEL_EXPORTS_COMPLETE));
        assert!(labels.is_none() || is_before);
    }
    assert!(is_before, "the content does not wait");
    world.settle();
    let labels = world.all.exports[&copy].metadata.labels.clone().unwrap();
    assert_eq!(
        json!(labels),
        json!({
            "sourceClusterID": "west", "sourceKind": "ImportFailures", names::LABEL_EXPORTS_COMPLETE: "uid",
            "mc-gateway.io/copied-from": NS,
        })
    );
    let back = NamespacedName::new(NS, names::import_failures_export("east"));
    assert_eq!(
        world.all.exports[&back].metadata.labels.as_ref().unwrap()["mc-gateway.io/copied-from"],
        EAST
    );
    let stranger = NamespacedName::new(EAST, names::import_failures_export("stranger"));
    assert!(!world.all.exports.contains_key(&stranger));
    // Changes follow, also after a member has left, and after there is no such Namespace.
    let mut changed = failures("west");
    changed
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .remove(names::LABEL_EXPORTS_COMPLETE);
    insert(&mut world.all.exports, changed);
    world.settle();
    let labels = world.all.exports[&copy].metadata.labels.clone().unwrap();
    assert!(!labels.contains_key(names::LABEL_EXPORTS_COMPLETE));
    delete(
        &mut world.all.announces,
        &NamespacedName::new(EAST, names::member_announce("east")),
    );
    world.settle();
    assert!(!world.all.exports.contains_key(&back));
}

#[test]
fn annotations_of_its_namespace_restrict_a_member() {
    let mut world = World::joined();
    insert(
        &mut world.all.exports,
        within(
            EAST,
            service("east", "shop", "second", 80, "2026-01-01T13:00:00Z"),
        ),
    );
    let mut namespace = member_namespace(EAST, "east", NOW);
    let annotations = namespace.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::ANNOTATION_MAX_SERVICES.to_owned(), "1".to_owned());
    annotations.insert(
        names::ANNOTATION_ALLOWED_CIDRS.to_owned(),
        "10.9.0.0/16".to_owned(),
    );
    insert(&mut world.labelled, namespace);
    insert(
        &mut world.all.exports,
        within(EAST, network_export("east", "10.9.0.0/17", &["10.8.0.0/16"])),
    );
    // An account in the common Namespace restricts it no longer.
    let annotation = Some((names::ANNOTATION_CLUSTER_ID, "east"));
    account(&mut world.rest, "east", annotation);
    let mut account = world
        .rest
        .service_accounts
        .values()
        .next()
        .unwrap()
        .as_ref()
        .clone();
    let annotations = account.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::ANNOTATION_MAX_SERVICES.to_owned(), "5".to_owned());
    annotations.insert(
        names::ANNOTATION_ALLOWED_CIDRS.to_owned(),
        "10.8.0.0/16".to_owned(),
    );
    insert(&mut world.rest.service_accounts, account);
    world.settle();
    let import = &world.all.imports[&NamespacedName::new(EAST, names::cluster_info("east"))];
    let info = import.spec.cluster_info.as_ref().unwrap();
    assert_eq!(
        (info.service_cidr.as_str(), info.pod_cidrs.len()),
        ("10.9.0.0/17", 0)
    );
    let issues = world.issues().join("\n");
    let text = "cluster \"east\": 1 ResourceExports are ignored: the cluster exceeds its quota of 1 Services (annotation \
                mc-gateway.io/max-services of its Namespace)";
    assert!(issues.contains(text), "{issues}");
}
