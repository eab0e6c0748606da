//! Names of the two ends of a flow: cluster, Pod and labels. Pure.
//!
//! *Guarantees*: a cluster is the owner of the prefix that contains the address, as in the maps that the agent writes.
//! An identity with two labels has no labels here, and an address of two Pods has no name.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_api::label_identity::{MAX_ID, MIN_ID, split_normalized};
use mc_gateway_common::abi::CLUSTER_LOCAL;

use crate::cidr::max_prefix_len;
use crate::desired::PrefixRoute;
use crate::id_names::IdNames;
use crate::objects::{Objects, PodInfo};
use crate::shared_map::SharedMap;

/// The state of the last reconcile, shared with the caches of the agent: it takes no memory of its own.
///
/// A look-up by prefix is a binary search for each length. One by identity or Pod address walks all objects: log lines
/// are rare, and an index would need memory for each object.
#[derive(Clone, Debug, Default)]
pub struct FlowNames {
    /// Names of IDs.
    pub ids: Arc<IdNames>,
    /// All prefixes.
    pub prefixes: SharedMap<IpNet, PrefixRoute>,
    /// Pods and label identities.
    pub objects: Arc<Objects>,
}

/// Joined labels of a label identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityLabels<'n> {
    /// Those of the Namespace.
    pub namespace: &'n str,
    /// Those of the Pod.
    pub pod: &'n str,
}

impl FlowNames {
    /// Cluster ID of the remote cluster that announces the longest prefix with this address.
    #[must_use]
    pub fn remote_cluster(&self, addr: IpAddr) -> Option<&str> {
        let route = (0..=max_prefix_len(addr)).rev().find_map(|len| {
            let net = IpNet::new(addr, len).ok()?;
            self.prefixes.get(&net.trunc())
        })?;
        if route.cluster == CLUSTER_LOCAL {
            return None;
        }
        self.ids.clusters.get(&route.cluster).map(String::as_str)
    }

    /// Labels of an identity in packets from `cluster`; none of a host, and of an identity that only other clusters
    /// export.
    #[must_use]
    pub fn identity_labels(&self, identity: u32, cluster: &str) -> Option<IdentityLabels<'_>> {
        if !(MIN_ID..=MAX_ID).contains(&identity) {
            return None;
        }
        let known = self.objects.identities.as_ref()?;
        let mut infos = known.identities.iter().filter(|info| info.id == identity);
        let info = infos.next()?;
        if infos.any(|other| other.label != info.label) {
            return None;
        }
        let exporters = info.clusters.as_deref();
        if exporters.is_some_and(|clusters| !clusters.iter().any(|exporter| exporter == cluster)) {
            return None;
        }
        let (namespace, pod) = split_normalized(&info.label).ok()?;
        Some(IdentityLabels { namespace, pod })
    }

    /// The Pod of this cluster with an address of its own. Finished Pods have none. The name of a Pod in an address
    /// group ends after the Namespace and `/`.
    #[must_use]
    pub fn pod(&self, addr: IpAddr) -> Option<&PodInfo> {
        let has_addr = |text: &String| text.parse::<IpAddr>().is_ok_and(|ip| ip == addr);
        let has_addr = |pod: &&Arc<PodInfo>| pod.ips.iter().any(has_addr);
        let mut pods = self.objects.pods.iter().filter(has_addr);
        if let Some(pod) = pods.next() {
            return pods.next().is_none().then_some(pod);
        }
        let group = self.objects.address_groups.iter().find(has_addr)?;
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity_objects::{IdentityInfo, IdentityObjects};

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn names(prefixes: &[(&str, u64)]) -> FlowNames {
        let route = |cluster| PrefixRoute {
            cluster,
            group: 0,
            deliver: false,
        };
        let ids = IdNames {
            clusters: [(7, "east".to_owned()), (8, "north".to_owned())].into(),
            ..IdNames::default()
        };
        let prefixes = prefixes.iter();
        FlowNames {
            ids: Arc::new(ids),
            prefixes: prefixes
                .map(|(net, cluster)| (net.parse().unwrap(), route(*cluster)))
                .collect(),
            objects: Arc::default(),
        }
    }

    #[test]
    fn a_cluster_is_the_owner_of_the_longest_prefix() {
        let names = names(&[
            ("10.0.0.0/8", 8),
            ("10.11.0.0/16", 7),
            ("10.11.3.0/24", CLUSTER_LOCAL),
            ("10.11.3.9/32", 8),
            ("10.13.0.0/16", 9),
            ("fd00:11::/32", 7),
            ("fd00:11::5/128", 8),
        ]);
        for (text, cluster) in [
            ("10.11.0.5", Some("east")),
            ("10.12.0.5", Some("north")),
            ("10.11.3.1", None),
            ("10.11.3.9", Some("north")),
            // A cluster without a name.
            ("10.13.0.1", None),
            ("192.0.2.1", None),
            ("fd00:11::1", Some("east")),
            ("fd00:11::5", Some("north")),
            ("fd00:12::1", None),
        ] {
            assert_eq!(names.remote_cluster(addr(text)), cluster, "{text}");
        }
    }

    fn identity(id: u32, label: &str, clusters: Option<&[&str]>) -> Arc<IdentityInfo> {
        Arc::new(IdentityInfo {
            id,
            label: label.to_owned(),
            clusters: clusters.map(|clusters| clusters.iter().map(ToString::to_string).collect()),
            ..IdentityInfo::default()
        })
    }

    #[test]
    fn labels_are_those_of_an_identity_that_the_cluster_exports() {
        let identities = vec![
            identity(1, "ns:team=a&pod:app=web,tier=x", Some(&["east"])),
            identity(2, "ns:team=b&pod:", None),
            identity(3, "ns:team=c&pod:of=one", None),
            identity(3, "ns:team=c&pod:of=two", None),
            identity(4, "app=web", None),
            identity(0, "ns:team=host&pod:", None),
            identity(5, "ns:a=b&pod:c=d\nINFO forged", None),
        ];
        let objects = Objects {
            identities: Some(IdentityObjects {
                identities,
                ..IdentityObjects::default()
            }),
            ..Objects::default()
        };
        let names = FlowNames {
            objects: Arc::new(objects),
            ..FlowNames::default()
        };
        let labels = |namespace, pod| Some(IdentityLabels { namespace, pod });
        for (id, cluster, expected) in [
            (1, "east", labels("team=a", "app=web,tier=x")),
            (1, "west", None),
            (2, "west", labels("team=b", "")),
            // Two labels have the number.
            (3, "east", None),
            (4, "east", None),
            (5, "east", None),
            (6, "east", None),
            (0, "east", None),
        ] {
            assert_eq!(names.identity_labels(id, cluster), expected, "{id} of {cluster}");
        }
        let unreadable = FlowNames::default();
        assert_eq!(unreadable.identity_labels(1, "east"), None);
    }

    #[test]
    fn an_address_names_the_pod_that_alone_has_it() {
        let pod = |name: &str, ips: &[&str]| {
            Arc::new(PodInfo {
                name: name.to_owned(),
                ips: ips.iter().map(ToString::to_string).collect(),
                ..PodInfo::default()
            })
        };
        let objects = Objects {
            pods: vec![
                // A finished Pod, whose address another one has now.
                pod("shop/finished", &[]),
                pod("shop/running", &["10.12.0.5", "fd00:12:0::5"]),
                pod("shop/one", &["10.12.0.6"]),
                pod("shop/two", &["10.12.0.6"]),
                pod("shop/invalid", &["10.12.0.07"]),
            ],
            ..Objects::default()
        };
        let names = FlowNames {
            objects: Arc::new(objects),
            ..FlowNames::default()
        };
        let name = |text| names.pod(addr(text)).map(|pod| pod.name.as_str());
        assert_eq!(name("10.12.0.5"), Some("shop/running"));
        assert_eq!(name("fd00:12::5"), Some("shop/running"));
        assert_eq!(name("10.12.0.6"), None, "two Pods");
        assert_eq!(name("10.12.0.7"), None);
    }

    #[test]
    fn an_address_group_names_an_address_without_a_pod() {
        let pod = |name: &str, labels: &str, ip: &str| {
            Arc::new(PodInfo {
                name: name.to_owned(),
                labels: labels.into(),
                ips: vec![ip.to_owned()],
                ..PodInfo::default()
            })
        };
        let mut names = names(&[]);
        names.objects = Arc::new(Objects {
            pods: vec![pod("shop/web", "", "10.9.0.1")],
            address_groups: vec![
                pod("shop/", "app=new", "10.9.0.2"),
                pod("shop/", "app=db", "10.9.0.1"),
            ],
            ..Objects::default()
        });
        let name = |text| names.pod(addr(text)).map(|pod| (pod.name.as_str(), &*pod.labels));
        assert_eq!(name("10.9.0.1"), Some(("shop/web", "")));
        assert_eq!(name("10.9.0.2"), Some(("shop/", "app=new")));
        assert_eq!(name("10.9.0.3"), None);
    }
}
