//! The expected final state, computed from the users' objects alone, without any plan of the controllers.

use std::collections::{BTreeMap, BTreeSet};

use mc_api::{
    config::{EndpointIpType, IdentityExport},
    names,
    network_policy::DEFAULT_TIERS,
    policy_selectors::PolicySelectors,
};
use mc_test_kit::fake_apiserver::store::{Actor, Key, Store, StoredObject};
use serde_json::{Value, json};

use crate::{
    accounts,
    empty_leader::wrong_records,
    endpoint_ranges::{self, Networks},
    import_failures::wrong_reports,
    invariants::{
        antrea, core, is_exportable, is_of_members, is_ready, label_exports, mcs, service_key, slices,
        used_labels, wanted_cluster_id,
    },
    member_namespaces::{self, is_copy, merged_imports},
    policies::{address_groups, crd_antrea, peer_labels, selected_pod_labels, statuses, wrong_counters},
    ports::format_ports,
    reachability::{wrong_data_paths, wrong_readiness},
    simulation::{Cluster, LEADER_NAMESPACE, MEMBER_NAMESPACE, SET, Simulation},
    strangers::is_strangers,
    user_actions::is_malformed,
};

/// Differences between actual and expected state.
struct Differences(Vec<String>);

/// Ports of a Service and addresses that may be exported, by exporting cluster.
type Exporters = BTreeMap<String, (String, Vec<String>)>;

/// Label identities by label: number and clusters.
type Identities = BTreeMap<String, (u64, Vec<String>)>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The condition of this type.
pub(crate) fn find_condition<'a>(object: &'a StoredObject, type_: &str) -> Option<&'a Value> {
    list(&object.value["status"]["conditions"]).find(|c| c["type"] == type_)
}

/// Status and reason of a condition.
pub(crate) fn condition(object: &StoredObject, type_: &str) -> (String, String) {
    find_condition(object, type_)
        .map(|c| (text(&c["status"]), text(&c["reason"])))
        .unwrap_or_default()
}

/// All port unions of offers, each with the creation of its export: of ports with the same name the oldest wins, and
/// among exports of one second any.
fn possible_port_unions(offers: &[(String, &str)]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let oldest = offers.iter().map(|(created, _)| created).min();
    for (i, (created, first)) in offers.iter().enumerate() {
        if Some(created) != oldest {
            continue;
        }
        let mut rest = offers.to_vec();
        rest.remove(i);
        let tails = if rest.is_empty() {
            BTreeSet::from([String::new()])
        } else {
            possible_port_unions(&rest)
        };
        for tail in tails {
            let mut union: Vec<&str> = first.split(',').collect();
            for port in tail.split(',').filter(|port| !port.is_empty()) {
                let name = |port: &str| port.split('/').next().unwrap_or_default().to_owned();
                if union.iter().all(|known| name(known) != name(port)) {
                    union.push(port);
                }
            }
            all.insert(union.join(","));
        }
    }
    all
}

/// True if a cluster has at least one port of the import.
fn shares_port(ports: &str, import: &str) -> bool {
    ports
        .split(',')
        .any(|port| import.split(',').any(|known| known == port))
}

impl Differences {
    fn expect_eq<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, have: &T, want: &T) {
        if have != want {
            self.0.push(format!("{what}: {have:?} instead of {want:?}"));
        }
    }
}

/// Announces and exports on the leader of cluster IDs no longer in use.
pub(crate) fn leftovers(world: &Simulation) -> (Vec<Key>, Vec<Key>) {
    let ids: BTreeSet<_> = world
        .clusters
        .iter()
        .skip(1)
        .filter_map(wanted_cluster_id)
        .collect();
    let leader = &world.clusters[0].store;
    let announces = leader
        .all(&antrea("memberclusterannounces"))
        .filter(|(_, a)| !ids.contains(&text(&a.value["clusterID"])));
    let exports = leader.all(&antrea("resourceexports")).filter(|(key, e)| {
        let id = text(&e.value["spec"]["clusterID"]);
        !is_malformed(key) && !is_strangers(key) && !ids.contains(&id)
    });
    (
        announces.map(|(k, _)| k.clone()).collect(),
        exports.map(|(k, _)| k.clone()).collect(),
    )
}

/// All differences from the expected state.
pub(crate) fn differences(world: &Simulation) -> Vec<String> {
    let counters = world.clusters.iter().flat_map(wrong_counters);
    differences_of_objects(world)
        .into_iter()
        .chain(counters)
        .chain(wrong_records(world))
        .collect()
}

/// The differences apart from counters of rules, which are written once a minute, and from records of settled
/// memberships.
pub(crate) fn differences_of_objects(world: &Simulation) -> Vec<String> {
    let mut report = Differences(accounts::differences(&world.clusters[0].store));
    let members: BTreeMap<usize, String> = (1..world.clusters.len())
        .filter_map(|i| Some((i, wanted_cluster_id(&world.clusters[i])?)))
        .collect();
    let mut services: BTreeMap<Key, Exporters> = BTreeMap::new();
    for (i, id) in &members {
        let cluster = &world.clusters[*i];
        let mut by_name: BTreeMap<String, Vec<&Key>> = BTreeMap::new();
        for (key, _) in cluster.store.all(&mcs("serviceexports")) {
            if is_exportable(cluster, key) {
                by_name.entry(import_name(key)).or_default().push(key);
            }
        }
        for keys in by_name.values() {
            let holder = name_owner(cluster, keys, &mut report);
            if let Some(service) = cluster.store.get(&core("services"), holder) {
                let addresses = match cluster.config.endpoint_ip_type {
                    EndpointIpType::ClusterIp => vec![text(&service.value["spec"]["clusterIP"])],
                    EndpointIpType::PodIp => ready_pod_ips(cluster, holder),
                };
                let offer = (format_ports(&service.value["spec"]["ports"]), addresses);
                services
                    .entry(holder.clone())
                    .or_default()
                    .insert(id.clone(), offer);
            }
        }
    }
    let networks: BTreeSet<_> = members
        .iter()
        .filter(|(i, _)| {
            world.clusters[**i]
                .store
                .all(&antrea("gateways"))
                .next()
                .is_some()
        })
        .map(|(_, id)| id.clone())
        .collect();
    for i in 1..world.clusters.len() {
        let key = (MEMBER_NAMESPACE.to_owned(), names::MEMBERSHIP_RECORDS.to_owned());
        let record = world.clusters[i].store.get(&core("configmaps"), &key);
        let data = record.and_then(|record| record.value["data"].as_object().cloned());
        let of = members
            .get(&i)
            .map(|id| format!("{SET}_{id}_{}", world.leader_namespace(i)));
        let outstanding: Vec<_> = data
            .iter()
            .flat_map(|data| data.keys())
            .filter(|key| Some(*key) != of.as_ref())
            .collect();
        report.expect_eq(
            &format!("cluster {i}: pending deregistrations"),
            &outstanding,
            &vec![],
        );
    }
    let ranges = Networks::of_leader(&world.clusters[0]);
    for (id, (_, ips)) in services.values_mut().flatten() {
        *ips = ranges.accepted(id, ips);
    }
    let winners = check_leader(world, &members, &services, &networks, &mut report);
    check_identities(world, &members, &mut report);
    check_selectors(world, &members, &mut report);
    report
        .0
        .extend(member_namespaces::differences(world, |key| !is_malformed(key)));
    report.0.extend(wrong_reports(
        world,
        &members,
        &winners.keys().collect::<Vec<_>>(),
    ));
    for i in 1..world.clusters.len() {
        let before = report.0.len();
        match members.get(&i) {
            Some(id) => check_member(
                &world.clusters[i],
                i,
                id,
                &services,
                &winners,
                &networks,
                &mut report,
            ),
            None => check_non_member(&world.clusters[i], &mut report),
        }
        check_policies(&world.clusters[i], &mut report);
        for line in report.0.iter_mut().skip(before) {
            *line = format!("cluster {i}: {line}");
        }
    }
    report.0
}

/// The Service's name in the leader cluster; two Services can have the same one.
fn import_name(key: &Key) -> String {
    names::service_import(&key.0, &key.1)
}

/// The Service that owns a name within its cluster; all others must report `NameTaken`.
fn name_owner<'a>(cluster: &Cluster, keys: &[&'a Key], report: &mut Differences) -> &'a Key {
    let taken = ("False".to_owned(), "NameTaken".to_owned());
    let is_notified = |key: &Key| {
        let export = cluster.store.get(&mcs("serviceexports"), key);
        export.is_some_and(|e| condition(e, "Valid") == taken)
    };
    let (notified, mut holders): (Vec<&Key>, Vec<&Key>) = keys.iter().partition(|key| is_notified(key));
    if keys.len() > 1 {
        report.expect_eq(&format!("holders of the name of {keys:?}"), &holders.len(), &1);
    }
    holders.extend(notified);
    holders.swap_remove(0)
}

/// True if another Service with the same name on the leader is imported instead.
fn has_lost_name(winners: &BTreeMap<Key, String>, key: &Key) -> bool {
    !winners.contains_key(key) && winners.keys().any(|other| import_name(other) == import_name(key))
}

/// The sorted addresses of all subsets.
fn addresses(subsets: &Value) -> Vec<String> {
    let all = list(subsets).flat_map(|s| list(&s["addresses"]));
    let mut ips: Vec<_> = all.map(|a| text(&a["ip"])).collect();
    ips.sort();
    ips
}

/// Whether an export is checked apart.
fn is_checked_apart(spec: &Value) -> bool {
    spec["kind"] == "LabelIdentity" || is_of_members(spec)
}

/// Checks that an imported network is as exported; returns its cluster.
fn check_network(leader: &Store, info: &Value, report: &mut Differences) -> String {
    let id = text(&info["clusterID"]);
    let name = names::cluster_info(&id);
    let export = leader
        .all(&antrea("resourceexports"))
        .find(|(key, _)| key.1 == name);
    let exported = export.map(|(_, export)| &export.value["spec"]["clusterInfo"]);
    report.expect_eq("network", &Some(info), &exported);
    id
}

/// Checks the leader; returns the ports of each import.
fn check_leader(
    world: &Simulation,
    members: &BTreeMap<usize, String>,
    services: &BTreeMap<Key, Exporters>,
    networks: &BTreeSet<String>,
    report: &mut Differences,
) -> BTreeMap<Key, String> {
    let store = &world.clusters[0].store;
    let ids: BTreeSet<_> = members.values().cloned().collect();
    let announced: BTreeSet<_> = store
        .all(&antrea("memberclusterannounces"))
        .map(|(_, a)| text(&a.value["clusterID"]))
        .collect();
    report.expect_eq("announces", &announced, &ids);
    if let Some(set) = store.get(
        &antrea("clustersets"),
        &(LEADER_NAMESPACE.to_owned(), SET.to_owned()),
    ) {
        let status = &set.value["status"];
        let counts = (status["totalClusters"].as_u64(), status["readyClusters"].as_u64());
        let all = u64::try_from(ids.len()).ok();
        report.expect_eq("ClusterSet status", &counts, &(all, all));
        report.expect_eq("ClusterSet Ready", &condition(set, "Ready").0, &"True".to_owned());
    }
    let mut exports = BTreeSet::new();
    for (_, export) in store
        .all(&antrea("resourceexports"))
        .filter(|(key, e)| !is_malformed(key) && !is_strangers(key) && !is_checked_apart(&e.value["spec"]))
    {
        let spec = &export.value["spec"];
        exports.insert((
            text(&spec["kind"]),
            text(&spec["clusterID"]),
            text(&spec["namespace"]),
            text(&spec["name"]),
        ));
    }
    let mut wanted = BTreeSet::new();
    for (key, offers) in services {
        for id in offers.keys() {
            for kind in ["Service", "Endpoints"] {
                wanted.insert((kind.to_owned(), id.clone(), key.0.clone(), key.1.clone()));
            }
        }
    }
    for id in networks {
        wanted.insert((
            "ClusterInfo".to_owned(),
            id.clone(),
            MEMBER_NAMESPACE.to_owned(),
            id.clone(),
        ));
    }
    report.expect_eq("exports", &exports, &wanted);
    let mut imported = BTreeSet::new();
    let mut winners = BTreeMap::new();
    let mut endpoints: BTreeMap<Key, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (_, import) in merged_imports(store)
        .filter(|(key, i)| !is_malformed(key) && i.value["spec"]["kind"] != "LabelIdentity")
    {
        let spec = &import.value["spec"];
        let key = (text(&spec["namespace"]), text(&spec["name"]));
        match spec["kind"].as_str() {
            Some("ServiceImport") => {
                winners.insert(key, format_ports(&spec["serviceImport"]["spec"]["ports"]));
            }
            Some("Endpoints") => {
                let by = endpoints.entry(key).or_default();
                for cluster in list(&spec["endpoints"]["clusters"]) {
                    by.insert(text(&cluster["clusterID"]), addresses(&cluster["subsets"]));
                }
            }
            _ => {
                imported.insert(check_network(store, &spec["clusterinfo"], report));
            }
        }
    }
    report.expect_eq("imported networks", &imported, networks);
    report.expect_eq(
        "imports",
        &winners.keys().collect::<Vec<_>>(),
        &services
            .keys()
            .filter(|key| !has_lost_name(&winners, key))
            .collect::<Vec<_>>(),
    );
    for (key, offers) in services {
        let Some(winner) = winners.get(key) else { continue };
        let offered: Vec<_> = offers
            .iter()
            .map(|(id, (ports, _))| (creation_of_export(store, id, key), ports.as_str()))
            .collect();
        if !possible_port_unions(&offered).contains(winner) {
            report.0.push(format!(
                "import {key:?} has ports {winner}, no union of {offered:?}, the oldest first"
            ));
        }
        let want: BTreeMap<_, _> = offers
            .iter()
            .filter(|(_, (ports, ips))| shares_port(ports, winner) && !ips.is_empty())
            .map(|(id, (_, ips))| (id.clone(), ips.clone()))
            .collect();
        let have = endpoints.remove(key).unwrap_or_default();
        report.expect_eq(&format!("endpoints of {key:?}"), &have, &want);
    }
    report.expect_eq("endpoints of nothing", &endpoints.len(), &0);
    winners
}

/// The creation of the export of a Service, in seconds; empty without one.
fn creation_of_export(store: &Store, id: &str, key: &Key) -> String {
    let exports = store.all(&antrea("resourceexports"));
    let mut own = exports.filter(|(_, export)| {
        let spec = &export.value["spec"];
        spec["kind"] == "Service" && spec["clusterID"] == id && service_key(spec) == *key
    });
    let created = own
        .next()
        .map(|(_, export)| text(export.meta("creationTimestamp")));
    created.unwrap_or_default()
}

/// Checks the exports, imports and copies of label identities: each names the members with Pods of the label.
fn check_identities(world: &Simulation, members: &BTreeMap<usize, String>, report: &mut Differences) {
    let leader = &world.clusters[0].store;
    let mut want: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (i, id) in members {
        let cluster = &world.clusters[*i];
        if cluster.config.stretched_network_policy {
            for label in used_labels(cluster).filter(|label| is_selected(world, members, *i, label)) {
                want.entry(label).or_default().insert(id.clone());
            }
        }
    }
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, label) in label_exports(leader) {
        exported.entry(label).or_default().insert(id);
    }
    report.expect_eq("exported labels", &exported, &want);
    let imports = merged_imports(leader)
        .map(|(_, import)| &import.value["spec"])
        .filter(|spec| spec["kind"] == "LabelIdentity");
    let imported: Vec<_> = imports.map(|spec| &spec["labelIdentity"]).collect();
    let identities = identities(&imported, "imports", report);
    let have: BTreeMap<_, BTreeSet<_>> = identities
        .iter()
        .map(|(label, (_, clusters))| (label.clone(), clusters.iter().cloned().collect()))
        .collect();
    report.expect_eq("clusters of imported labels", &have, &want);
    for (i, cluster) in world.clusters.iter().enumerate().skip(1) {
        let name = format!("LabelIdentities of cluster {i}");
        let copies = cluster.store.all(&antrea("labelidentities"));
        let copies: Vec<_> = copies.map(|(_, copy)| &copy.value["spec"]).collect();
        let have = self::identities(&copies, &name, report);
        let is_member = members.contains_key(&i) && cluster.config.stretched_network_policy;
        let want = if is_member {
            identities.clone()
        } else {
            Identities::new()
        };
        report.expect_eq(&name, &have, &want);
    }
}

/// Whether a cluster exports this label of its Pods: all, or those that a policy of another member selects.
fn is_selected(world: &Simulation, members: &BTreeMap<usize, String>, i: usize, label: &str) -> bool {
    let pod = label.split_once("&pod:").map_or("", |(_, pod)| pod);
    world.clusters[i].config.identity_export == IdentityExport::All
        || members
            .keys()
            .filter(|other| **other != i)
            .flat_map(|other| selected_pod_labels(&world.clusters[*other]))
            .any(|wanted| pod.split(',').any(|label| label == wanted))
}

/// Checks the exported peers of policies: each member exports those of its own policies.
fn check_selectors(world: &Simulation, members: &BTreeMap<usize, String>, report: &mut Differences) {
    let mut want: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (i, id) in members {
        let cluster = &world.clusters[*i];
        for label in selected_pod_labels(cluster).filter(|_| cluster.config.stretched_network_policy) {
            want.entry(id.clone()).or_default().insert(label);
        }
    }
    let exports = world.clusters[0].store.all(&antrea("resourceexports"));
    let exports = exports.filter(|(_, export)| !is_copy(export));
    let exports = exports.filter(|(_, export)| export.value["spec"]["kind"] == "PolicySelectors");
    let mut have: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, export) in exports {
        let spec = &export.value["spec"];
        let selectors = PolicySelectors::from_raw(Some(&spec["raw"])).unwrap_or_default();
        let labels = peer_labels(selectors.peers().iter());
        have.insert(text(&spec["clusterID"]), labels.collect());
    }
    report.expect_eq("exported peers of policies", &have, &want);
}

/// Label identities by label. Their numbers are distinct and their clusters sorted.
fn identities(all: &[&Value], name: &str, report: &mut Differences) -> Identities {
    let mut by_label = Identities::new();
    for one in all {
        let clusters: Vec<_> = list(&one["clusters"]).map(text).collect();
        report.expect_eq(
            &format!("{name}: {} has sorted clusters", one["label"]),
            &(one["clusters"].is_array() && clusters.is_sorted()),
            &true,
        );
        by_label.insert(
            text(&one["label"]),
            (one["id"].as_u64().unwrap_or_default(), clusters),
        );
    }
    let ids: BTreeSet<_> = by_label.values().map(|(id, _)| *id).collect();
    report.expect_eq(&format!("{name}: distinct numbers"), &ids.len(), &all.len());
    by_label
}

/// The status of policies, and default Tiers.
fn check_policies(cluster: &Cluster, report: &mut Differences) {
    let (is_enforced, policies) = statuses(cluster);
    for (name, have, want) in policies {
        report.expect_eq(&format!("status of the policy {name}"), &have, &want);
    }
    let tiers = cluster.store.all(&crd_antrea("tiers"));
    let tiers: BTreeMap<_, _> = tiers
        .map(|(key, tier)| (key.1.clone(), tier.value["spec"]["priority"].clone()))
        .collect();
    if is_enforced {
        let want = DEFAULT_TIERS.map(|(name, priority)| (name.to_owned(), json!(priority)));
        report.expect_eq("Tiers", &tiers, &want.into());
    }
    let (have, want) = address_groups(cluster, is_enforced);
    report.expect_eq("addresses of Pods", &have, &want);
}

/// Checks a cluster that is not a member.
fn check_non_member(cluster: &Cluster, report: &mut Differences) {
    for plural in ["gateways", "clusterinfoimports"] {
        let all = cluster.store.all(&antrea(plural));
        let left = all.filter(|(key, _)| !is_malformed(key)).count();
        report.expect_eq(plural, &left, &0);
    }
    check_imports(cluster, 0, "", &BTreeMap::new(), &BTreeMap::new(), report);
}

fn check_member(
    cluster: &Cluster,
    number: usize,
    id: &str,
    services: &BTreeMap<Key, Exporters>,
    winners: &BTreeMap<Key, String>,
    networks: &BTreeSet<String>,
    report: &mut Differences,
) {
    let others: BTreeSet<_> = networks.iter().filter(|n| *n != id).cloned().collect();
    if let Some(set) = cluster.store.get(
        &antrea("clustersets"),
        &(MEMBER_NAMESPACE.to_owned(), SET.to_owned()),
    ) {
        report.expect_eq("ClusterSet Ready", &condition(set, "Ready").0, &"True".to_owned());
        report.0.extend(wrong_data_paths(cluster, set, &others));
    }
    check_gateways(cluster, number, report);
    let infos: BTreeSet<_> = cluster
        .store
        .all(&antrea("clusterinfoimports"))
        .filter(|(key, _)| !is_malformed(key))
        .map(|(_, i)| text(&i.value["spec"]["clusterID"]))
        .collect();
    report.expect_eq("ClusterInfoImports", &infos, &others);
    check_imports(cluster, number, id, services, winners, report);
    for (key, export) in cluster.store.all(&mcs("serviceexports")) {
        if is_malformed(key) {
            continue;
        }
        let (valid, reason) = condition(export, "Valid");
        let offer = services.get(key).and_then(|o| o.get(id));
        let want = if offer.is_some() { "True" } else { "False" };
        if valid != want {
            report.0.push(format!(
                "ServiceExport {key:?}: Valid is {valid:?} ({reason}) instead of {want}"
            ));
        }
        // On a conflict all exporters report it.
        let reply: BTreeSet<_> = services
            .get(key)
            .into_iter()
            .flatten()
            .map(|(_, (ports, _))| ports)
            .collect();
        let conflict = offer.is_some() && (reply.len() > 1 || has_lost_name(winners, key));
        let conflicting = condition(export, "Conflict").0 == "True";
        report.expect_eq(
            &format!("ServiceExport {key:?} Conflict"),
            &conflicting,
            &conflict,
        );
    }
}

/// Exactly the eligible Nodes are gateways.
fn check_gateways(cluster: &Cluster, number: usize, report: &mut Differences) {
    let mut serving = BTreeSet::new();
    let mut annotated = 0;
    for (key, node) in cluster.store.all(&core("nodes")) {
        if node.annotation(names::ANNOTATION_GATEWAY).is_none() {
            continue;
        }
        let address = node.annotation(names::ANNOTATION_GATEWAY_IP);
        if address == Some("127.0.0.1") {
            continue;
        }
        annotated += 1;
        let ready = condition(node, "Ready").0 == "True";
        if ready && node.value["spec"]["unschedulable"] != json!(true) {
            let own = format!("172.16.{number}.{}", key.1.trim_start_matches('n'));
            serving.insert((key.1.clone(), address.unwrap_or(&own).to_owned()));
        }
    }
    let have: BTreeSet<_> = cluster
        .store
        .all(&antrea("gateways"))
        .map(|(key, g)| (key.1.clone(), text(&g.value["gatewayIP"])))
        .collect();
    if serving.is_empty() {
        if annotated == 0 {
            report.expect_eq("Gateways", &have, &serving);
        }
        return;
    }
    report.expect_eq("Gateways", &have, &serving);
    let drained = cluster
        .store
        .all(&antrea("gateways"))
        .filter(|(_, g)| g.value["weight"] == json!(0))
        .count();
    report.expect_eq("drained Gateways", &drained, &0);
}

/// Checks imported Services, their slices and `ServiceImport`s.
fn check_imports(
    cluster: &Cluster,
    number: usize,
    id: &str,
    services: &BTreeMap<Key, Exporters>,
    winners: &BTreeMap<Key, String>,
    report: &mut Differences,
) {
    let store = &cluster.store;
    let mut want: BTreeMap<Key, (String, BTreeMap<String, Vec<String>>)> = BTreeMap::new();
    for (key, offers) in services {
        let space = store.get(&core("namespaces"), &(String::new(), key.0.clone()));
        let name = names::imported_service(&key.1);
        let taken = store
            .get(&core("services"), &(key.0.clone(), name.clone()))
            .is_some_and(|s| s.creator == Actor::User);
        if space.is_none() || taken || name.len() > 63 {
            continue;
        }
        let Some(winner) = winners.get(key) else { continue };
        let clusters = offers
            .iter()
            .filter(|(_, (ports, ips))| shares_port(ports, winner) && !ips.is_empty())
            .map(|(of, (_, ips))| {
                let ips = if of == id {
                    ready_pod_ips(cluster, key)
                } else {
                    endpoint_ranges::imported(cluster, number, ips.clone())
                };
                (of.clone(), ips)
            })
            .filter(|(_, ips)| !ips.is_empty())
            .collect();
        want.insert(key.clone(), (winner.clone(), clusters));
    }
    let mut have: BTreeMap<Key, (String, BTreeMap<String, Vec<String>>)> = BTreeMap::new();
    for (key, service) in store.all(&core("services")) {
        let imported = service.annotation(names::ANNOTATION_IMPORTED_SERVICE).is_some();
        if imported && let Some(of) = names::exported_service(&key.1) {
            let ports = format_ports(&service.value["spec"]["ports"]);
            have.insert((key.0.clone(), of.to_owned()), (ports, BTreeMap::new()));
        }
    }
    for (key, slice) in store.all(&slices()) {
        if slice.label(names::LABEL_MANAGED_BY) != Some(names::MANAGED_BY) {
            continue;
        }
        let of = slice.label(names::LABEL_MCS_SERVICE_NAME).unwrap_or_default();
        let by = slice.label(names::LABEL_MCS_SOURCE_CLUSTER).unwrap_or_default();
        let Some((_, clusters)) = have.get_mut(&(key.0.clone(), of.to_owned())) else {
            report.0.push(format!("slice {key:?} of no Service"));
            continue;
        };
        let ips: &mut Vec<_> = clusters.entry(by.to_owned()).or_default();
        ips.extend(
            list(&slice.value["endpoints"])
                .flat_map(|e| list(&e["addresses"]))
                .map(text),
        );
        ips.sort();
    }
    report.expect_eq("imported Services", &have, &want);
    report.0.extend(wrong_readiness(cluster));
    let have: BTreeMap<_, _> = store
        .all(&mcs("serviceimports"))
        .filter(|(key, _)| !is_malformed(key))
        .map(|(key, import)| {
            let mut clusters: Vec<_> = list(&import.value["status"]["clusters"])
                .map(|c| text(&c["cluster"]))
                .collect();
            clusters.sort();
            (
                key.clone(),
                (
                    list(&import.value["spec"]["ips"]).map(text).collect::<Vec<_>>(),
                    clusters,
                ),
            )
        })
        .collect();
    let want: BTreeMap<_, _> = want
        .into_iter()
        .map(|(key, (_, clusters))| {
            let service = store.get(
                &core("services"),
                &(key.0.clone(), names::imported_service(&key.1)),
            );
            let ip = service
                .map(|s| text(&s.value["spec"]["clusterIP"]))
                .unwrap_or_default();
            (key, (vec![ip], clusters.into_keys().collect::<Vec<_>>()))
        })
        .collect();
    report.expect_eq("ServiceImports", &have, &want);
}

/// Ready Pod addresses of a Service.
fn ready_pod_ips(cluster: &Cluster, service: &Key) -> Vec<String> {
    let mut ips: Vec<_> = cluster
        .store
        .all(&slices())
        .filter(|(key, s)| key.0 == service.0 && s.label(names::LABEL_SERVICE_NAME) == Some(&service.1))
        .flat_map(|(_, s)| list(&s.value["endpoints"]).filter(|e| is_ready(e)))
        .flat_map(|e| list(&e["addresses"]).map(text))
        .collect();
    ips.sort();
    ips
}
