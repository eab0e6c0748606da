//! Sequence-numbered datagrams and the loss statistics of their receiver.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes of a datagram's header; the rest is padding.
pub const HEADER: usize = 24;
/// First field of a header; datagrams of other senders are not counted.
const MAGIC: u32 = 0x6d63_7365;
/// Highest accepted sequence number: a corrupted one must not make the receiver allocate memory.
const MAX_SEQUENCE: u64 = 1 << 32;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// Data of a stream.
    Data {
        /// Stream ID; the receiver ignores late datagrams of an earlier stream.
        stream: u32,
        /// Counts from 0.
        sequence: u64,
    },
    /// End of the stream; the receiver replies with [`Datagram::Received`].
    End {
        /// Stream ID.
        stream: u32,
        /// Number of datagrams sent.
        sent: u64,
    },
    /// Reply to [`Datagram::End`].
    Received {
        /// Stream ID.
        stream: u32,
    },
    /// Reachability check before the first datagram.
    Begin {
        /// Stream ID.
        stream: u32,
    },
    /// Reply to [`Datagram::Begin`].
    Ready {
        /// Stream ID.
        stream: u32,
    },
}

// === impl Datagram ===

impl Datagram {
    /// Encodes a header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let (kind, stream, number) = match self {
            Self::Data { stream, sequence } => (0u64, stream, sequence),
            Self::End { stream, sent } => (1, stream, sent),
            Self::Received { stream } => (2, stream, 0),
            Self::Begin { stream } => (3, stream, 0),
            Self::Ready { stream } => (4, stream, 0),
        };
        let mut bytes = [0; HEADER];
        let fields = MAGIC
            .to_be_bytes()
            .into_iter()
            .chain(stream.to_be_bytes())
            .chain(kind.to_be_bytes())
            .chain(number.to_be_bytes());
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Decodes a header; `None` if the bytes are not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (stream, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (number, _) = rest.split_first_chunk()?;
        if u32::from_be_bytes(*magic) != MAGIC {
            return None;
        }
        let (stream, number) = (u32::from_be_bytes(*stream), u64::from_be_bytes(*number));
        match u64::from_be_bytes(*kind) {
            0 => Some(Self::Data {
                stream,
                sequence: number,
            }),
            1 => Some(Self::End { stream, sent: number }),
            2 => Some(Self::Received { stream }),
            3 => Some(Self::Begin { stream }),
            4 => Some(Self::Ready { stream }),
            _ => None,
        }
    }
}

/// Loss statistics of a stream, in datagrams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SequenceReport {
    /// Sent, from the end marker; without one, the highest received number plus one.
    pub sent: u64,
    /// Distinct datagrams received.
    pub received: u64,
    /// Sent and not received.
    pub lost: u64,
    /// Received again.
    pub duplicated: u64,
    /// Received after a higher number.
    pub reordered: u64,
    /// Longest time between two arrivals, in milliseconds.
    pub longest_gap_ms: f64,
    /// Time between the first and the last arrival, in seconds.
    pub seconds: f64,
    /// Whether the end marker was received.
    pub ended: bool,
}

/// Receiver state of a stream.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// One bit per received number.
    seen: Vec<u64>,
    received: u64,
    duplicated: u64,
    reordered: u64,
    highest: Option<u64>,
    first: Option<Duration>,
    last: Option<Duration>,
    longest_gap: Duration,
    sent: Option<u64>,
}

// === impl Sequence ===

impl Sequence {
    /// Records the arrival of number `sequence` at `now` (time since a fixed moment).
    pub fn record(&mut self, sequence: u64, now: Duration) {
        if sequence >= MAX_SEQUENCE {
            return;
        }
        let (Ok(word), bit) = (usize::try_from(sequence / 64), 1u64 << (sequence % 64)) else {
            return;
        };
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        if let Some(seen) = self.seen.get_mut(word) {
            if *seen & bit != 0 {
                self.duplicated += 1;
            } else {
                *seen |= bit;
                self.received += 1;
                if self.highest.is_some_and(|highest| sequence < highest) {
                    self.reordered += 1;
                }
            }
        }
        self.highest = self.highest.max(Some(sequence));
        self.first.get_or_insert(now);
        if let Some(last) = self.last {
            self.longest_gap = self.longest_gap.max(now.saturating_sub(last));
        }
        self.last = Some(now);
    }

    /// Records the end marker.
    pub fn end(&mut self, sent: u64) {
        self.sent = Some(sent);
    }

    /// The statistics so far.
    #[must_use]
    pub fn report(&self) -> SequenceReport {
        let sent = self
            .sent
            .unwrap_or_else(|| self.highest.map_or(0, |highest| highest + 1));
        let seconds = match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_sub(first).as_secs_f64(),
            _ => 0.0,
        };
        SequenceReport {
            sent,
            received: self.received,
            lost: sent.saturating_sub(self.received),
            duplicated: self.duplicated,
            reordered: self.reordered,
            longest_gap_ms: self.longest_gap.as_secs_f64() * 1e3,
            seconds,
            ended: self.sent.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(arrivals: &[u64], sent: Option<u64>) -> SequenceReport {
        let mut sequence = Sequence::default();
        for (at, number) in arrivals.iter().enumerate() {
            sequence.record(*number, Duration::from_millis(at as u64));
        }
        if let Some(sent) = sent {
            sequence.end(sent);
        }
        sequence.report()
    }

    #[test]
    fn a_complete_stream_has_no_loss() {
        let report = after(&[0, 1, 2, 3], Some(4));
        assert_eq!((report.sent, report.received, report.lost), (4, 4, 0));
        assert_eq!((report.duplicated, report.reordered), (0, 0));
        assert!(report.ended && (report.seconds - 0.003).abs() < 1e-9);
    }

    #[test]
    fn loss_at_the_end_requires_the_end_marker() {
        assert_eq!(after(&[0, 1], Some(5)).lost, 3);
        assert_eq!(after(&[0, 1], None).lost, 0);
        assert_eq!(after(&[0, 4], None).lost, 3);
    }

    #[test]
    fn reordered_and_duplicated_numbers_are_distinguished() {
        let report = after(&[0, 2, 1, 2, 3], Some(4));
        assert_eq!((report.lost, report.duplicated, report.reordered), (0, 1, 1));
    }

    #[test]
    fn the_longest_gap_is_measured_between_arrivals() {
        let mut sequence = Sequence::default();
        for (number, at) in [10, 11, 50, 52].into_iter().enumerate() {
            sequence.record(number as u64, Duration::from_millis(at));
        }
        assert!((sequence.report().longest_gap_ms - 39.0).abs() < 1e-9);
    }

    #[test]
    fn an_absurd_number_is_ignored() {
        assert_eq!(after(&[u64::MAX], None).received, 0);
    }

    proptest! {
        #[test]
        fn decode_reverses_encode(stream: u32, number: u64) {
            for datagram in [
                Datagram::Data { stream, sequence: number },
                Datagram::End { stream, sent: number },
                Datagram::Received { stream },
                Datagram::Begin { stream },
                Datagram::Ready { stream },
            ] {
                prop_assert_eq!(Datagram::decode(&datagram.encode()), Some(datagram));
            }
        }

        #[test]
        fn received_and_lost_add_up_to_sent(arrivals in prop::collection::vec(0u64..200, 0..400)) {
            let report = after(&arrivals, Some(200));
            prop_assert_eq!(report.received + report.lost, 200);
            prop_assert_eq!(report.received + report.duplicated, arrivals.len() as u64);
        }
    }

    #[test]
    fn foreign_bytes_are_not_a_datagram() {
        assert_eq!(Datagram::decode(b"short"), None);
        assert_eq!(Datagram::decode(&[0; 64]), None);
    }
}
