//! Publication of this Node's report about network policies, the `NodePolicyStatus` of the Node's name.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use mc_api::node_policy_status::{NodePolicyStatus, NodePolicyStatusSpec};
use mc_gateway_common::abi::policy::RuleCounter;
use mc_kube::{Backoff, jitter_seed};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

use crate::config::{Config, PolicyEnforcement};
use crate::metrics::Metrics;
use crate::policy_report::AppliedPolicies;
use crate::source::kubernetes::node_object::{NodeObjects, WriteError};

/// Shortest time between two writes: one change of Pods often follows another.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time after a write until one with other counters alone: every packet changes them.
const COUNTER_INTERVAL: Duration = Duration::from_mins(1);
/// Time after which an object that another writer changed or deleted is restored.
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);
/// Delays between two attempts.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

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

/// The difference between the object in the API and the report.
#[derive(Debug, PartialEq)]
enum Change {
    None,
    Create(Box<NodePolicyStatus>),
    /// Replaces the object of the version that was read.
    Replace(Box<NodePolicyStatus>),
    Delete(Preconditions),
}

/// Publishes `reports` with the counters of the rules, or removes the report of an earlier enforcement; requires an API
/// server.
pub fn start(config: &Config, reports: watch::Receiver<Report>, metrics: Arc<Metrics>) {
    let Some(objects) = NodeObjects::new(config) else {
        return;
    };
    if config.policy_enforcement == PolicyEnforcement::Off {
        tokio::spawn(async move {
            retry(&objects.node, async || Ok((sync(&objects, None).await?, ()))).await;
        });
    } else {
        let counters = RuleCounters {
            metrics,
            failed: AtomicBool::new(false),
        };
        tokio::spawn(async move {
            let write = |spec| sync(&objects, Some(spec));
            publish(&objects.node, reports, || counters.read(), write).await;
        });
    }
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
        let written = retry(node, latest).await;
        last = written.map(|written| (written, Instant::now()));
    }
}

/// Attempts until one succeeds; returns its value.
async fn retry<T, F>(node: &str, attempt: impl Fn() -> F) -> T
where
    F: Future<Output = Result<(&'static str, T), WriteError>>,
{
    let mut delays = Backoff::new(MIN_RETRY, MAX_RETRY, jitter_seed(["policy report", node]));
    let mut logged = String::new();
    loop {
        let error = match timeout(ATTEMPT_TIMEOUT, attempt()).await {
            Ok(Ok((done, value))) => {
                if !logged.is_empty() {
                    info!(nodepolicystatus = node, done, "report about policies recovered");
                }
                return value;
            }
            Ok(Err(error)) => crate::error_chain(&error),
            Err(_) => "no answer".to_owned(),
        };
        if error != logged {
            warn!(nodepolicystatus = node, %error, "report about policies not written");
        }
        logged = error;
        sleep(delays.next_delay()).await;
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

/// Reads the object and makes it equal to the report; deletes it without one. A conflict is an error: the next attempt
/// reads it again.
async fn sync(
    objects: &NodeObjects,
    report: Option<NodePolicyStatusSpec>,
) -> Result<&'static str, WriteError> {
    let NodeObjects { namespace, node, .. } = objects;
    let client = objects.client().await?;
    let api = Api::<NodePolicyStatus>::namespaced(client.clone(), namespace);
    // None if neither the object nor its kind exists.
    let found = api.get_opt(node).await?;
    let wanted = match report {
        None => None,
        Some(report) => {
            let uid = objects.uid(client).await?;
            Some(NodePolicyStatus::of_node(node, &uid, report))
        }
    };
    let by = NodeObjects::post_params();
    match change(found, wanted) {
        Change::None => Ok("unchanged"),
        Change::Create(object) => api.create(&by, &object).await.map(|_| "created"),
        Change::Replace(object) => api.replace(node, &by, &object).await.map(|_| "updated"),
        Change::Delete(preconditions) => {
            let params = DeleteParams::default().preconditions(preconditions);
            match api.delete(node, &params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok("absent"),
                other => other.map(|_| "deleted"),
            }
        }
    }
    .map_err(WriteError::from)
}

/// The change from the object in the API to the wanted one. An object of another Node of the same name gets its owner.
fn change(found: Option<NodePolicyStatus>, wanted: Option<NodePolicyStatus>) -> Change {
    match (found, wanted) {
        (None, None) => Change::None,
        (None, Some(wanted)) => Change::Create(Box::new(wanted)),
        (Some(found), None) => Change::Delete(Preconditions {
            uid: found.metadata.uid,
            resource_version: None,
        }),
        (Some(found), Some(wanted)) => {
            let is_equal = found.spec == wanted.spec
                && found.metadata.owner_references == wanted.metadata.owner_references;
            if is_equal {
                return Change::None;
            }
            let mut new = found;
            new.spec = wanted.spec;
            new.metadata.owner_references = wanted.metadata.owner_references;
            new.metadata.managed_fields = None;
            Change::Replace(Box::new(new))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use mc_api::node_policy_status::{Enforcement, PolicyReport};

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

    fn object(node_uid: &str, observed: &str) -> NodePolicyStatus {
        let spec = NodePolicyStatusSpec::bounded(Enforcement::All, observed.to_owned(), Vec::new());
        NodePolicyStatus::of_node("n1", node_uid, spec)
    }

    fn stored(mut object: NodePolicyStatus) -> NodePolicyStatus {
        object.metadata.uid = Some("u".to_owned());
        object.metadata.resource_version = Some("7".to_owned());
        object
    }

    #[test]
    fn an_equal_object_is_not_written() {
        let found = stored(object("node", "a"));
        assert_eq!(change(Some(found), Some(object("node", "a"))), Change::None);
        assert_eq!(change(None, None), Change::None);
    }

    #[test]
    fn a_different_object_is_replaced_at_its_version() {
        for wanted in [object("node", "b"), object("another node", "a")] {
            let Change::Replace(new) = change(Some(stored(object("node", "a"))), Some(wanted.clone())) else {
                panic!("{wanted:?}")
            };
            assert_eq!(new.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(
                (&new.spec, &new.metadata.owner_references),
                (&wanted.spec, &wanted.metadata.owner_references)
            );
        }
    }

    #[test]
    fn the_report_of_an_earlier_enforcement_is_deleted() {
        let Change::Delete(preconditions) = change(Some(stored(object("node", "a"))), None) else {
            panic!()
        };
        assert_eq!(preconditions.uid.as_deref(), Some("u"));
        assert_eq!(
            change(None, Some(object("node", "a"))),
            Change::Create(Box::new(object("node", "a")))
        );
    }
}
