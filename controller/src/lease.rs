//! Which of several replicas works: one `Lease` (coordination.k8s.io/v1), used as client-go's leader election does, so
//! that `kubectl get lease` reads as users know it.
//!
//! Pure: what is in the Lease, what was seen of it before and the time give the next step. Guarantees: a Lease that
//! somebody else renews is never taken, whatever the clocks of the others say; times of others are compared with
//! each other only, never with our own.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

/// How long a Lease is respected after its last renewal was seen.
pub const DURATION: Duration = Duration::from_secs(15);
/// How long the holder works on after its last renewal: less than [`DURATION`] by what a request may take.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How often it is renewed, or looked at by those who wait.
pub const PERIOD: Duration = Duration::from_secs(2);

/// What was last seen of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    record: Option<(String, Option<Timestamp>, Option<i32>)>,
    /// By our own clock, which never jumps.
    at: Duration,
}

/// What to do about the Lease.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a step that nobody takes changes nothing"]
pub enum Step {
    /// Write this; it makes us the holder unless somebody else was faster.
    Write(LeaseSpec),
    /// Somebody else holds it.
    Wait {
        /// Who.
        holder: String,
    },
}

impl Seen {
    /// The next step of `me` at `now` (of a clock that never jumps) and `time` (for people to read).
    pub fn step(&mut self, me: &str, lease: Option<&LeaseSpec>, now: Duration, time: Timestamp) -> Step {
        let Some(lease) = lease else {
            return Step::Write(held_by(me, 0, time, time));
        };
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        let transitions = lease.lease_transitions.unwrap_or_default();
        if holder == me {
            let acquired = lease.acquire_time.as_ref().map_or(time, |at| at.0);
            return Step::Write(held_by(me, transitions, acquired, time));
        }
        let taken = held_by(me, transitions.saturating_add(1), time, time);
        if holder.is_empty() {
            return Step::Write(taken);
        }
        let record = Some((
            holder.to_owned(),
            lease.renew_time.as_ref().map(|at| at.0),
            lease.lease_transitions,
        ));
        if record != self.record {
            (self.record, self.at) = (record, now);
        }
        let seconds = lease.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
        // One without a duration, or a shorter one than we would work on with, is respected all the same.
        let duration = seconds.map_or(DURATION, Duration::from_secs).max(DEADLINE);
        if now.saturating_sub(self.at) < duration {
            return Step::Wait {
                holder: holder.to_owned(),
            };
        }
        Step::Write(taken)
    }
}

/// What the holder leaves behind when it stops: nobody has to wait.
#[must_use]
pub fn released(lease: &LeaseSpec, time: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(time)),
        ..lease.clone()
    }
}

fn held_by(me: &str, transitions: i32, acquired: Timestamp, renewed: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        lease_transitions: Some(transitions),
        acquire_time: Some(MicroTime(acquired)),
        renew_time: Some(MicroTime(renewed)),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: u64) -> Timestamp {
        T0 + Duration::from_secs(seconds)
    }

    fn written(step: Step) -> LeaseSpec {
        match step {
            Step::Write(lease) => lease,
            Step::Wait { holder } => panic!("waits for {holder}"),
        }
    }

    #[test]
    fn nobodys_lease_is_taken_at_once() {
        let lease = written(Seen::default().step("a", None, Duration::ZERO, at(5)));
        assert_eq!(lease.holder_identity.as_deref(), Some("a"));
        assert_eq!(
            (lease.lease_transitions, lease.lease_duration_seconds),
            (Some(0), Some(15))
        );
        let free = released(&lease, at(6));
        let taken = written(Seen::default().step("b", Some(&free), Duration::ZERO, at(7)));
        assert_eq!(
            (taken.holder_identity.as_deref(), taken.lease_transitions),
            (Some("b"), Some(1))
        );
    }

    #[test]
    fn our_own_is_renewed_and_keeps_its_beginning() {
        let mine = held_by("a", 3, at(1), at(2));
        let renewed = written(Seen::default().step("a", Some(&mine), Duration::ZERO, at(4)));
        assert_eq!(renewed, held_by("a", 3, at(1), at(4)));
    }

    #[test]
    fn somebody_elses_is_taken_when_it_was_not_renewed_for_its_duration() {
        let mut seen = Seen::default();
        // Its clock is a year ahead: that means nothing.
        let theirs = held_by("b", 3, at(31_536_000), at(31_536_000));
        let look = |seen: &mut Seen, lease: &LeaseSpec, now: u64| {
            seen.step("a", Some(lease), Duration::from_secs(now), at(now))
        };
        let wait = Step::Wait {
            holder: "b".to_owned(),
        };
        assert_eq!(look(&mut seen, &theirs, 100), wait);
        assert_eq!(look(&mut seen, &theirs, 114), wait);
        let renewed = held_by("b", 3, at(31_536_000), at(31_536_001));
        assert_eq!(look(&mut seen, &renewed, 114), wait);
        assert_eq!(look(&mut seen, &renewed, 128), wait);
        let taken = written(look(&mut seen, &renewed, 129));
        assert_eq!(
            (taken.holder_identity.as_deref(), taken.lease_transitions),
            (Some("a"), Some(4))
        );
    }

    #[test]
    fn a_lease_that_says_nonsense_is_respected_long_enough() {
        for seconds in [None, Some(-1), Some(0), Some(1)] {
            let mut seen = Seen::default();
            let theirs = LeaseSpec {
                lease_duration_seconds: seconds,
                renew_time: None,
                ..held_by("b", 0, T0, T0)
            };
            for now in [0, 9] {
                let step = seen.step("a", Some(&theirs), Duration::from_secs(now), T0);
                assert!(matches!(step, Step::Wait { .. }), "{seconds:?} {now}");
            }
            let _ = written(seen.step("a", Some(&theirs), Duration::from_secs(15), T0));
        }
    }

    proptest! {
        /// Two replicas with clocks of their own, one API server that takes a write only on the version it was made
        /// from, requests lost and stalls at will: no two of them work at a time.
        #[test]
        fn never_two_at_a_time(
            events in proptest::collection::vec((0_usize..3, 0_u64..4_000, any::<bool>(), any::<bool>()), 1..200),
            skews in [0_u64..100_000, 0_u64..100_000, 0_u64..100_000],
        ) {
            let names = ["a", "b", "c"];
            let mut lease: Option<(u64, LeaseSpec)> = None;
            let mut replicas = [(); 3].map(|()| (Seen::default(), None::<Duration>));
            let mut now = Duration::ZERO;
            for (who, pause, lost, answer_lost) in events {
                now += Duration::from_millis(pause);
                let (seen, works_until) = &mut replicas[who];
                let own_time = T0 + now + Duration::from_secs(skews[who]);
                let version = lease.as_ref().map(|(version, _)| *version);
                let step = seen.step(names[who], lease.as_ref().map(|(_, spec)| spec), now, own_time);
                if let Step::Write(spec) = step && !lost {
                    lease = Some((version.map_or(0, |v| v + 1), spec));
                    if !answer_lost {
                        *works_until = Some(now + DEADLINE);
                    }
                }
                let working: Vec<_> = (0..3)
                    .filter(|i| replicas[*i].1.is_some_and(|until| now < until))
                    .collect();
                prop_assert!(working.len() < 2, "{working:?} at {now:?}: {lease:?}");
            }
        }
    }
}
