//! Endpoints outside the ranges of their cluster: their creation, and those that clusters may export.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use mc_api::names;
use serde_json::Value;

use crate::{
    invariants::{antrea, core, list, text},
    simulation::{Cluster, LEADER_NAMESPACE, Simulation},
    strangers::is_strangers,
};

/// The ranges of one cluster.
#[derive(Default)]
struct Network {
    services: Vec<IpNet>,
    pods: Vec<IpNet>,
    gateways: Vec<IpAddr>,
    /// The prefixes in the leader's record.
    recorded: Vec<IpNet>,
}

/// The networks of clusters as the leader has them.
pub(crate) struct Networks(BTreeMap<String, Network>);

impl Simulation {
    /// The address of a host that may be a Pod, a Service or a Node of another cluster, or none of them.
    pub(crate) fn foreign_address(&mut self, server: usize) -> String {
        let others: Vec<_> = (1..5).filter(|other| *other != server).collect();
        let cluster = *self.rng.pick(&others);
        let host = self.rng.range(1, 9);
        match self.rng.below(4) {
            0 => format!("10.{}.1.{host}", cluster.saturating_add(10)),
            1 => format!("10.{}.0.{host}", cluster.saturating_add(100)),
            2 => format!("172.16.{cluster}.{host}"),
            _ => format!("203.0.113.{host}"),
        }
    }
}

fn cidrs<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<IpNet> {
    let values = values.into_iter();
    values.filter_map(|value| text(value).parse().ok()).collect()
}

fn contain(ranges: &[IpNet], ip: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(&ip))
}

// === impl Networks ===

impl Networks {
    /// Those in the leader's store.
    pub(crate) fn of_leader(leader: &Cluster) -> Self {
        let exports = leader.store.all(&antrea("resourceexports"));
        let specs = exports
            .filter(|(key, export)| !export.is_terminating() && !is_strangers(key))
            .map(|(_, export)| &export.value["spec"]);
        let networks = specs.filter(|spec| spec["kind"] == "ClusterInfo").map(|spec| {
            let info = &spec["clusterInfo"];
            let gateways = list(&info["gatewayInfos"]).map(|gateway| text(&gateway["gatewayIP"]));
            let network = Network {
                services: cidrs([&info["serviceCIDR"]]),
                pods: cidrs(list(&info["podCIDRs"])),
                gateways: gateways.filter_map(|ip| ip.parse().ok()).collect(),
                recorded: vec![],
            };
            (text(&spec["clusterID"]), network)
        });
        let mut networks: BTreeMap<String, Network> = networks.collect();
        let key = (LEADER_NAMESPACE.to_owned(), names::PREFIX_OWNERS.to_owned());
        let record = leader.store.get(&core("configmaps"), &key);
        for (id, lines) in record
            .iter()
            .filter_map(|record| record.value["data"].as_object())
            .flatten()
        {
            let lines = text(lines);
            let prefixes = lines
                .lines()
                .filter_map(|line| line.split(' ').next()?.parse().ok());
            networks.entry(id.clone()).or_default().recorded = prefixes.collect();
        }
        Self(networks)
    }

    /// The addresses that the leader distributes for a cluster.
    pub(crate) fn accepted(&self, cluster: &str, ips: &[String]) -> Vec<String> {
        let accepted = |ip: &&String| ip.parse().is_ok_and(|ip| self.may_export(cluster, ip));
        ips.iter().filter(accepted).cloned().collect()
    }

    fn may_export(&self, cluster: &str, ip: IpAddr) -> bool {
        let others = || self.0.iter().filter(|(id, _)| *id != cluster);
        // A cluster that changes its ID gets its ranges when its former membership has ended.
        if others().any(|(_, other)| contain(&other.recorded, ip)) {
            return false;
        }
        if let Some(own) = self.0.get(cluster) {
            if contain(&own.services, ip) || contain(&own.pods, ip) {
                return true;
            }
            // The simulation has IPv4 Pod CIDRs only.
            if !own.pods.is_empty() {
                return false;
            }
        }
        others().all(|(_, other)| {
            !contain(&other.services, ip) && !contain(&other.pods, ip) && !other.gateways.contains(&ip)
        })
    }
}

/// The addresses of other clusters that a cluster imports: none of its own network.
pub(crate) fn imported(cluster: &Cluster, number: usize, ips: Vec<String>) -> Vec<String> {
    let mut own: Vec<IpNet> = format!("10.{}.0.0/16", number.saturating_add(100))
        .parse()
        .into_iter()
        .collect();
    let mut nodes: Vec<IpAddr> = vec![];
    for (_, node) in cluster.store.all(&core("nodes")) {
        own.extend(cidrs([&node.value["spec"]["podCIDR"]]));
        let addresses = list(&node.value["status"]["addresses"]);
        nodes.extend(addresses.filter_map(|address| text(&address["address"]).parse::<IpAddr>().ok()));
    }
    let is_foreign = |ip: &String| {
        ip.parse()
            .is_ok_and(|ip| !contain(&own, ip) && !nodes.contains(&ip))
    };
    ips.into_iter().filter(is_foreign).collect()
}
