//! API servers that are killed, a member that is cut off, and a leader whose etcd comes back from an older snapshot.
//!
//! While something is away nothing that was imported goes, and traffic flows; afterwards everything is as everybody wants
//! it by then, and the clusters are as they were before.

mod moved;
mod rollout;

use std::{
    env,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    clusters::{Cluster, EAST, LATER, LEADER, SOON, WEST, on_node},
    mcs,
    workload::{Client, Namespace, Stream},
};

const LEADER_NAMESPACE: &str = "antrea-multicluster";
const MEMBER_NAMESPACE: &str = "kube-system";
const SET: &str = "test-clusterset";
const WEST_ID: &str = "test-cluster-west";
/// Longer than a controller works on without its Lease (10 s), shorter than Nodes may be silent (50 s).
const AWAY: Duration = Duration::from_secs(12);
/// A member is not ready 30 s after its last heartbeat.
const SILENT: Duration = Duration::from_mins(1);
/// A silent member is removed a minute after the leader has noticed, at the shortest.
const REMOVED: Duration = Duration::from_mins(4);
/// Between two looks at what must not change.
const LOOK: Duration = Duration::from_millis(100);
/// The nodes of the member that is cut off, and its control plane.
const CUT_OFF: [&str; 3] = ["west-cp", "west-n1", "west-n2"];
/// Every address of the leader cluster.
const LEADER_RANGE: &str = "172.30.1.0/24";

fn try_xtask(args: &[&str]) -> Result<(), String> {
    let program = env::var_os("MC_XTASK").expect("MC_XTASK: run `cargo xtask test --suite e2e`");
    said(Command::new(program).arg("cluster").args(args))
}

fn xtask(args: &[&str]) {
    try_xtask(args).unwrap_or_else(|error| panic!("cluster {args:?}: {error}"));
}

/// Runs a command; `Err` is what it said.
fn said(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|error| error.to_string())?;
    if out.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// An API server that was killed; started again at the end, whatever happened.
struct Killed {
    cluster: Cluster,
    program: String,
}

impl Killed {
    fn api_server(cluster: Cluster) -> Self {
        let program = format!("{}-cp/kube-apiserver", cluster.0);
        xtask(&["kill", &program]);
        Self { cluster, program }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // A test that fails fails once.
        if let Err(error) = try_xtask(&["start", &self.program]) {
            println!("{}: {error}", self.program);
        }
        if !thread::panicking() {
            answers(self.cluster);
        }
    }
}

fn answers(cluster: Cluster) {
    cluster.wait_for("an answer of the API server", LATER, || {
        cluster.try_kubectl(&["get", "--raw=/readyz"])
    });
}

/// West without the leader, until the end, whatever happens.
struct Cut;

impl Cut {
    fn west() -> Self {
        let rules = format!(
            "table inet mc_fault {{ \
             chain in {{ type filter hook input priority -300; ip saddr {LEADER_RANGE} drop; }}; \
             chain out {{ type filter hook output priority -300; ip daddr {LEADER_RANGE} drop; }}; \
             chain on {{ type filter hook forward priority -300; ip saddr {LEADER_RANGE} drop; ip daddr {LEADER_RANGE} drop; }}; }}"
        );
        let cut = Self;
        for machine in CUT_OFF {
            on_node(machine, "nft", &[&rules]);
        }
        cut
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        for machine in CUT_OFF {
            let namespace = format!("mc-{machine}");
            let delete = ["nft", "delete", "table", "inet", "mc_fault"];
            let deleted = said(
                Command::new("ip")
                    .args(["netns", "exec", &namespace])
                    .args(delete),
            );
            if let Err(error) = deleted {
                println!("{machine}: {error}");
            }
        }
    }
}

fn condition(conditions: &Value) -> String {
    let all = conditions.as_array().cloned().unwrap_or_default();
    let ready = all
        .iter()
        .find(|c| c["type"] == "Ready")
        .cloned()
        .unwrap_or_default();
    let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    format!("{} {}", text("status"), text("reason"))
}

/// What a member says of itself.
fn own(member: Cluster) -> String {
    let set = member.get(MEMBER_NAMESPACE, "clusterset", SET);
    condition(&set.unwrap_or_default()["status"]["conditions"])
}

/// What the leader says of west.
fn leaders() -> String {
    let set = LEADER
        .get(LEADER_NAMESPACE, "clusterset", SET)
        .unwrap_or_default();
    let all = set["status"]["clusterStatuses"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let west = all.iter().find(|one| one["clusterID"] == WEST_ID).cloned();
    condition(&west.unwrap_or_default()["conditions"])
}

fn wait_said(what: &str, deadline: Duration, wanted: &str, said: impl Fn() -> String) -> Duration {
    let start = Instant::now();
    LEADER.wait_for(&format!("{what} is {wanted}"), deadline, || {
        let said = said();
        if said == wanted { Ok(()) } else { Err(said) }
    });
    start.elapsed()
}

/// Waits until everybody says that all is well.
fn all_is_well() {
    for member in [EAST, WEST] {
        wait_said(member.0, LATER, "True Connected", || own(member));
    }
    wait_said("west at the leader", LATER, "True Connected", leaders);
}

fn one_port() -> Value {
    json!({ "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] })
}

/// Makes and exports a Service whose endpoint nobody asks.
fn export(ns: &Namespace, cluster: Cluster) {
    let address = if cluster == EAST {
        "10.12.2.250"
    } else {
        "10.13.2.250"
    };
    mcs::serve(ns, cluster, &one_port(), address);
    mcs::export(ns, cluster, &json!({}));
}

/// Which Service the import is: another one of the same name would have another address.
fn imported(ns: &Namespace, cluster: Cluster) -> String {
    let service = cluster.get(ns.0, "service", "antrea-mc-web").unwrap_or_default();
    service["metadata"]["uid"].as_str().unwrap_or("gone").to_owned()
}

/// West's servers and a client in east that asks them all the time, by the import.
struct Flow {
    ns: Namespace,
    stream: Stream,
    import: String,
}

impl Flow {
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
            import: imported(&ns, EAST),
            ns,
        }
    }

    /// Fails unless the import is the same as ever and every request was answered so far.
    fn assert_undisturbed(&mut self) {
        assert_eq!(imported(&self.ns, EAST), self.import);
        self.stream.assert_running();
    }

    /// The same all the time.
    fn assert_undisturbed_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.assert_undisturbed();
            thread::sleep(LOOK);
        }
    }

    fn finish(self) {
        assert_eq!(imported(&self.ns, EAST), self.import);
        self.stream.finish();
        self.ns.unexport(WEST);
        EAST.wait_gone(self.ns.0, "service", "antrea-mc-web", LATER);
    }
}

/// Takes an export back and waits until nobody has it.
fn withdraw(ns: &Namespace, from: Cluster) {
    ns.unexport(from);
    let other = if from == EAST { WEST } else { EAST };
    other.wait_gone(ns.0, "service", "antrea-mc-web", LATER);
}

#[test]
fn members_go_on_while_the_leaders_api_server_is_away() {
    let mut flow = Flow::start("e2e-leader-away");
    let late = Namespace::create("e2e-leader-away-late");
    let killed = Killed::api_server(LEADER);
    export(&late, EAST);
    for member in [EAST, WEST] {
        wait_said(member.0, SOON, "False Disconnected", || own(member));
    }
    flow.assert_undisturbed_for(AWAY);
    drop(killed);
    let back = Instant::now();
    late.wait_imported(WEST, 1);
    println!(
        "faults: leader back, the export arrived after {:?}",
        back.elapsed()
    );
    all_is_well();
    withdraw(&late, EAST);
    flow.finish();
}

#[test]
fn others_go_on_while_a_members_api_server_is_away() {
    let mut flow = Flow::start("e2e-member-away");
    let late = Namespace::create("e2e-member-away-late");
    let killed = Killed::api_server(WEST);
    export(&late, EAST);
    wait_said("west at the leader", SILENT, "False Disconnected", leaders);
    flow.assert_undisturbed();
    drop(killed);
    let back = Instant::now();
    late.wait_imported(WEST, 1);
    println!(
        "faults: member back, the export arrived after {:?}",
        back.elapsed()
    );
    all_is_well();
    withdraw(&late, EAST);
    flow.finish();
}

#[test]
fn a_member_that_was_cut_off_and_the_others_agree_afterwards() {
    let mut flow = Flow::start("e2e-cut-off");
    let [gone, fresh, late] =
        ["e2e-cut-off-gone", "e2e-cut-off-fresh", "e2e-cut-off-late"].map(Namespace::create);
    export(&gone, WEST);
    gone.wait_imported(EAST, 1);
    let cut = Cut::west();
    gone.unexport(WEST);
    export(&fresh, WEST);
    export(&late, EAST);
    wait_said("west at the leader", SILENT, "False Disconnected", leaders);
    wait_said("west", SOON, "False Disconnected", || own(WEST));
    flow.assert_undisturbed();
    assert_ne!(imported(&gone, EAST), "gone", "silence removes nothing");
    assert_eq!(imported(&fresh, EAST), "gone");
    assert_eq!(imported(&late, WEST), "gone");
    drop(cut);
    let healed = Instant::now();
    fresh.wait_imported(EAST, 1);
    late.wait_imported(WEST, 1);
    EAST.wait_gone(gone.0, "service", "antrea-mc-web", LATER);
    println!("faults: healed, all changes arrived after {:?}", healed.elapsed());
    all_is_well();
    withdraw(&fresh, WEST);
    withdraw(&late, EAST);
    flow.finish();
}

#[test]
fn a_leader_from_an_older_snapshot_learns_what_came_after_it() {
    let mut flow = Flow::start("e2e-snapshot");
    let [gone, after] = ["e2e-snapshot-gone", "e2e-snapshot-after"].map(Namespace::create);
    export(&gone, EAST);
    gone.wait_imported(WEST, 1);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("snapshot").display().to_string();
    xtask(&["snapshot", LEADER.0, &file]);
    withdraw(&gone, EAST);
    export(&after, EAST);
    after.wait_imported(WEST, 1);
    let import = imported(&after, WEST);
    xtask(&["restore", LEADER.0, &file]);
    answers(LEADER);
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
    LEADER.wait_for("the export that came after", LATER, || {
        known("test-cluster-east-e2e-snapshot-after-web-service")
    });
    LEADER.wait_for(
        "the end of the export that had been taken back",
        LATER,
        || match known("test-cluster-east-e2e-snapshot-gone-web-service") {
            Ok(()) => Err("it is there".to_owned()),
            Err(_) => Ok(()),
        },
    );
    println!("faults: restored, the leader knew all after {:?}", back.elapsed());
    all_is_well();
    after.wait_imported(WEST, 1);
    WEST.wait_gone(gone.0, "service", "antrea-mc-web", LATER);
    assert_eq!(imported(&after, WEST), import, "the import stayed meanwhile");
    withdraw(&after, EAST);
    flow.finish();
}

/// West without its `ClusterSet`, until the end, whatever happens.
struct Left {
    set: Value,
}

impl Left {
    fn west() -> Self {
        let seen = WEST
            .get(MEMBER_NAMESPACE, "clusterset", SET)
            .expect("west is a member");
        let set = json!({
            "apiVersion": seen["apiVersion"],
            "kind": "ClusterSet",
            "metadata": { "name": SET, "namespace": MEMBER_NAMESPACE },
            "spec": seen["spec"],
        });
        WEST.kubectl(&["delete", "clusterset", SET, "-n", MEMBER_NAMESPACE]);
        Self { set }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Err(error) = WEST.try_kubectl_with(&["apply", "-f", "-"], &self.set.to_string()) {
            println!("west is not a member again: {error}");
        }
    }
}

#[test]
fn a_member_that_left_while_the_leader_was_away_says_so_by_its_next_controller() {
    let ns = Namespace::create("e2e-leaves");
    export(&ns, WEST);
    ns.wait_imported(EAST, 1);
    let killed = Killed::api_server(LEADER);
    let left = Left::west();
    WEST.wait_gone(ns.0, "service", "antrea-mc-web", SOON);
    WEST.restart_controller(MEMBER_NAMESPACE);
    assert_ne!(imported(&ns, EAST), "gone", "nobody has heard of it");
    drop(killed);
    let back = Instant::now();
    let announce = format!("member-announce-from-{WEST_ID}");
    LEADER.wait_gone(LEADER_NAMESPACE, "memberclusterannounce", &announce, LATER);
    EAST.wait_gone(ns.0, "service", "antrea-mc-web", SOON);
    println!(
        "faults: leader back, it knew who had left after {:?}",
        back.elapsed()
    );
    WEST.wait_gone(MEMBER_NAMESPACE, "configmap", "mc-gateway-memberships", SOON);
    drop(left);
    all_is_well();
    for (cluster, other) in [(EAST, "west"), (WEST, "east")] {
        let info = format!("test-cluster-{other}-clusterinfo");
        cluster.wait_for("the network of the other", LATER, || {
            cluster.try_kubectl(&["get", "clusterinfoimport", &info, "-n", MEMBER_NAMESPACE])
        });
    }
    ns.wait_imported(EAST, 1);
    withdraw(&ns, WEST);
}

/// Keeps a member that falls silent, as ever.
struct Policy;

impl Policy {
    fn remove() -> Self {
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberTimeout", "1m");
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberPolicy", "Remove");
        Self
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberPolicy", "Keep");
        LEADER.configure_in(LEADER_NAMESPACE, "staleMemberTimeout", "24h");
    }
}

#[test]
fn a_silent_member_is_removed_where_an_administrator_said_so_and_comes_back() {
    if env::var_os("MC_LONG").is_none_or(|long| long != "1") {
        println!("left out: takes minutes (`cargo xtask test --long`)");
        return;
    }
    let ns = Namespace::create("e2e-silent");
    export(&ns, WEST);
    ns.wait_imported(EAST, 1);
    let policy = Policy::remove();
    let cut = Cut::west();
    let start = Instant::now();
    let announce = format!("member-announce-from-{WEST_ID}");
    LEADER.wait_gone(LEADER_NAMESPACE, "memberclusterannounce", &announce, REMOVED);
    assert!(start.elapsed() > Duration::from_mins(1), "{:?}", start.elapsed());
    EAST.wait_gone(ns.0, "service", "antrea-mc-web", SOON);
    println!("faults: silent member removed after {:?}", start.elapsed());
    drop(cut);
    ns.wait_imported(EAST, 1);
    drop(policy);
    all_is_well();
    withdraw(&ns, WEST);
}
