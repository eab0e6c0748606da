//! The IP families other clusters can reach this one in.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::cluster_info;
use crate::world::MemberWorld;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// As Services and `EndpointSlice`s write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// The IP families of what this cluster announces; from all Nodes, so worked out once for all exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Of its Services.
    pub services: BTreeSet<Family>,
    /// Of its Pods. IPv4 always: networks that route Pods' addresses need no announcement.
    pub pods: BTreeSet<Family>,
}

impl Reach {
    /// What `world` says.
    #[must_use]
    pub fn of(world: &MemberWorld) -> Self {
        let mut pods = of(&cluster_info::pod_cidrs(world));
        pods.insert(Family::V4);
        Self {
            services: of(&world.service_cidrs),
            pods,
        }
    }
}

fn of(nets: &[IpNet]) -> BTreeSet<Family> {
    nets.iter().map(|net| Family::of(net.addr())).collect()
}
