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

use super::{
    Session,
    exports::is_imported,
    families::Family,
    slices::{self, ByService},
};
use crate::{
    api::{
        condition::{self, Condition},
        names,
        resource_import::{EndpointsImport, ResourceImport, kind},
        service_import::{
            ABSENT, CLUSTER_SET_IP, ExportingCluster, HEADLESS, NO_CLUSTER_IP, PRESENT, READY, ServiceImport,
            ServiceImportSpec, ServiceImportStatus, ServicePort, is_headless, reason,
        },
        validation,
    },
    plan::{Kind, Known, Plan, Side, Target},
    world::{Key, MemberWorld, get, time},
};

/// The reason of Events about these imports.
pub const IMPORT_FAILED: &str = "ServiceImportFailed";

/// Values of `sessionAffinity` and `internalTrafficPolicy` (core/v1).
const CLIENT_IP: &str = "ClientIP";
const LOCAL: &str = "Local";
/// How long affinity lasts unless said otherwise (core/v1, `DefaultClientIPServiceAffinitySeconds`).
const AFFINITY_SECONDS: i32 = 10_800;

/// The endpoints of each exporting cluster; empty where the leader does not say whose they are.
type ByCluster = BTreeMap<String, Vec<slices::Group>>;

/// Everything offered exists here, and nothing else that we made.
pub fn plan(world: &MemberWorld, session: &Session<'_>, local: &ByService<'_>, plan: &mut Plan) {
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
            .map(|e| by_cluster(world, local, session, &key, e))
            .unwrap_or_default();
        if let Some(service) = put_service(world, &key, &payload.spec, plan) {
            put_slices(world, service, &key.1, &clusters, &mut keep_slices, plan);
            let have = service.spec.clone().unwrap_or_default();
            put_import(world, &key, &have, payload, (&clusters, None), plan);
        } else if let Some(why) = refused(world, &key, &payload.spec) {
            // Nothing of ours has to be told on: the import is there without an address and says why.
            let none = ServiceSpec::default();
            put_import(world, &key, &none, payload, (&clusters, Some(why)), plan);
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
pub(crate) fn is_for(import: &ResourceImport, cluster_id: &str) -> bool {
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
    import: &ServiceImportSpec,
    plan: &mut Plan,
) -> Option<&'a Service> {
    let service_name = names::imported_service(name);
    let wanted = service_spec(import);
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
            spec: Some(wanted),
            status: None,
        };
        plan.create(Side::Local, &service);
        return None;
    };
    if !is_imported(old) {
        let message = format!(
            "exists and was not imported: Service {namespace}/{name} of the ClusterSet cannot be imported"
        );
        fail(old.as_ref(), message, plan);
        return None;
    }
    if old.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let have = old.spec.clone().unwrap_or_default();
    if recreate(&have, &wanted) {
        // What the API server lets nobody change; the next look creates it anew.
        plan.delete(Side::Local, old.as_ref());
        return None;
    }
    let same = same_ports(
        have.ports.as_deref().unwrap_or_default(),
        wanted.ports.as_deref().unwrap_or_default(),
    ) && rules(&have) == rules(&wanted);
    if !same {
        let patch = json!({ "spec": {
            "ipFamilyPolicy": wanted.ip_family_policy,
            "ports": wanted.ports,
            "sessionAffinity": wanted.session_affinity.as_deref().unwrap_or("None"),
            "sessionAffinityConfig": wanted.session_affinity_config,
            "internalTrafficPolicy": wanted.internal_traffic_policy,
            "trafficDistribution": wanted.traffic_distribution,
        } });
        plan.patch(Side::Local, old.as_ref(), patch);
        if let Some(why) = world.failing.get(&Target::of(Side::Local, old.as_ref())) {
            let message = format!("cannot be made what the ClusterSet says: {why}");
            plan.remark(Side::Local, old.as_ref(), IMPORT_FAILED, message);
        }
    }
    Some(old)
}

/// Why the API server of this cluster does not take the Service that is not there, with the reason.
fn refused(world: &MemberWorld, (namespace, name): &Key, import: &ServiceImportSpec) -> Option<Condition> {
    let target = Target {
        side: Side::Local,
        kind: Kind::Service,
        namespace: namespace.clone(),
        name: names::imported_service(name),
    };
    if get(&world.services, namespace, &target.name).is_some() {
        return None;
    }
    let why = world.failing.get(&target)?;
    let here: BTreeSet<_> = world
        .service_cidrs
        .iter()
        .map(|net| Family::of(net.addr()).name())
        .collect();
    let foreign = !import.ip_families.iter().any(|f| here.contains(f.as_str()));
    Some(if foreign && !import.ip_families.is_empty() {
        let message = format!(
            "This cluster has no {}: its API server does not take Service {}: {why}",
            import.ip_families.join(", "),
            target.name
        );
        Condition::new(READY, condition::FALSE, reason::IP_FAMILY_NOT_SUPPORTED, message)
    } else {
        let message = format!("The API server does not take Service {}: {why}", target.name);
        Condition::new(READY, condition::FALSE, reason::PENDING, message)
    })
}

/// Says so in the log and on the object.
fn fail<K: Known>(object: &K, message: String, plan: &mut Plan) {
    plan.remark(Side::Local, object, IMPORT_FAILED, message.clone());
    plan.notice(Target::of(Side::Local, object).to_string(), message);
}

/// What the Service of an import is created with.
fn service_spec(import: &ServiceImportSpec) -> ServiceSpec {
    let headless = import.type_ == HEADLESS;
    let families: BTreeSet<_> = import.ip_families.iter().map(String::as_str).collect();
    // Of two families this cluster uses those it has, in its own order. Who says nothing is older than dual stack.
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
        // One that cannot be read is left to the API server's default.
        session_affinity_config: config.and_then(|c| serde_json::from_value(c).ok()),
        internal_traffic_policy: import
            .internal_traffic_policy
            .clone()
            .filter(|p| p == LOCAL && !headless),
        traffic_distribution: import.traffic_distribution.clone(),
        ..ServiceSpec::default()
    }
}

/// Whether the Service is of another kind than wanted: with an address or without, of another first family.
fn recreate(have: &ServiceSpec, wanted: &ServiceSpec) -> bool {
    let first = |s: &ServiceSpec| s.ip_families.iter().flatten().next().cloned();
    let other_family = first(wanted)
        .zip(first(have))
        .is_some_and(|(wanted, have)| wanted != have);
    is_headless(have) != is_headless(wanted) || other_family
}

fn same_ports(have: &[CorePort], wanted: &[CorePort]) -> bool {
    have.len() == wanted.len()
        && have.iter().zip(wanted).all(|(a, b)| {
            a.name.as_deref().unwrap_or_default() == b.name.as_deref().unwrap_or_default()
                && a.app_protocol == b.app_protocol
                && (a.port, a.protocol.as_deref().unwrap_or("TCP"))
                    == (b.port, b.protocol.as_deref().unwrap_or("TCP"))
        })
}

/// How connections are spread, with the API server's defaults filled in.
fn rules(spec: &ServiceSpec) -> (String, String, Option<i32>, String, Option<String>) {
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

/// The endpoints as this cluster is to use them: its own export becomes its own Pods.
fn by_cluster(
    world: &MemberWorld,
    local: &ByService<'_>,
    session: &Session<'_>,
    (namespace, name): &Key,
    endpoints: &EndpointsImport,
) -> ByCluster {
    let local = |accepted: &[EndpointSubset]| slices::from_local(local, namespace, name, accepted);
    if !endpoints.clusters.is_empty() {
        return endpoints
            .clusters
            .iter()
            .map(|c| {
                let own = c.cluster_id == session.cluster_id;
                (
                    c.cluster_id.clone(),
                    if own {
                        local(&c.subsets)
                    } else {
                        slices::from_subsets(&c.subsets)
                    },
                )
            })
            .collect();
    }
    // A leader that is not ours: all subsets in one list. What is our own is known by its address.
    let own_export = names::endpoints_export(session.cluster_id, namespace, name);
    let own: BTreeSet<_> = super::exports::own(session, &own_export)
        .and_then(|e| e.spec.endpoints.as_ref())
        .iter()
        .flat_map(|e| e.subsets.iter().flat_map(|s| s.addresses.iter().flatten()))
        .map(|a| a.ip.as_str())
        .collect();
    let is_own = |ip: &str| own.contains(ip) || world.service_cidrs.iter().any(|cidr| within(*cidr, ip));
    let (mut others, mut ours) = (endpoints.subsets.clone(), vec![]);
    for subset in &mut others {
        let addresses = subset.addresses.get_or_insert_default();
        let before = addresses.len();
        addresses.retain(|a| !is_own(&a.ip));
        if addresses.len() != before {
            ours.push(subset.clone());
        }
    }
    let mut clusters = ByCluster::from([(String::new(), slices::from_subsets(&others))]);
    if !ours.is_empty() {
        clusters.insert(session.cluster_id.to_owned(), local(&ours));
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
    have: &ServiceSpec,
    payload: &ServiceImport,
    (clusters, refused): (&ByCluster, Option<Condition>),
    plan: &mut Plan,
) {
    let mut spec = payload.spec.clone();
    if spec.type_.is_empty() {
        CLUSTER_SET_IP.clone_into(&mut spec.type_);
    }
    // The one that everybody writes is the first of all, for whoever writes them.
    let many = have.cluster_ips.as_ref().filter(|many| !many.is_empty());
    let all = many.map_or(have.cluster_ip.as_slice(), Vec::as_slice).iter();
    spec.ips = all
        .filter(|ip| !ip.is_empty() && *ip != NO_CLUSTER_IP)
        .cloned()
        .collect();
    spec.ip_families = have.ip_families.clone().unwrap_or_default();
    if spec.type_ != HEADLESS {
        spec.ip_families.truncate(spec.ips.len());
    }
    let old = get(&world.service_imports, namespace, name);
    // One with our Service's address was made by another implementation of this API: we go on with it.
    if let Some(old) = old.filter(|o| !made_by_us(o) && o.spec.ips != spec.ips) {
        let message = format!(
            "was made by somebody else (spec.ips {:?}); left alone",
            old.spec.ips
        );
        fail(old.as_ref(), message, plan);
        return;
    }
    let usable = spec.type_ == HEADLESS || !spec.ips.is_empty();
    let mut import = ServiceImport::new(name, spec);
    import.metadata.namespace = Some(namespace.clone());
    // Exported ones never replace what says whose the object is.
    *import.labels_mut() = payload.labels().clone();
    *import.annotations_mut() = payload.annotations().clone();
    let keys: Vec<_> = payload
        .labels()
        .keys()
        .chain(payload.annotations().keys())
        .cloned()
        .collect();
    if !keys.is_empty() {
        import
            .annotations_mut()
            .insert(names::ANNOTATION_EXPORTED_KEYS.to_owned(), keys.join(","));
    }
    import
        .labels_mut()
        .insert(names::LABEL_MADE_BY.to_owned(), names::MANAGED_BY.to_owned());
    if old.is_none_or(|o| !same_import(o, &import)) {
        plan.apply(Side::Local, &import);
    }
    let Some(old) = old else { return };
    if let Some(why) = &refused {
        plan.remark(Side::Local, old.as_ref(), IMPORT_FAILED, why.message.clone());
    }
    let before = old.status.clone().unwrap_or_default();
    let mut status = ServiceImportStatus {
        clusters: clusters
            .keys()
            .filter(|c| !c.is_empty())
            .map(|c| ExportingCluster { cluster: c.clone() })
            .collect(),
        endpoint_slice_objects: if refused.is_some() { ABSENT } else { PRESENT }.to_owned(),
        conditions: before.conditions.clone(),
    };
    let ready = match refused {
        Some(why) => why,
        None if usable => Condition::new(
            READY,
            condition::TRUE,
            reason::READY,
            "The Service can be used in this cluster",
        ),
        None => Condition::new(
            READY,
            condition::FALSE,
            reason::PENDING,
            "The Service has no address yet",
        ),
    };
    condition::upsert(&mut status.conditions, ready, &time(world.now));
    if before != status {
        // In full: a merge patch would keep what is left out.
        let status = json!({
            "clusters": status.clusters,
            "endpointSliceObjects": status.endpoint_slice_objects,
            "conditions": status.conditions,
        });
        plan.status(Side::Local, old.as_ref(), &status);
    }
}

fn same_import(old: &ServiceImport, new: &ServiceImport) -> bool {
    let has = |have: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| have.get(key) == Some(value))
    };
    // What is no longer exported goes when the rest is applied anew; others' labels do not count.
    let exported = |i: &ServiceImport| i.annotations().get(names::ANNOTATION_EXPORTED_KEYS).cloned();
    old.spec == new.spec
        && made_by_us(old)
        && has(old.labels(), new.labels())
        && has(old.annotations(), new.annotations())
        && exported(old) == exported(new)
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
