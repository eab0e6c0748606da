//! Whether a next hop is alive, from the probes it was sent and the answers it gave. Pure.
//!
//! *Guarantees*: the distance between sending and answering is counted in probes, not in time, so an agent
//! that stalls or dies changes nothing; a next hop that was never probed is alive; a next hop that comes back
//! is used again only after it has answered for the whole hold-down; sequence numbers may wrap around.

use crate::{
    abi::liveness::{ProbeReply, ProbeSent, RTT_BUCKETS, RTT_FIRST_BUCKET},
    maps::Maps,
    verdict::DropReason,
};

/// What is known of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It answers, or nobody asks it.
    Alive,
    /// It answers again, but has not done so for long enough.
    HeldDown,
    /// More probes in a row than allowed are without an answer.
    Dead,
}

/// State of the next hop `id`. `detect` is the number of probes in a row that may go unanswered; 0 turns
/// liveness off.
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

/// Probes since the last one that was answered. An answer to a probe that is not known to be sent (the
/// two numbers are written by two sides) is no distance.
#[inline(always)]
#[must_use]
pub fn unanswered(sent: ProbeSent, seen: ProbeReply) -> u32 {
    let distance = sent.sequence.wrapping_sub(seen.sequence);
    if distance > u32::MAX / 2 { 0 } else { distance }
}

/// Whether the next hop `id` in `slot` must not be used.
#[inline(always)]
pub fn is_dead<T: Maps>(tables: &T, slot: u32, id: u32) -> bool {
    let Some(sent) = tables.sent(slot) else {
        return false;
    };
    // Most next hops of a group of one are never probed: nothing else needs to be read.
    if sent.id != id {
        return false;
    }
    let (Some(config), Some(seen)) = (tables.config(), tables.seen(slot)) else {
        return false;
    };
    state(id, sent, seen, config.detect) != State::Alive
}

/// What is known of the next hop after it answered probe `sequence`, or why that is no answer.
#[inline(always)]
pub fn accept_reply(
    sent: ProbeSent,
    seen: ProbeReply,
    answer: ReceivedReply,
    detect: u32,
    hold_down_ms: u32,
) -> Result<ProbeReply, DropReason> {
    let ReceivedReply { sequence, rtt, now } = answer;
    // How many probes ago it was sent.
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

/// An answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedReply {
    /// Number of the probe.
    pub sequence: u32,
    /// Round-trip time in nanoseconds.
    pub rtt: u32,
    /// Time of its arrival: nanoseconds of `CLOCK_MONOTONIC`, never 0.
    pub now: u64,
}

/// Bucket of a round-trip time in nanoseconds.
#[inline(always)]
#[must_use]
pub const fn rtt_bucket(rtt: u32) -> usize {
    let mut bucket = 0;
    let mut bound = RTT_FIRST_BUCKET;
    // Constant bounds: the programs have no loop here.
    while bucket < RTT_BUCKETS.wrapping_sub(1) && rtt >= bound {
        bound = bound.wrapping_mul(2);
        bucket = bucket.wrapping_add(1);
    }
    bucket
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

    fn answer(sequence: u32, now: u64) -> ReceivedReply {
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
    fn numbers_wrap_around() {
        assert_eq!(state(ID, sent(1), seen(u32::MAX - 1), DETECT), State::Alive);
        assert_eq!(state(ID, sent(2), seen(u32::MAX - 1), DETECT), State::Dead);
        let new = accept_reply(sent(2), seen(u32::MAX), answer(1, 5), DETECT, HOLD_MS).unwrap();
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
    fn late_repeated_and_unsent_numbers_are_no_answers() {
        let check = |sequence| {
            accept_reply(sent(10), seen(8), answer(sequence, 5), DETECT, HOLD_MS).map(|s| s.sequence)
        };
        assert_eq!(check(9), Ok(9));
        assert_eq!(check(10), Ok(10));
        assert_eq!(check(8), Err(DropReason::ProbeStale), "seen already");
        assert_eq!(check(3), Err(DropReason::ProbeStale));
        assert_eq!(check(11), Err(DropReason::ProbeUnsent));
    }

    #[test]
    fn who_comes_back_is_held_down_and_then_alive() {
        let mut known = seen(10);
        assert_eq!(state(ID, sent(20), known, DETECT), State::Dead);
        known = accept_reply(sent(20), known, answer(20, 5 * SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(20), known, DETECT), State::HeldDown);
        let almost = 6 * SECOND - 1;
        known = accept_reply(sent(21), known, answer(21, almost), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(21), known, DETECT), State::HeldDown);
        known = accept_reply(sent(22), known, answer(22, 6 * SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(22), known, DETECT), State::Alive);
    }

    #[test]
    fn dying_again_starts_the_hold_down_anew() {
        let mut known = accept_reply(sent(20), seen(10), answer(20, 5 * SECOND), DETECT, HOLD_MS).unwrap();
        known = accept_reply(sent(24), known, answer(24, 7 * SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(known.held_since, 7 * SECOND);
        assert_eq!(state(ID, sent(24), known, DETECT), State::HeldDown);
    }

    #[test]
    fn a_late_answer_of_the_dead_does_not_make_it_alive_at_once() {
        // Probe 11 of 14 is answered: the distance is small again, but the next hop was dead.
        let known = accept_reply(sent(14), seen(10), answer(11, SECOND), DETECT, HOLD_MS).unwrap();
        assert_eq!(state(ID, sent(14), known, DETECT), State::HeldDown);
    }

    #[test]
    fn without_a_hold_down_who_comes_back_is_alive_at_once() {
        let known = accept_reply(sent(20), seen(10), answer(20, SECOND), DETECT, 0).unwrap();
        assert_eq!(state(ID, sent(20), known, DETECT), State::Alive);
    }

    #[test]
    fn buckets_double() {
        for (rtt, bucket) in [
            (0, 0),
            (32_767, 0),
            (32_768, 1),
            (65_536, 2),
            (1_000_000, 5),
            (u32::MAX, 15),
        ] {
            assert_eq!(rtt_bucket(rtt), bucket, "{rtt}");
        }
    }

    proptest! {
        /// However the agent stalls, a next hop that answers every probe is never dead.
        #[test]
        fn who_answers_every_probe_is_never_dead(start: u32, pauses in prop::collection::vec(1..10_000_000_000_u64, 1..50)) {
            let mut known = seen(start);
            let mut now = 1;
            let mut last = start;
            for pause in pauses {
                now += pause;
                last = last.wrapping_add(1);
                prop_assert_eq!(state(ID, sent(last), known, DETECT), State::Alive);
                known = accept_reply(sent(last), known, answer(last, now), DETECT, HOLD_MS).unwrap();
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
                    known = accept_reply(sent(last), known, answer(last, now), DETECT, HOLD_MS).unwrap();
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
