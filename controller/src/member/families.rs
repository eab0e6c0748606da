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

/// Those in which this cluster announces its Services.
#[must_use]
pub fn of_services(world: &MemberWorld) -> BTreeSet<Family> {
    of(&world.service_cidrs)
}

/// Those in which this cluster announces its Pods. IPv4 always: networks that route Pods' addresses need no announcement.
#[must_use]
pub fn of_pods(world: &MemberWorld) -> BTreeSet<Family> {
    let mut families = of(&cluster_info::pod_cidrs(world));
    families.insert(Family::V4);
    families
}

fn of(nets: &[IpNet]) -> BTreeSet<Family> {
    nets.iter().map(|net| Family::of(net.addr())).collect()
}
