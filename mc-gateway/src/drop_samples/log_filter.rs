//! Selection of the dropped packets that are logged. Pure: the time is an argument.
//!
//! The first packet of a kind is logged at once, the following ones as one line with their number. A sender of many
//! packets then hides no other drop.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::decode::DroppedPacket;
use crate::attachment::Program;

/// Lines of single packets in one [`LINE_WINDOW`].
const MAX_LINES: u32 = 20;
/// Span over which lines of single packets are counted.
const LINE_WINDOW: Duration = Duration::from_secs(1);
/// Interval of the lines about repeated packets.
pub(super) const REPEAT_INTERVAL: Duration = Duration::from_secs(30);
/// Kinds in memory: senders choose their addresses. Further ones are logged as single packets.
const MAX_KINDS: usize = 256;

/// Packets that differ in their flow only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DropKind {
    reason: u32,
    program: Option<Program>,
    /// The peer, or the source of a packet that was not encapsulated yet.
    sender: Option<IpAddr>,
}

/// Packets of one kind since the last line about it.
#[derive(Clone, Copy, Debug)]
struct Repeats {
    logged_at: Instant,
    count: u64,
    last: DroppedPacket,
}

/// The packets of one kind since its last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RepeatedDrop {
    /// Their number.
    pub(super) count: u64,
    /// The last one.
    pub(super) last: DroppedPacket,
}

/// The lines logged so far.
#[derive(Debug)]
pub(super) struct LogFilter {
    window_start: Instant,
    lines: u32,
    kinds: BTreeMap<DropKind, Repeats>,
}

impl LogFilter {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            window_start: now,
            lines: 0,
            kinds: BTreeMap::new(),
        }
    }

    /// Whether to log this packet as a line of its own.
    #[must_use]
    pub(super) fn is_logged(&mut self, packet: &DroppedPacket, now: Instant) -> bool {
        let sender = packet.peer.or(packet.flow.map(|flow| flow.src));
        let kind = DropKind {
            reason: packet.reason,
            program: packet.program,
            sender,
        };
        if let Some(repeats) = self.kinds.get_mut(&kind) {
            repeats.count = repeats.count.saturating_add(1);
            repeats.last = *packet;
            return false;
        }
        if !self.has_line(now) {
            return false;
        }
        if self.kinds.len() < MAX_KINDS {
            let repeats = Repeats {
                logged_at: now,
                count: 0,
                last: *packet,
            };
            self.kinds.insert(kind, repeats);
        }
        true
    }

    /// The kinds with packets since their last line, if that line is older than [`REPEAT_INTERVAL`]. Forgets the kinds
    /// without.
    #[must_use]
    pub(super) fn repeated(&mut self, now: Instant) -> Vec<RepeatedDrop> {
        let mut due = Vec::new();
        self.kinds.retain(|_, repeats| {
            if now.saturating_duration_since(repeats.logged_at) < REPEAT_INTERVAL {
                return true;
            }
            if repeats.count == 0 {
                return false;
            }
            due.push(RepeatedDrop {
                count: repeats.count,
                last: repeats.last,
            });
            repeats.logged_at = now;
            repeats.count = 0;
            true
        });
        due
    }

    fn has_line(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.window_start) >= LINE_WINDOW {
            self.window_start = now;
            self.lines = 0;
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= MAX_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_peer(peer: u32, reason: u32) -> DroppedPacket {
        DroppedPacket {
            rule: 0,
            identity: None,
            reason,
            program: Some(Program::FromUnderlay),
            ifindex: 2,
            length: 100,
            peer: Some(IpAddr::from(peer.to_be_bytes())),
            flow: None,
        }
    }

    #[test]
    fn repeated_drops_of_a_peer_become_one_line_with_their_number() {
        let start = Instant::now();
        let mut filter = LogFilter::new(start);
        assert!(filter.is_logged(&from_peer(1, 7), start));
        for _ in 0..500 {
            assert!(!filter.is_logged(&from_peer(1, 7), start));
        }
        assert!(filter.is_logged(&from_peer(1, 8), start), "another reason");
        assert!(filter.is_logged(&from_peer(2, 7), start), "another peer");
        assert_eq!(filter.repeated(start), []);
        let expected = RepeatedDrop {
            count: 500,
            last: from_peer(1, 7),
        };
        assert_eq!(filter.repeated(start + REPEAT_INTERVAL), [expected]);
        assert_eq!(filter.repeated(start + REPEAT_INTERVAL * 2), []);
        assert!(
            filter.is_logged(&from_peer(1, 7), start + REPEAT_INTERVAL * 2),
            "after a quiet interval the first packet is logged again"
        );
    }

    #[test]
    fn lines_are_limited_within_a_second_and_not_after_it() {
        let start = Instant::now();
        let mut filter = LogFilter::new(start);
        let logged = (0..100)
            .filter(|peer| filter.is_logged(&from_peer(*peer, 7), start))
            .count();
        assert_eq!(logged, 20);
        assert!(filter.is_logged(&from_peer(200, 7), start + LINE_WINDOW));
    }

    #[test]
    fn the_number_of_kinds_is_limited() {
        let start = Instant::now();
        let mut filter = LogFilter::new(start);
        for peer in 0..1000 {
            let _logged = filter.is_logged(&from_peer(peer, 7), start + LINE_WINDOW * peer);
        }
        assert_eq!(filter.kinds.len(), MAX_KINDS);
    }
}
