//! Gateways that die and come back under numbered datagrams of many flows, and how long these were lost. The
//! suite `failover` and the benchmark share it.
//!
//! Both clusters have two gateways; those of the western one fail, while datagrams go from east to west.

mod flows;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mc_gateway_common::verdict::Event;

pub use self::flows::{FLOWS, Flows, Mark};
use crate::{
    counters::Counters,
    topology::{Cluster, Family, Fault, Options, Place, Topology, Variant},
    wait::wait_for,
};

/// How long something that takes a second may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);
/// The gateways that fail.
pub const VICTIMS: [Place; 2] = [Place::GatewayWest, Place::SecondGatewayWest];
/// Those that notice: they send to the victims over the network between the clusters.
pub const WITNESSES: [Place; 2] = [Place::GatewayEast, Place::SecondGatewayEast];
const FAULTS: [Fault; 2] = [Fault::LinkDown, Fault::Freeze];

/// Two clusters with two gateways each, agents running.
pub fn bed(prefix: &str, agent: PathBuf) -> Result<Topology> {
    // What a run that was killed has left.
    Topology::remove(prefix)?;
    let mut options = Options::new(prefix, Some(agent))?;
    options.two_gateways = true;
    let mut bed = Topology::create(options)?;
    bed.configure(Variant::McGateway)?;
    Ok(bed)
}

/// The address the other cluster knows a victim by.
#[must_use]
pub fn outside(victim: Place) -> String {
    let [first, second] = Cluster::West.nets(Family::V4).gateway;
    let net = if victim == Place::GatewayWest {
        first
    } else {
        second
    };
    net.addr().to_string()
}

/// What became of a gateway, as an agent logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its probes are not answered any more.
    Dead,
    /// They are again, and long enough.
    Alive,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dead => "dead",
            Self::Alive => "alive",
        })
    }
}

// === impl State ===

impl State {
    /// Whether an agent has told this of a member.
    fn is(self, told: &str) -> bool {
        told.starts_with(&format!("{self}:"))
    }
}

/// How often each witness has seen a victim become so.
pub fn seen(bed: &mut Topology, victim: Place, state: State) -> Result<[usize; 2]> {
    let victim = outside(victim);
    let mut counts = [0; 2];
    for (count, witness) in counts.iter_mut().zip(WITNESSES) {
        let log = bed.agent_log(witness)?;
        let of_victim = told(&log).filter(|(member, _)| *member == victim);
        *count = of_victim.filter(|(_, told)| state.is(told)).count();
    }
    Ok(counts)
}

/// Waits until each witness has seen it once more than `before`.
pub fn wait_seen(bed: &mut Topology, victim: Place, state: State, before: [usize; 2]) -> Result<()> {
    let what = format!("{} {state} for all of {WITNESSES:?}", victim.name());
    wait_for(&what, SOON, || {
        let now = seen(bed, victim, state).map_err(|error| format!("{error:#}"))?;
        if now.iter().zip(before).all(|(now, before)| *now > before) {
            Ok(())
        } else {
            Err(format!("{before:?} times, then {now:?}"))
        }
    })
}

/// What an agent's log tells of members, in order: their addresses and what became of them.
fn told(log: &str) -> impl Iterator<Item = (&str, &str)> {
    log.lines().filter_map(|line| {
        let (_, told) = line.split_once("member ")?;
        let (member, state) = told.split_once(' ')?;
        let is_state = ["alive:", "dead:", "answers again"]
            .iter()
            .any(|begin| state.starts_with(begin));
        is_state.then_some((member, state))
    })
}

/// Waits until no node holds a member dead or down: an agent that starts on a busy machine may miss its first
/// answers, as long as a neighbour is unknown.
pub fn wait_settled(bed: &mut Topology) -> Result<()> {
    wait_for("all members alive for everybody", SOON, || {
        for place in bed.nodes() {
            let log = bed.agent_log(place).map_err(|error| format!("{error:#}"))?;
            let last: BTreeMap<_, _> = told(&log).collect();
            if let Some((member, state)) = last.iter().find(|(_, told)| !State::Alive.is(told)) {
                return Err(format!("{}: member {member} {state}", place.name()));
            }
        }
        Ok(())
    })
}

/// How often the programs of a node have counted an event.
pub fn events(bed: &Topology, place: Place, event: Event) -> Result<u64> {
    Ok(Counters::read(&bed.bpf_dir(place))?.events(event))
}

/// How often each node has taken a member for dead, and how many packets it has counted with all members dead.
pub fn deaths(bed: &mut Topology) -> Result<Vec<(Place, usize, u64)>> {
    let mut deaths = Vec::new();
    for place in bed.nodes() {
        let log = bed.agent_log(place)?;
        let died = told(&log).filter(|(_, told)| State::Dead.is(told)).count();
        deaths.push((place, died, events(bed, place, Event::AllMembersDead)?));
    }
    Ok(deaths)
}

/// Gateways lost one after the other: every other one in turn, in every other way in turn.
#[derive(Debug)]
pub struct Trials {
    // Ends first: it sends through the bed.
    flows: Flows,
    bed: Topology,
    done: usize,
    moved: [Option<BTreeSet<usize>>; 2],
}

// === impl Trials ===

impl Trials {
    /// Sets the bed up and starts the datagrams.
    pub fn create(prefix: &str, agent: PathBuf) -> Result<Self> {
        let bed = bed(prefix, agent)?;
        Ok(Self {
            flows: Flows::start(&bed)?,
            bed,
            done: 0,
            moved: [None, None],
        })
    }

    /// Loses a gateway, and gets it back: how long packets of its flows were lost. It is an error if others
    /// lost any, or if they are other flows than when it was lost before.
    pub fn next_outage(&mut self) -> Result<Duration> {
        let (trial, which) = (self.done, self.done % VICTIMS.len());
        let victim = VICTIMS.get(which).copied().context("a victim")?;
        let fault = FAULTS.get(trial / 2 % FAULTS.len()).copied().context("a fault")?;
        self.done += 1;
        self.lose(which, victim, fault)
            .with_context(|| format!("trial {trial}, {fault:?} of {}", victim.name()))
    }

    fn lose(&mut self, which: usize, victim: Place, fault: Fault) -> Result<Duration> {
        let Self {
            flows, bed, moved, ..
        } = self;
        wait_settled(bed)?;
        let deaths = seen(bed, victim, State::Dead)?;
        let lives = seen(bed, victim, State::Alive)?;
        let before = flows.mark();
        bed.break_gateway(victim, fault)?;
        wait_seen(bed, victim, State::Dead, deaths)?;
        flows.wait_all_after(Instant::now(), "traffic resumes")?;
        let lost = flows.lost_since(&before);
        ensure!(!lost.is_empty(), "it carried no flow");
        let outage = flows.longest_gap_since(&before, &lost);
        let known = moved.get_mut(which).context("a victim")?;
        let expected = known.get_or_insert_with(|| lost.clone());
        ensure!(
            lost == *expected,
            "flows {lost:?} were hit, {expected:?} when it was lost before"
        );
        bed.heal_gateway(victim, fault)?;
        wait_seen(bed, victim, State::Alive, lives)?;
        flows.wait_all_after(Instant::now(), "traffic after it came back")?;
        Ok(outage)
    }

    /// The flows each victim has, once each was lost.
    #[must_use]
    pub fn moved(&self) -> Option<[&BTreeSet<usize>; 2]> {
        let [first, second] = &self.moved;
        Some([first.as_ref()?, second.as_ref()?])
    }
}
