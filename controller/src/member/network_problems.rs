//! The problems of other clusters' networks: issues, and the condition `Ready` of each `ClusterInfoImport`.
//!
//! Networks with problems are imported all the same, because agents leave out single prefixes and gateways. Agents
//! also reject prefixes for reasons that the controller does not know, such as addresses of their own Node, and name
//! those in their logs.

use ipnet::IpNet;
use kube::ResourceExt;
use mc_api::{
    cluster_info::{ClusterInfoImport, ClusterInfoImportStatus},
    condition::{self, Condition},
    validation,
};

use super::pod_cidrs::pod_cidrs;
use crate::{
    issue_code::IssueCode,
    overlap::overlap,
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, api_time},
};

/// The type of the condition.
const READY: &str = "Ready";
/// The controller knows no problem.
const ACCEPTED: &str = "Accepted";
/// A prefix overlaps one of this cluster, or of another cluster.
const OVERLAP: &str = "PrefixOverlap";
/// A prefix is outside `acceptedCIDRs` of the configuration.
const NOT_ACCEPTED: &str = "PrefixNotAccepted";
/// A field has an invalid value.
const INVALID: &str = "InvalidField";
/// The cluster has no gateway.
const NO_GATEWAY: &str = "NoGateway";

/// A problem of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetworkProblem {
    reason: &'static str,
    message: String,
}

/// An imported network with its problems.
#[derive(Debug)]
pub(super) struct ImportedNetwork {
    /// The import.
    pub(super) import: ClusterInfoImport,
    /// Its problems.
    pub(super) problems: Vec<NetworkProblem>,
}

/// Adds the problems of all networks. Of two clusters with overlapping prefixes, the first by name has none.
pub(super) fn find(snapshot: &MemberSnapshot, networks: &mut [ImportedNetwork]) {
    let services = snapshot.service_cidrs.iter().copied();
    let services = services.map(|cidr| ("this cluster's Service CIDR".to_owned(), cidr));
    let pods = pod_cidrs(snapshot).into_iter();
    let pods = pods.map(|cidr| ("this cluster's Pod CIDR".to_owned(), cidr));
    let mut taken: Vec<(String, IpNet)> = services.chain(pods).collect();
    for network in networks {
        let prefixes = check(network, &taken);
        taken.extend(prefixes);
    }
}

/// Adds the problems of one network; returns its prefixes.
fn check(network: &mut ImportedNetwork, taken: &[(String, IpNet)]) -> Vec<(String, IpNet)> {
    let info = &network.import.spec;
    let problems = &mut network.problems;
    let service = info.service_cidrs();
    let service = service.iter().map(|(field, cidr)| (field.clone(), *cidr));
    let pods = info.pod_cidrs.iter().enumerate();
    let pods = pods.map(|(i, cidr)| (format!("spec.podCIDRs[{i}]"), cidr.as_str()));
    let mut prefixes = vec![];
    for (field, value) in service.chain(pods) {
        match validation::cidr(value) {
            Err(cause) => problems.push(NetworkProblem::new(INVALID, format!("{field}: {cause}"))),
            Ok(net) => {
                for (owner, other) in taken.iter().filter(|(_, other)| overlap(*other, net)) {
                    let message = format!("{field}: {net} overlaps {owner}, {other}");
                    problems.push(NetworkProblem::new(OVERLAP, message));
                }
                prefixes.push((format!("{field} of cluster {:?}", info.cluster_id), net));
            }
        }
    }
    for (i, gateway) in info.gateway_infos.iter().enumerate() {
        if let Err(cause) = validation::gateway_ip(&gateway.gateway_ip) {
            let message = format!("spec.gatewayInfos[{i}].gatewayIP: {cause}");
            problems.push(NetworkProblem::new(INVALID, message));
        }
    }
    if info.gateway_infos.is_empty() {
        let message = "spec.gatewayInfos is empty: the cluster is unreachable";
        problems.push(NetworkProblem::new(NO_GATEWAY, message.to_owned()));
    }
    prefixes
}

/// Reports the problems, and writes the condition of an import that exists.
pub(super) fn report(
    snapshot: &MemberSnapshot,
    network: &ImportedNetwork,
    existing: Option<&ClusterInfoImport>,
    plan: &mut Plan,
) {
    for problem in &network.problems {
        let subject = format!("ClusterInfoImport {}", network.import.name_any());
        plan.issue(IssueCode::NetworkUnusable, subject, problem.message.as_str());
    }
    let Some(old) = existing else { return };
    let ready = match &network.problems[..] {
        [] => Condition::new(READY, condition::TRUE, ACCEPTED, ""),
        [first, more @ ..] => {
            let more = match more.len() {
                0 => String::new(),
                more => format!("; and {more} more problems"),
            };
            let message = format!("{}{more}", first.message);
            Condition::new(READY, condition::FALSE, first.reason, message)
        }
    };
    let before = old.status.clone().unwrap_or_default();
    let mut conditions = before.conditions.clone();
    condition::upsert(&mut conditions, ready, &api_time(snapshot.now));
    if conditions != before.conditions {
        plan.status(ApiServer::Local, old, &ClusterInfoImportStatus { conditions });
    }
}

// === impl NetworkProblem ===

impl NetworkProblem {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }

    /// The cluster's configuration does not accept a prefix.
    pub(super) fn not_accepted(cidr: &str) -> Self {
        let message = format!("{cidr} is outside acceptedCIDRs of this cluster's configuration; left out");
        Self::new(NOT_ACCEPTED, message)
    }
}
