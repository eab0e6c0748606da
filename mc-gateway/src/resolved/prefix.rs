//! Entries of the prefix map.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, PrefixKey};

use super::ResolvedState;
use crate::cidr::{abi_prefix_len, to_abi_addr};
use crate::desired::node_policies::NodePolicies;
use crate::desired::{AntreaInterop, DesiredState, PrefixRoute};
use crate::shared_map::SharedMap;

/// An entry of the prefix map with the group's stable ID instead of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Cluster, 0 for the local one.
    pub cluster: u64,
    /// Group ID, 0 for none.
    pub group: u32,
    /// `ACTION_*`.
    pub action: u32,
    /// `PREFIX_*`.
    pub flags: u32,
    /// Label identity of packets from the prefix.
    pub identity: u32,
}

/// The prefixes of a desired state as map entries, kept until the next desired state.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixEntries {
    routes: SharedMap<IpNet, PrefixRoute>,
    service_cidrs: BTreeSet<IpNet>,
    antrea: AntreaInterop,
    entries: SharedMap<PrefixKey, Prefix>,
}

impl PrefixEntries {
    /// Changes the entries to those of `desired`.
    pub(super) fn update(&mut self, desired: &DesiredState) -> &SharedMap<PrefixKey, Prefix> {
        let antrea = &desired.masquerade.antrea;
        if self.service_cidrs != desired.service_cidrs || self.antrea != *antrea {
            *self = Self {
                service_cidrs: desired.service_cidrs.clone(),
                antrea: antrea.clone(),
                ..Self::default()
            };
        }
        for net in self.routes.changes(&desired.prefixes) {
            let Some(route) = desired.prefixes.get(net) else {
                self.entries.remove(&to_key(*net));
                continue;
            };
            let mut prefix = to_prefix(*route);
            if desired.service_cidrs.contains(net) {
                prefix.action = abi::ACTION_SERVICE;
            }
            mark_antrea(&mut prefix, *net, antrea);
            self.entries.insert(to_key(*net), prefix);
        }
        self.routes = desired.prefixes.clone();
        &self.entries
    }
}

/// Sets the flags and action of prefixes involved in interoperation with Antrea gateways.
fn mark_antrea(prefix: &mut Prefix, net: IpNet, antrea: &AntreaInterop) {
    let IpNet::V4(net) = net else { return };
    if antrea.prefixes.contains(&net.into()) {
        prefix.flags |= abi::PREFIX_HOST_SNAT;
    }
    let elsewhere = prefix.cluster == abi::CLUSTER_LOCAL && prefix.action == abi::ACTION_FORWARD;
    if elsewhere && antrea.source.is_some() {
        prefix.flags |= abi::PREFIX_RETURN_ROUTE;
    }
    if net.prefix_len() < net.max_prefix_len() {
        return;
    }
    if antrea.aliases.contains(&net.addr()) {
        prefix.flags |= abi::PREFIX_ALIAS;
    }
    if antrea.source == Some(net.addr()) {
        prefix.action = abi::ACTION_REPLY;
    }
}

fn to_key(net: IpNet) -> PrefixKey {
    PrefixKey {
        len: abi_prefix_len(net),
        addr: to_abi_addr(net.network()),
    }
}

fn to_prefix(route: PrefixRoute) -> Prefix {
    Prefix {
        cluster: route.cluster,
        group: route.group,
        action: if route.deliver {
            abi::ACTION_DELIVER
        } else {
            abi::ACTION_FORWARD
        },
        flags: 0,
        identity: abi::IDENTITY_HOST,
    }
}

/// The prefixes delivered on this node.
pub(super) fn delivered(prefixes: &SharedMap<IpNet, PrefixRoute>) -> Vec<IpNet> {
    let delivered = prefixes.iter().filter(|(_, route)| route.deliver);
    delivered.map(|(net, _)| *net).collect()
}

/// Changes the entry of a single address of this node, which is added if it is missing. An address in no delivered
/// prefix gets no action: it only sends packets.
fn change_address(
    prefixes: &mut SharedMap<PrefixKey, Prefix>,
    delivered: &[IpNet],
    addr: IpAddr,
    change: impl FnOnce(&mut Prefix),
) {
    let key = to_key(addr.into());
    let mut prefix = prefixes.get(&key).copied().unwrap_or(Prefix {
        cluster: abi::CLUSTER_LOCAL,
        group: 0,
        action: if delivered.iter().any(|net| net.contains(&addr)) {
            abi::ACTION_DELIVER
        } else {
            0
        },
        flags: 0,
        identity: abi::IDENTITY_HOST,
    });
    change(&mut prefix);
    prefixes.insert(key, prefix);
}

/// Changes the entries of ranges of this node, where they exist.
fn change_ranges(
    prefixes: &mut SharedMap<PrefixKey, Prefix>,
    ranges: impl Iterator<Item = IpNet>,
    change: impl Fn(&mut Prefix),
) {
    for net in ranges {
        let key = to_key(net);
        if let Some(mut prefix) = prefixes.get(&key).copied() {
            change(&mut prefix);
            prefixes.insert(key, prefix);
        }
    }
}

/// Addresses of this node itself.
fn host_addresses(resolved: &ResolvedState) -> Vec<IpAddr> {
    let sources = resolved.masquerade.sources.iter();
    sources.chain(resolved.addresses.iter().copied()).collect()
}

/// Marks the sources of packets of this node with their label identities: each Pod with its own, the rest of the Pod
/// CIDRs and of the Service CIDRs as unknown, because its packets are from Pods all the same.
fn mark_identities(
    resolved: &mut ResolvedState,
    identities: &BTreeMap<IpAddr, u32>,
    desired: &DesiredState,
    delivered: &[IpNet],
) {
    let masquerade = &desired.masquerade;
    // Clients of clusters with Antrea gateways share the address of this gateway.
    let shared = masquerade.antrea.source.map(|addr| IpNet::from(IpAddr::V4(addr)));
    let ranges = masquerade.pod_cidrs.iter().chain(&desired.service_cidrs);
    let hosts = host_addresses(resolved);
    let prefixes = &mut resolved.prefixes;
    change_ranges(prefixes, ranges.copied().chain(shared), |prefix| {
        prefix.identity = abi::IDENTITY_UNKNOWN;
    });
    for (addr, identity) in identities {
        change_address(prefixes, delivered, *addr, |prefix| prefix.identity = *identity);
    }
    for addr in hosts.iter().filter(|addr| !identities.contains_key(addr)) {
        change_address(prefixes, delivered, *addr, |prefix| {
            prefix.identity = abi::IDENTITY_HOST;
        });
    }
}

/// Marks the destinations of packets that policies decide on: the Pods that a policy selects, and, unless all policies
/// are audited, the rest of the Pod CIDRs and the Service CIDRs, where a Pod that a policy selects may be.
fn mark_policies(resolved: &mut ResolvedState, desired: &DesiredState, delivered: &[IpNet]) {
    let NodePolicies { tables, pods, .. } = &desired.policies;
    let ranges = desired.masquerade.pod_cidrs.iter().chain(&desired.service_cidrs);
    let hosts = host_addresses(resolved);
    let prefixes = &mut resolved.prefixes;
    if tables.drops() {
        change_ranges(prefixes, ranges.copied(), |prefix| {
            prefix.flags |= abi::PREFIX_POLICY;
        });
    }
    for addr in pods.iter().chain(&hosts) {
        change_address(prefixes, delivered, *addr, |prefix| {
            if tables.pods.contains_key(&to_abi_addr(*addr)) {
                prefix.flags |= abi::PREFIX_POLICY;
            }
        });
    }
}

/// Marks the addresses of this node's backends.
fn mark_backends(resolved: &mut ResolvedState, backends: &[IpAddr], delivered: &[IpNet]) {
    for pod in backends {
        let mark = |prefix: &mut Prefix| prefix.flags |= abi::PREFIX_BACKENDS;
        change_address(&mut resolved.prefixes, delivered, *pod, mark);
        resolved.flags |= abi::CONFIG_BACKENDS;
    }
}

/// Marks the addresses of this node: backends, label identities and policies.
pub(super) fn mark_addresses(resolved: &mut ResolvedState, desired: &DesiredState) {
    let backends = desired
        .services
        .iter()
        .flat_map(|services| services.backends.values());
    let backends: Vec<IpAddr> = backends
        .filter(|backend| backend.group == 0)
        .map(|backend| IpAddr::from(backend.pod).to_canonical())
        .collect();
    let tables = &desired.policies.tables;
    resolved.policies = Arc::clone(tables);
    if backends.is_empty() && desired.identities.is_none() && tables.is_empty() {
        return;
    }
    let delivered = delivered(&desired.prefixes);
    mark_backends(resolved, &backends, &delivered);
    if let Some(identities) = &desired.identities {
        mark_identities(resolved, identities, desired, &delivered);
    }
    if !tables.is_empty() {
        mark_policies(resolved, desired, &delivered);
    }
}
