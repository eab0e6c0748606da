//! The Nodes of endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use prefix_trie::joint::map::JointPrefixMap;

use crate::service_objects::EndpointInfo;

/// A Node that runs Pods.
#[derive(Clone, Debug)]
pub(in crate::desired) struct NodeRef<'a> {
    pub(in crate::desired) name: &'a str,
    pub(in crate::desired) pod_cidrs: &'a [IpNet],
    /// Stable ID of its group; 0 for this node, none if it is unreachable.
    pub(in crate::desired) group: Option<u32>,
}

/// The node of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointLocation {
    Local,
    /// Stable ID of the Node's group.
    Remote(u32),
    Unknown,
}

/// The groups of the local cluster's Nodes, by name and by Pod CIDR.
#[derive(Clone, Debug, Default)]
pub(in crate::desired) struct EndpointNodes {
    by_name: BTreeMap<String, Option<u32>>,
    by_pod_cidr: JointPrefixMap<IpNet, Option<u32>>,
}

/// Pod CIDRs of different Nodes are disjoint.
impl<'a> FromIterator<NodeRef<'a>> for EndpointNodes {
    fn from_iter<I: IntoIterator<Item = NodeRef<'a>>>(nodes: I) -> Self {
        let mut all = Self::default();
        for node in nodes {
            all.by_name.insert(node.name.to_owned(), node.group);
            for net in node.pod_cidrs {
                all.by_pod_cidr.insert(*net, node.group);
            }
        }
        all
    }
}

impl EndpointNodes {
    /// The node of an endpoint: its `nodeName`, else the Node with the Pod CIDR of its address.
    pub(super) fn locate(&self, pod: IpAddr, endpoint: &EndpointInfo) -> EndpointLocation {
        let group = match &endpoint.node {
            Some(name) => self.by_name.get(name).copied(),
            None => self.by_pod_cidr.get_lpm(&pod.into()).map(|(_, group)| *group),
        };
        match group.flatten() {
            Some(0) => EndpointLocation::Local,
            Some(group) => EndpointLocation::Remote(group),
            None => EndpointLocation::Unknown,
        }
    }
}
