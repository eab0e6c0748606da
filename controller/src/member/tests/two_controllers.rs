//! Two member controllers in Namespaces of one cluster, each with a `ClusterSet` and a leader of its own.

use mc_api::{
    label_identity::{digest, object_name},
    network_policy::Tier,
};
use proptest::prelude::*;

use super::*;
use crate::snapshot::PodLabelCounts;

const OTHER_NS: &str = "mc-second";

/// A member in this Namespace.
fn member(namespace: &str) -> MemberSnapshot {
    let mut snapshot = snapshot();
    namespace.clone_into(&mut snapshot.namespace);
    let mut set = cluster_set("set");
    set.metadata.namespace = Some(namespace.to_owned());
    snapshot.cluster_sets = ObjectMap::default();
    insert(&mut snapshot.cluster_sets, set);
    snapshot.config.stretched_network_policy = true;
    snapshot.pod_labels = Some(PodLabelCounts::default());
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    let mut tiers = ObjectMap::default();
    insert(
        &mut tiers,
        object::<Tier>(json!({ "metadata": { "name": "securityops" }, "spec": { "priority": 100 } })),
    );
    snapshot.tiers = OptionalKind::Present(tiers);
    snapshot
}

/// Offers a Service with endpoints, a label identity and a policy of this name.
fn offer(snapshot: &mut MemberSnapshot, name: &str) {
    let label = format!("ns:kubernetes.io/metadata.name=shop&pod:app={name}");
    let id = 1 + name.bytes().fold(0_i64, |sum, byte| sum + i64::from(byte));
    let identity = object_name(&digest(&label)).to_owned();
    let policy = json!({ "priority": 1, "tier": "securityops", "appliedTo": [{ "namespaceSelector": {} }] });
    let imports = &mut leader(snapshot).imports;
    insert(imports, import_service("shop", name));
    insert(
        imports,
        import_endpoints("shop", name, &[("west", vec!["10.30.0.9".into()])]),
    );
    for (name, spec) in [
        (
            identity,
            json!({ "kind": "LabelIdentity", "labelIdentity": { "label": label, "id": id } }),
        ),
        (
            names::policy_import(name),
            json!({ "kind": "AntreaClusterNetworkPolicy", "name": name, "clusternetworkpolicy": policy }),
        ),
    ] {
        let import = json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
            "metadata": { "name": name, "namespace": LEADER_NS, "creationTimestamp": NOW },
            "spec": spec,
        });
        insert(&mut leader(snapshot).imports, object::<ResourceImport>(import));
    }
}

/// Copies the objects outside of the controllers' Namespaces.
fn share(from: &MemberSnapshot, to: &mut MemberSnapshot) {
    to.services = from.services.clone();
    to.endpoint_slices = from.endpoint_slices.clone();
    to.service_imports = from.service_imports.clone();
    to.label_identities = from.label_identities.clone();
    to.policies = from.policies.clone();
}

/// Reconciles both in turn until neither writes.
fn settle_both(one: &mut MemberSnapshot, other: &mut MemberSnapshot) {
    let converged = (0..16).any(|_| {
        let writes = reconcile(one);
        share(one, other);
        let others = reconcile(other);
        share(other, one);
        writes.is_empty() && others.is_empty()
    });
    assert!(converged, "{:#?} {:#?}", plan(one).writes, plan(other).writes);
}

/// Adds objects as text.
fn add<K: kube::Resource<DynamicType = ()>>(all: &mut Vec<String>, objects: &ObjectMap<K>) {
    for object in objects.values() {
        let owner = object.annotations().get("mc-gateway.io/imported-by");
        all.push(format!("{} {} {owner:?}", K::kind(&()), object.name_any()));
    }
}

/// The imported objects as text, with their owners.
fn imported(snapshot: &MemberSnapshot) -> Vec<String> {
    let mut all = vec![];
    add(&mut all, &snapshot.services);
    add(&mut all, &snapshot.service_imports);
    add(&mut all, &snapshot.endpoint_slices);
    if let (OptionalKind::Present(identities), OptionalKind::Present(policies)) =
        (&snapshot.label_identities, &snapshot.policies)
    {
        add(&mut all, identities);
        add(&mut all, policies);
    }
    all
}

#[test]
fn each_controller_keeps_the_imports_of_the_other() {
    let (mut one, mut other) = (member(NS), member(OTHER_NS));
    offer(&mut one, "web");
    offer(&mut other, "api");
    settle_both(&mut one, &mut other);
    let both = imported(&one);
    assert_eq!(both.len(), 10, "{both:#?}");
    // The end of one membership withdraws its own imports.
    other.cluster_sets = ObjectMap::default();
    for _ in 0..8 {
        reconcile(&mut other);
    }
    share(&other, &mut one);
    let left = imported(&one);
    assert_eq!(left.len(), 5, "{left:#?}");
    assert_eq!(reconcile(&mut one), []);
}

#[test]
fn an_import_of_another_controller_is_a_conflict() {
    let (mut one, mut other) = (member(NS), member(OTHER_NS));
    offer(&mut one, "web");
    settle(&mut one);
    share(&one, &mut other);
    let before = imported(&one);
    offer(&mut other, "web");
    settle_both(&mut one, &mut other);
    assert_eq!(imported(&one), before);
    let plan = plan(&other);
    for subject in ["Service shop/antrea-mc-web", "LabelIdentity "] {
        assert!(
            plan.issues
                .iter()
                .any(|n| n.subject.starts_with(subject) && n.message.contains("in Namespace \"kube-system\"")),
            "{subject}: {:#?}",
            plan.issues
        );
    }
    assert_issue(&plan, "conflicts with existing one in cluster east");
}

#[test]
fn imports_of_an_earlier_version_get_their_owner() {
    let mut snapshot = member(NS);
    offer(&mut snapshot, "web");
    settle(&mut snapshot);
    let marked = imported(&snapshot);
    let mut services: Vec<_> = snapshot.services.values().map(|s| s.as_ref().clone()).collect();
    for service in &mut services {
        service.annotations_mut().remove("mc-gateway.io/imported-by");
    }
    for service in services {
        insert(&mut snapshot.services, service);
    }
    assert_ne!(imported(&snapshot), marked);
    assert_eq!(reconcile(&mut snapshot).len(), 1);
    assert_eq!(imported(&snapshot), marked);
}

proptest! {
    /// For any offers of the two leaders, each name is imported once, and a withdrawal leaves the other's imports.
    #[test]
    fn two_controllers_converge(
        first in proptest::collection::btree_set(0..4_u8, 0..4),
        second in proptest::collection::btree_set(0..4_u8, 0..4),
    ) {
        let (mut one, mut other) = (member(NS), member(OTHER_NS));
        for n in &first {
            offer(&mut one, &format!("web-{n}"));
        }
        for n in &second {
            offer(&mut other, &format!("web-{n}"));
        }
        settle_both(&mut one, &mut other);
        let names: BTreeSet<_> = first.union(&second).collect();
        prop_assert_eq!(imported(&one).len(), 5 * names.len());
        leader(&mut one).imports = ObjectMap::default();
        leader(&mut one).listed_imports = Arc::default();
        settle_both(&mut one, &mut other);
        prop_assert_eq!(imported(&one).len(), 5 * second.len());
    }
}
