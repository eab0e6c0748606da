//! A leader that loses its objects while the member that exports Services is cut off: others keep the imports.

use std::{collections::BTreeMap, time::Duration};

use mc_api::names;
use mc_test_kit::fake_apiserver::store::{Actor, Store};
use tokio::time::{Instant, sleep};

use crate::{
    invariants::{antrea, core, text, wanted_cluster_id},
    kept_objects::{uid, wait_all},
    run::{disconnect_first_member, restore_leader},
    simulation::{MEMBER_NAMESPACE, SharedSimulation, Simulation},
};

const NAMESPACE: &str = "shop";
/// The cluster that exports the Services, and the one that imports them.
const EXPORTER: usize = 1;
const IMPORTER: usize = 2;
/// Time without the exporter; longer than any hold after a relist.
const ABSENCE: Duration = Duration::from_secs(150);
/// Time after which the imports have returned.
const RETURN: Duration = Duration::from_mins(1);

/// The objects of a leader that has lost its imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Exports and imports of more Services than are deleted without a permission; the announces remain.
    ManyServices,
    /// All objects of members, and imports of a few Services: the leader was installed anew. The importer restarts.
    Everything,
}

// === impl Lost ===

impl Lost {
    fn services(self) -> usize {
        match self {
            Self::ManyServices => 25,
            Self::Everything => 3,
        }
    }
}

/// Empties the leader, to `without_members` if that has lost everything; an import with another UID, or none, is a
/// violation.
pub(crate) async fn run(world: &SharedSimulation, lost: Lost, without_members: Store) {
    sleep(Duration::from_secs(20)).await;
    let empty = match lost {
        Lost::ManyServices => world.lock().clusters[0].store.clone(),
        Lost::Everything => without_members,
    };
    for number in 0..lost.services() {
        let mut world = world.lock();
        world.put_service(EXPORTER, NAMESPACE, &name(number), 0, 1);
        world.set_export(EXPORTER, NAMESPACE, &name(number), true);
    }
    let uids = |world: &Simulation| uids(world, lost.services());
    let before = wait_all(world, uids).await;
    disconnect_first_member(world, ABSENCE);
    restore_leader(&mut world.lock(), &empty);
    let start = Instant::now();
    let mut restarts = lost == Lost::Everything;
    while start.elapsed() < ABSENCE + RETURN {
        sleep(Duration::from_secs(1)).await;
        if restarts && start.elapsed() > ABSENCE / 2 {
            restarts = false;
            world.lock().kill(Actor::Member(IMPORTER));
        }
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
fn uids(world: &Simulation, count: usize) -> Vec<Option<String>> {
    let imported = |number| format!("antrea-mc-{}", name(number));
    let services = (0..count).map(imported);
    services
        .map(|service| uid(world, IMPORTER, &core("services"), NAMESPACE, &service))
        .collect()
}

/// The members without a record that their leader is not new.
pub(crate) fn wrong_records(world: &Simulation) -> Vec<String> {
    let announces = world.clusters[0].store.all(&antrea("memberclusterannounces"));
    let uids: BTreeMap<String, String> = announces
        .map(|(_, announce)| (text(&announce.value["clusterID"]), text(announce.meta("uid"))))
        .collect();
    let records = (MEMBER_NAMESPACE.to_owned(), names::MEMBERSHIP_RECORDS.to_owned());
    let mut wrong = vec![];
    for (number, cluster) in world.clusters.iter().enumerate().skip(1) {
        let Some(id) = wanted_cluster_id(cluster) else {
            continue;
        };
        let record = cluster.store.get(&core("configmaps"), &records);
        let record = record
            .map(|record| record.value["data"].to_string())
            .unwrap_or_default();
        if uids.get(&id).is_none_or(|uid| !record.contains(uid.as_str())) {
            wrong.push(format!(
                "cluster {number}: the leader of {id} remains new: {record}"
            ));
        }
    }
    wrong
}
