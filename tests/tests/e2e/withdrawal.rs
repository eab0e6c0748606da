//! Exported Services that lose their Pods for a short or a long time.

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use mc_tests::fixture::is_long_run;
use serde_json::Value;

use crate::{
    clusters::{EAST, LONG_TIMEOUT, SHORT_TIMEOUT, WEST},
    workload::{Namespace, SERVER_CONTAINER},
};

const WEST_NODE: &str = "west-n2";

/// Key of the configuration.
const WITHDRAW_AFTER: &str = "withdrawAfter";
/// Promised time until a withdrawn Service is gone.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Services whose only Pod restarts in one round.
const SERVICES: usize = 5;
/// Rounds of the long variant.
const LONG_ROUNDS: usize = 10;
/// Time that a Pod of [`restarting_services`] takes to become ready.
const READY_AFTER: Duration = Duration::from_secs(20);

#[test]
fn a_restart_of_the_only_pod_keeps_the_imported_service() {
    let ns = Namespace::create("e2e-restart");
    WEST.apply(&restarting_services(ns.0));
    let imported = wait_endpoints(&ns, true);
    let rounds = if is_long_run() { LONG_ROUNDS } else { 1 };
    for _ in 0..rounds {
        let start = Instant::now();
        WEST.kubectl(&["delete", "pod", "-n", ns.0, "-l", "test=restart", "--wait=false"]);
        let without = wait_endpoints(&ns, false);
        let restarted = wait_endpoints(&ns, true);
        let took = start.elapsed();
        assert!(took >= READY_AFTER, "ready after {took:?}");
        assert_eq!(without, imported, "UID and cluster IP without endpoints");
        assert_eq!(restarted, imported, "UID and cluster IP after the restart");
    }
    println!(
        "{} restarts of only Pods changed no cluster IP",
        rounds.saturating_mul(SERVICES)
    );
}

#[test]
fn a_service_without_pods_is_withdrawn_after_the_configured_time() {
    let ns = Namespace::create("e2e-zero");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    WEST.configure(WITHDRAW_AFTER, "15s");
    let result = std::panic::catch_unwind(|| {
        let start = Instant::now();
        WEST.kubectl(&["scale", "deployment/web", "-n", ns.0, "--replicas=0"]);
        ns.wait_imported(EAST, 0);
        wait_condition(&ns, "remains exported until");
        EAST.wait_gone(ns.0, "service", "antrea-mc-web", LONG_TIMEOUT);
        let took = start.elapsed();
        println!("Service gone {took:?} after scaling to zero");
        // The condition has whole seconds.
        assert!(took >= Duration::from_secs(14), "withdrawn after {took:?}");
        wait_condition(&ns, "Service has no Endpoints");
        WEST.kubectl(&["scale", "deployment/web", "-n", ns.0, "--replicas=1"]);
        ns.wait_imported(EAST, 1);

        // As in Antrea.
        WEST.configure(WITHDRAW_AFTER, "0s");
        // A controller that has just started keeps exports that it does not want for 20 s.
        WEST.wait_controller_age(SignedDuration::from_secs(8));
        WEST.kubectl(&["scale", "deployment/web", "-n", ns.0, "--replicas=0"]);
        let took = EAST.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
        println!("Service gone {took:?} after scaling to zero, at once");
        // The promised time includes the cluster's own controllers, which share two CPUs with three clusters in the
        // gate.
        if is_long_run() {
            assert!(
                took <= WITHDRAWAL_TIMEOUT,
                "withdrawn {took:?} after scaling to zero, promised: {WITHDRAWAL_TIMEOUT:?}"
            );
        }
    });
    WEST.configure(WITHDRAW_AFTER, "5m");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn an_export_deleted_while_the_service_has_no_pods_is_withdrawn_at_once() {
    let ns = Namespace::create("e2e-zero-deleted");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    WEST.kubectl(&["scale", "deployment/web", "-n", ns.0, "--replicas=0"]);
    ns.wait_imported(EAST, 0);
    ns.unexport(WEST);
    let took = EAST.wait_gone(ns.0, "service", "antrea-mc-web", WITHDRAWAL_TIMEOUT);
    println!("Service without Pods gone {took:?} after its export");
}

/// Waits for condition `Valid` with this in its message.
fn wait_condition(ns: &Namespace, message: &str) {
    let path = "jsonpath={.status.conditions[?(@.type=='Valid')].message}";
    WEST.wait_for(&format!("condition {message:?}"), SHORT_TIMEOUT, || {
        let seen = WEST.kubectl(&["get", "serviceexport", "web", "-n", ns.0, "-o", path]);
        if seen.contains(message) { Ok(()) } else { Err(seen) }
    });
}

/// Exported Services of one Pod each, which is ready [`READY_AFTER`] its start.
fn restarting_services(namespace: &str) -> String {
    let delay = READY_AFTER.as_secs();
    let of = |i| {
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: restart-{i}, namespace: {namespace}}}
spec:
  selector: {{app: restart-{i}}}
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {{name: restart-{i}, namespace: {namespace}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: restart-{i}, namespace: {namespace}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: restart-{i}}}}}
  template:
    metadata: {{labels: {{app: restart-{i}, test: restart}}}}
    spec:
      nodeName: {WEST_NODE}
      terminationGracePeriodSeconds: 0
      containers:
{SERVER_CONTAINER}
        readinessProbe: {{tcpSocket: {{port: 8080}}, initialDelaySeconds: {delay}, periodSeconds: 1}}
"
        )
    };
    (0..SERVICES).map(of).collect()
}

/// Waits until the imports of all [`restarting_services`] have endpoints, or none has; returns their UIDs and cluster
/// IPs.
fn wait_endpoints(ns: &Namespace, wanted: bool) -> Vec<[Value; 2]> {
    let state = if wanted { "an endpoint" } else { "no endpoint" };
    EAST.wait_for(&format!("{state} of each Service"), LONG_TIMEOUT, || {
        (0..SERVICES)
            .map(|i| {
                let name = format!("antrea-mc-restart-{i}");
                let service = EAST
                    .get(ns.0, "service", &name)
                    .ok_or_else(|| format!("no Service {name}"))?;
                let selector = format!("kubernetes.io/service-name={name}");
                let slices = EAST.list(ns.0, "endpointslice", &selector);
                let has_endpoint = slices
                    .iter()
                    .any(|slice| slice["endpoints"].as_array().is_some_and(|e| !e.is_empty()));
                if has_endpoint == wanted {
                    Ok([
                        service["metadata"]["uid"].clone(),
                        service["spec"]["clusterIP"].clone(),
                    ])
                } else {
                    Err(format!("{name}: {slices:?}"))
                }
            })
            .collect()
    })
}
