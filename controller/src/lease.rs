//! The decisions of the leader election: one `Lease` (coordination.k8s.io/v1) with the fields and timing of
//! client-go's, so that `kubectl get lease` reads as users know it.
//!
//! Pure: the Lease, its earlier observation and the time give the next action. Guarantees: a Lease that another replica
//! renews is never acquired, regardless of that replica's clock; times of other replicas are compared with each other
//! only, never with the local clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

/// The time after the last observed renewal at which a Lease expires.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The time after its last renewal at which the holder stops writing: less than [`LEASE_DURATION`] by the time limit of
/// a request.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The interval of renewals, and of reads by standbys.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// The last observation of a Lease held by another replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseObserver {
    record: Option<(String, Option<Timestamp>, Option<i32>)>,
    /// The time of the observation, by the local monotonic clock.
    at: Duration,
}

/// The next action on the Lease.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an action has no effect until it is executed"]
pub enum LeaseAction {
    /// Write this spec; a conflict means that another replica was faster.
    Write(LeaseSpec),
    /// Another replica holds the Lease.
    Wait {
        /// Its identity.
        holder: String,
    },
}

impl LeaseObserver {
    /// The next action of replica `me` at `now` (monotonic) and `time` (written to the Lease for readers).
    pub fn next_action(
        &mut self,
        me: &str,
        lease: Option<&LeaseSpec>,
        now: Duration,
        time: Timestamp,
    ) -> LeaseAction {
        let Some(lease) = lease else {
            return LeaseAction::Write(held_by(me, 0, time, time));
        };
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        let transitions = lease.lease_transitions.unwrap_or_default();
        if holder == me {
            let acquired = lease.acquire_time.as_ref().map_or(time, |at| at.0);
            return LeaseAction::Write(held_by(me, transitions, acquired, time));
        }
        let taken = held_by(me, transitions.saturating_add(1), time, time);
        if holder.is_empty() {
            return LeaseAction::Write(taken);
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
        // A missing or short duration is replaced by one that a holder of this program may rely on.
        let duration = seconds
            .map_or(LEASE_DURATION, Duration::from_secs)
            .max(RENEW_DEADLINE);
        if now.saturating_sub(self.at) < duration {
            return LeaseAction::Wait {
                holder: holder.to_owned(),
            };
        }
        LeaseAction::Write(taken)
    }
}

/// The spec of a released Lease: a standby acquires it at once.
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
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
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

    fn written(step: LeaseAction) -> LeaseSpec {
        match step {
            LeaseAction::Write(lease) => lease,
            LeaseAction::Wait { holder } => panic!("waits for {holder}"),
        }
    }

    #[test]
    fn a_free_lease_is_acquired_at_once() {
        let lease = written(LeaseObserver::default().next_action("a", None, Duration::ZERO, at(5)));
        assert_eq!(lease.holder_identity.as_deref(), Some("a"));
        assert_eq!(
            (lease.lease_transitions, lease.lease_duration_seconds),
            (Some(0), Some(15))
        );
        let free = released(&lease, at(6));
        let taken = written(LeaseObserver::default().next_action("b", Some(&free), Duration::ZERO, at(7)));
        assert_eq!(
            (taken.holder_identity.as_deref(), taken.lease_transitions),
            (Some("b"), Some(1))
        );
    }

    #[test]
    fn a_renewal_keeps_the_acquire_time() {
        let mine = held_by("a", 3, at(1), at(2));
        let renewed = written(LeaseObserver::default().next_action("a", Some(&mine), Duration::ZERO, at(4)));
        assert_eq!(renewed, held_by("a", 3, at(1), at(4)));
    }

    #[test]
    fn an_expired_lease_is_acquired() {
        let mut observer = LeaseObserver::default();
        // The other clock is a year ahead.
        let theirs = held_by("b", 3, at(31_536_000), at(31_536_000));
        let action = |observer: &mut LeaseObserver, lease: &LeaseSpec, now: u64| {
            observer.next_action("a", Some(lease), Duration::from_secs(now), at(now))
        };
        let wait = LeaseAction::Wait {
            holder: "b".to_owned(),
        };
        assert_eq!(action(&mut observer, &theirs, 100), wait);
        assert_eq!(action(&mut observer, &theirs, 114), wait);
        let renewed = held_by("b", 3, at(31_536_000), at(31_536_001));
        assert_eq!(action(&mut observer, &renewed, 114), wait);
        assert_eq!(action(&mut observer, &renewed, 128), wait);
        let taken = written(action(&mut observer, &renewed, 129));
        assert_eq!(
            (taken.holder_identity.as_deref(), taken.lease_transitions),
            (Some("a"), Some(4))
        );
    }

    #[test]
    fn a_lease_with_an_invalid_duration_is_respected() {
        for seconds in [None, Some(-1), Some(0), Some(1)] {
            let mut observer = LeaseObserver::default();
            let theirs = LeaseSpec {
                lease_duration_seconds: seconds,
                renew_time: None,
                ..held_by("b", 0, T0, T0)
            };
            for now in [0, 9] {
                let step = observer.next_action("a", Some(&theirs), Duration::from_secs(now), T0);
                assert!(matches!(step, LeaseAction::Wait { .. }), "{seconds:?} {now}");
            }
            let _ = written(observer.next_action("a", Some(&theirs), Duration::from_secs(15), T0));
        }
    }

    proptest! {
        /// Three replicas with different clocks, one API server with optimistic concurrency, lost requests, lost
        /// answers and stalls: no two replicas are active at a time.
        #[test]
        fn at_most_one_replica_is_active(
            events in proptest::collection::vec((0_usize..3, 0_u64..4_000, any::<bool>(), any::<bool>()), 1..200),
            skews in [0_u64..100_000, 0_u64..100_000, 0_u64..100_000],
        ) {
            let names = ["a", "b", "c"];
            let mut lease: Option<(u64, LeaseSpec)> = None;
            let mut replicas = [(); 3].map(|()| (LeaseObserver::default(), None::<Duration>));
            let mut now = Duration::ZERO;
            for (replica, pause, lost, answer_lost) in events {
                now += Duration::from_millis(pause);
                let (observer, active_until) = &mut replicas[replica];
                let own_time = T0 + now + Duration::from_secs(skews[replica]);
                let version = lease.as_ref().map(|(version, _)| *version);
                let step = observer.next_action(names[replica], lease.as_ref().map(|(_, spec)| spec), now, own_time);
                if let LeaseAction::Write(spec) = step && !lost {
                    lease = Some((version.map_or(0, |v| v + 1), spec));
                    if !answer_lost {
                        *active_until = Some(now + RENEW_DEADLINE);
                    }
                }
                let active: Vec<_> = (0..3)
                    .filter(|i| replicas[*i].1.is_some_and(|until| now < until))
                    .collect();
                prop_assert!(active.len() < 2, "{active:?} at {now:?}: {lease:?}");
            }
        }
    }
}
