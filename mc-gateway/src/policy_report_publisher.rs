//! Publication of this Node's report about network policies, the `NodePolicyStatus` of the Node's name.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_api::node_policy_status::{NodePolicyStatus, NodePolicyStatusSpec};
use mc_gateway_common::abi::policy::RuleCounter;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::config::{Config, PolicyEnforcement};
use crate::metrics::Metrics;
use crate::policy_report::AppliedPolicies;
use crate::source::kubernetes::node_object::{NodeObjects, WriteError};
use crate::source::kubernetes::node_report::{self, RESYNC_INTERVAL};

/// Shortest time between two writes: one change of Pods often follows another.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time after a write until one with other counters alone: every packet changes them.
const COUNTER_INTERVAL: Duration = Duration::from_mins(1);

/// The report of the last reconcile; none before the first one.
pub type Report = Option<AppliedPolicies>;

/// A report, written or to be written.
#[derive(Debug)]
struct Written {
    /// Without counters.
    report: Arc<NodePolicyStatusSpec>,
    /// With counters.
    spec: NodePolicyStatusSpec,
}

/// The counters of the rules in the kernel.
struct RuleCounters {
    metrics: Arc<Metrics>,
    /// Whether the last attempt to read them failed.
    failed: AtomicBool,
}

/// Publishes `reports` with the counters of the rules, or removes the report of an earlier enforcement; requires an API
/// server.
pub fn start(config: &Config, reports: watch::Receiver<Report>, metrics: Arc<Metrics>) {
    let Some(objects) = NodeObjects::new(config) else {
        return;
    };
    if config.policy_enforcement == PolicyEnforcement::Off {
        tokio::spawn(async move {
            let attempt = async || Ok((write(&objects, None).await?, ()));
            node_report::retry::<NodePolicyStatus, _, _>(&objects.node, attempt).await;
        });
    } else {
        let counters = RuleCounters {
            metrics,
            failed: AtomicBool::new(false),
        };
        tokio::spawn(async move {
            let write = |spec| write(&objects, Some(spec));
            publish(&objects.node, reports, || counters.read(), write).await;
        });
    }
}

async fn write(
    objects: &NodeObjects,
    spec: Option<NodePolicyStatusSpec>,
) -> Result<&'static str, WriteError> {
    node_report::write(objects, spec, NodePolicyStatus::of_node).await
}

/// Writes the reports until their sender ends.
async fn publish<F>(
    node: &str,
    mut reports: watch::Receiver<Report>,
    counters: impl Fn() -> BTreeMap<u32, RuleCounter>,
    write: impl Fn(NodePolicyStatusSpec) -> F,
) where
    F: Future<Output = Result<&'static str, WriteError>>,
{
    let mut last: Option<(Written, Instant)> = None;
    while reports.wait_for(Option::is_some).await.is_ok() {
        let now = Instant::now();
        let due = last.as_ref().and_then(|(written, at)| {
            let wanted = Written::newest(&reports, &counters)?;
            at.checked_add(written.pause_before(&wanted))
        });
        if let Some(due) = due.filter(|due| *due > now) {
            let look = now
                .checked_add(COUNTER_INTERVAL)
                .map_or(due, |look| look.min(due));
            if let Ok(Err(_)) = timeout_at(look, reports.changed()).await {
                return;
            }
            continue;
        }
        // Each attempt takes the newest report and counters.
        let latest = || {
            let newest = Written::newest(&reports, &counters);
            let attempt = newest.as_ref().map(|newest| write(newest.spec.clone()));
            async {
                match attempt {
                    Some(attempt) => Ok((attempt.await?, newest)),
                    None => Ok(("unchanged", newest)),
                }
            }
        };
        let written = node_report::retry::<NodePolicyStatus, _, _>(node, latest).await;
        last = written.map(|written| (written, Instant::now()));
    }
}

// === impl Written ===

impl Written {
    /// The newest report with the present counters; none while policies are not enforced.
    fn newest(
        reports: &watch::Receiver<Report>,
        counters: impl Fn() -> BTreeMap<u32, RuleCounter>,
    ) -> Option<Self> {
        let applied = reports.borrow().clone()?;
        Some(Self {
            spec: applied.with_counters(&counters()),
            report: applied.report,
        })
    }

    /// Time from this write to one of `wanted`.
    fn pause_before(&self, wanted: &Self) -> Duration {
        if wanted.report != self.report {
            WRITE_INTERVAL
        } else if wanted.spec != self.spec {
            COUNTER_INTERVAL
        } else {
            RESYNC_INTERVAL
        }
    }
}

// === impl RuleCounters ===

impl RuleCounters {
    /// By ID of the rule; none if they cannot be read, which is logged once.
    fn read(&self) -> BTreeMap<u32, RuleCounter> {
        match self.metrics.rule_counters() {
            Ok(counters) => {
                self.failed.store(false, Ordering::Relaxed);
                counters
            }
            Err(error) => {
                if !self.failed.swap(true, Ordering::Relaxed) {
                    let error = crate::error_chain(&error);
                    warn!(%error, "report about policies has no counters");
                }
                BTreeMap::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use mc_api::node_policy_status::{Enforcement, PolicyReport};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::desired::rule_names::RuleName;

    /// The report with one policy of this generation, and one rule with ID 7.
    fn applied(generation: i64) -> AppliedPolicies {
        let policy = PolicyReport {
            kind: "ClusterNetworkPolicy".to_owned(),
            name: "web".to_owned(),
            generation,
            selects_pods: true,
            ..PolicyReport::default()
        };
        let rule = RuleName {
            policy: "ClusterNetworkPolicy web".to_owned(),
            rule: "spec.ingress[0]".to_owned(),
            action: "Drop".to_owned(),
        };
        AppliedPolicies {
            report: Arc::new(NodePolicyStatusSpec::bounded(
                Enforcement::All,
                generation.to_string(),
                vec![policy],
            )),
            rules: Arc::new([(7, rule)].into()),
        }
    }

    fn packets(packets: u64) -> BTreeMap<u32, RuleCounter> {
        let counter = RuleCounter {
            packets,
            bytes: packets * 74,
        };
        [(7, counter)].into()
    }

    /// Runs the publisher for some seconds of simulated time while `counters` changes with the second and `change` acts
    /// on the reports; returns second, generation and packets of each write. Attempts before second `down_until` fail.
    async fn published<F: Future<Output = ()>>(
        seconds: u64,
        down_until: u64,
        counters: impl Fn(u64) -> BTreeMap<u32, RuleCounter>,
        change: impl FnOnce(watch::Sender<Report>) -> F,
    ) -> Vec<(u64, i64, u64)> {
        let start = Instant::now();
        let writes = Mutex::new(Vec::new());
        let write = |spec: NodePolicyStatusSpec| {
            let second = start.elapsed().as_secs();
            let policy = &spec.policies[0];
            let packets = policy.rules.first().map_or(0, |rule| rule.packets);
            let result = if second < down_until {
                Err(WriteError::Manifest(
                    serde_json::from_str::<u8>("down").unwrap_err(),
                ))
            } else {
                writes.lock().unwrap().push((second, policy.generation, packets));
                Ok("updated")
            };
            async { result }
        };
        let (sender, reports) = watch::channel(Some(applied(1)));
        let publisher = publish("n1", reports, || counters(start.elapsed().as_secs()), write);
        let run = async { tokio::join!(publisher, change(sender)) };
        let _ended = timeout(Duration::from_secs(seconds), run).await;
        writes.into_inner().unwrap()
    }

    /// Keeps the channel open.
    async fn no_change(reports: watch::Sender<Report>) {
        sleep(Duration::from_hours(1)).await;
        drop(reports);
    }

    #[tokio::test(start_paused = true)]
    async fn counters_alone_are_written_once_a_minute() {
        let writes = published(200, 0, packets, no_change).await;
        assert_eq!(writes, [(0, 1, 0), (60, 1, 60), (120, 1, 120), (180, 1, 180)]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_while_nothing_changes() {
        let writes = published(599, 0, |_| packets(5), no_change).await;
        assert_eq!(
            writes,
            [(0, 1, 5), (300, 1, 5)],
            "the second one restores the object"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_counter_that_changes_late_is_seen_within_a_minute() {
        let counters = |second| packets(u64::from(second >= 130));
        let writes = published(299, 0, counters, no_change).await;
        assert_eq!(writes, [(0, 1, 0), (180, 1, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_report_is_written_at_once_with_the_counters_of_that_moment() {
        let change = |reports: watch::Sender<Report>| async move {
            sleep(Duration::from_secs(20)).await;
            for generation in [2, 3] {
                reports.send_replace(Some(applied(generation)));
                sleep(Duration::from_millis(100)).await;
            }
            no_change(reports).await;
        };
        let writes = published(110, 0, packets, change).await;
        assert_eq!(writes, [(0, 1, 0), (20, 2, 20), (21, 3, 21), (81, 3, 81)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_attempt_has_the_newest_counters() {
        let writes = published(60, 5, packets, no_change).await;
        let [(second, 1, packets)] = writes[..] else {
            panic!("{writes:?}")
        };
        assert!(second >= 5 && packets == second, "{writes:?}");
    }
}
