//! Network policies of users, and the reports of simulated agents.

use std::{collections::BTreeMap, sync::Arc};

use mc_api::address_group_slice::COMPLETE_NAME;
use mc_api::node_policy_status::{
    Enforcement, FieldReport, NodePolicyStatus, NodePolicyStatusSpec, PolicyReport, RuleReport,
    observed_policies,
};
use mc_test_kit::fake_apiserver::{
    resources::Resource,
    store::{Key, StoredObject},
};
use serde_json::{Value, json};

use crate::{
    invariants::{core, list, text},
    simulation::{Cluster, MEMBER_NAMESPACE, Simulation},
    user_actions::pod_address,
};

/// Number of names of policies.
const POLICIES: u64 = 4;
/// The policy with an error on every Node.
const INVALID: &str = "p2";
/// Labels of Pods in peers of rules.
const PEER_LABELS: [(&str, &str); 3] = [("app", "web"), ("tier", "front"), ("app", "absent")];
/// The rule that decides on packets.
const RULE: &str = "spec.ingress[0]";

/// A resource of `crd.antrea.io`.
pub(crate) fn crd_antrea(plural: &str) -> Resource {
    ("crd.antrea.io".to_owned(), plural.to_owned())
}

fn reports() -> Resource {
    ("mc-gateway.io".to_owned(), "nodepolicystatuses".to_owned())
}

/// Whether a policy selects a Pod of a Node.
fn selects(policy: &str, node: &str) -> bool {
    (policy.len() + policy.bytes().chain(node.bytes()).map(usize::from).sum::<usize>()).is_multiple_of(2)
}

fn policies(cluster: &Cluster) -> impl Iterator<Item = (&str, &StoredObject)> {
    let all = cluster.store.all(&crd_antrea("clusternetworkpolicies"));
    all.map(|(key, policy)| (key.1.as_str(), policy.as_ref()))
}

/// The labels of Pods in the peers of scope `ClusterSet`, as `key=value`.
pub(crate) fn selected_pod_labels(cluster: &Cluster) -> impl Iterator<Item = String> {
    let rules = policies(cluster).flat_map(|(_, policy)| list(&policy.value["spec"]["ingress"]));
    peer_labels(rules.flat_map(|rule| list(&rule["from"])))
}

/// The labels of Pods that peers require, as `key=value`.
pub(crate) fn peer_labels<'a>(peers: impl Iterator<Item = &'a Value>) -> impl Iterator<Item = String> {
    let labels = peers.filter_map(|peer| peer["podSelector"]["matchLabels"].as_object());
    labels
        .flatten()
        .map(|(key, value)| format!("{key}={}", text(value)))
}

fn generation(policy: &StoredObject) -> i64 {
    policy.meta("generation").as_i64().unwrap_or_default()
}

/// UID of a Node.
pub(crate) fn node_uid(cluster: &Cluster, node: &str) -> Option<String> {
    let key = (String::new(), node.to_owned());
    Some(cluster.store.get(&core("nodes"), &key)?.uid().to_owned())
}

impl Simulation {
    /// Some changes of policies and reports in one cluster.
    pub(crate) fn change_policies(&mut self, server: usize) {
        for _ in 0..self.rng.range(1, 7) {
            self.change_policy(server);
        }
    }

    /// Creates, changes or deletes a policy, or reports as an agent.
    fn change_policy(&mut self, server: usize) {
        let name = format!("p{}", self.rng.below(POLICIES));
        let node = format!("n{}", self.rng.range(1, 5));
        match self.rng.below(10) {
            0..4 => {
                let mut rule = json!({ "action": "Drop" });
                if self.rng.below(2) == 0 {
                    let (key, value) = PEER_LABELS[self.rng.index(PEER_LABELS.len())];
                    let pods = json!({ "matchLabels": { key: value } });
                    rule["from"] = json!([{ "scope": "ClusterSet", "podSelector": pods }]);
                }
                let spec = json!({ "priority": self.rng.range(1, 4), "ingress": [rule] });
                self.write_as_user(
                    server,
                    &crd_antrea("clusternetworkpolicies"),
                    "",
                    &json!({
                        "apiVersion": "crd.antrea.io/v1beta1", "kind": "ClusterNetworkPolicy",
                        "metadata": { "name": name }, "spec": spec,
                    }),
                );
            }
            4 => self.delete_as_user(
                server,
                &crd_antrea("clusternetworkpolicies"),
                &(String::new(), name),
            ),
            _ => self.report_policies(server, &node),
        }
    }

    /// The agents of each cluster with reports report its present policies.
    pub(crate) fn report_all_policies(&mut self) {
        for server in 1..self.clusters.len() {
            let cluster = &self.clusters[server];
            if cluster.store.all(&reports()).next().is_none() {
                continue;
            }
            let nodes: Vec<Key> = cluster
                .store
                .all(&core("nodes"))
                .map(|(key, _)| key.clone())
                .collect();
            for (_, node) in nodes {
                self.report_policies(server, &node);
            }
        }
    }

    fn report_policies(&mut self, server: usize, node: &str) {
        let cluster = &self.clusters[server];
        let Some(uid) = node_uid(cluster, node) else {
            return;
        };
        let error = FieldReport {
            field: "spec.ingress[0].from".to_owned(),
            value: "x".to_owned(),
            reason: "is not supported".to_owned(),
        };
        // Each second has a packet.
        let packets = self.elapsed().as_secs();
        let rule = RuleReport::new(RULE, packets, packets.saturating_mul(74));
        let list = policies(cluster)
            .filter(|(name, _)| selects(name, node) || *name == INVALID)
            .map(|(name, policy)| PolicyReport {
                kind: "ClusterNetworkPolicy".to_owned(),
                name: name.to_owned(),
                uid: policy.uid().to_owned(),
                generation: generation(policy),
                selects_pods: selects(name, node),
                errors: (name == INVALID).then(|| error.clone()).into_iter().collect(),
                rules: selects(name, node).then(|| rule.clone()).into_iter().collect(),
                ..PolicyReport::default()
            })
            .collect();
        let observed =
            observed_policies(policies(cluster).map(|(_, policy)| (policy.uid(), generation(policy))));
        let spec = NodePolicyStatusSpec::bounded(Enforcement::All, observed, list);
        let report = serde_json::to_value(NodePolicyStatus::of_node(node, &uid, spec)).unwrap_or_default();
        self.write_as_user(server, &reports(), MEMBER_NAMESPACE, &report);
    }
}

/// The expected `status.ruleTrafficStats` of a policy: the sum over the reports of its present generation.
fn rule_traffic_stats(policy: &StoredObject, reports: &[&Arc<StoredObject>]) -> Value {
    let entries = reports
        .iter()
        .flat_map(|report| list(&report.value["spec"]["policies"]));
    let present =
        entries.filter(|entry| entry["uid"] == policy.uid() && entry["generation"] == generation(policy));
    let packets: Vec<u64> = present
        .flat_map(|entry| list(&entry["rules"]))
        .filter_map(|rule| rule["packets"].as_u64())
        .collect();
    if packets.is_empty() {
        return json!([]);
    }
    let packets: u64 = packets.iter().sum();
    json!([{ "name": RULE, "trafficStats": { "packets": packets, "bytes": packets * 74 } }])
}

/// The reports of the agents of existing Nodes, with the names of these.
fn agent_reports(cluster: &Cluster) -> Vec<(&str, &Arc<StoredObject>)> {
    let owner = |report: &StoredObject| text(&report.meta("ownerReferences")[0]["uid"]);
    let all = cluster.store.all(&reports());
    all.filter(|(key, report)| node_uid(cluster, &key.1).is_some_and(|uid| uid == owner(report)))
        .map(|(key, report)| (key.1.as_str(), report))
        .collect()
}

/// Each policy with its present and expected phase and counts, and whether the cluster enforces policies.
pub(crate) fn statuses(cluster: &Cluster) -> (bool, Vec<(String, Value, Value)>) {
    let reporting: Vec<&str> = agent_reports(cluster).into_iter().map(|(node, _)| node).collect();
    let of_policy = |(name, policy): (&str, &StoredObject)| {
        let status = &policy.value["status"];
        let have = json!([
            status["phase"],
            status["observedGeneration"],
            status["currentNodesRealized"],
            status["desiredNodesRealized"],
        ]);
        let desired = reporting.iter().filter(|node| selects(name, node)).count();
        let want = if reporting.is_empty() {
            json!(["Pending", have[1], 0, 0])
        } else if name == INVALID {
            json!(["Failed", generation(policy), 0, desired])
        } else {
            json!(["Realized", generation(policy), desired, desired])
        };
        // Without a report there never was a status.
        let have = if status.is_null() && reporting.is_empty() {
            want.clone()
        } else {
            have
        };
        (name.to_owned(), have, want)
    };
    (!reporting.is_empty(), policies(cluster).map(of_policy).collect())
}

/// The policies whose counters differ from the reports.
pub(crate) fn wrong_counters(cluster: &Cluster) -> Vec<String> {
    let reports: Vec<_> = agent_reports(cluster)
        .into_iter()
        .map(|(_, report)| report)
        .collect();
    let of_policy = |(name, policy): (&str, &StoredObject)| {
        let have = json!(list(&policy.value["status"]["ruleTrafficStats"]).collect::<Vec<_>>());
        let want = rule_traffic_stats(policy, &reports);
        (have != want).then(|| format!("counters of the policy {name}: {have} instead of {want}"))
    };
    policies(cluster).filter_map(of_policy).collect()
}

/// Labels; none if they are absent.
fn labels(value: &Value) -> Value {
    if value.is_null() { json!({}) } else { value.clone() }
}

/// The present and expected labels of each Pod's address in `AddressGroupSlice`s, with the mark that they are complete;
/// none where no agent enforces policies.
pub(crate) fn address_groups(
    cluster: &Cluster,
    is_enforced: bool,
) -> (BTreeMap<String, Value>, BTreeMap<String, Value>) {
    let mut have = BTreeMap::new();
    let slices = ("mc-gateway.io".to_owned(), "addressgroupslices".to_owned());
    for (key, slice) in cluster.store.all(&slices) {
        let spec = &slice.value["spec"];
        if spec["complete"] == true {
            have.insert(key.1.clone(), Value::Null);
        }
        for group in list(&spec["groups"]) {
            for addr in list(&group["addresses"]) {
                let twice = have.insert(text(addr), json!([group["namespace"], labels(&group["labels"])]));
                assert_eq!(twice, None, "{addr} in two groups");
            }
        }
    }
    let mut want = BTreeMap::new();
    if is_enforced {
        want.insert(COMPLETE_NAME.to_owned(), Value::Null);
        for (key, pod) in cluster.store.all(&core("pods")) {
            want.insert(
                pod_address(&key.0, &key.1),
                json!([key.0, labels(pod.meta("labels"))]),
            );
        }
    }
    (have, want)
}
