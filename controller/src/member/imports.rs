//! Imported Services: `antrea-mc-<name>`, its endpoints by exporting cluster, and the `ServiceImport`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{EndpointSubset, Service, ServicePort as CorePort, ServiceSpec},
    api::discovery::v1::EndpointSlice,
};
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;

use super::{Session, exports::is_imported, slices};
use crate::{
    api::{
        names,
        resource_import::{EndpointsImport, ResourceImport, kind},
        service_import::{ExportingCluster, ServiceImport, ServiceImportStatus, ServicePort},
        validation,
    },
    plan::{Plan, Side},
    world::{Key, MemberWorld, get},
};

/// The endpoints of each exporting cluster; empty where the leader does not say whose they are.
type ByCluster = BTreeMap<String, Vec<slices::Group>>;

/// Everything offered exists here, and nothing else that we made.
pub fn plan(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) {
    let imports = || {
        session
            .leader
            .imports
            .values()
            .filter(|i| i.metadata.deletion_timestamp.is_none() && is_for(i, session.cluster_id))
    };
    let endpoints: BTreeMap<Key, &EndpointsImport> = imports()
        .filter(|i| i.spec.kind == kind::ENDPOINTS)
        .filter_map(|i| Some((key(i), i.spec.endpoints.as_ref()?)))
        .collect();
    let mut keep_services = BTreeSet::new();
    let mut keep_slices = BTreeSet::new();
    for import in imports().filter(|i| i.spec.kind == kind::SERVICE_IMPORT) {
        let Some(payload) = &import.spec.service_import else {
            continue;
        };
        let key = key(import);
        if !possible(world, &key, plan) {
            continue;
        }
        keep_services.insert(key.clone());
        let clusters = endpoints
            .get(&key)
            .map(|e| by_cluster(world, session, &key, e))
            .unwrap_or_default();
        if let Some(service) = put_service(world, &key, &payload.spec.ports, plan) {
            put_slices(world, service, &key.1, &clusters, &mut keep_slices, plan);
            put_import(world, &key, service, payload, &clusters, plan);
        }
    }
    withdraw(world, &keep_services, &keep_slices, plan);
}

/// No membership, no imports.
pub fn withdraw_all(world: &MemberWorld, plan: &mut Plan) {
    withdraw(world, &BTreeSet::new(), &BTreeSet::new(), plan);
}

fn key(import: &ResourceImport) -> Key {
    (import.spec.namespace.clone(), import.spec.name.clone())
}

/// The targets an import names; none means all.
fn is_for(import: &ResourceImport, cluster_id: &str) -> bool {
    import.spec.cluster_ids.is_empty() || import.spec.cluster_ids.iter().any(|c| c == cluster_id)
}

/// Whether the import can exist here; says why not.
fn possible(world: &MemberWorld, (namespace, name): &Key, plan: &mut Plan) -> bool {
    let subject = format!("ResourceImport {}", names::service_import(namespace, name));
    let service = names::imported_service(name);
    if let Err(cause) = validation::dns_label(&service, 63) {
        plan.notice(
            subject,
            format!("spec.name: {cause}: no Service can have this name"),
        );
        return false;
    }
    match get(&world.namespaces, "", namespace) {
        Some(found) if found.metadata.deletion_timestamp.is_none() => true,
        _ => {
            plan.notice(
                subject,
                format!(
                    "spec.namespace: Namespace {namespace:?} does not exist in this cluster; not imported"
                ),
            );
            false
        }
    }
}

/// The imported Service, once it exists and is ours.
fn put_service<'a>(
    world: &'a MemberWorld,
    (namespace, name): &Key,
    ports: &[ServicePort],
    plan: &mut Plan,
) -> Option<&'a Service> {
    let service_name = names::imported_service(name);
    let core: Vec<_> = ports.iter().map(core_port).collect();
    let Some(old) = get(&world.services, namespace, &service_name) else {
        let service = Service {
            metadata: ObjectMeta {
                name: Some(service_name),
                namespace: Some(namespace.clone()),
                annotations: Some(
                    [(names::ANNOTATION_IMPORTED_SERVICE.to_owned(), "true".to_owned())].into(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some("ClusterIP".to_owned()),
                ports: Some(core),
                ..ServiceSpec::default()
            }),
            status: None,
        };
        plan.create(Side::Local, &service);
        return None;
    };
    if !is_imported(old) {
        plan.notice(
            format!("Service {namespace}/{service_name}"),
            format!(
                "exists and was not imported: Service {namespace}/{name} of the ClusterSet cannot be imported"
            ),
        );
        return None;
    }
    if old.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let have = old
        .spec
        .as_ref()
        .and_then(|s| s.ports.as_deref())
        .unwrap_or_default();
    let same = have.len() == core.len()
        && have.iter().zip(&core).all(|(a, b)| {
            a.name.as_deref().unwrap_or_default() == b.name.as_deref().unwrap_or_default()
                && (a.port, a.protocol.as_deref().unwrap_or("TCP"))
                    == (b.port, b.protocol.as_deref().unwrap_or("TCP"))
        });
    if !same {
        plan.patch(Side::Local, old.as_ref(), json!({ "spec": { "ports": core } }));
    }
    Some(old)
}

fn core_port(port: &ServicePort) -> CorePort {
    CorePort {
        name: Some(port.name.clone()).filter(|n| !n.is_empty()),
        port: port.port,
        protocol: Some(if port.protocol.is_empty() {
            "TCP".to_owned()
        } else {
            port.protocol.clone()
        }),
        ..CorePort::default()
    }
}

/// The endpoints as this cluster is to use them: its own export becomes its own Pods.
fn by_cluster(
    world: &MemberWorld,
    session: &Session<'_>,
    (namespace, name): &Key,
    endpoints: &EndpointsImport,
) -> ByCluster {
    let local = || slices::from_local(world, namespace, name);
    if !endpoints.clusters.is_empty() {
        return endpoints
            .clusters
            .iter()
            .map(|c| {
                let own = c.cluster_id == session.cluster_id;
                (
                    c.cluster_id.clone(),
                    if own {
                        local()
                    } else {
                        slices::from_subsets(&c.subsets)
                    },
                )
            })
            .collect();
    }
    // A leader that is not ours: all subsets in one list. What is our own is known by its address.
    let own_export = names::endpoints_export(session.cluster_id, namespace, name);
    let own: Vec<EndpointSubset> = super::exports::own(session, &own_export)
        .and_then(|e| e.spec.endpoints.as_ref())
        .map(|e| e.subsets.clone())
        .unwrap_or_default();
    let own: BTreeSet<_> = own
        .iter()
        .flat_map(|s| s.addresses.iter().flatten())
        .map(|a| a.ip.as_str())
        .collect();
    let is_own = |ip: &str| own.contains(ip) || world.service_cidr.is_some_and(|cidr| within(cidr, ip));
    let mut others = endpoints.subsets.clone();
    let mut exported = false;
    for subset in &mut others {
        let addresses = subset.addresses.get_or_insert_default();
        let before = addresses.len();
        addresses.retain(|a| !is_own(&a.ip));
        exported |= addresses.len() != before;
    }
    let mut clusters = ByCluster::from([(String::new(), slices::from_subsets(&others))]);
    if exported {
        clusters.insert(session.cluster_id.to_owned(), local());
    }
    clusters
}

fn within(cidr: IpNet, ip: &str) -> bool {
    ip.parse::<IpAddr>().is_ok_and(|ip| cidr.contains(&ip))
}

fn put_slices(
    world: &MemberWorld,
    service: &Service,
    name: &str,
    clusters: &ByCluster,
    keep: &mut BTreeSet<Key>,
    plan: &mut Plan,
) {
    for (cluster, groups) in clusters {
        for slice in slices::build(service, name, cluster, groups.clone()) {
            let key = (slice.namespace().unwrap_or_default(), slice.name_any());
            if world
                .slices
                .get(&key)
                .is_none_or(|old| !slices::same(old, &slice))
            {
                plan.apply(Side::Local, &slice);
            }
            keep.insert(key);
        }
    }
}

fn put_import(
    world: &MemberWorld,
    (namespace, name): &Key,
    service: &Service,
    payload: &ServiceImport,
    clusters: &ByCluster,
    plan: &mut Plan,
) {
    let ip = service
        .spec
        .as_ref()
        .and_then(|s| s.cluster_ip.clone())
        .filter(|ip| !ip.is_empty());
    let mut spec = payload.spec.clone();
    spec.ips = ip.into_iter().collect();
    let old = get(&world.service_imports, namespace, name);
    // One with our Service's address was made by another implementation of this API: we go on with it.
    if let Some(old) = old.filter(|o| !made_by_us(o) && o.spec.ips != spec.ips) {
        plan.notice(
            format!("ServiceImport {namespace}/{name}"),
            format!(
                "was made by somebody else (spec.ips {:?}); left alone",
                old.spec.ips
            ),
        );
        return;
    }
    if old.is_none_or(|o| o.spec != spec || !made_by_us(o)) {
        let mut import = ServiceImport::new(name, spec);
        import.metadata.namespace = Some(namespace.clone());
        import
            .labels_mut()
            .insert(names::LABEL_MADE_BY.to_owned(), names::MANAGED_BY.to_owned());
        plan.apply(Side::Local, &import);
    }
    let Some(old) = old else { return };
    let status = ServiceImportStatus {
        clusters: clusters
            .keys()
            .filter(|c| !c.is_empty())
            .map(|c| ExportingCluster { cluster: c.clone() })
            .collect(),
    };
    if old.status.clone().unwrap_or_default() != status {
        plan.status(Side::Local, old.as_ref(), &json!({ "clusters": status.clusters }));
    }
}

fn made_by_us(import: &ServiceImport) -> bool {
    import
        .labels()
        .get(names::LABEL_MADE_BY)
        .is_some_and(|v| v == names::MANAGED_BY)
}

/// Deletes what we made and nobody offers any more: endpoints, then the Service, then the `ServiceImport`.
fn withdraw(world: &MemberWorld, services: &BTreeSet<Key>, slices: &BTreeSet<Key>, plan: &mut Plan) {
    let gone = |key: &Key, slice: &EndpointSlice| slices::is_ours(slice) && !slices.contains(key);
    for (key, slice) in world.slices.iter() {
        // While the Service is being written anew its endpoints are not known to be wrong.
        let settled = slice
            .labels()
            .get(names::LABEL_MCS_SERVICE_NAME)
            .is_none_or(|name| !services.contains(&(key.0.clone(), name.clone())) || has_owner(world, slice));
        if gone(key, slice) && settled {
            plan.delete(Side::Local, slice.as_ref());
        }
    }
    for ((namespace, name), service) in world.services.iter().filter(|(_, s)| is_imported(s)) {
        let Some(of) = names::imported_from(name) else {
            continue;
        };
        if !services.contains(&(namespace.clone(), of.to_owned())) {
            plan.delete(Side::Local, service.as_ref());
        }
    }
    for (key, import) in world.service_imports.iter().filter(|(_, i)| made_by_us(i)) {
        if !services.contains(key) {
            plan.delete(Side::Local, import.as_ref());
        }
    }
}

fn has_owner(world: &MemberWorld, slice: &EndpointSlice) -> bool {
    let owner = slice.metadata.owner_references.iter().flatten().next();
    let service = owner.and_then(|o| get(&world.services, &slice.namespace().unwrap_or_default(), &o.name));
    service.is_some()
}
