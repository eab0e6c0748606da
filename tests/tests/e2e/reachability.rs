//! Endpoints of a cluster that the gateways do not reach leave the Services that another cluster serves as well.

use std::time::{Duration, Instant};

use mc_tests::fixture::is_long_run;
use serde_json::Value;

use crate::{
    clusters::{EAST, LONG_TIMEOUT, MEMBER_NAMESPACE, SHORT_TIMEOUT, WEST, on_node, try_on_node},
    workload::Namespace,
};

const GATEWAY: &str = "east-n1";
const WEST_ID: &str = "test-cluster-west";
/// Promised: 2 s after the probes have found the gateways dead, which takes less than one.
const MAX_TIME: Duration = Duration::from_secs(3);

/// The underlay from east's gateway to west's leads to the former's own MAC address, for which the bridge between the
/// Nodes has no other port. Frames to an address without an owner would be flooded, and accepted.
struct Cut {
    west: String,
}

impl Cut {
    fn make() -> Self {
        let west = WEST.node_ip("west-n1");
        let own_mac = on_node(GATEWAY, "cat", &["/sys/class/net/eth0/address"]);
        let args = [
            "neigh",
            "replace",
            &west,
            "lladdr",
            own_mac.trim(),
            "dev",
            "eth0",
            "nud",
            "permanent",
        ];
        on_node(GATEWAY, "ip", &args);
        Self { west }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        drop(try_on_node(
            GATEWAY,
            "ip",
            &["neigh", "del", &self.west, "dev", "eth0"],
        ));
    }
}

/// Waits until all imported endpoints of west have this readiness in east; returns the time that it took.
fn wait_ready(ns: &Namespace, ready: bool) -> Duration {
    let start = Instant::now();
    let selector = format!(
        "kubernetes.io/service-name=antrea-mc-web,multicluster.kubernetes.io/source-cluster={WEST_ID}"
    );
    EAST.wait_for(
        &format!("endpoints of west with ready={ready}"),
        LONG_TIMEOUT,
        || {
            let slices = EAST.list(ns.0, "endpointslice", &selector);
            let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array());
            let states: Vec<_> = endpoints
                .flatten()
                .map(|endpoint| endpoint["conditions"]["ready"].clone())
                .collect();
            if !states.is_empty() && states.iter().all(|state| *state == ready) {
                Ok(())
            } else {
                Err(format!("{states:?}"))
            }
        },
    );
    start.elapsed()
}

fn wait_reported(list: &str) {
    EAST.wait_for(&format!("west is {list}"), SHORT_TIMEOUT, || {
        let report = EAST.get(MEMBER_NAMESPACE, "nodereachabilities", GATEWAY);
        let spec = report.map(|report| report["spec"].clone()).unwrap_or_default();
        if spec[list] == Value::from(vec![WEST_ID]) {
            Ok(())
        } else {
            Err(spec.to_string())
        }
    });
}

/// Waits until the status of east's ClusterSet states this about the data path to west.
fn wait_data_path(status: &str, reason: &str) {
    EAST.wait_for(&format!("DataPathReady={status} of west"), SHORT_TIMEOUT, || {
        let sets = EAST.list(MEMBER_NAMESPACE, "clusterset", "");
        let clusters: Vec<_> = sets
            .iter()
            .filter_map(|set| set["status"]["clusterStatuses"].as_array())
            .flatten()
            .collect();
        let west = clusters.iter().find(|cluster| cluster["clusterID"] == WEST_ID);
        let conditions = west.and_then(|west| west["conditions"].as_array());
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition["type"] == "DataPathReady");
        match found {
            Some(found) if found["status"] == status && found["reason"] == reason => Ok(()),
            _ => Err(format!("{clusters:?}")),
        }
    });
}

#[test]
fn endpoints_of_a_dead_cluster_are_not_ready_while_another_one_serves() {
    let [ns, of_west] = ["e2e-reachability", "e2e-of-west-alone"].map(Namespace::create);
    for (ns, cluster, node) in [
        (&ns, EAST, "east-n2"),
        (&ns, WEST, "west-n2"),
        (&of_west, WEST, "west-n2"),
    ] {
        ns.serve(cluster, node, 1);
        ns.export(cluster);
    }
    ns.wait_imported(EAST, 2);
    of_west.wait_imported(EAST, 1);
    let client = ns.client(EAST, "east-n2");
    wait_reported("reachable");
    wait_data_path("True", "Reachable");
    wait_ready(&ns, true);

    let cut = Cut::make();
    let elapsed = wait_ready(&ns, false);
    println!("e2e: endpoints of a dead cluster are not ready after {elapsed:?}");
    if is_long_run() {
        assert!(elapsed < MAX_TIME, "{elapsed:?}");
    }
    wait_reported("unreachable");
    wait_data_path("False", "Unreachable");
    let answers = EAST.wait_for("answers of the own cluster alone", SHORT_TIMEOUT, || {
        client.run(&["get", "--timeout", "1", "--count", "20", &client.imported_url()])
    });
    assert!(!answers.is_empty());
    // The last endpoints of a Service stay.
    wait_ready(&of_west, true);

    drop(cut);
    let elapsed = wait_ready(&ns, true);
    println!("e2e: they are ready {elapsed:?} after its return");
    wait_reported("reachable");
    wait_data_path("True", "Reachable");
    ns.wait_imported(EAST, 2);
    client.get_many(&client.imported_url(), 10);
    for (ns, cluster) in [(&ns, EAST), (&ns, WEST), (&of_west, WEST)] {
        ns.unexport(cluster);
    }
}
