//! Verdicts on packets from another cluster while policies, identities and the agent change.

use std::{
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

use mc_tests::{
    counters::Counters,
    fixture::is_long_run,
    netns::Netns,
    process::Process,
    rng::Rng,
    topology::{Cluster, Place, Topology},
    traffic::FloodReport,
};

use crate::{
    identities::{BOTH, write_identities},
    policies::{enforcing, wait_dropped, wait_enforced, wait_passing, write_policy},
};

/// Pace of the changes: twenty each second.
const CHANGE_INTERVAL: Duration = Duration::from_millis(50);
/// Changes between two restarts of the agent.
const CHANGES_PER_AGENT: u32 = 30;
const PORT: u16 = 8080;
/// A port that no policy of these tests allows.
const CLOSED_PORT: u16 = 9090;
/// The server's Node.
pub(crate) const NODE: Place = Place::NodeWest;

/// The extent of each half of the test.
struct Extent {
    seconds: u64,
    /// Requests in a second, each over its own connection.
    requests: u64,
    /// Seconds between two requests.
    interval: &'static str,
}

/// Fewer connections in a second of a long run: each keeps a port of the client for a minute.
fn extent() -> Extent {
    if is_long_run() {
        Extent {
            seconds: 300,
            requests: 90,
            interval: "0.01",
        }
    } else {
        Extent {
            seconds: 5,
            requests: 500,
            interval: "0.001",
        }
    }
}

/// One of many policies that allow port 8080 to clients and nothing else.
fn variant(rng: &mut Rng) -> String {
    let mut rules = String::new();
    for _ in 0..rng.below(40) {
        let port = rng.range(1, 8_000);
        let filler = match rng.index(3) {
            0 => format!("{{action: Drop, ports: [{{protocol: TCP, port: {port}}}]}}"),
            1 => format!(
                "{{action: Allow, from: [{{scope: ClusterSet, podSelector: {{matchLabels: {{app: {}}}}}}}], ports: \
                 [{{protocol: UDP, port: {port}}}]}}",
                rng.pick(&["client", "server", "other"])
            ),
            _ => format!(
                "{{action: Drop, from: [{{ipBlock: {{cidr: 192.0.2.{}/32}}}}]}}",
                rng.below(256)
            ),
        };
        writeln!(rules, "  - {filler}").expect("a line");
    }
    let first = PORT - u16::try_from(rng.below(100)).expect("a port");
    let client = *rng.pick(&[
        "podSelector: {matchLabels: {app: client}}",
        "namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: In, values: [client]}]}",
    ]);
    format!(
        "{rules}  - action: Allow\n    from: [{{scope: ClusterSet, {client}}}]\n    \
         ports: [{{protocol: TCP, port: {first}, endPort: {PORT}}}]\n  - action: Drop\n"
    )
}

/// Changes policies and identities, and restarts the agent, for as long as `traffic` runs; returns the changes and
/// restarts.
fn churn(bed: &mut Topology, rng: &mut Rng, traffic: &mut Process) -> (u32, u32) {
    let (mut changes, mut restarts) = (0, 0);
    while traffic.is_running() {
        let next = Instant::now() + CHANGE_INTERVAL;
        if rng.one_in(4) {
            let exporters: &&str = rng.pick(&["[east]", "[west]", BOTH]);
            write_identities(bed, exporters);
        } else {
            write_policy(bed, Cluster::West, &variant(rng));
        }
        changes += 1;
        if changes % CHANGES_PER_AGENT == 0 {
            // Changes reach the maps, and not only the files.
            bed.wait_agent_updated(NODE, 2).expect("changes");
            bed.stop_agent(NODE).expect("SIGTERM");
            bed.start_agent(NODE).expect("an agent");
            restarts += 1;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    (changes, restarts)
}

/// Packets that policies have dropped at the server's Node since its maps exist, for any reason.
pub(crate) fn dropped_by_policies(bed: &Topology) -> u64 {
    let counters = Counters::read(&bed.bpf_dir(NODE)).expect("counters");
    let reasons = ["policy", "policy-pod", "identity-unknown", "identity-forged"];
    let counts = reasons.map(|reason| counters.drops.get(reason).copied().unwrap_or_default());
    counts.iter().sum()
}

/// A receiver of datagrams to the server's closed port.
pub(crate) struct ClosedPort {
    sink: Process,
    seconds: u64,
}

impl ClosedPort {
    /// Listens for longer than floods of that many seconds.
    pub(crate) fn listen(bed: &Topology, seconds: u64) -> Self {
        let (port, silence) = (CLOSED_PORT.to_string(), (seconds + 10).to_string());
        let args = ["udp-sink", "--port", &port, "--timeout", &silence];
        let sink = bed.traffic().serve(bed.netns(Place::PodWest), &args);
        Self {
            sink: sink.expect("a receiver"),
            seconds,
        }
    }

    /// Starts a flood of datagrams to the port.
    pub(crate) fn flood(&self, bed: &Topology, from: &Netns) -> Process {
        let address = format!("{}:{CLOSED_PORT}", Cluster::West.pod_ip());
        let args = ["udp-flood", &address, "--duration", &self.seconds.to_string()];
        bed.traffic().spawn(from, &args).expect("a sender")
    }

    /// Waits for the receiver's end; no datagram must have arrived.
    pub(crate) fn assert_nothing_arrived(mut self) {
        let report = self.sink.finish(Duration::from_secs(2 * self.seconds + 20));
        let report = report.expect("a report");
        let report = report.lines().next_back().expect("a report");
        let report: FloodReport = serde_json::from_str(report).expect("JSON");
        assert_eq!(report, FloodReport::default(), "datagrams to a closed port");
    }
}

#[test]
fn no_verdict_is_wrong_while_policies_identities_and_the_agent_change() {
    let (mut bed, _server) = enforcing("policy-churn");
    let mut rng = Rng::new(18);
    write_policy(&bed, Cluster::West, &variant(&mut rng));
    let to = Cluster::West.pod_ip();
    let Extent {
        seconds,
        requests,
        interval,
    } = extent();

    // No packet of an allowed connection is dropped.
    let url = format!("http://{to}:{PORT}/");
    let requests = (seconds * requests).to_string();
    let args = ["get", "--count", &requests, "--interval", interval, &url];
    wait_passing(&bed, "a client");
    wait_enforced(&bed);
    let before = dropped_by_policies(&bed);
    let mut client = bed
        .traffic()
        .spawn(bed.netns(Place::PodEast), &args)
        .expect("a client");
    let (changes, restarts) = churn(&mut bed, &mut rng, &mut client);
    client
        .finish(Duration::from_secs(seconds))
        .expect("every request has an answer");
    println!("{requests} requests, {changes} changes, {restarts} restarts");
    assert_eq!(
        dropped_by_policies(&bed),
        before,
        "packets of allowed connections"
    );
    assert!(restarts > 0 && changes > CHANGES_PER_AGENT);

    // No packet to a closed port passes.
    let closed = ClosedPort::listen(&bed, seconds);
    let mut flood = closed.flood(&bed, bed.netns(Place::PodEast));
    let (changes, restarts) = churn(&mut bed, &mut rng, &mut flood);
    let dropped = dropped_by_policies(&bed) - before;
    println!("{dropped} datagrams dropped, {changes} changes, {restarts} restarts");
    closed.assert_nothing_arrived();
    assert!(
        dropped > 100_000 && restarts > 0,
        "{dropped} dropped, {restarts} restarts"
    );

    // The agent follows to the end.
    write_policy(&bed, Cluster::West, "  - action: Drop\n");
    wait_dropped(&bed, "policy", "everything");
}
