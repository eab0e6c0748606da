//! The kinds of an API group that the API server does not serve: one discovery for all watches that wait for them.
//!
//! Each agent of the cluster repeats it, so its cost does not depend on the number of kinds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::error::DiscoveryError;
use kube::{Client, discovery};
use mc_kube::{Backoff, error_chain, jitter_seed};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// Delays between requests: each agent of the cluster repeats them.
pub(super) const MIN_DELAY: Duration = Duration::from_secs(5);
pub(super) const MAX_DELAY: Duration = Duration::from_mins(1);

/// Discovery of a group, shared by the watches of its absent kinds.
pub(super) struct AbsentKinds {
    client: Client,
    group: &'static str,
    /// Number of requests begun.
    begun: AtomicU64,
    last: Mutex<Discovered>,
}

/// The result of the last request.
struct Discovered {
    /// Its number; 0 before the first one.
    number: u64,
    /// Plural names of the kinds, or the failure.
    kinds: Result<BTreeSet<String>, String>,
    delays: Backoff,
}

// === impl AbsentKinds ===

impl AbsentKinds {
    /// The kinds of `group`; the delays of different Nodes differ.
    pub(super) fn new(client: Client, group: &'static str, node: &str) -> Self {
        let delays = Backoff::new(MIN_DELAY, MAX_DELAY, jitter_seed([node, group]));
        Self {
            client,
            group,
            begun: AtomicU64::new(0),
            last: Mutex::new(Discovered {
                number: 0,
                kinds: Ok(BTreeSet::new()),
                delays,
            }),
        }
    }

    /// Waits until the API server serves a kind in any version, at most [`MAX_DELAY`] longer than it does not.
    ///
    /// # Errors
    ///
    /// The discovery fails.
    pub(super) async fn wait_served(&self, plural: &str) -> Result<(), String> {
        loop {
            let begun = self.begun.load(Ordering::SeqCst);
            let mut last = self.last.lock().await;
            // Another watch may have sent a request since.
            if last.number <= begun {
                sleep(last.delays.next_delay()).await;
                last.number = self.begun.fetch_add(1, Ordering::SeqCst).saturating_add(1);
                last.kinds = kinds_of_group(&self.client, self.group)
                    .await
                    .map_err(|error| error_chain(&error));
            }
            match &last.kinds {
                Ok(kinds) if kinds.contains(plural) => {
                    last.delays.reset();
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => return Err(error.clone()),
            }
        }
    }
}

/// Plural names of all kinds of a group, in any version: objects are listed in one version, and may exist in another.
pub(super) async fn kinds_of_group(client: &Client, group: &str) -> kube::Result<BTreeSet<String>> {
    let found = match discovery::group(client, group).await {
        Err(kube::Error::Discovery(
            DiscoveryError::MissingApiGroup(_) | DiscoveryError::EmptyApiGroup(_),
        )) => return Ok(BTreeSet::new()),
        other => other?,
    };
    let resources = found
        .versions()
        .flat_map(|version| found.versioned_resources(version));
    Ok(resources.map(|(resource, _)| resource.plural).collect())
}
