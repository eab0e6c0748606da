//! The condition `DataPathReady` of each other cluster in the status of the `ClusterSet`.
//!
//! `Ready` states that the leader answers; this condition states that packets arrive.

use std::collections::BTreeMap;

use mc_api::{
    cluster_set::{ClusterSet, ClusterStatus},
    condition::{self, Condition},
};

use super::reachability::{GatewayReports, gateway_reports};
use crate::snapshot::{MemberSnapshot, OptionalKind, api_time};

/// The type of the condition.
pub const DATA_PATH_READY: &str = "DataPathReady";
/// A gateway of this cluster reaches one of the other cluster.
const REACHABLE: &str = "Reachable";
/// The gateways of all Ready Nodes report that none of the other cluster answers.
const UNREACHABLE: &str = "Unreachable";
/// Too few gateways report about the other cluster. Gateways of Antrea receive no probes, for example.
const NOT_REPORTED: &str = "NotReported";
/// This cluster has no gateway on a Ready Node.
const NO_GATEWAY: &str = "NoGateway";

/// The statuses of the other clusters with an imported network, sorted by ID.
pub(super) fn cluster_statuses(snapshot: &MemberSnapshot, set: &ClusterSet) -> Vec<ClusterStatus> {
    let now = api_time(snapshot.now);
    let known = set.status.iter().flat_map(|status| &status.cluster_statuses);
    let known: BTreeMap<_, _> = known
        .filter_map(|status| Some((status.cluster_id.as_str(), data_path_condition(status)?)))
        .collect();
    let mut clusters: Vec<_> = snapshot
        .cluster_infos
        .values()
        .map(|import| import.spec.cluster_id.as_str())
        .filter(|id| !id.is_empty() && *id != set.spec.cluster_id)
        .collect();
    clusters.sort_unstable();
    clusters.dedup();
    let reports = gateway_reports(snapshot);
    let statuses = clusters.into_iter().filter_map(|cluster| {
        let known = known.get(cluster).map(|condition| (*condition).clone());
        let mut conditions: Vec<_> = known.into_iter().collect();
        // After a start the earlier condition stays.
        if !matches!(snapshot.node_reachabilities, OptionalKind::Pending) {
            condition::upsert(&mut conditions, state(&reports, cluster), &now);
        }
        (!conditions.is_empty()).then(|| ClusterStatus {
            cluster_id: cluster.to_owned(),
            conditions,
        })
    });
    statuses.collect()
}

fn data_path_condition(status: &ClusterStatus) -> Option<&Condition> {
    let mut conditions = status.conditions.iter();
    conditions.find(|condition| condition.type_ == DATA_PATH_READY)
}

/// The condition by the reports of the gateways. A cluster is unreachable by the rule that ends the readiness of its
/// endpoints.
fn state(reports: &GatewayReports<'_>, cluster: &str) -> Condition {
    let gateways = reports.gateways();
    let (reached, unreached) = (reports.reaching(cluster), reports.not_reaching(cluster));
    let message =
        format!("{reached} of {gateways} gateways on Ready Nodes reach the cluster, {unreached} do not");
    let (status, reason) = if gateways == 0 {
        (condition::FALSE, NO_GATEWAY)
    } else if reached > 0 {
        (condition::TRUE, REACHABLE)
    } else if unreached == gateways {
        (condition::FALSE, UNREACHABLE)
    } else {
        (condition::UNKNOWN, NOT_REPORTED)
    };
    Condition::new(DATA_PATH_READY, status, reason, message)
}
