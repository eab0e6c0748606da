//! Other clusters and their prefixes.

use anyhow::Result;
use mc_tests::topology::Cluster;

use super::{Allowed, Event};
use crate::world::{EAST, WEST, World};

pub(super) const EVENTS: &[Event] = &[
    Event::new("ClusterInfo of a third cluster added", third_added),
    Event::new("ClusterInfo of a third cluster removed", third_removed),
    Event::new("prefix of the other cluster added", prefix_added),
    Event::new("prefix of the other cluster removed", prefix_removed),
    Event::new("an invalid object beside the valid ones", invalid_object),
];

/// A cluster with a gateway that does not answer.
const NORTH: &str = "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterInfoImport
metadata: {name: north-clusterinfo, namespace: kube-system}
spec:
  clusterID: north
  gatewayInfos: [{gatewayIP: 192.168.100.77}]
  podCIDRs: [10.13.0.0/16, \"fd00:13::/48\"]
  serviceCIDR: 10.103.0.0/16
";

/// An additional Pod CIDR of west.
const PREFIX: &str = "  podCIDRs:\n  - 10.99.0.0/16\n";

fn third_added(world: &mut World) -> Result<Allowed> {
    for (cluster, places) in [(Cluster::East, EAST), (Cluster::West, WEST)] {
        world.add_file(cluster, "north.yaml", NORTH, &places)?;
    }
    Ok(Allowed::None)
}

fn third_removed(world: &mut World) -> Result<Allowed> {
    for (cluster, places) in [(Cluster::East, EAST), (Cluster::West, WEST)] {
        world.remove_file(cluster, "north.yaml", &places)?;
    }
    Ok(Allowed::None)
}

fn prefix_added(world: &mut World) -> Result<Allowed> {
    world.edit(Cluster::East, "west.yaml", &EAST, |text| {
        text.replace("  podCIDRs:\n", PREFIX)
    })?;
    Ok(Allowed::None)
}

fn prefix_removed(world: &mut World) -> Result<Allowed> {
    world.edit(Cluster::East, "west.yaml", &EAST, |text| {
        text.replace(PREFIX, "  podCIDRs:\n")
    })?;
    Ok(Allowed::None)
}

/// A cluster that claims the Pods of another one.
fn invalid_object(world: &mut World) -> Result<Allowed> {
    let hostile = NORTH.replace("10.13.0.0/16", "10.12.1.0/24");
    world.add_file(Cluster::East, "north.yaml", &hostile, &EAST)?;
    world.pool.check()?.ensure_none_cut()?;
    world.remove_file(Cluster::East, "north.yaml", &EAST)?;
    Ok(Allowed::None)
}
