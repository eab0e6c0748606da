//! Ordered changes from the observed to the resolved state. Pure.
//!
//! *Guarantees*: an entry that another entry refers to is added before it and removed after it, so that a packet meets
//! the old or the new state at every moment; a slot freed by a plan is not reused by the same plan; planning against
//! the result of a plan gives an empty plan.

mod action;
mod cache;
mod counter_slots;
mod maglev_tables;
mod model;
mod pod_guard;
mod prefixes;
mod routes;
mod service;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use mc_gateway_common::abi::{self, Addr, MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, MAX_PEERS, MAX_PREFIXES};
use thiserror::Error;

pub use crate::attachment::{AttachMode, Attachment, Hook, Program};
use crate::host::tunnel_device::TunnelLink;
use crate::policy_tables::PolicyTables;
use crate::resolved::{DEFAULT_MTU, NftRules, PrefixKey, ResolvedState, ReturnRoutes, RouteKey};
use crate::shared_map::SharedMap;
pub use action::Action;
pub use cache::PlanCache;
use counter_slots::CounterSlots;
pub use model::execute_in_memory;
pub use pod_guard::InstalledGuard;
pub use service::{ServiceAction, ServiceMaps};
use slots::Slots;

/// `mc0` as observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Index.
    pub ifindex: u32,
    /// MAC address.
    pub mac: [u8; 6],
    /// MTU.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Has all settings of the agent: no ARP, no multicast, no generated IPv6 addresses, and the other end of a veth
    /// pair is up.
    pub configured: bool,
    /// Its reverse-path filter is in loose mode.
    pub loose_rp_filter: bool,
}

/// Observed state of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedState {
    /// `mc0`.
    pub device: Option<Device>,
    /// `mc_config`.
    pub config: abi::Config,
    /// `mc_prefixes`.
    pub prefixes: SharedMap<PrefixKey, abi::Prefix>,
    /// Used slots of `mc_nh_groups`.
    pub groups: BTreeMap<u32, abi::NextHopGroup>,
    /// Used slots of `mc_nexthops`.
    pub next_hops: BTreeMap<u32, abi::NextHop>,
    /// `mc_peers`.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// The Service maps.
    pub services: ServiceMaps,
    /// The policy tables in use.
    pub policies: Arc<PolicyTables>,
    /// Addresses of `mc0`.
    pub addresses: BTreeSet<IpAddr>,
    /// The agent's tunnel devices by name.
    pub tunnel_devices: BTreeMap<String, TunnelLink>,
    /// The agent's routes into `mc0`, each with its source address.
    pub routes: SharedMap<RouteKey, Option<IpAddr>>,
    /// Policy routing of replies from clusters with Antrea gateways.
    pub return_routes: ReturnRoutes,
    /// Contents of the nftables table; none if it is missing or modified.
    pub nftables: Option<NftRules>,
    /// The guard of Pods.
    pub pod_guard: InstalledGuard,
    /// Attached programs.
    pub attachments: BTreeMap<Hook, Attachment>,
}

/// Ordered changes.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Executed in this order.
    pub actions: Vec<Action>,
    /// Whether the next plan depends on the result of this one: index and MAC address of a new `mc0`, slots freed
    /// in a full map.
    pub replan: bool,
}

/// No plan can be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A map is too small.
    #[error("map {map} is full: {needed} entries are needed, {capacity} fit")]
    Full {
        /// Name of the map.
        map: &'static str,
        /// Entries needed.
        needed: usize,
        /// Entries that fit.
        capacity: usize,
    },
}

/// The changes from `observed` to `resolved`; `device` is the name of `mc0`. The plan does not depend on `cache`, which
/// is kept between plans.
pub fn plan(
    observed: &ObservedState,
    resolved: &ResolvedState,
    device: &str,
    cache: &mut PlanCache,
) -> Result<Plan, PlanError> {
    let Some(mc0) = observed.device else {
        return Ok(Plan {
            actions: vec![Action::CreateDevice {
                mtu: resolved.mtu.unwrap_or(DEFAULT_MTU),
            }],
            replan: true,
        });
    };
    check_capacity(abi::PREFIXES, resolved.prefixes.len(), MAX_PREFIXES)?;
    check_capacity(abi::PEERS, resolved.peers.len(), MAX_PEERS)?;
    let next_hops = Slots::assign(
        abi::NEXT_HOPS,
        MAX_NEXT_HOPS,
        observed
            .next_hops
            .iter()
            .map(|(slot, next_hop)| (*slot, next_hop.id)),
        resolved.next_hops.keys().copied(),
    )?;
    let groups = Slots::assign(
        abi::NEXT_HOP_GROUPS,
        MAX_NEXT_HOP_GROUPS,
        observed.groups.iter().map(|(slot, group)| (*slot, group.id)),
        resolved.groups.keys().copied(),
    )?;
    let counters = CounterSlots::assign(&observed.peers, resolved.peers.keys());
    let mut planner = Planner {
        adds: Vec::new(),
        removes: Vec::new(),
    };
    planner.close_pods(observed, resolved);
    planner.device(mc0, resolved);
    planner.addresses(observed, resolved);
    planner.next_hops(observed, resolved, &next_hops, &counters);
    planner.groups(observed, resolved, &groups, &next_hops);
    planner.peers(observed, resolved, &groups, &counters);
    planner.services(observed, resolved, &groups, cache);
    planner.config(observed, resolved, mc0);
    planner.policies(observed, resolved);
    planner.prefixes(observed, resolved, &groups, cache);
    planner.attachments(observed, resolved, mc0, device);
    planner.pod_guard(observed, resolved);
    planner.return_routes(observed, resolved);
    planner.nftables(observed, resolved);
    planner.routes(observed, resolved, cache);
    let Planner { mut adds, removes } = planner;
    // Collected in the order of addition; dependents are removed first.
    adds.extend(removes.into_iter().rev());
    Ok(Plan {
        actions: adds,
        replan: next_hops.exhausted() || groups.exhausted() || counters.exhausted(),
    })
}

fn check_capacity(map: &'static str, needed: usize, capacity: u32) -> Result<(), PlanError> {
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    if needed > capacity {
        return Err(PlanError::Full {
            map,
            needed,
            capacity,
        });
    }
    Ok(())
}

struct Planner {
    adds: Vec<Action>,
    removes: Vec<Action>,
}

impl Planner {
    fn device(&mut self, mc0: Device, resolved: &ResolvedState) {
        let from = (mc0.mtu, mc0.up);
        let to = (resolved.mtu.unwrap_or(mc0.mtu), true);
        if from != to || !mc0.configured {
            self.adds.push(Action::SetDevice { from, to });
        }
    }

    fn addresses(&mut self, observed: &ObservedState, resolved: &ResolvedState) {
        let set = |addr: &IpAddr, to| Action::SetAddress { addr: *addr, to };
        let missing = resolved.addresses.difference(&observed.addresses);
        self.adds.extend(missing.map(|addr| set(addr, true)));
        let left = observed.addresses.difference(&resolved.addresses);
        self.removes.extend(left.map(|addr| set(addr, false)));
    }

    fn next_hops(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
        slots: &Slots,
        counters: &CounterSlots,
    ) {
        for (id, next_hop) in &resolved.next_hops {
            let slot = slots.slot(*id);
            let from = observed.next_hops.get(&slot).copied().unwrap_or_default();
            let to = abi::NextHop {
                stats: counters.slot(&next_hop.addr),
                ..*next_hop
            };
            if slot != 0 && from != to {
                self.adds.push(Action::SetNextHop {
                    slot,
                    from: from.into(),
                    to: to.into(),
                });
            }
        }
        for slot in slots.freed() {
            let from = observed.next_hops.get(slot).copied().unwrap_or_default();
            let to = abi::NextHop::default();
            self.removes.push(Action::SetNextHop {
                slot: *slot,
                from: from.into(),
                to: to.into(),
            });
        }
    }

    fn groups(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
        slots: &Slots,
        next_hops: &Slots,
    ) {
        for (id, ids) in &resolved.groups {
            let slot = slots.slot(*id);
            if slot == 0 {
                continue;
            }
            let from = observed.groups.get(&slot).copied().unwrap_or_default();
            let mut to = abi::NextHopGroup {
                id: *id,
                ..abi::NextHopGroup::default()
            };
            let written = ids.iter().map(|id| next_hops.slot(*id)).filter(|slot| *slot != 0);
            for (entry, slot) in to.next_hops.iter_mut().zip(written) {
                *entry = slot;
                to.len = to.len.wrapping_add(1);
            }
            if from != to {
                self.adds.push(Action::SetGroup {
                    slot,
                    from: from.into(),
                    to: to.into(),
                });
            }
        }
        for slot in slots.freed() {
            let from = observed.groups.get(slot).copied().unwrap_or_default();
            let to = abi::NextHopGroup::default();
            self.removes.push(Action::SetGroup {
                slot: *slot,
                from: from.into(),
                to: to.into(),
            });
        }
    }

    fn peers(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
        groups: &Slots,
        counters: &CounterSlots,
    ) {
        for (addr, peer) in &resolved.peers {
            let from = observed.peers.get(addr).copied();
            let to = Some(abi::Peer {
                group: if peer.flags & abi::PEER_ANTREA == 0 {
                    groups.slot(peer.group)
                } else {
                    peer.group
                },
                stats: counters.slot(addr),
                ..*peer
            });
            if from != to {
                self.adds.push(Action::SetPeer {
                    addr: *addr,
                    from: from.map(Box::new),
                    to: to.map(Box::new),
                });
            }
        }
        for (addr, peer) in &observed.peers {
            if !resolved.peers.contains_key(addr) {
                self.removes.push(Action::SetPeer {
                    addr: *addr,
                    from: Some(Box::new(*peer)),
                    to: None,
                });
            }
        }
    }

    fn services(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
        groups: &Slots,
        cache: &mut PlanCache,
    ) {
        let Some(wanted) = &resolved.services else { return };
        let (adds, removes) = service::plan(&observed.services, wanted, groups, &mut cache.tables);
        let boxed = |action| Action::Service(Box::new(action));
        self.adds.extend(adds.into_iter().map(boxed));
        self.removes.extend(removes.into_iter().map(boxed));
    }

    fn config(&mut self, observed: &ObservedState, resolved: &ResolvedState, mc0: Device) {
        let from = observed.config;
        // While Services are unknown, their flag is kept.
        let kept = if resolved.services.is_none() {
            from.flags & abi::CONFIG_BACKENDS
        } else {
            0
        };
        let to = abi::Config {
            abi: abi::ABI_VERSION,
            flags: resolved.flags | kept,
            mc0_ifindex: mc0.ifindex,
            port: resolved.port,
            tos: resolved.tos,
            hop_limit: resolved.hop_limit,
            mc0_mac: mc0.mac,
            tunnel_mac: if observed.tunnel_devices.values().any(|link| link.up) {
                resolved.tunnel_mac
            } else {
                [0; 6]
            },
            decap_test_ms: resolved.decap_test_ms,
            local: resolved.local,
            detect: resolved.detect,
            hold_down_ms: resolved.hold_down_ms,
            cluster_id_key: resolved.cluster_id_key,
        };
        if from != to {
            self.adds.push(Action::SetConfig {
                from: Box::new(from),
                to: Box::new(to),
            });
        }
    }

    fn policies(&mut self, observed: &ObservedState, resolved: &ResolvedState) {
        if observed.policies != resolved.policies {
            self.adds.push(Action::SetPolicies {
                from: Arc::clone(&observed.policies),
                to: Arc::clone(&resolved.policies),
            });
        }
    }

    fn prefixes(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
        groups: &Slots,
        cache: &mut PlanCache,
    ) {
        let (adds, removes) = cache.prefixes.plan(observed, resolved, groups);
        self.adds.extend(adds);
        self.removes.extend(removes);
    }

    fn attachments(&mut self, observed: &ObservedState, resolved: &ResolvedState, mc0: Device, device: &str) {
        let hook = |program: Program, device: &str| Hook {
            program,
            device: device.to_owned(),
            mode: resolved.attach_mode,
        };
        let own = std::iter::once((hook(Program::ToRemote, device), mc0.ifindex));
        // Without a policy for a Pod of this node, packets have no program more to run.
        let policies =
            (!resolved.policies.is_empty()).then(|| (hook(Program::FromRemote, device), mc0.ifindex));
        let pods = resolved.pod_devices.iter().flat_map(|(name, ifindex)| {
            [Program::ToPod, Program::FromPod].map(|program| (hook(program, name), *ifindex))
        });
        let underlay = resolved
            .devices
            .iter()
            .map(|(name, ifindex)| (hook(Program::FromUnderlay, name), *ifindex));
        let tunnels = observed
            .tunnel_devices
            .iter()
            .map(|(name, link)| (hook(Program::FromTunnel, name), link.ifindex));
        let wanted: BTreeMap<Hook, u32> = own
            .chain(policies)
            .chain(underlay)
            .chain(tunnels)
            .chain(pods)
            .collect();
        let mut renamed: BTreeSet<Hook> = BTreeSet::new();
        for (hook, ifindex) in &wanted {
            let from = observed.attachments.get(hook).copied();
            let done = Attachment {
                ifindex: *ifindex,
                current: true,
            };
            if from != Some(done) {
                // A renamed device: the kernel rejects the same program twice on one device.
                let known = observed.attachments.iter().find(|(other, at)| {
                    (other.program, other.mode) == (hook.program, hook.mode)
                        && at.ifindex == *ifindex
                        && !wanted.contains_key(other)
                });
                if let Some((hook, from)) = known {
                    self.adds.push(Action::Detach {
                        hook: hook.clone(),
                        from: *from,
                    });
                    renamed.insert(hook.clone());
                }
                self.adds.push(Action::Attach {
                    hook: hook.clone(),
                    ifindex: *ifindex,
                    from,
                });
            }
        }
        // A program attached in the other mode is removed after it is attached in this one.
        for (hook, from) in &observed.attachments {
            if !wanted.contains_key(hook) && !renamed.contains(hook) {
                self.removes.push(Action::Detach {
                    hook: hook.clone(),
                    from: *from,
                });
            }
        }
    }

    fn return_routes(&mut self, observed: &ObservedState, resolved: &ResolvedState) {
        let to = ReturnRoutes::new(&resolved.masquerade.antrea);
        if observed.return_routes != to {
            self.adds.push(Action::SetReturnRoutes {
                from: Box::new(observed.return_routes.clone()),
                to: Box::new(to),
            });
        }
    }

    fn nftables(&mut self, observed: &ObservedState, resolved: &ResolvedState) {
        let to = Some(resolved.nft_rules());
        if observed.nftables != to {
            self.adds.push(Action::SetNftables {
                from: observed.nftables.clone().map(Box::new),
                to: to.map(Box::new),
            });
        }
    }

    fn routes(&mut self, observed: &ObservedState, resolved: &ResolvedState, cache: &mut PlanCache) {
        let (adds, removes) = cache.routes.plan(observed, resolved);
        self.adds.extend(adds);
        self.removes.extend(removes);
    }
}
