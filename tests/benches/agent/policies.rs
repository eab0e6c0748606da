//! Network policies of a cluster, with Pods and label identities.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::ObjectMeta;
use mc_api::label_identity::{NAMESPACE_NAME, digest, object_name};
use mc_api::network_policy::{NetworkPolicy, Policy};
use mc_gateway::identity_objects::{IdentityInfo, IdentityObjects, NamespaceInfo};
use mc_gateway::objects::{Objects, PodInfo};
use mc_gateway::policy::Mode;
use mc_gateway::policy_objects::{Parsed, network_policy};
use serde_json::json;

use crate::world::{OWN_NODE, pod_addr};

/// The default limit of Pods on a Node.
const PODS: u32 = 110;
/// Policies and identities in a Namespace.
const IN_NAMESPACE: u32 = 10;

fn namespace(number: u32) -> String {
    format!("n{}", number / IN_NAMESPACE)
}

fn app(number: u32) -> String {
    format!("a{}", number % IN_NAMESPACE)
}

fn team(number: u32) -> String {
    format!("t{}", number / IN_NAMESPACE % 7)
}

/// A policy for the Pods of one app in its Namespace, with peers by labels and by a block.
pub(crate) fn policy(number: u32, last_port: u32) -> Arc<Parsed<Policy>> {
    let app = app(number);
    network_policy(&NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(format!("p{number}")),
            namespace: Some(namespace(number)),
            ..ObjectMeta::default()
        },
        spec: json!({
            "priority": 1 + number % 10,
            "appliedTo": [{"podSelector": {"matchLabels": {"app": app}}}],
            "ingress": [
                {"action": "Allow", "ports": [{"port": 8000, "endPort": last_port}],
                 "from": [{"scope": "ClusterSet", "podSelector": {"matchLabels": {"app": app}}},
                          {"ipBlock": {"cidr": format!("10.{}.{}.0/24", 128 + number / 256, number % 256)}}]},
                {"action": "Drop", "from": [{"scope": "ClusterSet", "namespaceSelector": {
                    "matchExpressions": [{"key": "team", "operator": "NotIn", "values": [team(number)]}]}}]},
            ],
        }),
        ..NetworkPolicy::default()
    })
}

/// Adds policies, as many identities, and the Pods of the own Node. The policies select one Pod each while there are
/// Pods.
pub(crate) fn add(objects: &mut Objects, count: u32) {
    if count == 0 {
        return;
    }
    let identity = |number: u32| {
        let label = format!(
            "ns:{NAMESPACE_NAME}={},team={}&pod:app={}",
            namespace(number),
            team(number),
            app(number)
        );
        Arc::new(IdentityInfo {
            name: object_name(&digest(&label)).to_owned(),
            label_name: object_name(&digest(&label)).to_owned(),
            id: number + 1,
            label,
            clusters: Some(["c0".to_owned()].into()),
        })
    };
    let namespaces = (0..count).step_by(10).map(|number| {
        Arc::new(NamespaceInfo {
            name: namespace(number),
            labels: BTreeMap::from([
                (NAMESPACE_NAME.to_owned(), namespace(number)),
                ("team".to_owned(), team(number)),
            ]),
        })
    });
    objects.policy_mode = Some(Mode::All);
    objects.policies.policies = (0..count).map(|number| policy(number, 8000 + number)).collect();
    objects.identities = Some(IdentityObjects {
        namespaces: namespaces.collect(),
        identities: (0..count).map(identity).collect(),
    });
    objects.pods = (0..PODS)
        .map(|number| {
            Arc::new(PodInfo {
                name: format!("{}/w{number}", namespace(number)),
                node: OWN_NODE.to_owned(),
                ips: vec![pod_addr(0, number).to_string()],
                labels: format!("app={}", app(number)).into(),
                ..PodInfo::default()
            })
        })
        .collect();
}
