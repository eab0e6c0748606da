//! A member gains nothing beyond its own ranges: attacks with the credentials of a member, by requests to a real API
//! server, and their effect in the other clusters.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    clusters::{EAST, LEADER, LEADER_NAMESPACE, MEMBER_NAMESPACE, SET, SHORT_TIMEOUT, WEST},
    isolation::{Member, MemberRequest, Mode, announce, request_as},
    workload::Namespace,
};

const ACCOUNT: &str = "member-mallory";
const ID: &str = "test-cluster-mallory";
const MALLORY: Member = Member {
    account: ACCOUNT,
    id: ID,
};
const NS: &str = "e2e-trust";
const NETWORK: &str = "test-cluster-mallory-clusterinfo";
/// The attacker's own ranges.
const SERVICES: &str = "10.200.0.0/16";
const PODS: &str = "10.201.0.0/16";
const OWN_ENDPOINT: &str = "10.201.0.5";

/// Creates an account of the leader cluster with the rights of a member.
pub(crate) fn create_account(name: &str, annotations: &Value) {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": name, "namespace": LEADER_NAMESPACE, "annotations": annotations },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": name, "namespace": LEADER_NAMESPACE },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role",
        },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": LEADER_NAMESPACE }],
    });
    LEADER.apply(&format!("{account}\n---\n{binding}\n"));
}

/// Deletes objects of the leader's Namespace, each given by arguments of `kubectl delete`; reports failures without
/// panicking.
pub(crate) fn delete_in_leader(deletions: &[&[&str]]) {
    for deletion in deletions {
        let mut args = vec![
            "-n",
            LEADER_NAMESPACE,
            "delete",
            "--ignore-not-found",
            "--timeout=60s",
        ];
        args.extend(*deletion);
        if let Err(error) = LEADER.try_kubectl(&args) {
            eprintln!("{error}");
        }
    }
}

/// The attacker's account.
struct Mallory;

impl Mallory {
    fn create() -> Self {
        create_account(ACCOUNT, &json!({ "multicluster.antrea.io/cluster-id": ID }));
        wait_bound(ACCOUNT, ID);
        Self
    }

    /// Applies an object as the attacker; a request that is refused fails the test.
    fn apply(object: &Value) {
        let name = &object["metadata"]["name"];
        LEADER.wait_for(&format!("{name} is written"), SHORT_TIMEOUT, || {
            request_as(MALLORY, &MemberRequest::Apply(object), Mode::Persisted)
        });
    }

    fn export(kind: &str, name: &str, of: (&str, &str), payload: &Value) {
        let (namespace, object) = of;
        let mut spec = json!({ "clusterID": ID, "kind": kind, "namespace": namespace, "name": object });
        for (key, value) in payload.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        Self::apply(&json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
            "metadata": {
                "name": name, "namespace": LEADER_NAMESPACE,
                "labels": {
                    "sourceClusterID": ID, "sourceKind": kind, "sourceNamespace": namespace, "sourceName": object,
                },
                "finalizers": ["resourceexport.antrea.io/finalizer"],
            },
            "spec": spec,
        }));
    }

    /// Exports Service `web` with these endpoints.
    fn export_service(ips: &[String]) {
        let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP" }]);
        let service = json!({ "service": { "serviceSpec": { "ports": ports } } });
        Self::export(
            "Service",
            &format!("{ID}-{NS}-web-service"),
            (NS, "web"),
            &service,
        );
        let addresses: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        let subsets = json!([{ "addresses": addresses, "ports": ports }]);
        let endpoints = json!({ "endpoints": { "subsets": subsets } });
        Self::export(
            "Endpoints",
            &format!("{ID}-{NS}-web-endpoints"),
            (NS, "web"),
            &endpoints,
        );
    }

    /// Announces these Pod CIDRs.
    fn export_network(pod_cidrs: &[&str]) {
        let info = json!({ "clusterInfo": {
            "clusterID": ID, "serviceCIDR": SERVICES, "podCIDRs": pod_cidrs,
            "gatewayInfos": [{ "gatewayIP": "192.0.2.99" }],
        } });
        Self::export("ClusterInfo", NETWORK, (MEMBER_NAMESPACE, ID), &info);
    }

    /// The reason of the leader to refuse a part of an export.
    fn wait_refused(export: &str, reasons: &[String]) {
        LEADER.wait_for(
            &format!("{export} is refused: {reasons:?}"),
            SHORT_TIMEOUT,
            || {
                let export = LEADER.get(LEADER_NAMESPACE, "resourceexports", export);
                let status = export
                    .map(|export| export["status"].to_string())
                    .unwrap_or_default();
                let refused =
                    status.contains("\"type\":\"Failure\"") && reasons.iter().all(|why| status.contains(why));
                if refused { Ok(()) } else { Err(status) }
            },
        );
    }
}

impl Drop for Mallory {
    fn drop(&mut self) {
        annotate_set("mc-gateway.io/evicted-clusters-");
        let announce = format!("member-announce-from-{ID}");
        let deletions: [&[&str]; 4] = [
            &["memberclusterannounces", &announce],
            &["resourceexports", "-l", &format!("sourceClusterID={ID}")],
            &["rolebinding", ACCOUNT],
            &["serviceaccount", ACCOUNT],
        ];
        delete_in_leader(&deletions);
    }
}

fn annotate_set(annotation: &str) {
    let args = [
        "-n",
        LEADER_NAMESPACE,
        "annotate",
        "clusterset",
        SET,
        "--overwrite",
        annotation,
    ];
    if let Err(error) = LEADER.try_kubectl(&args) {
        eprintln!("{error}");
    }
}

/// Waits until both other clusters have exactly these endpoints of the attacker.
fn wait_endpoints(wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|&ip| ip.to_owned()).collect();
    let selector = format!("multicluster.kubernetes.io/source-cluster={ID}");
    for cluster in [EAST, WEST] {
        cluster.wait_for(&format!("endpoints {wanted:?} of {ID}"), SHORT_TIMEOUT, || {
            let slices = cluster.list(NS, "endpointslices", &selector);
            let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array());
            let addresses = endpoints
                .flatten()
                .filter_map(|endpoint| endpoint["addresses"][0].as_str());
            let addresses: BTreeSet<String> = addresses.map(str::to_owned).collect();
            if addresses == wanted {
                Ok(())
            } else {
                Err(format!("{addresses:?}"))
            }
        });
    }
}

/// Waits until both other clusters have the attacker's network with exactly these Pod CIDRs; `None`: no network.
fn wait_network(pod_cidrs: Option<&[&str]>) {
    for cluster in [EAST, WEST] {
        cluster.wait_for(&format!("Pod CIDRs {pod_cidrs:?} of {ID}"), SHORT_TIMEOUT, || {
            let info = cluster.get(MEMBER_NAMESPACE, "clusterinfoimports", NETWORK);
            let cidrs = info.map(|info| info["spec"]["podCIDRs"].as_array().cloned().unwrap_or_default());
            let wanted = pod_cidrs.map(|cidrs| cidrs.iter().map(|cidr| json!(cidr)).collect::<Vec<_>>());
            if cidrs == wanted {
                Ok(())
            } else {
                Err(format!("{cidrs:?}"))
            }
        });
    }
}

/// The network of east in west.
fn network_of_east() -> Value {
    let info = WEST.get(
        MEMBER_NAMESPACE,
        "clusterinfoimports",
        "test-cluster-east-clusterinfo",
    );
    info.expect("the network of east")["spec"].clone()
}

/// An address in a range.
fn address_in(cidr: &str) -> String {
    let address = cidr.replace(".0/", ".9/");
    address.split('/').next().unwrap_or_default().to_owned()
}

/// Waits until the leader has bound an account to a cluster ID.
pub(crate) fn wait_bound(account: &str, id: &str) {
    LEADER.wait_for(&format!("{account} is bound"), SHORT_TIMEOUT, || {
        let map = LEADER.get(LEADER_NAMESPACE, "configmaps", "antrea-mc-member-identities");
        let bound = map.map(|map| map["data"][account].clone()).unwrap_or_default();
        if bound == id {
            Ok(())
        } else {
            Err(bound.to_string())
        }
    });
}

/// Waits until the leader has reconciled: the binding of another account is in the ConfigMap of the bindings.
fn wait_reconciled() {
    let (marker, id) = ("e2e-trust-marker", "test-cluster-marker");
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
            "name": marker, "namespace": LEADER_NAMESPACE,
            "annotations": { "multicluster.antrea.io/cluster-id": id },
        },
    });
    LEADER.apply(&format!("{account}\n"));
    wait_bound(marker, id);
    LEADER.kubectl(&["-n", LEADER_NAMESPACE, "delete", "serviceaccount", marker]);
}

/// Nothing counts of a cluster that is not accepted.
fn export_as_a_stranger() {
    Mallory::export_network(&[PODS]);
    Mallory::export_service(&[OWN_ENDPOINT.to_owned()]);
    wait_reconciled();
    for import in [
        NETWORK.to_owned(),
        format!("{NS}-web-service"),
        format!("{NS}-web-endpoints"),
    ] {
        let found = LEADER.get(LEADER_NAMESPACE, "resourceimports", &import);
        assert_eq!(found, None, "an import of a cluster that is no member");
    }
    Mallory::apply(&announce(ID));
    wait_network(Some(&[PODS]));
    wait_endpoints(&[OWN_ENDPOINT]);
}

/// A Pod and a Service of east, a Node of west, an internal host, and a link-local address alone.
fn export_foreign_endpoints(pod: &str, service: &str) {
    let node = WEST.node_ip("west-n1");
    let ips = [OWN_ENDPOINT, pod, service, &node, "203.0.113.7"];
    Mallory::export_service(&ips.map(str::to_owned));
    let reason = format!("addresses[1].ip: {pod} is outside the Service and Pod CIDRs that cluster");
    let export = format!("{ID}-{NS}-web-endpoints");
    Mallory::wait_refused(&export, &[reason, "and 3 more addresses".to_owned()]);
    wait_endpoints(&[OWN_ENDPOINT]);
    Mallory::export_service(&["169.254.169.254".to_owned()]);
    Mallory::wait_refused(&export, &["is not reachable from other clusters".to_owned()]);
    wait_endpoints(&[]);
    Mallory::export_service(&[OWN_ENDPOINT.to_owned()]);
    wait_endpoints(&[OWN_ENDPOINT]);
}

/// A prefix of another cluster, a part of one or a larger one; and an endpoint in it.
fn announce_foreign_prefix(prefix: &str, pod: &str) {
    Mallory::export_network(&[PODS, prefix]);
    Mallory::wait_refused(NETWORK, &[format!("{prefix} overlaps ")]);
    wait_network(Some(&[PODS]));
    Mallory::export_service(&[OWN_ENDPOINT.to_owned(), pod.to_owned()]);
    let export = format!("{ID}-{NS}-web-endpoints");
    Mallory::wait_refused(&export, &[pod.to_owned()]);
    wait_endpoints(&[OWN_ENDPOINT]);
}

fn announce_beyond_the_allow_list() {
    let allowed = format!("mc-gateway.io/allowed-cidrs={SERVICES},10.202.0.0/16");
    let args = [
        "-n",
        LEADER_NAMESPACE,
        "annotate",
        "serviceaccount",
        ACCOUNT,
        &allowed,
    ];
    LEADER.kubectl(&args);
    Mallory::export_network(&[PODS, "10.202.1.0/24"]);
    let reason = format!("{PODS} is outside the ranges allowed to the cluster");
    Mallory::wait_refused(NETWORK, &[reason]);
    wait_network(Some(&["10.202.1.0/24"]));
    wait_endpoints(&[]);
}

/// The eviction outlasts further writes of the member, and ends with its record.
fn write_as_an_evicted_cluster() {
    annotate_set(&format!("mc-gateway.io/evicted-clusters={ID}"));
    wait_network(None);
    let export = format!("{ID}-{NS}-web-endpoints");
    for export in [NETWORK, &export] {
        LEADER.wait_gone(LEADER_NAMESPACE, "resourceexports", export, SHORT_TIMEOUT);
    }
    for cluster in [EAST, WEST] {
        cluster.wait_gone(NS, "service", "antrea-mc-web", SHORT_TIMEOUT);
    }
    Mallory::apply(&announce(ID));
    Mallory::export_network(&["10.202.1.0/24"]);
    LEADER.wait_gone(LEADER_NAMESPACE, "resourceexports", NETWORK, SHORT_TIMEOUT);
    let announce = format!("member-announce-from-{ID}");
    let announce = LEADER.get(LEADER_NAMESPACE, "memberclusterannounces", &announce);
    let annotations = announce.expect("the announce")["metadata"]["annotations"].to_string();
    assert!(annotations.contains("the cluster is evicted"), "{annotations}");
    wait_network(None);
    annotate_set("mc-gateway.io/evicted-clusters-");
    Mallory::export_network(&["10.202.1.0/24"]);
    wait_network(Some(&["10.202.1.0/24"]));
}

#[test]
fn a_member_gains_nothing_beyond_its_own_ranges() {
    let _namespace = Namespace::create(NS);
    let before = network_of_east();
    let pods = before["podCIDRs"][0].as_str().expect("a Pod CIDR");
    let services = before["serviceCIDR"].as_str().expect("a Service CIDR");
    let pod = address_in(pods);
    let _account = Mallory::create();
    export_as_a_stranger();
    export_foreign_endpoints(&pod, &address_in(services));
    for prefix in [pods, services, &format!("{pod}/32"), "10.0.0.0/8"] {
        announce_foreign_prefix(prefix, &pod);
        assert_eq!(network_of_east(), before, "{prefix}");
    }
    announce_beyond_the_allow_list();
    write_as_an_evicted_cluster();
    assert_eq!(network_of_east(), before);
}
