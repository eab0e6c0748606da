//! The time from a change of a Pod's labels to its enforcement in another cluster.

use std::{
    io::{BufRead as _, BufReader},
    time::{Duration, Instant},
};

use http::Method;
use serde_json::{Value, json};

use crate::{
    api::{connect, send, wait},
    clusters::{EAST, SHORT_TIMEOUT, WEST, is_long},
    policies::wait_label_id,
    workload::{Client, Namespace},
};

const NAMESPACE: &str = "e2e-latency";

/// Allows clients of any cluster with the label `app=client`, and no other sender.
const CLIENTS_ONLY: &str = "apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata:
  name: clients-only
  namespace: e2e-latency
spec:
  appliedTo:
  - podSelector:
      matchLabels:
        app: db
  priority: 1
  tier: application
  ingress:
  - action: Allow
    from:
    - scope: ClusterSet
      podSelector:
        matchLabels:
          app: client
  - action: Drop
";

/// Timeout of a request that a policy may drop.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);

/// Promises, asserted with `--long`.
const EXISTING: Duration = Duration::from_secs(1);
const NEW: Duration = Duration::from_secs(2);

/// The times of one kind of change.
struct Latencies {
    what: &'static str,
    promise: Duration,
    samples: Vec<Duration>,
}

impl Latencies {
    fn check(mut self) {
        self.samples.sort_unstable();
        let at =
            |percent: usize| self.samples[(self.samples.len() * percent / 100).min(self.samples.len() - 1)];
        println!(
            "enforcement: {}: {} times, median {:?}, p99 {:?}",
            self.what,
            self.samples.len(),
            at(50),
            at(99)
        );
        assert!(
            !is_long() || at(99) <= self.promise,
            "{}: p99 {:?} exceeds {:?}: {:?}",
            self.what,
            at(99),
            self.promise,
            self.samples
        );
    }
}

/// The time from a change of the client's labels until its requests are answered, or no longer.
fn time_to(client: &Client, url: &str, answered: bool, labels: &Value) -> Duration {
    let get = format!(
        "/usr/bin/mc-traffic get --timeout {} {url}",
        REQUEST_TIMEOUT.as_secs_f64()
    );
    // Each iteration is a new connection. Without the first line, requests had this result before the change.
    let script = if answered {
        format!("{get} 2>/dev/null && exit 1; echo started; until {get} 2>/dev/null; do :; done")
    } else {
        format!(
            "{get} >/dev/null || exit 1; echo started; while {get} >/dev/null 2>&1; do :; done; echo dropped"
        )
    };
    let limit = SHORT_TIMEOUT.as_secs();
    let mut requests = client.spawn_shell(&format!("timeout {limit} sh -c '{script}'"));
    let output = requests.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    assert_eq!(
        lines.next().as_deref(),
        Some("started"),
        "{}: the state before",
        client.full_name()
    );
    let start = Instant::now();
    wait(async {
        let api = connect(EAST).await;
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", client.pod());
        let body = json!({ "metadata": { "labels": labels } });
        let (code, answer) = send(
            &api,
            Method::PATCH,
            &path,
            Some(("application/merge-patch+json", body)),
        )
        .await;
        assert!(code < 300, "{answer}");
    });
    let result = lines.next();
    let elapsed = start.elapsed();
    requests.wait().expect("kubectl");
    assert!(
        result.is_some(),
        "{} with {labels}: not {} within {limit} s",
        client.full_name(),
        if answered { "answered" } else { "dropped" }
    );
    if answered {
        elapsed
    } else {
        // The request that is dropped begins that much earlier.
        elapsed.saturating_sub(REQUEST_TIMEOUT)
    }
}

/// Measures changes to a label that other Pods have, changes to one that no rule allows, and changes to a label that no
/// Pod in the `ClusterSet` had before. A sender without a number is dropped, so such a Pod is closed meanwhile.
pub(crate) fn check_label_latency() {
    let rounds = if is_long() { 50 } else { 5 };
    let ns = Namespace::create(NAMESPACE);
    ns.pod(WEST, "west-n2", "db", &["echo-server", "--port=8080"]);
    let url = format!("http://{}:8080/", ns.pod_ip(WEST, "app=db"));
    // It keeps the label in use.
    let _holder = ns.client(EAST, "east-n2");
    let mover = ns.client_named(EAST, "east-n2", "mover");
    let label = |app: &str| format!("ns:kubernetes.io/metadata.name={NAMESPACE}&pod:app={app}");
    for app in ["client", "mover"] {
        wait_label_id(WEST, &label(app));
    }
    WEST.apply(CLIENTS_ONLY);
    WEST.wait_for("the policy", SHORT_TIMEOUT, || {
        let answer = mover.run(&["get", "--timeout", "0.5", &url]);
        answer.err().map(|_| ()).ok_or_else(|| "answered".to_owned())
    });
    let [mut opened, mut closed, mut new] = [
        ("a Pod gets a label of another Pod", EXISTING),
        ("a Pod loses it", EXISTING),
        ("a Pod gets a new label", NEW),
    ]
    .map(|(what, promise)| Latencies {
        what,
        promise,
        samples: Vec::new(),
    });
    for round in 0..rounds {
        let known = json!({ "app": "client", "round": null });
        opened.samples.push(time_to(&mover, &url, true, &known));
        let other = json!({ "app": "mover", "round": null });
        closed.samples.push(time_to(&mover, &url, false, &other));
        let unknown = json!({ "app": "client", "round": round.to_string() });
        new.samples.push(time_to(&mover, &url, true, &unknown));
        closed.samples.push(time_to(&mover, &url, false, &other));
    }
    WEST.kubectl(&[
        "delete",
        "networkpolicies.crd.antrea.io",
        "--all",
        "-n",
        NAMESPACE,
    ]);
    for latencies in [opened, closed, new] {
        latencies.check();
    }
}
