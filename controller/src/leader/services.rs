//! Exports of one Service by several clusters, merged into one import of its ports and one of its endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::EndpointSubset;
use kube::ResourceExt;

use super::{
    cluster_infos::import,
    live,
    merge::{self, Conflicts, Merged, Offer},
    payload, release,
};
use crate::{
    api::{
        condition::{self, Condition},
        names,
        resource_export::{
            CONVERGE_FAILURE, FAILURE, ResourceExport, ResourceExportStatus, SUCCEEDED, kind as export_kind,
        },
        resource_import::{ClusterEndpoints, EndpointsImport, ResourceImport, ResourceImportSpec, kind},
        service_export::CONFLICT,
        service_import::ServiceImport,
    },
    claim::{self, Claim, Tuple},
    plan::{Plan, Side},
    world::{LeaderWorld, get, time},
};

/// What every failed export says, with the cause after it.
const NOT_CONVERGED: &str = "ResourceExport can't be converged to ResourceImport";

/// What endpoints fail of whose Service did: that one says why.
const FOLLOWS: &str = "the export of the Service itself is missing or did not converge";

/// An export that can be merged, and what it says.
type Sound<'a> = (&'a ResourceExport, Offer<'a>);
/// One that cannot, and why.
type Refused<'a> = (&'a ResourceExport, String);

/// All exports of one Service.
#[derive(Default)]
struct Exports {
    services: Vec<Arc<ResourceExport>>,
    endpoints: Vec<Arc<ResourceExport>>,
}

/// Imports for all exported Services; everything else of these kinds goes.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    let mut wanted = BTreeSet::new();
    let mut groups: BTreeMap<Tuple, Exports> = BTreeMap::new();
    for export in world.exports.values() {
        let tuple = (export.spec.namespace.clone(), export.spec.name.clone());
        match export.spec.kind.as_str() {
            export_kind::SERVICE => groups.entry(tuple).or_default().services.push(export.clone()),
            export_kind::ENDPOINTS => groups.entry(tuple).or_default().endpoints.push(export.clone()),
            _ => {}
        }
    }
    let owners = owners(world, &groups);
    for (tuple, exports) in &groups {
        let settled = match owners.get(&names::service_import(&tuple.0, &tuple.1)) {
            Some(owner) if owner != tuple => {
                let why = format!(
                    "the name {:?} is taken by Service {}/{}",
                    names::service_import(&tuple.0, &tuple.1),
                    owner.0,
                    owner.1
                );
                for export in exports.services.iter().chain(&exports.endpoints) {
                    report(world, export, Some(&why), plan);
                }
                true
            }
            _ => merge(world, tuple, exports, &mut wanted, plan),
        };
        if settled {
            for export in exports.services.iter().chain(&exports.endpoints) {
                release(export, plan);
            }
        }
    }
    for import in world.imports.values() {
        let ours = import.spec.kind == kind::SERVICE_IMPORT || import.spec.kind == kind::ENDPOINTS;
        if ours && !wanted.contains(&import.name_any()) {
            plan.delete(Side::Local, import.as_ref());
        }
    }
}

/// Whose the name of each import is.
fn owners(world: &LeaderWorld, groups: &BTreeMap<Tuple, Exports>) -> BTreeMap<String, Tuple> {
    let claims = groups.iter().filter_map(|(tuple, exports)| {
        let live = exports.services.iter().filter(|e| live(e));
        let since = live.map(|e| e.creation_timestamp()).min()?;
        let name = names::service_import(&tuple.0, &tuple.1);
        let has = get(&world.imports, &world.namespace, &name)
            .is_some_and(|i| (&i.spec.namespace, &i.spec.name) == (&tuple.0, &tuple.1));
        Some(Claim {
            name,
            of: tuple.clone(),
            has,
            since,
        })
    });
    claim::owners(claims)
}

/// Whether the imports are what they should be, so that deleted exports may go.
fn merge(
    world: &LeaderWorld,
    (namespace, name): &Tuple,
    exports: &Exports,
    wanted: &mut BTreeSet<String>,
    plan: &mut Plan,
) -> bool {
    let service_name = names::service_import(namespace, name);
    let endpoints_name = names::endpoints_import(namespace, name);
    let old_service = get(&world.imports, &world.namespace, &service_name);
    let old_endpoints = get(&world.imports, &world.namespace, &endpoints_name);

    let (offers, refused) = offers(exports, old_service.map(AsRef::as_ref));
    for (export, why) in refused {
        report(world, export, Some(&why), plan);
    }
    let merged = merge::merge(&offers.iter().map(|(_, offer)| *offer).collect::<Vec<_>>());
    let nothing = Merged::default();
    let facts = merged.as_ref().unwrap_or(&nothing);
    for (export, offer) in &offers {
        let failure = (!facts.served.contains_key(offer.cluster)).then(|| {
            format!(
                "it contradicts what was exported first: {}",
                facts.conflicts.message()
            )
        });
        tell(world, export, failure.as_deref(), &facts.conflicts, plan);
    }

    let clusters = endpoints(world, exports, facts, plan);
    let mut settled = true;
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
        settled &= put(world, &service_name, spec, old_service, plan);
        wanted.insert(service_name);
    } else {
        settled &= old_service.is_none();
    }
    if clusters.is_empty() {
        settled &= old_endpoints.is_none();
    } else {
        let subsets = clusters.iter().flat_map(|c| c.subsets.clone()).collect();
        let spec = ResourceImportSpec {
            endpoints: Some(EndpointsImport { subsets, clusters }),
            ..spec(kind::ENDPOINTS)
        };
        settled &= put(world, &endpoints_name, spec, old_endpoints, plan);
        wanted.insert(endpoints_name);
    }
    settled
}

/// Writes the import unless it is that already; says whether it was.
fn put(
    world: &LeaderWorld,
    name: &str,
    spec: ResourceImportSpec,
    old: Option<&Arc<ResourceImport>>,
    plan: &mut Plan,
) -> bool {
    let same = old.is_some_and(|o| o.spec == spec);
    if !same {
        plan.apply(Side::Local, &import(&world.namespace, name, spec));
    }
    same
}

/// The live exports of the Service, the oldest first, and those that cannot be used with the reason. The age is
/// that of the `ResourceExport`, by the leader's clock: a member could claim any.
fn offers<'a>(exports: &'a Exports, standing: Option<&ResourceImport>) -> (Vec<Sound<'a>>, Vec<Refused<'a>>) {
    let standing = standing.and_then(|i| i.spec.service_import.as_ref());
    let mut live: Vec<&ResourceExport> = exports
        .services
        .iter()
        .map(AsRef::as_ref)
        .filter(|e| live(e))
        .collect();
    // Within one second what is offered already stays, and then the name decides.
    live.sort_by_cached_key(|e| {
        let said = e.spec.service.as_ref().zip(standing);
        let stands = said.is_some_and(|(service, import)| merge::stands(service, import));
        (e.creation_timestamp(), !stands, e.name_any())
    });
    let (mut offers, mut refused) = (Vec::new(), Vec::new());
    let mut clusters = BTreeSet::new();
    for export in live {
        let cluster = export.spec.cluster_id.as_str();
        let checked = match &export.spec.service {
            None => Err("spec.service is missing".to_owned()),
            Some(service) => payload::service(service)
                .map(|()| service)
                .map_err(|e| e.to_string()),
        };
        match checked {
            Err(why) => refused.push((export, why)),
            Ok(_) if !clusters.insert(cluster) => {
                refused.push((
                    export,
                    format!("spec.clusterID: cluster {cluster:?} exports this Service twice"),
                ));
            }
            Ok(service) => offers.push((export, Offer { cluster, service })),
        }
    }
    (offers, refused)
}

fn service_import(namespace: &str, name: &str, merged: Merged) -> ServiceImport {
    let mut import = ServiceImport::new(name, merged.spec);
    import.metadata.namespace = Some(namespace.to_owned());
    import.metadata.labels = Some(merged.labels).filter(|l| !l.is_empty());
    import.metadata.annotations = Some(merged.annotations).filter(|a| !a.is_empty());
    import
}

/// The endpoints of each cluster, reduced to the ports it serves.
fn endpoints(
    world: &LeaderWorld,
    exports: &Exports,
    merged: &Merged,
    plan: &mut Plan,
) -> Vec<ClusterEndpoints> {
    let mut clusters = BTreeMap::new();
    for export in &exports.endpoints {
        let cluster = export.spec.cluster_id.as_str();
        let failure = match (&export.spec.endpoints, merged.served.get(cluster)) {
            (None, _) => Some("spec.endpoints is missing".to_owned()),
            (Some(_), None) => Some(FOLLOWS.to_owned()),
            (Some(endpoints), Some(served)) => {
                let refused = payload::subsets(&endpoints.subsets).err();
                if live(export) && refused.is_none() {
                    clusters
                        .entry(cluster)
                        .or_insert_with(|| reduced(&endpoints.subsets, served));
                }
                refused.map(|cause| cause.to_string())
            }
        };
        report(world, export, failure.as_deref(), plan);
    }
    clusters
        .into_iter()
        .map(|(cluster, subsets)| ClusterEndpoints {
            cluster_id: cluster.to_owned(),
            subsets,
        })
        .collect()
}

/// The subsets without the ports of other names than `served`; one that is left without any goes.
fn reduced(subsets: &[EndpointSubset], served: &BTreeSet<String>) -> Vec<EndpointSubset> {
    let mut subsets = subsets.to_vec();
    subsets.retain_mut(|subset| {
        let Some(ports) = subset.ports.as_mut().filter(|ports| !ports.is_empty()) else {
            return served.is_empty();
        };
        ports.retain(|port| served.contains(port.name.as_deref().unwrap_or_default()));
        !ports.is_empty()
    });
    subsets
}

/// The status of a live export that nobody can contradict.
pub(super) fn report(world: &LeaderWorld, export: &ResourceExport, failure: Option<&str>, plan: &mut Plan) {
    tell(world, export, failure, &Conflicts::default(), plan);
}

/// The status of a live export: how it went, and where clusters contradict each other.
fn tell(
    world: &LeaderWorld,
    export: &ResourceExport,
    failure: Option<&str>,
    conflicts: &Conflicts,
    plan: &mut Plan,
) {
    if !live(export) {
        return;
    }
    let outcome = match failure {
        None => Condition::new(SUCCEEDED, condition::TRUE, "", ""),
        Some(why) => {
            plan.notice(format!("ResourceExport {}", export.name_any()), why);
            if why != FOLLOWS {
                plan.remark(Side::Local, export, CONVERGE_FAILURE, why);
            }
            Condition::new(
                FAILURE,
                condition::FALSE,
                CONVERGE_FAILURE,
                format!("{NOT_CONVERGED}: {why}"),
            )
        }
    };
    let old = export
        .status
        .as_ref()
        .map(|s| s.conditions.as_slice())
        .unwrap_or_default();
    let conflict = (!conflicts.is_empty()).then(|| {
        let (reason, message) = (conflicts.reason(), conflicts.message());
        // Who is left out has been told so, and why.
        if failure.is_none() {
            plan.remark(Side::Local, export, reason.as_str(), message.as_str());
        }
        Condition::new(CONFLICT, condition::TRUE, &reason, message)
    });
    let now = time(world.now);
    let new: Vec<_> = [Some(outcome), conflict]
        .into_iter()
        .flatten()
        .map(|new| {
            // What was true before keeps its time.
            let before = old.iter().find(|c| {
                let timeless = Condition {
                    last_transition_time: None,
                    ..(*c).clone()
                };
                timeless == new && c.last_transition_time.is_some()
            });
            before.cloned().unwrap_or_else(|| new.at(&now))
        })
        .collect();
    if *old != *new {
        plan.status(Side::Local, export, &ResourceExportStatus { conditions: new });
    }
}
