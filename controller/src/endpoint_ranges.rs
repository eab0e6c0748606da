//! The addresses that a cluster may export as endpoints: those in the ranges that it announces.
//!
//! An endpoint address elsewhere would send the clients of an imported Service to the host behind it, be it a Pod of a
//! third cluster or an API server (the pattern of CVE-2021-25740).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use mc_api::{
    cluster_info::ClusterInfo,
    validation::{self, ValidationError},
};

use crate::member::ip_families::{IpFamily, families_of};

/// The reason to leave out an endpoint address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not an address, or one that is not unicast between clusters.
    #[error(transparent)]
    Address(#[from] ValidationError),
    /// Outside the ranges of the exporting cluster, which announces Pod CIDRs of this IP family.
    #[error("{ip} is outside the Service and Pod CIDRs that cluster {cluster:?} announces")]
    Outside {
        /// The address.
        ip: IpAddr,
        /// The exporting cluster.
        cluster: String,
    },
    /// In a range of another cluster.
    #[error("{ip} is in {range} of cluster {owner:?}")]
    OtherCluster {
        /// The address.
        ip: IpAddr,
        /// The range.
        range: IpNet,
        /// The other cluster.
        owner: String,
    },
    /// Outside the ranges that the importing cluster accepts.
    #[error("{ip} is outside acceptedCIDRs of this cluster's configuration")]
    NotAccepted {
        /// The address.
        ip: IpAddr,
    },
    /// In a range of the importing cluster.
    #[error("{ip} is in {range}, a range of this cluster")]
    Local {
        /// The address.
        ip: IpAddr,
        /// The range.
        range: IpNet,
    },
}

/// The ranges that the clusters announce, and those that no other cluster may export.
#[derive(Clone, Debug, Default)]
pub struct EndpointRanges {
    clusters: BTreeMap<String, ClusterRanges>,
    recorded: Vec<(String, IpNet)>,
    local: Vec<IpNet>,
    additional: Vec<IpNet>,
    accepted: Vec<IpNet>,
}

/// The ranges of one cluster.
#[derive(Clone, Debug, Default)]
struct ClusterRanges {
    /// Service and Pod CIDRs.
    announced: Vec<IpNet>,
    /// The addresses of its gateways.
    gateways: Vec<IpNet>,
    /// The IP families of its Pod CIDRs.
    pod_families: BTreeSet<IpFamily>,
}

// === impl EndpointRanges ===

impl EndpointRanges {
    /// The ranges that the clusters announce. Invalid ones are ignored; of two announcements of a cluster the first
    /// counts.
    #[must_use]
    pub fn new<'a>(announced: impl IntoIterator<Item = &'a ClusterInfo>) -> Self {
        let mut ranges = Self::default();
        for info in announced {
            ranges
                .clusters
                .entry(info.cluster_id.clone())
                .or_insert_with(|| ClusterRanges::new(info));
        }
        ranges
    }

    /// With the ranges of the importing cluster, of which no other cluster exports endpoints.
    #[must_use]
    pub fn with_local(mut self, local: Vec<IpNet>) -> Self {
        self.local = local;
        self
    }

    /// With ranges that belong to a cluster although it may not announce them now.
    #[must_use]
    pub fn with_recorded(mut self, recorded: Vec<(String, IpNet)>) -> Self {
        self.recorded = recorded;
        self
    }

    /// With ranges of endpoints that no cluster has to announce.
    #[must_use]
    pub fn with_additional(mut self, additional: Vec<IpNet>) -> Self {
        self.additional = additional;
        self
    }

    /// With the ranges that the importing cluster accepts; empty: all.
    #[must_use]
    pub fn with_accepted(mut self, accepted: Vec<IpNet>) -> Self {
        self.accepted = accepted;
        self
    }

    /// Checks the address of an endpoint that `cluster` exports; an empty ID where the leader does not report it.
    ///
    /// A cluster that announces Pod CIDRs of the address's IP family exports addresses in its ranges only. Another one,
    /// such as an Antrea cluster without `podCIDRs`, exports any address that is in no range of the importing or of a
    /// third cluster.
    ///
    /// # Errors
    /// The reason to leave the address out.
    pub fn check(&self, cluster: &str, ip: &str) -> Result<(), RangeError> {
        let ip = validation::gateway_ip(ip)?;
        if let Some(range) = containing(&self.local, ip) {
            return Err(RangeError::Local { ip, range });
        }
        if containing(&self.additional, ip).is_some() {
            return Ok(());
        }
        if !self.accepted.is_empty() && containing(&self.accepted, ip).is_none() {
            return Err(RangeError::NotAccepted { ip });
        }
        let exporter = self.clusters.get(cluster);
        if exporter.is_some_and(|exporter| containing(&exporter.announced, ip).is_some()) {
            return Ok(());
        }
        if exporter.is_some_and(|exporter| exporter.pod_families.contains(&IpFamily::from_addr(ip))) {
            let cluster = cluster.to_owned();
            return Err(RangeError::Outside { ip, cluster });
        }
        if cluster.is_empty() {
            return Ok(());
        }
        for (owner, other) in self.clusters.iter().filter(|(owner, _)| *owner != cluster) {
            let range = containing(&other.announced, ip).or_else(|| containing(&other.gateways, ip));
            if let Some(range) = range {
                let owner = owner.clone();
                return Err(RangeError::OtherCluster { ip, range, owner });
            }
        }
        let mut recorded = self.recorded.iter();
        match recorded.find(|(owner, range)| owner != cluster && range.contains(&ip)) {
            Some((owner, range)) => Err(RangeError::OtherCluster {
                ip,
                range: *range,
                owner: owner.clone(),
            }),
            None => Ok(()),
        }
    }
}

// === impl ClusterRanges ===

impl ClusterRanges {
    fn new(info: &ClusterInfo) -> Self {
        let pods = info
            .pod_cidrs
            .iter()
            .filter_map(|cidr| validation::cidr(cidr).ok());
        let pods: Vec<_> = pods.collect();
        let gateways = info.gateway_infos.iter();
        let gateways = gateways.filter_map(|gateway| validation::gateway_ip(&gateway.gateway_ip).ok());
        Self {
            announced: info.prefixes(),
            gateways: gateways.map(IpNet::from).collect(),
            pod_families: families_of(&pods),
        }
    }
}

fn containing(ranges: &[IpNet], ip: IpAddr) -> Option<IpNet> {
    ranges.iter().copied().find(|range| range.contains(&ip))
}

#[cfg(test)]
mod tests {
    use mc_api::cluster_info::GatewayInfo;

    use super::*;

    fn cluster(id: &str, service: &str, pods: &[&str], gateway: &str) -> ClusterInfo {
        ClusterInfo {
            cluster_id: id.to_owned(),
            service_cidr: service.to_owned(),
            pod_cidrs: pods.iter().map(|&cidr| cidr.to_owned()).collect(),
            gateway_infos: vec![GatewayInfo {
                gateway_ip: gateway.to_owned(),
                ..GatewayInfo::default()
            }],
            ..ClusterInfo::default()
        }
    }

    fn ranges() -> EndpointRanges {
        EndpointRanges::new(&[
            cluster("ours", "10.1.0.0/16", &["10.2.0.0/16"], "192.0.2.1"),
            cluster("antrea", "10.3.0.0/16", &[], "192.0.2.2"),
        ])
        .with_local(vec![
            "10.5.0.0/16".parse().unwrap(),
            "192.0.2.200/32".parse().unwrap(),
        ])
    }

    #[test]
    fn endpoints_are_in_the_ranges_of_their_cluster() {
        let ranges = ranges();
        let refused = |cluster: &str, ip: &str| ranges.check(cluster, ip).unwrap_err().to_string();
        for ip in ["10.1.0.9", "10.2.3.4"] {
            assert_eq!(ranges.check("ours", ip), Ok(()), "{ip}");
        }
        for ip in ["10.3.0.1", "192.0.2.1", "192.0.2.2", "198.51.100.7"] {
            let why = format!("{ip} is outside the Service and Pod CIDRs that cluster \"ours\" announces");
            assert_eq!(refused("ours", ip), why);
        }
        let local = "10.5.0.1 is in 10.5.0.0/16, a range of this cluster";
        for cluster in ["ours", "antrea", "unknown", ""] {
            assert_eq!(refused(cluster, "10.5.0.1"), local, "{cluster}");
            for ip in [
                "192.0.2.200",
                "127.0.0.1",
                "169.254.169.254",
                "::ffff:10.2.0.1",
                "fe80::1",
                "ten",
            ] {
                refused(cluster, ip);
            }
        }
    }

    #[test]
    fn a_cluster_without_pod_cidrs_has_no_addresses_of_others() {
        let ranges = ranges();
        for cluster in ["antrea", "unknown"] {
            assert_eq!(ranges.check(cluster, "198.51.100.7"), Ok(()), "{cluster}");
            assert_eq!(
                ranges.check(cluster, "10.2.3.4").unwrap_err().to_string(),
                "10.2.3.4 is in 10.2.0.0/16 of cluster \"ours\""
            );
            assert!(ranges.check(cluster, "192.0.2.1").is_err(), "{cluster}");
        }
        // Its own gateway may be a server.
        assert_eq!(ranges.check("antrea", "192.0.2.2"), Ok(()));
        // An IP family without Pod CIDRs has the same rule.
        assert_eq!(ranges.check("ours", "2001:db8::1"), Ok(()));
        // A leader of Antrea does not report the exporting cluster.
        assert_eq!(ranges.check("", "10.2.3.4"), Ok(()));
    }

    #[test]
    fn additional_ranges_are_those_of_any_cluster_except_local_ones() {
        let ranges = ranges().with_additional(vec!["192.0.2.0/24".parse().unwrap()]);
        assert_eq!(ranges.check("ours", "192.0.2.77"), Ok(()));
        assert!(ranges.check("ours", "192.0.2.200").is_err());
    }
}
