//! The networks that clusters have ever exported.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::invariants::{list, text};

/// The networks of all clusters, apart from their prefixes, and the prefixes.
#[derive(Debug, Default)]
pub(crate) struct NetworkHistory {
    networks: BTreeSet<String>,
    prefixes: BTreeSet<(String, IpNet)>,
}

impl NetworkHistory {
    /// Adds an exported network.
    pub(crate) fn observe(&mut self, info: &Value) {
        self.networks.insert(without_prefixes(info));
        let id = text(&info["clusterID"]);
        self.prefixes
            .extend(prefixes(info).map(|prefix| (id.clone(), prefix)));
    }

    /// Whether a cluster has exported this network, perhaps with further prefixes.
    pub(crate) fn contains(&self, info: &Value) -> bool {
        let id = text(&info["clusterID"]);
        self.networks.contains(&without_prefixes(info))
            && prefixes(info).all(|prefix| {
                let mut own = self.prefixes.iter().filter(|(cluster, _)| *cluster == id);
                own.any(|(_, exported)| exported.contains(&prefix))
            })
    }
}

fn without_prefixes(info: &Value) -> String {
    json!([info["clusterID"], info["gatewayInfos"]]).to_string()
}

fn prefixes(info: &Value) -> impl Iterator<Item = IpNet> {
    let all = [&info["serviceCIDR"]].into_iter().chain(list(&info["podCIDRs"]));
    all.filter_map(|cidr| text(cidr).parse().ok())
}
