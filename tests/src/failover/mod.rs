//! Gateway failures under numbered datagrams of many flows, shared by the suite `failover` and the benchmark.
//!
//! Both clusters have two gateways. Those of the western cluster fail while datagrams are sent from east to west.

mod flows;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mc_gateway_common::verdict::Event;
use serde::Deserialize;

pub use self::flows::{Checkpoint, FLOWS, Flows};
use crate::{
    counters::Counters,
    topology::{Cluster, Family, Fault, Options, Place, Topology, Variant},
    wait::wait_for,
};

/// Timeout for steps that take a second on a quiet machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The gateways that fail.
pub const VICTIMS: [Place; 2] = [Place::GatewayWest, Place::SecondGatewayWest];
/// The gateways that detect the failure: their next hops are the victims.
pub const OBSERVERS: [Place; 2] = [Place::GatewayEast, Place::SecondGatewayEast];
const FAULTS: [Fault; 2] = [Fault::LinkDown, Fault::Freeze];

/// Frequency of the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// The agent's default.
    Default,
    /// A probe each 30 ms.
    Fast,
}

impl Probing {
    fn flags(self) -> Vec<String> {
        match self {
            Self::Default => Vec::new(),
            Self::Fast => ["--probe-interval", "30ms"].map(str::to_owned).to_vec(),
        }
    }
}

/// Creates two clusters with two gateways each and running agents.
pub fn create_topology(prefix: &str, agent: PathBuf, probing: Probing) -> Result<Topology> {
    let mut options = Options::new(prefix, Some(agent))?;
    options.two_gateways = true;
    options.agent_flags = probing.flags();
    let mut bed = Topology::create(options)?;
    bed.configure(Variant::McGateway)?;
    Ok(bed)
}

/// The `gatewayIP` of a victim.
#[must_use]
pub fn gateway_addr(victim: Place) -> String {
    let [first, second] = Cluster::West.nets(Family::V4).gateway;
    let net = if victim == Place::GatewayWest {
        first
    } else {
        second
    };
    net.addr().to_string()
}

/// Liveness of a gateway in the log of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Probes are unanswered.
    Dead,
    /// Probes are answered, and the hold-down is over.
    Alive,
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dead => "dead",
            Self::Alive => "alive",
        })
    }
}

// === impl State ===

impl Liveness {
    /// Whether a log message reports this state.
    fn matches(self, message: &str) -> bool {
        message.starts_with(&format!("{self}:"))
    }
}

/// Transitions of a victim to a state, as logged by each observer.
pub fn transitions(bed: &mut Topology, victim: Place, state: Liveness) -> Result<[usize; 2]> {
    let victim = gateway_addr(victim);
    let mut counts = [0; 2];
    for (count, witness) in counts.iter_mut().zip(OBSERVERS) {
        let log = bed.agent_log(witness)?;
        let of_victim = parse_transitions(&log).filter(|(next_hop, _)| *next_hop == victim);
        *count = of_victim.filter(|(_, message)| state.matches(message)).count();
    }
    Ok(counts)
}

/// Waits until each observer has logged one transition more than `before`.
pub fn wait_transition(bed: &mut Topology, victim: Place, state: Liveness, before: [usize; 2]) -> Result<()> {
    let what = format!("{} {state} for all of {OBSERVERS:?}", victim.name());
    wait_for(&what, TIMEOUT, || {
        let now = transitions(bed, victim, state).map_err(|error| format!("{error:#}"))?;
        if now.iter().zip(before).all(|(now, before)| *now > before) {
            Ok(())
        } else {
            Err(format!("{before:?} transitions before, {now:?} now"))
        }
    })
}

/// Parses liveness transitions from an agent's log, in order: addresses and messages.
fn parse_transitions(log: &str) -> impl Iterator<Item = (&str, &str)> {
    log.lines().filter_map(|line| {
        let (_, message) = line.split_once("next hop ")?;
        let (next_hop, state) = message.split_once(' ')?;
        let is_state = ["alive:", "dead:", "answers again"]
            .iter()
            .any(|begin| state.starts_with(begin));
        is_state.then_some((next_hop, state))
    })
}

/// Waits until every node reports all next hops as alive: on a busy machine the first probes of a new agent may be
/// lost during neighbour resolution.
pub fn wait_all_alive(bed: &mut Topology) -> Result<()> {
    let nodes = bed.nodes();
    wait_alive(bed, &nodes)
}

/// [`wait_all_alive`] for some of the nodes.
pub fn wait_alive(bed: &mut Topology, nodes: &[Place]) -> Result<()> {
    wait_for("all next hops to be alive", TIMEOUT, || {
        for &place in nodes {
            let log = bed.agent_log(place).map_err(|error| format!("{error:#}"))?;
            let last: BTreeMap<_, _> = parse_transitions(&log).collect();
            if let Some((next_hop, state)) =
                last.iter().find(|(_, message)| !Liveness::Alive.matches(message))
            {
                return Err(format!("{}: next hop {next_hop} {state}", place.name()));
            }
        }
        Ok(())
    })
}

/// Waits until every node uses all its next hops, and all that it probes have answered. The log has no line yet of one
/// that is dead while its agent starts, or whose first probes are lost, and the previous release has other words in it.
pub fn wait_all_in_use(bed: &mut Topology) -> Result<()> {
    wait_all_alive(bed)?;
    wait_for("all next hops to be in use", TIMEOUT, || {
        for place in bed.nodes() {
            let next_hops = next_hops(bed, place).map_err(|error| format!("{error:#}"))?;
            if let Some(unused) = next_hops.iter().find(|next_hop| !next_hop.is_in_use()) {
                return Err(format!("{}: {unused:?}", place.name()));
            }
        }
        Ok(())
    })
}

/// A row of `inspect nexthops`.
#[derive(Debug, Deserialize)]
struct NextHop {
    #[expect(dead_code, reason = "part of failures")]
    address: String,
    state: String,
    rtt_us: Option<f64>,
}

impl NextHop {
    fn is_in_use(&self) -> bool {
        match self.state.as_str() {
            "unprobed" => true,
            "alive" => self.rtt_us.is_some(),
            _ => false,
        }
    }
}

/// A node's next hops, from its maps. The section is `members` in the previous release, and this one has that alias.
fn next_hops(bed: &Topology, place: Place) -> Result<Vec<NextHop>> {
    let out = bed.run_agent(place, &["inspect", "members", "-o", "json"])?;
    ensure!(
        out.status.success(),
        "inspect: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let mut tables: serde_json::Value = serde_json::from_slice(&out.stdout)?;
    let rows = ["nexthops", "members"].map(|name| tables.get_mut(name).map(serde_json::Value::take));
    let rows = rows.into_iter().flatten().next().context("next hops")?;
    Ok(serde_json::from_value(rows)?)
}

/// Occurrences of an event on a node.
pub fn event_count(bed: &Topology, place: Place, event: Event) -> Result<u64> {
    Ok(Counters::read(&bed.bpf_dir(place))?.events(event))
}

/// For each node the transitions to dead in its log, and the packets sent with all next hops dead.
pub fn death_counts(bed: &mut Topology) -> Result<Vec<(Place, usize, u64)>> {
    let mut deaths = Vec::new();
    for place in bed.nodes() {
        let log = bed.agent_log(place)?;
        let died = parse_transitions(&log)
            .filter(|(_, message)| Liveness::Dead.matches(message))
            .count();
        deaths.push((place, died, event_count(bed, place, Event::AllNextHopsDead)?));
    }
    Ok(deaths)
}

/// A series of gateway failures with alternating victims and faults.
#[derive(Debug)]
pub struct Trials {
    // Dropped first: it sends through the topology.
    flows: Flows,
    bed: Topology,
    completed: usize,
    moved: [Option<BTreeSet<usize>>; 2],
}

// === impl Trials ===

impl Trials {
    /// Creates the topology and starts the traffic.
    pub fn create(prefix: &str, agent: PathBuf, probing: Probing) -> Result<Self> {
        let bed = create_topology(prefix, agent, probing)?;
        Ok(Self {
            flows: Flows::start(&bed)?,
            bed,
            completed: 0,
            moved: [None, None],
        })
    }

    /// Runs one failure and repair and returns the outage of the victim's flows. Loss on other flows is an error, and
    /// so are affected flows that differ from those of the victim's previous failure.
    pub fn next_outage(&mut self) -> Result<Duration> {
        let (trial, which) = (self.completed, self.completed % VICTIMS.len());
        let victim = VICTIMS.get(which).copied().context("no such victim")?;
        let fault = FAULTS
            .get(trial / 2 % FAULTS.len())
            .copied()
            .context("no such fault")?;
        self.completed += 1;
        self.run_trial(which, victim, fault)
            .with_context(|| format!("trial {trial}, {fault:?} of {}", victim.name()))
    }

    fn run_trial(&mut self, which: usize, victim: Place, fault: Fault) -> Result<Duration> {
        let Self {
            flows, bed, moved, ..
        } = self;
        wait_all_alive(bed)?;
        let deaths = transitions(bed, victim, Liveness::Dead)?;
        let lives = transitions(bed, victim, Liveness::Alive)?;
        let before = flows.checkpoint();
        bed.inject_fault(victim, fault)?;
        wait_transition(bed, victim, Liveness::Dead, deaths)?;
        flows.wait_all_after(Instant::now(), "traffic to resume")?;
        let lost = flows.lost_since(&before);
        ensure!(!lost.is_empty(), "no flow was affected");
        let outage = flows.longest_gap_since(&before, &lost);
        let known = moved.get_mut(which).context("no such victim")?;
        let expected = known.get_or_insert_with(|| lost.clone());
        ensure!(
            lost == *expected,
            "affected flows {lost:?} differ from {expected:?} at the previous failure"
        );
        bed.clear_fault(victim, fault)?;
        wait_transition(bed, victim, Liveness::Alive, lives)?;
        flows.wait_all_after(Instant::now(), "traffic after the repair")?;
        Ok(outage)
    }

    /// The flows of each victim, once both have failed.
    #[must_use]
    pub fn flows_by_victim(&self) -> Option<[&BTreeSet<usize>; 2]> {
        let [first, second] = &self.moved;
        Some([first.as_ref()?, second.as_ref()?])
    }
}
