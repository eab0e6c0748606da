//! A cluster that is restored from a backup elsewhere, with the ID and the ClusterSet of its original: the objects of
//! the original remain, while the copy runs and after it has left. A copy of its etcd is known by its writes only.

use std::time::Duration;

use controller::member::instance::SETTLING_TIME;
use mc_api::names;
use tokio::time::{Instant, sleep};

use crate::{
    invariants::{antrea, core},
    kept_objects::{uid, wait_all},
    run::wake_watches,
    simulation::{LEADER_NAMESPACE, SharedSimulation, Simulation},
};

const NAMESPACE: &str = "shop";
const NAME: &str = "web";
/// A Service of the copy alone.
const OF_COPY: &str = "api";
const ORIGINAL: usize = 1;
const IMPORTER: usize = 2;
const COPY: usize = 3;
/// Time with both clusters; longer than the delay of a takeover.
const TOGETHER: Duration = Duration::from_secs(150);
/// Time after the copy has left; longer than the confirmation of a deregistration.
const AFTERWARDS: Duration = Duration::from_mins(1);

/// The source of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backup {
    /// Its objects, with other UIDs.
    Objects,
    /// Its etcd.
    Etcd,
}

/// Starts and stops the copy; a changed UID, or an export of the copy, is a violation.
pub(crate) async fn run(world: &SharedSimulation, backup: Backup) {
    {
        let mut world = world.lock();
        world.put_service(ORIGINAL, NAMESPACE, NAME, 0, 1);
        world.set_export(ORIGINAL, NAMESPACE, NAME, true);
    }
    let before = wait_all(world, uids).await;
    // The original is established.
    sleep(SETTLING_TIME + Duration::from_secs(1)).await;
    {
        let mut world = world.lock();
        let id = world.clusters[ORIGINAL].id.clone();
        world.clusters[COPY].id.clone_from(&id);
        match backup {
            Backup::Objects => world.join(COPY, &id),
            Backup::Etcd => {
                let etcd = world.clusters[ORIGINAL].store.clone();
                world.clusters[COPY].store.restore(&etcd);
                world.clusters[COPY].epoch += 1;
                wake_watches(&mut world, COPY);
                world.set_export(COPY, NAMESPACE, NAME, false);
            }
        }
        world.put_service(COPY, NAMESPACE, OF_COPY, 0, 1);
        world.set_export(COPY, NAMESPACE, OF_COPY, true);
    }
    observe(world, &before, TOGETHER).await;
    {
        let mut world = world.lock();
        world.set_export(COPY, NAMESPACE, OF_COPY, false);
        world.leave(COPY);
    }
    observe(world, &before, AFTERWARDS).await;
}

async fn observe(world: &SharedSimulation, before: &[Option<String>], time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        sleep(Duration::from_secs(1)).await;
        let mut world = world.lock();
        let (seen, foreign) = (uids(&world), export_of(&world, OF_COPY));
        if before.contains(&None) || seen != before || foreign.is_some() {
            let message = format!(
                "after {:?}: UIDs {before:?}, then {seen:?}; export of the copy: {foreign:?}",
                start.elapsed()
            );
            return world.invariants.violations.push(message);
        }
    }
}

fn export_of(world: &Simulation, service: &str) -> Option<String> {
    let name = names::service_export(&world.clusters[ORIGINAL].id, NAMESPACE, service);
    uid(world, 0, &antrea("resourceexports"), LEADER_NAMESPACE, &name)
}

/// UIDs of the imported Service, of its export, and of the announce of the original.
fn uids(world: &Simulation) -> Vec<Option<String>> {
    let announce = names::member_announce(&world.clusters[ORIGINAL].id);
    vec![
        uid(
            world,
            IMPORTER,
            &core("services"),
            NAMESPACE,
            &names::imported_service(NAME),
        ),
        export_of(world, NAME),
        uid(
            world,
            0,
            &antrea("memberclusterannounces"),
            LEADER_NAMESPACE,
            &announce,
        ),
    ]
}
