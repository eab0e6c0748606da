//! Desired state of this node's data path, computed from objects. Pure.
//!
//! *Guarantees*: the result does not depend on the order of the objects; an invalid value is rejected alone, with
//! its object, field, value and reason, and never affects valid ones.

pub mod antrea;
mod antrea_routes;
mod builder;
mod established;
mod local;
mod node;
mod prefix_ownership;
mod remote;
pub mod services;
mod source_addrs;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use thiserror::Error;

use crate::config::{PodLookup, Secrets};
use crate::objects::{FieldError, NodeInfo, Objects};
use crate::peer_secret::PublicKey;
pub use antrea::AntreaInterop;
use builder::Builder;
pub use established::Established;
pub use source_addrs::SourceAddrs;
pub use state::{DesiredState, Masquerade, NextHop, NextHopGroup, Peer, PrefixRoute};

/// No desired state can be computed: the data path stays unchanged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DesiredError {
    /// The local Node is missing. Absent objects never delete anything.
    #[error("node-name {name:?}: there is no such Node; known: {known:?}")]
    NoSuchNode {
        /// The configured name.
        name: String,
        /// Names of the existing Nodes.
        known: Vec<String>,
    },
}

/// Identity and settings of the local Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// Name of the Node this agent runs on.
    pub node_name: String,
    /// ID of the local cluster, if known.
    pub cluster_id: Option<String>,
    /// How the Node of a Pod is found.
    pub pod_lookup: PodLookup,
    /// IDs of the clusters with Antrea gateways.
    pub antrea_clusters: BTreeSet<String>,
    /// Use of secrets with other nodes.
    pub secrets: Secrets,
    /// Public key of the local Node, if it has one.
    pub public_key: Option<PublicKey>,
    /// Key of the cluster IDs in the maps.
    pub cluster_id_key: [u8; 16],
}

/// The desired state of the node `me`, and the rejected fields.
pub fn compute(
    objects: &Objects,
    me: &LocalNode,
    established: &Established,
) -> Result<(DesiredState, Vec<FieldError>), DesiredError> {
    let mut nodes: Vec<&NodeInfo> = objects.nodes.iter().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if !nodes.iter().any(|node| node.name == me.node_name) {
        return Err(DesiredError::NoSuchNode {
            name: me.node_name.clone(),
            known: nodes.iter().map(|node| node.name.clone()).collect(),
        });
    }
    let mut builder = Builder::default();
    let infos = remote::by_seniority(objects, established);
    let others = infos.iter().map(|(info, established)| (*info, established));
    let owners = Established::owners(
        others.filter(|(info, _)| me.cluster_id.as_deref() != Some(info.cluster_id.as_str())),
    );
    let mut cluster =
        local::LocalCluster::read(objects, &nodes, &me.node_name, owners, &mut builder.rejected);
    cluster.read_reservations(objects, &mut builder.rejected);
    cluster.read_pods(objects, me.pod_lookup, &mut builder.rejected);
    cluster.read_keys(objects, &mut builder.rejected);
    builder.node_secrets = me.secrets.nodes;
    builder.own_key(me, &cluster);
    let claims = cluster.take_claims();
    let infos = infos.iter().map(|(info, _)| *info);
    let remotes = remote::validate(infos, &cluster, claims, me, &mut builder.rejected).clusters;
    if cluster.own_gateway.is_some() {
        builder.gateway_node(&cluster, &remotes);
    } else {
        builder.regular_node(&cluster, &remotes);
    }
    builder.services(objects, &cluster);
    let Builder {
        mut desired,
        mut rejected,
        ..
    } = builder;
    desired.masquerade.pod_cidrs = cluster.own_pod_cidrs().into_iter().collect();
    desired.host_addresses = cluster.own.host_addresses.iter().copied().collect();
    desired.fallback_addrs = cluster.fallback_addrs(me.pod_lookup);
    desired.local_addrs = cluster.local_addresses();
    desired.published_key = cluster.key(&me.node_name);
    rejected.sort();
    Ok((desired, rejected))
}
