//! `ServiceExport`s: what this cluster offers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use k8s_openapi::api::{
    core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Service, ServicePort, ServiceSpec},
    discovery::v1::EndpointSlice,
};
use kube::{ResourceExt, core::ObjectMeta};

use super::{Session, slices};
use crate::{
    api::{
        condition::{self, Condition},
        config::EndpointIpType,
        names,
        resource_export::{
            EndpointsExport, FAILURE, ResourceExport, ResourceExportSpec, ServiceExportPayload, kind,
        },
        service_export::{ServiceExport, ServiceExportStatus, VALID, reason},
    },
    plan::{Plan, Side},
    world::{MemberWorld, get, time},
};

/// The condition type that tells of exports other clusters contradict.
const CONFLICT: &str = "Conflict";

/// Why a Service is not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// There is none.
    #[error("Service does not exist")]
    NotFound,
    /// `ExternalName`.
    #[error("Service of ExternalName type is not supported")]
    TypeNotSupported,
    /// Headless or IPv6 only.
    #[error("Service does not have a valid ClusterIP")]
    NoClusterIp,
    /// Nothing would answer.
    #[error("Service has no Endpoints")]
    WithoutEndpoints,
    /// It is an import itself.
    #[error("The Service is imported, not allowed to export")]
    Imported,
}

/// What a valid export offers.
struct Offer {
    ports: Vec<ServicePort>,
    subsets: Vec<EndpointSubset>,
}

// === impl Invalid ===

impl Invalid {
    fn reason(self) -> &'static str {
        match self {
            Self::NotFound => reason::NOT_FOUND,
            Self::TypeNotSupported => reason::TYPE_NOT_SUPPORTED,
            Self::NoClusterIp => reason::NO_CLUSTER_IP,
            Self::WithoutEndpoints => reason::WITHOUT_ENDPOINTS,
            Self::Imported => reason::IMPORTED,
        }
    }
}

/// Two exports for each valid `ServiceExport`, none for any other, and a status for all.
pub fn plan(world: &MemberWorld, session: Option<&Session<'_>>, plan: &mut Plan) {
    let mut wanted = BTreeSet::new();
    for export in world
        .service_exports
        .values()
        .filter(|e| e.metadata.deletion_timestamp.is_none())
    {
        let offer = offer(world, export);
        let mut written = false;
        if let (Some(session), Ok(offer)) = (session, &offer) {
            for (name, spec) in specs(session, export, offer) {
                written = put(session, &name, spec.clone(), plan);
                wanted.insert(name);
            }
        }
        status(world, session, export, offer.err(), written, plan);
    }
    let Some(session) = session else { return };
    for old in session.leader.exports.values() {
        let ours = [kind::SERVICE, kind::ENDPOINTS].contains(&old.spec.kind.as_str())
            && old.spec.cluster_id == session.cluster_id;
        if ours && !wanted.contains(&old.name_any()) {
            plan.delete(Side::Leader, old.as_ref());
        }
    }
}

/// This cluster's export of that name.
pub(super) fn own<'a>(session: &Session<'a>, name: &str) -> Option<&'a ResourceExport> {
    get(&session.leader.exports, session.leader_namespace, name).map(AsRef::as_ref)
}

/// Writes the export unless it is that already; says whether it was.
pub(super) fn put(session: &Session<'_>, name: &str, spec: ResourceExportSpec, plan: &mut Plan) -> bool {
    let old = own(session, name);
    // One that is on its way out is written anew when it is gone.
    if old.is_some_and(|o| o.metadata.deletion_timestamp.is_some()) {
        return false;
    }
    let labels = labels(&spec);
    let same = old.is_some_and(|o| {
        o.spec == spec
            && labels.iter().all(|(k, v)| o.labels().get(k) == Some(v))
            && o.finalizers()
                .iter()
                .any(|f| f == names::FINALIZER_RESOURCE_EXPORT)
    });
    if !same {
        let export = ResourceExport {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(session.leader_namespace.to_owned()),
                labels: Some(labels),
                finalizers: Some(vec![names::FINALIZER_RESOURCE_EXPORT.to_owned()]),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        };
        plan.apply(Side::Leader, &export);
    }
    same
}

fn labels(spec: &ResourceExportSpec) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (names::LABEL_SOURCE_KIND.to_owned(), spec.kind.clone()),
        (names::LABEL_SOURCE_CLUSTER_ID.to_owned(), spec.cluster_id.clone()),
    ]);
    if spec.kind != kind::CLUSTER_INFO {
        labels.insert(names::LABEL_SOURCE_NAME.to_owned(), spec.name.clone());
        labels.insert(names::LABEL_SOURCE_NAMESPACE.to_owned(), spec.namespace.clone());
    }
    labels
}

fn specs(session: &Session<'_>, export: &ServiceExport, offer: &Offer) -> [(String, ResourceExportSpec); 2] {
    let (namespace, name) = (export.namespace().unwrap_or_default(), export.name_any());
    let id = session.cluster_id;
    let base = ResourceExportSpec {
        cluster_id: id.to_owned(),
        name: name.clone(),
        namespace: namespace.clone(),
        ..ResourceExportSpec::default()
    };
    let service = ServiceExportPayload {
        service_spec: ServiceSpec {
            ports: Some(offer.ports.clone()),
            ..ServiceSpec::default()
        },
    };
    [
        (
            names::service_export(id, &namespace, &name),
            ResourceExportSpec {
                kind: kind::SERVICE.to_owned(),
                service: Some(service),
                ..base.clone()
            },
        ),
        (
            names::endpoints_export(id, &namespace, &name),
            ResourceExportSpec {
                kind: kind::ENDPOINTS.to_owned(),
                endpoints: Some(EndpointsExport {
                    subsets: offer.subsets.clone(),
                }),
                ..base
            },
        ),
    ]
}

fn offer(world: &MemberWorld, export: &ServiceExport) -> Result<Offer, Invalid> {
    let (namespace, name) = (export.namespace().unwrap_or_default(), export.name_any());
    let service = get(&world.services, &namespace, &name)
        .filter(|s| s.metadata.deletion_timestamp.is_none())
        .ok_or(Invalid::NotFound)?;
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return Err(Invalid::TypeNotSupported);
    }
    if service
        .annotations()
        .contains_key(names::ANNOTATION_IMPORTED_SERVICE)
    {
        return Err(Invalid::Imported);
    }
    let cluster_ips = cluster_ips(&spec);
    if world.config.endpoint_ip_type == EndpointIpType::ClusterIp && cluster_ips.is_empty() {
        return Err(Invalid::NoClusterIp);
    }
    let pods = pod_subsets(world, &namespace, &name);
    if pods.is_empty() {
        return Err(Invalid::WithoutEndpoints);
    }
    let subsets = match world.config.endpoint_ip_type {
        EndpointIpType::PodIp => pods,
        EndpointIpType::ClusterIp => vec![EndpointSubset {
            addresses: Some(cluster_ips.into_iter().map(address).collect()),
            not_ready_addresses: None,
            ports: Some(spec.ports.iter().flatten().map(endpoint_port).collect()),
        }],
    };
    Ok(Offer {
        ports: spec.ports.iter().flatten().map(exported_port).collect(),
        subsets,
    })
}

fn cluster_ips(spec: &ServiceSpec) -> Vec<String> {
    let many = spec.cluster_ips.iter().flatten();
    let mut ips: Vec<_> = many
        .chain(&spec.cluster_ip)
        .filter(|ip| ip.parse::<Ipv4Addr>().is_ok())
        .cloned()
        .collect();
    ips.dedup();
    ips.truncate(1);
    ips
}

fn address(ip: String) -> EndpointAddress {
    EndpointAddress {
        ip,
        ..EndpointAddress::default()
    }
}

/// A port as `ServiceExport`s carry it: what concerns this cluster only, the node port, stays at home.
fn exported_port(port: &ServicePort) -> ServicePort {
    ServicePort {
        node_port: None,
        ..port.clone()
    }
}

fn endpoint_port(port: &ServicePort) -> EndpointPort {
    EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: port.name.clone().filter(|n| !n.is_empty()),
        port: port.port,
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
    }
}

/// The ready IPv4 endpoints of a Service, one subset for each set of ports.
fn pod_subsets(world: &MemberWorld, namespace: &str, name: &str) -> Vec<EndpointSubset> {
    type Port = (Option<String>, i32, String, Option<String>);
    let mut by_ports: BTreeMap<Vec<Port>, Vec<String>> = BTreeMap::new();
    for slice in slices::of_service(world, namespace, name) {
        let ports = slice.ports.iter().flatten().filter_map(|p| {
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some((
                p.name.clone().filter(|n| !n.is_empty()),
                p.port?,
                protocol,
                p.app_protocol.clone(),
            ))
        });
        let mut ports: Vec<_> = ports.collect();
        ports.sort();
        by_ports.entry(ports).or_default().extend(ready_addresses(slice));
    }
    let subset = |(ports, mut ips): (Vec<Port>, Vec<String>)| {
        ips.sort();
        ips.dedup();
        EndpointSubset {
            addresses: Some(ips.into_iter().map(address).collect()),
            not_ready_addresses: None,
            ports: Some(
                ports
                    .into_iter()
                    .map(|(name, port, protocol, app_protocol)| EndpointPort {
                        app_protocol,
                        name,
                        port,
                        protocol: Some(protocol),
                    })
                    .collect(),
            ),
        }
    };
    by_ports
        .into_iter()
        .filter(|(ports, ips)| !ports.is_empty() && !ips.is_empty())
        .map(subset)
        .collect()
}

fn ready_addresses(slice: &EndpointSlice) -> impl Iterator<Item = String> {
    slice
        .endpoints
        .iter()
        .filter(|e| slices::is_ready(e))
        .filter_map(|e| e.addresses.first().cloned())
}

fn status(
    world: &MemberWorld,
    session: Option<&Session<'_>>,
    export: &ServiceExport,
    invalid: Option<Invalid>,
    written: bool,
    plan: &mut Plan,
) {
    let now = time(world.now);
    let old = export.status.clone().unwrap_or_default();
    let mut new = old.clone();
    match invalid {
        Some(why) => {
            let valid = Condition::new(VALID, condition::FALSE, why.reason(), why.to_string());
            condition::upsert(&mut new.conditions, valid, &now);
        }
        // Only what the leader has is called exported; until then the old word stands.
        None if written => {
            let message = "The Service is exported successfully";
            condition::upsert(
                &mut new.conditions,
                Condition::new(VALID, condition::TRUE, reason::SUCCEED, message),
                &now,
            );
        }
        None => {}
    }
    if let Some(session) = session {
        let conflict = invalid.is_none().then(|| conflict(session, export)).flatten();
        match conflict {
            Some(why) => {
                let conflict = Condition::new(CONFLICT, condition::TRUE, reason::CONFLICT, why);
                condition::upsert(&mut new.conditions, conflict, &now);
            }
            None => new.conditions.retain(|c| c.type_ != CONFLICT),
        }
    }
    if new != old {
        plan.status(
            Side::Local,
            export,
            &ServiceExportStatus {
                conditions: new.conditions,
            },
        );
    }
}

/// The leader's verdict on the export of the ports, when it is bad.
fn conflict(session: &Session<'_>, export: &ServiceExport) -> Option<String> {
    let namespace = export.namespace().unwrap_or_default();
    let name = names::service_export(session.cluster_id, &namespace, &export.name_any());
    let status = own(session, &name)?.status.as_ref()?;
    status
        .conditions
        .iter()
        .find(|c| c.type_ == FAILURE)
        .map(|c| c.message.clone())
}

/// Whether a Service is one this controller made.
#[must_use]
pub fn is_imported(service: &Service) -> bool {
    service
        .annotations()
        .contains_key(names::ANNOTATION_IMPORTED_SERVICE)
}
