//! The time that a new Pod has no network, because the agent has not seen it.

use mc_tests::{bench::sample::percentile, fixture::is_long_run};

use crate::{
    clusters::{SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

const POD: &str = "starting";

/// Seconds from the start of a new Pod's process to the first answer that it gets; each attempt takes 0.1 s at most.
fn time_to_answer(ns: &Namespace, url: &str) -> f64 {
    let get = format!("/usr/bin/mc-traffic get --timeout 0.1 {url} >/dev/null 2>&1");
    // The first number is the uptime of the host in seconds.
    let uptime = |name: &str| format!("read {name} rest </proc/uptime");
    let script = format!(
        "{}; until {get}; do :; done; {}; echo $start $end",
        uptime("start"),
        uptime("end")
    );
    WEST.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {POD}, namespace: {}, labels: {{app: {POD}}}}}
spec:
  nodeName: west-n2
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: {POD}
    image: mc-gateway/test:latest
    imagePullPolicy: IfNotPresent
    command: [/bin/sh, -c, \"{script}\"]
",
        ns.0
    ));
    let seconds = WEST.wait_for("an answer to a new Pod", SHORT_TIMEOUT, || {
        let log = WEST.try_kubectl(&["logs", POD, "-n", ns.0])?;
        let times: Vec<f64> = log
            .split_whitespace()
            .filter_map(|time| time.parse().ok())
            .collect();
        match times[..] {
            [start, end] => Ok(end - start),
            _ => Err(log),
        }
    });
    WEST.kubectl(&["delete", "pod", POD, "-n", ns.0]);
    seconds
}

/// Prints the times of some Pods, one after the other. Each of them gets an answer.
pub(crate) fn check_pod_start(state: &str, ns: &Namespace, url: &str) {
    let rounds = if is_long_run() { 20 } else { 3 };
    let times: Vec<f64> = (0..rounds).map(|_| time_to_answer(ns, url)).collect();
    let at = |percent| percentile(times.iter().copied(), percent).expect("at least one time");
    println!(
        "enforcement: a new Pod has a network {state}: median {:.2} s, most {:.2} s",
        at(50),
        at(100)
    );
}
