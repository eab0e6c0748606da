//! Invariants that hold after every write, under all faults.
//!
//! Controllers act on delayed state, so a deletion is checked against the facts that held during all of the last
//! [`Invariants::staleness_window`], which is longer than any fault delays a controller.
//!
//! | invariant | forbidden |
//! |---|---|
//! | foreign | changes or deletions of other writers' objects (except the status of ServiceExports and ClusterSets), or
//! of their labels, annotations and finalizers on ours |
//! | out-of-scope | writes of a member on the leader to anything but its own announce and exports; writes of the leader
//! to anything but imports, status and finalizers |
//! | unfounded | an export, import, Service, slice, ClusterInfo or label identity with content that no cluster ever had
//! or exported; among it a label identity of a cluster that never exported the label |
//! | stale-port | an import with a port that no current export has |
//! | stale-cluster | a label identity of a cluster that does not export the label |
//! | premature-deletion | the deletion of an import, an imported object or an export while all its sources exist |
//! | silent-removal | the end of a membership that no user ended, unless policy `Remove` and its timeout apply |
//! | undrained | the deletion of a Gateway with weight, or before the end of its drain period |
//! | self-import | a ClusterInfoImport of the cluster itself, or of its own Service range |

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mc_api::{config::IdentityExport, names};
use mc_test_kit::fake_apiserver::{
    resources::Resource,
    store::{Actor, Change, Key, Store, StoredObject},
};
use serde_json::{Value, json};

use crate::{
    accounts::check_bindings,
    endpoint_ranges::Networks,
    foreign_writes::{check_foreign, check_scope, is_own_id},
    heartbeats::HeartbeatLog,
    label_numbers::LabelNumbers,
    member_namespaces::{is_copy, merged_imports},
    network_history::NetworkHistory,
    pending_deletions,
    ports::{format_ports, split_ports},
    simulation::Cluster,
    strangers::is_strangers,
};

/// Namespace and name of an exported Service.
type ServiceKey = (String, String);

/// A fact about the leader or the cluster with this index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// A cluster exports the Service.
    Exported(ServiceKey),
    /// A cluster exports the Service with this port.
    ExportedWithPort(ServiceKey, String),
    /// A cluster exports endpoints of the Service in its ranges, and all exporters agree on its ports.
    EndpointsExported(ServiceKey),
    /// The leader has an import of the Service.
    Imported(ServiceKey),
    /// The cluster with this ID exports its ClusterInfo.
    ClusterInfoExported(String),
    /// The leader has a ClusterInfo import of this name.
    ClusterInfoImported(String),
    /// A cluster exports the label.
    LabelExported(String),
    /// The cluster with this ID exports the label.
    LabelExportedBy(String, String),
    /// The leader has an import of the label with this number.
    LabelImported(String, u64),
    /// The cluster has Pods with the label.
    LabelUsed(usize, String),
    /// The leader has an announce of this cluster.
    Announced(String),
    /// The cluster has a ClusterSet with this ID.
    WantsMembership(usize, String),
    /// The cluster has all sources of an export of the Service.
    Exportable(usize, ServiceKey),
    /// The cluster has the Namespace.
    NamespaceExists(usize, String),
    /// The cluster has a Gateway that is not draining.
    ActiveGateway(usize),
}

/// The invariants and the history they need.
#[derive(Debug, Default)]
pub(crate) struct Invariants {
    /// Maximum delay of a controller's view.
    pub(crate) staleness_window: Duration,
    /// Violations found so far.
    pub(crate) violations: Vec<String>,
    facts: BTreeMap<Fact, (bool, Duration)>,
    heartbeats: HeartbeatLog,
    label_numbers: LabelNumbers,
    /// Ports that users ever gave a Service in a cluster.
    service_ports: BTreeSet<(usize, ServiceKey, String)>,
    /// Addresses a Service or its Pods ever had in a cluster.
    service_addresses: BTreeSet<(usize, ServiceKey, String)>,
    /// Addresses Nodes of a cluster ever had or were assigned.
    node_addresses: BTreeSet<(usize, String)>,
    /// Every Service and port ever exported.
    exported_ports: BTreeSet<(ServiceKey, String)>,
    /// Cluster ID, Service and address ever exported.
    exported_addresses: BTreeSet<(String, ServiceKey, String)>,
    /// Cluster ID and ClusterInfo ever exported.
    networks: NetworkHistory,
    /// Labels that Pods of a cluster ever had.
    pod_labels: BTreeSet<(usize, String)>,
    /// Cluster ID and label ever exported.
    exported_labels: BTreeSet<(String, String)>,
    /// Label identities ever imported.
    imported_identities: BTreeSet<String>,
    /// True if the leader's objects were replaced by older ones.
    restored: bool,
}

/// A resource of Antrea's multi-cluster group.
pub(crate) fn antrea(plural: &str) -> Resource {
    (names::GROUP.to_owned(), plural.to_owned())
}

/// A resource of the MCS API.
pub(crate) fn mcs(plural: &str) -> Resource {
    (names::MCS_GROUP.to_owned(), plural.to_owned())
}

/// A resource of the core group.
pub(crate) fn core(plural: &str) -> Resource {
    (String::new(), plural.to_owned())
}

/// The `endpointslices` resource.
pub(crate) fn slices() -> Resource {
    ("discovery.k8s.io".to_owned(), "endpointslices".to_owned())
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The label of Pods, as in the design: their Namespaces have no labels but the name.
pub(crate) fn pod_label(key: &Key, pod: &StoredObject) -> String {
    let labels = pod.meta("labels").as_object().into_iter().flatten();
    let mut pairs: Vec<_> = labels.map(|(k, v)| format!("{k}={}", text(v))).collect();
    pairs.sort();
    let namespace = &key.0;
    format!(
        "ns:kubernetes.io/metadata.name={namespace}&pod:{}",
        pairs.join(",")
    )
}

/// The labels of the Pods of a cluster in Namespaces that exist.
pub(crate) fn used_labels(cluster: &Cluster) -> impl Iterator<Item = String> {
    let pods = cluster
        .store
        .all(&core("pods"))
        .filter(|(_, pod)| !pod.is_terminating());
    let has_namespace = |key: &Key| {
        let namespace = (String::new(), key.0.clone());
        let found = cluster.store.get(&core("namespaces"), &namespace);
        found.is_some_and(|n| !n.is_terminating())
    };
    pods.filter(move |(key, _)| has_namespace(key))
        .map(|(key, pod)| pod_label(key, pod))
}

/// The label of an identity's export.
pub(crate) fn exported_label(spec: &Value) -> String {
    text(&spec["labelIdentity"]["normalizedLabel"])
}

/// Whether members read an export from each other, and the leader does not.
pub(crate) fn is_of_members(spec: &Value) -> bool {
    spec["kind"] == "PolicySelectors" || spec["kind"] == "ImportFailures"
}

fn subset_addresses(subsets: &Value) -> impl Iterator<Item = String> {
    list(subsets)
        .flat_map(|s| list(&s["addresses"]))
        .map(|a| text(&a["ip"]))
}

/// The Service of an export or import.
pub(crate) fn service_key(spec: &Value) -> ServiceKey {
    (text(&spec["namespace"]), text(&spec["name"]))
}

/// True unless the endpoint is not ready.
pub(crate) fn is_ready(endpoint: &Value) -> bool {
    endpoint["conditions"]["ready"] != json!(false)
}

/// True if a cluster has an export, a Service of a supported type with a name for imports, and a ready endpoint.
pub(crate) fn is_exportable(cluster: &Cluster, key: &ServiceKey) -> bool {
    let live = |resource: &Resource| cluster.store.get(resource, key).filter(|o| !o.is_terminating());
    let Some(service) = live(&core("services")) else {
        return false;
    };
    // RFC 1035: no cluster could import it.
    if names::imported_service(&key.1).len() > 63 {
        return false;
    }
    if live(&mcs("serviceexports")).is_none()
        || service.annotation(names::ANNOTATION_IMPORTED_SERVICE).is_some()
    {
        return false;
    }
    let spec = &service.value["spec"];
    if spec["type"] == "ExternalName" || spec["clusterIP"] == "None" {
        return false;
    }
    cluster.store.all(&slices()).any(|(name, slice)| {
        name.0 == key.0
            && slice.label(names::LABEL_SERVICE_NAME) == Some(&key.1)
            && slice.value["addressType"] == "IPv4"
            && list(&slice.value["endpoints"]).any(is_ready)
    })
}

/// The cluster ID of the oldest ClusterSet that is not being deleted.
pub(crate) fn wanted_cluster_id(cluster: &Cluster) -> Option<String> {
    let sets = cluster.store.all(&antrea("clustersets"));
    let set = sets
        .filter(|(_, s)| !s.is_terminating())
        .min_by_key(|(key, s)| (text(s.meta("creationTimestamp")), key.1.clone()))?;
    Some(text(&set.1.value["spec"]["clusterID"]))
}

// === impl Rules ===

impl Invariants {
    /// Checks a change; `at` is the time since the start, `now` the server's clock.
    pub(crate) fn check(
        &mut self,
        clusters: &[Cluster],
        server: usize,
        actor: Actor,
        change: &Change,
        at: Duration,
        now: Timestamp,
    ) -> Vec<String> {
        let mut found = vec![];
        if matches!(actor, Actor::Leader | Actor::Member(_)) {
            check_foreign(server, actor, change, &mut found);
            check_scope(clusters, server, actor, change, &mut found);
            check_bindings(change, &mut found);
            pending_deletions::check(&clusters[0], actor, change, self.restored, now, &mut found);
            if change.deleted
                || change.new.is_terminating() && change.old.as_ref().is_some_and(|o| !o.is_terminating())
            {
                // The removal of the last finalizer completes a deletion requested earlier.
                if change.old.as_ref().is_none_or(|o| !o.is_terminating()) {
                    self.check_deletion(clusters, server, actor, change, at, now, &mut found);
                }
            }
        }
        if server == 0 {
            self.label_numbers
                .check(&clusters[0], actor, change, self.restored, now, &mut found);
            if change.resource.1 == "memberclusterannounces" {
                self.heartbeats.observe(change, now);
            }
        }
        self.observe(clusters, server, change, at);
        if matches!(actor, Actor::Leader | Actor::Member(_)) && !change.deleted {
            self.check_provenance(
                clusters,
                server,
                actor,
                &change.resource.1,
                &change.new,
                at,
                &mut found,
            );
        }
        let (resource, (namespace, name)) = (&change.resource.1, &change.key);
        let place = format!("{actor:?} on server {server}, {resource} {namespace}/{name}");
        let broken: Vec<_> = found.iter().map(|rule| format!("{rule}: {place}")).collect();
        self.violations.extend(broken.iter().cloned());
        broken
    }

    /// Re-evaluates all facts after the leader's objects were replaced by older ones.
    pub(crate) fn reevaluate(&mut self, clusters: &[Cluster], at: Duration) {
        self.restored = true;
        let facts: Vec<_> = self.facts.keys().cloned().collect();
        for fact in facts {
            self.update_fact(clusters, fact, at);
        }
    }

    fn is_stable(&self, fact: &Fact, holds: bool, at: Duration) -> bool {
        let (now, since) = self.facts.get(fact).copied().unwrap_or((false, Duration::ZERO));
        now == holds && at.saturating_sub(since) > self.staleness_window
    }

    fn update_fact(&mut self, clusters: &[Cluster], fact: Fact, at: Duration) {
        let holds = fact_holds(clusters, &fact);
        let old = self.facts.get(&fact).copied();
        if old.is_none_or(|(was, _)| was != holds) {
            // A fact never observed before was false from the beginning.
            let since = if old.is_none() && !holds {
                Duration::ZERO
            } else {
                at
            };
            self.facts.insert(fact, (holds, since));
        }
    }

    /// Updates the facts and the history with a change.
    fn observe(&mut self, clusters: &[Cluster], server: usize, change: &Change, at: Duration) {
        let mut facts = vec![];
        let versions: Vec<_> = change.old.iter().chain([&change.new]).collect();
        for stored in &versions {
            let spec = &stored.value["spec"];
            match (server, change.resource.1.as_str()) {
                (0, "resourceexports") if spec["kind"] == "ClusterInfo" => {
                    facts.push(Fact::ClusterInfoExported(text(&spec["clusterID"])));
                    facts.extend(self.endpoints_exported());
                }
                (0, "configmaps") => facts.extend(self.endpoints_exported()),
                (0, "resourceexports") if spec["kind"] == "LabelIdentity" => {
                    let label = exported_label(spec);
                    facts.push(Fact::LabelExported(label.clone()));
                    facts.push(Fact::LabelExportedBy(text(&spec["clusterID"]), label));
                }
                (0, "resourceexports") if is_of_members(spec) => {}
                (0, "resourceexports") => {
                    facts.push(Fact::Exported(service_key(spec)));
                    facts.push(Fact::EndpointsExported(service_key(spec)));
                    let ports = format_ports(&spec["service"]["serviceSpec"]["ports"]);
                    facts.extend(
                        split_ports(&ports).map(|port| Fact::ExportedWithPort(service_key(spec), port)),
                    );
                }
                (0, "resourceimports") if spec["kind"] == "ClusterInfo" => {
                    facts.push(Fact::ClusterInfoImported(change.key.1.clone()));
                }
                (0, "resourceimports") if spec["kind"] == "LabelIdentity" => {
                    facts.push(imported_label(&spec["labelIdentity"]));
                }
                (0, "resourceimports") => facts.push(Fact::Imported(service_key(spec))),
                (0, "memberclusterannounces") => {
                    facts.push(Fact::Announced(text(&stored.value["clusterID"])));
                }
                (0, _) => {}
                (i, "services" | "serviceexports") => facts.push(Fact::Exportable(i, change.key.clone())),
                (i, "endpointslices") => {
                    let service = stored.label(names::LABEL_SERVICE_NAME).unwrap_or_default();
                    facts.push(Fact::Exportable(i, (change.key.0.clone(), service.to_owned())));
                }
                (i, "clustersets") => facts.push(Fact::WantsMembership(i, text(&spec["clusterID"]))),
                (i, "namespaces") => {
                    facts.push(Fact::NamespaceExists(i, change.key.1.clone()));
                    let pods = clusters[i].store.all(&core("pods"));
                    let inside = pods.filter(|(key, _)| key.0 == change.key.1);
                    facts.extend(inside.map(|(key, pod)| Fact::LabelUsed(i, pod_label(key, pod))));
                }
                (i, "pods") => facts.push(Fact::LabelUsed(i, pod_label(&change.key, stored))),
                (i, "gateways") => facts.push(Fact::ActiveGateway(i)),
                _ => {}
            }
        }
        for fact in facts {
            self.update_fact(clusters, fact, at);
        }
        self.record_history(server, change);
    }

    /// The facts that depend on the ranges of clusters.
    fn endpoints_exported(&self) -> Vec<Fact> {
        let facts = self.facts.keys();
        let facts = facts.filter(|fact| matches!(fact, Fact::EndpointsExported(_)));
        facts.cloned().collect()
    }

    fn record_history(&mut self, server: usize, change: &Change) {
        let value = &change.new.value;
        let spec = &value["spec"];
        match (server, change.resource.1.as_str()) {
            (0, "resourceexports") if !is_strangers(&change.key) => {
                let id = text(&spec["clusterID"]);
                match spec["kind"].as_str() {
                    Some("Service") => {
                        let ports = format_ports(&spec["service"]["serviceSpec"]["ports"]);
                        self.exported_ports
                            .extend(split_ports(&ports).map(|port| (service_key(spec), port)));
                    }
                    Some("Endpoints") => {
                        for ip in subset_addresses(&spec["endpoints"]["subsets"]) {
                            self.exported_addresses
                                .insert((id.clone(), service_key(spec), ip));
                        }
                    }
                    Some("ClusterInfo") => {
                        self.networks.observe(&spec["clusterInfo"]);
                    }
                    Some("LabelIdentity") => {
                        self.exported_labels.insert((id, exported_label(spec)));
                    }
                    _ => {}
                }
            }
            (0, "resourceimports") if spec["kind"] == "LabelIdentity" => {
                self.imported_identities.insert(spec["labelIdentity"].to_string());
            }
            (0, _) => {}
            (i, "pods") => {
                self.pod_labels.insert((i, pod_label(&change.key, &change.new)));
            }
            (i, "services") => {
                let key = change.key.clone();
                self.service_ports
                    .insert((i, key.clone(), format_ports(&spec["ports"])));
                self.service_addresses.insert((i, key, text(&spec["clusterIP"])));
            }
            (i, "endpointslices") => {
                let service = change.new.label(names::LABEL_SERVICE_NAME).unwrap_or_default();
                let key = (change.key.0.clone(), service.to_owned());
                for ip in list(&value["endpoints"]).flat_map(|e| list(&e["addresses"])) {
                    self.service_addresses.insert((i, key.clone(), text(ip)));
                }
            }
            (i, "nodes") => {
                for address in list(&value["status"]["addresses"]) {
                    self.node_addresses.insert((i, text(&address["address"])));
                }
                if let Some(ip) = change.new.annotation(names::ANNOTATION_GATEWAY_IP) {
                    self.node_addresses.insert((i, ip.to_owned()));
                }
            }
            _ => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one invariant and its inputs")]
    fn check_deletion(
        &self,
        clusters: &[Cluster],
        server: usize,
        actor: Actor,
        change: &Change,
        at: Duration,
        now: Timestamp,
        found: &mut Vec<String>,
    ) {
        let Some(old) = &change.old else { return };
        let spec = &old.value["spec"];
        let steady = |fact: Fact| self.is_stable(&fact, true, at);
        let wanted =
            |i: usize| wanted_cluster_id(&clusters[i]).is_some_and(|id| steady(Fact::WantsMembership(i, id)));
        let id_of = |i: usize| wanted_cluster_id(&clusters[i]).unwrap_or_default();
        let vanished = match (actor, change.resource.1.as_str()) {
            (Actor::Leader, "resourceimports") => match spec["kind"].as_str() {
                Some("ServiceImport") => steady(Fact::Exported(service_key(spec))),
                Some("Endpoints") => steady(Fact::EndpointsExported(service_key(spec))),
                // A restored leader can have two labels with one number.
                Some("LabelIdentity") => {
                    !self.restored && steady(Fact::LabelExported(text(&spec["labelIdentity"]["label"])))
                }
                _ => steady(Fact::ClusterInfoExported(text(&spec["clusterinfo"]["clusterID"]))),
            },
            // A user may have deleted the original.
            (Actor::Leader, "resourceexports") if is_copy(old) => false,
            (Actor::Leader, "resourceexports") => steady(Fact::Announced(text(&spec["clusterID"]))),
            (_, "memberclusterannounces") => {
                let id = text(&old.value["clusterID"]);
                let whose = (1..clusters.len()).find(|i| id_of(*i) == id);
                let silent = self
                    .heartbeats
                    .may_remove(&clusters[0], actor, &change.key.1, now);
                if whose.is_some_and(wanted) && !silent {
                    found.push("silent-removal".to_owned());
                }
                false
            }
            (Actor::Member(i), "resourceexports") if server == 0 => {
                let mine = id_of(i) == text(&spec["clusterID"]) && wanted(i);
                mine && match spec["kind"].as_str() {
                    Some("ClusterInfo") => steady(Fact::ActiveGateway(i)),
                    // With `Selected`, a label in use is withdrawn when no policy of another cluster selects it.
                    Some("LabelIdentity") => {
                        clusters[i].config.identity_export == IdentityExport::All
                            && steady(Fact::LabelUsed(i, exported_label(spec)))
                    }
                    Some(_) if is_of_members(spec) => false,
                    _ => steady(Fact::Exportable(i, service_key(spec))),
                }
            }
            (Actor::Member(i), "services" | "serviceimports") => {
                let name = names::exported_service(&change.key.1).unwrap_or(&change.key.1);
                let key = (change.key.0.clone(), name.to_owned());
                wanted(i)
                    && steady(Fact::Imported(key))
                    && steady(Fact::NamespaceExists(i, change.key.0.clone()))
            }
            (Actor::Member(i), "labelidentities") => wanted(i) && steady(imported_label(spec)),
            (Actor::Member(i), "clusterinfoimports") => {
                wanted(i)
                    && steady(Fact::ClusterInfoImported(change.key.1.clone()))
                    && text(&spec["clusterID"]) != id_of(i)
            }
            (Actor::Member(i), "gateways") => {
                if wanted(i) {
                    check_drained(&clusters[i], old, now, found);
                }
                false
            }
            _ => false,
        };
        if vanished {
            found.push("premature-deletion".to_owned());
        }
    }

    /// Ports of an import that no export has or had.
    fn unexported_ports(&self, of: &ServiceKey, ports: &str, at: Duration) -> Vec<String> {
        let mut found = vec![];
        for port in split_ports(ports) {
            if !self.exported_ports.contains(&(of.clone(), port.clone())) {
                found.push(format!("unfounded: {port}"));
            }
            if self.is_stable(&Fact::ExportedWithPort(of.clone(), port.clone()), false, at) {
                found.push(format!("stale-port: {port}"));
            }
        }
        found
    }

    /// Addresses of an import that its clusters never exported.
    fn unexported_addresses(&self, spec: &Value) -> Vec<String> {
        let mut found = vec![];
        for cluster in list(&spec["endpoints"]["clusters"]) {
            let id = text(&cluster["clusterID"]);
            for ip in subset_addresses(&cluster["subsets"]) {
                let address = (id.clone(), service_key(spec), ip.clone());
                if !self.exported_addresses.contains(&address) {
                    found.push(format!("unfounded: {ip} of {id}"));
                }
            }
        }
        found
    }

    /// Label and clusters of an import that no export has or had.
    fn unexported_label(&self, identity: &Value, at: Duration) -> Vec<String> {
        let label = text(&identity["label"]);
        let mut found = vec![];
        if !self.exported_labels.iter().any(|(_, known)| *known == label) {
            found.push(format!("unfounded: {label}"));
        }
        if !identity["clusters"].is_array() {
            found.push(format!("unfounded: {label} of any cluster"));
        }
        for cluster in list(&identity["clusters"]).map(text) {
            if !self.exported_labels.contains(&(cluster.clone(), label.clone())) {
                found.push(format!("unfounded: {label} of {cluster}"));
            }
            let exported = Fact::LabelExportedBy(cluster.clone(), label.clone());
            if self.is_stable(&exported, false, at) {
                found.push(format!("stale-cluster: {label} of {cluster}"));
            }
        }
        found
    }

    #[expect(clippy::too_many_arguments, reason = "one invariant and its inputs")]
    fn check_provenance(
        &self,
        clusters: &[Cluster],
        server: usize,
        actor: Actor,
        plural: &str,
        new: &StoredObject,
        at: Duration,
        found: &mut Vec<String>,
    ) {
        let spec = &new.value["spec"];
        let mut demand = |truth: bool, what: String| {
            if !truth {
                found.push(format!("unfounded: {what}"));
            }
        };
        match (actor, plural) {
            (Actor::Member(i), "resourceexports") => match spec["kind"].as_str() {
                Some("Service") => {
                    let ports = format_ports(&spec["service"]["serviceSpec"]["ports"]);
                    demand(
                        self.service_ports
                            .contains(&(i, service_key(spec), ports.clone())),
                        ports,
                    );
                }
                Some("Endpoints") => {
                    for ip in subset_addresses(&spec["endpoints"]["subsets"]) {
                        demand(
                            self.service_addresses
                                .contains(&(i, service_key(spec), ip.clone())),
                            ip,
                        );
                    }
                }
                Some("ClusterInfo") => self.check_cluster_info(i, &spec["clusterInfo"], at, &mut demand),
                Some("LabelIdentity") => {
                    let label = exported_label(spec);
                    demand(self.pod_labels.contains(&(i, label.clone())), label);
                }
                _ => {}
            },
            (Actor::Leader, "resourceimports") => match spec["kind"].as_str() {
                Some("ServiceImport") => {
                    let ports = format_ports(&spec["serviceImport"]["spec"]["ports"]);
                    found.extend(self.unexported_ports(&service_key(spec), &ports, at));
                }
                Some("Endpoints") => found.extend(self.unexported_addresses(spec)),
                Some("ClusterInfo") => {
                    let id = text(&spec["clusterinfo"]["clusterID"]);
                    demand(self.networks.contains(&spec["clusterinfo"]), id);
                }
                Some("LabelIdentity") => found.extend(self.unexported_label(&spec["labelIdentity"], at)),
                _ => {}
            },
            (Actor::Member(i), "clusterinfoimports") if server == i => {
                let id = text(&spec["clusterID"]);
                demand(self.networks.contains(spec), id.clone());
                let own = format!("10.{}.0.0/16", 100 + i);
                // The cluster's own export under a former ID may remain; gateways ignore it.
                let formerly = is_own_id(&id, &clusters[i].id);
                if wanted_cluster_id(&clusters[i]).as_ref() == Some(&id)
                    || spec["serviceCIDR"] == own.as_str() && !formerly
                {
                    found.push("self-import".to_owned());
                }
            }
            (Actor::Member(i), "labelidentities") if server == i => {
                let known = self.imported_identities.contains(&spec.to_string());
                demand(known, spec.to_string());
            }
            (Actor::Member(i), "services") if server == i => {
                let name = text(new.meta("name"));
                let of = names::exported_service(&name).unwrap_or_default().to_owned();
                let key = (text(new.meta("namespace")), of);
                for port in split_ports(&format_ports(&spec["ports"])) {
                    demand(self.exported_ports.contains(&(key.clone(), port.clone())), port);
                }
            }
            (Actor::Member(i), "endpointslices") if server == i => {
                let label = |name| new.label(name).unwrap_or_default().to_owned();
                let key = (text(new.meta("namespace")), label(names::LABEL_MCS_SERVICE_NAME));
                let id = label(names::LABEL_MCS_SOURCE_CLUSTER);
                for ip in list(&new.value["endpoints"])
                    .flat_map(|e| list(&e["addresses"]))
                    .map(text)
                {
                    let known = self
                        .exported_addresses
                        .contains(&(id.clone(), key.clone(), ip.clone()))
                        || self.service_addresses.contains(&(i, key.clone(), ip.clone()));
                    demand(known, format!("{ip} of {id:?}"));
                }
            }
            _ => {}
        }
    }

    /// A ClusterInfo contains only the cluster's own ranges and Nodes.
    fn check_cluster_info(
        &self,
        i: usize,
        info: &Value,
        at: Duration,
        demand: &mut impl FnMut(bool, String),
    ) {
        let own = format!("10.{}.0.0/16", 100 + i);
        demand(
            info["serviceCIDR"] == own.as_str(),
            info["serviceCIDR"].to_string(),
        );
        for gateway in list(&info["gatewayInfos"]) {
            let ip = text(&gateway["gatewayIP"]);
            demand(self.node_addresses.contains(&(i, ip.clone())), ip);
        }
        let prefix = format!("10.{}.", 10 + i);
        for cidr in list(&info["podCIDRs"]) {
            demand(text(cidr).starts_with(&prefix), cidr.to_string());
        }
        // A controller with stale state may still use the former ID.
        let id = Fact::WantsMembership(i, text(&info["clusterID"]));
        demand(!self.is_stable(&id, false, at), info["clusterID"].to_string());
    }
}

/// The fact that an identity is imported.
fn imported_label(identity: &Value) -> Fact {
    Fact::LabelImported(
        text(&identity["label"]),
        identity["id"].as_u64().unwrap_or_default(),
    )
}

fn fact_holds(clusters: &[Cluster], fact: &Fact) -> bool {
    let leader = &clusters[0].store;
    let exports = |kind: &'static str, service: ServiceKey| {
        leader
            .all(&antrea("resourceexports"))
            .filter(|(key, _)| !is_strangers(key))
            .map(|(_, e)| e)
            .filter(move |e| {
                let spec = &e.value["spec"];
                !e.is_terminating() && spec["kind"] == kind && service_key(spec) == service
            })
    };
    let ports_of = |e: &StoredObject| format_ports(&e.value["spec"]["service"]["serviceSpec"]["ports"]);
    match fact {
        Fact::Exported(service) => exports("Service", service.clone()).next().is_some(),
        Fact::ExportedWithPort(service, ports) => {
            exports("Service", service.clone()).any(|e| split_ports(&ports_of(e)).any(|port| port == *ports))
        }
        Fact::EndpointsExported(service) => {
            let services: Vec<_> = exports("Service", service.clone()).collect();
            let all: BTreeSet<_> = services.iter().map(|e| ports_of(e)).collect();
            let of = |e: &StoredObject| text(&e.value["spec"]["clusterID"]);
            let networks = Networks::of_leader(&clusters[0]);
            let in_ranges = |e: &StoredObject| {
                let ips: Vec<_> = subset_addresses(&e.value["spec"]["endpoints"]["subsets"]).collect();
                !networks.accepted(&of(e), &ips).is_empty()
            };
            all.len() == 1
                && exports("Endpoints", service.clone())
                    .any(|e| services.iter().any(|s| of(s) == of(e)) && in_ranges(e))
        }
        Fact::Imported(service) => merged_imports(leader).any(|(_, i)| {
            let spec = &i.value["spec"];
            !i.is_terminating() && spec["kind"] == "ServiceImport" && service_key(spec) == *service
        }),
        Fact::ClusterInfoExported(id) => leader.all(&antrea("resourceexports")).any(|(_, e)| {
            let spec = &e.value["spec"];
            !e.is_terminating() && spec["kind"] == "ClusterInfo" && spec["clusterID"] == id.as_str()
        }),
        Fact::ClusterInfoImported(name) => merged_imports(leader).any(|(key, i)| {
            key.1 == *name && !i.is_terminating() && i.value["spec"]["kind"] == "ClusterInfo"
        }),
        Fact::LabelExported(label) => label_exports(leader).any(|(_, exported)| exported == *label),
        Fact::LabelExportedBy(id, label) => {
            label_exports(leader).any(|(by, exported)| by == *id && exported == *label)
        }
        Fact::LabelImported(..) => merged_imports(leader).any(|(_, i)| {
            let spec = &i.value["spec"];
            !i.is_terminating()
                && spec["kind"] == "LabelIdentity"
                && imported_label(&spec["labelIdentity"]) == *fact
        }),
        Fact::LabelUsed(i, label) => used_labels(&clusters[*i]).any(|used| used == *label),
        Fact::Announced(id) => leader
            .all(&antrea("memberclusterannounces"))
            .any(|(_, a)| !a.is_terminating() && a.value["clusterID"] == id.as_str()),
        Fact::WantsMembership(i, id) => wanted_cluster_id(&clusters[*i]).as_ref() == Some(id),
        Fact::Exportable(i, service) => is_exportable(&clusters[*i], service),
        Fact::NamespaceExists(i, name) => clusters[*i]
            .store
            .get(&core("namespaces"), &(String::new(), name.clone()))
            .is_some_and(|n| !n.is_terminating()),
        Fact::ActiveGateway(i) => clusters[*i]
            .store
            .all(&antrea("gateways"))
            .any(|(_, g)| !g.is_terminating() && g.value["weight"] != json!(0)),
    }
}

/// Cluster ID and label of each export of a label identity.
pub(crate) fn label_exports(leader: &Store) -> impl Iterator<Item = (String, String)> {
    let exports = leader.all(&antrea("resourceexports")).map(|(_, e)| e);
    exports
        .filter(|e| !e.is_terminating() && e.value["spec"]["kind"] == "LabelIdentity")
        .map(|e| {
            let spec = &e.value["spec"];
            (text(&spec["clusterID"]), exported_label(spec))
        })
}

fn check_drained(cluster: &Cluster, old: &StoredObject, now: Timestamp, found: &mut Vec<String>) {
    let since: Option<Timestamp> = old
        .annotation(names::ANNOTATION_DRAINING_SINCE)
        .and_then(|t| t.parse().ok());
    let over = since
        .and_then(|t| t.checked_add(cluster.config.drain_period).ok())
        .is_some_and(|end| end <= now);
    if old.value["weight"] != json!(0) || !over {
        found.push("undrained".to_owned());
    }
}
