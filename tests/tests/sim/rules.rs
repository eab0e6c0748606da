//! What must hold after every write, whatever goes wrong.
//!
//! Controllers see the world with a delay, so a deletion is judged by what was true for all of the last
//! [`Rules::window`]: longer than any fault keeps a controller from looking.
//!
//! | rule | what is forbidden |
//! |---|---|
//! | foreign | changing or deleting what somebody else made (status of ServiceExports and ClusterSets excepted), or labels, annotations and finalizers somebody else put on ours |
//! | place | a member writing, on the leader, anything but its own announce and exports; the leader writing anything but imports, verdicts and finalizers |
//! | invented | an export, import, Service, slice or ClusterInfo that says what nobody ever offered |
//! | outdated | an import with a port that no live export has |
//! | vanished | deleting an import, an imported object or an export while all that it is made from is there |
//! | silence | ending a membership that nobody ended, unless an administrator wants the silent removed and it is time |
//! | undrained | deleting a Gateway that had weight, or whose drain period is not over |
//! | own | a ClusterInfoImport of the cluster itself, or one that claims its Service range |

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use controller::api::names;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    model::{
        kinds::Resource,
        store::{Actor, Change, Stored},
    },
    ports::{each, ports},
    silence::Beats,
    world::{Cluster, MEMBER_NAMESPACE},
};

/// Namespace and name of a Service of the set.
type Tuple = (String, String);

/// Something that is true or not, of the leader or of the cluster of an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// Somebody exports the Service.
    Exported(Tuple),
    /// Somebody exports the Service with this port.
    ExportedAs(Tuple, String),
    /// Somebody exports endpoints of it, and nobody contradicts its ports.
    Endpoints(Tuple),
    /// There is an import of it.
    Imported(Tuple),
    /// The cluster of that ID exports its network.
    Network(String),
    /// There is an import of a cluster's network, of that name.
    NetworkImported(String),
    /// There is an announce of that cluster.
    Announced(String),
    /// The cluster wants to be a member under that ID.
    Wants(usize, String),
    /// The cluster offers the Service.
    Offers(usize, Tuple),
    /// The cluster has the Namespace.
    Namespace(usize, String),
    /// The cluster has a Gateway that is not being drained.
    Gateway(usize),
}

/// The rules and what they remember.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// How long a controller may not know of a change.
    pub(crate) window: Duration,
    /// What was broken.
    pub(crate) broken: Vec<String>,
    facts: BTreeMap<Fact, (bool, Duration)>,
    beats: Beats,
    /// Ports users ever gave a Service in a cluster.
    ports: BTreeSet<(usize, Tuple, String)>,
    /// Addresses a Service or its Pods ever had in a cluster.
    addresses: BTreeSet<(usize, Tuple, String)>,
    /// Addresses Nodes of a cluster ever had or were given, and its Pod ranges.
    nodes: BTreeSet<(usize, String)>,
    /// What was ever exported: what, and a port.
    exported_ports: BTreeSet<(Tuple, String)>,
    /// What was ever exported: cluster ID, what, address.
    exported_addresses: BTreeSet<(String, Tuple, String)>,
    /// What was ever exported: cluster ID and network.
    exported_networks: BTreeSet<(String, String)>,
}

/// A resource of the set's own group.
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

/// `EndpointSlice`s.
pub(crate) fn slices() -> Resource {
    ("discovery.k8s.io".to_owned(), "endpointslices".to_owned())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn subset_addresses(subsets: &Value) -> impl Iterator<Item = String> {
    list(subsets)
        .flat_map(|s| list(&s["addresses"]))
        .map(|a| text(&a["ip"]))
}

/// The Service of the set that an export or import speaks of.
fn tuple(spec: &Value) -> Tuple {
    (text(&spec["namespace"]), text(&spec["name"]))
}

/// Whether an endpoint counts.
pub(crate) fn is_ready(endpoint: &Value) -> bool {
    endpoint["conditions"]["ready"] != json!(false)
}

/// Whether a cluster offers a Service: an export, a Service of a usable type, a ready endpoint.
pub(crate) fn offers(cluster: &Cluster, tuple: &Tuple) -> bool {
    let live = |resource: &Resource| cluster.store.get(resource, tuple).filter(|o| !o.is_going());
    let Some(service) = live(&core("services")) else {
        return false;
    };
    if live(&mcs("serviceexports")).is_none()
        || service.annotation(names::ANNOTATION_IMPORTED_SERVICE).is_some()
    {
        return false;
    }
    let spec = &service.value["spec"];
    if spec["type"] == "ExternalName" || spec["clusterIP"] == "None" {
        return false;
    }
    cluster.store.all(&slices()).any(|(key, slice)| {
        key.0 == tuple.0
            && slice.label(names::LABEL_SERVICE_NAME) == Some(&tuple.1)
            && slice.value["addressType"] == "IPv4"
            && list(&slice.value["endpoints"]).any(is_ready)
    })
}

/// The ID under which a cluster wants to be a member, if it does.
pub(crate) fn wants(cluster: &Cluster) -> Option<String> {
    let sets = cluster.store.all(&antrea("clustersets"));
    let set = sets
        .filter(|(_, s)| !s.is_going())
        .min_by_key(|(key, s)| (text(s.meta("creationTimestamp")), key.1.clone()))?;
    Some(text(&set.1.value["spec"]["clusterID"]))
}

// === impl Rules ===

impl Rules {
    /// Judges a change; `at` is the time of the run, `now` that of the server's clock.
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
            foreign(server, actor, change, &mut found);
            place(clusters, server, actor, change, &mut found);
            if change.deleted || change.new.is_going() && change.old.as_ref().is_some_and(|o| !o.is_going()) {
                // Taking the last finalizer off is the end of a deletion somebody asked for.
                if change.old.as_ref().is_none_or(|o| !o.is_going()) {
                    self.deleted(clusters, server, actor, change, at, now, &mut found);
                }
            }
        }
        self.learn(clusters, server, change, at);
        if matches!(actor, Actor::Leader | Actor::Member(_)) && !change.deleted {
            self.invented(
                clusters,
                server,
                actor,
                &change.resource.1,
                &change.new,
                at,
                &mut found,
            );
        }
        let broken: Vec<_> = found
            .into_iter()
            .map(|rule| {
                let (resource, key) = (&change.resource.1, &change.key);
                format!(
                    "{rule}: {actor:?} on server {server}, {resource} {}/{}",
                    key.0, key.1
                )
            })
            .collect();
        self.broken.extend(broken.iter().cloned());
        broken
    }

    /// The leader's objects were replaced by older ones.
    pub(crate) fn restored(&mut self, clusters: &[Cluster], at: Duration) {
        let facts: Vec<_> = self.facts.keys().cloned().collect();
        for fact in facts {
            self.renew(clusters, fact, at);
        }
    }

    fn steady(&self, fact: &Fact, holds: bool, at: Duration) -> bool {
        let (now, since) = self.facts.get(fact).copied().unwrap_or((false, Duration::ZERO));
        now == holds && at.saturating_sub(since) > self.window
    }

    fn renew(&mut self, clusters: &[Cluster], fact: Fact, at: Duration) {
        let holds = holds(clusters, &fact);
        let old = self.facts.get(&fact).copied();
        if old.is_none_or(|(was, _)| was != holds) {
            // What was never heard of was false from the beginning.
            let since = if old.is_none() && !holds {
                Duration::ZERO
            } else {
                at
            };
            self.facts.insert(fact, (holds, since));
        }
    }

    /// What a change says of the facts, and what it adds to all that was ever said.
    fn learn(&mut self, clusters: &[Cluster], server: usize, change: &Change, at: Duration) {
        let mut facts = vec![];
        if (server, change.resource.1.as_str()) == (0, "memberclusterannounces") {
            self.beats.learn(change, at);
        }
        let versions: Vec<_> = change.old.iter().chain([&change.new]).collect();
        for stored in &versions {
            let spec = &stored.value["spec"];
            match (server, change.resource.1.as_str()) {
                (0, "resourceexports") if spec["kind"] == "ClusterInfo" => {
                    facts.push(Fact::Network(text(&spec["clusterID"])));
                }
                (0, "resourceexports") => {
                    facts.push(Fact::Exported(tuple(spec)));
                    facts.push(Fact::Endpoints(tuple(spec)));
                    let ports = ports(&spec["service"]["serviceSpec"]["ports"]);
                    facts.extend(each(&ports).map(|port| Fact::ExportedAs(tuple(spec), port)));
                }
                (0, "resourceimports") if spec["kind"] == "ClusterInfo" => {
                    facts.push(Fact::NetworkImported(change.key.1.clone()));
                }
                (0, "resourceimports") => facts.push(Fact::Imported(tuple(spec))),
                (0, "memberclusterannounces") => {
                    facts.push(Fact::Announced(text(&stored.value["clusterID"])));
                }
                (0, _) => {}
                (i, "services" | "serviceexports") => facts.push(Fact::Offers(i, change.key.clone())),
                (i, "endpointslices") => {
                    let service = stored.label(names::LABEL_SERVICE_NAME).unwrap_or_default();
                    facts.push(Fact::Offers(i, (change.key.0.clone(), service.to_owned())));
                }
                (i, "clustersets") => facts.push(Fact::Wants(i, text(&spec["clusterID"]))),
                (i, "namespaces") => facts.push(Fact::Namespace(i, change.key.1.clone())),
                (i, "gateways") => facts.push(Fact::Gateway(i)),
                _ => {}
            }
        }
        for fact in facts {
            self.renew(clusters, fact, at);
        }
        self.remember(server, change);
    }

    fn remember(&mut self, server: usize, change: &Change) {
        let value = &change.new.value;
        let spec = &value["spec"];
        match (server, change.resource.1.as_str()) {
            (0, "resourceexports") => {
                let id = text(&spec["clusterID"]);
                match spec["kind"].as_str() {
                    Some("Service") => {
                        let ports = ports(&spec["service"]["serviceSpec"]["ports"]);
                        self.exported_ports
                            .extend(each(&ports).map(|port| (tuple(spec), port)));
                    }
                    Some("Endpoints") => {
                        for ip in subset_addresses(&spec["endpoints"]["subsets"]) {
                            self.exported_addresses.insert((id.clone(), tuple(spec), ip));
                        }
                    }
                    Some("ClusterInfo") => {
                        self.exported_networks
                            .insert((id, spec["clusterInfo"].to_string()));
                    }
                    _ => {}
                }
            }
            (0, _) => {}
            (i, "services") => {
                let key = change.key.clone();
                self.ports.insert((i, key.clone(), ports(&spec["ports"])));
                self.addresses.insert((i, key, text(&spec["clusterIP"])));
            }
            (i, "endpointslices") => {
                let service = change.new.label(names::LABEL_SERVICE_NAME).unwrap_or_default();
                let key = (change.key.0.clone(), service.to_owned());
                for ip in list(&value["endpoints"]).flat_map(|e| list(&e["addresses"])) {
                    self.addresses.insert((i, key.clone(), text(ip)));
                }
            }
            (i, "nodes") => {
                for address in list(&value["status"]["addresses"]) {
                    self.nodes.insert((i, text(&address["address"])));
                }
                if let Some(ip) = change.new.annotation(names::ANNOTATION_GATEWAY_IP) {
                    self.nodes.insert((i, ip.to_owned()));
                }
            }
            _ => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one rule, and all it is judged by")]
    fn deleted(
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
        let steady = |fact: Fact| self.steady(&fact, true, at);
        let wanted = |i: usize| wants(&clusters[i]).is_some_and(|id| steady(Fact::Wants(i, id)));
        let id_of = |i: usize| wants(&clusters[i]).unwrap_or_default();
        let vanished = match (actor, change.resource.1.as_str()) {
            (Actor::Leader, "resourceimports") => match spec["kind"].as_str() {
                Some("ServiceImport") => steady(Fact::Exported(tuple(spec))),
                Some("Endpoints") => steady(Fact::Endpoints(tuple(spec))),
                _ => steady(Fact::Network(text(&spec["clusterinfo"]["clusterID"]))),
            },
            (Actor::Leader, "resourceexports") => steady(Fact::Announced(text(&spec["clusterID"]))),
            (_, "memberclusterannounces") => {
                let id = text(&old.value["clusterID"]);
                let whose = (1..clusters.len()).find(|i| id_of(*i) == id);
                let silent = self.beats.may_remove(&clusters[0], actor, &change.key.1, at);
                if whose.is_some_and(wanted) && !silent {
                    found.push("silence".to_owned());
                }
                false
            }
            (Actor::Member(i), "resourceexports") if server == 0 => {
                let mine = id_of(i) == text(&spec["clusterID"]) && wanted(i);
                mine && match spec["kind"].as_str() {
                    Some("ClusterInfo") => steady(Fact::Gateway(i)),
                    _ => steady(Fact::Offers(i, tuple(spec))),
                }
            }
            (Actor::Member(i), "services" | "serviceimports") => {
                let name = names::imported_from(&change.key.1).unwrap_or(&change.key.1);
                let tuple = (change.key.0.clone(), name.to_owned());
                wanted(i) && steady(Fact::Imported(tuple)) && steady(Fact::Namespace(i, change.key.0.clone()))
            }
            (Actor::Member(i), "clusterinfoimports") => {
                wanted(i)
                    && steady(Fact::NetworkImported(change.key.1.clone()))
                    && text(&spec["clusterID"]) != id_of(i)
            }
            (Actor::Member(i), "gateways") => {
                if wanted(i) {
                    undrained(&clusters[i], old, now, found);
                }
                false
            }
            _ => false,
        };
        if vanished {
            found.push("vanished".to_owned());
        }
    }

    /// What is wrong with the ports of an import.
    fn ports_of_nobody(&self, of: &Tuple, ports: &str, at: Duration) -> Vec<String> {
        let mut found = vec![];
        for port in each(ports) {
            if !self.exported_ports.contains(&(of.clone(), port.clone())) {
                found.push(format!("invented: {port}"));
            }
            if self.steady(&Fact::ExportedAs(of.clone(), port.clone()), false, at) {
                found.push(format!("outdated: {port}"));
            }
        }
        found
    }

    #[expect(clippy::too_many_arguments, reason = "one rule, and all it is judged by")]
    fn invented(
        &self,
        clusters: &[Cluster],
        server: usize,
        actor: Actor,
        plural: &str,
        new: &Stored,
        at: Duration,
        found: &mut Vec<String>,
    ) {
        let spec = &new.value["spec"];
        let mut demand = |truth: bool, what: String| {
            if !truth {
                found.push(format!("invented: {what}"));
            }
        };
        match (actor, plural) {
            (Actor::Member(i), "resourceexports") => match spec["kind"].as_str() {
                Some("Service") => {
                    let ports = ports(&spec["service"]["serviceSpec"]["ports"]);
                    demand(self.ports.contains(&(i, tuple(spec), ports.clone())), ports);
                }
                Some("Endpoints") => {
                    for ip in subset_addresses(&spec["endpoints"]["subsets"]) {
                        demand(self.addresses.contains(&(i, tuple(spec), ip.clone())), ip);
                    }
                }
                Some("ClusterInfo") => self.network(i, &spec["clusterInfo"], at, &mut demand),
                _ => {}
            },
            (Actor::Leader, "resourceimports") => match spec["kind"].as_str() {
                Some("ServiceImport") => {
                    let ports = ports(&spec["serviceImport"]["spec"]["ports"]);
                    found.extend(self.ports_of_nobody(&tuple(spec), &ports, at));
                }
                Some("Endpoints") => {
                    for cluster in list(&spec["endpoints"]["clusters"]) {
                        let id = text(&cluster["clusterID"]);
                        for ip in subset_addresses(&cluster["subsets"]) {
                            let known =
                                self.exported_addresses
                                    .contains(&(id.clone(), tuple(spec), ip.clone()));
                            demand(known, format!("{ip} of {id}"));
                        }
                    }
                }
                Some("ClusterInfo") => {
                    let id = text(&spec["clusterinfo"]["clusterID"]);
                    demand(
                        self.exported_networks
                            .contains(&(id.clone(), spec["clusterinfo"].to_string())),
                        id,
                    );
                }
                _ => {}
            },
            (Actor::Member(i), "clusterinfoimports") if server == i => {
                let id = text(&spec["clusterID"]);
                demand(
                    self.exported_networks.contains(&(id.clone(), spec.to_string())),
                    id.clone(),
                );
                let own = format!("10.{}.0.0/16", 100 + i);
                // What it said itself under an earlier ID may still be there; gateways refuse it.
                let formerly = is_id_of(&id, &clusters[i].id);
                if wants(&clusters[i]).as_ref() == Some(&id)
                    || spec["serviceCIDR"] == own.as_str() && !formerly
                {
                    found.push("own".to_owned());
                }
            }
            (Actor::Member(i), "services") if server == i => {
                let name = text(new.meta("name"));
                let of = names::imported_from(&name).unwrap_or_default().to_owned();
                let ports = ports(&spec["ports"]);
                for port in each(&ports) {
                    let known = (text(new.meta("namespace")), of.clone(), port.clone());
                    demand(self.exported_ports.contains(&((known.0, known.1), known.2)), port);
                }
            }
            (Actor::Member(i), "endpointslices") if server == i => {
                let of = new
                    .label(names::LABEL_MCS_SERVICE_NAME)
                    .unwrap_or_default()
                    .to_owned();
                let key = (text(new.meta("namespace")), of);
                let id = new
                    .label(names::LABEL_MCS_SOURCE_CLUSTER)
                    .unwrap_or_default()
                    .to_owned();
                for ip in list(&new.value["endpoints"])
                    .flat_map(|e| list(&e["addresses"]))
                    .map(text)
                {
                    let known = self
                        .exported_addresses
                        .contains(&(id.clone(), key.clone(), ip.clone()))
                        || self.addresses.contains(&(i, key.clone(), ip.clone()));
                    demand(known, format!("{ip} of {id:?}"));
                }
            }
            _ => {}
        }
    }

    /// A cluster speaks of its own ranges and Nodes only.
    fn network(&self, i: usize, info: &Value, at: Duration, demand: &mut impl FnMut(bool, String)) {
        let own = format!("10.{}.0.0/16", 100 + i);
        demand(
            info["serviceCIDR"] == own.as_str(),
            info["serviceCIDR"].to_string(),
        );
        for gateway in list(&info["gatewayInfos"]) {
            let ip = text(&gateway["gatewayIP"]);
            demand(self.nodes.contains(&(i, ip.clone())), ip);
        }
        let prefix = format!("10.{}.", 10 + i);
        for cidr in list(&info["podCIDRs"]) {
            demand(text(cidr).starts_with(&prefix), cidr.to_string());
        }
        // A controller that cannot look may go on with the ID of before.
        let id = Fact::Wants(i, text(&info["clusterID"]));
        demand(!self.steady(&id, false, at), info["clusterID"].to_string());
    }
}

fn holds(clusters: &[Cluster], fact: &Fact) -> bool {
    let leader = &clusters[0].store;
    let exports = |kind: &'static str, tuple: Tuple| {
        leader
            .all(&antrea("resourceexports"))
            .map(|(_, e)| e)
            .filter(move |e| {
                let spec = &e.value["spec"];
                !e.is_going() && spec["kind"] == kind && self::tuple(spec) == tuple
            })
    };
    let ports_of = |e: &Stored| ports(&e.value["spec"]["service"]["serviceSpec"]["ports"]);
    match fact {
        Fact::Exported(tuple) => exports("Service", tuple.clone()).next().is_some(),
        Fact::ExportedAs(tuple, ports) => {
            exports("Service", tuple.clone()).any(|e| each(&ports_of(e)).any(|port| port == *ports))
        }
        Fact::Endpoints(tuple) => {
            let services: Vec<_> = exports("Service", tuple.clone()).collect();
            let all: BTreeSet<_> = services.iter().map(|e| ports_of(e)).collect();
            let of = |e: &Stored| text(&e.value["spec"]["clusterID"]);
            all.len() == 1
                && exports("Endpoints", tuple.clone()).any(|e| services.iter().any(|s| of(s) == of(e)))
        }
        Fact::Imported(tuple) => leader.all(&antrea("resourceimports")).any(|(_, i)| {
            let spec = &i.value["spec"];
            !i.is_going() && spec["kind"] == "ServiceImport" && self::tuple(spec) == *tuple
        }),
        Fact::Network(id) => leader.all(&antrea("resourceexports")).any(|(_, e)| {
            let spec = &e.value["spec"];
            !e.is_going() && spec["kind"] == "ClusterInfo" && spec["clusterID"] == id.as_str()
        }),
        Fact::NetworkImported(name) => leader
            .all(&antrea("resourceimports"))
            .any(|(key, i)| key.1 == *name && !i.is_going() && i.value["spec"]["kind"] == "ClusterInfo"),
        Fact::Announced(id) => leader
            .all(&antrea("memberclusterannounces"))
            .any(|(_, a)| !a.is_going() && a.value["clusterID"] == id.as_str()),
        Fact::Wants(i, id) => wants(&clusters[*i]).as_ref() == Some(id),
        Fact::Offers(i, tuple) => offers(&clusters[*i], tuple),
        Fact::Namespace(i, name) => clusters[*i]
            .store
            .get(&core("namespaces"), &(String::new(), name.clone()))
            .is_some_and(|n| !n.is_going()),
        Fact::Gateway(i) => clusters[*i]
            .store
            .all(&antrea("gateways"))
            .any(|(_, g)| !g.is_going() && g.value["weight"] != json!(0)),
    }
}

/// An object without what anybody may write.
fn own_part(stored: &Stored, status: bool) -> Value {
    let mut value = stored.value.clone();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    if status && let Some(map) = value.as_object_mut() {
        map.remove("status");
    }
    value
}

fn foreign(server: usize, actor: Actor, change: &Change, found: &mut Vec<String>) {
    let Some(old) = &change.old else { return };
    if old.maker == Actor::User {
        let told = matches!(
            (actor, server, change.resource.1.as_str()),
            (Actor::Leader, 0, "clustersets") | (Actor::Member(_), 1.., "clustersets" | "serviceexports")
        );
        if change.deleted || own_part(old, told) != own_part(&change.new, told) {
            found.push("foreign: the object".to_owned());
        }
        return;
    }
    if change.deleted {
        let held = list(old.meta("finalizers")).any(|f| f == "example.com/hold");
        if held {
            found.push("foreign: the finalizer".to_owned());
        }
        return;
    }
    let Some(users) = old.owners.get(&("kubectl".to_owned(), false)) else {
        return;
    };
    let have = crate::model::fields::leaves(&change.new.value);
    let had = crate::model::fields::leaves(&old.value);
    for path in users {
        let metadata = ["labels", "annotations", "finalizers"]
            .iter()
            .any(|f| path.starts_with(&format!("\u{1}metadata\u{1}{f}\u{1}")));
        if metadata && had.get(path) != have.get(path) {
            found.push(format!("foreign: {}", crate::model::fields::show(path)));
        }
    }
}

fn place(clusters: &[Cluster], server: usize, actor: Actor, change: &Change, found: &mut Vec<String>) {
    let plural = change.resource.1.as_str();
    let versions = || change.old.iter().chain([&change.new]);
    let right = match (actor, server) {
        (Actor::Leader, 0) => match plural {
            "resourceimports" => true,
            "clustersets" => change.old.is_some(),
            "resourceexports" | "memberclusterannounces" => change
                .old
                .as_ref()
                .is_some_and(|old| old.value["spec"] == change.new.value["spec"]),
            _ => !["secrets", "serviceaccounts"].contains(&plural),
        },
        (Actor::Member(i), 0) => {
            // Under one of the IDs the cluster ever had: an old membership is ended by who began it.
            let id = &clusters[i].id;
            match plural {
                "memberclusterannounces" => versions().all(|a| {
                    let said = text(&a.value["clusterID"]);
                    is_id_of(&said, id) && change.key.1 == names::member_announce(&said)
                }),
                "resourceexports" => versions().all(|e| {
                    let said = text(&e.value["spec"]["clusterID"]);
                    is_id_of(&said, id)
                        && e.label(names::LABEL_SOURCE_CLUSTER_ID) == Some(&said)
                        && change.key.1.starts_with(&format!("{said}-"))
                }),
                _ => false,
            }
        }
        (Actor::Member(i), server) if server == i => match plural {
            "gateways" | "clusterinfoimports" => change.key.0 == MEMBER_NAMESPACE,
            "services" => versions().all(|s| s.annotation(names::ANNOTATION_IMPORTED_SERVICE).is_some()),
            "endpointslices" => {
                versions().all(|s| s.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY))
            }
            _ => !["secrets", "nodes", "namespaces"].contains(&plural),
        },
        _ => false,
    };
    if !right {
        found.push("place".to_owned());
    }
}

/// A cluster has one ID, or, after it has joined anew, another that is marked as such.
fn is_id_of(said: &str, id: &str) -> bool {
    said == id || said.strip_suffix("-2") == Some(id)
}

fn undrained(cluster: &Cluster, old: &Stored, now: Timestamp, found: &mut Vec<String>) {
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
