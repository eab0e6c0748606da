//! A `ClusterSet` that is deleted and created again, as by `kubectl replace --force`: imports and gateways remain.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    invariants::{antrea, core, text},
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
/// Bound of the preparation, the restart of a crashed controller included.
const STEP_TIMEOUT: Duration = Duration::from_mins(1);

/// Replaces the `ClusterSet` of both clusters, one after the other; a changed UID is a violation.
pub(crate) async fn run(world: &SharedSimulation) {
    {
        let mut world = world.lock();
        world.put_service(EXPORTER, NAMESPACE, NAME, 0, 1);
        world.set_export(EXPORTER, NAMESPACE, NAME, true);
        world.set_gateway(EXPORTER, "n1", true);
        world.set_gateway(IMPORTER, "n1", true);
    }
    let start = Instant::now();
    while uids(&world.lock()).contains(&None) && start.elapsed() < STEP_TIMEOUT {
        sleep(Duration::from_millis(100)).await;
    }
    let before = uids(&world.lock());
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
fn uids(world: &Simulation) -> [Option<String>; 3] {
    let uid = |server: usize, resource, namespace: &str, name: String| {
        let object = world.clusters[server]
            .store
            .get(resource, &(namespace.to_owned(), name))?;
        (!object.is_terminating()).then(|| text(object.meta("uid")))
    };
    let export = format!("{}-{NAMESPACE}-{NAME}-service", world.clusters[EXPORTER].id);
    [
        uid(
            IMPORTER,
            &core("services"),
            NAMESPACE,
            format!("antrea-mc-{NAME}"),
        ),
        uid(IMPORTER, &antrea("gateways"), MEMBER_NAMESPACE, "n1".to_owned()),
        uid(0, &antrea("resourceexports"), LEADER_NAMESPACE, export),
    ]
}
