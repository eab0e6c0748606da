//! Merges the exports of one Service by several clusters as specified by KEP-1645: the ports are united; of conflicting
//! fields that of the oldest export is used, and the conflict is reported to all exporters.
//!
//! Guarantees: the result depends on the exporters and their order only; no two ports of it have the same name, or the
//! same number and protocol; `ports_by_cluster` has only ports which the cluster serves under that name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use mc_api::{
    exported_metadata::exchanged,
    resource_export::ServiceExportPayload,
    service_export::conflict,
    service_import::{CLUSTER_SET_IP, HEADLESS, ServiceImport, ServiceImportSpec, ServicePort, is_headless},
};
use serde_json::Value;

/// Maximum number of conflicts of one reason in a message.
const MAX_CONFLICTS: usize = 5;

/// The exported Service of one cluster.
#[derive(Clone, Copy, Debug)]
pub struct ExporterSpec<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// Its exported Service.
    pub service: &'a ServiceExportPayload,
}

/// The merged Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeResult {
    /// The import, without addresses.
    pub spec: ServiceImportSpec,
    /// Labels of the import.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the import.
    pub annotations: BTreeMap<String, String>,
    /// The names of the ports served by each cluster; a cluster that serves none is absent.
    pub ports_by_cluster: BTreeMap<String, BTreeSet<String>>,
    /// Conflicts between the clusters.
    pub conflicts: Conflicts,
}

/// Conflicts: messages by reason, in the order of the API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conflicts {
    found: BTreeMap<&'static str, Vec<String>>,
}

/// The ports of all clusters in order of appearance, indexed by name and by number and protocol.
#[derive(Debug, Default)]
struct PortUnion {
    ports: Vec<ServicePort>,
    names: BTreeMap<String, usize>,
    numbers: BTreeMap<(i32, String), usize>,
}

/// Merges the exports, the oldest first; `None` without exports.
#[must_use]
pub fn merge(exporters: &[ExporterSpec<'_>]) -> Option<MergeResult> {
    let oldest = exporters.first()?;
    let mut merged = MergeResult {
        spec: non_port_fields(oldest.service),
        labels: exchanged(&oldest.service.exported_labels),
        annotations: exchanged(&oldest.service.exported_annotations),
        ..MergeResult::default()
    };
    let mut union = PortUnion::default();
    for exporter in exporters {
        let theirs = non_port_fields(exporter.service);
        if theirs.type_ == merged.spec.type_ {
            let served_ports = union.add(exporter, &mut merged.conflicts);
            if !served_ports.is_empty() || ports(exporter.service).is_empty() {
                merged
                    .ports_by_cluster
                    .insert(exporter.cluster.to_owned(), served_ports);
            }
            compare(&mut merged, oldest, exporter, &theirs);
        } else {
            // The whole export is unused, so its other fields do not conflict.
            let conflict_message =
                conflict_message(exporter, oldest, "type", &theirs.type_, &merged.spec.type_);
            merged.conflicts.add(conflict::TYPE, conflict_message);
        }
    }
    merged.spec.ports = union.ports;
    for missing in missing_ports(&merged, exporters) {
        merged.conflicts.add(conflict::PORT, missing);
    }
    Some(merged)
}

/// Whether `import` equals `service` in all fields of the oldest export and includes its ports.
#[must_use]
pub fn matches_import(service: &ServiceExportPayload, import: &ServiceImport) -> bool {
    let fields = ServiceImportSpec {
        ports: import.spec.ports.clone(),
        ..non_port_fields(service)
    };
    let metadata = &import.metadata;
    let same = |old: &Option<BTreeMap<String, String>>, new: &BTreeMap<String, String>| {
        old.as_ref().map_or(new.is_empty(), |old| old == new)
    };
    fields == import.spec
        && same(&metadata.labels, &exchanged(&service.exported_labels))
        && same(&metadata.annotations, &exchanged(&service.exported_annotations))
        && ports(service).iter().all(|port| import.spec.ports.contains(port))
}

/// All fields except ports and addresses.
fn non_port_fields(service: &ServiceExportPayload) -> ServiceImportSpec {
    let spec = &service.service_spec;
    let type_ = if is_headless(spec) {
        HEADLESS
    } else {
        CLUSTER_SET_IP
    };
    ServiceImportSpec {
        type_: type_.to_owned(),
        session_affinity: spec.session_affinity.clone().unwrap_or_default(),
        session_affinity_config: spec
            .session_affinity_config
            .as_ref()
            .and_then(|config| serde_json::to_value(config).ok()),
        ip_families: spec.ip_families.clone().unwrap_or_default(),
        internal_traffic_policy: spec.internal_traffic_policy.clone(),
        traffic_distribution: spec.traffic_distribution.clone(),
        ..ServiceImportSpec::default()
    }
}

/// The ports of an export in the form of imports.
#[must_use]
pub fn ports(service: &ServiceExportPayload) -> Vec<ServicePort> {
    let ports = service.service_spec.ports.iter().flatten();
    ports
        .map(|port| ServicePort {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: port.app_protocol.clone(),
            port: port.port,
        })
        .collect()
}

// === impl PortUnion ===

impl PortUnion {
    /// The port of the union that equals `port` or conflicts with it.
    fn conflicting_port(&self, port: &ServicePort) -> Option<&ServicePort> {
        let by_name = self.names.get(&port.name);
        let by_number = || self.numbers.get(&(port.port, port.protocol.clone()));
        // A Service with several ports requires a name for each: a nameless port conflicts with every other.
        let nameless = || {
            let first = self.ports.first()?;
            (first.name.is_empty() || port.name.is_empty()).then_some(&0)
        };
        let at = by_name.or_else(by_number).or_else(nameless)?;
        self.ports.get(*at)
    }

    fn push(&mut self, port: ServicePort) {
        let at = self.ports.len();
        self.names.insert(port.name.clone(), at);
        self.numbers.insert((port.port, port.protocol.clone()), at);
        self.ports.push(port);
    }

    /// Adds the new ports of an exporter; returns the names of all ports of the union it serves.
    fn add(&mut self, exporter: &ExporterSpec<'_>, conflicts: &mut Conflicts) -> BTreeSet<String> {
        let mut served_ports = BTreeSet::new();
        for port in ports(exporter.service) {
            let Some(known) = self.conflicting_port(&port) else {
                served_ports.insert(port.name.clone());
                self.push(port);
                continue;
            };
            if (&known.name, known.port, &known.protocol) != (&port.name, port.port, &port.protocol) {
                let conflict_message = format!(
                    "port {:?} {}/{} of cluster {:?} conflicts with port {:?} {}/{}, which is used",
                    port.name,
                    port.port,
                    port.protocol,
                    exporter.cluster,
                    known.name,
                    known.port,
                    known.protocol,
                );
                conflicts.add(conflict::PORT, conflict_message);
                continue;
            }
            if known.app_protocol != port.app_protocol {
                let conflict_message = format!(
                    "port {:?} has appProtocol {:?} in cluster {:?}, and {:?} is used",
                    port.name,
                    port.app_protocol.as_deref().unwrap_or_default(),
                    exporter.cluster,
                    known.app_protocol.as_deref().unwrap_or_default(),
                );
                conflicts.add(conflict::PORT, conflict_message);
            }
            served_ports.insert(port.name);
        }
        served_ports
    }
}

/// Ports of the union missing in some clusters.
fn missing_ports(merged: &MergeResult, exporters: &[ExporterSpec<'_>]) -> Vec<String> {
    let mut missing = Vec::new();
    for exporter in exporters {
        let have: BTreeSet<_> = ports(exporter.service).into_iter().map(|p| p.name).collect();
        let Some(_) = merged.ports_by_cluster.get(exporter.cluster) else {
            continue;
        };
        missing.extend(
            merged
                .spec
                .ports
                .iter()
                .filter(|p| !have.contains(&p.name))
                .map(|p| format!("cluster {:?} has no port {:?}", exporter.cluster, p.name)),
        );
    }
    missing
}

/// Records the fields of an exporter of the same type that differ from the oldest.
fn compare(
    merged: &mut MergeResult,
    oldest: &ExporterSpec<'_>,
    exporter: &ExporterSpec<'_>,
    theirs: &ServiceImportSpec,
) {
    let spec = &merged.spec;
    let families = |s: &ServiceImportSpec| -> BTreeSet<String> {
        // An export without families is older than dual stack.
        let all = s.ip_families.iter().cloned().collect::<BTreeSet<_>>();
        if all.is_empty() {
            ["IPv4".to_owned()].into()
        } else {
            all
        }
    };
    let config = |s: &ServiceImportSpec| -> Value { s.session_affinity_config.clone().unwrap_or_default() };
    let list = |s: &BTreeSet<String>| s.iter().cloned().collect::<Vec<_>>().join(", ");
    let texts = [
        (
            conflict::SESSION_AFFINITY,
            "sessionAffinity",
            or(&spec.session_affinity, "None"),
            or(&theirs.session_affinity, "None"),
        ),
        (
            conflict::SESSION_AFFINITY_CONFIG,
            "sessionAffinityConfig",
            config(spec).to_string(),
            config(theirs).to_string(),
        ),
        (
            conflict::INTERNAL_TRAFFIC_POLICY,
            "internalTrafficPolicy",
            or(
                spec.internal_traffic_policy.as_deref().unwrap_or_default(),
                "Cluster",
            ),
            or(
                theirs.internal_traffic_policy.as_deref().unwrap_or_default(),
                "Cluster",
            ),
        ),
        (
            conflict::TRAFFIC_DISTRIBUTION,
            "trafficDistribution",
            spec.traffic_distribution.clone().unwrap_or_default(),
            theirs.traffic_distribution.clone().unwrap_or_default(),
        ),
        (
            conflict::IP_FAMILY,
            "ipFamilies",
            list(&families(spec)),
            list(&families(theirs)),
        ),
    ];
    let maps = [
        (
            conflict::LABELS,
            "exportedLabels",
            exchanged(&oldest.service.exported_labels),
            exchanged(&exporter.service.exported_labels),
        ),
        (
            conflict::ANNOTATIONS,
            "exportedAnnotations",
            exchanged(&oldest.service.exported_annotations),
            exchanged(&exporter.service.exported_annotations),
        ),
    ];
    for (reason, field, used, exported) in texts {
        if used != exported {
            let conflict_message = conflict_message(exporter, oldest, field, &exported, &used);
            merged.conflicts.add(reason, conflict_message);
        }
    }
    for (reason, field, used, exported) in maps {
        if used != exported {
            // The values may be long; the cluster is enough to find them.
            let conflict_message = format!(
                "{field} of cluster {:?} differ from those of cluster {:?}, which are used",
                exporter.cluster, oldest.cluster
            );
            merged.conflicts.add(reason, conflict_message);
        }
    }
}

fn conflict_message(
    exporter: &ExporterSpec<'_>,
    oldest: &ExporterSpec<'_>,
    field: &str,
    value: &str,
    merged_value: &str,
) -> String {
    format!(
        "{field} {value:?} of cluster {:?} conflicts with {merged_value:?} of cluster {:?}, which is used",
        exporter.cluster, oldest.cluster
    )
}

fn or(value: &str, default: &str) -> String {
    if value.is_empty() { default } else { value }.to_owned()
}

// === impl Conflicts ===

impl Conflicts {
    fn add(&mut self, reason: &'static str, conflict_message: String) {
        self.found.entry(reason).or_default().push(conflict_message);
    }

    /// Whether there are no conflicts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The reasons, joined by commas as specified by the API.
    #[must_use]
    pub fn reason(&self) -> String {
        self.found.keys().copied().collect::<Vec<_>>().join(",")
    }

    /// The first messages of each reason and the number of the others.
    #[must_use]
    pub fn message(&self) -> String {
        let mut message = String::new();
        for messages in self.found.values() {
            for text in messages.iter().take(MAX_CONFLICTS) {
                let between = if message.is_empty() { "" } else { "; " };
                // Writing to a String cannot fail.
                write!(message, "{between}{text}").unwrap_or_default();
            }
            if let Some(more) = messages.len().checked_sub(MAX_CONFLICTS).filter(|more| *more > 0) {
                write!(message, "; and {more} more").unwrap_or_default();
            }
        }
        message
    }
}

#[cfg(test)]
mod tests;
