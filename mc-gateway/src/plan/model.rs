//! A model of the node: executes the actions of plans in memory, for tests and benchmarks.

use std::collections::BTreeMap;

use super::{Action, Attachment, Device, InstalledGuard, ObservedState};

/// Executes an action; a new device has the index 9.
pub fn execute_in_memory(node: &mut ObservedState, action: Action) {
    match action {
        Action::CreateDevice { mtu } => {
            node.device = Some(Device {
                ifindex: 9,
                mac: [2, 0, 0, 0, 0, 9],
                mtu,
                up: false,
                configured: false,
                loose_rp_filter: true,
            });
        }
        Action::DeleteDevice => node.device = None,
        Action::SetDevice { to: (mtu, up), .. } => {
            if let Some(device) = &mut node.device {
                (device.mtu, device.up, device.configured) = (mtu, up, up);
            }
        }
        Action::SetAddress { addr, to } => {
            if to {
                node.addresses.insert(addr);
            } else {
                node.addresses.remove(&addr);
            }
        }
        Action::SetNextHop { slot: at, to, .. } => slot(&mut node.next_hops, at, *to),
        Action::SetGroup { slot: at, to, .. } => slot(&mut node.groups, at, *to),
        Action::SetPeer { addr, to, .. } => entry(&mut node.peers, addr, to.map(|peer| *peer)),
        Action::SetConfig { to, .. } => node.config = *to,
        Action::Service(action) => action.apply_to(&mut node.services),
        Action::SetPolicies { to, .. } => node.policies = to,
        Action::SetPrefix { key, to, .. } => {
            node.prefixes.set(key, to);
        }
        Action::Attach { hook, ifindex, .. } => {
            let attachment = Attachment {
                ifindex,
                current: true,
            };
            node.attachments.insert(hook, attachment);
        }
        Action::Detach { hook, .. } => {
            node.attachments.remove(&hook);
        }
        Action::SetNftables { to, .. } => node.nftables = to.map(|rules| *rules),
        Action::SetPodGuard { to, .. } => node.pod_guard = InstalledGuard::of(to.as_deref()),
        Action::SetReturnRoutes { to, .. } => node.return_routes = *to,
        Action::SetRoute { key, to, .. } => {
            node.routes.set(key, to);
        }
    }
}

fn entry<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

/// A slot of an array map; all zero means that it is free.
fn slot<V: Default + PartialEq>(slots: &mut BTreeMap<u32, V>, slot: u32, value: V) {
    entry(slots, slot, (value != V::default()).then_some(value));
}
