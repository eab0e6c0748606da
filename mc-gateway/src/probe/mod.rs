//! Asks members whether they are alive and how large packets their path carries.
//!
//! The answers are taken by the eBPF program, which also decides who is alive. This side only sends, on a
//! thread of its own so that a round of the agent never delays a probe, and reads what came of it.
//! *Guarantees*: a number is written to `mc_sent` before its probe is sent, whether sending works or not;
//! a member that is new, or that an earlier agent left alive, counts as dead only after probes of this
//! agent went unanswered.

mod frame;
mod maps;
mod pmtu;
mod schedule;
mod socket;
mod status;
mod wanted;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use mc_gateway_common::abi::health::Sent;
use mc_gateway_common::liveness::State;
use mc_gateway_common::packet::probe::{Kind, Probe};
use mc_gateway_common::select::mix;
use tokio::sync::watch;
use tracing::warn;

use crate::tables::TablesError;
pub(crate) use maps::Maps;
use pmtu::Search;
use schedule::Schedule;
use socket::Sockets;
pub use status::{MemberStatus, Status};
use wanted::Asked;
pub(crate) use wanted::{Wanted, limit, links, wanted};

/// How members are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two probes to a member.
    pub interval: Duration,
    /// Probes in a row that may go unanswered; 0 turns liveness off.
    pub detect: u32,
    /// How long a member that comes back has to answer before it is used again.
    pub hold_down: Duration,
}

impl Settings {
    /// [`Self::hold_down`] as the maps hold it.
    #[must_use]
    pub fn hold_down_ms(&self) -> u32 {
        u32::try_from(self.hold_down.as_millis()).unwrap_or(u32::MAX)
    }
}

/// The agent's hold on the thread that asks; dropping it ends the thread.
pub(crate) struct Prober {
    wanted: Sender<Wanted>,
    last: Option<Wanted>,
    status: watch::Receiver<Status>,
}

impl Prober {
    /// Starts the thread, which asks nobody yet.
    pub(crate) fn start(maps: Maps, settings: Settings) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let (publish, status) = watch::channel(Status::default());
        let worker = Worker::new(maps, settings, publish);
        std::thread::Builder::new()
            .name("prober".to_owned())
            .spawn(move || worker.run(&receiver))?;
        Ok(Self {
            wanted: sender,
            last: None,
            status,
        })
    }

    /// Asks these members from now on.
    pub(crate) fn set(&mut self, wanted: Wanted) {
        if self.last.as_ref() == Some(&wanted) {
            return;
        }
        if self.wanted.send(wanted.clone()).is_err() {
            warn!("nobody asks members whether they are alive any more: restart the agent");
        }
        self.last = Some(wanted);
    }

    /// What is known of the members; a change is announced when a state or a path's size changed.
    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}

struct Member {
    asked: Asked,
    sequence: u32,
    search: Search,
    size_seen: u32,
}

struct Worker {
    maps: Maps,
    settings: Settings,
    publish: watch::Sender<Status>,
    schedule: Schedule,
    sockets: Sockets,
    wanted: Option<Wanted>,
    members: BTreeMap<u32, Member>,
    start: Instant,
    random: u32,
    failed: bool,
}

impl Worker {
    fn new(maps: Maps, settings: Settings, publish: watch::Sender<Status>) -> Self {
        Self {
            maps,
            settings,
            publish,
            schedule: Schedule::new(settings.interval),
            sockets: Sockets::default(),
            wanted: None,
            members: BTreeMap::new(),
            start: Instant::now(),
            random: seed(),
            failed: false,
        }
    }

    fn run(mut self, wanted: &Receiver<Wanted>) {
        let mut look = Duration::ZERO;
        loop {
            let now = self.start.elapsed();
            let due = self.schedule.next().map_or(look, |due| due.min(look));
            match wanted.recv_timeout(due.saturating_sub(now)) {
                Ok(wanted) => {
                    let result = self.adopt(wanted);
                    self.report(result);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.start.elapsed();
            let mut random = self.random;
            let due = self.schedule.take(now, || {
                random = mix(random, 1);
                random
            });
            self.random = random;
            for slot in due {
                let result = self.ask(slot);
                self.report(result);
            }
            if now >= look {
                let result = self.look(now);
                self.report(result);
                look = now.saturating_add(self.settings.interval);
            }
        }
    }

    /// Says once that the maps cannot be used.
    fn report(&mut self, result: Result<(), TablesError>) {
        match result {
            Err(error) if !self.failed => {
                warn!(error = %crate::chain(&error), "members are not asked whether they are alive");
                self.failed = true;
            }
            Err(_) => {}
            Ok(()) => self.failed = false,
        }
    }

    fn adopt(&mut self, wanted: Wanted) -> Result<(), TablesError> {
        let now = self.start.elapsed();
        let first = self.wanted.is_none();
        let gone: Vec<u32> = self
            .members
            .iter()
            .filter(|(slot, member)| {
                let new = wanted.members.get(slot);
                new.is_none_or(|new| new.id != member.asked.id)
            })
            .map(|(slot, _)| *slot)
            .collect();
        for slot in gone {
            self.members.remove(&slot);
            self.schedule.remove(slot);
            self.maps.set_sent(slot, Sent::default())?;
        }
        if first {
            self.maps.forget_but(|slot| wanted.members.contains_key(&slot))?;
        }
        for (slot, asked) in &wanted.members {
            if let Some(member) = self.members.get_mut(slot) {
                member.asked = *asked;
                if member.search.link() != asked.link {
                    member.search = Search::new(asked.link, asked.link, now, self.random);
                }
                continue;
            }
            self.random = mix(self.random, *slot);
            let sequence = self
                .maps
                .adopt(*slot, asked.id, self.settings.detect, self.random)?;
            let member = Member {
                asked: *asked,
                sequence,
                search: Search::new(asked.link, asked.known, now, mix(self.random, 2)),
                size_seen: 0,
            };
            self.members.insert(*slot, member);
            self.schedule.add(*slot, now, self.random);
        }
        self.sockets.configure(wanted.udp_checksum);
        self.wanted = Some(wanted);
        self.look(now)
    }

    /// Sends a member its next probe. An error of the network is an unanswered probe.
    fn ask(&mut self, slot: u32) -> Result<(), TablesError> {
        let (Some(member), Some(wanted)) = (self.members.get_mut(&slot), &self.wanted) else {
            return Ok(());
        };
        member.sequence = member.sequence.wrapping_add(1);
        let sent = Sent {
            id: member.asked.id,
            sequence: member.sequence,
        };
        self.maps.set_sent(slot, sent)?;
        let probe = Probe {
            kind: Kind::Request,
            size: 0,
            slot,
            id: member.asked.id,
            sequence: member.sequence,
            sent_at: socket::monotonic(),
        };
        let asked = member.asked;
        let payload = wanted.dress.payload(&probe, asked.addr.is_ipv6());
        self.sockets
            .send(&payload, asked.local, (asked.addr, wanted.port));
        Ok(())
    }

    /// Reads what came of the probes, asks for sizes, and publishes.
    fn look(&mut self, now: Duration) -> Result<(), TablesError> {
        let Some(wanted) = &self.wanted else {
            return Ok(());
        };
        let mut status = Status::default();
        for (slot, member) in &mut self.members {
            let asked = member.asked;
            let known = self.maps.read(*slot)?;
            let (_, seen) = known;
            if seen.size_sequence != member.size_seen {
                member.size_seen = seen.size_sequence;
                member.search.answered(seen.size_sequence, seen.size, now);
            }
            let one = MemberStatus::new(
                asked.id,
                asked.addr,
                known,
                self.settings.detect,
                member.search.size(),
            );
            let answers = one.state != State::Dead && one.unanswered <= 1 && one.rtt.is_some();
            if let Some(size) = member.search.take(now, answers) {
                let probe = Probe {
                    kind: Kind::SizeRequest,
                    size: u16::try_from(size.size).unwrap_or(u16::MAX),
                    slot: *slot,
                    id: asked.id,
                    sequence: size.sequence,
                    sent_at: socket::monotonic(),
                };
                let payload = wanted.dress.payload(&probe, asked.addr.is_ipv6());
                self.sockets
                    .send(&payload, asked.local, (asked.addr, wanted.port));
            }
            status.members.insert(*slot, one);
        }
        self.publish.send_if_modified(|published| {
            let announce = published.differs(&status);
            if announce {
                published.log_changes(&status);
            }
            *published = status;
            announce
        });
        Ok(())
    }
}

/// Something that differs between agents: their numbers and their jitter shall not agree.
fn seed() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).unwrap_or(1)
}
