//! Exports of one Service by several clusters, merged into one import of its ports and one of its endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;

use super::{cluster_infos::import, live, release};
use crate::{
    api::{
        condition::{self, Condition},
        names,
        resource_export::{
            CONVERGE_FAILURE, FAILURE, ResourceExport, ResourceExportStatus, SUCCEEDED, kind as export_kind,
        },
        resource_import::{ClusterEndpoints, EndpointsImport, ResourceImport, ResourceImportSpec, kind},
        service_import::{CLUSTER_SET_IP, ServiceImport, ServiceImportSpec, ServicePort},
    },
    plan::{Plan, Side},
    world::{LeaderWorld, get, time},
};

/// What every failed export says, with the cause after it.
const NOT_CONVERGED: &str = "ResourceExport can't be converged to ResourceImport";

/// The Service that is exported.
type Tuple = (String, String);

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

/// Whose the name of an import is: "prod" + "web-api" and "prod-web" + "api" want the same one. The
/// import that exists decides, else the oldest export.
fn owners(world: &LeaderWorld, groups: &BTreeMap<Tuple, Exports>) -> BTreeMap<String, Tuple> {
    let mut owners: BTreeMap<String, (bool, Option<_>, Tuple)> = BTreeMap::new();
    for (tuple, exports) in groups {
        let Some(oldest) = exports
            .services
            .iter()
            .filter(|e| live(e))
            .map(|e| e.creation_timestamp())
            .min()
        else {
            continue;
        };
        let name = names::service_import(&tuple.0, &tuple.1);
        let taken = get(&world.imports, &world.namespace, &name)
            .is_some_and(|i| (&i.spec.namespace, &i.spec.name) == (&tuple.0, &tuple.1));
        let claim = (!taken, oldest, tuple.clone());
        owners
            .entry(name)
            .and_modify(|old| *old = old.clone().min(claim.clone()))
            .or_insert(claim);
    }
    owners
        .into_iter()
        .map(|(name, (_, _, tuple))| (name, tuple))
        .collect()
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

    let chosen = choose_ports(exports, old_service.map(AsRef::as_ref));
    let mut converged = BTreeSet::new();
    for export in &exports.services {
        let failure = match (&export.spec.service, &chosen) {
            (None, _) => Some("spec.service is missing".to_owned()),
            (Some(_), Some((ports, by))) if ports_of(export) != *ports => Some(format!(
                "ports don't match those exported first, by cluster {by:?}"
            )),
            _ => None,
        };
        if live(export) && failure.is_none() {
            converged.insert(export.spec.cluster_id.as_str());
        }
        report(world, export, failure.as_deref(), plan);
    }

    let clusters = endpoints(world, exports, &converged, plan);
    let mut settled = true;
    let spec = |kind: &str| ResourceImportSpec {
        name: name.clone(),
        namespace: namespace.clone(),
        kind: kind.to_owned(),
        ..ResourceImportSpec::default()
    };
    if let Some((ports, _)) = chosen {
        let spec = ResourceImportSpec {
            service_import: Some(service_import(namespace, name, ports)),
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

/// First writer wins: the ports of the import stay while any live export has them; then the oldest decides.
fn choose_ports(exports: &Exports, old: Option<&ResourceImport>) -> Option<(Vec<ServicePort>, String)> {
    let candidates = || {
        exports
            .services
            .iter()
            .filter(|e| live(e) && e.spec.service.is_some())
    };
    let by_age = |e: &&Arc<ResourceExport>| (e.creation_timestamp(), e.name_any());
    let standing = old
        .and_then(|i| i.spec.service_import.as_ref())
        .map(|s| &s.spec.ports);
    let chosen = candidates()
        .filter(|e| standing.is_some_and(|ports| *ports == ports_of(e)))
        .min_by_key(by_age)
        .or_else(|| candidates().min_by_key(by_age))?;
    Some((ports_of(chosen), chosen.spec.cluster_id.clone()))
}

fn ports_of(export: &ResourceExport) -> Vec<ServicePort> {
    let ports = export
        .spec
        .service
        .as_ref()
        .and_then(|s| s.service_spec.ports.as_deref());
    ports
        .unwrap_or_default()
        .iter()
        .map(|p| ServicePort {
            name: p.name.clone().unwrap_or_default(),
            protocol: p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: None,
            port: p.port,
        })
        .collect()
}

fn service_import(namespace: &str, name: &str, ports: Vec<ServicePort>) -> ServiceImport {
    let mut import = ServiceImport::new(
        name,
        ServiceImportSpec {
            ports,
            type_: CLUSTER_SET_IP.to_owned(),
            ..ServiceImportSpec::default()
        },
    );
    import.metadata.namespace = Some(namespace.to_owned());
    import
}

/// The endpoints of each cluster whose ports converged.
fn endpoints(
    world: &LeaderWorld,
    exports: &Exports,
    converged: &BTreeSet<&str>,
    plan: &mut Plan,
) -> Vec<ClusterEndpoints> {
    let mut clusters = BTreeMap::new();
    for export in &exports.endpoints {
        let cluster = export.spec.cluster_id.as_str();
        let failure = match &export.spec.endpoints {
            None => Some("spec.endpoints is missing"),
            Some(_) if !converged.contains(cluster) => {
                Some("the export of the Service itself is missing or did not converge")
            }
            Some(endpoints) => {
                if live(export) {
                    clusters
                        .entry(cluster)
                        .or_insert_with(|| endpoints.subsets.clone());
                }
                None
            }
        };
        report(world, export, failure, plan);
    }
    clusters
        .into_iter()
        .map(|(cluster, subsets)| ClusterEndpoints {
            cluster_id: cluster.to_owned(),
            subsets,
        })
        .collect()
}

/// The status of a live export: one condition.
pub(super) fn report(world: &LeaderWorld, export: &ResourceExport, failure: Option<&str>, plan: &mut Plan) {
    if !live(export) {
        return;
    }
    let new = match failure {
        None => Condition::new(SUCCEEDED, condition::TRUE, "", ""),
        Some(why) => {
            plan.notice(format!("ResourceExport {}", export.name_any()), why);
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
    let same = matches!(old, [c] if Condition { last_transition_time: None, ..c.clone() } == new);
    if !same {
        let status = ResourceExportStatus {
            conditions: vec![new.at(&time(world.now))],
        };
        plan.status(Side::Local, export, &status);
    }
}
