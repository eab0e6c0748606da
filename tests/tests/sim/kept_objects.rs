//! UIDs of the objects that a scenario keeps.

use std::time::Duration;

use mc_test_kit::fake_apiserver::resources::Resource;
use tokio::time::{Instant, sleep};

use crate::{
    invariants::text,
    simulation::{SharedSimulation, Simulation},
};

/// Bound of [`wait_all`], the restart of a crashed controller included.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The UID of an object; `None` if it does not exist or is being deleted.
pub(crate) fn uid(
    world: &Simulation,
    server: usize,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Option<String> {
    let key = (namespace.to_owned(), name.to_owned());
    let object = world.clusters[server].store.get(resource, &key)?;
    (!object.is_terminating()).then(|| text(object.meta("uid")))
}

/// Waits until all objects exist; returns their UIDs, also after the timeout.
pub(crate) async fn wait_all(
    world: &SharedSimulation,
    uids: impl Fn(&Simulation) -> Vec<Option<String>>,
) -> Vec<Option<String>> {
    let start = Instant::now();
    loop {
        let seen = uids(&world.lock());
        if !seen.contains(&None) || start.elapsed() >= TIMEOUT {
            return seen;
        }
        sleep(Duration::from_millis(100)).await;
    }
}
