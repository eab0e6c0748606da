//! The time from a change of a Pod's labels to its enforcement in another cluster.

use std::{
    io::{BufRead as _, BufReader},
    time::{Duration, Instant},
};

use http::Method;
use mc_tests::{bench::sample::percentile, fixture::is_long_run};
use serde_json::{Value, json};

use crate::{
    api::{connect, send, wait},
    clusters::{EAST, SHORT_TIMEOUT},
    workload::{Client, Namespace},
};

/// Timeout of a request that a policy may drop.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);

/// Promise for a label that other Pods have as well, asserted with `--long`.
const EXISTING: Duration = Duration::from_secs(1);

/// Promise for a label that no other Pod has, asserted with `--long`.
const NEW: Duration = Duration::from_secs(2);

/// The times of one kind of change.
struct Latencies {
    change: &'static str,
    promise: Duration,
    seconds: Vec<f64>,
}

impl Latencies {
    fn check(&self) {
        let [median, p99] = [50, 99]
            .map(|percent| percentile(self.seconds.iter().copied(), percent).expect("at least one time"));
        println!(
            "enforcement: {}: {} times, median {median:.2} s, p99 {p99:.2} s",
            self.change,
            self.seconds.len()
        );
        assert!(
            !is_long_run() || p99 <= self.promise.as_secs_f64(),
            "{}: p99 {p99:.2} s exceeds {:?}: {:?}",
            self.change,
            self.promise,
            self.seconds
        );
    }
}

/// A client of east, and its object in the API.
struct Subject<'a> {
    client: Client,
    namespace: &'a str,
    api: &'a kube::Client,
    url: &'a str,
}

impl Subject<'_> {
    /// Seconds from a change of the client's labels until its requests are answered, or are answered no longer.
    ///
    /// # Panics
    ///
    /// If the requests have this result before the change, or lack it 30 s later.
    fn time_to(&self, answered: bool, labels: &Value) -> f64 {
        let limit = SHORT_TIMEOUT.as_secs();
        let script = script(self.url, answered);
        let mut requests = self
            .client
            .spawn_shell(&format!("timeout {limit} sh -c '{script}'"));
        let output = requests.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let name = self.client.full_name();
        assert_eq!(
            lines.next().as_deref(),
            Some("started"),
            "{name}: the state before"
        );
        let start = Instant::now();
        self.set_labels(labels);
        let result = lines.next();
        let elapsed = start.elapsed();
        requests.wait().expect("kubectl");
        let goal = if answered { "answered" } else { "dropped" };
        assert!(
            result.is_some(),
            "{name} with {labels}: not {goal} within {limit} s"
        );
        // The first request that is dropped begins one timeout before its result.
        let waited = if answered { Duration::ZERO } else { REQUEST_TIMEOUT };
        elapsed.saturating_sub(waited).as_secs_f64()
    }

    fn set_labels(&self, labels: &Value) {
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.client.pod());
        let body = json!({ "metadata": { "labels": labels } });
        let body = Some(("application/merge-patch+json", body));
        let (code, answer) = wait(send(self.api, Method::PATCH, &path, body));
        assert!(code < 300, "{answer}");
    }
}

/// A shell script that prints `started` if the first request has the opposite result, and a second line as soon as a
/// request has the wanted one. Each request is a new connection.
fn script(url: &str, answered: bool) -> String {
    let timeout = REQUEST_TIMEOUT.as_secs_f64();
    let get = format!("/usr/bin/mc-traffic get --timeout {timeout} {url} >/dev/null 2>&1");
    if answered {
        format!("{get} && exit 1; echo started; until {get}; do :; done; echo answered")
    } else {
        format!("{get} || exit 1; echo started; while {get}; do :; done; echo dropped")
    }
}

/// Measures changes to a label that other Pods have, changes to one that no rule allows, and changes to a label that no
/// Pod in the `ClusterSet` had before.
///
/// A policy answers the client of east with the label `app=client` alone. Another Pod keeps this label in use.
pub(crate) fn check_label_latency(ns: &Namespace, client: Client, url: &str) {
    let rounds = if is_long_run() { 50 } else { 5 };
    let api = wait(connect(EAST));
    let subject = Subject {
        client,
        namespace: ns.0,
        api: &api,
        url,
    };
    let [mut opened, mut closed, mut new] = [
        ("a Pod gets a label of another Pod", EXISTING),
        ("a Pod loses it", EXISTING),
        ("a Pod gets a new label", NEW),
    ]
    .map(|(change, promise)| Latencies {
        change,
        promise,
        seconds: Vec::new(),
    });
    let other = json!({ "app": client.pod(), "round": null });
    for round in 0..rounds {
        let known = json!({ "app": "client", "round": null });
        opened.seconds.push(subject.time_to(true, &known));
        closed.seconds.push(subject.time_to(false, &other));
        let unknown = json!({ "app": "client", "round": round.to_string() });
        new.seconds.push(subject.time_to(true, &unknown));
        closed.seconds.push(subject.time_to(false, &other));
    }
    for latencies in [opened, closed, new] {
        latencies.check();
    }
}
