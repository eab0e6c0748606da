//! Desired state of this node's data path, computed from objects. Pure.
//!
//! *Guarantees*: the result does not depend on the order of the objects; an invalid value is rejected alone, with
//! its object, field, value and reason, and never affects valid ones.

pub mod antrea;
mod antrea_routes;
mod builder;
mod cache;
mod established;
mod forward_table;
mod identities;
mod identity_tables;
mod independent_clusters;
mod local;
mod local_gateway;
mod node;
pub mod node_policies;
mod policies;
mod policy_capacity;
mod policy_rules;
mod policy_set;
mod prefix_ownership;
mod remote;
pub mod rule_names;
pub mod services;
mod source_addrs;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use mc_api::label_identity::LabelKeyFilter;
use thiserror::Error;

use crate::config::{PodLookup, Secrets};
use crate::objects::{FieldError, NodeInfo, Objects};
use crate::peer_secret::PublicKey;
use crate::policy::ProxiedEndpoints;
pub use antrea::AntreaInterop;
use builder::Builder;
pub use cache::DesiredCache;
pub use established::Established;
use local::LocalCluster;
pub use policy_set::selects_pods;
use remote::Remote;
use services::Services;
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
    /// Keys of labels that are in no label identity.
    pub excluded_labels: LabelKeyFilter,
}

/// The desired state of the node `me`, and the rejected fields. They do not depend on `cache`, which is kept between
/// computations.
pub fn compute(
    objects: &Objects,
    me: &LocalNode,
    established: &Established,
    cache: &mut DesiredCache,
) -> Result<(DesiredState, Vec<FieldError>), DesiredError> {
    let mut nodes: Vec<&NodeInfo> = objects.nodes.iter().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if !nodes.iter().any(|node| node.name == me.node_name) {
        return Err(DesiredError::NoSuchNode {
            name: me.node_name.clone(),
            known: nodes.iter().map(|node| node.name.clone()).collect(),
        });
    }
    let (mut cluster, remotes) = cache.read(objects, &nodes, me, established);
    let mut builder = Builder {
        node_secrets: me.secrets.nodes,
        ..Builder::default()
    };
    builder.rejected.append(&mut cluster.rejected);
    for read in &remotes.clusters {
        builder.rejected.extend(read.rejected.iter().cloned());
    }
    builder.own_key(me, &cluster);
    let valid = remotes.clusters.iter().filter_map(|read| read.remote.clone());
    let valid: Vec<Arc<Remote>> = valid.collect();
    if cluster.own_gateway.is_some() {
        builder.gateway_node(&cluster, &valid);
    } else {
        builder.regular_node(&cluster, &valid);
    }
    builder.services(objects, &cluster);
    let Builder {
        mut desired,
        mut rejected,
        local_prefixes,
        forwarded,
        ..
    } = builder;
    let table = cache.forward(forwarded, objects, me, &remotes);
    desired.prefixes = table.prefixes().clone();
    desired.prefixes.extend(local_prefixes);
    desired.routes = table.routes().clone();
    if desired.gateway {
        desired.masquerade.remote_prefixes = desired.routes.clone();
    }
    desired.masquerade.pod_cidrs = cluster.own_pod_cidrs().into_iter().collect();
    desired.host_addresses = cluster.own.host_addresses.iter().copied().collect();
    desired.fallback_addrs = cluster.fallback_addrs(me.pod_lookup);
    desired.local_addrs = cluster.local_addresses();
    desired.identities = identities::local_identities(
        objects,
        &me.node_name,
        &me.excluded_labels,
        &mut cache.identities,
        &mut rejected,
    );
    let proxied = proxied_endpoints(&desired, &cluster);
    desired.policies = cache.policies.update(objects, me, proxied, &mut rejected);
    let protected = &desired.policies.protected.addrs;
    if let Some(services) = desired.services.as_mut().filter(|_| !protected.is_empty()) {
        rejected.extend(Arc::make_mut(services).close_protected(protected));
    }
    desired.published_key = cluster.key(&me.node_name);
    rejected.sort();
    Ok((desired, rejected))
}

/// The endpoints of Services that are left to the service proxy. Without one, a change of a Node's Pod CIDR concerns no
/// policy.
fn proxied_endpoints(desired: &DesiredState, cluster: &LocalCluster) -> ProxiedEndpoints {
    let addrs = desired.services.as_deref().map(Services::proxied_endpoints);
    let Some(addrs) = addrs.filter(|addrs| !addrs.is_empty()) else {
        return ProxiedEndpoints::default();
    };
    ProxiedEndpoints {
        addrs,
        pod_cidrs: cluster.pod_cidrs(),
    }
}
