//! Leader election between two replicas of a controller.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use mc_tests::process::find_pod_process;

use crate::{
    clusters::{EAST, LONG_TIMEOUT, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

const DEPLOYMENT: &str = "deployment/antrea-mc-controller";
const LEASE: &str = "mc-controller-member";
/// A Lease expires 15 s after its last renewal and is checked every 2 s.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Two replicas; one again on drop.
struct Replicas;

impl Replicas {
    fn two() -> Self {
        scale(2);
        Self
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        scale(1);
        // Other tests compare restart counts.
        let restart = ["rollout", "restart", DEPLOYMENT, "-n", "kube-system"];
        if let Err(error) = EAST.try_kubectl(&restart) {
            eprintln!("restart: {error}");
        }
        scale(1);
    }
}

/// A process stopped with SIGSTOP; continued on drop.
struct PausedProcess(String);

impl PausedProcess {
    fn new(pid: String) -> Self {
        signal("-STOP", &pid);
        Self(pid)
    }
}

impl Drop for PausedProcess {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(signal: &str, pid: &str) {
    // The process may have ended.
    if let Err(error) = Command::new("kill").args([signal, pid]).status() {
        eprintln!("kill {signal} {pid}: {error}");
    }
}

fn scale(replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    let status = [
        "rollout",
        "status",
        DEPLOYMENT,
        "-n",
        "kube-system",
        "--timeout=120s",
    ];
    let done = EAST
        .try_kubectl(&["scale", DEPLOYMENT, "-n", "kube-system", &replicas])
        .and_then(|_| EAST.try_kubectl(&status));
    if let Err(error) = done {
        eprintln!("scale {replicas}: {error}");
    }
}

fn holder() -> String {
    let path = "jsonpath={.spec.holderIdentity}";
    EAST.kubectl(&["get", "lease", LEASE, "-n", "kube-system", "-o", path])
}

fn wait_for_another(than: &str, deadline: Duration) -> (String, Duration) {
    let start = Instant::now();
    let new = EAST.wait_for(
        &format!("a holder of the Lease that is not {than}"),
        deadline,
        || {
            let holder = holder();
            if holder.is_empty() || holder == than {
                Err(format!("{holder:?}"))
            } else {
                Ok(holder)
            }
        },
    );
    (new, start.elapsed())
}

/// PID of a controller's Pod on this host.
fn process_of(pod: &str) -> String {
    let pid = find_pod_process("mc-controller", "POD_NAME", pod);
    pid.unwrap_or_else(|| panic!("no process of {pod}")).to_string()
}

fn restarts(pod: &str) -> String {
    let path = "jsonpath={.status.containerStatuses[0].restartCount}";
    EAST.kubectl(&["get", "pod", pod, "-n", "kube-system", "-o", path])
}

#[test]
fn of_two_replicas_one_is_active_and_the_other_takes_over() {
    let ns = Namespace::create("e2e-election");
    let _replicas = Replicas::two();
    let first = holder();
    // A terminated replica releases the Lease.
    EAST.kubectl(&["delete", "pod", &first, "-n", "kube-system", "--wait=false"]);
    let (second, took) = wait_for_another(&first, SHORT_TIMEOUT);
    println!("terminated: {second} took over after {took:?}");
    EAST.kubectl(&[
        "rollout",
        "status",
        DEPLOYMENT,
        "-n",
        "kube-system",
        "--timeout=120s",
    ]);

    // A stalled replica loses the Lease and exits once it continues.
    let stopped = PausedProcess::new(process_of(&second));
    let (third, took) = wait_for_another(&second, TAKEOVER_TIMEOUT);
    println!("stalled: {third} took over after {took:?}");
    ns.serve(WEST, "west-n2", 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    drop(stopped);
    EAST.wait_for(
        "the restart of the stalled replica",
        LONG_TIMEOUT,
        || match restarts(&second).as_str() {
            "0" => Err("no restart".to_owned()),
            _ => Ok(()),
        },
    );
    assert_eq!(holder(), third, "the stalled replica took the Lease back");
}
