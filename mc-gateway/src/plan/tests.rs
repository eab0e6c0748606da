//! Plans against a model of the node.

use ipnet::IpNet;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;

use super::*;
use crate::apply::{Executor, apply};
use crate::capacity::{Capacity, truncate_to_capacity};
use crate::desired::{Masquerade, SourceAddrs};
use crate::resolved::Prefix;

const MC0: &str = "mc0";

/// A plan without earlier ones.
fn plan(observed: &ObservedState, resolved: &ResolvedState, device: &str) -> Result<Plan, PlanError> {
    super::plan(observed, resolved, device, &mut PlanCache::default())
}

/// Executes an action on the model, in which its preconditions are true.
fn execute_on(node: &mut ObservedState, action: &Action) {
    match action {
        Action::SetDevice { .. } => assert!(node.device.is_some()),
        Action::SetAddress { addr, to: true } => assert!(!node.addresses.contains(addr), "{addr}"),
        Action::SetAddress { addr, to: false } => {
            assert!(node.addresses.contains(addr), "{addr}");
            let named = node.routes.values().flatten().any(|source| source == addr);
            assert!(!named, "a route names {addr}");
        }
        Action::SetRoute { key, from, to } => {
            assert_eq!(node.routes.get(key), from.as_ref());
            if let Some(Some(source)) = to {
                assert!(node.addresses.contains(source), "{source} is not there yet");
            }
        }
        _ => {}
    }
    execute_in_memory(node, action.clone());
}

/// Executes some actions, fails once, and executes all later ones.
struct Model {
    node: ObservedState,
    left: usize,
}

impl Executor for Model {
    type Error = &'static str;

    async fn execute(&mut self, action: &Action) -> Result<(), Self::Error> {
        let left = self.left;
        self.left = left.checked_sub(1).unwrap_or(usize::MAX);
        if left == 0 {
            return Err("made to fail");
        }
        execute_on(&mut self.node, action);
        Ok(())
    }
}

/// Every reference of a map entry has a resolved.
fn check_references(node: &ObservedState) {
    for prefix in node.prefixes.values() {
        assert!(
            prefix.group == 0 || node.groups.contains_key(&prefix.group),
            "{node:?}"
        );
    }
    for group in node.groups.values() {
        for next_hop in &group.next_hops[..group.len as usize] {
            assert!(node.next_hops.contains_key(next_hop), "{node:?}");
        }
    }
    let programs_run = !node.attachments.is_empty();
    assert!(
        !programs_run || node.config.abi == abi::ABI_VERSION,
        "attached before configured"
    );
}

/// Executes plans until one is empty; every intermediate state must be consistent.
fn converge(node: &mut ObservedState, resolved: &ResolvedState) -> Vec<Action> {
    let mut done = Vec::new();
    for _ in 0..2 {
        let plan = plan(node, resolved, MC0).unwrap();
        for action in &plan.actions {
            execute_on(node, action);
            if !plan.replan {
                check_references(node);
            }
        }
        done.extend(plan.actions);
        if !plan.replan {
            break;
        }
    }
    done
}

fn next_hop(id: u32, ifindex: u32) -> abi::NextHop {
    abi::NextHop {
        source_mac: 0,
        addr: [1; 16],
        local: [2; 16],
        ifindex,
        id,
        mtu: 1450,
        weight: 1,
        neighbor: abi::Neighbor::default(),
        link: abi::LinkAddresses::default(),
        stats: 0,
    }
}

fn targets() -> impl Strategy<Value = ResolvedState> {
    let next_hops = btree_map(1_u32..12, 1_u32..3, 0..6);
    let groups = btree_set(1_u32..8, 0..5);
    let prefixes = btree_map(any::<[u8; 2]>(), (0_u32..3, 1_u32..8, 1_u32..3), 0..8);
    let peers = btree_map(0_u8..6, 1_u32..8, 0..5);
    let routes = (btree_set(0_u8..20, 0..6), proptest::option::of(1_u8..3));
    let devices = btree_set(2_u32..5, 0..3);
    (
        next_hops,
        groups,
        prefixes,
        peers,
        routes,
        devices,
        1300_u32..1500,
    )
        .prop_map(
            |(next_hops, groups, prefixes, peers, (routes, source), devices, mtu)| {
                let known = |group: &u32| if groups.contains(group) { *group } else { 0 };
                ResolvedState {
                    port: 6081,
                    mtu: (!next_hops.is_empty()).then_some(mtu),
                    prefixes: prefixes
                        .iter()
                        .map(|(bytes, (cluster, group, action))| {
                            let mut addr = Addr::default();
                            addr[12..14].copy_from_slice(bytes);
                            let value = Prefix {
                                cluster: (*cluster).into(),
                                group: known(group),
                                action: *action,
                                flags: 0,
                                identity: 0,
                            };
                            (PrefixKey { len: 112, addr }, value)
                        })
                        .collect(),
                    groups: groups
                        .iter()
                        .map(|id| {
                            (
                                *id,
                                next_hops.keys().copied().filter(|m| (m + id) % 2 == 0).collect(),
                            )
                        })
                        .collect(),
                    peers: peers
                        .iter()
                        .map(|(n, group)| {
                            let peer = abi::Peer {
                                flags: 1,
                                group: known(group),
                                ..abi::Peer::default()
                            };
                            ([*n; 16], peer)
                        })
                        .collect(),
                    next_hops: next_hops
                        .iter()
                        .map(|(id, ifindex)| (*id, next_hop(*id, *ifindex)))
                        .collect(),
                    routes: routes
                        .iter()
                        .map(|n| IpNet::new([10, *n, 0, 0].into(), 16).unwrap())
                        .collect(),
                    masquerade: Masquerade {
                        sources: SourceAddrs {
                            v4: source.map(|n| [10, 99, 0, n].into()),
                            v6: None,
                        },
                        ..Masquerade::default()
                    },
                    addresses: source.map(|n| [10, 99, 0, n].into()).into_iter().collect(),
                    devices: devices.iter().map(|n| (format!("eth{n}"), *n)).collect(),
                    ..ResolvedState::default()
                }
            },
        )
}

proptest! {
    #[test]
    fn a_plan_reaches_the_resolved_state_and_the_next_plan_is_empty(first in targets(), second in targets()) {
        let mut node = ObservedState::default();
        for resolved in [&first, &second] {
            let _ = converge(&mut node, resolved);
            prop_assert_eq!(plan(&node, resolved, MC0).unwrap().actions, vec![]);
            prop_assert_eq!(&node.routes, &resolved.host_routes());
            prop_assert_eq!(&node.addresses, &resolved.addresses);
            prop_assert_eq!(node.next_hops.values().map(|m| m.id).collect::<BTreeSet<_>>(),
                resolved.next_hops.keys().copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(node.prefixes.len(), resolved.prefixes.len());
            for (key, prefix) in resolved.prefixes.iter() {
                let got = node.prefixes[key];
                let group = node.groups.get(&got.group).map_or(0, |group| group.id);
                prop_assert_eq!((got.cluster, group, got.action), (prefix.cluster, prefix.group, prefix.action));
            }
            for (id, next_hops) in &resolved.groups {
                let group = node.groups.values().find(|group| group.id == *id).unwrap();
                let got: BTreeSet<u32> = group.next_hops[..group.len as usize].iter()
                    .map(|slot| node.next_hops[slot].id).collect();
                prop_assert_eq!(&got, next_hops);
            }
            for (addr, peer) in &resolved.peers {
                let got = node.peers[addr];
                let group = node.groups.get(&got.group).map_or(0, |group| group.id);
                prop_assert_eq!((got.flags, group), (peer.flags, peer.group));
            }
            prop_assert_eq!(node.attachments.len(), resolved.devices.len() + 1);
            prop_assert_eq!(node.device.unwrap().up, true);
        }
    }

    #[test]
    fn undo_in_reverse_order_restores_the_previous_state(first in targets(), second in targets(), cut in 0_usize..40) {
        let mut node = ObservedState::default();
        let _ = converge(&mut node, &first);
        let before = node.clone();
        let actions = plan(&node, &second, MC0).unwrap().actions;
        let done = &actions[..cut.min(actions.len())];
        for action in done {
            execute_on(&mut node, action);
        }
        for action in done.iter().rev() {
            if let Some(undo) = action.undo() {
                execute_on(&mut node, &undo);
            }
        }
        prop_assert_eq!(node, before);
    }

    #[test]
    fn a_failed_plan_leaves_the_previous_state(first in targets(), second in targets(), at in 0_usize..40) {
        let mut node = ObservedState::default();
        let _ = converge(&mut node, &first);
        let before = node.clone();
        let plan = plan(&node, &second, MC0).unwrap();
        let mut model = Model { node, left: at };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let result = runtime.block_on(apply(&plan, &mut model));
        match result {
            Ok(()) => prop_assert!(plan.actions.len() <= at),
            Err(error) => {
                prop_assert_eq!((error.rolled_back, error.not_undone), (at, vec![]));
                prop_assert_eq!(model.node, before);
            }
        }
    }

    #[test]
    fn slots_freed_by_a_plan_are_not_reused_by_it(first in targets(), second in targets()) {
        let mut node = ObservedState::default();
        let _ = converge(&mut node, &first);
        let before = node.clone();
        for action in converge(&mut node, &second) {
            match action {
                Action::SetGroup { slot, from, to } if to.id != 0 => {
                    prop_assert!(from.id == 0 || from.id == to.id, "slot {} changed hands", slot);
                    prop_assert!(from.id == to.id || !before.groups.contains_key(&slot));
                }
                Action::SetNextHop { slot, from, to } if to.id != 0 => {
                    prop_assert!(from.id == 0 || from.id == to.id, "slot {} changed hands", slot);
                    prop_assert!(from.id == to.id || !before.next_hops.contains_key(&slot));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn the_device_is_created_first_and_alone() {
    let plan = plan(&ObservedState::default(), &ResolvedState::default(), MC0).unwrap();
    assert_eq!(plan.actions, [Action::CreateDevice { mtu: 1450 }]);
    assert!(plan.replan);
}

#[test]
fn a_device_without_the_settings_of_the_agent_is_set_again() {
    let resolved = ResolvedState::default();
    let mut node = ObservedState::default();
    converge(&mut node, &resolved);
    node.device.as_mut().unwrap().configured = false;
    let actions = converge(&mut node, &resolved);
    assert!(matches!(actions[..], [Action::SetDevice { .. }]), "{actions:?}");
}

#[test]
fn routes_are_added_last_and_removed_first() {
    let resolved = ResolvedState {
        next_hops: [(1, next_hop(1, 2))].into(),
        groups: [(5, [1].into())].into(),
        routes: ["10.2.0.0/16".parse().unwrap()].into(),
        ..ResolvedState::default()
    };
    let mut node = ObservedState::default();
    let there = converge(&mut node, &resolved);
    assert!(matches!(there.last(), Some(Action::SetRoute { to: Some(_), .. })));
    let back = converge(&mut node, &ResolvedState::default());
    assert!(matches!(back.first(), Some(Action::SetRoute { to: None, .. })));
    assert!(matches!(back.last(), Some(Action::SetNextHop { .. })));
}

fn underlay_hook(mode: AttachMode) -> Hook {
    Hook {
        program: Program::FromUnderlay,
        device: "eth0".to_owned(),
        mode,
    }
}

#[test]
fn an_attachment_in_the_other_mode_is_removed_after_the_new_one_exists() {
    let mut resolved = ResolvedState {
        devices: [("eth0".to_owned(), 2)].into(),
        ..ResolvedState::default()
    };
    let mut node = ObservedState::default();
    for (mode, other) in [
        (AttachMode::Tcx, AttachMode::Clsact),
        (AttachMode::Clsact, AttachMode::Tcx),
    ] {
        resolved.attach_mode = mode;
        let actions = converge(&mut node, &resolved);
        let hooks: Vec<&Hook> = node.attachments.keys().collect();
        assert!(hooks.iter().all(|hook| hook.mode == mode), "{hooks:?}");
        let at = |wanted: fn(&Action) -> Option<&Hook>, mode: AttachMode| {
            let hook = underlay_hook(mode);
            actions.iter().position(|action| wanted(action) == Some(&hook))
        };
        let attached = at(
            |action| match action {
                Action::Attach { hook, .. } => Some(hook),
                _ => None,
            },
            mode,
        );
        let detached = at(
            |action| match action {
                Action::Detach { hook, .. } => Some(hook),
                _ => None,
            },
            other,
        );
        assert!(attached.is_some());
        // No attachment existed before.
        assert_eq!(detached.is_some(), mode == AttachMode::Clsact);
        assert!(detached.is_none_or(|detached| Some(detached) > attached));
    }
}

#[test]
fn a_program_of_a_previous_agent_is_replaced_and_a_recreated_device_attached_again() {
    let resolved = ResolvedState {
        devices: [("eth0".to_owned(), 2)].into(),
        ..ResolvedState::default()
    };
    let mut node = ObservedState::default();
    let _ = converge(&mut node, &resolved);
    let key = underlay_hook(AttachMode::Tcx);
    for from in [
        Attachment {
            ifindex: 2,
            current: false,
        },
        Attachment {
            ifindex: 0,
            current: true,
        },
        Attachment {
            ifindex: 7,
            current: true,
        },
    ] {
        node.attachments.insert(key.clone(), from);
        let actions = converge(&mut node, &resolved);
        let attach = Action::Attach {
            hook: key.clone(),
            ifindex: 2,
            from: Some(from),
        };
        assert_eq!(actions, [attach]);
    }
}

#[test]
fn a_renamed_device_is_detached_before_it_is_attached_again() {
    let resolved = |name: &str| ResolvedState {
        devices: [(name.to_owned(), 2)].into(),
        ..ResolvedState::default()
    };
    let mut node = ObservedState::default();
    let _ = converge(&mut node, &resolved("eth1"));
    let actions: Vec<String> = converge(&mut node, &resolved("between1"))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        actions,
        [
            "detach from_underlay from eth1",
            "attach from_underlay to between1"
        ]
    );
}

#[test]
fn a_full_map_is_replaced_in_two_steps() {
    let resolved = |base: u32| ResolvedState {
        groups: (1..MAX_NEXT_HOP_GROUPS)
            .map(|n| (base + n, BTreeSet::new()))
            .collect(),
        ..ResolvedState::default()
    };
    let mut node = ObservedState::default();
    let _ = converge(&mut node, &resolved(0));
    let second = resolved(MAX_NEXT_HOP_GROUPS);
    let first_step = plan(&node, &second, MC0).unwrap();
    assert!(first_step.replan);
    for _ in 0..2 {
        for action in plan(&node, &second, MC0).unwrap().actions {
            execute_on(&mut node, &action);
        }
    }
    assert_eq!(plan(&node, &second, MC0).unwrap().actions, []);
    assert_eq!(node.groups.len(), second.groups.len());
}

#[test]
fn a_state_beyond_the_capacity_is_an_error() {
    let mut node = ObservedState::default();
    let _ = converge(&mut node, &ResolvedState::default());
    let resolved = ResolvedState {
        peers: (0..=MAX_PEERS)
            .map(|n| {
                let mut addr = Addr::default();
                addr[12..].copy_from_slice(&n.to_be_bytes());
                (addr, abi::Peer::default())
            })
            .collect(),
        ..ResolvedState::default()
    };
    let error = plan(&node, &resolved, MC0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "map mc_peers is full: 16385 entries are needed, 16384 fit"
    );
}

#[test]
fn a_node_without_room_for_its_group_has_no_group_as_a_peer() {
    let prefix = |addr, cluster, group| {
        let key = PrefixKey {
            len: 128,
            addr: [addr; 16],
        };
        let value = Prefix {
            cluster,
            group,
            action: abi::ACTION_FORWARD,
            flags: 0,
            identity: 0,
        };
        (key, value)
    };
    let node = |group| abi::Peer {
        flags: abi::PEER_LOCAL_NODE,
        group,
        ..abi::Peer::default()
    };
    // Two nodes in front of a cluster, by ID.
    let mut resolved = ResolvedState {
        prefixes: [prefix(1, 0, 10), prefix(2, 0, 20), prefix(3, 7, 30)].into(),
        groups: [10, 20, 30].map(|group| (group, BTreeSet::new())).into(),
        peers: [([1; 16], node(10)), ([2; 16], node(20))].into(),
        ..ResolvedState::default()
    };
    let capacity = Capacity {
        groups: 2,
        ..Capacity::default()
    };
    let rejected = truncate_to_capacity(&mut resolved, capacity, &BTreeSet::new());
    let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["this Node: map mc_nh_groups: \"3\" entries exceed the capacity of 2: 1 are left out"]
    );
    let mut observed = ObservedState::default();
    let _ = converge(&mut observed, &resolved);
    let slot = |id| {
        let found = observed.groups.iter().find(|(_, group)| group.id == id);
        found.map(|(slot, _)| *slot)
    };
    assert_eq!(slot(20), None);
    assert_eq!(Some(observed.peers[&[1; 16]].group), slot(10));
    assert_eq!(observed.peers[&[2; 16]].group, 0, "which admits no Pod of it");
    let cluster = PrefixKey {
        len: 128,
        addr: [3; 16],
    };
    assert_eq!(Some(observed.prefixes[&cluster].group), slot(30));
}

#[test]
fn a_change_of_link_addresses_is_no_other_change_of_a_next_hop() {
    let from = abi::NextHop {
        id: 7,
        ..abi::NextHop::default()
    };
    let linked = abi::NextHop {
        link: abi::LinkAddresses::new([2; 6], [4; 6]),
        ..from
    };
    let set = |to| Action::SetNextHop {
        slot: 1,
        from: Box::new(from),
        to: Box::new(to),
    };
    assert!(set(linked).is_link_change());
    assert!(!set(abi::NextHop { mtu: 1, ..linked }).is_link_change());
    assert!(!Action::DeleteDevice.is_link_change());
}
