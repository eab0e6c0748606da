//! A leader that loses its objects while the member that exports many Services is cut off: others keep the imports.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    invariants::core,
    kept_objects::{uid, wait_all},
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
/// Time after which the imports have returned.
const RETURN: Duration = Duration::from_mins(1);

/// Empties the leader; an import with another UID, or none, is a violation.
pub(crate) async fn run(world: &SharedSimulation) {
    sleep(Duration::from_secs(20)).await;
    let empty = world.lock().clusters[0].store.clone();
    for number in 0..SERVICES {
        let mut world = world.lock();
        world.put_service(EXPORTER, NAMESPACE, &name(number), 0, 1);
        world.set_export(EXPORTER, NAMESPACE, &name(number), true);
    }
    let before = wait_all(world, uids).await;
    disconnect_first_member(world, ABSENCE);
    restore_leader(&mut world.lock(), &empty);
    let start = Instant::now();
    while start.elapsed() < ABSENCE + RETURN {
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
    let imported = |number| format!("antrea-mc-{}", name(number));
    let services = (0..SERVICES).map(imported);
    services
        .map(|service| uid(world, IMPORTER, &core("services"), NAMESPACE, &service))
        .collect()
}
