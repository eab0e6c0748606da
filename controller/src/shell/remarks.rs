//! Remarks as Events in the leader cluster: each once while it stays true.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use kube::{Api, Client, Resource, api::PostParams, core::ObjectMeta};
use tracing::{debug, warn};

use super::watch::{Task, chain};
use crate::{
    api::{label_identity::digest, names::FIELD_MANAGER, resource_import::ResourceImport},
    plan::Remark,
};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long until what could not be told is tried again.
const PAUSE: Duration = Duration::from_secs(10);
/// What Antrea's member calls itself here; people look for it.
const CONTROLLER: &str = "resourceimport-controller";
const INSTANCE: &str = "antrea-mc-controller";

/// Tells remarks to the leader cluster.
pub struct Remarks {
    client: Client,
    namespace: String,
    standing: Standing,
    task: Option<Task>,
}

/// The remarks that hold, and of those the ones that are told or are being told.
#[derive(Clone, Default)]
struct Standing(Arc<Mutex<BTreeSet<Remark>>>);

// === impl Standing ===

impl Standing {
    /// What is to be told now.
    fn news(&self, remarks: Vec<Remark>) -> Vec<Remark> {
        let now: BTreeSet<_> = remarks.into_iter().collect();
        let mut told = self.lock();
        let news = now.difference(&told).cloned().collect();
        *told = now;
        news
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Remark>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Remarks ===

impl Remarks {
    /// Tells them with `client`, in the Namespace of the exchanged objects.
    #[must_use]
    pub fn new(client: Client, namespace: String) -> Self {
        Self {
            client,
            namespace,
            standing: Standing::default(),
            task: None,
        }
    }

    /// These hold `now`, all of them.
    pub fn tell(&mut self, remarks: Vec<Remark>, now: Timestamp) {
        if self.task.as_ref().is_some_and(|task| !task.finished()) {
            return;
        }
        self.task = None;
        let news = self.standing.news(remarks);
        if news.is_empty() {
            return;
        }
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let (namespace, standing) = (self.namespace.clone(), self.standing.clone());
        self.task = Some(Task::spawn(async move {
            let mut failed = false;
            for remark in news {
                if let Err(error) = create(&api, &event(&namespace, &remark, now)).await {
                    if !failed {
                        warn!(about = remark.import, error, "the leader cluster was not told");
                    }
                    failed = true;
                    standing.lock().remove(&remark);
                }
            }
            if failed {
                tokio::time::sleep(PAUSE).await;
            }
        }));
    }
}

async fn create(api: &Api<Event>, event: &Event) -> Result<(), String> {
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    match tokio::time::timeout(TIMEOUT, api.create(&params, event)).await {
        Ok(Ok(_)) => Ok(()),
        // Told before: by this controller before it was restarted, for one.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            debug!(name = event.metadata.name, "told before");
            Ok(())
        }
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// A remark as an Event. The same remark has the same name, so that it is told once until the API server forgets
/// Events (after an hour), however often it begins and ends.
fn event(namespace: &str, remark: &Remark, now: Timestamp) -> Event {
    let hash: String = digest(&format!("{}\n{}\n{}", remark.uid, remark.reason, remark.message))
        .chars()
        .take(16)
        .collect();
    // 253 characters are allowed.
    let about: String = remark.import.chars().take(230).collect();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{hash}", about.trim_end_matches(['.', '-']))),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(ResourceImport::api_version(&()).into_owned()),
            kind: Some(ResourceImport::kind(&()).into_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(remark.import.clone()),
            uid: Some(remark.uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(remark.reason.to_owned()),
        message: Some(remark.message.clone()),
        action: Some("synced".to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        reporting_component: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(INSTANCE.to_owned()),
        source: Some(EventSource {
            component: Some(CONTROLLER.to_owned()),
            host: None,
        }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remark(import: &str, message: &str) -> Remark {
        Remark {
            import: import.to_owned(),
            uid: "u".to_owned(),
            reason: "ACNPImportFailed",
            message: message.to_owned(),
        }
    }

    #[test]
    fn each_remark_is_told_once_while_it_holds() {
        let standing = Standing::default();
        let (a, b) = (remark("a", "x"), remark("b", "x"));
        assert_eq!(
            standing.news(vec![a.clone(), a.clone()]),
            std::slice::from_ref(&a)
        );
        assert!(standing.news(vec![a.clone()]).is_empty());
        assert_eq!(
            standing.news(vec![a.clone(), b.clone()]),
            std::slice::from_ref(&b)
        );
        standing.lock().remove(&b);
        assert_eq!(standing.news(vec![a.clone(), b.clone()]), [b], "not told yet");
        assert!(standing.news(vec![]).is_empty());
        assert_eq!(standing.news(vec![a.clone()]), [a], "it began again");
    }

    #[test]
    fn events_are_those_people_know() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let told = event(
            "mc",
            &remark("strict-antreaclusternetworkpolicy", "ACNP Tier x does not exist"),
            now,
        );
        let again = event(
            "mc",
            &remark("strict-antreaclusternetworkpolicy", "ACNP Tier x does not exist"),
            now,
        );
        assert_eq!(told.metadata.name, again.metadata.name);
        let other = event(
            "mc",
            &remark("strict-antreaclusternetworkpolicy", "ACNP Tier y does not exist"),
            now,
        );
        assert_ne!(told.metadata.name, other.metadata.name);
        let value = serde_json::to_value(&told).unwrap();
        assert_eq!(
            value["involvedObject"]["apiVersion"],
            "multicluster.crd.antrea.io/v1alpha1"
        );
        assert_eq!(value["involvedObject"]["kind"], "ResourceImport");
        assert_eq!(value["reportingComponent"], "resourceimport-controller");
        assert_eq!(value["reportingInstance"], "antrea-mc-controller");
        assert_eq!(
            (value["action"].as_str(), value["type"].as_str()),
            (Some("synced"), Some("Warning"))
        );
        let long = event("mc", &remark(&"x".repeat(253), ""), now);
        assert!(long.metadata.name.unwrap().len() <= 253);
    }
}
