//! Killed API servers, a partitioned member, and a leader whose etcd is restored from an older snapshot.
//!
//! During an outage no import is removed and traffic flows; afterwards all clusters converge to the current objects.

mod bound_tokens;
mod leader_relocation;
mod member_token;
mod new_leader;
mod rollout;
mod version_skew;

use std::{
    env,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use mc_tests::{fixture::is_long_run, skip::skipped};
use serde_json::{Value, json};

use crate::{
    clusters::{
        Cluster, EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, MEMBER_NAMESPACE, SET, SHORT_TIMEOUT, WEST,
        on_node,
    },
    mcs,
    workload::{Client, Namespace, RequestStream},
};

const WEST_ID: &str = "test-cluster-west";
/// Longer than a controller runs without its Lease (10 s), shorter than the Node grace period (50 s).
const OUTAGE: Duration = Duration::from_secs(12);
/// The leader reports a member as disconnected 30 s after its last heartbeat. The member stops writing up to 15 s after
/// its API server, and a leader that restarts meanwhile counts the 30 s from then.
const DISCONNECTED_TIMEOUT: Duration = Duration::from_mins(2);
/// A stale member is removed at the earliest one minute after detection.
const REMOVAL_TIMEOUT: Duration = Duration::from_mins(4);
/// Poll interval of invariants.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Machines of the partitioned member: Nodes and control plane.
const PARTITIONED: [&str; 3] = ["west-cp", "west-n1", "west-n2"];
/// Address range of the leader cluster.
const LEADER_RANGE: &str = "172.30.1.0/24";

fn try_xtask(args: &[&str]) -> Result<(), String> {
    let program = env::var_os("MC_XTASK").expect("MC_XTASK: run `cargo xtask test --suite e2e`");
    run(Command::new(program).arg("cluster").args(args))
}

fn xtask(args: &[&str]) {
    try_xtask(args).unwrap_or_else(|error| panic!("cluster {args:?}: {error}"));
}

/// Runs a command; `Err` is its standard error.
fn run(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|error| error.to_string())?;
    if out.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// A killed API server, restarted on drop.
struct KilledApiServer {
    cluster: Cluster,
    program: String,
}

impl KilledApiServer {
    fn kill(cluster: Cluster) -> Self {
        let program = format!("{}-cp/kube-apiserver", cluster.0);
        xtask(&["kill", &program]);
        Self { cluster, program }
    }
}

impl Drop for KilledApiServer {
    fn drop(&mut self) {
        // No second panic.
        if let Err(error) = try_xtask(&["start", &self.program]) {
            println!("{}: {error}", self.program);
        }
        if !thread::panicking() {
            wait_api_server(self.cluster);
        }
    }
}

fn wait_api_server(cluster: Cluster) {
    cluster.wait_for("an answer of the API server", LONG_TIMEOUT, || {
        cluster.try_kubectl(&["get", "--raw=/readyz"])
    });
}

/// A partition between west and the leader, healed on drop.
struct Partition;

impl Partition {
    fn west() -> Self {
        let rules = format!(
            "table inet mc_fault {{ \
             chain in {{ type filter hook input priority -300; ip saddr {LEADER_RANGE} drop; }}; \
             chain out {{ type filter hook output priority -300; ip daddr {LEADER_RANGE} drop; }}; \
             chain on {{ type filter hook forward priority -300; ip saddr {LEADER_RANGE} drop; ip daddr {LEADER_RANGE} drop; }}; }}"
        );
        let partition = Self;
        for machine in PARTITIONED {
            on_node(machine, "nft", &[&rules]);
        }
        partition
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        for machine in PARTITIONED {
            let namespace = format!("mc-{machine}");
            let delete = ["nft", "delete", "table", "inet", "mc_fault"];
            let deleted = run(Command::new("ip")
                .args(["netns", "exec", &namespace])
                .args(delete));
            if let Err(error) = deleted {
                println!("{machine}: {error}");
            }
        }
    }
}

fn ready_condition(conditions: &Value) -> String {
    let all = conditions.as_array().cloned().unwrap_or_default();
    let ready = all
        .iter()
        .find(|c| c["type"] == "Ready")
        .cloned()
        .unwrap_or_default();
    let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    format!("{} {}", text("status"), text("reason"))
}

/// West's or east's own Ready condition: status and reason.
pub(crate) fn member_condition(member: Cluster) -> String {
    let set = member.get(MEMBER_NAMESPACE, "clusterset", SET);
    ready_condition(&set.unwrap_or_default()["status"]["conditions"])
}

/// The leader's condition of west.
fn leader_condition() -> String {
    let set = LEADER
        .get(LEADER_NAMESPACE, "clusterset", SET)
        .unwrap_or_default();
    let all = set["status"]["clusterStatuses"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let west = all.iter().find(|one| one["clusterID"] == WEST_ID).cloned();
    ready_condition(&west.unwrap_or_default()["conditions"])
}

fn wait_condition(what: &str, deadline: Duration, wanted: &str, reply: impl Fn() -> String) -> Duration {
    let start = Instant::now();
    LEADER.wait_for(&format!("{what} is {wanted}"), deadline, || {
        let reply = reply();
        if reply == wanted { Ok(()) } else { Err(reply) }
    });
    start.elapsed()
}

/// Waits until the leader reports west as disconnected.
fn wait_disconnected_at_leader() {
    LEADER.wait_for("west is disconnected", DISCONNECTED_TIMEOUT, || {
        let condition = leader_condition();
        if condition == "False Disconnected" {
            return Ok(());
        }
        // The time of the last heartbeat, and since when the leader's controller runs.
        let read = |args: &[&str]| LEADER.try_kubectl(args).unwrap_or_else(|error| error);
        let namespace = ["-n", LEADER_NAMESPACE, "-o", "yaml"];
        let announce = read(&[&["get", "memberclusterannounces"], &namespace[..]].concat());
        let lease = read(&[&["get", "lease", "mc-controller-leader"], &namespace[..]].concat());
        Err(format!("{condition}\n{announce}\n{lease}"))
    });
}

/// Waits until all members are connected, in their own view and the leader's.
fn wait_all_connected() {
    for member in [EAST, WEST] {
        wait_condition(member.0, LONG_TIMEOUT, "True Connected", || {
            member_condition(member)
        });
    }
    wait_condition(
        "west at the leader",
        LONG_TIMEOUT,
        "True Connected",
        leader_condition,
    );
}

fn one_port() -> Value {
    json!({ "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] })
}

/// Exports a Service whose endpoint receives no requests.
fn export(ns: &Namespace, cluster: Cluster) {
    let address = if cluster == EAST {
        "10.12.2.250"
    } else {
        "10.13.2.250"
    };
    mcs::serve(ns, cluster, &one_port(), address);
    mcs::export(ns, cluster, &json!({}));
}

/// UID of the imported Service, which changes if it is created again.
fn import_uid(ns: &Namespace, cluster: Cluster) -> String {
    let service = cluster.get(ns.0, "service", "antrea-mc-web").unwrap_or_default();
    service["metadata"]["uid"].as_str().unwrap_or("gone").to_owned()
}

/// Servers in west, and a client in east that sends requests continuously through the import.
struct TrafficFlow {
    ns: Namespace,
    stream: RequestStream,
    import: String,
}

impl TrafficFlow {
    fn start(name: &'static str) -> Self {
        let ns = Namespace::create(name);
        ns.serve(WEST, "west-n2", 1);
        let client: Client = ns.client(EAST, "east-n2");
        ns.export(WEST);
        ns.wait_imported(EAST, 1);
        let url = client.imported_url();
        client.get(&url);
        Self {
            stream: client.stream(&url),
            import: import_uid(&ns, EAST),
            ns,
        }
    }

    /// Fails unless the import is unchanged and every request so far was answered.
    fn assert_undisturbed(&mut self) {
        assert_eq!(import_uid(&self.ns, EAST), self.import);
        self.stream.assert_running();
    }

    /// Checks this for a period.
    fn assert_undisturbed_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.assert_undisturbed();
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn finish(self) {
        assert_eq!(import_uid(&self.ns, EAST), self.import);
        self.stream.finish();
        self.ns.unexport(WEST);
        EAST.wait_gone(self.ns.0, "service", "antrea-mc-web", LONG_TIMEOUT);
    }
}

/// Withdraws an export and waits until its import is removed.
fn withdraw(ns: &Namespace, from: Cluster) {
    ns.unexport(from);
    let other = if from == EAST { WEST } else { EAST };
    other.wait_gone(ns.0, "service", "antrea-mc-web", LONG_TIMEOUT);
}

#[test]
fn members_keep_working_while_the_leaders_api_server_is_down() {
    let mut flow = TrafficFlow::start("e2e-leader-away");
    let late = Namespace::create("e2e-leader-away-late");
    let killed = KilledApiServer::kill(LEADER);
    export(&late, EAST);
    for member in [EAST, WEST] {
        wait_condition(member.0, SHORT_TIMEOUT, "False Disconnected", || {
            member_condition(member)
        });
    }
    flow.assert_undisturbed_for(OUTAGE);
    drop(killed);
    let back = Instant::now();
    late.wait_imported(WEST, 1);
    println!(
        "faults: leader back, the export arrived after {:?}",
        back.elapsed()
    );
    wait_all_connected();
    withdraw(&late, EAST);
    flow.finish();
}

#[test]
fn other_members_keep_working_while_one_members_api_server_is_down() {
    let mut flow = TrafficFlow::start("e2e-member-away");
    let late = Namespace::create("e2e-member-away-late");
    let killed = KilledApiServer::kill(WEST);
    export(&late, EAST);
    wait_disconnected_at_leader();
    flow.assert_undisturbed();
    drop(killed);
    let back = Instant::now();
    late.wait_imported(WEST, 1);
    println!(
        "faults: member back, the export arrived after {:?}",
        back.elapsed()
    );
    wait_all_connected();
    withdraw(&late, EAST);
    flow.finish();
}

#[test]
fn a_partitioned_member_converges_after_healing() {
    let mut flow = TrafficFlow::start("e2e-cut-off");
    let [gone, fresh, late] =
        ["e2e-cut-off-gone", "e2e-cut-off-fresh", "e2e-cut-off-late"].map(Namespace::create);
    export(&gone, WEST);
    gone.wait_imported(EAST, 1);
    let partition = Partition::west();
    gone.unexport(WEST);
    export(&fresh, WEST);
    export(&late, EAST);
    wait_disconnected_at_leader();
    wait_condition("west", SHORT_TIMEOUT, "False Disconnected", || {
        member_condition(WEST)
    });
    flow.assert_undisturbed();
    assert_ne!(import_uid(&gone, EAST), "gone", "a partition removes nothing");
    assert_eq!(import_uid(&fresh, EAST), "gone");
    assert_eq!(import_uid(&late, WEST), "gone");
    drop(partition);
    let healed = Instant::now();
    fresh.wait_imported(EAST, 1);
    late.wait_imported(WEST, 1);
    EAST.wait_gone(gone.0, "service", "antrea-mc-web", LONG_TIMEOUT);
    println!("faults: healed, all changes arrived after {:?}", healed.elapsed());
    wait_all_connected();
    withdraw(&fresh, WEST);
    withdraw(&late, EAST);
    flow.finish();
}

#[test]
fn a_leader_restored_from_an_older_snapshot_converges() {
    let mut flow = TrafficFlow::start("e2e-snapshot");
    let [gone, after] = ["e2e-snapshot-gone", "e2e-snapshot-after"].map(Namespace::create);
    export(&gone, EAST);
    gone.wait_imported(WEST, 1);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("snapshot").display().to_string();
    xtask(&["snapshot", LEADER.0, &file]);
    withdraw(&gone, EAST);
    export(&after, EAST);
    after.wait_imported(WEST, 1);
    let import = import_uid(&after, WEST);
    xtask(&["restore", LEADER.0, &file]);
    wait_api_server(LEADER);
    let back = Instant::now();
    flow.assert_undisturbed();
    let known = |export: &str| {
        LEADER
            .try_kubectl(&[
                "get",
                "resourceexport",
                export,
                "-n",
                LEADER_NAMESPACE,
                "-o",
                "name",
            ])
            .map(drop)
    };
    LEADER.wait_for("the export created after the snapshot", LONG_TIMEOUT, || {
        known("test-cluster-east-e2e-snapshot-after-web-service")
    });
    LEADER.wait_for(
        "the removal of the withdrawn export",
        LONG_TIMEOUT,
        || match known("test-cluster-east-e2e-snapshot-gone-web-service") {
            Ok(()) => Err("it exists".to_owned()),
            Err(_) => Ok(()),
        },
    );
    println!(
        "faults: restored, the leader converged after {:?}",
        back.elapsed()
    );
    wait_all_connected();
    after.wait_imported(WEST, 1);
    WEST.wait_gone(gone.0, "service", "antrea-mc-web", LONG_TIMEOUT);
    assert_eq!(import_uid(&after, WEST), import, "the import was created again");
    withdraw(&after, EAST);
    flow.finish();
}

/// West without its `ClusterSet`, re-created on drop.
struct DepartedMember {
    set: Value,
}

impl DepartedMember {
    fn west() -> Self {
        let set = WEST.member_cluster_set();
        WEST.kubectl(&["delete", "clusterset", SET, "-n", MEMBER_NAMESPACE]);
        Self { set }
    }
}

impl Drop for DepartedMember {
    fn drop(&mut self) {
        if let Err(error) = WEST.try_kubectl_stdin(&["apply", "-f", "-"], &self.set.to_string()) {
            println!("west is not a member again: {error}");
        }
    }
}

#[test]
fn a_member_that_left_during_a_leader_outage_deregisters_after_a_restart() {
    let ns = Namespace::create("e2e-leaves");
    export(&ns, WEST);
    ns.wait_imported(EAST, 1);
    let killed = KilledApiServer::kill(LEADER);
    let departed = DepartedMember::west();
    // After the grace period: west has gateways.
    WEST.wait_gone(ns.0, "service", "antrea-mc-web", LONG_TIMEOUT);
    WEST.restart_controller(MEMBER_NAMESPACE);
    assert_ne!(import_uid(&ns, EAST), "gone", "the departure is not known yet");
    drop(killed);
    let back = Instant::now();
    let announce = format!("member-announce-from-{WEST_ID}");
    LEADER.wait_gone(LEADER_NAMESPACE, "memberclusterannounce", &announce, LONG_TIMEOUT);
    EAST.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
    println!(
        "faults: leader back, the departure was known after {:?}",
        back.elapsed()
    );
    WEST.wait_gone(
        MEMBER_NAMESPACE,
        "configmap",
        "mc-gateway-memberships",
        SHORT_TIMEOUT,
    );
    drop(departed);
    wait_all_connected();
    for (cluster, other) in [(EAST, "west"), (WEST, "east")] {
        let info = format!("test-cluster-{other}-clusterinfo");
        cluster.wait_for("the other's ClusterInfoImport", LONG_TIMEOUT, || {
            cluster.try_kubectl(&["get", "clusterinfoimport", &info, "-n", MEMBER_NAMESPACE])
        });
    }
    ns.wait_imported(EAST, 1);
    withdraw(&ns, WEST);
}

/// Policy `Remove` with the shortest timeout; the default again on drop.
struct StalePolicy;

impl StalePolicy {
    fn remove() -> Self {
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberTimeout", "1m");
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberPolicy", "Remove");
        Self
    }
}

impl Drop for StalePolicy {
    fn drop(&mut self) {
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberPolicy", "Keep");
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberTimeout", "24h");
    }
}

#[test]
fn a_silent_member_is_removed_under_policy_remove_and_rejoins() {
    if !is_long_run() {
        skipped("the removal of a silent member takes minutes (`cargo xtask test --long`)");
        return;
    }
    let ns = Namespace::create("e2e-silent");
    export(&ns, WEST);
    ns.wait_imported(EAST, 1);
    let policy = StalePolicy::remove();
    let partition = Partition::west();
    let start = Instant::now();
    let announce = format!("member-announce-from-{WEST_ID}");
    LEADER.wait_gone(
        LEADER_NAMESPACE,
        "memberclusterannounce",
        &announce,
        REMOVAL_TIMEOUT,
    );
    assert!(start.elapsed() > Duration::from_mins(1), "{:?}", start.elapsed());
    EAST.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
    println!("faults: silent member removed after {:?}", start.elapsed());
    drop(partition);
    ns.wait_imported(EAST, 1);
    drop(policy);
    wait_all_connected();
    withdraw(&ns, WEST);
}
