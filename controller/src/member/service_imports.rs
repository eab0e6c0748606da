//! The `ServiceImport` of an import and its status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ServiceSpec;
use kube::ResourceExt;
use mc_api::{
    condition::{self, Condition},
    exported_metadata::exchanged,
    names,
    service_import::{
        ABSENT, CLUSTER_SET_IP, ExportingCluster, HEADLESS, NO_CLUSTER_IP, PRESENT, READY, ServiceImport,
        ServiceImportStatus, reason,
    },
};
use mc_kube::NamespacedName;
use serde_json::json;

use super::{
    import_failure::{IMPORT_FAILED, report_failure},
    import_owner,
    imported_endpoints::EndpointsByCluster,
    is_managed, set_managed,
};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, api_time, get},
};

/// Keeps the `ServiceImport` and its status.
///
/// # Errors
///
/// If one of another owner has its name: the report.
pub(super) fn apply_service_import(
    snapshot: &MemberSnapshot,
    NamespacedName { namespace, name }: &NamespacedName,
    service: &ServiceSpec,
    payload: &ServiceImport,
    (clusters, rejected): (&EndpointsByCluster, Option<Condition>),
    plan: &mut Plan,
) -> Result<(), String> {
    let mut spec = payload.spec.clone();
    if spec.type_.is_empty() {
        CLUSTER_SET_IP.clone_into(&mut spec.type_);
    }
    // clusterIP is the first of clusterIPs; some API servers fill in only the former.
    let many = service.cluster_ips.as_ref().filter(|many| !many.is_empty());
    let all = many.map_or(service.cluster_ip.as_slice(), Vec::as_slice).iter();
    spec.ips = all
        .filter(|ip| !ip.is_empty() && *ip != NO_CLUSTER_IP)
        .cloned()
        .collect();
    spec.ip_families = service.ip_families.clone().unwrap_or_default();
    if spec.type_ != HEADLESS {
        spec.ip_families.truncate(spec.ips.len());
    }
    let old = get(&snapshot.service_imports, namespace, name);
    // An import with the address of this Service was made by another implementation of the API and is adopted. Without
    // an address, as of a headless Service, nothing shows that.
    let is_foreign = |o: &ServiceImport| !is_managed(o) && (o.spec.ips.is_empty() || o.spec.ips != spec.ips);
    if let Some((old, owner)) =
        old.and_then(|old| Some((old, import_owner::other_owner(snapshot, old.as_ref())?)))
    {
        let message = import_owner::conflict(owner);
        report_failure(old.as_ref(), message.clone(), plan);
        return Err(message);
    }
    if let Some(old) = old.filter(|o| is_foreign(o)) {
        let message = format!("has another owner (spec.ips {:?}); not changed", old.spec.ips);
        report_failure(old.as_ref(), message.clone(), plan);
        return Err(message);
    }
    let usable = spec.type_ == HEADLESS || !spec.ips.is_empty();
    let mut import = ServiceImport::new(name, spec);
    import.metadata.namespace = Some(namespace.clone());
    // Another leader may exchange all keys. Exported labels and annotations do not replace those of the controller
    // below.
    let (labels, annotations) = (exchanged(payload.labels()), exchanged(payload.annotations()));
    let keys: Vec<_> = labels.keys().chain(annotations.keys()).cloned().collect();
    *import.labels_mut() = labels;
    *import.annotations_mut() = annotations;
    if !keys.is_empty() {
        import
            .annotations_mut()
            .insert(names::ANNOTATION_EXPORTED_KEYS.to_owned(), keys.join(","));
    }
    set_managed(&mut import);
    import_owner::mark(snapshot, &mut import);
    if old.is_none_or(|o| !is_up_to_date(o, &import)) {
        plan.apply(ApiServer::Local, &import);
    }
    let Some(old) = old else { return Ok(()) };
    if let Some(why) = &rejected {
        plan.warning_event(ApiServer::Local, old.as_ref(), IMPORT_FAILED, why.message.clone());
    }
    let before = old.status.clone().unwrap_or_default();
    let mut status = ServiceImportStatus {
        clusters: clusters
            .keys()
            .filter(|c| !c.is_empty())
            .map(|c| ExportingCluster { cluster: c.clone() })
            .collect(),
        endpoint_slice_objects: if rejected.is_some() { ABSENT } else { PRESENT }.to_owned(),
        conditions: before.conditions.clone(),
    };
    let ready = match rejected {
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
    condition::upsert(&mut status.conditions, ready, &api_time(snapshot.now));
    if before != status {
        // In full: a merge patch keeps absent fields.
        let status = json!({
            "clusters": status.clusters,
            "endpointSliceObjects": status.endpoint_slice_objects,
            "conditions": status.conditions,
        });
        plan.status(ApiServer::Local, old.as_ref(), &status);
    }
    Ok(())
}

fn is_up_to_date(old: &ServiceImport, new: &ServiceImport) -> bool {
    let has = |current: &BTreeMap<String, String>, desired: &BTreeMap<String, String>| {
        desired.iter().all(|(key, value)| current.get(key) == Some(value))
    };
    // Keys no longer exported are removed by the next apply; labels of other writers are ignored.
    let exported = |i: &ServiceImport| i.annotations().get(names::ANNOTATION_EXPORTED_KEYS).cloned();
    old.spec == new.spec
        && is_managed(old)
        && has(old.labels(), new.labels())
        && has(old.annotations(), new.annotations())
        && exported(old) == exported(new)
}
