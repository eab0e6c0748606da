//! The local cluster: validated Nodes and Gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::antrea;
use super::local_gateway::{Gateway, OwnGateway};
use super::node::Node;
use super::prefix_ownership::PrefixOwners;
use super::{LocalNode, SourceAddrs};
use crate::cidr::{CidrError, parse_address, same_family, split_list};
use crate::config::PodLookup;
use crate::objects::{FieldError, NodeInfo, Objects};
use crate::peer_secret::PublicKey;
use crate::reservation_service::service_name;

/// The local cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalCluster {
    pub(super) own: Node,
    pub(super) own_gateway: Option<OwnGateway>,
    pub(super) other_nodes: Vec<Node>,
    /// Gateways on other Nodes.
    pub(super) gateways: Vec<Gateway>,
    /// Name of the primary gateway.
    pub(super) primary: Option<String>,
    /// Service CIDRs of all its Gateways.
    pub(super) service_cidrs: BTreeSet<IpNet>,
    /// Public keys by Node.
    keys: BTreeMap<String, PublicKey>,
    /// Owners of its prefixes.
    pub(super) prefixes: PrefixOwners,
    /// Owners of the established prefixes of other clusters.
    established: PrefixOwners,
    /// Addresses that no remote prefix may contain, with their owners.
    pub(super) addresses: BTreeMap<IpAddr, Arc<str>>,
    /// Owners of addresses that are routed individually.
    pods: BTreeMap<IpAddr, Arc<str>>,
    /// Addresses of such Pods by Node.
    pods_by_node: BTreeMap<String, Vec<IpNet>>,
    /// Rejected fields of the objects.
    pub(super) rejected: Vec<FieldError>,
}

impl LocalCluster {
    /// Reads all objects of the cluster. `nodes` are sorted by name and contain the local Node, `established` are the
    /// owners of the established prefixes of other clusters.
    pub(super) fn read(
        objects: &Objects,
        nodes: &[&NodeInfo],
        me: &LocalNode,
        established: PrefixOwners,
    ) -> Self {
        let mut rejected = Vec::new();
        let mut cluster = Self::read_nodes(objects, nodes, &me.node_name, established, &mut rejected);
        cluster.read_reservations(objects, &mut rejected);
        cluster.read_pods(objects, me.pod_lookup, &mut rejected);
        cluster.read_keys(objects, &mut rejected);
        cluster.rejected = rejected;
        cluster
    }

    fn read_nodes(
        objects: &Objects,
        nodes: &[&NodeInfo],
        own_name: &str,
        established: PrefixOwners,
        rejected: &mut Vec<FieldError>,
    ) -> Self {
        let mut cluster = Self {
            established,
            ..Self::default()
        };
        cluster.read_gateways(objects, own_name, rejected);
        // The local Node first: its Pods stay reachable regardless of other Nodes' fields.
        let own_first = nodes
            .iter()
            .filter(|node| node.name == own_name)
            .chain(nodes.iter().filter(|node| node.name != own_name));
        for node in own_first {
            let is_own = node.name == own_name;
            let node = cluster.read_node(node, is_own, rejected);
            if is_own {
                cluster.own = node;
            } else {
                cluster.other_nodes.push(node);
            }
        }
        cluster.gateway_sources();
        cluster.read_host_addresses(nodes, own_name, rejected);
        cluster
    }

    /// Adds the addresses that CNIs assigned to Nodes in the Pod network; all other owners have been read.
    fn read_host_addresses(&mut self, nodes: &[&NodeInfo], own_name: &str, rejected: &mut Vec<FieldError>) {
        if nodes.iter().all(|info| info.host_addresses.is_empty()) {
            return;
        }
        let mut used: BTreeMap<IpAddr, Arc<str>> = self.addresses.clone();
        let mut cidrs = PrefixOwners::default();
        for node in self.other_nodes.iter().chain([&self.own]) {
            let object: Arc<str> = node.object().into();
            for net in &node.pod_cidrs {
                cidrs.assign(*net, &object);
            }
        }
        for info in nodes {
            let object: Arc<str> = format!("Node {}", info.name).into();
            for (annotation, text) in &info.host_addresses {
                let field = format!("metadata.annotations[{annotation}]");
                let addr = match self.parse_outside(&object, text, false) {
                    Ok(addr) => addr,
                    Err(reason) => {
                        rejected.push(field_error(&object, &field, text, &reason));
                        continue;
                    }
                };
                let within = cidrs.owner_of(addr);
                if within == Some(&*object) {
                    continue;
                }
                let owner = within.or(used.get(&addr).map(|owner| &**owner));
                if let Some(owner) = owner.filter(|owner| **owner != *object) {
                    let reason = format!("is an address of {owner}");
                    rejected.push(field_error(&object, &field, text, &reason));
                    continue;
                }
                if used.insert(addr, Arc::clone(&object)).is_some() {
                    continue;
                }
                self.pods.insert(addr, Arc::clone(&object));
                let node = if info.name == own_name {
                    Some(&mut self.own)
                } else {
                    position(&self.other_nodes, &info.name).and_then(|at| self.other_nodes.get_mut(at))
                };
                if let Some(node) = node {
                    node.host_addresses.push(addr.into());
                }
            }
        }
    }

    /// Parses an address, which must be in no established prefix unless it is the local Node's own.
    fn parse_outside(&self, object: &str, text: &str, is_own: bool) -> Result<IpAddr, String> {
        let addr = parse_address(text).map_err(|error| error.to_string())?;
        match self.established.address_conflict(addr, object) {
            Some(reason) if !is_own => Err(reason),
            _ => Ok(addr),
        }
    }

    /// Parses a prefix and assigns it to `owner`, or returns the reason why it cannot be the owner's.
    fn assign(&mut self, owner: &Arc<str>, text: &str) -> Result<IpNet, String> {
        let prefix = self.prefixes.check(&self.established, owner, text)?;
        self.prefixes.assign(prefix, owner);
        Ok(prefix)
    }

    /// The established prefixes and those of the local cluster. The established ones are left out afterwards.
    pub(super) fn take_claims(&mut self) -> PrefixOwners {
        let mut claims = std::mem::take(&mut self.established);
        claims.assign_all(&self.prefixes);
        claims
    }

    fn read_node(&mut self, info: &NodeInfo, is_own: bool, rejected: &mut Vec<FieldError>) -> Node {
        let object: Arc<str> = format!("Node {}", info.name).into();
        let mut node = Node {
            name: info.name.clone(),
            ..Node::default()
        };
        for (index, text) in info.internal_ips.iter().enumerate() {
            match self.parse_outside(&object, text, is_own) {
                Ok(addr) => node.addrs.push(addr),
                Err(reason) => {
                    let field = format!("status.addresses[InternalIP][{index}]");
                    rejected.push(field_error(&object, &field, text, &reason));
                }
            }
        }
        if node.addrs.is_empty() {
            let field = "status.addresses[InternalIP]";
            rejected.push(field_error(&object, field, "", &CidrError::Missing));
        }
        for addr in &node.addrs {
            self.addresses.insert(*addr, Arc::clone(&object));
        }
        for (index, text) in info.pod_cidrs.iter().enumerate() {
            match self.assign(&object, text) {
                Ok(prefix) => node.pod_cidrs.push(prefix),
                Err(reason) => {
                    let field = format!("spec.podCIDRs[{index}]");
                    rejected.push(field_error(&object, &field, text, &reason));
                }
            }
        }
        node
    }

    fn read_gateways(&mut self, objects: &Objects, own_name: &str, rejected: &mut Vec<FieldError>) {
        let mut gateways: Vec<_> = objects.gateways.iter().collect();
        gateways.sort_by(|a, b| a.name.cmp(&b.name));
        self.primary = antrea::primary(&gateways).map(|info| info.name.clone());
        // All Gateways of a cluster have the same Service CIDR: one owner for all of them.
        let owner: Arc<str> = "the local cluster (Gateway.serviceCIDR)".into();
        for info in gateways {
            let object: Arc<str> = format!("Gateway {}", info.name).into();
            let mut address = |field: &str, text: &str| {
                self.parse_outside(&object, text, info.name == own_name)
                    .inspect_err(|reason| rejected.push(field_error(&object, field, text, reason)))
                    .ok()
            };
            let gateway_ip = address("gatewayIP", &info.gateway_ip);
            let internal_ip = address("internalIP", &info.internal_ip);
            let service_cidrs: Vec<IpNet> = split_list(&info.service_cidr)
                .filter_map(|text| {
                    self.assign(&owner, text)
                        .inspect_err(|reason| {
                            rejected.push(field_error(&object, "serviceCIDR", text, reason));
                        })
                        .ok()
                })
                .collect();
            self.service_cidrs.extend(service_cidrs.iter().copied());
            self.addresses.extend(
                [gateway_ip, internal_ip]
                    .into_iter()
                    .flatten()
                    .map(|addr| (addr, Arc::clone(&object))),
            );
            if info.name == own_name {
                self.own_gateway = Some(OwnGateway {
                    gateway_ip,
                    internal_ip,
                    service_cidrs,
                });
            } else if let Some(addr) = internal_ip {
                self.gateways.push(Gateway {
                    name: info.name.clone(),
                    object: object.to_string(),
                    addr,
                    weight: info.weight,
                    sources: vec![addr],
                });
            }
        }
    }

    /// Adds the addresses of Pods outside their Node's CIDRs.
    fn read_pods(&mut self, objects: &Objects, lookup: PodLookup, rejected: &mut Vec<FieldError>) {
        if lookup == PodLookup::NodeCidr {
            return;
        }
        let all = || self.other_nodes.iter().chain([&self.own]);
        let nodes: BTreeMap<&str, &Node> = all().map(|node| (node.name.as_str(), node)).collect();
        // Addresses of Nodes precede those of Pods.
        let mut pods = self.pods.clone();
        let mut by_node: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
        let mut sorted: Vec<_> = objects.pods.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for info in sorted {
            // A Pod may be listed before its Node.
            let Some(node) = nodes.get(info.node.as_str()) else {
                continue;
            };
            for (index, text) in info.ips.iter().enumerate() {
                let result = self.parse_outside(&info.name, text, false);
                let in_node_cidr = |addr: IpAddr| node.pod_cidrs.iter().any(|net| net.contains(&addr));
                let reason = match result {
                    Err(reason) => reason,
                    Ok(addr) if lookup == PodLookup::Auto && in_node_cidr(addr) => continue,
                    Ok(addr) => match (self.addresses.get(&addr), pods.get(&addr)) {
                        (Some(owner), _) => format!("is the address of {owner}"),
                        (None, Some(other)) => format!("is already the address of {other}"),
                        (None, None) => {
                            pods.insert(addr, format!("Pod {}", info.name).into());
                            by_node.entry(info.node.clone()).or_default().push(addr.into());
                            continue;
                        }
                    },
                };
                rejected.push(FieldError {
                    object: format!("Pod {}", info.name),
                    field: format!("status.podIPs[{index}]"),
                    value: text.clone(),
                    reason,
                });
            }
        }
        self.pods = pods;
        self.pods_by_node = by_node;
    }

    /// Adds the Service IPs reserved for Nodes.
    fn read_reservations(&mut self, objects: &Objects, rejected: &mut Vec<FieldError>) {
        let exported = objects
            .services
            .iter()
            .flatten()
            .map(|exported| &exported.service);
        let exported: BTreeSet<_> = exported
            .map(|service| (&service.namespace, &service.name))
            .collect();
        let nodes = self.other_nodes.iter_mut().chain([&mut self.own]);
        let mut nodes: BTreeMap<String, &mut Node> =
            nodes.map(|node| (service_name(&node.name), node)).collect();
        let mut sorted: Vec<_> = objects.reservations.iter().collect();
        sorted.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for service in sorted {
            // The Service outlives its Node briefly, and may be listed before it.
            let Some(node) = nodes.get_mut(&service.name) else {
                continue;
            };
            for (index, text) in service.cluster_ips.iter().enumerate() {
                let reason = match parse_address(text) {
                    Err(error) => error.to_string(),
                    Ok(_) if exported.contains(&(&service.namespace, &service.name)) => {
                        "is reserved by a Service that must not be exported".to_owned()
                    }
                    Ok(addr) if !self.service_cidrs.iter().any(|net| net.contains(&addr)) => {
                        "is in no serviceCIDR of a Gateway".to_owned()
                    }
                    Ok(addr) => {
                        if let Some(owner) = self.pods.get(&addr) {
                            format!("is already the address of {owner}")
                        } else {
                            self.pods.insert(addr, node.object().into());
                            node.reserved.push(addr.into());
                            continue;
                        }
                    }
                };
                rejected.push(FieldError {
                    object: format!("Service {}/{}", service.namespace, service.name),
                    field: format!("spec.clusterIPs[{index}]"),
                    value: text.clone(),
                    reason,
                });
            }
        }
    }

    /// Individually routed addresses of Pods on a Node.
    pub(super) fn pods_on(&self, node: &str) -> &[IpNet] {
        self.pods_by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// Adds the public keys of Nodes.
    fn read_keys(&mut self, objects: &Objects, rejected: &mut Vec<FieldError>) {
        for info in &objects.node_keys {
            let object = format!("NodeKey {}", info.name);
            if !info.owned {
                let reason = "is not the name of a Node that owns the object";
                rejected.push(field_error(&object, "metadata.name", &info.name, &reason));
                continue;
            }
            match info.public_key.parse::<PublicKey>() {
                Ok(key) => {
                    self.keys.insert(info.name.clone(), key);
                }
                Err(reason) => {
                    rejected.push(field_error(&object, "spec.publicKey", &info.public_key, &reason));
                }
            }
        }
    }

    /// The public key of a Node.
    pub(super) fn key(&self, node: &str) -> Option<PublicKey> {
        self.keys.get(node).copied()
    }

    /// The first individually routed address in `prefix`, with its owner.
    pub(super) fn pod_within(&self, prefix: IpNet) -> Option<(IpAddr, &str)> {
        first_within(&self.pods, prefix)
    }

    /// Adds the addresses of the Node of each Gateway, which has the same name: it may send from any of them.
    fn gateway_sources(&mut self) {
        for gateway in &mut self.gateways {
            let node = position(&self.other_nodes, &gateway.name);
            let node = node.and_then(|at| self.other_nodes.get(at));
            for addr in node.iter().flat_map(|node| &node.addrs) {
                if !gateway.sources.contains(addr) {
                    gateway.sources.push(*addr);
                }
            }
        }
    }

    /// The own `internalIP` on a gateway: it determines the outer family of packets from local Nodes.
    pub(super) fn internal_ip(&self) -> Option<IpAddr> {
        self.own_gateway.as_ref().and_then(|own| own.internal_ip)
    }

    /// The address of this node as configured for the local Node `peer`.
    pub(super) fn source_to_node(&self, peer: IpAddr) -> Option<IpAddr> {
        let known = self.own.addrs.iter().copied().chain(self.internal_ip());
        known.into_iter().find(|addr| same_family(*addr, peer))
    }

    /// The address of this node as announced to the remote gateway `peer`.
    pub(super) fn source_to_gateway(&self, peer: IpAddr) -> Option<IpAddr> {
        let gateway_ip = self.own_gateway.as_ref().and_then(|own| own.gateway_ip);
        gateway_ip
            .filter(|addr| same_family(*addr, peer))
            .or(self.source_to_node(peer))
    }

    pub(super) fn own_pod_cidrs(&self) -> Vec<IpNet> {
        self.own.pod_cidrs.clone()
    }

    /// The Pod CIDRs of all Nodes.
    pub(super) fn pod_cidrs(&self) -> BTreeSet<IpNet> {
        let nodes = std::iter::once(&self.own).chain(&self.other_nodes);
        nodes.flat_map(|node| node.pod_cidrs.iter().copied()).collect()
    }

    /// Unused addresses that are routed to this Node.
    pub(super) fn fallback_addrs(&self, lookup: PodLookup) -> SourceAddrs {
        let reserved = self.own.reserved.iter().map(IpNet::addr).collect();
        self.network_addresses(lookup).or(reserved)
    }

    /// The network addresses of this Node's Pod CIDRs, if Pods are found by CIDR: they are routed here and assigned
    /// to no Pod.
    fn network_addresses(&self, lookup: PodLookup) -> SourceAddrs {
        // A prefix of one or two addresses has no unused one.
        let large = |net: &&IpNet| net.max_prefix_len().saturating_sub(net.prefix_len()) > 1;
        let first: SourceAddrs = self
            .own
            .pod_cidrs
            .iter()
            .filter(large)
            .map(IpNet::network)
            .collect();
        let outside = self.pods_on(&self.own.name);
        first.filter(|addr| {
            let by_cidr = !outside.iter().any(|pod| same_family(pod.addr(), addr));
            let used = self.pods.contains_key(&addr) || self.addresses.contains_key(&addr);
            lookup != PodLookup::Pod && by_cidr && !used
        })
    }

    pub(super) fn service_cidrs(&self) -> Vec<IpNet> {
        let own = self.own_gateway.iter();
        own.flat_map(|own| own.service_cidrs.iter().copied()).collect()
    }

    /// Possible outer destinations of this node, without duplicates.
    pub(super) fn local_addresses(&self) -> Vec<IpAddr> {
        let gateway = self
            .own_gateway
            .iter()
            .flat_map(|own| [own.internal_ip, own.gateway_ip]);
        let all = [self.own.addr()].into_iter().chain(gateway).flatten();
        let mut unique = Vec::new();
        for addr in all.chain(self.own.addrs.iter().copied()) {
            if !unique.contains(&addr) {
                unique.push(addr);
            }
        }
        unique
    }
}

/// Index of a Node in `nodes`, which are sorted by name.
fn position(nodes: &[Node], name: &str) -> Option<usize> {
    nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()
}

/// The first of these addresses in `prefix`, with its owner.
pub(super) fn first_within(addresses: &BTreeMap<IpAddr, Arc<str>>, prefix: IpNet) -> Option<(IpAddr, &str)> {
    let mut inside = addresses.range(prefix.network()..=prefix.broadcast());
    inside.next().map(|(addr, owner)| (*addr, &**owner))
}

pub(super) fn field_error(object: &str, field: &str, value: &str, error: &impl ToString) -> FieldError {
    FieldError {
        object: object.to_owned(),
        field: field.to_owned(),
        value: value.to_owned(),
        reason: error.to_string(),
    }
}
