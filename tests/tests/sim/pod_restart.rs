//! A restart of the only Pod of an exported Service: the imported Service remains.

use std::time::Duration;

use mc_api::names;
use tokio::time::{Instant, sleep};

use crate::{
    invariants::{core, list, slices, text},
    simulation::{SharedSimulation, Simulation},
};

const NAMESPACE: &str = "shop";
const NAME: &str = "web";
/// Name of the imported Service.
const IMPORTED: &str = "antrea-mc-web";
/// The importing cluster.
const IMPORTER: usize = 2;
/// Time until the new Pod is ready.
const READY_AFTER: Duration = Duration::from_secs(20);
/// Bound of each step, the restart of a crashed controller included.
const STEP_TIMEOUT: Duration = Duration::from_mins(1);

/// Restarts the Pod; a Service of another UID, or none, is a violation.
pub(crate) async fn run(world: &SharedSimulation) {
    world.lock().put_service(1, NAMESPACE, NAME, 0, 1);
    world.lock().set_export(1, NAMESPACE, NAME, true);
    let before = wait_endpoints(world, true).await;
    world.lock().put_service(1, NAMESPACE, NAME, 0, 0);
    let without = wait_endpoints(world, false).await;
    sleep(READY_AFTER).await;
    world.lock().put_service(1, NAMESPACE, NAME, 0, 1);
    let after = wait_endpoints(world, true).await;
    if before.is_none() || without != before || after != before {
        world.lock().invariants.violations.push(format!(
            "UID of the imported Service: {before:?}, without endpoints {without:?}, then {after:?}"
        ));
    }
}

/// Waits until the imported Service has endpoints or none; returns its UID, `None` after the timeout.
async fn wait_endpoints(world: &SharedSimulation, wanted: bool) -> Option<String> {
    let start = Instant::now();
    while start.elapsed() < STEP_TIMEOUT {
        sleep(Duration::from_millis(100)).await;
        let (uid, has_endpoints) = imported(&world.lock());
        if uid.is_some() && has_endpoints == wanted {
            return uid;
        }
    }
    None
}

/// UID of the imported Service, and whether it has endpoints.
fn imported(world: &Simulation) -> (Option<String>, bool) {
    let store = &world.clusters[IMPORTER].store;
    let key = (NAMESPACE.to_owned(), IMPORTED.to_owned());
    let service = store.get(&core("services"), &key);
    let has_endpoints = store.all(&slices()).any(|(_, slice)| {
        slice.label(names::LABEL_SERVICE_NAME) == Some(IMPORTED)
            && list(&slice.value["endpoints"]).next().is_some()
    });
    (service.map(|s| text(s.meta("uid"))), has_endpoints)
}
