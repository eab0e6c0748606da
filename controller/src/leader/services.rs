//! Merges the exports of one Service by several clusters into one import of its ports and one of its endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::EndpointSubset;
use kube::ResourceExt;
use mc_api::{
    names,
    resource_export::{ResourceExport, kind as export_kind},
    resource_import::{ClusterEndpoints, EndpointsImport, ResourceImport, ResourceImportSpec, kind},
    service_import::ServiceImport,
};
use mc_kube::NamespacedName;

use super::{
    endpoint_budget::{self, Candidate, Fit},
    export_status::{self, SERVICE_EXPORT_FAILED},
    merge::{self, ExporterSpec, MergeResult},
    payload,
    prefix_owners::OwnedPrefixes,
    resources::{import, is_active, remove_finalizer},
};
use crate::{
    endpoint_ranges::EndpointRanges,
    name_conflict::{self, NameRequest},
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// A valid export and its Service.
type ValidExport<'a> = (&'a ResourceExport, ExporterSpec<'a>);
/// An invalid export and the reason.
type RejectedExport<'a> = (&'a ResourceExport, String);

/// All exports of one Service.
#[derive(Default)]
struct Exports {
    services: Vec<Arc<ResourceExport>>,
    endpoints: Vec<Arc<ResourceExport>>,
}

/// Plans the imports of all exported Services and deletes all others of these kinds.
pub(super) fn plan(snapshot: &LeaderSnapshot, prefixes: &OwnedPrefixes, plan: &mut Plan) {
    let mut wanted = BTreeSet::new();
    let mut groups: BTreeMap<NamespacedName, Exports> = BTreeMap::new();
    for export in snapshot.exports.values() {
        let service = NamespacedName::new(&export.spec.namespace, &export.spec.name);
        match export.spec.kind.as_str() {
            export_kind::SERVICE => groups.entry(service).or_default().services.push(export.clone()),
            export_kind::ENDPOINTS => groups.entry(service).or_default().endpoints.push(export.clone()),
            _ => {}
        }
    }
    let owners = name_owners(snapshot, &groups);
    let ranges = prefixes.endpoint_ranges(&snapshot.config);
    for (service, exports) in &groups {
        let imports_current = match owners.get(&names::service_import(&service.namespace, &service.name)) {
            Some(owner) if owner != service => {
                let why = format!(
                    "the name {:?} is taken by Service {owner}",
                    names::service_import(&service.namespace, &service.name),
                );
                for export in exports.services.iter().chain(&exports.endpoints) {
                    export_status::write(snapshot, export, Some(&why), plan);
                }
                true
            }
            _ => merge(snapshot, service, (exports, &ranges), &mut wanted, plan),
        };
        if imports_current {
            for export in exports.services.iter().chain(&exports.endpoints) {
                remove_finalizer(export, plan);
            }
        }
    }
    for import in snapshot.imports.values() {
        let ours = import.spec.kind == kind::SERVICE_IMPORT || import.spec.kind == kind::ENDPOINTS;
        if ours && !wanted.contains(&import.name_any()) {
            plan.delete(ApiServer::Local, import.as_ref());
        }
    }
}

/// The owner of each import name.
fn name_owners(
    snapshot: &LeaderSnapshot,
    groups: &BTreeMap<NamespacedName, Exports>,
) -> BTreeMap<String, NamespacedName> {
    let requests = groups.iter().filter_map(|(service, exports)| {
        let active = exports.services.iter().filter(|e| is_active(e));
        let since = active.map(|e| e.creation_timestamp()).min()?;
        let name = names::service_import(&service.namespace, &service.name);
        let is_current_owner = get(&snapshot.imports, &snapshot.namespace, &name)
            .is_some_and(|i| (&i.spec.namespace, &i.spec.name) == (&service.namespace, &service.name));
        Some(NameRequest {
            name,
            service: service.clone(),
            is_current_owner,
            since,
        })
    });
    name_conflict::resolve_owners(requests)
}

/// Plans the imports of a Service. Returns whether they are current, so that deleted exports may be released.
fn merge(
    snapshot: &LeaderSnapshot,
    NamespacedName { namespace, name }: &NamespacedName,
    (exports, ranges): (&Exports, &EndpointRanges),
    wanted: &mut BTreeSet<String>,
    plan: &mut Plan,
) -> bool {
    let service_name = names::service_import(namespace, name);
    let endpoints_name = names::endpoints_import(namespace, name);
    let old_service = get(&snapshot.imports, &snapshot.namespace, &service_name);
    let old_endpoints = get(&snapshot.imports, &snapshot.namespace, &endpoints_name);

    let (valid, rejected) = valid_exports(exports, old_service.map(AsRef::as_ref));
    for (export, why) in rejected {
        export_status::write(snapshot, export, Some(&why), plan);
    }
    let merged = merge::merge(&valid.iter().map(|(_, exporter)| *exporter).collect::<Vec<_>>());
    let nothing = MergeResult::default();
    let result = merged.as_ref().unwrap_or(&nothing);
    for (export, exporter) in &valid {
        let failure = (!result.ports_by_cluster.contains_key(exporter.cluster))
            .then(|| format!("conflicts with the oldest export: {}", result.conflicts.message()));
        export_status::write_with_conflicts(snapshot, export, failure.as_deref(), &result.conflicts, plan);
    }

    let current = old_endpoints.and_then(|import| import.spec.endpoints.as_ref());
    let clusters = endpoints(snapshot, (exports, ranges), result, current, plan);
    let mut imports_current = true;
    let spec = |kind: &str| ResourceImportSpec {
        name: name.clone(),
        namespace: namespace.clone(),
        kind: kind.to_owned(),
        ..ResourceImportSpec::default()
    };
    if let Some(merged) = merged {
        let spec = ResourceImportSpec {
            service_import: Some(Box::new(service_import(namespace, name, merged))),
            ..spec(kind::SERVICE_IMPORT)
        };
        imports_current &= apply_import(snapshot, &service_name, spec, old_service, plan);
        wanted.insert(service_name);
    } else {
        imports_current &= old_service.is_none();
    }
    if clusters.is_empty() {
        imports_current &= old_endpoints.is_none();
    } else {
        let subsets = clusters.iter().flat_map(|c| c.subsets.clone()).collect();
        let spec = ResourceImportSpec {
            endpoints: Some(EndpointsImport { subsets, clusters }),
            ..spec(kind::ENDPOINTS)
        };
        imports_current &= apply_import(snapshot, &endpoints_name, spec, old_endpoints, plan);
        wanted.insert(endpoints_name);
    }
    imports_current
}

/// Applies the import unless it is current; returns whether it was.
fn apply_import(
    snapshot: &LeaderSnapshot,
    name: &str,
    spec: ResourceImportSpec,
    old: Option<&Arc<ResourceImport>>,
    plan: &mut Plan,
) -> bool {
    let same = old.is_some_and(|o| o.spec == spec);
    if !same {
        plan.apply(ApiServer::Local, &import(&snapshot.namespace, name, spec));
    }
    same
}

/// The valid active exports of the Service, the oldest first, and the rejected ones. The age is that of the
/// `ResourceExport` by the leader's clock, which members cannot forge.
fn valid_exports<'a>(
    exports: &'a Exports,
    current: Option<&ResourceImport>,
) -> (Vec<ValidExport<'a>>, Vec<RejectedExport<'a>>) {
    let current = current.and_then(|i| i.spec.service_import.as_ref());
    let mut active: Vec<&ResourceExport> = exports
        .services
        .iter()
        .map(AsRef::as_ref)
        .filter(|e| is_active(e))
        .collect();
    // Of exports created in the same second the imported one is first, then the first by name.
    active.sort_by_cached_key(|e| {
        let pair = e.spec.service.as_ref().zip(current);
        let is_current = pair.is_some_and(|(service, import)| merge::matches_import(service, import));
        (e.creation_timestamp(), !is_current, e.name_any())
    });
    let (mut valid, mut rejected) = (Vec::new(), Vec::new());
    let mut clusters = BTreeSet::new();
    for export in active {
        let cluster = export.spec.cluster_id.as_str();
        let checked = match &export.spec.service {
            None => Err("spec.service is missing".to_owned()),
            Some(service) => payload::validate_service(service)
                .map(|()| service)
                .map_err(|e| e.to_string()),
        };
        match checked {
            Err(why) => rejected.push((export, why)),
            Ok(_) if !clusters.insert(cluster) => {
                rejected.push((
                    export,
                    format!("spec.clusterID: cluster {cluster:?} exports this Service twice"),
                ));
            }
            Ok(service) => valid.push((export, ExporterSpec { cluster, service })),
        }
    }
    (valid, rejected)
}

fn service_import(namespace: &str, name: &str, merged: MergeResult) -> ServiceImport {
    let mut import = ServiceImport::new(name, merged.spec);
    import.metadata.namespace = Some(namespace.to_owned());
    import.metadata.labels = Some(merged.labels).filter(|l| !l.is_empty());
    import.metadata.annotations = Some(merged.annotations).filter(|a| !a.is_empty());
    import
}

/// The endpoints in each cluster, reduced to the ports it serves and to addresses it may export, as far as they fit
/// into the import.
fn endpoints(
    snapshot: &LeaderSnapshot,
    (exports, ranges): (&Exports, &EndpointRanges),
    merged: &MergeResult,
    current: Option<&EndpointsImport>,
    plan: &mut Plan,
) -> Vec<ClusterEndpoints> {
    let (mut candidates, mut failures) = (BTreeMap::new(), vec![]);
    for export in &exports.endpoints {
        let cluster = export.spec.cluster_id.as_str();
        let failure = match (&export.spec.endpoints, merged.ports_by_cluster.get(cluster)) {
            (None, _) => Some("spec.endpoints is missing".to_owned()),
            (Some(_), None) => Some(SERVICE_EXPORT_FAILED.to_owned()),
            (Some(endpoints), Some(served)) => {
                if let Err(cause) = payload::validate_subsets(&endpoints.subsets) {
                    Some(cause.to_string())
                } else {
                    let (subsets, left_out) = in_ranges(cluster, &endpoints.subsets, ranges);
                    if is_active(export) && !(subsets.is_empty() && left_out.is_some()) {
                        candidates.entry(cluster).or_insert_with(|| Candidate {
                            cluster,
                            since: export.creation_timestamp().map(|time| time.0),
                            subsets: served_subsets(subsets, served),
                        });
                    }
                    left_out
                }
            }
        };
        failures.push((export, failure));
    }
    let Fit { clusters, refused } = endpoint_budget::fit(candidates.into_values().collect(), current);
    for (export, failure) in failures {
        let failure = failure.or_else(|| Some(refused.get(&export.spec.cluster_id)?.to_string()));
        export_status::write(snapshot, export, failure.as_deref(), plan);
    }
    clusters
}

/// The subsets without the addresses that the cluster may not export, and the error of the first one.
fn in_ranges(
    cluster: &str,
    subsets: &[EndpointSubset],
    ranges: &EndpointRanges,
) -> (Vec<EndpointSubset>, Option<String>) {
    let mut accepted = subsets.to_vec();
    let (mut first, mut count) = (None, 0_usize);
    for (i, subset) in accepted.iter_mut().enumerate() {
        let addresses = subset.addresses.take().into_iter().flatten().enumerate();
        let addresses = addresses.filter(|(j, address)| match ranges.check(cluster, &address.ip) {
            Ok(()) => true,
            Err(cause) => {
                count = count.saturating_add(1);
                first
                    .get_or_insert_with(|| format!("spec.endpoints.subsets[{i}].addresses[{j}].ip: {cause}"));
                false
            }
        });
        subset.addresses = Some(addresses.map(|(_, address)| address).collect());
    }
    let error = first.map(|error| match count.saturating_sub(1) {
        0 => format!("{error}; left out"),
        more => format!("{error}; left out, and {more} more addresses"),
    });
    if error.is_some() {
        accepted.retain(|subset| subset.addresses.as_ref().is_some_and(|all| !all.is_empty()));
    }
    (accepted, error)
}

/// The subsets with only the ports in `served`; subsets without such a port are removed.
fn served_subsets(mut subsets: Vec<EndpointSubset>, served: &BTreeSet<String>) -> Vec<EndpointSubset> {
    subsets.retain_mut(|subset| {
        let Some(ports) = subset.ports.as_mut().filter(|ports| !ports.is_empty()) else {
            return served.is_empty();
        };
        ports.retain(|port| served.contains(port.name.as_deref().unwrap_or_default()));
        !ports.is_empty()
    });
    subsets
}
