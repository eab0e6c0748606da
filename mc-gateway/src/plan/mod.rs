//! What to do so that what is there becomes what is desired. Pure.
//!
//! *Guarantees*: whatever a table entry points to exists before the entry and goes after it, so that a
//! packet meets the old state or the new one at every moment; a slot freed by a plan is not given away
//! by the same plan; planning against the result of a plan gives an empty plan.

mod action;
mod counter_slots;
mod service;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use mc_gateway_common::abi::{self, Addr, MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, MAX_PEERS, MAX_PREFIXES};
use thiserror::Error;

use crate::desired::Masquerade;
use crate::resolved::{DEFAULT_MTU, PrefixKey, ResolvedState, ReturnRoutes, RouteKey};
pub use action::Action;
use counter_slots::CounterSlots;
pub use service::{ServiceAction, ServiceMaps};
use slots::Slots;

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    /// On the egress of `mc0`.
    ToRemote,
    /// On the ingress of every underlay device.
    FromUnderlay,
}

impl Program {
    /// Both.
    pub const ALL: [Self; 2] = [Self::ToRemote, Self::FromUnderlay];

    /// Name in the object, in `bpftool prog` and in pin names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToRemote => abi::PROGRAM_TO_REMOTE,
            Self::FromUnderlay => abi::PROGRAM_FROM_UNDERLAY,
        }
    }
}

/// `mc0` as it is.
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
}

/// How a program is attached to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachMode {
    /// By a pinned TCX link (Linux 6.6).
    #[default]
    Tcx,
    /// By a filter of the device's clsact qdisc.
    Clsact,
}

/// A place for a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// What is there, or should be.
    pub program: Program,
    /// Name of the device.
    pub device: String,
    /// In which of the two ways.
    pub mode: AttachMode,
}

/// A program at a [`Hook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Device the program is on; 0 when the device is gone.
    pub ifindex: u32,
    /// Whether it runs the program this agent loaded, not one of an agent before it.
    pub current: bool,
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedState {
    /// `mc0`.
    pub device: Option<Device>,
    /// `mc_config`.
    pub config: abi::Config,
    /// `mc_prefixes`.
    pub prefixes: BTreeMap<PrefixKey, abi::Prefix>,
    /// Used slots of `mc_nh_groups`.
    pub groups: BTreeMap<u32, abi::NextHopGroup>,
    /// Used slots of `mc_nexthops`.
    pub next_hops: BTreeMap<u32, abi::NextHop>,
    /// `mc_peers`.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// The Service maps.
    pub services: ServiceMaps,
    /// Addresses of `mc0`.
    pub addresses: BTreeSet<IpAddr>,
    /// Our routes into `mc0`, with the source address each names.
    pub routes: BTreeMap<RouteKey, Option<IpAddr>>,
    /// The way of replies of clusters with Antrea gateways.
    pub return_routes: ReturnRoutes,
    /// What our nftables table does; none where it is missing or not as we write it.
    pub masquerade: Option<Masquerade>,
    /// Programs that are attached.
    pub attachments: BTreeMap<Hook, Attachment>,
}

/// Ordered changes.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be carried out from the first to the last.
    pub actions: Vec<Action>,
    /// Whether the next plan depends on what this one does: the index and MAC address of a new `mc0`, slots
    /// of a full table that become free.
    pub replan: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A map cannot hold what is desired.
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

/// The changes from `observed` to `target`; `device` is the name of `mc0`.
pub fn plan(observed: &ObservedState, target: &ResolvedState, device: &str) -> Result<Plan, PlanError> {
    let Some(mc0) = observed.device else {
        return Ok(Plan {
            actions: vec![Action::CreateDevice {
                mtu: target.mtu.unwrap_or(DEFAULT_MTU),
            }],
            replan: true,
        });
    };
    check_capacity(abi::PREFIXES, target.prefixes.len(), MAX_PREFIXES)?;
    check_capacity(abi::PEERS, target.peers.len(), MAX_PEERS)?;
    let next_hops = Slots::assign(
        abi::NEXT_HOPS,
        MAX_NEXT_HOPS,
        observed
            .next_hops
            .iter()
            .map(|(slot, next_hop)| (*slot, next_hop.id)),
        target.next_hops.keys().copied(),
    )?;
    let groups = Slots::assign(
        abi::NEXT_HOP_GROUPS,
        MAX_NEXT_HOP_GROUPS,
        observed.groups.iter().map(|(slot, group)| (*slot, group.id)),
        target.groups.keys().copied(),
    )?;
    let counters = CounterSlots::assign(&observed.peers, target.peers.keys());
    let mut planner = Planner {
        adds: Vec::new(),
        removes: Vec::new(),
    };
    planner.device(mc0, target);
    planner.addresses(observed, target);
    planner.next_hops(observed, target, &next_hops, &counters);
    planner.groups(observed, target, &groups, &next_hops);
    planner.peers(observed, target, &groups, &counters);
    planner.services(observed, target, &groups);
    planner.config(observed, target, mc0);
    planner.prefixes(observed, target, &groups);
    planner.attachments(observed, target, mc0, device);
    planner.return_routes(observed, target);
    planner.nat(observed, target);
    planner.routes(observed, target);
    let Planner { mut adds, removes } = planner;
    // Collected in the order of adding; what depends on others goes first.
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
    fn device(&mut self, mc0: Device, target: &ResolvedState) {
        let from = (mc0.mtu, mc0.up);
        let to = (target.mtu.unwrap_or(mc0.mtu), true);
        if from != to {
            self.adds.push(Action::SetDevice { from, to });
        }
    }

    fn addresses(&mut self, observed: &ObservedState, target: &ResolvedState) {
        let set = |addr: &IpAddr, to| Action::SetAddress { addr: *addr, to };
        let missing = target.addresses.difference(&observed.addresses);
        self.adds.extend(missing.map(|addr| set(addr, true)));
        let left = observed.addresses.difference(&target.addresses);
        self.removes.extend(left.map(|addr| set(addr, false)));
    }

    fn next_hops(
        &mut self,
        observed: &ObservedState,
        target: &ResolvedState,
        slots: &Slots,
        counters: &CounterSlots,
    ) {
        for (id, next_hop) in &target.next_hops {
            let slot = slots.slot(*id);
            let from = observed.next_hops.get(&slot).copied().unwrap_or_default();
            let to = abi::NextHop {
                stats: counters.slot(&next_hop.addr),
                ..*next_hop
            };
            if slot != 0 && from != to {
                self.adds.push(Action::SetNextHop { slot, from, to });
            }
        }
        for slot in slots.freed() {
            let from = observed.next_hops.get(slot).copied().unwrap_or_default();
            let to = abi::NextHop::default();
            self.removes.push(Action::SetNextHop {
                slot: *slot,
                from,
                to,
            });
        }
    }

    fn groups(&mut self, observed: &ObservedState, target: &ResolvedState, slots: &Slots, next_hops: &Slots) {
        for (id, ids) in &target.groups {
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
                self.adds.push(Action::SetGroup { slot, from, to });
            }
        }
        for slot in slots.freed() {
            let from = observed.groups.get(slot).copied().unwrap_or_default();
            let to = abi::NextHopGroup::default();
            self.removes.push(Action::SetGroup {
                slot: *slot,
                from,
                to,
            });
        }
    }

    fn peers(
        &mut self,
        observed: &ObservedState,
        target: &ResolvedState,
        groups: &Slots,
        counters: &CounterSlots,
    ) {
        for (addr, peer) in &target.peers {
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
                    from,
                    to,
                });
            }
        }
        for (addr, peer) in &observed.peers {
            if !target.peers.contains_key(addr) {
                self.removes.push(Action::SetPeer {
                    addr: *addr,
                    from: Some(*peer),
                    to: None,
                });
            }
        }
    }

    fn services(&mut self, observed: &ObservedState, target: &ResolvedState, groups: &Slots) {
        let Some(wanted) = &target.services else { return };
        let (adds, removes) = service::plan(&observed.services, wanted, groups);
        self.adds.extend(adds.into_iter().map(Action::Service));
        self.removes.extend(removes.into_iter().map(Action::Service));
    }

    fn config(&mut self, observed: &ObservedState, target: &ResolvedState, mc0: Device) {
        let from = observed.config;
        // While Services are not known, what was known of them holds.
        let kept = if target.services.is_none() {
            from.flags & abi::CONFIG_BACKENDS
        } else {
            0
        };
        let to = abi::Config {
            abi: abi::ABI_VERSION,
            flags: target.flags | kept,
            mc0_ifindex: mc0.ifindex,
            port: target.port,
            tos: target.tos,
            hop_limit: target.hop_limit,
            mc0_mac: mc0.mac,
            local: target.local,
            detect: target.detect,
            hold_down_ms: target.hold_down_ms,
            ..abi::Config::default()
        };
        if from != to {
            self.adds.push(Action::SetConfig { from, to });
        }
    }

    fn prefixes(&mut self, observed: &ObservedState, target: &ResolvedState, groups: &Slots) {
        let marked =
            |prefix: &abi::Prefix| target.services.is_none() && prefix.flags & abi::PREFIX_BACKENDS != 0;
        for (key, prefix) in &target.prefixes {
            let from = observed.prefixes.get(key).copied();
            let kept = from.filter(marked).map_or(0, |prefix| prefix.flags);
            let to = Some(abi::Prefix {
                cluster: prefix.cluster,
                group: groups.slot(prefix.group),
                action: prefix.action,
                flags: prefix.flags | kept,
            });
            if from != to {
                self.adds.push(Action::SetPrefix { key: *key, from, to });
            }
        }
        for (key, prefix) in &observed.prefixes {
            if !target.prefixes.contains_key(key) && !marked(prefix) {
                self.removes.push(Action::SetPrefix {
                    key: *key,
                    from: Some(*prefix),
                    to: None,
                });
            }
        }
    }

    fn attachments(&mut self, observed: &ObservedState, target: &ResolvedState, mc0: Device, device: &str) {
        let hook = |program: Program, device: &str| Hook {
            program,
            device: device.to_owned(),
            mode: target.attach_mode,
        };
        let own = std::iter::once((hook(Program::ToRemote, device), mc0.ifindex));
        let underlay = target
            .devices
            .iter()
            .map(|(name, ifindex)| (hook(Program::FromUnderlay, name), *ifindex));
        let wanted: BTreeMap<Hook, u32> = own.chain(underlay).collect();
        let mut renamed: BTreeSet<Hook> = BTreeSet::new();
        for (hook, ifindex) in &wanted {
            let from = observed.attachments.get(hook).copied();
            let done = Attachment {
                ifindex: *ifindex,
                current: true,
            };
            if from != Some(done) {
                // A device that was renamed: the kernel refuses the same program twice on it.
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
        // The same program attached in the other way goes, too, after it is there in this one.
        for (hook, from) in &observed.attachments {
            if !wanted.contains_key(hook) && !renamed.contains(hook) {
                self.removes.push(Action::Detach {
                    hook: hook.clone(),
                    from: *from,
                });
            }
        }
    }

    fn return_routes(&mut self, observed: &ObservedState, target: &ResolvedState) {
        let to = ReturnRoutes::new(&target.masquerade.antrea);
        if observed.return_routes != to {
            self.adds.push(Action::SetReturnRoutes {
                from: observed.return_routes.clone(),
                to,
            });
        }
    }

    fn nat(&mut self, observed: &ObservedState, target: &ResolvedState) {
        let to = Some(target.masquerade.clone());
        if observed.masquerade != to {
            self.adds.push(Action::SetNat {
                from: observed.masquerade.clone(),
                to,
            });
        }
    }

    fn routes(&mut self, observed: &ObservedState, target: &ResolvedState) {
        let wanted = target.host_routes();
        for (key, source) in &wanted {
            let from = observed.routes.get(key).copied();
            let to = Some(*source);
            if from != to {
                self.adds.push(Action::SetRoute { key: *key, from, to });
            }
        }
        let gone = observed
            .routes
            .iter()
            .filter(|(key, _)| !wanted.contains_key(key));
        self.removes.extend(gone.map(|(key, source)| Action::SetRoute {
            key: *key,
            from: Some(*source),
            to: None,
        }));
    }
}
