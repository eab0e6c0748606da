//! Exports of a cluster that is no member: the leader neither uses nor changes them.

use mc_api::names;
use mc_test_kit::fake_apiserver::store::Key;
use serde_json::json;

use crate::{
    invariants::antrea,
    simulation::{LEADER_NAMESPACE, Simulation},
};

const STRANGER: &str = "stranger";

/// Whether an object of the leader cluster has the name of a stranger's export.
pub(crate) fn is_strangers(key: &Key) -> bool {
    key.1.starts_with("stranger-")
}

impl Simulation {
    /// Exports a Service, endpoints in a range of a member, and the ranges of a member.
    pub(crate) fn export_as_stranger(&mut self, server: usize, namespace: &str, service: &str) {
        let range = format!("10.{}.0.0/16", server.saturating_add(10));
        let spec = json!({ "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] });
        let subsets = json!([{
            "addresses": [{ "ip": format!("10.{}.1.77", server.saturating_add(10)) }],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        }]);
        let exports = [
            (
                names::service_export(STRANGER, namespace, service),
                json!({ "kind": "Service", "namespace": namespace, "name": service, "service": { "serviceSpec": spec } }),
            ),
            (
                names::endpoints_export(STRANGER, namespace, service),
                json!({ "kind": "Endpoints", "namespace": namespace, "name": service, "endpoints": { "subsets": subsets } }),
            ),
            (
                names::cluster_info(STRANGER),
                json!({ "kind": "ClusterInfo", "clusterInfo": {
                    "clusterID": STRANGER, "serviceCIDR": "10.222.0.0/16", "podCIDRs": [range],
                    "gatewayInfos": [{ "gatewayIP": "172.16.99.1" }],
                } }),
            ),
        ];
        for (name, mut spec) in exports {
            spec["clusterID"] = json!(STRANGER);
            let export = json!({
                "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
                "metadata": { "name": name }, "spec": spec,
            });
            self.write_as_user(0, &antrea("resourceexports"), LEADER_NAMESPACE, &export);
        }
    }
}
