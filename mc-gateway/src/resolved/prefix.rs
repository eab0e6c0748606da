//! Entries of the prefix map.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, PrefixKey};

use super::ResolvedState;
use crate::cidr::{abi_prefix_len, to_abi_addr};
use crate::desired::services::Services;
use crate::desired::{AntreaInterop, DesiredState, PrefixRoute};

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

/// The prefixes of the desired state as map entries.
pub(super) fn prefixes(desired: &DesiredState) -> BTreeMap<PrefixKey, Prefix> {
    let prefixes = desired.prefixes.iter().map(|(net, route)| {
        let (key, mut prefix) = to_prefix(*net, *route);
        if desired.service_cidrs.contains(net) {
            prefix.action = abi::ACTION_SERVICE;
        }
        mark_antrea(&mut prefix, *net, &desired.masquerade.antrea);
        (key, prefix)
    });
    prefixes.collect()
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

fn to_prefix(net: IpNet, route: PrefixRoute) -> (PrefixKey, Prefix) {
    let key = PrefixKey {
        len: abi_prefix_len(net),
        addr: to_abi_addr(net.network()),
    };
    let value = Prefix {
        cluster: route.cluster,
        group: route.group,
        action: if route.deliver {
            abi::ACTION_DELIVER
        } else {
            abi::ACTION_FORWARD
        },
        flags: 0,
    };
    (key, value)
}

/// Marks the addresses of this node's backends. An address in no delivered prefix gets no action: only packets it
/// sends are translated.
pub(super) fn mark_backends(
    resolved: &mut ResolvedState,
    services: &Services,
    prefixes: &BTreeMap<IpNet, PrefixRoute>,
) {
    let delivered: Vec<IpNet> = prefixes
        .iter()
        .filter(|(_, route)| route.deliver)
        .map(|(net, _)| *net)
        .collect();
    for backend in services.backends.values().filter(|backend| backend.group == 0) {
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
        let prefix = resolved.prefixes.entry(key).or_insert(Prefix {
            cluster: abi::CLUSTER_LOCAL,
            group: 0,
            action,
            flags: 0,
        });
        prefix.flags |= abi::PREFIX_BACKENDS;
        resolved.flags |= abi::CONFIG_BACKENDS;
    }
}
