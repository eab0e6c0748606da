//! Reports of simulated gateway agents about other clusters, and the endpoints that they close.

use std::collections::{BTreeMap, BTreeSet};

use mc_api::{
    names,
    node_reachability::{NodeReachability, NodeReachabilitySpec},
};
use mc_test_kit::fake_apiserver::{
    resources::Resource,
    store::{Key, StoredObject},
};
use serde_json::{Value, json};

use crate::{
    expected_state::condition,
    invariants::{antrea, core, is_ready, list, slices, text, wanted_cluster_id},
    policies::node_uid,
    simulation::{Cluster, MEMBER_NAMESPACE, Simulation},
};

fn reports() -> Resource {
    ("mc-gateway.io".to_owned(), "nodereachabilities".to_owned())
}

impl Simulation {
    /// The agent of one Node, or those of all, report random other clusters as unreachable.
    pub(crate) fn report_reachability(&mut self, server: usize) {
        let nodes = if self.rng.permille(300) {
            vec![self.rng.range(1, 5)]
        } else {
            (1..5).collect()
        };
        self.report_as_agents(server, &nodes);
    }

    /// The agents of each cluster with reports agree.
    pub(crate) fn report_reachability_everywhere(&mut self) {
        for server in 1..self.clusters.len() {
            if self.clusters[server].store.all(&reports()).next().is_some() {
                self.report_as_agents(server, &[1, 2, 3, 4]);
            }
        }
    }

    fn report_as_agents(&mut self, server: usize, nodes: &[u64]) {
        let clusters: Vec<String> = self
            .clusters
            .iter()
            .skip(1)
            .filter_map(wanted_cluster_id)
            .collect();
        let reachability: Vec<_> = clusters
            .into_iter()
            .map(|cluster| (cluster, self.rng.permille(600)))
            .collect();
        for number in nodes {
            let name = format!("n{number}");
            let Some(uid) = node_uid(&self.clusters[server], &name) else {
                continue;
            };
            let spec = NodeReachabilitySpec::new(reachability.iter().cloned());
            let report = NodeReachability::of_node(&name, &uid, spec);
            let report = serde_json::to_value(report).unwrap_or_default();
            self.write_as_user(server, &reports(), MEMBER_NAMESPACE, &report);
        }
    }
}

/// The clusters that a gateway on a Ready Node reports as reachable, and as unreachable.
type Report = [BTreeSet<String>; 2];

/// The reports of all active gateways on Ready Nodes; one without a report reports nothing.
fn gateway_reports(cluster: &Cluster) -> Vec<Report> {
    let mut all = vec![];
    for (key, gateway) in cluster.store.all(&antrea("gateways")) {
        let node = cluster.store.get(&core("nodes"), &(String::new(), key.1.clone()));
        let node = node.filter(|node| condition(node, "Ready").0 == "True");
        let Some(node) = node.filter(|_| gateway.value["weight"] != json!(0)) else {
            continue;
        };
        let report = cluster
            .store
            .get(&reports(), &(MEMBER_NAMESPACE.to_owned(), key.1.clone()));
        let report = report.filter(|report| {
            list(report.meta("ownerReferences")).any(|owner| text(&owner["uid"]) == node.uid())
        });
        all.push(["reachable", "unreachable"].map(|field| {
            let report = report.into_iter();
            report
                .flat_map(|report| list(&report.value["spec"][field]).map(text))
                .collect()
        }));
    }
    all
}

/// The clusters that the agents of all Ready Nodes with an active Gateway report as unreachable.
fn unreachable(cluster: &Cluster) -> BTreeSet<String> {
    let reports = gateway_reports(cluster).into_iter();
    let lists = reports.map(|[_, unreachable]| unreachable);
    lists
        .reduce(|all, list| all.intersection(&list).cloned().collect())
        .unwrap_or_default()
}

/// The other clusters with the wrong condition `DataPathReady`, of those with an imported network.
pub(crate) fn wrong_data_paths(
    cluster: &Cluster,
    set: &StoredObject,
    others: &BTreeSet<String>,
) -> Vec<String> {
    let reports = gateway_reports(cluster);
    let mut stated: BTreeMap<String, String> = BTreeMap::new();
    for status in list(&set.value["status"]["clusterStatuses"]) {
        let mut conditions = list(&status["conditions"]);
        if let Some(condition) = conditions.find(|condition| condition["type"] == "DataPathReady") {
            stated.insert(text(&status["clusterID"]), text(&condition["status"]));
        }
    }
    let expected = |other: &String| {
        if reports.iter().any(|[reachable, _]| reachable.contains(other)) {
            "True"
        } else if reports.iter().all(|[_, unreachable]| unreachable.contains(other)) {
            "False"
        } else {
            "Unknown"
        }
    };
    let expected: BTreeMap<_, _> = others
        .iter()
        .map(|other| (other.clone(), expected(other).to_owned()))
        .collect();
    if stated == expected {
        vec![]
    } else {
        vec![format!("data paths {stated:?} instead of {expected:?}")]
    }
}

/// The imported endpoints with the wrong readiness: those of an unreachable cluster are not ready where a reachable one
/// serves each of their ports in their IP family.
pub(crate) fn wrong_readiness(cluster: &Cluster) -> Vec<String> {
    let unreachable = unreachable(cluster);
    let imported: Vec<(&Key, &StoredObject)> = cluster
        .store
        .all(&slices())
        .filter(|(_, slice)| slice.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY))
        .map(|(key, slice)| (key, slice.as_ref()))
        .collect();
    let is_reachable = |slice: &StoredObject| {
        let of = slice.label(names::LABEL_MCS_SOURCE_CLUSTER).unwrap_or_default();
        !unreachable.contains(of)
    };
    let service = |key: &Key, slice: &StoredObject| {
        let name = slice.label(names::LABEL_SERVICE_NAME).unwrap_or_default();
        (key.0.clone(), name.to_owned(), slice.value["addressType"].clone())
    };
    let has_port =
        |slice: &StoredObject, name: &Value| list(&slice.value["ports"]).any(|port| port["name"] == *name);
    let mut wrong = vec![];
    for (key, slice) in &imported {
        let is_served_elsewhere = list(&slice.value["ports"]).all(|port| {
            imported.iter().any(|(other_key, other)| {
                is_reachable(other)
                    && service(other_key, other) == service(key, slice)
                    && has_port(other, &port["name"])
                    && list(&other.value["endpoints"]).next().is_some()
            })
        });
        let expected = is_reachable(slice) || !is_served_elsewhere;
        for endpoint in list(&slice.value["endpoints"]) {
            if is_ready(endpoint) != expected {
                wrong.push(format!("{key:?}: {endpoint} instead of ready={expected}"));
            }
        }
    }
    wrong
}
