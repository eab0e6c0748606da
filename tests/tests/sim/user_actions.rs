//! Simulated users and cluster components: Services, exports, Pods, Namespaces, Nodes, memberships, tokens, and
//! tampering with the controllers' objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::ByteString;
use mc_api::names;
use mc_test_kit::fake_apiserver::{
    resources::Resource,
    store::{Actor, Key, WriteContext, WriteScope},
};
use serde_json::{Value, json};

use crate::{
    accounts,
    expected_state::find_condition,
    invariants::{antrea, core, mcs, slices, text, wanted_cluster_id},
    simulation::{LEADER_NAMESPACE, LEADER_URL, MEMBER_NAMESPACE, SET, Simulation},
};

/// Namespaces of simulated users.
pub(crate) const NAMESPACES: [&str; 3] = ["shop", "books", "shop-a"];
/// Services of simulated users. `shop/a-web` and `shop-a/web` have the same name in the leader cluster; the last name
/// is too long for the prefix `antrea-mc-`.
pub(crate) const SERVICES: [&str; 5] = [
    "web",
    "a-web",
    "api",
    "db",
    "a-name-so-long-that-no-import-can-have-it-with-a-prefix-put",
];
/// Port sets of Services.
const PORTS: [&[(&str, u16)]; 3] = [
    &[("http", 80)],
    &[("http", 8080)],
    &[("http", 80), ("metrics", 9090)],
];
/// Labels of Pods.
const POD_LABELS: [&[(&str, &str)]; 3] = [&[("app", "web")], &[("app", "web"), ("tier", "front")], &[]];
/// Maximum number of Pods of a Namespace.
const PODS: u64 = 3;
/// Name prefix of malformed objects.
const MALFORMED_PREFIX: &str = "odd-";
/// The time in which a member leaves: the grace period of a `ClusterSet` and the confirmation of the deregistration.
const DEPARTURE_TIME: Duration = Duration::from_secs(30 + 15);
/// Maximum number of Nodes of a cluster.
const NODES: u64 = 4;

/// True for objects that cannot be parsed.
pub(crate) fn is_malformed(key: &Key) -> bool {
    key.1.starts_with(MALFORMED_PREFIX)
}

impl Simulation {
    /// Creates or patches an object as a user.
    pub(crate) fn write_as_user(
        &mut self,
        server: usize,
        resource: &Resource,
        namespace: &str,
        body: &Value,
    ) {
        let now = self.now(server);
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = (namespace.to_owned(), name);
        let store = &mut self.clusters[server].store;
        let writer = WriteContext {
            actor: Actor::User,
            manager: "kubectl",
            now,
        };
        // A rejected user write has no effect.
        if store.get(resource, &key).is_some() {
            drop(store.patch(resource, &key, body, writer, WriteScope::All));
        } else {
            drop(store.create(resource, namespace, body.clone(), writer, WriteScope::All));
        }
        self.process_changes(server, Actor::User);
    }

    /// Deletes an object as a user.
    pub(crate) fn delete_as_user(&mut self, server: usize, resource: &Resource, key: &Key) {
        let now = self.now(server);
        let writer = WriteContext {
            actor: Actor::User,
            manager: "kubectl",
            now,
        };
        drop(
            self.clusters[server]
                .store
                .delete(resource, key, &Value::Null, writer),
        );
        self.process_changes(server, Actor::User);
    }

    /// Initial objects of a cluster.
    pub(crate) fn set_up(&mut self, server: usize) {
        let space =
            |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        if server == 0 {
            self.write_as_user(0, &core("namespaces"), "", &space(LEADER_NAMESPACE));
            self.write_as_user(0, &antrea("clustersets"), LEADER_NAMESPACE, &json!({
                "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet", "metadata": { "name": SET },
                "spec": { "clusterID": "leader", "leaders": [{ "clusterID": "leader" }] },
            }));
            return;
        }
        self.write_as_user(server, &core("namespaces"), "", &space(MEMBER_NAMESPACE));
        let spaces = 2 + usize::from(self.rng.permille(500));
        for name in NAMESPACES.iter().take(spaces) {
            self.write_as_user(server, &core("namespaces"), "", &space(name));
        }
        for number in 1..=2 {
            self.add_node(server, number);
        }
        self.create_account(server);
        self.rotate_token(server, "first");
        if server.is_multiple_of(2) {
            let cidr = format!("10.{}.0.0/16", 100 + server);
            self.write_as_user(server, &("networking.k8s.io".to_owned(), "servicecidrs".to_owned()), "", &json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
                "spec": { "cidrs": [cidr] },
            }));
        }
    }

    /// Adds a Ready Node.
    pub(crate) fn add_node(&mut self, server: usize, number: u64) {
        self.write_as_user(
            server,
            &core("nodes"),
            "",
            &json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("n{number}") },
                "spec": { "podCIDR": format!("10.{}.{number}.0/24", 10 + server) },
                "status": {
                    "addresses": [{ "type": "InternalIP", "address": format!("172.16.{server}.{number}") }],
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            }),
        );
    }

    /// Sets or removes the gateway annotation.
    pub(crate) fn set_gateway(&mut self, server: usize, node: &str, wanted: bool) {
        let value = if wanted { json!("true") } else { Value::Null };
        self.patch_node(
            server,
            node,
            json!({ "metadata": { "annotations": { names::ANNOTATION_GATEWAY: value } } }),
        );
    }

    fn patch_node(&mut self, server: usize, node: &str, mut patch: Value) {
        let key = (String::new(), node.to_owned());
        if self.clusters[server].store.get(&core("nodes"), &key).is_some() {
            patch["metadata"]["name"] = json!(node);
            self.write_as_user(server, &core("nodes"), "", &patch);
        }
    }

    /// Rotates the member token on both sides.
    pub(crate) fn rotate_token(&mut self, server: usize, token: &str) {
        let token = accounts::token(server, token);
        self.clusters[0].tokens.retain(|_, whose| *whose != server);
        self.clusters[0].tokens.insert(token.clone(), server);
        let encode = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
        self.write_as_user(
            server,
            &core("secrets"),
            MEMBER_NAMESPACE,
            &json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "member-token" },
                "data": { "ca.crt": encode("-----BEGIN CERTIFICATE-----\n"), "token": encode(&token) },
            }),
        );
    }

    /// Creates the ClusterSet, and before that the Namespace of a member with its own.
    pub(crate) fn join(&mut self, server: usize, id: &str) {
        if self.separate == Some(server) {
            self.write_member_namespace(server, id);
        }
        let namespace = self.leader_namespace(server);
        self.write_as_user(server, &antrea("clustersets"), MEMBER_NAMESPACE, &json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet", "metadata": { "name": SET },
            "spec": {
                "clusterID": id, "namespace": namespace,
                "leaders": [{ "clusterID": "leader", "server": LEADER_URL, "secret": "member-token" }],
            },
        }));
    }

    /// Permits the deletion of imports that await exporters, as an administrator does if these are gone for good.
    pub(crate) fn permit_deletions(&mut self, server: usize) {
        if self.held_deletions(server).is_some() {
            let until = (self.now(server) + SignedDuration::from_hours(1)).to_string();
            self.write_as_user(server, &antrea("clustersets"), MEMBER_NAMESPACE, &json!({
                "metadata": { "name": SET, "annotations": { names::ANNOTATION_MASS_DELETION_UNTIL: until } },
            }));
        }
    }

    /// Permits the deletion of imports that await clusters of which none is a member: these left before the cluster had
    /// all imports of a leader that it joined.
    pub(crate) fn end_waits_for_departed(&mut self, server: usize) {
        let held = self.held_deletions(server).unwrap_or_default();
        let awaited = held.split_once("not all exports of the clusters ");
        let awaited = awaited.and_then(|(_, rest)| rest.split_once(" have arrived"));
        let Some((awaited, _)) = awaited else { return };
        let members: BTreeSet<_> = self
            .clusters
            .iter()
            .skip(1)
            .filter_map(wanted_cluster_id)
            .collect();
        if !awaited.split(", ").any(|cluster| members.contains(cluster)) {
            self.counts.ended_waits += 1;
            self.grant_grace(Duration::ZERO);
            self.permit_deletions(server);
        }
    }

    /// The message of the condition `DeletionsHeld` if it is true.
    fn held_deletions(&self, server: usize) -> Option<String> {
        let key = (MEMBER_NAMESPACE.to_owned(), SET.to_owned());
        let set = self.clusters[server].store.get(&antrea("clustersets"), &key)?;
        let held = find_condition(set, "DeletionsHeld").filter(|held| held["status"] == "True")?;
        Some(text(&held["message"]))
    }

    /// Deletes the ClusterSet.
    pub(crate) fn leave(&mut self, server: usize) {
        self.grant_grace(DEPARTURE_TIME);
        self.delete_as_user(
            server,
            &antrea("clustersets"),
            &(MEMBER_NAMESPACE.to_owned(), SET.to_owned()),
        );
    }

    /// Creates or changes a Service with Pods; `ports` is an index into `PORTS`.
    pub(crate) fn put_service(
        &mut self,
        server: usize,
        namespace: &str,
        name: &str,
        ports: usize,
        pods: u64,
    ) {
        let ports: Vec<_> = PORTS[ports]
            .iter()
            .map(|(name, port)| json!({ "name": name, "port": port, "protocol": "TCP", "targetPort": port }))
            .collect();
        self.write_as_user(server, &core("services"), namespace, &json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": { "ports": ports },
        }));
        let slice_ports: Vec<_> = ports
            .iter()
            .map(|p| {
                json!({
                    "name": p["name"], "port": p["port"], "protocol": "TCP",
                })
            })
            .collect();
        self.put_endpoints(server, namespace, name, Some(slice_ports), pods);
    }

    /// Sets the Pods of a Service; every third is not ready.
    fn put_endpoints(
        &mut self,
        server: usize,
        namespace: &str,
        name: &str,
        ports: Option<Vec<Value>>,
        pods: u64,
    ) {
        let key = (namespace.to_owned(), name.to_owned());
        if self.clusters[server].store.get(&core("services"), &key).is_none() {
            return;
        }
        let base = self.rng.below(200);
        let foreign = self.rng.permille(150).then(|| self.foreign_address(server));
        let endpoints: Vec<_> = (0..pods)
            .map(|pod| {
                let own = format!("10.{}.1.{}", 10 + server, 1 + (base + pod) % 250);
                json!({
                    "addresses": [foreign.clone().filter(|_| pod == 0).unwrap_or(own)],
                    "conditions": { "ready": pod % 3 != 2 }, "nodeName": "n1",
                })
            })
            .collect();
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("{}-x1", name.get(..40).unwrap_or(name)),
                "labels": {
                    names::LABEL_SERVICE_NAME: name, names::LABEL_MANAGED_BY: "endpointslice-controller.k8s.io",
                },
            },
            "endpoints": endpoints,
        });
        if let Some(ports) = ports {
            slice["ports"] = json!(ports);
        }
        self.write_as_user(server, &slices(), namespace, &slice);
    }

    /// Creates or deletes a ServiceExport.
    pub(crate) fn set_export(&mut self, server: usize, namespace: &str, name: &str, wanted: bool) {
        if wanted {
            self.write_as_user(server, &mcs("serviceexports"), namespace, &json!({
                "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "metadata": { "name": name },
            }));
        } else {
            self.delete_as_user(
                server,
                &mcs("serviceexports"),
                &(namespace.to_owned(), name.to_owned()),
            );
        }
    }

    /// Deletes a Service and its slice.
    pub(crate) fn delete_service(&mut self, server: usize, namespace: &str, name: &str) {
        self.delete_as_user(
            server,
            &core("services"),
            &(namespace.to_owned(), name.to_owned()),
        );
        let slice = format!("{}-x1", name.get(..40).unwrap_or(name));
        self.delete_as_user(server, &slices(), &(namespace.to_owned(), slice));
    }

    /// Creates a Pod or replaces its labels; `labels` is an index into `POD_LABELS`.
    pub(crate) fn put_pod(&mut self, server: usize, namespace: &str, name: &str, labels: usize) {
        self.delete_pod(server, namespace, name);
        let labels: BTreeMap<_, _> = POD_LABELS[labels].iter().copied().collect();
        self.write_as_user(
            server,
            &core("pods"),
            namespace,
            &json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": labels },
                "spec": { "nodeName": "n1" },
                "status": { "phase": "Running", "podIPs": [{ "ip": pod_address(namespace, name) }] },
            }),
        );
    }

    /// Deletes a Pod.
    pub(crate) fn delete_pod(&mut self, server: usize, namespace: &str, name: &str) {
        self.delete_as_user(server, &core("pods"), &(namespace.to_owned(), name.to_owned()));
    }

    fn change_pod(&mut self, server: usize, namespace: &str) {
        let name = format!("p{}", self.rng.below(PODS));
        if self.rng.permille(350) {
            self.delete_pod(server, namespace, &name);
        } else {
            let labels = self.rng.index(POD_LABELS.len());
            self.put_pod(server, namespace, &name, labels);
        }
    }

    /// A random user action.
    pub(crate) fn random_action(&mut self) {
        let server = 1 + self.rng.index(self.clusters.len() - 1);
        let namespace = *self.rng.pick(&NAMESPACES);
        if self.clusters[server].config.stretched_network_policy && self.rng.permille(300) {
            return self.change_pod(server, namespace);
        }
        // The long name is rare.
        let service = SERVICES[*self.rng.pick(&[0, 0, 0, 1, 1, 2, 2, 3, 3, 4])];
        match self.rng.below(120) {
            0..20 => {
                let ports = [0, 0, 0, 1, 2][self.rng.index(5)];
                let pods = self.rng.range(1, 4);
                self.put_service(server, namespace, service, ports, pods);
            }
            20..25 => self.delete_service(server, namespace, service),
            25..40 => self.set_export(server, namespace, service, true),
            40..46 => self.set_export(server, namespace, service, false),
            46..54 => {
                let pods = self.rng.below(4);
                self.put_endpoints(server, namespace, service, None, pods);
            }
            54..60 => self.toggle_namespace(server, namespace),
            60..75 => self.change_node(server),
            75..82 => self.toggle_membership(server),
            82..85 => {
                let token = format!("t{}", self.rng.below(1000));
                self.rotate_token(server, &token);
            }
            85..92 => self.tamper(server),
            92..95 => self.toggle_name_conflict(server, namespace, service),
            95..97 => self.export_as_stranger(server, namespace, service),
            100..102 => self.write_malformed(),
            102..106 => self.export_colliding_name(server),
            106..114 => self.change_policies(server),
            114..117 => self.share_service(namespace, service),
            117..120 => self.report_reachability(server),
            _ => self.tamper(0),
        }
    }

    /// Exports a Service from every cluster with a gateway.
    fn share_service(&mut self, namespace: &str, service: &str) {
        for server in 1..self.clusters.len() {
            let space = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            self.write_as_user(server, &core("namespaces"), "", &space);
            self.put_service(server, namespace, service, 0, 2);
            self.set_export(server, namespace, service, true);
            self.add_node(server, 1);
            self.set_gateway(server, "n1", true);
            self.report_reachability(server);
        }
    }

    /// Exports one of two Services with the same name in the leader cluster.
    fn export_colliding_name(&mut self, server: usize) {
        let (namespace, name) = *self.rng.pick(&[("shop", "a-web"), ("shop-a", "web")]);
        let space = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        self.write_as_user(server, &core("namespaces"), "", &space);
        self.put_service(server, namespace, name, 0, 2);
        self.set_export(server, namespace, name, true);
    }

    /// Writes an object that cannot be parsed, as another version or a user might.
    fn write_malformed(&mut self) {
        let server = self.rng.index(self.clusters.len());
        let name = format!("{MALFORMED_PREFIX}{}", self.rng.below(3));
        let (resource, namespace) = if server == 0 {
            let plural = *self.rng.pick(&["resourceexports", "resourceimports"]);
            (antrea(plural), LEADER_NAMESPACE)
        } else {
            let local = [
                (mcs("serviceexports"), "shop"),
                (mcs("serviceimports"), "shop"),
                (antrea("clusterinfoimports"), MEMBER_NAMESPACE),
            ];
            self.rng.pick(&local).clone()
        };
        let (kind, spec) = match &*resource.1 {
            "resourceexports" => ("ResourceExport", json!({ "kind": 7, "clusterID": "east" })),
            "resourceimports" => ("ResourceImport", json!({ "kind": ["ClusterInfo"] })),
            "serviceexports" => ("ServiceExport", json!("nothing")),
            "serviceimports" => ("ServiceImport", json!([])),
            _ => (
                "ClusterInfoImport",
                json!({ "clusterID": "east", "serviceCIDR": 10 }),
            ),
        };
        let version = format!("{}/v1alpha1", resource.0);
        let labels = json!({ names::LABEL_SOURCE_CLUSTER_ID: "east" });
        self.write_as_user(server, &resource, namespace, &json!({
            "apiVersion": version, "kind": kind, "metadata": { "name": name, "labels": labels }, "spec": spec,
        }));
    }

    fn toggle_namespace(&mut self, server: usize, name: &str) {
        let key = (String::new(), name.to_owned());
        let there = self.clusters[server]
            .store
            .get(&core("namespaces"), &key)
            .is_some();
        if there && self.rng.permille(400) {
            self.delete_as_user(server, &core("namespaces"), &key);
        } else if !there {
            self.write_as_user(
                server,
                &core("namespaces"),
                "",
                &json!({
                    "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
                }),
            );
        }
    }

    fn change_node(&mut self, server: usize) {
        let number = self.rng.range(1, NODES);
        let node = format!("n{number}");
        match self.rng.below(12) {
            0..4 => self.set_gateway(server, &node, true),
            4 => self.set_gateway(server, &node, false),
            5 => self.add_node(server, number),
            6 => self.delete_as_user(server, &core("nodes"), &(String::new(), node)),
            7 | 8 => {
                let cordoned = self.rng.permille(500);
                self.patch_node(
                    server,
                    &node,
                    json!({ "metadata": {}, "spec": { "unschedulable": cordoned } }),
                );
            }
            9 => {
                let ready = if self.rng.permille(600) { "True" } else { "Unknown" };
                self.patch_node(
                    server,
                    &node,
                    json!({
                        "metadata": {}, "status": { "conditions": [{ "type": "Ready", "status": ready }] },
                    }),
                );
            }
            10 => {
                let weight = self.rng.pick(&["3", "0", "x", "7"]).to_owned();
                self.patch_node(
                    server,
                    &node,
                    json!({
                        "metadata": { "annotations": { names::ANNOTATION_GATEWAY_WEIGHT: weight } },
                    }),
                );
            }
            _ => {
                let ip = if self.rng.permille(700) {
                    format!("203.0.{server}.{number}")
                } else {
                    "127.0.0.1".to_owned()
                };
                self.patch_node(
                    server,
                    &node,
                    json!({
                        "metadata": { "annotations": { names::ANNOTATION_GATEWAY_IP: ip } },
                    }),
                );
            }
        }
    }

    fn toggle_membership(&mut self, server: usize) {
        let key = (MEMBER_NAMESPACE.to_owned(), SET.to_owned());
        if self.clusters[server]
            .store
            .get(&antrea("clustersets"), &key)
            .is_some()
        {
            if self.rng.permille(500) {
                self.leave(server);
            }
            return;
        }
        let id = self.clusters[server].id.clone();
        // The administrator of the leader binds the ID of a member with its own Namespace.
        if self.rng.permille(200) && self.separate != Some(server) {
            self.join(server, &format!("{id}-2"));
        } else {
            self.join(server, &id);
        }
    }

    /// Deletes, labels or changes a random object of the controllers.
    fn tamper(&mut self, server: usize) {
        let plurals: &[Resource] = if server == 0 {
            &[antrea("resourceimports"), antrea("resourceexports")]
        } else {
            &[
                core("services"),
                slices(),
                mcs("serviceimports"),
                antrea("clusterinfoimports"),
                antrea("gateways"),
            ]
        };
        let resource = self.rng.pick(plurals).clone();
        let theirs: Vec<_> = self.clusters[server]
            .store
            .all(&resource)
            .filter(|(_, o)| o.creator != Actor::User && !o.is_terminating())
            .map(|(key, _)| key.clone())
            // A member with its own Namespace withdraws an import whose copy is deleted.
            .filter(|key| resource.1 != "resourceimports" || key.0 == LEADER_NAMESPACE)
            .collect();
        if theirs.is_empty() {
            return;
        }
        let key = self.rng.pick(&theirs).clone();
        let mut patch = json!({ "metadata": { "name": key.1 } });
        match self.rng.below(5) {
            0 | 1 => return self.delete_as_user(server, &resource, &key),
            2 => patch["metadata"]["labels"] = json!({ "example.com/team": "a" }),
            3 => patch["metadata"]["annotations"] = json!({ "example.com/note": "keep" }),
            _ if resource.1 == "services" => {
                patch["spec"] = json!({ "ports": [{ "name": "odd", "port": 1234, "protocol": "TCP" }] });
            }
            _ if resource.1 == "endpointslices" => patch["endpoints"] = json!([]),
            _ => patch["metadata"]["annotations"] = json!({ "example.com/other": "keep" }),
        }
        self.write_as_user(server, &resource, &key.0, &patch);
    }

    /// Creates or deletes a user's Service with the name of an import.
    fn toggle_name_conflict(&mut self, server: usize, namespace: &str, name: &str) {
        let taken = names::imported_service(name);
        let key = (namespace.to_owned(), taken.clone());
        let there = self.clusters[server]
            .store
            .get(&core("services"), &key)
            .is_some_and(|s| s.creator == Actor::User);
        if there {
            self.delete_as_user(server, &core("services"), &key);
        } else {
            self.write_as_user(
                server,
                &core("services"),
                namespace,
                &json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": { "name": taken },
                    "spec": { "ports": [{ "port": 5432, "protocol": "TCP" }] },
                }),
            );
        }
    }

    /// Garbage collection and Namespace deletion.
    pub(crate) fn collect_garbage(&mut self) {
        for server in 0..self.clusters.len() {
            if !std::mem::take(&mut self.clusters[server].needs_gc) {
                continue;
            }
            let now = self.now(server);
            let store = &mut self.clusters[server].store;
            let writer = WriteContext {
                actor: Actor::Cluster,
                manager: "kube-controller-manager",
                now,
            };
            let uids: Vec<_> = store
                .all(&core("services"))
                .map(|(_, s)| s.uid().to_owned())
                .collect();
            let orphans: Vec<_> = store
                .all(&slices())
                .filter(|(_, s)| {
                    let owner = &s.meta("ownerReferences")[0]["uid"];
                    owner.as_str().is_some_and(|uid| !uids.iter().any(|u| u == uid))
                })
                .map(|(key, _)| key.clone())
                .collect();
            for key in orphans {
                drop(store.delete(&slices(), &key, &Value::Null, writer));
            }
            let mut waiting = false;
            let going: Vec<_> = store
                .all(&core("namespaces"))
                .filter(|(_, n)| n.is_terminating())
                .map(|(key, _)| key.clone())
                .collect();
            for key in going {
                let mut left = 0;
                for resource in store.resources() {
                    let inside: Vec<_> = store
                        .all(&resource)
                        .map(|(k, _)| k.clone())
                        .filter(|k| k.0 == key.1)
                        .collect();
                    for inside in inside {
                        left += 1;
                        drop(store.delete(&resource, &inside, &Value::Null, writer));
                    }
                }
                waiting |= left > 0;
                if left == 0 {
                    store.remove_forcibly(&core("namespaces"), &key);
                }
            }
            self.process_changes(server, Actor::Cluster);
            self.clusters[server].needs_gc |= waiting;
        }
    }
}

/// The address of a Pod, a hash of its Namespace and name.
pub(crate) fn pod_address(namespace: &str, name: &str) -> String {
    let hash = namespace.bytes().chain([0]).chain(name.bytes());
    let hash = hash.fold(0_u16, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    let [high, low] = hash.to_be_bytes();
    format!("10.99.{high}.{low}")
}
