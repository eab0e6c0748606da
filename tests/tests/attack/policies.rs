//! Policies and label identities of the bed whose agents enforce policies.

use std::fs;

use mc_api::label_identity::{MAX_ID, digest, object_name};
use mc_gateway_common::{abi::IDENTITY_UNKNOWN, verdict::DropReason};
use mc_tests::{
    counters::Counters,
    fixture::TIMEOUT,
    topology::{Cluster, Family, Place, Topology},
    wait::wait_for,
};

use crate::{
    bed::Bed,
    vector::{ATTACK, Entry, POD_PORT, Send, datagram},
};

/// The identity of genuine senders, which a rule allows.
pub(crate) const ALLOWED_ID: u32 = 1;
/// One that a rule drops; all clusters export it.
pub(crate) const DROPPED_ID: u32 = 2;
/// Identities with allowed labels that one cluster exports.
pub(crate) const OF_EAST_ID: u32 = 3;
pub(crate) const OF_WEST_ID: u32 = 4;
/// One with two allowed labels.
pub(crate) const AMBIGUOUS_ID: u32 = 5;
/// Numbers without a record.
pub(crate) const UNRECORDED_ID: u32 = 99;
pub(crate) const UNKNOWN_ID: u32 = IDENTITY_UNKNOWN;
pub(crate) const LAST_ID: u32 = MAX_ID;

/// Pods with the label `client` are allowed, intruders dropped; others decide by their identity alone.
const POLICY: &str = "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: server}
spec:
  priority: 1
  tier: securityops
  appliedTo: [{podSelector: {matchLabels: {app: server}}}]
  ingress:
  - action: Allow
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
  - action: Drop
    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: intruder}}}]
";

/// The node whose policies decide on packets from this place.
pub(crate) fn policed_at(entry: Entry) -> Place {
    if entry == Entry::Node {
        Place::NodeEast
    } else {
        Place::NodeWest
    }
}

fn identity(pod: &str, id: u32, clusters: &str) -> String {
    let label = format!("ns:kubernetes.io/metadata.name=shop&pod:{pod}");
    format!(
        "---\napiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: LabelIdentity\nmetadata: {{name: {}}}\n\
         spec: {{label: \"{label}\", id: {id}, clusters: {clusters}}}\n",
        object_name(&digest(&label))
    )
}

/// Writes Namespace, identities, Pods and policy of both clusters.
pub(crate) fn write_objects(topology: &Topology) {
    const ALL: &str = "[east, west, north]";
    let identities = [
        identity("app=client", ALLOWED_ID, ALL),
        identity("app=intruder", DROPPED_ID, ALL),
        identity("app=client,of=east", OF_EAST_ID, "[east]"),
        identity("app=client,of=west", OF_WEST_ID, "[west]"),
        identity("app=client,of=one", AMBIGUOUS_ID, ALL),
        identity("app=client,of=two", AMBIGUOUS_ID, ALL),
    ]
    .concat();
    for cluster in Cluster::ALL {
        let [v4, v6] = [Family::V4, Family::V6].map(|family| cluster.pod_addr(family));
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\napiVersion: v1\nkind: Pod\n\
             metadata: {{name: p, namespace: shop, labels: {{app: server}}}}\nspec: {{nodeName: {}, containers: []}}\n\
             status: {{phase: Running, podIPs: [{{ip: \"{v4}\"}}, {{ip: \"{v6}\"}}]}}\n{identities}---\n{POLICY}",
            cluster.node().name()
        );
        fs::write(topology.manifests_dir(cluster).join("policies.yaml"), text).expect("a manifest");
    }
}

/// Waits until the nodes of both clusters enforce the policy.
pub(crate) fn wait_enforced(bed: &Bed) {
    for entry in [Entry::Member, Entry::Node] {
        let (src, dst) = bed.ends(entry, Family::V4);
        let mut tunnel = bed.encapsulated(entry, &datagram(src, dst, POD_PORT, ATTACK));
        tunnel.vni = DROPPED_ID;
        let place = policed_at(entry);
        wait_for(&format!("the policy of {}", place.name()), TIMEOUT, || {
            bed.send(entry, &Send::Frames(vec![tunnel.frame()]), 1);
            let counters = Counters::read(&bed.topology.bpf_dir(place)).expect("counters");
            match counters.drops.get(DropReason::Policy.name()) {
                None | Some(0) => Err(format!("{counters:?}")),
                Some(_) => Ok(()),
            }
        })
        .expect("drops");
    }
}
