//! The reports of the Nodes' agents about network policies.

use std::collections::{BTreeMap, BTreeSet};

use kube::{Resource, ResourceExt};
use mc_api::{
    network_policy::{RuleTrafficStats, TrafficStats},
    node_policy_status::{
        Enforcement, FieldReport, MAX_ALL_RULES, MAX_COUNT, MAX_RULE_NAME, NodePolicyStatus, PolicyReport,
        observed_policies,
    },
};

use super::node_owner::owns;
use crate::snapshot::{MemberSnapshot, ObjectMap, OptionalKind, get};

/// Most errors in a message.
const MAX_ERRORS: usize = 10;
/// Most names of Nodes beside one error.
const MAX_NODES: usize = 3;

/// The reports of the existing Nodes with one kind of enforcement.
#[derive(Debug, Default)]
pub(super) struct PolicyReports<'a> {
    nodes: BTreeSet<&'a str>,
    /// Nodes that have not applied all policies as they are now.
    behind: BTreeSet<&'a str>,
    by_uid: BTreeMap<&'a str, Vec<(&'a str, &'a PolicyReport)>>,
}

/// The reports about one generation of a policy.
#[derive(Debug, Default)]
pub(super) struct GenerationReports<'a> {
    /// Nodes with a Pod that the policy selects.
    pub(super) desired: usize,
    /// Those that have applied the generation without an error.
    pub(super) current: usize,
    /// Those that have applied it with an error.
    pub(super) failed: usize,
    /// Whether some Node has applied it.
    pub(super) is_applied: bool,
    /// Whether every Node has applied it.
    pub(super) is_applied_everywhere: bool,
    /// Names of the Nodes by error.
    pub(super) errors: BTreeMap<&'a FieldReport, Vec<&'a str>>,
    /// Errors that a Node has not listed.
    omitted_errors: u32,
    failing_nodes: BTreeSet<&'a str>,
    /// The packets of all Nodes on which a rule has decided, by its name.
    rules: BTreeMap<&'a str, TrafficStats>,
}

/// Whether the agents enforce every rule, and so Antrea none: some Node reports that, and no Node leaves rules to
/// Antrea. Nodes of a cluster with Antrea report that they enforce every rule until Antrea's agent runs on them.
pub(super) fn is_enforced(snapshot: &MemberSnapshot) -> bool {
    is_reported(snapshot, Enforcement::All) && !is_reported(snapshot, Enforcement::ClusterSetOnly)
}

/// Whether the agent of some Node has this enforcement.
pub(super) fn is_reported(snapshot: &MemberSnapshot, enforcement: Enforcement) -> bool {
    existing(snapshot).any(|(_, report)| report.spec.enforcement == enforcement)
}

/// The reports of Nodes that exist: a report is of the Node of its name and of the UID of its owner.
fn existing(snapshot: &MemberSnapshot) -> impl Iterator<Item = (&str, &NodePolicyStatus)> {
    let reports = snapshot.node_policy_statuses.objects();
    let reports = reports.into_iter().flat_map(|reports| reports.values());
    reports.filter_map(|report| {
        let name = report.metadata.name.as_deref()?;
        let node = get(&snapshot.nodes, "", name)?;
        owns(node, &report.metadata).then_some((name, report.as_ref()))
    })
}

// === impl PolicyReports ===

impl<'a> PolicyReports<'a> {
    /// The reports with this enforcement.
    pub(super) fn new(snapshot: &'a MemberSnapshot, enforcement: Enforcement) -> Self {
        let mut reports = Self::default();
        let found: Vec<_> = existing(snapshot)
            .filter(|(_, report)| report.spec.enforcement == enforcement)
            .collect();
        if found.is_empty() {
            return reports;
        }
        let observed = observed_policies(
            uids(&snapshot.policies)
                .into_iter()
                .chain(uids(&snapshot.network_policies)),
        );
        for (node, report) in found {
            reports.nodes.insert(node);
            if report.spec.observed_policies != observed {
                reports.behind.insert(node);
            }
            for policy in &report.spec.policies {
                reports
                    .by_uid
                    .entry(&policy.uid)
                    .or_default()
                    .push((node, policy));
            }
        }
        reports
    }

    /// The reports about the policy's present generation.
    pub(super) fn of<K: Resource>(&self, policy: &K) -> GenerationReports<'a> {
        let generation = policy.meta().generation.unwrap_or_default();
        let uid = policy.uid().unwrap_or_default();
        let reports = self.by_uid.get(uid.as_str()).into_iter().flatten();
        let mut found = GenerationReports::default();
        let mut behind = self.behind.len();
        for (node, report) in reports {
            found.desired += usize::from(report.selects_pods);
            let is_behind = self.behind.contains(node);
            if report.generation != generation {
                behind += usize::from(!is_behind);
                continue;
            }
            behind -= usize::from(is_behind);
            if report.selects_pods && report.has_error() {
                found.failed += 1;
            } else if report.selects_pods {
                found.current += 1;
            }
            if report.has_error() {
                found.failing_nodes.insert(node);
            }
            found.omitted_errors = found.omitted_errors.max(report.omitted_errors);
            for error in &report.errors {
                found.errors.entry(error).or_default().push(node);
            }
            found.count_rules(report);
        }
        found.is_applied = behind < self.nodes.len();
        found.is_applied_everywhere = behind == 0;
        found
    }
}

// === impl GenerationReports ===

impl<'a> GenerationReports<'a> {
    /// Adds the counters of a Node. An agent cuts longer names.
    fn count_rules(&mut self, report: &'a PolicyReport) {
        for rule in report
            .rules
            .iter()
            .filter(|rule| rule.name.len() <= MAX_RULE_NAME)
        {
            let sum = self.rules.entry(&rule.name).or_default();
            sum.packets = sum.packets.saturating_add(rule.packets).min(MAX_COUNT);
            sum.bytes = sum.bytes.saturating_add(rule.bytes).min(MAX_COUNT);
        }
    }

    /// The sums over the Nodes, sorted by name of the rule; [`MAX_ALL_RULES`] at most.
    pub(super) fn rule_traffic_stats(&self) -> Vec<RuleTrafficStats> {
        let rules = self.rules.iter().take(MAX_ALL_RULES);
        rules
            .map(|(name, sum)| RuleTrafficStats {
                name: (*name).to_owned(),
                traffic_stats: *sum,
            })
            .collect()
    }

    /// The errors with field, value, cause and Nodes; none without an error.
    pub(super) fn message(&self) -> Option<String> {
        let nodes = self.failing_nodes.len();
        if nodes == 0 {
            return None;
        }
        let mut parts: Vec<String> = self
            .errors
            .iter()
            .take(MAX_ERRORS)
            .map(|(error, nodes)| format!("{} ({})", text(error), node_names(nodes)))
            .collect();
        let more = self.errors.len().saturating_sub(MAX_ERRORS);
        let more = more.saturating_add(usize::try_from(self.omitted_errors).unwrap_or(usize::MAX));
        if more > 0 {
            parts.push(format!("{more} more errors"));
        }
        Some(format!("Failed Nodes count {nodes}: {}", parts.join("; ")))
    }
}

/// Field, value and cause.
pub(super) fn text(error: &FieldReport) -> String {
    format!("{}: {:?} {}", error.field, error.value, error.reason)
}

fn node_names(nodes: &[&str]) -> String {
    let named = nodes
        .iter()
        .take(MAX_NODES)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    let word = if nodes.len() == 1 { "Node" } else { "Nodes" };
    match nodes.len().saturating_sub(MAX_NODES) {
        0 => format!("{word} {named}"),
        more => format!("{word} {named} and {more} more"),
    }
}

fn uids<K: Resource>(policies: &OptionalKind<K>) -> Vec<(&str, i64)> {
    let objects: Option<&ObjectMap<K>> = policies.objects();
    let objects = objects.into_iter().flat_map(|objects| objects.values());
    objects
        .map(|policy| {
            let metadata = policy.meta();
            let uid = metadata.uid.as_deref().unwrap_or_default();
            (uid, metadata.generation.unwrap_or_default())
        })
        .collect()
}
