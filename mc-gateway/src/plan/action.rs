//! The actions of a plan.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use mc_gateway_common::abi::{self, Addr};

use super::{Attachment, Hook, InstalledGuard, ServiceAction};
use crate::policy_tables::PolicyTables;
use crate::resolved::{NftRules, PodGuard, PrefixKey, ReturnRoutes, RouteKey};

/// One change. It contains the previous value, so that it can be undone. Large values are boxed: a plan may have an
/// action for each of 100,000 prefixes.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Creates `mc0`.
    CreateDevice {
        /// Its MTU.
        mtu: u32,
    },
    /// Removes `mc0`; only as an undo.
    DeleteDevice,
    /// Changes MTU and state of `mc0`.
    SetDevice {
        /// Previous MTU and state.
        from: (u32, bool),
        /// New MTU and state.
        to: (u32, bool),
    },
    /// Adds an address to `mc0` or removes it.
    SetAddress {
        /// The address.
        addr: IpAddr,
        /// Whether the address is added; else it is removed.
        to: bool,
    },
    /// Writes a slot of `mc_nexthops`; all zero frees it.
    SetNextHop {
        /// The slot.
        slot: u32,
        /// Previous value.
        from: Box<abi::NextHop>,
        /// New value.
        to: Box<abi::NextHop>,
    },
    /// Writes a slot of `mc_nh_groups`; all zero frees it.
    SetGroup {
        /// The slot.
        slot: u32,
        /// Previous value.
        from: Box<abi::NextHopGroup>,
        /// New value.
        to: Box<abi::NextHopGroup>,
    },
    /// Adds, changes or removes a peer.
    SetPeer {
        /// Outer source.
        addr: Addr,
        /// Previous value.
        from: Option<Box<abi::Peer>>,
        /// New value.
        to: Option<Box<abi::Peer>>,
    },
    /// Writes `mc_config`.
    SetConfig {
        /// Previous value.
        from: Box<abi::Config>,
        /// New value.
        to: Box<abi::Config>,
    },
    /// Changes a Service map.
    Service(Box<ServiceAction>),
    /// Replaces the tables of policies, for all packets at one moment.
    SetPolicies {
        /// Previous tables.
        from: Arc<PolicyTables>,
        /// New tables.
        to: Arc<PolicyTables>,
    },
    /// Adds, changes or removes a prefix.
    SetPrefix {
        /// The prefix.
        key: PrefixKey,
        /// Previous value.
        from: Option<abi::Prefix>,
        /// New value.
        to: Option<abi::Prefix>,
    },
    /// Attaches a program to a device, or swaps the program of the link that is there.
    Attach {
        /// Program and device.
        hook: Hook,
        /// Index of the device.
        ifindex: u32,
        /// Previous attachment of this hook.
        from: Option<Attachment>,
    },
    /// Removes a program from a device.
    Detach {
        /// Program and device.
        hook: Hook,
        /// Current attachment.
        from: Attachment,
    },
    /// Replaces the nftables table in one transaction; none removes it (only as an undo).
    SetNftables {
        /// Previous value.
        from: Option<Box<NftRules>>,
        /// New value.
        to: Option<Box<NftRules>>,
    },
    /// Replaces the nftables tables of the Pod guard in one transaction; none removes them.
    SetPodGuard {
        /// Previous value.
        from: Box<InstalledGuard>,
        /// New value.
        to: Option<Box<PodGuard>>,
    },
    /// Changes the policy routing of replies from clusters with Antrea gateways.
    SetReturnRoutes {
        /// Previous value.
        from: Box<ReturnRoutes>,
        /// New value.
        to: Box<ReturnRoutes>,
    },
    /// Adds, changes or removes a route into `mc0`.
    SetRoute {
        /// The route.
        key: RouteKey,
        /// Previous source address, if the route existed.
        from: Option<Option<IpAddr>>,
        /// New source address; none removes the route.
        to: Option<Option<IpAddr>>,
    },
}

impl Action {
    /// Whether only the link addresses of a next hop change, as they do with the kernel's neighbor table.
    #[must_use]
    pub fn is_link_change(&self) -> bool {
        matches!(self, Self::SetNextHop { from, to, .. } if from.without_link() == to.without_link())
    }

    /// The inverse action; none if the previous state is lost.
    #[must_use]
    pub fn undo(&self) -> Option<Self> {
        Some(match self.clone() {
            Self::CreateDevice { .. } => Self::DeleteDevice,
            Self::SetDevice { from, to } => Self::SetDevice { from: to, to: from },
            Self::SetAddress { addr, to } => Self::SetAddress { addr, to: !to },
            Self::SetNextHop { slot, from, to } => Self::SetNextHop {
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
            Self::Service(action) => Self::Service(Box::new(action.undo())),
            Self::SetPolicies { from, to } => Self::SetPolicies { from: to, to: from },
            Self::SetPrefix { key, from, to } => Self::SetPrefix {
                key,
                from: to,
                to: from,
            },
            // A replaced program cannot be restored, nor can a removed device.
            Self::DeleteDevice | Self::Attach { from: Some(_), .. } => return None,
            Self::Attach {
                hook,
                ifindex,
                from: None,
            } => Self::Detach {
                hook,
                from: Attachment {
                    ifindex,
                    current: true,
                },
            },
            Self::Detach { from, .. } if from.ifindex == 0 => return None,
            Self::Detach { hook, from } => Self::Attach {
                hook,
                ifindex: from.ifindex,
                from: None,
            },
            Self::SetNftables { from, to } => Self::SetNftables { from: to, to: from },
            Self::SetPodGuard { from, to } => Self::SetPodGuard {
                to: match *from {
                    InstalledGuard::Absent => None,
                    InstalledGuard::Known(guard) => Some(Box::new(guard)),
                    InstalledGuard::Unknown => return None,
                },
                from: Box::new(InstalledGuard::of(to.as_deref())),
            },
            Self::SetReturnRoutes { from, to } => Self::SetReturnRoutes { from: to, to: from },
            Self::SetRoute { key, from, to } => Self::SetRoute {
                key,
                from: to,
                to: from,
            },
        })
    }
}

/// The text is logged and has no secrets.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDevice { mtu } => write!(f, "create mc0 with MTU {mtu}"),
            Self::DeleteDevice => write!(f, "delete mc0"),
            Self::SetDevice { to: (mtu, up), .. } => write!(f, "set mc0 to MTU {mtu}, up: {up}"),
            Self::SetAddress { addr, to: true } => write!(f, "add address {addr} to mc0"),
            Self::SetAddress { addr, to: false } => write!(f, "remove address {addr} from mc0"),
            Self::SetNextHop { slot, to, .. } => {
                let public = abi::NextHop {
                    source_mac: 0,
                    ..**to
                };
                write!(f, "set next hop {slot} to {public:?}")
            }
            Self::SetGroup { slot, to, .. } => {
                write!(f, "set group {slot} to id {} with {} next hops", to.id, to.len)
            }
            Self::SetPeer { addr, to, .. } => {
                let public = to.as_deref().map(|peer| abi::Peer {
                    source_macs: [0; abi::SECRET_SLOTS],
                    reply_mac: 0,
                    ..*peer
                });
                write!(f, "set peer {} to {public:?}", ShowAddr(*addr))
            }
            Self::SetConfig { to, .. } => {
                let public = abi::Config {
                    cluster_id_key: [0; 16],
                    tunnel_mac: [0; 6],
                    ..**to
                };
                write!(f, "set config to {public:?}")
            }
            Self::Service(action) => action.fmt(f),
            Self::SetPolicies { to, .. } => write!(
                f,
                "set policies: {} Pod addresses, {} identities, {} address blocks, {} rules",
                to.pods.len(),
                to.identities.len(),
                to.address_classes.len(),
                to.rules.len()
            ),
            Self::SetPrefix { key, to, .. } => {
                write!(f, "set prefix {}/{} to {to:?}", ShowAddr(key.addr), key.len)
            }
            Self::Attach { hook, .. } => write!(f, "attach {} to {}", hook.program.name(), hook.device),
            Self::Detach { hook, .. } => write!(f, "detach {} from {}", hook.program.name(), hook.device),
            Self::SetNftables { to: Some(_), .. } => write!(f, "write nftables table"),
            Self::SetNftables { to: None, .. } => write!(f, "remove nftables table"),
            Self::SetPodGuard { to: Some(guard), .. } => {
                let pods = guard.pods.len().saturating_add(guard.without_device.len());
                write!(f, "set Pod guard with {pods} addresses of Pods")
            }
            Self::SetPodGuard { to: None, .. } => write!(f, "remove Pod guard"),
            Self::SetReturnRoutes { to, .. } => {
                write!(
                    f,
                    "set return routes for {} prefixes of Antrea gateways",
                    to.prefixes.len()
                )
            }
            Self::SetRoute { key, to: None, .. } => write!(f, "delete route {}", key.net),
            Self::SetRoute {
                key, to: Some(None), ..
            } => write!(f, "add route {}", key.net),
            Self::SetRoute {
                key,
                to: Some(Some(source)),
                ..
            } => write!(f, "add route {} from {source}", key.net),
        }
    }
}

struct ShowAddr(Addr);

impl fmt::Display for ShowAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}
