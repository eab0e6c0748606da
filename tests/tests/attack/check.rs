//! Sends vectors one by one and compares counters and captures with the right answers.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Result;
use mc_gateway_common::verdict::Outcome;
use mc_tests::{
    counters::Counters,
    fixture::TIMEOUT,
    topology::{Family, Place},
    wait::wait_for,
};
use serde_json::Value;

use crate::{
    bed::{Bed, Way, contains},
    tap::Tap,
    vector::{ATTACK, CONTROL, Entry, Expected, Send, Vector},
};

/// Copies of each packet: the counter rises by exactly this number.
pub(crate) const COPIES: usize = 3;

/// Every reason of the agent's nftables table.
const RULES: [&str; 3] = ["tunnel-guard", "not-exported", "not-for-nodes"];

/// Devices on which no attack may appear, except on those on the way of the vector.
const WATCHED: [(Place, &str); 6] = [
    (Place::PodEast, "eth0"),
    (Place::PodWest, "eth0"),
    (Place::NodeWest, "eth0"),
    (Place::NodeWest, "mc0"),
    (Place::GatewayWest, "mc0"),
    (Place::GatewayEast, "eth0"),
];

/// Drops by node and reason, and packets delivered on any node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    drops: BTreeMap<(Place, &'static str), u64>,
    delivered: u64,
}

/// Packets that a node has forwarded. Those of the XDP program are in no capture of the device.
fn transit(bed: &Bed, place: Place) -> u64 {
    let counters = Counters::read(&bed.topology.bpf_dir(place));
    counters.expect("counters").packets(Outcome::Transit)
}

impl Counts {
    fn read(bed: &Bed) -> Result<Self> {
        let mut counts = Self::default();
        for place in bed.topology.nodes() {
            let counters = Counters::read(&bed.topology.bpf_dir(place))?;
            counts.delivered += counters.packets(Outcome::Deliver);
            for (reason, number) in counters.drops {
                counts.drops.insert((place, reason), number);
            }
        }
        Ok(counts)
    }

    /// The change since `before`, without counters that are the same.
    fn since(&self, before: &Self) -> Self {
        let mut drops = self.drops.clone();
        for (key, number) in &mut drops {
            *number -= before.drops.get(key).copied().unwrap_or_default();
        }
        drops.retain(|_, number| *number != 0);
        Self {
            drops,
            delivered: self.delivered - before.delivered,
        }
    }
}

impl Counts {
    /// Adds the drops of west's second gateway to those of its first: the hash of a Pod's flow selects one.
    fn join_gateways(&mut self) {
        let second = Place::SecondGatewayWest;
        let drops = std::mem::take(&mut self.drops);
        for ((place, reason), number) in drops {
            let place = if place == second {
                Place::GatewayWest
            } else {
                place
            };
            *self.drops.entry((place, reason)).or_default() += number;
        }
    }
}

/// Taps and counters between two vectors.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    bed: &'a Bed,
    entries: BTreeMap<Entry, Tap>,
    watched: Vec<((Place, &'static str), Tap)>,
    /// Sum of packets that nftables rules must have dropped.
    ruled: BTreeMap<(Place, &'static str), u64>,
    before: Counts,
}

impl<'a> Checker<'a> {
    /// Opens the taps.
    pub(crate) fn new(bed: &'a Bed) -> Self {
        let open = |(place, device)| Tap::open(bed.topology.netns(place), device).expect("a tap");
        let checker = Self {
            bed,
            entries: Entry::ALL
                .into_iter()
                .map(|entry| (entry, open(entry.victim())))
                .collect(),
            watched: WATCHED.into_iter().map(|at| (at, open(at))).collect(),
            ruled: BTreeMap::new(),
            before: Counts::read(bed).expect("counters"),
        };
        for (place, rules) in checker.ruled() {
            assert!(rules.values().all(|number| *number == 0), "{place:?}: {rules:?}");
        }
        checker
    }

    /// Sends the genuine packet of a place and waits for its arrival. Frames sent before are processed then: all are
    /// sent by one CPU, whose backlog keeps their order.
    pub(crate) fn control(&self, entry: Entry, inner: Family) -> Result<Vec<Vec<u8>>, String> {
        let frame = self.bed.addressed(entry, self.bed.control(entry, inner));
        self.bed.inject(entry, &[frame]);
        let (mut seen, tap) = (Vec::new(), self.tap(entry.destination()));
        let failed = |error: anyhow::Error| format!("{}: {error:#}", entry.name());
        let deadline = Instant::now() + TIMEOUT;
        loop {
            seen.extend(tap.frames().map_err(failed)?);
            if seen.iter().any(|frame| contains(frame, CONTROL)) {
                return Ok(seen);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let frames = seen.len();
                return Err(format!(
                    "{}: no control packet among {frames} frames",
                    entry.name()
                ));
            }
            tap.wait(left).map_err(failed)?;
        }
    }

    fn tap(&self, pod: Place) -> &Tap {
        let found = self.watched.iter().find(|((place, _), _)| *place == pod);
        &found.expect("a watched Pod").1
    }

    /// Sends a vector and returns differences from the right answer.
    pub(crate) fn check(&mut self, vector: &Vector) -> Vec<String> {
        let mut wrong = Vec::new();
        let inner = if vector.name.ends_with("(IPv6)") {
            Family::V6
        } else {
            Family::V4
        };
        self.drain();
        let (victim, _) = vector.entry.victim();
        let forwarded = transit(self.bed, victim);
        let rules = matches!(vector.expected, Expected::Rule(_)).then(|| nft_counts(self.bed, vector.at));
        let frames = self.bed.send(vector.entry, &vector.send, COPIES);
        let mut seen = match self.control(vector.entry, inner) {
            Ok(frames) => BTreeMap::from([((vector.entry.destination(), "eth0"), frames)]),
            Err(error) => return vec![error],
        };
        wrong.extend(self.missing_at_entry(vector, &frames, forwarded));
        wrong.extend(self.check_counts(vector));
        if let (Some(before), Expected::Rule(reason)) = (rules, vector.expected) {
            let after = nft_counts(self.bed, vector.at);
            let copies = u64::try_from(COPIES).expect("few");
            *self.ruled.entry((vector.at, reason)).or_default() += copies;
            let rose: BTreeMap<_, _> = RULES.map(|rule| (rule, after[rule] - before[rule])).into();
            let right = RULES
                .map(|rule| (rule, if rule == reason { copies } else { 0 }))
                .into();
            if rose != right {
                wrong.push(format!(
                    "rules of {}: {rose:?} instead of {right:?}",
                    vector.at.name()
                ));
            }
        }
        for ((place, device), tap) in &self.watched {
            let frames = seen.entry((*place, *device)).or_default();
            frames.extend(tap.frames().expect("frames"));
            let leaked = frames.iter().filter(|frame| contains(frame, ATTACK)).count();
            if leaked > 0 && !on_the_way(vector, (*place, *device)) {
                wrong.push(format!("{leaked} frames at {}", tap.name));
            }
        }
        wrong.extend(self.check_listeners(vector));
        wrong.extend(check_gap(vector, &seen));
        wrong
    }

    /// Discards what earlier packets have left.
    pub(crate) fn drain(&self) {
        for tap in self
            .entries
            .values()
            .chain(self.watched.iter().map(|(_, tap)| tap))
        {
            tap.frames().expect("frames");
        }
        for socket in self.bed.listeners.values() {
            while socket.recv(&mut [0; 1]).is_ok() {}
        }
    }

    /// Whether every copy has reached the device of the victim, which had forwarded a number of packets before.
    fn missing_at_entry(&self, vector: &Vector, sent: &[Vec<u8>], forwarded: u64) -> Option<String> {
        if matches!(vector.send, Send::Datagram { .. }) {
            return None;
        }
        let seen = self.entries[&vector.entry].frames().expect("frames");
        let arrived = seen
            .iter()
            .filter(|frame| sent.iter().any(|sent| is_same(frame, sent)))
            .count();
        let mut expected = sent.len() * COPIES;
        if self.bed.way == Way::Xdp {
            let (victim, _) = vector.entry.victim();
            let forwarded = transit(self.bed, victim) - forwarded;
            expected -= usize::try_from(forwarded)
                .expect("few")
                .min(expected.saturating_sub(arrived));
        }
        (arrived != expected).then(|| format!("{arrived} of {expected} frames reached the victim's device"))
    }

    /// Compares counters with the right answer, after a wait for programs that still run.
    fn check_counts(&mut self, vector: &Vector) -> Option<String> {
        let copies = u64::try_from(COPIES).expect("few");
        let mut right = Counts {
            // The control packet.
            delivered: 1,
            ..Counts::default()
        };
        match vector.expected {
            Expected::Drop(reason) => {
                right.drops.insert((vector.at, reason.name()), copies);
            }
            Expected::Policed(reason) => {
                right.drops.insert((vector.at, reason.name()), copies);
                right.delivered += copies;
            }
            // The rule applies behind delivery.
            Expected::Rule("not-for-nodes") | Expected::Gap => right.delivered += copies,
            Expected::Rule(_) | Expected::Listener | Expected::Stack => {}
        }
        let mut last = Counts::default();
        let result = wait_for("the counters", COUNTER_TIMEOUT, || {
            last = Counts::read(self.bed).map_err(|error| format!("{error:#}"))?;
            let mut rose = last.since(&self.before);
            if vector.entry == Entry::Pod {
                rose.join_gateways();
            }
            if rose == right {
                Ok(())
            } else {
                Err(format!("counters rose by {rose:?} instead of {right:?}"))
            }
        });
        self.before = last;
        result.err().map(|error| format!("{error:#}"))
    }

    /// Compares the datagrams of the listeners with the right answer.
    fn check_listeners(&self, vector: &Vector) -> Vec<String> {
        let received = |socket: &std::net::UdpSocket| {
            let mut buffer = [0; 2048];
            let mut count = 0;
            while let Ok(len) = socket.recv(&mut buffer) {
                count += usize::from(contains(&buffer[..len], ATTACK));
            }
            count
        };
        let mut wrong = Vec::new();
        for (place, socket) in &self.bed.listeners {
            let expects = vector.expected == Expected::Listener && *place == vector.at;
            let (right, count) = (if expects { COPIES } else { 0 }, received(socket));
            if count != right {
                wrong.push(format!(
                    "{count} of {right} datagrams at the listener of {}",
                    place.name()
                ));
            }
        }
        wrong
    }

    /// Packets that the rules have dropped beyond those of the vectors.
    pub(crate) fn check_rules(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (place, rules) in self.ruled() {
            for (rule, number) in rules {
                let right = self.ruled.get(&(place, rule)).copied().unwrap_or_default();
                if number != right {
                    wrong.push(format!(
                        "{}: {number} packets in {rule} instead of {right}",
                        place.name()
                    ));
                }
            }
        }
        wrong
    }

    fn ruled(&self) -> Vec<(Place, BTreeMap<&'static str, u64>)> {
        let nodes = self.bed.topology.nodes();
        nodes
            .into_iter()
            .map(|place| (place, nft_counts(self.bed, place)))
            .collect()
    }
}

/// A known gap must be one: a vector that no longer arrives needs its right answer.
fn check_gap(vector: &Vector, seen: &BTreeMap<(Place, &str), Vec<Vec<u8>>>) -> Option<String> {
    let frames = &seen[&(vector.entry.destination(), "eth0")];
    let arrived = frames.iter().filter(|frame| contains(frame, ATTACK)).count();
    let missing = vector.expected == Expected::Gap && arrived != COPIES;
    missing.then(|| format!("{arrived} of {COPIES} packets through a known gap"))
}

/// Time for a program on another CPU to count.
const COUNTER_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a frame is the sent one; the kernel removes a VLAN tag before packet sockets receive the frame.
fn is_same(seen: &[u8], sent: &[u8]) -> bool {
    seen == sent || sent.len() > 16 && sent[..12] == seen[..12] && sent[16..] == seen[12..]
}

/// Whether the vector passes a device before the node that must drop it.
fn on_the_way(vector: &Vector, at: (Place, &str)) -> bool {
    if at == vector.entry.victim() {
        return true;
    }
    if vector.expected == Expected::Gap {
        return true;
    }
    match (vector.entry, at) {
        (Entry::Pod, (Place::PodEast, _)) | (Entry::Node, (Place::NodeWest, "eth0")) => true,
        (Entry::Pod, (Place::GatewayEast, "eth0")) => vector.at != Place::NodeEast,
        // Rules and policies apply behind delivery on `mc0`.
        (_, (place, "mc0")) => {
            matches!(vector.expected, Expected::Rule(_) | Expected::Policed(_)) && place == vector.at
        }
        (Entry::Node, (Place::GatewayEast, "eth0")) => vector.at == Place::NodeEast,
        (_, (Place::NodeWest, "eth0")) => vector.at == Place::NodeWest,
        _ => false,
    }
}

/// Packets counted by the rules of a node's nftables table, by reason.
fn nft_counts(bed: &Bed, place: Place) -> BTreeMap<&'static str, u64> {
    let list = ["-j", "list", "table", "inet", "mc_gateway"];
    let text = bed.topology.netns(place).run("nft", list).expect("the table");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let items = json["nftables"].as_array().expect("items");
    let sum = |reason: &str| {
        let rules = items.iter().filter(|item| item["rule"]["comment"] == reason);
        let statements = rules.flat_map(|item| item["rule"]["expr"].as_array().expect("statements"));
        statements
            .filter_map(|statement| statement["counter"]["packets"].as_u64())
            .sum()
    };
    RULES.map(|reason| (reason, sum(reason))).into()
}
