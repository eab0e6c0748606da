//! Label identities and replicated policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    clusters::{Cluster, EAST, LEADER, LEADER_NAMESPACE, SHORT_TIMEOUT, WEST},
    datapath::PacketCapture,
    workload::{Client, Namespace},
};

pub(crate) const POLICIES: &str = "clusternetworkpolicies.crd.antrea.io";
pub(crate) const TIERS: &str = "tiers.crd.antrea.io";
const MISSING: &str = "ACNP Tier e2e-tier does not exist in importing cluster test-cluster-east";
const STRETCHED: &str = "enableStretchedNetworkPolicy";
/// An unused label is released after 30 s, at the leader's next pass.
const RELEASE_TIMEOUT: Duration = Duration::from_mins(2);
/// Missing kinds are looked up every 10 s.
const CRD_DISCOVERY_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) fn set_stretched_policy(on: &str) {
    LEADER.configure_in(LEADER_NAMESPACE, STRETCHED, on);
    for member in [EAST, WEST] {
        member.configure(STRETCHED, on);
    }
}

/// The ID of a label in a cluster.
fn label_id(cluster: Cluster, label: &str) -> Option<i64> {
    let items = cluster.list("", "labelidentities", "");
    let found = items.iter().find(|item| item["spec"]["label"] == label)?;
    found["spec"]["id"].as_i64()
}

pub(crate) fn wait_label_id(cluster: Cluster, label: &str) -> i64 {
    cluster.wait_for(&format!("a number for {label}"), SHORT_TIMEOUT, || {
        label_id(cluster, label).ok_or_else(|| "none".to_owned())
    })
}

fn label(ns: &Namespace, app: &str) -> String {
    format!("ns:kubernetes.io/metadata.name={}&pod:app={app}", ns.0)
}

/// The VNIs of the packets of requests to an imported Service, by the kind of sender, at the client's gateway.
fn identities_on_the_wire(client: &Client) -> BTreeMap<&'static str, BTreeSet<u32>> {
    let pods: Vec<IpAddr> = client.addresses();
    let capture = PacketCapture::start("east-n1");
    client.get_many(&client.imported_url(), 5);
    let mut seen: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for frame in capture.finish() {
        let Some((inner, vni)) = frame.inner_with_vni() else {
            continue;
        };
        if pods.contains(&inner.from) {
            seen.entry("client").or_default().insert(vni);
        } else if pods.contains(&inner.to) {
            seen.entry("server").or_default().insert(vni);
        }
    }
    seen
}

/// Packets carry the number of their sender's label in both directions. Waits until they do.
fn wait_identities_on_the_wire(ns: &Namespace, client: &Client, app: &str) {
    let number = |app| {
        let id = wait_label_id(EAST, &label(ns, app));
        BTreeSet::from([u32::try_from(id).expect("24 bits")])
    };
    let expected = BTreeMap::from([("client", number(app)), ("server", number("web"))]);
    let start = Instant::now();
    EAST.wait_for("the identities on the wire", SHORT_TIMEOUT, || {
        let seen = identities_on_the_wire(client);
        if seen == expected {
            Ok(())
        } else {
            Err(format!("{seen:x?} instead of {expected:x?}"))
        }
    });
    println!(
        "policies: packets have the identity {app} after {:?}",
        start.elapsed()
    );
}

/// The identity of a Pod follows its labels, to the VNI of its packets at the gateway.
fn check_packets(ns: &Namespace) {
    ns.service(WEST);
    // A Pod of a Deployment has a label with a random value.
    ns.pod(WEST, "west-n2", "web", &["echo-server", "--port=8080"]);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    client.get(&client.imported_url());
    wait_identities_on_the_wire(ns, &client, "client");
    EAST.kubectl(&["label", "pod", "client", "app=changed", "--overwrite", "-n", ns.0]);
    wait_identities_on_the_wire(ns, &client, "changed");
    ns.unexport(WEST);
}

#[test]
fn a_label_has_one_id_in_all_clusters() {
    set_stretched_policy("true");
    let result = std::panic::catch_unwind(|| {
        let ns = Namespace::create("e2e-labels");
        let label = |app: &str| label(&ns, app);
        check_packets(&ns);
        for (cluster, node) in [(EAST, "east-n2"), (WEST, "west-n2")] {
            ns.pod(cluster, node, "twin", &["pause"]);
        }
        ns.pod(EAST, "east-n2", "single", &["pause"]);
        let twin = wait_label_id(EAST, &label("twin"));
        let single = wait_label_id(WEST, &label("single"));
        assert_eq!(wait_label_id(WEST, &label("twin")), twin);
        assert_eq!(wait_label_id(EAST, &label("single")), single);
        assert_ne!(twin, single);
        // The objects that Antrea users inspect in the leader cluster.
        let exports = LEADER.list(LEADER_NAMESPACE, "resourceexports", "sourceKind=LabelIdentity");
        let of_twin: Vec<_> = exports
            .iter()
            .filter(|e| e["spec"]["labelIdentity"]["normalizedLabel"] == label("twin").as_str())
            .map(|e| e["spec"]["clusterID"].as_str().expect("an ID").to_owned())
            .collect();
        assert_eq!(of_twin.len(), 2, "{of_twin:?}");
        // IDs survive a restart of the leader.
        LEADER.restart_controller(LEADER_NAMESPACE);
        ns.pod(WEST, "west-n2", "later", &["pause"]);
        let later = wait_label_id(EAST, &label("later"));
        assert!(![twin, single].contains(&later));
        assert_eq!(label_id(EAST, &label("twin")), Some(twin));
        // A label stays while one cluster has a Pod with it; an unused one is released after the quarantine.
        EAST.kubectl(&["delete", "pod", "twin", "single", "-n", ns.0, "--wait=true"]);
        WEST.wait_for("the release of an unused label", RELEASE_TIMEOUT, || {
            label_id(WEST, &label("single")).map_or(Ok(()), |id| Err(format!("{id}")))
        });
        assert_eq!(label_id(EAST, &label("twin")), Some(twin));
        ns.pod(WEST, "west-n2", "single", &["pause"]);
        assert_eq!(
            wait_label_id(EAST, &label("single")),
            single,
            "the label has its former ID"
        );
    });
    set_stretched_policy("false");
    for member in [EAST, WEST] {
        member.wait_for("no identities while the feature is off", SHORT_TIMEOUT, || {
            let left = member.kubectl(&["get", "labelidentities", "-o", "name"]);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// A CRD of Antrea's group that preserves unknown fields.
pub(crate) fn crd(kind: &str, plural: &str, namespaced: bool) -> String {
    let scope = if namespaced { "Namespaced" } else { "Cluster" };
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.crd.antrea.io}}
spec:
  group: crd.antrea.io
  scope: {scope}
  names: {{kind: {kind}, plural: {plural}, singular: {lower}}}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {{type: object, x-kubernetes-preserve-unknown-fields: true}}
---
",
        lower = kind.to_lowercase()
    )
}

/// Events of an object (by UID) with this message.
fn events(uid: &str, message: &str) -> Vec<Value> {
    let selector = format!("involvedObject.uid={uid}");
    let text = LEADER.kubectl(&[
        "get",
        "events",
        "-n",
        LEADER_NAMESPACE,
        "--field-selector",
        &selector,
        "-o",
        "json",
    ]);
    let mut list: Value = serde_json::from_str(&text).expect("JSON");
    let mut items = std::mem::take(list["items"].as_array_mut().expect("items"));
    items.retain(|event| event["message"] == message);
    items
}

/// The policy is created, restored after a change, and deleted with its export.
fn check_replicated(uid: &str) {
    let name = "antrea-mc-e2e-strict";
    let made = EAST.wait_for("the policy", SHORT_TIMEOUT, || {
        EAST.get("", POLICIES, name).ok_or_else(|| "none".to_owned())
    });
    assert_eq!(
        made["metadata"]["annotations"]["multicluster.antrea.io/imported-acnp"],
        "true"
    );
    assert_eq!(made["spec"]["ingress"][1]["action"], "Drop");
    assert_eq!(events(uid, MISSING).len(), 1, "one Event");
    // A user weakens the policy.
    let open = r#"{"spec":{"ingress":[{"action":"Allow"}]}}"#;
    EAST.kubectl(&["patch", POLICIES, name, "--type=merge", "-p", open]);
    EAST.wait_for("the restored policy", SHORT_TIMEOUT, || {
        let seen = EAST.get("", POLICIES, name).unwrap_or_default();
        if seen["spec"] == made["spec"] {
            Ok(())
        } else {
            Err(seen["spec"].to_string())
        }
    });
    LEADER.kubectl(&[
        "delete",
        "resourceexport",
        "e2e-strict-for-all",
        "-n",
        LEADER_NAMESPACE,
    ]);
    EAST.wait_gone("", POLICIES, name, SHORT_TIMEOUT);
}

/// Restart counts of east's controllers, by Pod.
fn restart_counts() -> BTreeMap<String, u64> {
    EAST.list("kube-system", "pods", "component=antrea-mc-controller")
        .iter()
        .map(|pod| {
            let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
            let count = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
            (name, count.unwrap_or_default())
        })
        .collect()
}

/// The member survives the removal of CRDs with open watches.
fn check_still_running(before: &BTreeMap<String, u64>) {
    let ns = Namespace::create("e2e-after-crds");
    ns.serve(EAST, "east-n2", 1);
    ns.export(EAST);
    ns.wait_imported(WEST, 1);
    for (pod, count) in restart_counts() {
        let reply = || EAST.try_kubectl(&["logs", &pod, "-n", "kube-system", "--previous", "--tail=20"]);
        assert_eq!(before.get(&pod), Some(&count), "{pod} ended: {:?}", reply());
    }
}

#[test]
fn a_policy_is_replicated_once_its_tier_exists() {
    let import = "e2e-strict-antreaclusternetworkpolicy";
    let crds = crd("ClusterNetworkPolicy", "clusternetworkpolicies", false) + &crd("Tier", "tiers", false);
    LEADER.apply(&format!(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ResourceExport
metadata: {{name: e2e-strict-for-all, namespace: {LEADER_NAMESPACE}}}
spec:
  kind: AntreaClusterNetworkPolicy
  name: e2e-strict
  clusterNetworkPolicy:
    priority: 1
    tier: e2e-tier
    appliedTo: [{{namespaceSelector: {{}}}}]
    ingress:
    - action: Pass
      from: [{{namespaces: {{match: Self}}}}]
    - action: Drop
      from: [{{namespaceSelector: {{}}}}]
"
    ));
    let made = LEADER.wait_for("the import", SHORT_TIMEOUT, || {
        LEADER
            .get(LEADER_NAMESPACE, "resourceimport", import)
            .ok_or_else(|| "none".to_owned())
    });
    let uid = made["metadata"]["uid"].as_str().expect("a UID");
    let before = restart_counts();
    let result = std::panic::catch_unwind(|| {
        // West never has these CRDs, east gets them now.
        EAST.apply(&crds);
        let event = LEADER.wait_for("an Event about the Tier", CRD_DISCOVERY_TIMEOUT, || {
            events(uid, MISSING).pop().ok_or_else(|| "none".to_owned())
        });
        assert_eq!(event["reason"], "ACNPImportFailed");
        let described = LEADER.kubectl(&["describe", "resourceimport", import, "-n", LEADER_NAMESPACE]);
        assert!(described.contains("ACNPImportFailed"), "{described}");
        EAST.apply("apiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: e2e-tier}\nspec: {priority: 100}\n");
        check_replicated(uid);
        EAST.kubectl(&["delete", "crd", POLICIES, TIERS]);
        check_still_running(&before);
    });
    let export = [
        "delete",
        "resourceexport",
        "e2e-strict-for-all",
        "-n",
        LEADER_NAMESPACE,
        "--ignore-not-found",
    ];
    LEADER.kubectl(&export);
    EAST.kubectl(&["delete", "crd", POLICIES, TIERS, "--ignore-not-found"]);
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}
