//! `EndpointSlice`s of local Services and of imported endpoints.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::{EndpointSubset, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{names, service_import::is_headless, validation};
use sha2::{Digest as _, Sha256};

use super::ip_families::IpFamily;
use crate::snapshot::MemberSnapshot;

/// Endpoints per slice, as in Kubernetes' own controller.
pub const MAX_ENDPOINTS: usize = 100;
/// The API server's limit of ports per slice.
const MAX_PORTS: usize = 100;

/// Endpoints of one cluster that serve the same ports, in either IP family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointGroup {
    /// The ports.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// The slices of each Service, indexed once per plan: a namespace may have thousands.
#[derive(Debug)]
pub struct SliceIndex<'a>(BTreeMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>);

impl<'a> SliceIndex<'a> {
    /// Indexes the slices of a snapshot; those of a Service are in the order of their names.
    #[must_use]
    pub fn new(snapshot: &'a MemberSnapshot) -> Self {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, slice) in snapshot.endpoint_slices.iter() {
            if let Some(service) = slice.labels().get(names::LABEL_SERVICE_NAME) {
                let key = (name.namespace.as_str(), service.as_str());
                all.entry(key).or_default().push(slice.as_ref());
            }
        }
        Self(all)
    }

    /// The slices of one Service.
    pub(super) fn for_service<'s>(
        &'s self,
        namespace: &'s str,
        name: &'s str,
    ) -> impl Iterator<Item = &'s EndpointSlice> {
        self.0.get(&(namespace, name)).into_iter().flatten().copied()
    }
}

/// Whether an endpoint accepts new connections; an unknown state counts as ready, as the API specifies.
pub(super) fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) != Some(false)
}

/// The IP family of an endpoint; none for an invalid address.
pub(super) fn ip_family(endpoint: &Endpoint) -> Option<IpFamily> {
    let ip = validation::gateway_ip(endpoint.addresses.first()?).ok()?;
    Some(IpFamily::from_addr(ip))
}

/// Whether a slice was written by this controller.
pub(super) fn is_managed(slice: &EndpointSlice) -> bool {
    slice
        .labels()
        .get(names::LABEL_MANAGED_BY)
        .is_some_and(|v| v == names::MANAGED_BY)
}

/// The endpoints exported by another cluster.
#[must_use]
pub fn from_subsets<'a>(subsets: impl IntoIterator<Item = &'a EndpointSubset>) -> Vec<EndpointGroup> {
    subsets.into_iter().map(from_subset).collect()
}

fn from_subset(subset: &EndpointSubset) -> EndpointGroup {
    EndpointGroup {
        ports: subset
            .ports
            .iter()
            .flatten()
            .map(|p| {
                port(
                    p.name.as_deref(),
                    p.port,
                    p.protocol.as_deref(),
                    p.app_protocol.as_deref(),
                )
            })
            .collect(),
        endpoints: subset
            .addresses
            .iter()
            .flatten()
            .map(|a| endpoint(a.ip.clone(), None, a.hostname.clone()))
            .collect(),
    }
}

/// This cluster's own ready Pods, on the ports that the set has accepted of its export: a service proxy cannot use an
/// address of the Service CIDR as an endpoint.
#[must_use]
pub fn from_local(
    slices: &SliceIndex<'_>,
    namespace: &str,
    name: &str,
    accepted: &[EndpointSubset],
) -> Vec<EndpointGroup> {
    let accepted: BTreeSet<_> = accepted
        .iter()
        .flat_map(|s| s.ports.iter().flatten())
        .map(|p| p.name.as_deref().unwrap_or_default())
        .collect();
    slices
        .for_service(namespace, name)
        .filter_map(|slice| {
            let all = slice.ports.as_deref().unwrap_or_default();
            let known = all
                .iter()
                .filter(|p| accepted.contains(p.name.as_deref().unwrap_or_default()));
            let ports = known.filter_map(|p| {
                Some(port(
                    p.name.as_deref(),
                    p.port?,
                    p.protocol.as_deref(),
                    p.app_protocol.as_deref(),
                ))
            });
            let ports: Vec<_> = ports.collect();
            // A slice without ports belongs to a headless Service.
            if ports.is_empty() && !all.is_empty() {
                return None;
            }
            let ready = slice.endpoints.iter().filter(|e| is_ready(e));
            Some(EndpointGroup {
                ports,
                endpoints: ready
                    .filter_map(|e| {
                        Some(endpoint(
                            e.addresses.first()?.clone(),
                            e.node_name.clone(),
                            e.hostname.clone(),
                        ))
                    })
                    .collect(),
            })
        })
        .collect()
}

fn port(name: Option<&str>, port: i32, protocol: Option<&str>, app_protocol: Option<&str>) -> EndpointPort {
    EndpointPort {
        app_protocol: app_protocol.map(str::to_owned),
        name: Some(name.unwrap_or_default().to_owned()),
        port: Some(port),
        protocol: Some(protocol.unwrap_or("TCP").to_owned()),
    }
}

fn endpoint(ip: String, node_name: Option<String>, hostname: Option<String>) -> Endpoint {
    Endpoint {
        addresses: vec![ip],
        conditions: Some(EndpointConditions {
            ready: Some(true),
            ..EndpointConditions::default()
        }),
        node_name,
        hostname,
        ..Endpoint::default()
    }
}

/// The slices of one exporting cluster (empty: unknown) for an imported Service. Invalid addresses are left out.
#[must_use]
pub fn build(service: &Service, of: &str, cluster: &str, groups: Vec<EndpointGroup>) -> Vec<EndpointSlice> {
    let mut merged: BTreeMap<(IpFamily, String), EndpointGroup> = BTreeMap::new();
    for mut group in groups {
        group
            .ports
            .sort_by(|a, b| (&a.name, a.port, &a.protocol).cmp(&(&b.name, b.port, &b.protocol)));
        let mut by_family: BTreeMap<IpFamily, Vec<Endpoint>> = BTreeMap::new();
        for endpoint in group.endpoints {
            if let Some(family) = ip_family(&endpoint) {
                by_family.entry(family).or_default().push(endpoint);
            }
        }
        for (family, endpoints) in by_family {
            // A headless Service may have no ports.
            let chunks = group
                .ports
                .chunks(MAX_PORTS)
                .chain(group.ports.is_empty().then_some(&[][..]));
            for ports in chunks {
                let known = merged.entry((family, ports_key(ports))).or_default();
                known.ports = ports.to_vec();
                known.endpoints.extend_from_slice(&endpoints);
            }
        }
    }
    let mut slices = vec![];
    for ((family, key), mut group) in merged {
        group.endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        group.endpoints.dedup_by(|a, b| a.addresses == b.addresses);
        for (i, chunk) in group.endpoints.chunks(MAX_ENDPOINTS).enumerate() {
            let hash = name_hash(cluster, &key);
            let suffix = match family {
                IpFamily::V4 => "",
                IpFamily::V6 => "-v6",
            };
            let name = format!("{}-{hash}-{i}{suffix}", service.name_any());
            slices.push(slice(service, of, cluster, (name, family), &group.ports, chunk));
        }
    }
    slices
}

fn ports_key(ports: &[EndpointPort]) -> String {
    ports.iter().fold(String::new(), |key, p| {
        format!(
            "{key};{:?},{:?},{:?},{:?}",
            p.name, p.port, p.protocol, p.app_protocol
        )
    })
}

fn slice(
    service: &Service,
    of: &str,
    cluster: &str,
    (name, family): (String, IpFamily),
    ports: &[EndpointPort],
    endpoints: &[Endpoint],
) -> EndpointSlice {
    let mut labels = BTreeMap::from([
        (names::LABEL_SERVICE_NAME.to_owned(), service.name_any()),
        (names::LABEL_MCS_SERVICE_NAME.to_owned(), of.to_owned()),
        (names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned()),
    ]);
    if service.spec.as_ref().is_some_and(is_headless) {
        // As Kubernetes' own controller marks them (`discovery/v1`, `LabelHeadlessService`).
        labels.insert(names::LABEL_HEADLESS.to_owned(), String::new());
    }
    if !cluster.is_empty() {
        labels.insert(names::LABEL_MCS_SOURCE_CLUSTER.to_owned(), cluster.to_owned());
    }
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: service.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Service".to_owned(),
                name: service.name_any(),
                uid: service.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        address_type: family.name().to_owned(),
        endpoints: endpoints.to_vec(),
        ports: Some(ports.to_vec()),
    }
}

/// Whether an existing slice equals the desired one.
#[must_use]
pub fn is_up_to_date(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    old.address_type == new.address_type
        && old.endpoints == new.endpoints
        && old.ports == new.ports
        && old.metadata.owner_references == new.metadata.owner_references
        && new.labels().iter().all(|(k, v)| old.labels().get(k) == Some(v))
}

/// The part of a slice's name that its cluster and its ports determine: a prefix of their SHA-256, because members
/// choose both.
fn name_hash(cluster: &str, ports: &str) -> String {
    let digest = Sha256::new()
        .chain_update(cluster)
        .chain_update([0])
        .chain_update(ports)
        .finalize();
    hex::encode(digest).chars().take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_slices_differ_where_their_texts_do() {
        let texts = [
            // Two texts with the same 64-bit FNV-1a hash, which names had before.
            ("8yn0iYCKYHlIj4-BwPqk", ""),
            ("GReLUrM4wMqfg9yzV3KQ", ""),
            ("a", "bc"),
            ("ab", "c"),
        ];
        let names: BTreeSet<_> = texts
            .iter()
            .map(|(cluster, ports)| name_hash(cluster, ports))
            .collect();
        assert_eq!(names.len(), texts.len());
        assert!(names.iter().all(|name| name.len() == 16));
    }
}
