//! The IP families in which this cluster is reachable from others.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::pod_cidrs::pod_cidrs;
use crate::snapshot::MemberSnapshot;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of an address.
    #[must_use]
    pub const fn from_addr(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The name in Services and `EndpointSlice`s.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// The IP families of this cluster's announced networks; derived from all Nodes, so computed once for all exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachableFamilies {
    /// The families of its Services.
    pub services: BTreeSet<IpFamily>,
    /// The families of its Pods. Always IPv4: networks that route Pod addresses need no announcement.
    pub pods: BTreeSet<IpFamily>,
}

impl ReachableFamilies {
    /// The families of a snapshot.
    #[must_use]
    pub fn from_snapshot(snapshot: &MemberSnapshot) -> Self {
        let mut pods = families_of(&pod_cidrs(snapshot));
        pods.insert(IpFamily::V4);
        Self {
            services: families_of(&snapshot.service_cidrs),
            pods,
        }
    }
}

/// The IP families of these networks.
pub(crate) fn families_of(nets: &[IpNet]) -> BTreeSet<IpFamily> {
    nets.iter().map(|net| IpFamily::from_addr(net.addr())).collect()
}
