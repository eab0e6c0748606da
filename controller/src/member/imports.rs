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
    failed_imports::{FailedImports, reason},
    import_owner::{self, other_owner},
    imported_endpoints::{apply_slices, endpoint_ranges, endpoints_by_cluster, leave_out_foreign},
    imported_service::{ImportedService, MAX_SERVICE_NAME, apply_service, is_own_import, rejection},
    reachability::{mark_unreachable, unreachable_clusters},
    service_imports::apply_service_import,
    slices::{self, SliceIndex},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, get},
};

/// Keeps all offered imports and deletes the others of this controller. Returns those that fail.
pub(super) fn plan(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    local: &SliceIndex<'_>,
    plan: &mut Plan,
) -> FailedImports {
    let mut failed = FailedImports::default();
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
        if let Some((reason, message)) = obstacle(snapshot, &key) {
            let subject = format!(
                "ResourceImport {}",
                names::service_import(&key.namespace, &key.name)
            );
            failed.add(&key, reason, message.as_str());
            plan.issue(IssueCode::ImportFailed, subject, message);
            continue;
        }
        let mut clusters = endpoints
            .get(&key)
            .map(|e| endpoints_by_cluster(snapshot, local, membership, &key, e))
            .unwrap_or_default();
        let service = apply_service(snapshot, &key, &payload.spec, plan);
        let of_own = (&ranges, membership.cluster_id);
        for message in leave_out_foreign(&mut clusters, of_own, service.present(), plan) {
            failed.add(&key, reason::ENDPOINTS_LEFT_OUT, message);
        }
        mark_unreachable(&mut clusters, &unreachable);
        // A ServiceImport beside a Service of another owner would announce an import that does not exist.
        if let ImportedService::Foreign { message } = &service {
            failed.add(&key, reason::NAME_TAKEN, message.as_str());
        } else {
            keep_services.insert(key.clone());
        }
        if let ImportedService::Present(service) = service {
            apply_slices(snapshot, service, &key.name, &clusters, &mut keep_slices, plan);
            let spec = service.spec.clone().unwrap_or_default();
            if let Err(message) =
                apply_service_import(snapshot, &key, &spec, payload, (&clusters, None), plan)
            {
                failed.add(&key, reason::NAME_TAKEN, message);
            }
        } else if let Some(why) = rejection(snapshot, &key, &payload.spec) {
            // The import has no address; its status contains the reason.
            failed.add(&key, reason::REJECTED, why.message.as_str());
            let no_service = ServiceSpec::default();
            if let Err(message) =
                apply_service_import(snapshot, &key, &no_service, payload, (&clusters, Some(why)), plan)
            {
                failed.add(&key, reason::NAME_TAKEN, message);
            }
        }
    }
    delete_stale(snapshot, &keep_services, &keep_slices, plan);
    failed
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

/// The reason and message why the import cannot exist in this cluster, if any.
fn obstacle(
    snapshot: &MemberSnapshot,
    NamespacedName { namespace, name }: &NamespacedName,
) -> Option<(&'static str, String)> {
    let service = names::imported_service(name);
    if let Err(cause) = validation::dns_label(&service, MAX_SERVICE_NAME) {
        let message = format!("spec.name: {cause}: no Service can have this name");
        return Some((reason::INVALID_NAME, message));
    }
    let policy = &snapshot.config.namespace_policy;
    if !policy.allows(namespace, &snapshot.namespace) {
        let message = format!(
            "spec.namespace: namespacePolicy in the controller's configuration does not allow {namespace:?}; not imported"
        );
        return Some((reason::NAMESPACE_NOT_ALLOWED, message));
    }
    match get(&snapshot.namespaces, "", namespace) {
        Some(found) if found.metadata.deletion_timestamp.is_none() => None,
        _ => {
            let message = format!(
                "spec.namespace: Namespace {namespace:?} does not exist in this cluster; not imported"
            );
            Some((reason::NAMESPACE_NOT_FOUND, message))
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
