//! Liveness of next hops from probes and replies. Pure.
//!
//! *Guarantees*: the distance between probes and replies is counted in probes, not in time, so a stalled or dead agent
//! changes nothing. A next hop without probes is alive. A recovered next hop is used only after replies during the
//! whole hold-down. Sequence numbers may wrap around.

use crate::{
    abi::liveness::{ProbeReply, ProbeSent},
    maps::Maps,
    verdict::DropReason,
};

/// State of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It replies, or is not probed.
    Alive,
    /// It replies again, but the hold-down is not over.
    HeldDown,
    /// Too many consecutive probes are without a reply.
    Dead,
}

/// State of the next hop `id`. `detect` is the permitted number of consecutive probes without a reply; 0 disables
/// liveness.
#[inline(always)]
#[must_use]
pub fn state(id: u32, sent: ProbeSent, seen: ProbeReply, detect: u32) -> State {
    if detect == 0 || sent.id != id || seen.id != id {
        return State::Alive;
    }
    if unanswered(sent, seen) > detect {
        return State::Dead;
    }
    if seen.held_since != 0 {
        return State::HeldDown;
    }
    State::Alive
}

/// Number of probes since the last one with a reply. A reply newer than the last known probe counts as 0: agent and
/// program write the two numbers independently.
#[inline(always)]
#[must_use]
pub fn unanswered(sent: ProbeSent, seen: ProbeReply) -> u32 {
    let distance = sent.sequence.wrapping_sub(seen.sequence);
    if distance > u32::MAX / 2 { 0 } else { distance }
}

/// Whether the next hop `id` in `slot` is dead or held down.
#[inline(always)]
pub fn is_dead<M: Maps>(maps: &M, slot: u32, id: u32) -> bool {
    let Some(sent) = maps.sent(slot) else {
        return false;
    };
    // The only next hop of a group is usually not probed: no further reads.
    if sent.id != id {
        return false;
    }
    let (Some(config), Some(seen)) = (maps.config(), maps.seen(slot)) else {
        return false;
    };
    state(id, sent, seen, config.detect) != State::Alive
}

/// The record of a next hop after a reply, or the drop reason of the reply.
#[inline(always)]
pub fn accept_reply(
    sent: ProbeSent,
    seen: ProbeReply,
    reply: ReceivedReply,
    detect: u32,
    hold_down_ms: u32,
) -> Result<ProbeReply, DropReason> {
    let ReceivedReply { sequence, rtt, now } = reply;
    // Number of probes since.
    let age = sent.sequence.wrapping_sub(sequence);
    let distance = unanswered(sent, seen);
    if age > u32::MAX / 2 {
        return Err(DropReason::ProbeUnsent);
    }
    if age >= distance {
        return Err(DropReason::ProbeStale);
    }
    let came_back = detect != 0 && distance > detect;
    let hold_down = u64::from(hold_down_ms).wrapping_mul(1_000_000);
    let held_since = if came_back && hold_down != 0 {
        now
    } else if now.wrapping_sub(seen.held_since) >= hold_down {
        0
    } else {
        seen.held_since
    };
    Ok(ProbeReply {
        sequence,
        at: now,
        held_since,
        rtt,
        ..seen
    })
}

/// A reply to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedReply {
    /// Sequence number of the probe.
    pub sequence: u32,
    /// Round-trip time in nanoseconds.
    pub rtt: u32,
    /// Time of its arrival: nanoseconds of `CLOCK_MONOTONIC`, never 0.
    pub now: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: u32 = 7;
    const DETECT: u32 = 3;
    const HOLD_MS: u32 = 1_000;
    const SECOND: u64 = 1_000_000_000;

    fn sent(sequence: u32) -> ProbeSent {
        ProbeSent { id: ID, sequence }
    }

    fn seen(sequence: u32) -> ProbeReply {
        ProbeReply {
            id: ID,
            sequence,
            ..ProbeReply::default()
        }
    }

    fn reply(sequence: u32, now: u64) -> ReceivedReply {
        ReceivedReply {
            sequence,
            rtt: 100,
            now,
        }
    }

    #[test]
    fn dead_when_more_probes_than_allowed_are_unanswered() {
        for (last, expected) in [
            (10, State::Alive),
            (13, State::Alive),
            (14, State::Dead),
            (90, State::Dead),
        ] {
            assert_eq!(state(ID, sent(last), seen(10), DETECT), expected, "{last}");
        }
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        assert_eq!(state(ID, sent(1), seen(u32::MAX - 1), DETECT), State::Alive);
        assert_eq!(state(ID, sent(2), seen(u32::MAX - 1), DETECT), State::Dead);
        let new = accept_reply(sent(2), seen(u32::MAX), reply(1, 5), DETECT, HOLD_MS).unwrap();
        assert_eq!((new.sequence, new.at, new.held_since), (1, 5, 0));
    }

    #[test]
    fn never_probed_or_switched_off_is_alive() {
        assert_eq!(
            state(ID, ProbeSent::default(), ProbeReply::default(), DETECT),
            State::Alive
        );
        let other = ProbeSent { id: 8, sequence: 100 };
        assert_eq!(
            state(ID, other, seen(1), DETECT),
            State::Alive,
            "of another next hop"
        );
        assert_eq!(
            state(ID, sent(100), ProbeReply::default(), DETECT),
            State::Alive,
            "never initialised"
        );
        assert_eq!(state(ID, sent(100), seen(1), 0), State::Alive, "off");
    }

    #[test]
    fn late_repeated_and_unsent_numbers_are_rejected() {
        let check = |sequence| {
            accept_reply(sent(10), seen(8), reply(sequence, 5), DETECT, HOLD_MS).map(|s| s.sequence)
        };
        assert_eq!(check(9), Ok(9));
        assert_eq!(check(10), Ok(10));
        assert_eq!(check(8), Err(DropReason::ProbeStale), "seen already");
        assert_eq!(check(3), Err(DropReason::ProbeStale));
        assert_eq!(check(11), Err(DropReason::ProbeUnsent));
    }

    #[test]
    fn a_recovered_next_hop_is_held_down_and_then_alive() {
        let mut known = seen(10);
        assert_eq!(state(ID, sent(20), known, DETECT), State::Dead);
        known = accept_reply(sent(20), known, reply(20, 5 * SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(20), known, DETECT), State::HeldDown);
        let almost = 6 * SECOND - 1;
        known = accept_reply(sent(21), known, reply(21, almost), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(21), known, DETECT), State::HeldDown);
        known = accept_reply(sent(22), known, reply(22, 6 * SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(22), known, DETECT), State::Alive);
    }

    #[test]
    fn another_death_restarts_the_hold_down() {
        let mut known = accept_reply(sent(20), seen(10), reply(20, 5 * SECOND), DETECT, HOLD_MS).unwrap();
        known = accept_reply(sent(24), known, reply(24, 7 * SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(known.held_since, 7 * SECOND);
        assert_eq!(state(ID, sent(24), known, DETECT), State::HeldDown);
    }

    #[test]
    fn a_late_reply_of_a_dead_next_hop_starts_the_hold_down() {
        // A reply to probe 11 of 14: the distance is small again, but the next hop was dead.
        let known = accept_reply(sent(14), seen(10), reply(11, SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(14), known, DETECT), State::HeldDown);
    }

    #[test]
    fn without_a_hold_down_a_recovered_next_hop_is_alive_at_once() {
        let known = accept_reply(sent(20), seen(10), reply(20, SECOND), DETECT, 0).unwrap();
        assert_eq!(state(ID, sent(20), known, DETECT), State::Alive);
    }

    proptest! {
        /// A next hop with a reply to every probe is never dead, regardless of stalls of the agent.
        #[test]
        fn a_next_hop_that_answers_every_probe_is_never_dead(start: u32, pauses in prop::collection::vec(1..10_000_000_000_u64, 1..50)) {
            let mut known = seen(start);
            let mut now = 1;
            let mut last = start;
            for pause in pauses {
                now += pause;
                last = last.wrapping_add(1);
                prop_assert_eq!(state(ID, sent(last), known, DETECT), State::Alive);
                known = accept_reply(sent(last), known, reply(last, now), DETECT, HOLD_MS).unwrap();
                prop_assert_eq!(state(ID, sent(last), known, DETECT), State::Alive);
            }
        }

        /// Random loss: dead exactly while more than `detect` probes in a row are unanswered, and never
        /// alive again before the hold-down is over.
        #[test]
        fn alive_means_no_death_within_the_hold_down(start: u32, losses in prop::collection::vec(prop::bool::weighted(0.4), 1..200)) {
            let (mut known, mut last, mut in_a_row, mut back_at) = (seen(start), start, 0, None);
            for (at, lost) in (1_u64..).zip(losses) {
                let now = at * SECOND / 10;
                last = last.wrapping_add(1);
                in_a_row += 1;
                if in_a_row > DETECT {
                    back_at = Some(u64::MAX);
                }
                if !lost {
                    known = accept_reply(sent(last), known, reply(last, now), DETECT, HOLD_MS).unwrap();
                    in_a_row = 0;
                    if back_at == Some(u64::MAX) {
                        back_at = Some(now);
                    }
                }
                let held = back_at.is_some_and(|at| at == u64::MAX || now < at + SECOND);
                let expected_alive = in_a_row <= DETECT && !held;
                if !lost {
                    let alive = state(ID, sent(last), known, DETECT) == State::Alive;
                    prop_assert_eq!(alive, expected_alive);
                } else if in_a_row > DETECT {
                    prop_assert_eq!(state(ID, sent(last), known, DETECT), State::Dead);
                }
            }
        }
    }
}
