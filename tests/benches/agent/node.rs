//! A model of the node: executes the actions of plans in memory.

use std::collections::BTreeMap;

use mc_gateway::plan::{Action, Attachment, Device, ObservedState, Plan};

fn entry<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

fn slot<V: Default + PartialEq>(slots: &mut BTreeMap<u32, V>, slot: u32, value: V) {
    entry(slots, slot, (value != V::default()).then_some(value));
}

/// Executes a plan.
pub(crate) fn execute(node: &mut ObservedState, plan: Plan) {
    for action in plan.actions {
        execute_action(node, action);
    }
}

fn execute_action(node: &mut ObservedState, action: Action) {
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
                (device.mtu, device.up, device.configured) = (mtu, up, true);
            }
        }
        Action::SetAddress { addr, to } => {
            if to {
                node.addresses.insert(addr);
            } else {
                node.addresses.remove(&addr);
            }
        }
        Action::SetNextHop { slot: at, to, .. } => slot(&mut node.next_hops, at, to),
        Action::SetGroup { slot: at, to, .. } => slot(&mut node.groups, at, to),
        Action::SetPeer { addr, to, .. } => entry(&mut node.peers, addr, to),
        Action::SetConfig { to, .. } => node.config = *to,
        Action::Service(action) => action.apply_to(&mut node.services),
        Action::SetPrefix { key, to, .. } => entry(&mut node.prefixes, key, to),
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
        Action::SetReturnRoutes { to, .. } => node.return_routes = to,
        Action::SetRoute { key, to, .. } => entry(&mut node.routes, key, to),
    }
}
