//! Least privilege inside of RBAC: the accounts of member controller and agent write their own Services and endpoints,
//! and no others, with the permissions that the manifests give them.
//!
//! All requests are dry runs, and admission policies answer these as they answer others.

use http::Method;
use mc_test_kit::fake_apiserver::fields::json_merge_patch;
use serde_json::{Value, json};

use crate::api::dry_run;

const CONTROLLER: &str = "system:serviceaccount:kube-system:antrea-mc-controller";
const AGENT: &str = "system:serviceaccount:kube-system:mc-gateway";
const MERGE_PATCH: &str = "application/merge-patch+json";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const AGENT_SERVICES: &str = "/api/v1/namespaces/kube-system/services";
/// The Service of the API server.
const FOREIGN: &str = "kubernetes";

fn create(account: &str, node: Option<&str>, path: &str, object: &Value) -> (u16, String) {
    let body = Some(("application/json", object.clone()));
    dry_run(account, node, &Method::POST, path, body)
}

/// Asserts that admission refuses a request with this message.
fn assert_refused((code, answer): (u16, String), message: &str, what: &str) {
    assert!(
        code == 422 && answer.contains(message),
        "{what}: expected the refusal {message:?}, found {code} {answer}"
    );
}

/// A Service of type `ClusterIP` with this metadata and port, and other fields of its spec.
fn service(metadata: &Value, port: &Value, spec: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"type": "ClusterIP", "ports": [port]},
    });
    json_merge_patch(&mut service["spec"], spec);
    service
}

/// A Service as the member controller creates it.
fn imported(name: &str, spec: &Value) -> Value {
    let annotations = json!({"multicluster.antrea.io/imported-service": "true"});
    let port = json!({"name": "http", "port": 80, "protocol": "TCP"});
    service(&json!({"name": name, "annotations": annotations}), &port, spec)
}

/// Fields by which a Service of an account would redirect other traffic, with the field that the message names.
fn redirecting() -> [(&'static str, Value); 5] {
    [
        ("spec.externalIPs", json!({"externalIPs": ["198.51.100.1"]})),
        ("spec.selector", json!({"selector": {"app": "victim"}})),
        ("spec.type", json!({"type": "NodePort"})),
        ("spec.type", json!({"type": "LoadBalancer"})),
        (
            "spec.type",
            json!({"type": "ExternalName", "externalName": "example.org"}),
        ),
    ]
}

#[test]
fn the_controller_writes_imported_services_only() {
    let own = create(
        CONTROLLER,
        None,
        SERVICES,
        &imported("antrea-mc-shop", &json!({})),
    );
    assert_eq!(own.0, 201, "{own:?}");
    for (field, spec) in redirecting() {
        let answer = create(CONTROLLER, None, SERVICES, &imported("antrea-mc-shop", &spec));
        assert_refused(answer, field, &spec.to_string());
    }
    let only = "the controller writes imported Services only";
    let mut unmarked = imported("antrea-mc-shop", &json!({}));
    unmarked["metadata"]["annotations"] = json!({});
    let services = [unmarked, imported("shop", &json!({}))];
    for service in services {
        assert_refused(
            create(CONTROLLER, None, SERVICES, &service),
            only,
            &service.to_string(),
        );
    }
    let foreign = format!("{SERVICES}/{FOREIGN}");
    let patches = [
        json!({"metadata": {"annotations": {"multicluster.antrea.io/imported-service": "true"}}}),
        json!({"spec": {"externalIPs": ["198.51.100.1"]}}),
        json!({"spec": {"selector": {"app": "attacker"}}}),
    ];
    for patch in patches {
        let body = Some((MERGE_PATCH, patch.clone()));
        let answer = dry_run(CONTROLLER, None, &Method::PATCH, &foreign, body);
        assert_refused(answer, only, &patch.to_string());
    }
    let answer = dry_run(CONTROLLER, None, &Method::DELETE, &foreign, None);
    assert_refused(answer, only, "deletion");
}

/// A slice as the member controller creates it, of this Service.
fn slice(service: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "antrea-mc-shop-east", "labels": {
            "kubernetes.io/service-name": service,
            "endpointslice.kubernetes.io/managed-by": "mc-controller.mc-gateway.io",
        }},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["198.51.100.1"]}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    })
}

#[test]
fn the_controller_writes_endpoints_of_imported_services_only() {
    let own = create(CONTROLLER, None, SLICES, &slice("antrea-mc-shop"));
    assert_eq!(own.0, 201, "{own:?}");
    let answer = create(CONTROLLER, None, SLICES, &slice(FOREIGN));
    assert_refused(
        answer,
        "kubernetes.io/service-name: no imported Service",
        "a slice of another Service",
    );
    let only = "the controller writes endpoints of imported Services only";
    let mut unmarked = slice("antrea-mc-shop");
    unmarked["metadata"]["labels"] = json!({"kubernetes.io/service-name": "antrea-mc-shop"});
    assert_refused(
        create(CONTROLLER, None, SLICES, &unmarked),
        only,
        "a slice without a manager",
    );
    let foreign = format!("{SLICES}/{FOREIGN}");
    let takeover = json!({"endpoints": [{"addresses": ["198.51.100.1"]}], "metadata": {"labels": {
        "endpointslice.kubernetes.io/managed-by": "mc-controller.mc-gateway.io",
        "kubernetes.io/service-name": "antrea-mc-shop",
    }}});
    let body = Some((MERGE_PATCH, takeover));
    assert_refused(
        dry_run(CONTROLLER, None, &Method::PATCH, &foreign, body),
        only,
        "the slice of another Service",
    );
    for path in [foreign, format!("{ENDPOINTS}/{FOREIGN}")] {
        let answer = dry_run(CONTROLLER, None, &Method::DELETE, &path, None);
        assert_refused(answer, only, &path);
    }
}

/// A Service as an agent creates it.
fn reservation(name: &str, spec: &Value) -> Value {
    let labels = json!({"mc-gateway.io/reserved-for": "node"});
    let port = json!({"name": "reserved", "port": 9, "protocol": "TCP"});
    service(&json!({"name": name, "labels": labels}), &port, spec)
}

#[test]
fn an_agent_creates_the_service_of_its_own_node_only() {
    let dotted = "ip-10-0-0-1.eu.internal";
    let long = "n".repeat(70);
    for node in ["joining", dotted, &long] {
        let name = mc_gateway::reservation_service::service_name(node);
        let service = reservation(&name, &json!({}));
        let own = create(AGENT, Some(node), AGENT_SERVICES, &service);
        assert_eq!(own.0, 201, "{node}: {own:?}");
        for from in [None, Some("east-n1"), Some("join"), Some("eu.internal")] {
            let answer = create(AGENT, from, AGENT_SERVICES, &service);
            let message = format!("Service {name}: an agent creates that of its own Node only");
            assert_refused(answer, &message, &format!("{node} from {from:?}"));
        }
    }
    for (field, spec) in redirecting() {
        let service = reservation("mc-node-joining", &spec);
        let answer = create(AGENT, Some("joining"), AGENT_SERVICES, &service);
        assert_refused(answer, field, &spec.to_string());
    }
    for name in ["kube-dns-copy", "mc-node-joining-2", "mc-node-"] {
        let service = reservation(name, &json!({}));
        let (code, answer) = create(AGENT, Some("joining"), AGENT_SERVICES, &service);
        assert!(code == 422, "{name}: expected a refusal, found {code} {answer}");
    }
}
