//! A CNI that may deliver packets past the devices of Pods: the status of a policy names it.

use crate::{
    clusters::{on_node, try_on_node},
    enforcement::{CLUSTER_POLICY, is_realized, wait_status},
};

const NODE: &str = "west-n2";

/// The pair of devices that Cilium creates.
struct Device;

impl Drop for Device {
    fn drop(&mut self) {
        drop(try_on_node(NODE, "ip", &["link", "delete", "cilium_host"]));
    }
}

/// While one of two Nodes with Pods that the ClusterNetworkPolicy selects has a device of Cilium, the policy has failed
/// there.
pub(crate) fn check_bypassing_cni(policy: &str) {
    let args = "link add cilium_host type veth peer name cilium_net";
    on_node(NODE, "ip", &args.split(' ').collect::<Vec<_>>());
    let device = Device;
    let status = wait_status(CLUSTER_POLICY, "", policy, |status| {
        status["phase"] == "Failed" && status["currentNodesRealized"] == 1
    });
    let message = status["conditions"].to_string();
    for part in [
        "device of this Node: \\\"cilium_host\\\" is of a CNI that may deliver packets past",
        NODE,
    ] {
        assert!(message.contains(part), "{part:?} is not in {status}");
    }
    assert!(!message.contains("west-n1"), "{status}");
    drop(device);
    wait_status(CLUSTER_POLICY, "", policy, |status| is_realized(status, 2));
}
