//! Reports: objects that the agent writes for its Node and keeps as it wants them.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use kube::api::{DeleteParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::core::object::HasSpec;
use kube::{Api, Resource};
use mc_kube::{Backoff, jitter_seed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::node_object::{NodeObjects, WriteError};

/// Time after which an object that another writer changed or deleted is restored.
pub(crate) const RESYNC_INTERVAL: Duration = Duration::from_mins(5);
/// Shortest time between two writes of [`publish`].
const WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// Delays between two attempts.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// A kind whose object has the name of a Node.
pub(crate) trait ReportKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + HasSpec<Spec: Clone + PartialEq>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
{
}

impl<K> ReportKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + HasSpec<Spec: Clone + PartialEq>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
{
}

/// The difference between the object in the API and the report.
#[derive(Debug, PartialEq)]
enum Change<K> {
    None,
    Create(Box<K>),
    /// Replaces the object of the version that was read.
    Replace(Box<K>),
    Delete(Preconditions),
}

/// Writes each report of `wanted` until its sender ends; a report without content deletes the object.
pub(crate) async fn publish<K: ReportKind>(
    objects: &NodeObjects,
    mut wanted: watch::Receiver<Option<K::Spec>>,
    of_node: fn(&str, &str, K::Spec) -> K,
) {
    loop {
        // Each attempt takes the newest report.
        let attempt = || {
            let spec = wanted.borrow().clone();
            let is_kept = spec.is_some();
            async move { Ok((write(objects, spec, of_node).await?, is_kept)) }
        };
        let is_kept = retry::<K, _, _>(&objects.node, attempt).await;
        sleep(WRITE_INTERVAL).await;
        let changed = wanted.changed();
        let ended = if is_kept {
            matches!(timeout(RESYNC_INTERVAL, changed).await, Ok(Err(_)))
        } else {
            changed.await.is_err()
        };
        if ended {
            return;
        }
    }
}

/// Attempts until one succeeds; returns its value.
pub(crate) async fn retry<K, T, F>(node: &str, attempt: impl Fn() -> F) -> T
where
    K: Resource<DynamicType = ()>,
    F: Future<Output = Result<(&'static str, T), WriteError>>,
{
    let kind = K::kind(&());
    let mut delays = Backoff::new(MIN_RETRY, MAX_RETRY, jitter_seed([&*kind, node]));
    let mut logged = String::new();
    loop {
        let error = match timeout(ATTEMPT_TIMEOUT, attempt()).await {
            Ok(Ok((done, value))) => {
                if !logged.is_empty() {
                    info!(%kind, node, done, "report of this Node recovered");
                }
                return value;
            }
            Ok(Err(error)) => crate::error_chain(&error),
            Err(_) => "no answer".to_owned(),
        };
        if error != logged {
            warn!(%kind, node, %error, "report of this Node not written");
        }
        logged = error;
        sleep(delays.next_delay()).await;
    }
}

/// Reads the object and makes it equal to the report; deletes it without one. A conflict is an error: the next attempt
/// reads it again.
pub(crate) async fn write<K: ReportKind>(
    objects: &NodeObjects,
    report: Option<K::Spec>,
    of_node: fn(&str, &str, K::Spec) -> K,
) -> Result<&'static str, WriteError> {
    let NodeObjects { namespace, node, .. } = objects;
    let client = objects.client().await?;
    let api = Api::<K>::namespaced(client.clone(), namespace);
    // None if neither the object nor its kind exists.
    let found = api.get_opt(node).await?;
    let wanted = match report {
        None => None,
        Some(report) => {
            let uid = objects.uid(client).await?;
            Some(of_node(node, &uid, report))
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
fn change<K: ReportKind>(found: Option<K>, wanted: Option<K>) -> Change<K> {
    match (found, wanted) {
        (None, None) => Change::None,
        (None, Some(wanted)) => Change::Create(Box::new(wanted)),
        (Some(found), None) => Change::Delete(Preconditions {
            uid: found.meta().uid.clone(),
            resource_version: None,
        }),
        (Some(found), Some(wanted)) => {
            let is_equal = found.spec() == wanted.spec()
                && found.meta().owner_references == wanted.meta().owner_references;
            if is_equal {
                return Change::None;
            }
            let mut new = found;
            *new.spec_mut() = wanted.spec().clone();
            let owners = &mut new.meta_mut().owner_references;
            owners.clone_from(&wanted.meta().owner_references);
            new.meta_mut().managed_fields = None;
            Change::Replace(Box::new(new))
        }
    }
}

#[cfg(test)]
mod tests {
    use mc_api::node_reachability::{NodeReachability, NodeReachabilitySpec};

    use super::*;

    fn object(node_uid: &str, cluster: &str) -> NodeReachability {
        let spec = NodeReachabilitySpec::new([(cluster.to_owned(), true)]);
        NodeReachability::of_node("n1", node_uid, spec)
    }

    fn stored(mut object: NodeReachability) -> NodeReachability {
        object.metadata.uid = Some("u".to_owned());
        object.metadata.resource_version = Some("7".to_owned());
        object
    }

    #[test]
    fn an_equal_object_is_not_written() {
        let found = stored(object("node", "a"));
        assert_eq!(change(Some(found), Some(object("node", "a"))), Change::None);
        assert_eq!(change::<NodeReachability>(None, None), Change::None);
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
    fn an_object_that_is_no_longer_wanted_is_deleted() {
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
