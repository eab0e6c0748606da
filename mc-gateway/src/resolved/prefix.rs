//! Entries of the prefix map.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, PrefixKey};

use super::ResolvedState;
use crate::cidr::{abi_prefix_len, to_abi_addr};
use crate::desired::services::Services;
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
    }
}

/// Marks the addresses of this node's backends. An address in no delivered prefix gets no action: only packets it
/// sends are translated.
pub(super) fn mark_backends(
    resolved: &mut ResolvedState,
    services: &Services,
    prefixes: &SharedMap<IpNet, PrefixRoute>,
) {
    let mut backends = services
        .backends
        .values()
        .filter(|backend| backend.group == 0)
        .peekable();
    if backends.peek().is_none() {
        return;
    }
    let delivered: Vec<IpNet> = prefixes
        .iter()
        .filter(|(_, route)| route.deliver)
        .map(|(net, _)| *net)
        .collect();
    for backend in backends {
        let pod = IpAddr::from(backend.pod).to_canonical();
        let action = if delivered.iter().any(|net| net.contains(&pod)) {
            abi::ACTION_DELIVER
        } else {
            0
        };
        let key = PrefixKey {
            len: 128,
            addr: backend.pod,
        };
        let known = resolved.prefixes.get(&key).copied();
        let mut prefix = known.unwrap_or(Prefix {
            cluster: abi::CLUSTER_LOCAL,
            group: 0,
            action,
            flags: 0,
        });
        prefix.flags |= abi::PREFIX_BACKENDS;
        resolved.prefixes.insert(key, prefix);
        resolved.flags |= abi::CONFIG_BACKENDS;
    }
}
