//! The token Secret of a `ClusterSet`, read by name at intervals.
//!
//! Instead of a watch: a permission to watch is one to list all Secrets of the Namespace, unless a Role has the name,
//! which is in the `ClusterSet`.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use mc_kube::{AbortOnDrop, WatchContext, error_chain};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::warn;

use crate::snapshot::SecretState;

/// The time between two reads.
const PERIOD: Duration = Duration::from_secs(2);
/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The state of one Secret.
pub(super) struct SecretPoll {
    pub(super) name: String,
    state: watch::Receiver<SecretState>,
    _task: AbortOnDrop,
}

// === impl SecretPoll ===

impl SecretPoll {
    /// Reads the Secret `name` in `namespace` from now on, and notifies of its changes. While it cannot be read, the
    /// last state remains.
    pub(super) fn new(context: &WatchContext, namespace: &str, name: &str) -> Self {
        let (sender, state) = watch::channel(SecretState::Pending);
        let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
        let (context, secret) = (context.clone(), name.to_owned());
        let task = AbortOnDrop::spawn(async move {
            let mut logged = None;
            loop {
                match read(&api, &secret).await {
                    Ok(new) => {
                        logged = None;
                        context.observer.succeeded();
                        if sender.send_if_modified(|old| replace(old, new)) {
                            context.changed.notify_one();
                        }
                    }
                    Err(error) => {
                        context.observer.failed(error.clone());
                        if logged.as_ref() != Some(&error) {
                            warn!(secret, "Secret not read: {error}");
                            logged = Some(error);
                        }
                    }
                }
                sleep(PERIOD).await;
            }
        });
        Self {
            name: name.to_owned(),
            state,
            _task: task,
        }
    }

    /// The state when the Secret was last read.
    pub(super) fn state(&self) -> SecretState {
        self.state.borrow().clone()
    }
}

async fn read(api: &Api<Secret>, name: &str) -> Result<SecretState, String> {
    let found = timeout(REQUEST_TIMEOUT, api.get_opt(name))
        .await
        .map_err(|_| format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))?;
    match found.map_err(|error| error_chain(&error))? {
        Some(secret) => Ok(SecretState::Present(Arc::new(secret))),
        None => Ok(SecretState::Missing),
    }
}

/// Replaces the state by another version; returns whether it differs.
fn replace(old: &mut SecretState, new: SecretState) -> bool {
    let is_same = match (&*old, &new) {
        (SecretState::Present(old), SecretState::Present(new)) => {
            (old.uid(), old.resource_version()) == (new.uid(), new.resource_version())
        }
        (SecretState::Missing, SecretState::Missing) => true,
        _ => false,
    };
    if !is_same {
        *old = new;
    }
    !is_same
}
