//! Publication of this Node's report about network policies, the `NodePolicyStatus` of the Node's name.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use mc_api::node_policy_status::{NodePolicyStatus, NodePolicyStatusSpec};
use mc_kube::{Backoff, jitter_seed};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::config::{Config, PolicyEnforcement};
use crate::source::kubernetes::node_object::{NodeObjects, WriteError};

/// Shortest time between two writes: one change of Pods often follows another.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which an object that another writer changed or deleted is restored.
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);
/// Delays between two attempts.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// The report of the last reconcile; none before the first one.
pub type Report = Option<Arc<NodePolicyStatusSpec>>;

/// The difference between the object in the API and the report.
#[derive(Debug, PartialEq)]
enum Change {
    None,
    Create(Box<NodePolicyStatus>),
    /// Replaces the object of the version that was read.
    Replace(Box<NodePolicyStatus>),
    Delete(Preconditions),
}

/// Publishes `reports`, or removes the report of an earlier enforcement; requires an API server.
pub fn start(config: &Config, reports: watch::Receiver<Report>) {
    let Some(objects) = NodeObjects::new(config) else {
        return;
    };
    if config.policy_enforcement == PolicyEnforcement::Off {
        tokio::spawn(async move { retry(&objects.node, || sync(&objects, None)).await });
    } else {
        tokio::spawn(run(objects, reports));
    }
}

async fn run(objects: NodeObjects, mut reports: watch::Receiver<Report>) {
    while reports.wait_for(Option::is_some).await.is_ok() {
        // Each attempt takes the newest report.
        let latest = || {
            let report = reports.borrow().clone();
            async { sync(&objects, Some(report.unwrap_or_default())).await }
        };
        retry(&objects.node, latest).await;
        sleep(WRITE_INTERVAL).await;
        if let Ok(Err(_)) = timeout(RESYNC_INTERVAL, reports.changed()).await {
            return;
        }
    }
}

/// Attempts until one succeeds.
async fn retry<F>(node: &str, attempt: impl Fn() -> F)
where
    F: Future<Output = Result<&'static str, WriteError>>,
{
    let mut delays = Backoff::new(MIN_RETRY, MAX_RETRY, jitter_seed(["policy report", node]));
    let mut logged = String::new();
    loop {
        let error = match timeout(ATTEMPT_TIMEOUT, attempt()).await {
            Ok(Ok(done)) => {
                if !logged.is_empty() {
                    info!(nodepolicystatus = node, done, "report about policies recovered");
                }
                return;
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

/// Reads the object and makes it equal to the report; deletes it without one. A conflict is an error: the next attempt
/// reads it again.
async fn sync(
    objects: &NodeObjects,
    report: Option<Arc<NodePolicyStatusSpec>>,
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
            let report = NodePolicyStatusSpec::clone(&report);
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
    use mc_api::node_policy_status::Enforcement;

    use super::*;

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
