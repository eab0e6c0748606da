//! The imports of the set's Services: Service, `EndpointSlice`s, `ServiceImport`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{core::v1::ServiceSpec, discovery::v1::EndpointSlice};
use kube::ResourceExt;
use mc_api::{
    names,
    resource_import::{EndpointsImport, ResourceImport, kind},
    validation,
};
use mc_kube::NamespacedName;

use super::{
    ActiveMembership,
    import_owner::{self, other_owner},
    imported_endpoints::{apply_slices, endpoint_ranges, endpoints_by_cluster, leave_out_foreign},
    imported_service::{ImportedService, MAX_SERVICE_NAME, apply_service, is_own_import, rejection},
    reachability::{mark_unreachable, unreachable_clusters},
    service_imports::apply_service_import,
    slices::{self, SliceIndex},
};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, get},
};

/// Keeps all offered imports and deletes the others of this controller.
pub fn plan(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    local: &SliceIndex<'_>,
    plan: &mut Plan,
) {
    let imports =
        || {
            membership.leader.imports.values().filter(|i| {
                i.metadata.deletion_timestamp.is_none() && targets_cluster(i, membership.cluster_id)
            })
        };
    let endpoints: BTreeMap<NamespacedName, &EndpointsImport> = imports()
        .filter(|i| i.spec.kind == kind::ENDPOINTS)
        .filter_map(|i| Some((name_of(i), i.spec.endpoints.as_ref()?)))
        .collect();
    let ranges = endpoint_ranges(snapshot, membership);
    let unreachable = unreachable_clusters(snapshot);
    let mut keep_services = BTreeSet::new();
    let mut keep_slices = BTreeSet::new();
    for import in imports().filter(|i| i.spec.kind == kind::SERVICE_IMPORT) {
        let Some(payload) = &import.spec.service_import else {
            continue;
        };
        let key = name_of(import);
        if !can_import(snapshot, &key, plan) {
            continue;
        }
        let mut clusters = endpoints
            .get(&key)
            .map(|e| endpoints_by_cluster(snapshot, local, membership, &key, e))
            .unwrap_or_default();
        let service = apply_service(snapshot, &key, &payload.spec, plan);
        leave_out_foreign(
            &mut clusters,
            (&ranges, membership.cluster_id),
            service.present(),
            plan,
        );
        mark_unreachable(&mut clusters, &unreachable);
        // A ServiceImport beside a Service of another owner would announce an import that does not exist.
        if !matches!(service, ImportedService::Foreign) {
            keep_services.insert(key.clone());
        }
        if let ImportedService::Present(service) = service {
            apply_slices(snapshot, service, &key.name, &clusters, &mut keep_slices, plan);
            let spec = service.spec.clone().unwrap_or_default();
            apply_service_import(snapshot, &key, &spec, payload, (&clusters, None), plan);
        } else if let Some(why) = rejection(snapshot, &key, &payload.spec) {
            // The import has no address; its status contains the reason.
            let no_service = ServiceSpec::default();
            apply_service_import(snapshot, &key, &no_service, payload, (&clusters, Some(why)), plan);
        }
    }
    delete_stale(snapshot, &keep_services, &keep_slices, plan);
}

/// Deletes all imports: there is no membership.
pub fn withdraw(snapshot: &MemberSnapshot, plan: &mut Plan) {
    delete_stale(snapshot, &BTreeSet::new(), &BTreeSet::new(), plan);
}

/// The imported Service.
fn name_of(import: &ResourceImport) -> NamespacedName {
    NamespacedName::new(import.spec.namespace.as_str(), import.spec.name.as_str())
}

/// Whether an import is for that cluster; one without targets is for all.
pub(crate) fn targets_cluster(import: &ResourceImport, cluster_id: &str) -> bool {
    import.spec.cluster_ids.is_empty() || import.spec.cluster_ids.iter().any(|c| c == cluster_id)
}

/// Whether the import can exist in this cluster; reports an issue if not.
fn can_import(
    snapshot: &MemberSnapshot,
    NamespacedName { namespace, name }: &NamespacedName,
    plan: &mut Plan,
) -> bool {
    let subject = format!("ResourceImport {}", names::service_import(namespace, name));
    let service = names::imported_service(name);
    if let Err(cause) = validation::dns_label(&service, MAX_SERVICE_NAME) {
        plan.issue(
            subject,
            format!("spec.name: {cause}: no Service can have this name"),
        );
        return false;
    }
    if !snapshot
        .config
        .namespace_policy
        .allows(namespace, &snapshot.namespace)
    {
        plan.issue(
            subject,
            format!(
                "spec.namespace: namespacePolicy in the controller's configuration does not allow {namespace:?}; not imported"
            ),
        );
        return false;
    }
    match get(&snapshot.namespaces, "", namespace) {
        Some(found) if found.metadata.deletion_timestamp.is_none() => true,
        _ => {
            plan.issue(
                subject,
                format!(
                    "spec.namespace: Namespace {namespace:?} does not exist in this cluster; not imported"
                ),
            );
            false
        }
    }
}

/// Deletes imports that are no longer offered: endpoints, then the Service, then the `ServiceImport`.
fn delete_stale(
    snapshot: &MemberSnapshot,
    services: &BTreeSet<NamespacedName>,
    slices: &BTreeSet<NamespacedName>,
    plan: &mut Plan,
) {
    let gone = |key: &NamespacedName, slice: &EndpointSlice| {
        slices::is_managed(slice) && !slices.contains(key) && !is_of_other(snapshot, slice)
    };
    for (key, slice) in snapshot.endpoint_slices.iter() {
        // While the Service is created again its endpoints are kept.
        let service_exists = slice
            .labels()
            .get(names::LABEL_MCS_SERVICE_NAME)
            .is_none_or(|name| {
                !services.contains(&NamespacedName::new(key.namespace.as_str(), name.as_str()))
                    || has_owner(snapshot, slice)
            });
        if gone(key, slice) && service_exists {
            plan.delete(ApiServer::Local, slice.as_ref());
        }
    }
    for (key, service) in snapshot
        .services
        .iter()
        .filter(|(_, s)| is_own_import(snapshot, s))
    {
        let Some(of) = names::exported_service(&key.name) else {
            continue;
        };
        if !services.contains(&NamespacedName::new(key.namespace.as_str(), of)) {
            plan.delete(ApiServer::Local, service.as_ref());
        }
    }
    for (key, import) in snapshot
        .service_imports
        .iter()
        .filter(|(_, i)| import_owner::is_own(snapshot, i.as_ref()))
    {
        if !services.contains(key) {
            plan.delete(ApiServer::Local, import.as_ref());
        }
    }
}

/// Whether a slice belongs to a Service that another member controller has made.
fn is_of_other(snapshot: &MemberSnapshot, slice: &EndpointSlice) -> bool {
    let service = slice.labels().get(names::LABEL_MCS_SERVICE_NAME);
    let service = service.and_then(|name| {
        let namespace = slice.namespace().unwrap_or_default();
        get(&snapshot.services, &namespace, &names::imported_service(name))
    });
    service.is_some_and(|service| other_owner(snapshot, service.as_ref()).is_some())
}

fn has_owner(snapshot: &MemberSnapshot, slice: &EndpointSlice) -> bool {
    let owner = slice.metadata.owner_references.iter().flatten().next();
    let service = owner.and_then(|o| {
        get(
            &snapshot.services,
            &slice.namespace().unwrap_or_default(),
            &o.name,
        )
    });
    service.is_some()
}
