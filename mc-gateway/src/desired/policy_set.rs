//! The input of the compiler of policies from objects of the API. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mc_api::label_identity::{Labels, parse_normalized};
use mc_api::network_policy::{L4Protocol, ObjectName};

use crate::cidr::parse_address;
use crate::identity_objects::{IdentityInfo, NamespaceInfo};
use crate::objects::PodInfo;
use crate::policy::{
    ContainerPort, Identity, LocalPod, Mode, PolicySet, ServicePeer, ServicePeerPort, selects_local_pods,
};
use crate::policy_objects::{PolicyObjects, SliceEndpoints};
use crate::service_objects::{ServicePort, SlicePort};

/// Whether a policy selects one of these Pods, with all rules enforced.
#[must_use]
pub fn selects_pods(
    objects: &PolicyObjects,
    namespaces: &[Arc<NamespaceInfo>],
    pods: &[Arc<PodInfo>],
) -> bool {
    selects_local_pods(&policy_set(objects, namespaces, pods, Mode::All))
}

/// The policies, and the Pods of this node. Without peers.
pub(super) fn policy_set(
    objects: &PolicyObjects,
    namespaces: &[Arc<NamespaceInfo>],
    local: &[Arc<PodInfo>],
    mode: Mode,
) -> PolicySet {
    let policies = objects.policies.iter().map(|policy| policy.object.clone());
    let tiers = objects.tiers.iter().map(|tier| &tier.object);
    let namespaces = namespaces.iter();
    let mut shared = SharedLabels::default();
    PolicySet {
        policies: policies.collect(),
        tiers: tiers
            .filter_map(|(name, priority)| Some((name.clone(), (*priority)?)))
            .collect(),
        groups: objects.groups.iter().map(|group| group.object.clone()).collect(),
        namespaces: namespaces
            .map(|namespace| (namespace.name.clone(), namespace.labels.clone()))
            .collect(),
        local_pods: local.iter().map(|pod| local_pod(pod, &mut shared)).collect(),
        cluster_pods: Vec::new(),
        services: Vec::new(),
        node_ips: Vec::new(),
        identities: Vec::new(),
        mode,
    }
}

/// Adds the peers of rules: Pods of the cluster, Services, and label identities of other clusters.
pub(super) fn add_peers(
    set: &mut PolicySet,
    objects: &PolicyObjects,
    pods: &[Arc<PodInfo>],
    identities: &[Arc<IdentityInfo>],
    node_ips: &BTreeSet<IpAddr>,
) {
    let mut shared = SharedLabels::default();
    set.cluster_pods = pods.iter().map(|pod| local_pod(pod, &mut shared)).collect();
    set.services = service_peers(objects);
    set.node_ips = node_ips.iter().copied().collect();
    let identities = identities.iter();
    set.identities = identities
        .filter_map(|info| identity(info, &mut shared))
        .collect();
}

/// Labels that objects share: Pods of a workload have the same ones.
#[derive(Debug, Default)]
struct SharedLabels(BTreeSet<Arc<Labels>>);

impl SharedLabels {
    /// The same labels, in memory once.
    fn share(&mut self, labels: Labels) -> Arc<Labels> {
        if let Some(known) = self.0.get(&labels) {
            return Arc::clone(known);
        }
        let labels = Arc::new(labels);
        self.0.insert(Arc::clone(&labels));
        labels
    }
}

fn local_pod(pod: &PodInfo, shared: &mut SharedLabels) -> LocalPod {
    let (namespace, name) = pod.name.split_once('/').unwrap_or(("default", &pod.name));
    let ports = pod.ports.iter().map(|port| ContainerPort {
        name: port.name.clone(),
        protocol: port.protocol,
        number: port.number,
    });
    // Otherwise the first address allocates memory for four.
    let mut ips = Vec::with_capacity(pod.ips.len());
    ips.extend(pod.ips.iter().filter_map(|text| parse_address(text).ok()));
    LocalPod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: shared.share(
            pod.labels
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        ),
        service_account: pod.service_account.to_string(),
        ips,
        ports: ports.collect(),
    }
}

/// The Services with their endpoints; invalid addresses and ports are left out.
fn service_peers(objects: &PolicyObjects) -> Vec<ServicePeer> {
    let mut slices: BTreeMap<(&str, &str), Vec<&SliceEndpoints>> = BTreeMap::new();
    for slice in &objects.endpoints {
        slices
            .entry((&slice.namespace, &slice.service))
            .or_default()
            .push(slice);
    }
    let peers = objects.services.iter().map(|service| {
        let own = slices.get(&(&*service.namespace, &*service.name));
        let own = own.map_or(&[][..], Vec::as_slice);
        let ports = service.ports.iter().filter_map(|port| service_port(port, own));
        ServicePeer {
            name: ObjectName::namespaced(&service.namespace, &service.name),
            ips: service
                .cluster_ips
                .iter()
                .chain(&service.external_ips)
                .filter_map(|text| parse_address(text).ok())
                .collect(),
            ports: ports.collect(),
        }
    });
    peers.collect()
}

fn service_port(port: &ServicePort, slices: &[&SliceEndpoints]) -> Option<ServicePeerPort> {
    let protocol = L4Protocol::from_name(&port.protocol)?;
    let mut endpoints = BTreeSet::new();
    for slice in slices {
        let same = |of: &&SlicePort| of.name == port.name && of.protocol == port.protocol;
        let numbers = slice.ports.iter().filter(same).filter_map(|of| of.port);
        for number in numbers.filter_map(|number| u16::try_from(number).ok()) {
            let addrs = slice.addresses.iter().filter_map(|text| parse_address(text).ok());
            endpoints.extend(addrs.map(|addr| SocketAddr::new(addr, number)));
        }
    }
    Some(ServicePeerPort {
        protocol: protocol.number(),
        number: u16::try_from(port.port).ok()?,
        node_port: port.node_port.and_then(|number| u16::try_from(number).ok()),
        endpoints,
    })
}

/// The labels of an identity; none of a label that cannot be parsed, which no selector matches.
fn identity(info: &IdentityInfo, shared: &mut SharedLabels) -> Option<Identity> {
    let (namespace, pod) = parse_normalized(&info.label).ok()?;
    Some(Identity {
        id: info.id,
        namespace: shared.share(namespace),
        pod: shared.share(pod),
    })
}
