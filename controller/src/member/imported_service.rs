//! The Service of an import: `antrea-mc-<name>`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort as CorePort, ServiceSpec};
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    condition::{self, Condition},
    names,
    service_import::{HEADLESS, NO_CLUSTER_IP, READY, ServiceImportSpec, ServicePort, is_headless, reason},
};
use mc_kube::NamespacedName;
use serde_json::json;

use super::{
    import_failure::{IMPORT_FAILED, report_failure},
    import_owner,
    ip_families::IpFamily,
};
use crate::{
    plan::{ApiServer, Kind, ObjectRef, Plan},
    snapshot::{MemberSnapshot, get},
};

/// Values of `sessionAffinity` and `internalTrafficPolicy` (core/v1).
const CLIENT_IP: &str = "ClientIP";
const LOCAL: &str = "Local";
/// The default timeout of session affinity (core/v1, `DefaultClientIPServiceAffinitySeconds`).
const AFFINITY_SECONDS: i32 = 10_800;

/// The longest name of a Service (RFC 1035, as the API server requires).
pub(super) const MAX_SERVICE_NAME: usize = 63;

/// Whether a Service is an import.
#[must_use]
pub fn is_imported(service: &Service) -> bool {
    service
        .annotations()
        .contains_key(names::ANNOTATION_IMPORTED_SERVICE)
}

/// Whether a Service is an import, and not of another member controller.
pub(super) fn is_own_import(snapshot: &MemberSnapshot, service: &Service) -> bool {
    is_imported(service) && import_owner::other_owner(snapshot, service).is_none()
}

/// State of the Service of an import.
pub(super) enum ImportedService<'a> {
    /// It exists.
    Present(&'a Service),
    /// It is being created or deleted.
    Pending,
    /// A Service of another owner has its name.
    Foreign {
        /// The report.
        message: String,
    },
}

impl<'a> ImportedService<'a> {
    /// The Service that exists.
    pub(super) fn present(&self) -> Option<&'a Service> {
        match self {
            Self::Present(service) => Some(service),
            Self::Pending | Self::Foreign { .. } => None,
        }
    }
}

/// Keeps the imported Service.
pub(super) fn apply_service<'a>(
    snapshot: &'a MemberSnapshot,
    NamespacedName { namespace, name }: &NamespacedName,
    import: &ServiceImportSpec,
    plan: &mut Plan,
) -> ImportedService<'a> {
    let service_name = names::imported_service(name);
    let desired = service_spec(import);
    let Some(old) = get(&snapshot.services, namespace, &service_name) else {
        let mut service = Service {
            metadata: ObjectMeta {
                name: Some(service_name),
                namespace: Some(namespace.clone()),
                annotations: Some(
                    [(names::ANNOTATION_IMPORTED_SERVICE.to_owned(), "true".to_owned())].into(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(desired),
            status: None,
        };
        import_owner::mark(snapshot, &mut service);
        plan.create(ApiServer::Local, &service);
        return ImportedService::Pending;
    };
    if !is_imported(old) {
        let message = format!(
            "exists and is not an import: Service {namespace}/{name} of the ClusterSet cannot be imported"
        );
        report_failure(old.as_ref(), message.clone(), plan);
        return ImportedService::Foreign { message };
    }
    if let Some(owner) = import_owner::other_owner(snapshot, old.as_ref()) {
        let message = format!(
            "{}: Service {namespace}/{name} of this controller's ClusterSet cannot be imported",
            import_owner::conflict(owner)
        );
        report_failure(old.as_ref(), message.clone(), plan);
        return ImportedService::Foreign { message };
    }
    if old.metadata.deletion_timestamp.is_some() {
        return ImportedService::Pending;
    }
    let current = old.spec.clone().unwrap_or_default();
    if needs_recreate(&current, &desired) {
        // These fields are immutable: the next reconcile creates the Service again.
        plan.delete(ApiServer::Local, old.as_ref());
        return ImportedService::Pending;
    }
    let same = same_ports(
        current.ports.as_deref().unwrap_or_default(),
        desired.ports.as_deref().unwrap_or_default(),
    ) && traffic_settings(&current) == traffic_settings(&desired);
    if !same {
        let mark = json!({ names::ANNOTATION_IMPORT_OWNER: snapshot.namespace });
        let patch = json!({ "metadata": { "annotations": mark }, "spec": {
            "ipFamilyPolicy": desired.ip_family_policy,
            "ports": desired.ports,
            "sessionAffinity": desired.session_affinity.as_deref().unwrap_or("None"),
            "sessionAffinityConfig": desired.session_affinity_config,
            "internalTrafficPolicy": desired.internal_traffic_policy,
            "trafficDistribution": desired.traffic_distribution,
        } });
        plan.patch(ApiServer::Local, old.as_ref(), patch);
        if let Some(why) = snapshot
            .persistent_failures
            .get(&ObjectRef::new(ApiServer::Local, old.as_ref()))
        {
            let message = format!("cannot be updated to the spec of the ClusterSet: {why}");
            plan.warning_event(ApiServer::Local, old.as_ref(), IMPORT_FAILED, message);
        }
    } else if !import_owner::is_marked(snapshot, old.as_ref()) {
        let mark = json!({ names::ANNOTATION_IMPORT_OWNER: snapshot.namespace });
        plan.patch(
            ApiServer::Local,
            old.as_ref(),
            json!({ "metadata": { "annotations": mark } }),
        );
    }
    ImportedService::Present(old)
}

/// The Ready condition of an import whose Service the API server rejects.
pub(super) fn rejection(
    snapshot: &MemberSnapshot,
    NamespacedName { namespace, name }: &NamespacedName,
    import: &ServiceImportSpec,
) -> Option<Condition> {
    let target = ObjectRef {
        side: ApiServer::Local,
        kind: Kind::Service,
        namespace: namespace.clone(),
        name: names::imported_service(name),
    };
    if get(&snapshot.services, namespace, &target.name).is_some() {
        return None;
    }
    let why = snapshot.persistent_failures.get(&target)?;
    let local: BTreeSet<_> = snapshot
        .service_cidrs
        .iter()
        .map(|net| IpFamily::from_addr(net.addr()).name())
        .collect();
    let foreign = !import.ip_families.iter().any(|f| local.contains(f.as_str()));
    Some(if foreign && !import.ip_families.is_empty() {
        let message = format!(
            "This cluster has no {}: its API server rejects Service {}: {why}",
            import.ip_families.join(", "),
            target.name
        );
        Condition::new(READY, condition::FALSE, reason::IP_FAMILY_NOT_SUPPORTED, message)
    } else {
        let message = format!("The API server rejects Service {}: {why}", target.name);
        Condition::new(READY, condition::FALSE, reason::PENDING, message)
    })
}

/// The spec of the imported Service.
fn service_spec(import: &ServiceImportSpec) -> ServiceSpec {
    let headless = import.type_ == HEADLESS;
    let families: BTreeSet<_> = import.ip_families.iter().map(String::as_str).collect();
    // Of two families this cluster uses those it has, in its own order. Exports without families are older than dual
    // stack.
    let (policy, families) = match families.len() {
        2 => ("PreferDualStack", None),
        1 => ("SingleStack", Some(import.ip_families.clone())),
        _ => ("SingleStack", None),
    };
    let affinity = Some(import.session_affinity.clone()).filter(|a| a == CLIENT_IP && !headless);
    let config = import
        .session_affinity_config
        .clone()
        .filter(|_| affinity.is_some());
    ServiceSpec {
        type_: Some("ClusterIP".to_owned()),
        cluster_ip: headless.then(|| NO_CLUSTER_IP.to_owned()),
        ip_family_policy: Some(policy.to_owned()),
        ip_families: families,
        ports: Some(import.ports.iter().map(core_port).collect()).filter(|p: &Vec<_>| !p.is_empty()),
        session_affinity: affinity,
        // An invalid one is replaced by the API server's default.
        session_affinity_config: config.and_then(|c| serde_json::from_value(c).ok()),
        internal_traffic_policy: import
            .internal_traffic_policy
            .clone()
            .filter(|p| p == LOCAL && !headless),
        traffic_distribution: import.traffic_distribution.clone(),
        ..ServiceSpec::default()
    }
}

/// Whether an immutable field differs: headless or not, the first IP family.
fn needs_recreate(current: &ServiceSpec, desired: &ServiceSpec) -> bool {
    let first = |s: &ServiceSpec| s.ip_families.iter().flatten().next().cloned();
    let other_family = first(desired)
        .zip(first(current))
        .is_some_and(|(desired, current)| desired != current);
    is_headless(current) != is_headless(desired) || other_family
}

fn same_ports(current: &[CorePort], desired: &[CorePort]) -> bool {
    current.len() == desired.len()
        && current.iter().zip(desired).all(|(a, b)| {
            a.name.as_deref().unwrap_or_default() == b.name.as_deref().unwrap_or_default()
                && a.app_protocol == b.app_protocol
                && (a.port, a.protocol.as_deref().unwrap_or("TCP"))
                    == (b.port, b.protocol.as_deref().unwrap_or("TCP"))
        })
}

/// The settings of connection distribution, with the API server's defaults.
fn traffic_settings(spec: &ServiceSpec) -> (String, String, Option<i32>, String, Option<String>) {
    let or = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_owned());
    let affinity = or(&spec.session_affinity, "None");
    let config = spec
        .session_affinity_config
        .as_ref()
        .and_then(|c| c.client_ip.as_ref());
    let timeout = config.and_then(|c| c.timeout_seconds).unwrap_or(AFFINITY_SECONDS);
    (
        or(&spec.ip_family_policy, "SingleStack"),
        affinity.clone(),
        (affinity == CLIENT_IP).then_some(timeout),
        or(&spec.internal_traffic_policy, "Cluster"),
        spec.traffic_distribution.clone(),
    )
}

fn core_port(port: &ServicePort) -> CorePort {
    CorePort {
        name: Some(port.name.clone()).filter(|n| !n.is_empty()),
        app_protocol: port.app_protocol.clone(),
        port: port.port,
        protocol: Some(if port.protocol.is_empty() {
            "TCP".to_owned()
        } else {
            port.protocol.clone()
        }),
        ..CorePort::default()
    }
}
