//! What to do so that what is there becomes what is desired. Pure.
//!
//! *Guarantees*: whatever a table entry points to exists before the entry and goes after it, so that a
//! packet meets the old state or the new one at every moment; a slot freed by a plan is not given away
//! by the same plan; planning against the result of a plan gives an empty plan.

mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::Ipv4Net;
use mc_gateway_common::abi::{self, Addr, MAX_GROUPS, MAX_MEMBERS, MAX_PEERS, MAX_PREFIXES};
use thiserror::Error;

use crate::desired::Masquerade;
use crate::target::{DEFAULT_MTU, PrefixKey, Target};
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

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Device the link is on; 0 when the device is gone.
    pub ifindex: u32,
    /// Whether it runs the program this agent loaded, not one of an agent before it.
    pub current: bool,
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// `mc0`.
    pub device: Option<Device>,
    /// `mc_config`.
    pub config: abi::Config,
    /// `mc_prefixes`.
    pub prefixes: BTreeMap<PrefixKey, abi::Prefix>,
    /// Used slots of `mc_groups`.
    pub groups: BTreeMap<u32, abi::Group>,
    /// Used slots of `mc_members`.
    pub members: BTreeMap<u32, abi::Member>,
    /// `mc_peers`.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// Our routes into `mc0`.
    pub routes: BTreeSet<Ipv4Net>,
    /// What our nftables table does; none where it is missing or not as we write it.
    pub masquerade: Option<Masquerade>,
    /// Pinned links by program and device name.
    pub attachments: BTreeMap<(Program, String), Attachment>,
}

/// One change. Values carry what was there before, so that each action knows its own undo.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Makes `mc0`.
    CreateDevice {
        /// Its MTU.
        mtu: u32,
    },
    /// Removes `mc0`; only ever an undo.
    DeleteDevice,
    /// Changes MTU and state of `mc0`.
    SetDevice {
        /// MTU and up before.
        from: (u32, bool),
        /// MTU and up after.
        to: (u32, bool),
    },
    /// Writes a slot of `mc_members`; all zero frees it.
    SetMember {
        /// The slot.
        slot: u32,
        /// Before.
        from: abi::Member,
        /// After.
        to: abi::Member,
    },
    /// Writes a slot of `mc_groups`; all zero frees it.
    SetGroup {
        /// The slot.
        slot: u32,
        /// Before.
        from: abi::Group,
        /// After.
        to: abi::Group,
    },
    /// Adds, changes or removes a peer.
    SetPeer {
        /// Outer source.
        addr: Addr,
        /// Before.
        from: Option<abi::Peer>,
        /// After.
        to: Option<abi::Peer>,
    },
    /// Writes `mc_config`.
    SetConfig {
        /// Before.
        from: abi::Config,
        /// After.
        to: abi::Config,
    },
    /// Adds, changes or removes a prefix.
    SetPrefix {
        /// The prefix.
        key: PrefixKey,
        /// Before.
        from: Option<abi::Prefix>,
        /// After.
        to: Option<abi::Prefix>,
    },
    /// Attaches a program to a device, or swaps the program of the link that is there.
    Attach {
        /// What.
        program: Program,
        /// Where.
        device: String,
        /// Index of the device.
        ifindex: u32,
        /// What was there under this name.
        from: Option<Attachment>,
    },
    /// Removes a program from a device.
    Detach {
        /// What.
        program: Program,
        /// From where.
        device: String,
        /// What is there.
        from: Attachment,
    },
    /// Replaces our nftables table in one transaction; none removes it (only ever an undo).
    SetNat {
        /// Before.
        from: Option<Masquerade>,
        /// After.
        to: Option<Masquerade>,
    },
    /// Routes a prefix into `mc0`.
    AddRoute(Ipv4Net),
    /// No longer routes a prefix into `mc0`.
    DeleteRoute(Ipv4Net),
}

impl Action {
    /// What takes this action back; none where the kernel forgets what was there before.
    #[must_use]
    pub fn undo(&self) -> Option<Self> {
        Some(match self.clone() {
            Self::CreateDevice { .. } => Self::DeleteDevice,
            Self::SetDevice { from, to } => Self::SetDevice { from: to, to: from },
            Self::SetMember { slot, from, to } => Self::SetMember {
                slot,
                from: to,
                to: from,
            },
            Self::SetGroup { slot, from, to } => Self::SetGroup {
                slot,
                from: to,
                to: from,
            },
            Self::SetPeer { addr, from, to } => Self::SetPeer {
                addr,
                from: to,
                to: from,
            },
            Self::SetConfig { from, to } => Self::SetConfig { from: to, to: from },
            Self::SetPrefix { key, from, to } => Self::SetPrefix {
                key,
                from: to,
                to: from,
            },
            // A program that was swapped out cannot come back, and a vanished device neither.
            Self::DeleteDevice | Self::Attach { from: Some(_), .. } => return None,
            Self::Attach {
                program,
                device,
                ifindex,
                from: None,
            } => Self::Detach {
                program,
                device,
                from: Attachment {
                    ifindex,
                    current: true,
                },
            },
            Self::Detach { from, .. } if from.ifindex == 0 => return None,
            Self::Detach {
                program,
                device,
                from,
            } => Self::Attach {
                program,
                device,
                ifindex: from.ifindex,
                from: None,
            },
            Self::SetNat { from, to } => Self::SetNat { from: to, to: from },
            Self::AddRoute(net) => Self::DeleteRoute(net),
            Self::DeleteRoute(net) => Self::AddRoute(net),
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDevice { mtu } => write!(f, "create mc0 with MTU {mtu}"),
            Self::DeleteDevice => write!(f, "delete mc0"),
            Self::SetDevice { to: (mtu, up), .. } => write!(f, "set mc0 to MTU {mtu}, up: {up}"),
            Self::SetMember { slot, to, .. } => write!(f, "set member {slot} to {to:?}"),
            Self::SetGroup { slot, to, .. } => {
                write!(f, "set group {slot} to id {} with {} members", to.id, to.n)
            }
            Self::SetPeer { addr, to, .. } => write!(f, "set peer {} to {to:?}", ShowAddr(*addr)),
            Self::SetConfig { to, .. } => write!(f, "set config to {to:?}"),
            Self::SetPrefix { key, to, .. } => {
                write!(f, "set prefix {}/{} to {to:?}", ShowAddr(key.addr), key.len)
            }
            Self::Attach { program, device, .. } => write!(f, "attach {} to {device}", program.name()),
            Self::Detach { program, device, .. } => write!(f, "detach {} from {device}", program.name()),
            Self::SetNat { to: Some(_), .. } => write!(f, "write nftables table"),
            Self::SetNat { to: None, .. } => write!(f, "remove nftables table"),
            Self::AddRoute(net) => write!(f, "add route {net}"),
            Self::DeleteRoute(net) => write!(f, "delete route {net}"),
        }
    }
}

struct ShowAddr(Addr);

impl fmt::Display for ShowAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

/// Ordered changes.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be carried out from the first to the last.
    pub actions: Vec<Action>,
    /// Whether the next plan depends on what this one makes (the index and MAC address of a new `mc0`).
    pub again: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A map cannot hold what is desired.
    #[error("map {map} is full: {needed} entries are needed, {capacity} fit")]
    Full {
        /// Name of the map.
        map: &'static str,
        /// Entries needed, counting those that are only freed.
        needed: usize,
        /// Entries that fit.
        capacity: usize,
    },
}

/// The changes from `observed` to `target`; `device` is the name of `mc0`.
pub fn plan(observed: &Observed, target: &Target, device: &str) -> Result<Plan, PlanError> {
    let Some(mc0) = observed.device else {
        return Ok(Plan {
            actions: vec![Action::CreateDevice {
                mtu: target.mtu.unwrap_or(DEFAULT_MTU),
            }],
            again: true,
        });
    };
    fits(abi::PREFIXES, target.prefixes.len(), MAX_PREFIXES)?;
    fits(abi::PEERS, target.peers.len(), MAX_PEERS)?;
    let members = Slots::assign(
        abi::MEMBERS,
        MAX_MEMBERS,
        observed.members.iter().map(|(slot, member)| (*slot, member.id)),
        target.members.keys().copied(),
    )?;
    let groups = Slots::assign(
        abi::GROUPS,
        MAX_GROUPS,
        observed.groups.iter().map(|(slot, group)| (*slot, group.id)),
        target.groups.keys().copied(),
    )?;
    let mut planner = Planner {
        adds: Vec::new(),
        removes: Vec::new(),
    };
    planner.device(mc0, target);
    planner.members(observed, target, &members);
    planner.groups(observed, target, &groups, &members);
    planner.peers(observed, target, &groups);
    planner.config(observed, target, mc0);
    planner.prefixes(observed, target, &groups);
    planner.attachments(observed, target, mc0, device);
    planner.nat(observed, target);
    planner.routes(observed, target);
    let Planner { mut adds, removes } = planner;
    // Collected in the order of adding; what depends on others goes first.
    adds.extend(removes.into_iter().rev());
    Ok(Plan {
        actions: adds,
        again: false,
    })
}

fn fits(map: &'static str, needed: usize, capacity: u32) -> Result<(), PlanError> {
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
    fn device(&mut self, mc0: Device, target: &Target) {
        let from = (mc0.mtu, mc0.up);
        let to = (target.mtu.unwrap_or(mc0.mtu), true);
        if from != to {
            self.adds.push(Action::SetDevice { from, to });
        }
    }

    fn members(&mut self, observed: &Observed, target: &Target, slots: &Slots) {
        for (id, member) in &target.members {
            let slot = slots.of(*id);
            let from = observed.members.get(&slot).copied().unwrap_or_default();
            if from != *member {
                self.adds.push(Action::SetMember {
                    slot,
                    from,
                    to: *member,
                });
            }
        }
        for slot in slots.freed() {
            let from = observed.members.get(slot).copied().unwrap_or_default();
            let to = abi::Member::default();
            self.removes.push(Action::SetMember {
                slot: *slot,
                from,
                to,
            });
        }
    }

    fn groups(&mut self, observed: &Observed, target: &Target, slots: &Slots, members: &Slots) {
        for (id, ids) in &target.groups {
            let slot = slots.of(*id);
            let from = observed.groups.get(&slot).copied().unwrap_or_default();
            let mut to = abi::Group {
                id: *id,
                ..abi::Group::default()
            };
            for (entry, member) in to.members.iter_mut().zip(ids) {
                *entry = members.of(*member);
                to.n = to.n.wrapping_add(1);
            }
            if from != to {
                self.adds.push(Action::SetGroup { slot, from, to });
            }
        }
        for slot in slots.freed() {
            let from = observed.groups.get(slot).copied().unwrap_or_default();
            let to = abi::Group::default();
            self.removes.push(Action::SetGroup {
                slot: *slot,
                from,
                to,
            });
        }
    }

    fn peers(&mut self, observed: &Observed, target: &Target, groups: &Slots) {
        for (addr, peer) in &target.peers {
            let from = observed.peers.get(addr).copied();
            let to = Some(abi::Peer {
                group: groups.of(peer.group),
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

    fn config(&mut self, observed: &Observed, target: &Target, mc0: Device) {
        let from = observed.config;
        let to = abi::Config {
            abi: abi::ABI_VERSION,
            flags: target.flags,
            mc0_ifindex: mc0.ifindex,
            port: target.port,
            mc0_mac: mc0.mac,
            local: target.local,
        };
        if from != to {
            self.adds.push(Action::SetConfig { from, to });
        }
    }

    fn prefixes(&mut self, observed: &Observed, target: &Target, groups: &Slots) {
        for (key, prefix) in &target.prefixes {
            let from = observed.prefixes.get(key).copied();
            let to = Some(abi::Prefix {
                cluster: prefix.cluster,
                group: groups.of(prefix.group),
                action: prefix.action,
                pad: 0,
            });
            if from != to {
                self.adds.push(Action::SetPrefix { key: *key, from, to });
            }
        }
        for (key, prefix) in &observed.prefixes {
            if !target.prefixes.contains_key(key) {
                self.removes.push(Action::SetPrefix {
                    key: *key,
                    from: Some(*prefix),
                    to: None,
                });
            }
        }
    }

    fn attachments(&mut self, observed: &Observed, target: &Target, mc0: Device, device: &str) {
        let own = std::iter::once(((Program::ToRemote, device.to_owned()), mc0.ifindex));
        let underlay = target
            .devices
            .iter()
            .map(|(name, ifindex)| ((Program::FromUnderlay, name.clone()), *ifindex));
        let wanted: BTreeMap<(Program, String), u32> = own.chain(underlay).collect();
        for ((program, name), ifindex) in &wanted {
            let from = observed.attachments.get(&(*program, name.clone())).copied();
            let done = Attachment {
                ifindex: *ifindex,
                current: true,
            };
            if from != Some(done) {
                self.adds.push(Action::Attach {
                    program: *program,
                    device: name.clone(),
                    ifindex: *ifindex,
                    from,
                });
            }
        }
        for ((program, name), from) in &observed.attachments {
            if !wanted.contains_key(&(*program, name.clone())) {
                self.removes.push(Action::Detach {
                    program: *program,
                    device: name.clone(),
                    from: *from,
                });
            }
        }
    }

    fn nat(&mut self, observed: &Observed, target: &Target) {
        let to = Some(target.masquerade.clone());
        if observed.masquerade != to {
            self.adds.push(Action::SetNat {
                from: observed.masquerade.clone(),
                to,
            });
        }
    }

    fn routes(&mut self, observed: &Observed, target: &Target) {
        let add = target.routes.difference(&observed.routes);
        self.adds.extend(add.map(|net| Action::AddRoute(*net)));
        let delete = observed.routes.difference(&target.routes);
        self.removes.extend(delete.map(|net| Action::DeleteRoute(*net)));
    }
}
