//! A `ClusterSet` that is deleted and created again, as by `kubectl replace --force`: imports and gateways remain.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    invariants::{antrea, core},
    kept_objects::{uid, wait_all},
    simulation::{LEADER_NAMESPACE, MEMBER_NAMESPACE, SharedSimulation, Simulation},
};

const NAMESPACE: &str = "shop";
const NAME: &str = "web";
/// The cluster that exports the Service, and the one that imports it.
const EXPORTER: usize = 1;
const IMPORTER: usize = 2;
/// Time without `ClusterSet`; shorter than the grace period.
const ABSENCE: Duration = Duration::from_secs(20);
/// Time in which a withdrawal would be seen.
const OBSERVATION: Duration = Duration::from_secs(30);

/// Replaces the `ClusterSet` of both clusters, one after the other; a changed UID is a violation.
pub(crate) async fn run(world: &SharedSimulation) {
    {
        let mut world = world.lock();
        world.put_service(EXPORTER, NAMESPACE, NAME, 0, 1);
        world.set_export(EXPORTER, NAMESPACE, NAME, true);
        world.set_gateway(EXPORTER, "n1", true);
        world.set_gateway(IMPORTER, "n1", true);
    }
    let before = wait_all(world, uids).await;
    for server in [IMPORTER, EXPORTER] {
        let id = world.lock().clusters[server].id.clone();
        world.lock().leave(server);
        sleep(ABSENCE).await;
        world.lock().join(server, &id);
        sleep(OBSERVATION).await;
        let after = uids(&world.lock());
        if before.contains(&None) || after != before {
            world.lock().invariants.violations.push(format!(
                "ClusterSet of cluster {server} replaced: UIDs {before:?}, then {after:?}"
            ));
        }
    }
}

/// UIDs of the imported Service, of the importer's gateway, and of the `ResourceExport` of the Service.
fn uids(world: &Simulation) -> Vec<Option<String>> {
    let imported = format!("antrea-mc-{NAME}");
    let export = format!("{}-{NAMESPACE}-{NAME}-service", world.clusters[EXPORTER].id);
    vec![
        uid(world, IMPORTER, &core("services"), NAMESPACE, &imported),
        uid(world, IMPORTER, &antrea("gateways"), MEMBER_NAMESPACE, "n1"),
        uid(world, 0, &antrea("resourceexports"), LEADER_NAMESPACE, &export),
    ]
}
