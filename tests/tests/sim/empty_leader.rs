//! A leader that loses its objects while the member that exports many Services is cut off: others keep the imports.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    invariants::{core, text},
    run::{disconnect_first_member, restore_leader},
    simulation::{SharedSimulation, Simulation},
};

const NAMESPACE: &str = "shop";
/// More than are deleted without a permission.
const SERVICES: usize = 25;
/// The cluster that exports the Services, and the one that imports them.
const EXPORTER: usize = 1;
const IMPORTER: usize = 2;
/// Time without the exporter; longer than any hold after a relist.
const ABSENCE: Duration = Duration::from_secs(150);
/// Bound of the preparation and of the return.
const STEP_TIMEOUT: Duration = Duration::from_mins(1);

/// Empties the leader; an import with another UID, or none, is a violation.
pub(crate) async fn run(world: &SharedSimulation) {
    sleep(Duration::from_secs(20)).await;
    let empty = world.lock().clusters[0].store.clone();
    for number in 0..SERVICES {
        let mut world = world.lock();
        world.put_service(EXPORTER, NAMESPACE, &name(number), 0, 1);
        world.set_export(EXPORTER, NAMESPACE, &name(number), true);
    }
    let start = Instant::now();
    while uids(&world.lock()).contains(&None) && start.elapsed() < STEP_TIMEOUT {
        sleep(Duration::from_millis(100)).await;
    }
    let before = uids(&world.lock());
    disconnect_first_member(world, ABSENCE);
    restore_leader(&mut world.lock(), &empty);
    let start = Instant::now();
    while start.elapsed() < ABSENCE + STEP_TIMEOUT {
        sleep(Duration::from_secs(1)).await;
        let seen = uids(&world.lock());
        if before.contains(&None) || seen != before {
            let message = format!("after {:?}: UIDs {before:?}, then {seen:?}", start.elapsed());
            return world.lock().invariants.violations.push(message);
        }
    }
}

fn name(number: usize) -> String {
    format!("web-{number}")
}

/// UIDs of the imported Services.
fn uids(world: &Simulation) -> Vec<Option<String>> {
    let uid = |number| {
        let key = (NAMESPACE.to_owned(), format!("antrea-mc-{}", name(number)));
        let service = world.clusters[IMPORTER].store.get(&core("services"), &key)?;
        Some(text(service.meta("uid")))
    };
    (0..SERVICES).map(uid).collect()
}
