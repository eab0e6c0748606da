//! The Pods of other Nodes as the controller's address groups describe them: peers of rules.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use mc_api::address_group_slice::{AddressGroup, AddressGroupSlice};
use mc_api::label_identity::{LabelKeyFilter, join_labels};

use super::pod::named_port;
use crate::objects::PodInfo;

/// An `AddressGroupSlice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressGroups {
    /// `metadata.name`.
    pub name: String,
    /// `spec.revision`: of two slices with an address, the higher one counts.
    pub revision: i64,
    /// `spec.complete`: the slices together have every Pod.
    pub complete: bool,
    /// Each group as one Pod, as in [`crate::objects::Objects::address_groups`]; shared, because there may be many.
    pub groups: Vec<Arc<PodInfo>>,
}

/// The slice without unused fields.
#[must_use]
pub fn convert(slice: &AddressGroupSlice) -> Arc<AddressGroups> {
    Arc::new(AddressGroups {
        name: slice.metadata.name.clone().unwrap_or_default(),
        revision: slice.spec.revision,
        complete: slice.spec.complete,
        groups: slice.spec.groups.iter().map(group).collect(),
    })
}

fn group(group: &AddressGroup) -> Arc<PodInfo> {
    let ports = group.ports.iter();
    Arc::new(PodInfo {
        name: format!("{}/", group.namespace),
        instance: 0,
        node: String::new(),
        ips: group.addresses.clone(),
        labels: join_labels(&group.labels, &LabelKeyFilter::default()).into(),
        service_account: group.service_account.as_str().into(),
        ports: ports
            .filter_map(|port| named_port(&port.name, &port.protocol, port.port))
            .collect(),
    })
}

/// Whether the slices together have every Pod of the cluster.
pub fn are_complete<'a>(slices: impl IntoIterator<Item = &'a Arc<AddressGroups>>) -> bool {
    slices.into_iter().any(|slice| slice.complete)
}

/// The groups of the addresses that no known Pod has. The known Pods are newer than the slices, which have them,
/// too.
/// An address in several slices is in that with the highest revision only: it moved there, and the others still await
/// their update.
#[must_use]
pub fn further_groups<'a>(
    known: impl IntoIterator<Item = &'a Arc<PodInfo>>,
    slices: impl IntoIterator<Item = &'a Arc<AddressGroups>>,
) -> Vec<Arc<PodInfo>> {
    let mut seen: BTreeSet<IpAddr> = known.into_iter().flat_map(|pod| addresses(pod)).collect();
    let mut slices: Vec<_> = slices.into_iter().collect();
    slices.sort_by_key(|slice| (Reverse(slice.revision), &slice.name));
    let mut groups = Vec::new();
    for group in slices.into_iter().flat_map(|slice| &slice.groups) {
        let free: Vec<_> = addresses(group).filter(|addr| seen.insert(*addr)).collect();
        if free.len() == group.ips.len() {
            groups.push(group.clone());
        } else if !free.is_empty() {
            let mut group = PodInfo::clone(group);
            group.ips = free.iter().map(ToString::to_string).collect();
            groups.push(Arc::new(group));
        }
    }
    groups
}

/// The addresses of a Pod; the controller restores a slice with an invalid one.
fn addresses(pod: &PodInfo) -> impl Iterator<Item = IpAddr> {
    pod.ips.iter().filter_map(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, revision: i64, groups: &[(&str, &[&str])]) -> Arc<AddressGroups> {
        let groups: Vec<_> = groups
            .iter()
            .map(|(app, addresses)| {
                serde_json::json!({"namespace": "shop", "labels": {"app": app, "v": "1"}, "serviceAccount": "sa",
                    "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "addresses": addresses})
            })
            .collect();
        convert(
            &serde_json::from_value(serde_json::json!({
                "apiVersion": "mc-gateway.io/v1alpha1", "kind": "AddressGroupSlice",
                "metadata": {"name": name}, "spec": {"revision": revision, "groups": groups},
            }))
            .unwrap(),
        )
    }

    fn pod(name: &str, ip: &str) -> Arc<PodInfo> {
        Arc::new(PodInfo {
            name: name.to_owned(),
            node: "n1".to_owned(),
            ips: vec![ip.to_owned()],
            ..PodInfo::default()
        })
    }

    /// The labels of the peers with their addresses.
    fn found(known: &[Arc<PodInfo>], slices: &[Arc<AddressGroups>]) -> Vec<(String, Vec<String>)> {
        let groups = further_groups(known, slices);
        known
            .iter()
            .chain(&groups)
            .map(|pod| (pod.labels.to_string(), pod.ips.clone()))
            .collect()
    }

    fn of(app: &str, addresses: &[&str]) -> (String, Vec<String>) {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        (format!("app={app},v=1"), addresses)
    }

    #[test]
    fn a_group_is_a_peer_with_the_addresses_of_all_its_pods() {
        let slices = [slice("a", 1, &[("web", &["10.0.0.1", "fd00::1"])])];
        assert_eq!(found(&[], &slices), [of("web", &["10.0.0.1", "fd00::1"])]);
        let peer = &further_groups(&[], &slices)[0];
        assert_eq!(
            (peer.name.as_str(), peer.node.as_str(), &*peer.service_account),
            ("shop/", "", "sa")
        );
        assert_eq!(peer.ports[0].number, 80);
    }

    #[test]
    fn a_moved_address_is_in_the_slice_with_the_highest_revision() {
        let old = slice(
            "a",
            3,
            &[("web", &["10.0.0.1", "10.0.0.2"]), ("db", &["10.0.0.3"])],
        );
        let new = slice("b", 4, &[("api", &["10.0.0.2", "10.0.0.3"])]);
        let expected = [of("api", &["10.0.0.2", "10.0.0.3"]), of("web", &["10.0.0.1"])];
        assert_eq!(found(&[], &[old.clone(), new.clone()]), expected);
        assert_eq!(found(&[], &[new, old]), expected, "in any order");
    }

    #[test]
    fn the_own_pods_of_a_node_are_newer_than_the_slices() {
        let slices = [slice("a", 9, &[("web", &["10.0.0.1", "fd00:0::1", "10.0.0.2"])])];
        let known = [pod("shop/w1", "10.0.0.1"), pod("shop/w2", "fd00::1")];
        assert_eq!(
            found(&known, &slices)[2..],
            [of("web", &["10.0.0.2"])],
            "also with another notation"
        );
    }

    #[test]
    fn an_invalid_address_leaves_the_others() {
        let slices = [slice("a", 1, &[("web", &["10.0.0.1/32", "10.0.0.2"])])];
        assert_eq!(found(&[], &slices), [of("web", &["10.0.0.2"])]);
    }

    #[test]
    fn slices_are_complete_with_the_mark_of_the_controller() {
        let mark = Arc::new(AddressGroups {
            complete: true,
            ..AddressGroups::default()
        });
        let part = slice("a", 1, &[("web", &["10.0.0.1"])]);
        assert!(!are_complete([&part]));
        assert!(are_complete([&part, &mark]));
    }
}
