//! Addresses of Pods for policies: the published slices, and the traffic of the API server for them.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};

use crate::{
    api::{connect, send, wait},
    clusters::{SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

pub(crate) const ADDRESS_GROUP_SLICES: &str = "addressgroupslices";

/// Pods that start at one time.
const PODS: u32 = 100;

/// Most bytes of slices for each watcher. Measured are 13 KB in seven events, one for each 200 ms in which addresses
/// appear: more if the API server takes longer for the Pods.
const MAX_BYTES_PER_WATCHER: f64 = 128.0 * 1024.0;

/// The watch traffic of one kind since the API server's start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WatchTraffic {
    events: f64,
    bytes: f64,
}

impl WatchTraffic {
    /// That of the kind with this resource name in the API server's metrics.
    fn read(metrics: &str, resource: &str) -> Self {
        let label = resource_label(resource);
        let sum = |name: &str| {
            sum_of(
                metrics,
                &format!("apiserver_watch_events_sizes_{name}"),
                &[&label],
            )
        };
        Self {
            events: sum("count"),
            bytes: sum("sum"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            bytes: self.bytes - before.bytes,
        }
    }
}

fn resource_label(resource: &str) -> String {
    format!("resource=\"{resource}\"")
}

/// The sum of a metric over the series with all of these labels. API servers answer in the text format of Prometheus,
/// which [`mc_tests::prom_parser`] does not accept.
fn sum_of(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let series = metrics.lines().filter(|line| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    });
    series
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

/// The controller publishes the addresses of all Pods, and the agents watch these instead of the Pods of other Nodes.
pub(crate) fn check_address_groups() {
    let addresses = |values: Vec<Value>, path: &str| -> BTreeSet<String> {
        let lists = values
            .iter()
            .filter_map(|value| value.pointer(path)?.as_array().cloned());
        let texts = lists.flatten().filter_map(|value| match value {
            Value::String(text) => Some(text),
            other => other["ip"].as_str().map(str::to_owned),
        });
        texts.collect()
    };
    WEST.wait_for("the addresses of all Pods", SHORT_TIMEOUT, || {
        let slices = WEST.list("kube-system", ADDRESS_GROUP_SLICES, "");
        let is_complete = slices.iter().any(|slice| slice["spec"]["complete"] == true);
        let groups = slices
            .iter()
            .filter_map(|slice| slice["spec"]["groups"].as_array());
        let published = addresses(groups.flatten().cloned().collect(), "/addresses");
        let mut pods = WEST.list("", "pods", "");
        pods.retain(|pod| {
            let ended = ["Succeeded", "Failed"]
                .map(Value::from)
                .contains(&pod["status"]["phase"]);
            pod["spec"]["hostNetwork"] != true && !ended
        });
        let wanted = addresses(pods, "/status/podIPs");
        if is_complete && published == wanted && !wanted.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "complete: {is_complete}, {published:?}, wanted {wanted:?}"
            ))
        }
    });
    WEST.wait_for("agents with the Pods of their Nodes", SHORT_TIMEOUT, || {
        let agents = ["logs", "-n", "kube-system", "-l", "app=mc-gateway", "--tail=-1"];
        let log = WEST.try_kubectl(&agents)?;
        let scopes: Vec<_> = log
            .lines()
            .filter(|line| line.contains("watching Pods"))
            .collect();
        if scopes.iter().filter(|line| line.contains("Node")).count() >= 2 {
            Ok(())
        } else {
            Err(format!("{scopes:?}"))
        }
    });
}

/// Prints events and bytes of slices and of Pods while the addresses of [`PODS`] Pods appear, by the API server's
/// metrics, and compares those of slices with a limit.
pub(crate) fn check_group_traffic() {
    let ns = Namespace::create("e2e-group-traffic");
    let watchers = |metrics: &str| {
        let labels = ["verb=\"WATCH\"", &resource_label(ADDRESS_GROUP_SLICES)];
        sum_of(metrics, "apiserver_longrunning_requests", &labels)
    };
    // The API server admits no Pod without it.
    WEST.wait_for("a ServiceAccount", SHORT_TIMEOUT, || {
        WEST.get(ns.0, "serviceaccount", "default")
            .ok_or_else(|| "missing".to_owned())
    });
    let metrics = || WEST.kubectl(&["get", "--raw", "/metrics"]);
    let before = WEST.wait_for("watchers of slices", SHORT_TIMEOUT, || {
        let metrics = metrics();
        // Two agents and the controller.
        match watchers(&metrics) {
            count if count >= 3.0 => Ok(metrics),
            count => Err(format!("{count} watchers")),
        }
    });
    let count = watchers(&before);
    let path = format!("/api/v1/namespaces/{}/pods", ns.0);
    let start = std::time::Instant::now();
    wait(async {
        let client = &connect(WEST).await;
        stream::iter(0..PODS)
            .map(|number| {
                let path = &path;
                async move {
                    let json_type = "application/json";
                    let (code, answer) =
                        send(client, Method::POST, path, Some((json_type, pod(number)))).await;
                    assert_eq!(code, 201, "{answer}");
                    let status = format!("{path}/p{number}/status");
                    let change = Some(("application/merge-patch+json", running(number)));
                    let (code, answer) = send(client, Method::PATCH, &status, change).await;
                    assert_eq!(code, 200, "{answer}");
                }
            })
            .buffer_unordered(16)
            .collect::<Vec<()>>()
            .await
    });
    let elapsed = start.elapsed();
    WEST.wait_for("the addresses of the Pods in slices", SHORT_TIMEOUT, || {
        let slices = Value::from(WEST.list("kube-system", ADDRESS_GROUP_SLICES, "")).to_string();
        let missing: Vec<_> = (0..PODS)
            .filter(|n| !slices.contains(&format!("{:?}", address(*n))))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("without {missing:?}"))
        }
    });
    let mut last = before.clone();
    let after = WEST.wait_for("the end of the traffic", SHORT_TIMEOUT, || {
        let previous = std::mem::replace(&mut last, metrics());
        let read = |metrics: &str| WatchTraffic::read(metrics, ADDRESS_GROUP_SLICES);
        if read(&previous) == read(&last) {
            Ok(last.clone())
        } else {
            Err("more events".to_owned())
        }
    });
    let traffic =
        |resource| WatchTraffic::read(&after, resource).since(WatchTraffic::read(&before, resource));
    let (slices, pods) = (traffic(ADDRESS_GROUP_SLICES), traffic("pods"));
    println!(
        "enforcement: {PODS} Pods with addresses within {elapsed:?}: {} events of slices with {} bytes for {count} \
         watchers, {} events of Pods with {} bytes",
        slices.events, slices.bytes, pods.events, pods.bytes
    );
    assert!(
        slices.events > 0.0 && pods.events > 0.0,
        "no events in the metrics"
    );
    let each = slices.bytes / count;
    assert!(each <= MAX_BYTES_PER_WATCHER, "{each} bytes for each watcher");
    wait(async {
        let client = &connect(WEST).await;
        let now = format!("{path}?gracePeriodSeconds=0");
        let (code, answer) = send(client, Method::DELETE, &now, None).await;
        assert_eq!(code, 200, "{answer}");
    });
}

fn address(number: u32) -> String {
    format!("10.12.250.{number}")
}

/// A Pod with the labels of a usual Deployment, on a Node without a kubelet.
fn pod(number: u32) -> Value {
    let labels = json!({
        "app.kubernetes.io/name": "group-traffic", "app.kubernetes.io/instance": "e2e",
        "app.kubernetes.io/component": "server", "pod-template-hash": "5d8f7c9b6d",
    });
    let ports = json!([{ "name": "http", "containerPort": 8080 }]);
    let containers = json!([{ "name": "server", "image": "example.invalid/server:1", "ports": ports }]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("p{number}"), "labels": labels },
        "spec": { "nodeName": "e2e-no-node", "containers": containers },
    })
}

fn running(number: u32) -> Value {
    let ip = address(number);
    json!({ "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] } })
}
