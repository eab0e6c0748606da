//! Liveness and path-MTU probes to next hops.
//!
//! The eBPF programs receive the replies and decide which next hops are alive. This side sends, on its own thread so
//! that a reconcile never delays a probe, and reads the results.
//! *Guarantees*: a sequence number is written to `mc_probe_sent` before its probe is sent, whether or not the send
//! succeeds; a next hop that is new, or that an earlier agent left alive, counts as dead only after probes of this
//! agent went unanswered.

mod encap;
mod maps;
mod pmtu;
mod schedule;
mod socket;
mod status;
mod targets;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use mc_gateway_common::abi::liveness::ProbeSent;
use mc_gateway_common::liveness::State;
use mc_gateway_common::nexthop_select::mix;
use mc_gateway_common::packet::probe::{Kind, Probe};
use tokio::sync::watch;
use tracing::warn;

use crate::maps::MapsError;
pub(crate) use maps::ProbeMaps;
use pmtu::{PathState, PmtuSearch, confirm_interval};
use schedule::{Replies, Schedule};
use socket::{SizeSocket, Sockets};
pub use status::{NextHopStatus, ProbeStatus};
use targets::ProbeTarget;
pub(crate) use targets::{ProbeTargets, probe_targets};

/// Timing of the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Least time between two probes to a next hop; with many next hops the time is longer.
    pub interval: Duration,
    /// Probes in a row that may go unanswered; 0 turns liveness off.
    pub detect: u32,
    /// Time that a recovered next hop must reply before it is used again.
    pub hold_down: Duration,
}

impl Settings {
    /// [`Self::hold_down`] in milliseconds, the unit of the maps.
    #[must_use]
    pub fn hold_down_ms(&self) -> u32 {
        u32::try_from(self.hold_down.as_millis()).unwrap_or(u32::MAX)
    }

    /// Milliseconds for which a test packet that came through a tunnel device counts: five probe intervals. Replies to
    /// probes become test packets.
    #[must_use]
    pub fn decap_test_ms(&self) -> u32 {
        u32::try_from(self.interval.saturating_mul(5).as_millis()).unwrap_or(u32::MAX)
    }
}

/// Handle of the prober thread; the thread ends when it is dropped.
pub(crate) struct Prober {
    targets: Sender<ProbeTargets>,
    last: Option<ProbeTargets>,
    settings: Settings,
    status: watch::Receiver<ProbeStatus>,
}

impl Prober {
    /// Starts the thread, without targets.
    pub(crate) fn start(maps: ProbeMaps, settings: Settings) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let (publish, status) = watch::channel(ProbeStatus::default());
        let worker = Worker::new(maps, settings, publish);
        std::thread::Builder::new()
            .name("prober".to_owned())
            .spawn(move || worker.run(&receiver))?;
        Ok(Self {
            targets: sender,
            last: None,
            settings,
            status,
        })
    }

    /// Replaces the targets.
    pub(crate) fn set_targets(&mut self, wanted: ProbeTargets) {
        if self.last.as_ref() == Some(&wanted) {
            return;
        }
        if self.targets.send(wanted.clone()).is_err() {
            warn!("prober thread exited; liveness is no longer updated: restart the agent");
        }
        self.last = Some(wanted);
    }

    /// Time between two probes to each next hop that answers.
    pub(crate) fn interval(&self) -> Duration {
        let next_hops = self.last.as_ref().map_or(0, |targets| targets.by_slot.len());
        schedule::stretched(self.settings.interval, next_hops)
    }

    /// The latest status; a change is signalled when a state or a path MTU changes.
    pub(crate) fn status(&self) -> watch::Receiver<ProbeStatus> {
        self.status.clone()
    }
}

struct ProbedNextHop {
    target: ProbeTarget,
    sequence: u32,
    search: PmtuSearch,
    last_pmtu_reply: u32,
    /// Open while a reply to a size probe is missing.
    size_socket: Option<SizeSocket>,
}

struct Worker {
    maps: ProbeMaps,
    settings: Settings,
    publish: watch::Sender<ProbeStatus>,
    schedule: Schedule,
    sockets: Sockets,
    targets: Option<ProbeTargets>,
    next_hops: BTreeMap<u32, ProbedNextHop>,
    /// The slot whose results were read last.
    last_read: u32,
    start: Instant,
    random: u32,
    failed: bool,
}

impl Worker {
    fn new(maps: ProbeMaps, settings: Settings, publish: watch::Sender<ProbeStatus>) -> Self {
        Self {
            maps,
            settings,
            publish,
            schedule: Schedule::new(settings.interval),
            sockets: Sockets::default(),
            targets: None,
            next_hops: BTreeMap::new(),
            last_read: 0,
            start: Instant::now(),
            random: seed(),
            failed: false,
        }
    }

    fn run(mut self, wanted: &Receiver<ProbeTargets>) {
        let mut look = Duration::ZERO;
        loop {
            let now = self.start.elapsed();
            let due = self.schedule.next_due().map_or(look, |due| due.min(look));
            match wanted.recv_timeout(due.saturating_sub(now)) {
                Ok(wanted) => {
                    let result = self.set_targets(wanted);
                    self.log_failure(result);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.start.elapsed();
            let maps = &self.maps;
            // Without a reading the next hop is probed.
            let replies = |slot| {
                maps.read(slot)
                    .map_or(Replies::NONE, |(sent, seen)| Replies::new(sent, seen))
            };
            let due = self
                .schedule
                .pop_due(now, replies, || next_random(&mut self.random));
            for slot in due {
                let result = self.send_probe(slot);
                self.log_failure(result);
            }
            if now >= look {
                let slots = self.next_to_read();
                let result = self.read_results(&slots, now);
                self.log_failure(result);
                look = now.saturating_add(self.settings.interval);
            }
        }
    }

    /// Logs the first of several consecutive failures.
    fn log_failure(&mut self, result: Result<(), MapsError>) {
        match result {
            Err(error) if !self.failed => {
                warn!(error = %crate::error_chain(&error), "cannot access the liveness maps; no probes are sent");
                self.failed = true;
            }
            Err(_) => {}
            Ok(()) => self.failed = false,
        }
    }

    fn set_targets(&mut self, wanted: ProbeTargets) -> Result<(), MapsError> {
        let now = self.start.elapsed();
        let first = self.targets.is_none();
        let gone: Vec<u32> = self
            .next_hops
            .iter()
            .filter(|(slot, next_hop)| {
                let new = wanted.by_slot.get(slot);
                new.is_none_or(|new| new.id != next_hop.target.id)
            })
            .map(|(slot, _)| *slot)
            .collect();
        for slot in gone {
            self.next_hops.remove(&slot);
            self.schedule.remove(slot);
            self.maps.set_sent(slot, ProbeSent::default())?;
        }
        if first {
            self.maps
                .reset_except(|slot| wanted.by_slot.contains_key(&slot))?;
        }
        let mut added = Vec::new();
        for (slot, target) in &wanted.by_slot {
            if let Some(next_hop) = self.next_hops.get_mut(slot) {
                next_hop.target = *target;
                if next_hop.search.link_mtu() != target.link_mtu {
                    next_hop.search = PmtuSearch::new(target.link_mtu, target.link_mtu, now, self.random);
                }
                continue;
            }
            self.random = mix(self.random, *slot);
            let sequence = self
                .maps
                .resume_or_reset(*slot, target.id, self.settings.detect, self.random)?;
            let next_hop = ProbedNextHop {
                target: *target,
                sequence,
                search: PmtuSearch::new(target.link_mtu, target.known_mtu, now, mix(self.random, 2)),
                last_pmtu_reply: 0,
                size_socket: None,
            };
            self.next_hops.insert(*slot, next_hop);
            added.push(*slot);
        }
        self.schedule.add(&added, now, || next_random(&mut self.random));
        self.sockets.configure(wanted.udp_checksum);
        self.targets = Some(wanted);
        let all: Vec<u32> = self.next_hops.keys().copied().collect();
        self.read_results(&all, now)
    }

    /// Sends the next probe to a next hop. An error of the network is an unanswered probe.
    fn send_probe(&mut self, slot: u32) -> Result<(), MapsError> {
        let (Some(next_hop), Some(wanted)) = (self.next_hops.get_mut(&slot), &self.targets) else {
            return Ok(());
        };
        next_hop.sequence = next_hop.sequence.wrapping_add(1);
        let sent = ProbeSent {
            id: next_hop.target.id,
            sequence: next_hop.sequence,
        };
        self.maps.set_sent(slot, sent)?;
        let probe = Probe {
            kind: Kind::Request,
            size: 0,
            slot,
            id: next_hop.target.id,
            sequence: next_hop.sequence,
            sent_at: socket::monotonic_ns(),
        };
        let target = next_hop.target;
        let payload = wanted
            .encap
            .encode(&probe, target.source_mac.bytes(), target.addr.is_ipv6());
        self.sockets
            .send(&payload, target.local, (target.addr, wanted.port));
        Ok(())
    }

    /// The slots whose results are read next, in turn.
    fn next_to_read(&mut self) -> Vec<u32> {
        let after = self.next_hops.range(self.last_read.saturating_add(1)..);
        let slots = after.chain(self.next_hops.range(..=self.last_read));
        let slots: Vec<u32> = slots.map(|(slot, _)| *slot).take(self.schedule.share()).collect();
        self.last_read = slots.last().copied().unwrap_or_default();
        slots
    }

    /// Reads the results of some slots, sends path-MTU probes to them and publishes the status.
    fn read_results(&mut self, slots: &[u32], now: Duration) -> Result<(), MapsError> {
        let Some(wanted) = &self.targets else {
            return Ok(());
        };
        let mut results = BTreeMap::new();
        let confirm_interval = confirm_interval(self.next_hops.len());
        for slot in slots {
            let Some(next_hop) = self.next_hops.get_mut(slot) else {
                continue;
            };
            let target = next_hop.target;
            let mut known = self.maps.read(*slot)?;
            if known.1.id != target.id {
                // The programs record no reply of another next hop, so that this one would stay dead.
                warn!(next_hop = %target.addr, "replies to probes changed by another program: a new sequence begins");
                self.random = mix(self.random, *slot);
                next_hop.sequence =
                    self.maps
                        .resume_or_reset(*slot, target.id, self.settings.detect, self.random)?;
                known = self.maps.read(*slot)?;
            }
            let (_, seen) = known;
            if seen.size_sequence != next_hop.last_pmtu_reply {
                next_hop.last_pmtu_reply = seen.size_sequence;
                next_hop.search.acknowledge(seen.size_sequence, seen.size, now);
            }
            if !next_hop.search.is_waiting() {
                next_hop.size_socket = None;
            } else if next_hop.size_socket.as_ref().is_some_and(SizeSocket::is_too_big) {
                next_hop.search.hint(now);
            }
            let one = NextHopStatus::new(
                target.id,
                target.addr,
                known,
                self.settings.detect,
                next_hop.search.path_mtu(),
            );
            let answers = one.state != State::Dead && one.unanswered <= 1 && one.rtt.is_some();
            let path = PathState {
                alive: answers,
                rtt: one.rtt.unwrap_or_default(),
                confirm_interval,
            };
            if let Some(size) = next_hop.search.next_probe(now, path) {
                let probe = Probe {
                    kind: Kind::SizeRequest,
                    size: u16::try_from(size.size).unwrap_or(u16::MAX),
                    slot: *slot,
                    id: target.id,
                    sequence: size.sequence,
                    sent_at: socket::monotonic_ns(),
                };
                let payload = wanted
                    .encap
                    .encode(&probe, target.source_mac.bytes(), target.addr.is_ipv6());
                let to = (target.addr, wanted.port);
                if next_hop.size_socket.is_none() {
                    next_hop.size_socket = self.sockets.connect(target.local, to);
                }
                match &next_hop.size_socket {
                    Some(socket) => socket.send(&payload),
                    None => self.sockets.send(&payload, target.local, to),
                }
            }
            results.insert(*slot, one);
        }
        let next_hops = &self.next_hops;
        self.publish
            .send_if_modified(|published| published.update(results, |slot| next_hops.contains_key(&slot)));
        Ok(())
    }
}

/// The next number of a sequence.
fn next_random(random: &mut u32) -> u32 {
    *random = mix(*random, 1);
    *random
}

/// A random number: sequence numbers and jitter of different agents must differ.
fn seed() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).unwrap_or(1)
}
