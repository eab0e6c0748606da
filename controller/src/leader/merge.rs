//! Merging what several clusters say about one Service, as KEP-1645 asks: ports are united, and where clusters
//! contradict each other the oldest export decides and all of them are told.
//!
//! Guarantees: the result depends on the offers and their order only; no two ports of it have the same name, or
//! the same number and protocol; a cluster is never asked for a port it does not serve under that name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde_json::Value;

use crate::api::{
    resource_export::ServiceExportPayload,
    service_export::conflict,
    service_import::{CLUSTER_SET_IP, HEADLESS, ServiceImport, ServiceImportSpec, ServicePort, is_headless},
};

/// How many contradictions a message names.
const NAMED: usize = 5;

/// What one cluster says.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// Its export of the Service.
    pub service: &'a ServiceExportPayload,
}

/// What the set offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// The import, without addresses.
    pub spec: ServiceImportSpec,
    /// Labels of the import.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the import.
    pub annotations: BTreeMap<String, String>,
    /// By cluster the names of the ports that it serves; one without is left out altogether.
    pub served: BTreeMap<String, BTreeSet<String>>,
    /// Where the clusters contradict each other.
    pub conflicts: Conflicts,
}

/// Contradictions: reasons in the order of the API, and what to tell people.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conflicts {
    found: BTreeMap<&'static str, Vec<String>>,
}

/// The ports of all clusters, in the order in which they came, with places by name and by number and protocol.
#[derive(Debug, Default)]
struct Union {
    ports: Vec<ServicePort>,
    names: BTreeMap<String, usize>,
    numbers: BTreeMap<(i32, String), usize>,
}

/// Merges `offers`, the oldest first; `None` where there are none.
#[must_use]
pub fn merge(offers: &[Offer<'_>]) -> Option<Merged> {
    let oldest = offers.first()?;
    let mut merged = Merged {
        spec: facts(oldest.service),
        labels: oldest.service.exported_labels.clone(),
        annotations: oldest.service.exported_annotations.clone(),
        ..Merged::default()
    };
    let mut union = Union::default();
    for offer in offers {
        let theirs = facts(offer.service);
        if theirs.type_ == merged.spec.type_ {
            let served = union.add(offer, &mut merged.conflicts);
            if !served.is_empty() || ports(offer.service).is_empty() {
                merged.served.insert(offer.cluster.to_owned(), served);
            }
            compare(&mut merged, oldest, offer, &theirs);
        } else {
            // Nothing of it is used, so nothing else about it matters.
            let contradiction = contradiction(offer, oldest, "type", &theirs.type_, &merged.spec.type_);
            merged.conflicts.add(conflict::TYPE, contradiction);
        }
    }
    merged.spec.ports = union.ports;
    for missing in lacking(&merged, offers) {
        merged.conflicts.add(conflict::PORT, missing);
    }
    Some(merged)
}

/// Whether `import` says all that `service` does: its ports among others, and whatever the oldest export alone decides.
#[must_use]
pub fn stands(service: &ServiceExportPayload, import: &ServiceImport) -> bool {
    let facts = ServiceImportSpec {
        ports: import.spec.ports.clone(),
        ..facts(service)
    };
    let metadata = &import.metadata;
    let same = |known: &Option<BTreeMap<String, String>>, said: &BTreeMap<String, String>| {
        known.as_ref().map_or(said.is_empty(), |known| known == said)
    };
    facts == import.spec
        && same(&metadata.labels, &service.exported_labels)
        && same(&metadata.annotations, &service.exported_annotations)
        && ports(service).iter().all(|port| import.spec.ports.contains(port))
}

/// Everything but ports and addresses.
fn facts(service: &ServiceExportPayload) -> ServiceImportSpec {
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

/// The ports of an export, as imports have them.
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

// === impl Union ===

impl Union {
    /// The port that keeps `port` out, or that it is.
    fn met(&self, port: &ServicePort) -> Option<&ServicePort> {
        let by_name = self.names.get(&port.name);
        let by_number = || self.numbers.get(&(port.port, port.protocol.clone()));
        // A Service with several ports needs a name for each; so one without is alone.
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

    /// Adds what is new of the offer's ports; says which of the union the cluster serves.
    fn add(&mut self, offer: &Offer<'_>, conflicts: &mut Conflicts) -> BTreeSet<String> {
        let mut served = BTreeSet::new();
        for port in ports(offer.service) {
            let Some(known) = self.met(&port) else {
                served.insert(port.name.clone());
                self.push(port);
                continue;
            };
            if (&known.name, known.port, &known.protocol) != (&port.name, port.port, &port.protocol) {
                let contradiction = format!(
                    "port {:?} {}/{} of cluster {:?} contradicts port {:?} {}/{}, which is used",
                    port.name,
                    port.port,
                    port.protocol,
                    offer.cluster,
                    known.name,
                    known.port,
                    known.protocol,
                );
                conflicts.add(conflict::PORT, contradiction);
                continue;
            }
            if known.app_protocol != port.app_protocol {
                let contradiction = format!(
                    "port {:?} has appProtocol {:?} in cluster {:?}, and {:?} is used",
                    port.name,
                    port.app_protocol.as_deref().unwrap_or_default(),
                    offer.cluster,
                    known.app_protocol.as_deref().unwrap_or_default(),
                );
                conflicts.add(conflict::PORT, contradiction);
            }
            served.insert(port.name);
        }
        served
    }
}

/// Ports some clusters have and others have not.
fn lacking(merged: &Merged, offers: &[Offer<'_>]) -> Vec<String> {
    let mut lacking = Vec::new();
    for offer in offers {
        let have: BTreeSet<_> = ports(offer.service).into_iter().map(|p| p.name).collect();
        let Some(_) = merged.served.get(offer.cluster) else {
            continue;
        };
        lacking.extend(
            merged
                .spec
                .ports
                .iter()
                .filter(|p| !have.contains(&p.name))
                .map(|p| format!("cluster {:?} has no port {:?}", offer.cluster, p.name)),
        );
    }
    lacking
}

/// Notes what an offer of the same type says otherwise than the oldest.
fn compare(merged: &mut Merged, oldest: &Offer<'_>, offer: &Offer<'_>, theirs: &ServiceImportSpec) {
    let spec = &merged.spec;
    let families = |s: &ServiceImportSpec| -> BTreeSet<String> {
        // What does not say is older than dual stack.
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
            &oldest.service.exported_labels,
            &offer.service.exported_labels,
        ),
        (
            conflict::ANNOTATIONS,
            "exportedAnnotations",
            &oldest.service.exported_annotations,
            &offer.service.exported_annotations,
        ),
    ];
    for (reason, field, used, said) in texts {
        if used != said {
            let contradiction = contradiction(offer, oldest, field, &said, &used);
            merged.conflicts.add(reason, contradiction);
        }
    }
    for (reason, field, used, said) in maps {
        if used != said {
            // Values may be long; whose they are is enough to find them.
            let contradiction = format!(
                "{field} of cluster {:?} differ from those of cluster {:?}, which are used",
                offer.cluster, oldest.cluster
            );
            merged.conflicts.add(reason, contradiction);
        }
    }
}

fn contradiction(offer: &Offer<'_>, oldest: &Offer<'_>, field: &str, said: &str, used: &str) -> String {
    format!(
        "{field} {said:?} of cluster {:?} contradicts {used:?} of cluster {:?}, which is used",
        offer.cluster, oldest.cluster
    )
}

fn or(value: &str, default: &str) -> String {
    if value.is_empty() { default } else { value }.to_owned()
}

// === impl Conflicts ===

impl Conflicts {
    fn add(&mut self, reason: &'static str, contradiction: String) {
        self.found.entry(reason).or_default().push(contradiction);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Reasons, joined by commas as the API has it.
    #[must_use]
    pub fn reason(&self) -> String {
        self.found.keys().copied().collect::<Vec<_>>().join(",")
    }

    /// The first contradictions of each reason, and how many more there are.
    #[must_use]
    pub fn message(&self) -> String {
        let mut message = String::new();
        for contradictions in self.found.values() {
            for text in contradictions.iter().take(NAMED) {
                let between = if message.is_empty() { "" } else { "; " };
                // Writing into a String cannot fail.
                write!(message, "{between}{text}").unwrap_or_default();
            }
            if let Some(more) = contradictions.len().checked_sub(NAMED).filter(|more| *more > 0) {
                write!(message, "; and {more} more").unwrap_or_default();
            }
        }
        message
    }
}

#[cfg(test)]
mod tests;
