//! `ServiceExport`s: what this cluster offers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Service, ServicePort, ServiceSpec,
};
use kube::{ResourceExt, core::ObjectMeta};

use super::{
    Session,
    families::{Family, Reach},
    slices::{self, ByService},
};
use crate::{
    api::{
        condition::{self, Condition},
        config::EndpointIpType,
        names,
        resource_export::{
            EndpointsExport, FAILURE, ResourceExport, ResourceExportSpec, SUCCEEDED, ServiceExportPayload,
            kind,
        },
        service_export::{
            CONFLICT, READY, ServiceExport, ServiceExportStatus, VALID, conflict, ready, reason,
        },
        service_import::{NO_CLUSTER_IP, is_headless},
        validation,
    },
    claim::{self, Claim, Tuple},
    plan::{Kind, Plan, Side, Target},
    world::{MemberWorld, get, time},
};

/// How long the leader's first word about an export is waited for before anything is said of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a Service is not exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// There is none.
    #[error("Service does not exist")]
    NotFound,
    /// `ExternalName`.
    #[error("Service of ExternalName type is not supported")]
    TypeNotSupported,
    /// None yet, or only of an IP family whose Service CIDR is not known.
    #[error("Service does not have a valid ClusterIP")]
    NoClusterIp,
    /// Nothing would answer.
    #[error("Service has no Endpoints")]
    WithoutEndpoints,
    /// It is an import itself.
    #[error("The Service is imported, not allowed to export")]
    Imported,
    /// Another `ServiceExport` comes to the same name in the leader cluster, and has it.
    #[error("the name {name:?} in the leader cluster is taken by ServiceExport {}/{}", of.0, of.1)]
    NameTaken {
        /// Of the `ResourceExport`.
        name: String,
        /// Namespace and name of the other.
        of: Tuple,
    },
    /// No object could carry them.
    #[error("spec.{field}: {cause}")]
    Metadata {
        /// Which.
        field: &'static str,
        /// Why.
        cause: validation::Invalid,
    },
}

/// What a valid export offers.
struct Offer {
    service: ServiceExportPayload,
    subsets: Vec<EndpointSubset>,
}

// === impl Invalid ===

impl Invalid {
    fn reason(&self) -> &'static str {
        match self {
            Self::NotFound => reason::NOT_FOUND,
            Self::TypeNotSupported => reason::TYPE_NOT_SUPPORTED,
            Self::NoClusterIp => reason::NO_CLUSTER_IP,
            Self::WithoutEndpoints => reason::WITHOUT_ENDPOINTS,
            Self::Imported => reason::IMPORTED,
            Self::NameTaken { .. } => reason::NAME_TAKEN,
            Self::Metadata { .. } => reason::INVALID_METADATA,
        }
    }
}

/// Two exports for each valid `ServiceExport`, none for any other, and a status for all.
pub fn plan(world: &MemberWorld, session: Option<&Session<'_>>, slices: &ByService<'_>, plan: &mut Plan) {
    if world.service_cidrs.is_empty() {
        // Found out in a moment; until then no address can be called unreachable, and nothing is withdrawn.
        return;
    }
    let reach = Reach::of(world);
    let offers: Vec<_> = world
        .service_exports
        .values()
        .filter(|e| e.metadata.deletion_timestamp.is_none())
        .map(|export| (export.as_ref(), offer(world, &reach, slices, export)))
        .collect();
    let taken = session
        .map(|session| owners(session, &offers))
        .unwrap_or_default();
    let mut wanted = BTreeSet::new();
    for (export, offer) in offers {
        let offer = offer.and_then(|offer| own_name(&taken, session, export).map(|()| offer));
        let mut written = session.is_some();
        if let (Some(session), Ok(offer)) = (session, &offer) {
            for (name, spec) in specs(session, export, offer) {
                written &= put(session, &name, spec.clone(), plan);
                wanted.insert(name);
            }
        }
        status(world, session, export, offer.err().as_ref(), written, plan);
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

fn tuple(export: &ServiceExport) -> Tuple {
    (export.namespace().unwrap_or_default(), export.name_any())
}

/// What the two exports of a Service are called: its own, and that of its endpoints.
fn export_names(session: &Session<'_>, (namespace, name): &Tuple) -> [String; 2] {
    [
        names::service_export(session.cluster_id, namespace, name),
        names::endpoints_export(session.cluster_id, namespace, name),
    ]
}

/// Whose the names of the exports are.
fn owners(
    session: &Session<'_>,
    offers: &[(&ServiceExport, Result<Offer, Invalid>)],
) -> BTreeMap<String, Tuple> {
    let valid = offers.iter().filter(|(_, offer)| offer.is_ok());
    claim::owners(valid.map(|(export, _)| {
        let of = tuple(export);
        let names = export_names(session, &of);
        // Somebody may have deleted one of the two.
        let mut there = names.iter().filter_map(|name| own(session, name));
        let has = there.any(|e| (&e.spec.namespace, &e.spec.name) == (&of.0, &of.1));
        let [name, _] = names;
        let since = export.creation_timestamp();
        Claim { name, of, has, since }
    }))
}

fn own_name(
    owners: &BTreeMap<String, Tuple>,
    session: Option<&Session<'_>>,
    export: &ServiceExport,
) -> Result<(), Invalid> {
    let of = tuple(export);
    let name = session.map(|session| names::service_export(session.cluster_id, &of.0, &of.1));
    match name.and_then(|name| owners.get_key_value(&name)) {
        Some((name, owner)) if *owner != of => Err(Invalid::NameTaken {
            name: name.clone(),
            of: owner.clone(),
        }),
        _ => Ok(()),
    }
}

/// This cluster's export of that name.
pub(super) fn own<'a>(session: &Session<'a>, name: &str) -> Option<&'a ResourceExport> {
    get(&session.leader.exports, session.leader_namespace, name).map(AsRef::as_ref)
}

/// Writes the export unless it is that already; says whether it was.
pub(super) fn put(session: &Session<'_>, name: &str, spec: ResourceExportSpec, plan: &mut Plan) -> bool {
    let old = own(session, name);
    if let Some(old) = old {
        // One that is on its way out is written anew when it is gone.
        if old.metadata.deletion_timestamp.is_some() {
            return false;
        }
        // What an export is of never changes, the leader cluster does not admit that.
        let of_service = [kind::SERVICE, kind::ENDPOINTS].contains(&spec.kind.as_str());
        if of_service && (&old.spec.namespace, &old.spec.name) != (&spec.namespace, &spec.name) {
            plan.delete(Side::Leader, old);
            return false;
        }
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
    let of = tuple(export);
    let [service, endpoints] = export_names(session, &of);
    let (namespace, name) = of;
    let base = ResourceExportSpec {
        cluster_id: session.cluster_id.to_owned(),
        name,
        namespace,
        ..ResourceExportSpec::default()
    };
    [
        (
            service,
            ResourceExportSpec {
                kind: kind::SERVICE.to_owned(),
                service: Some(Box::new(offer.service.clone())),
                ..base.clone()
            },
        ),
        (
            endpoints,
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

fn offer(
    world: &MemberWorld,
    reach: &Reach,
    slices: &ByService<'_>,
    export: &ServiceExport,
) -> Result<Offer, Invalid> {
    let (namespace, name) = (export.namespace().unwrap_or_default(), export.name_any());
    let service = get(&world.services, &namespace, &name)
        .filter(|s| s.metadata.deletion_timestamp.is_none())
        .ok_or(Invalid::NotFound)?;
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return Err(Invalid::TypeNotSupported);
    }
    if is_imported(service) {
        return Err(Invalid::Imported);
    }
    let metadata = export.spec.clone().unwrap_or_default();
    validation::exported(&metadata.exported_labels, &metadata.exported_annotations)
        .map_err(|(field, cause)| Invalid::Metadata { field, cause })?;
    let headless = is_headless(&spec);
    let by_pods = headless || world.config.endpoint_ip_type == EndpointIpType::PodIp;
    let cluster_ips = cluster_ips(&spec, &reach.services);
    if !headless && cluster_ips.is_empty() {
        return Err(Invalid::NoClusterIp);
    }
    let pods = pod_subsets(slices, reach, &namespace, &name, headless);
    if pods.is_empty() {
        return Err(Invalid::WithoutEndpoints);
    }
    let subsets = if by_pods {
        pods
    } else {
        vec![EndpointSubset {
            addresses: Some(cluster_ips.iter().map(|ip| address(ip.to_string())).collect()),
            not_ready_addresses: None,
            ports: Some(spec.ports.iter().flatten().map(endpoint_port).collect()),
        }]
    };
    let service = ServiceExportPayload {
        service_spec: exported(&spec, headless, &cluster_ips),
        exported_labels: metadata.exported_labels,
        exported_annotations: metadata.exported_annotations,
    };
    Ok(Offer { service, subsets })
}

/// Of the Service what imports show.
fn exported(spec: &ServiceSpec, headless: bool, cluster_ips: &[IpAddr]) -> ServiceSpec {
    // Families whose addresses nobody could reach from elsewhere are not promised.
    let families = spec.ip_families.as_ref().map(|families| {
        let reachable = |family: &&String| {
            headless
                || cluster_ips
                    .iter()
                    .any(|ip| Family::of(*ip).name() == family.as_str())
        };
        families.iter().filter(reachable).cloned().collect()
    });
    ServiceSpec {
        ports: Some(spec.ports.iter().flatten().map(exported_port).collect()),
        cluster_ip: headless.then(|| NO_CLUSTER_IP.to_owned()),
        ip_families: families,
        session_affinity: spec.session_affinity.clone(),
        session_affinity_config: spec.session_affinity_config.clone(),
        internal_traffic_policy: spec.internal_traffic_policy.clone(),
        traffic_distribution: spec.traffic_distribution.clone(),
        ..ServiceSpec::default()
    }
}

/// The cluster IPs other clusters have a way to, at most one of each family.
fn cluster_ips(spec: &ServiceSpec, reachable: &BTreeSet<Family>) -> Vec<IpAddr> {
    let many = spec.cluster_ips.iter().flatten();
    let mut seen = BTreeSet::new();
    many.chain(&spec.cluster_ip)
        .filter_map(|ip| validation::ip(ip).ok())
        .filter(|ip| reachable.contains(&Family::of(*ip)) && seen.insert(Family::of(*ip)))
        .collect()
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

/// The ready endpoints of a Service in the IP families of Pods, one subset for each set of ports. Those of a
/// headless one have names.
fn pod_subsets(
    slices: &ByService<'_>,
    reach: &Reach,
    namespace: &str,
    name: &str,
    headless: bool,
) -> Vec<EndpointSubset> {
    type Port = (Option<String>, i32, String, Option<String>);
    let mut by_ports: BTreeMap<Vec<Port>, BTreeMap<String, Option<String>>> = BTreeMap::new();
    for slice in slices.of(namespace, name) {
        if !reach.pods.iter().any(|f| f.name() == slice.address_type) {
            continue;
        }
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
        let ready = slice.endpoints.iter().filter(|e| slices::is_ready(e));
        by_ports.entry(ports).or_default().extend(ready.filter_map(|e| {
            Some((
                e.addresses.first()?.clone(),
                e.hostname.clone().filter(|_| headless),
            ))
        }));
    }
    let subset = |(ports, ips): (Vec<Port>, BTreeMap<String, Option<String>>)| EndpointSubset {
        addresses: Some(
            ips.into_iter()
                .map(|(ip, hostname)| EndpointAddress {
                    hostname,
                    ..address(ip)
                })
                .collect(),
        ),
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
    };
    // A headless Service may do without ports.
    by_ports
        .into_iter()
        .filter(|(ports, ips)| (headless || !ports.is_empty()) && !ips.is_empty())
        .map(subset)
        .collect()
}

fn status(
    world: &MemberWorld,
    session: Option<&Session<'_>>,
    export: &ServiceExport,
    invalid: Option<&Invalid>,
    written: bool,
    plan: &mut Plan,
) {
    let now = time(world.now);
    let old = export.status.clone().unwrap_or_default();
    let mut new = old.clone();
    let refused = session.and_then(|session| refused(world, session, export));
    if invalid.is_none()
        && refused.is_none()
        && let Some(until) = hold_back(world, session, export)
    {
        plan.wake(until);
        return;
    }
    if let Some(why) = refused.as_ref().filter(|_| invalid.is_none() && !written) {
        plan.remark(Side::Local, export, ready::FAILED, why.as_str());
    }
    let mut say = |condition| condition::upsert(&mut new.conditions, condition, &now);
    match invalid {
        Some(why) => {
            let why = (why.reason(), why.to_string());
            plan.remark(Side::Local, export, why.0, why.1.clone());
            say(Condition::new(VALID, condition::FALSE, why.0, why.1.clone()));
            say(Condition::new(READY, condition::FALSE, ready::FAILED, why.1));
        }
        // Only what the leader has is called exported; until then the old word stands.
        None if written => {
            let message = "The Service is exported successfully";
            say(Condition::new(VALID, condition::TRUE, reason::SUCCEED, message));
            say(match session.and_then(|session| failure(session, export)) {
                Some(why) => Condition::new(READY, condition::FALSE, ready::FAILED, why),
                None => Condition::new(READY, condition::TRUE, ready::EXPORTED, message),
            });
        }
        None if refused.is_some() => {
            say(Condition::new(
                READY,
                condition::FALSE,
                ready::FAILED,
                refused.unwrap_or_default(),
            ));
        }
        None if old.conditions.iter().all(|c| c.type_ != READY) => {
            let message = "The leader does not have it yet";
            say(Condition::new(READY, condition::FALSE, ready::PENDING, message));
        }
        None => {}
    }
    if let Some(session) = session {
        match invalid.is_none().then(|| conflict_of(session, export)).flatten() {
            Some(conflict) => {
                plan.remark(
                    Side::Local,
                    export,
                    conflict.reason.clone(),
                    conflict.message.clone(),
                );
                say(conflict);
            }
            None if invalid.is_none() && verdict(session, export, SUCCEEDED).is_some() => {
                say(Condition::new(
                    CONFLICT,
                    condition::FALSE,
                    conflict::NONE,
                    "No cluster contradicts it",
                ));
            }
            None => new.conditions.retain(|c| c.type_ != CONFLICT),
        }
    }
    // Those of others, if any, stand behind.
    let order = [VALID, READY, CONFLICT];
    new.conditions
        .sort_by_key(|c| order.iter().position(|t| *t == c.type_).unwrap_or(order.len()));
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

/// Until when nothing is said of a young export that the leader has yet to judge: its word comes in a moment, and one
/// write tells all.
fn hold_back(
    world: &MemberWorld,
    session: Option<&Session<'_>>,
    export: &ServiceExport,
) -> Option<Timestamp> {
    let conditions = export.status.iter().flat_map(|s| &s.conditions);
    let is_said = conditions.into_iter().any(|c| c.type_ == READY);
    let session = session?;
    let is_judged = [SUCCEEDED, FAILURE]
        .iter()
        .any(|type_| verdict(session, export, type_).is_some());
    if is_said || is_judged {
        return None;
    }
    let made = export.creation_timestamp()?.0;
    let until = made.checked_add(PATIENCE).ok()?;
    // A clock that is behind the API server's keeps nobody waiting.
    (made <= world.now && world.now < until).then_some(until)
}

/// Why the leader's API server takes one of the two exports of the Service not.
fn refused(world: &MemberWorld, session: &Session<'_>, export: &ServiceExport) -> Option<String> {
    export_names(session, &tuple(export))
        .into_iter()
        .find_map(|name| {
            let target = Target {
                side: Side::Leader,
                kind: Kind::ResourceExport,
                namespace: session.leader_namespace.to_owned(),
                name,
            };
            let why = world.failing.get(&target)?;
            Some(format!(
                "The leader cluster does not take ResourceExport {}: {why}",
                target.name
            ))
        })
}

/// What the leader says about the export of the Service, by condition type.
fn verdict<'a>(session: &Session<'a>, export: &ServiceExport, type_: &str) -> Option<&'a Condition> {
    let namespace = export.namespace().unwrap_or_default();
    let name = names::service_export(session.cluster_id, &namespace, &export.name_any());
    let status = own(session, &name)?.status.as_ref()?;
    status.conditions.iter().find(|c| c.type_ == type_)
}

/// Why the leader does not import it.
fn failure(session: &Session<'_>, export: &ServiceExport) -> Option<String> {
    verdict(session, export, FAILURE).map(|c| c.message.clone())
}

/// What other clusters contradict, in the leader's words. Antrea's leader knows failures only.
fn conflict_of(session: &Session<'_>, export: &ServiceExport) -> Option<Condition> {
    if let Some(said) = verdict(session, export, CONFLICT) {
        return Some(Condition::new(
            CONFLICT,
            condition::TRUE,
            &said.reason,
            said.message.clone(),
        ));
    }
    let why = failure(session, export)?;
    Some(Condition::new(
        CONFLICT,
        condition::TRUE,
        conflict::UNSPECIFIED,
        why,
    ))
}

/// Whether a Service is one this controller made.
#[must_use]
pub fn is_imported(service: &Service) -> bool {
    service
        .annotations()
        .contains_key(names::ANNOTATION_IMPORTED_SERVICE)
}
