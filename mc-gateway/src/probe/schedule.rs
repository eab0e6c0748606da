//! Send times of the probes. Pure: time, randomness and replies are arguments.
//!
//! *Guarantees*: one probe per interval to each next hop, slightly more often on average. The interval is the
//! configured one for up to 1,800 next hops per second (162 in 90 ms); with more it grows with their number, so that
//! next hops whose probes are answered have at most 2,000 probes a second together, on average over an interval. A next
//! hop with an overdue reply is probed at the configured interval again, at most 2,000 times a second for all of them:
//! a loss in either direction is confirmed as fast as with few next hops. After a stall one probe is sent, not one for
//! every missed interval.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mc_gateway_common::abi::liveness::{ProbeReply, ProbeSent};
use mc_gateway_common::liveness;

/// Divisor of the interval for the random reduction that keeps nodes from synchronising.
const JITTER_DIVISOR: u32 = 10;

/// Length of the interval for each next hop: 2,000 probes a second with the largest random reduction.
const INTERVAL_EACH: Duration = Duration::from_nanos(555_555);

/// Replies to the probes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replies {
    /// The newest probe has a reply, and no hold-down is pending.
    pub(super) complete: bool,
    /// Round-trip time of the newest reply; 0 before the first.
    pub(super) rtt: Duration,
}

impl Replies {
    /// No reply is known.
    pub(super) const NONE: Self = Self {
        complete: false,
        rtt: Duration::ZERO,
    };

    /// Replies as the maps have them.
    pub(super) fn new(sent: ProbeSent, seen: ProbeReply) -> Self {
        Self {
            complete: liveness::unanswered(sent, seen) == 0 && seen.held_since == 0,
            rtt: Duration::from_nanos(seen.rtt.into()),
        }
    }
}

/// A probed slot. Times count from any fixed moment.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Time of the next decision.
    due: Duration,
    /// Time of the last probe and time from it to the next one if it is answered.
    last: Option<(Duration, Duration)>,
}

/// Next send times by slot.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    interval: Duration,
    slots: BTreeMap<u32, Slot>,
    queue: BTreeSet<(Duration, u32)>,
    /// Slots with an overdue reply.
    overdue: BTreeSet<u32>,
}

impl Schedule {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            slots: BTreeMap::new(),
            queue: BTreeSet::new(),
            overdue: BTreeSet::new(),
        }
    }

    /// Time between two probes to each next hop that answers.
    pub(super) fn interval(&self) -> Duration {
        stretched(self.interval, self.slots.len())
    }

    /// Number of next hops whose results are read after each plain interval, so that each one's are read as often as it
    /// is probed.
    pub(super) fn share(&self) -> usize {
        let all = self.slots.len();
        let share = self
            .interval
            .as_nanos()
            .saturating_mul(all.try_into().unwrap_or(u128::MAX));
        let share = share.div_ceil(self.interval().as_nanos().max(1));
        usize::try_from(share).unwrap_or(usize::MAX).clamp(1, all.max(1))
    }

    /// Adds slots, first due at random moments of their first interval.
    pub(super) fn add(&mut self, slots: &[u32], now: Duration, mut random: impl FnMut() -> u32) {
        let interval = stretched(self.interval, self.slots.len().saturating_add(slots.len()));
        for slot in slots {
            let due = now.saturating_add(fraction(interval, random()));
            if !self.slots.contains_key(slot) {
                self.slots.insert(*slot, Slot { due, last: None });
                self.queue.insert((due, *slot));
            }
        }
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(removed) = self.slots.remove(&slot) {
            self.queue.remove(&(removed.due, slot));
        }
        self.overdue.remove(&slot);
    }

    /// Time of the next decision.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// The slots to probe now.
    pub(super) fn pop_due(
        &mut self,
        now: Duration,
        mut replies: impl FnMut(u32) -> Replies,
        mut random: impl FnMut() -> u32,
    ) -> Vec<u32> {
        let interval = self.interval();
        let mut probed = Vec::new();
        while let Some((due, slot)) = self.queue.first().copied().filter(|(due, _)| *due <= now) {
            self.queue.remove(&(due, slot));
            let last = self.slots.get(&slot).and_then(|slot| slot.last);
            let not_before = match last {
                Some(last) if interval > self.interval => self.not_before(now, slot, last, replies(slot)),
                _ => due,
            };
            let next = if not_before > now {
                Slot {
                    due: not_before,
                    last,
                }
            } else {
                probed.push(slot);
                let reduce =
                    |whole: Duration, random| whole.saturating_sub(fraction(whole / JITTER_DIVISOR, random));
                let random = random();
                let step = reduce(self.interval, random);
                let next = due.saturating_add(step);
                Slot {
                    due: if next > now {
                        next
                    } else {
                        now.saturating_add(step)
                    },
                    last: Some((now, reduce(interval, random))),
                }
            };
            self.queue.insert((next.due, slot));
            self.slots.insert(slot, next);
        }
        probed
    }

    /// Earliest time of the probe after one at `sent`, with a stretched interval of `step`.
    fn not_before(
        &mut self,
        now: Duration,
        slot: u32,
        (sent, step): (Duration, Duration),
        replies: Replies,
    ) -> Duration {
        if replies.complete {
            self.overdue.remove(&slot);
            return sent.saturating_add(step);
        }
        // A reply may take twice the usual time.
        let timeout = self.interval.max(replies.rtt.saturating_mul(2));
        let overdue_at = sent.saturating_add(timeout);
        if now < overdue_at {
            return overdue_at;
        }
        self.overdue.insert(slot);
        sent.saturating_add(timeout.max(stretched(self.interval, self.overdue.len())))
    }
}

/// The interval stretched for a number of next hops.
pub(super) fn stretched(interval: Duration, next_hops: usize) -> Duration {
    let next_hops = u32::try_from(next_hops).unwrap_or(u32::MAX);
    INTERVAL_EACH.saturating_mul(next_hops).max(interval)
}

/// A random part of a duration.
fn fraction(whole: Duration, random: u32) -> Duration {
    let nanos = whole.as_nanos().saturating_mul(random.into()) >> 32;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::liveness::{ReceivedReply, State};
    use mc_gateway_common::nexthop_select::mix;
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);
    const ANSWERED: Replies = Replies {
        complete: true,
        rtt: Duration::from_millis(1),
    };
    const UNANSWERED: Replies = Replies {
        complete: false,
        ..ANSWERED
    };
    /// Most probes a second to next hops that answer.
    const MAX_RATE: u32 = 2_000;

    fn pop(schedule: &mut Schedule, now: Duration) -> Vec<u32> {
        schedule.pop_due(now, |_| ANSWERED, || 0)
    }

    #[test]
    fn first_probes_are_spread_over_an_interval() {
        let mut schedule = Schedule::new(INTERVAL);
        schedule.add(&[1], Duration::from_secs(1), || 0);
        schedule.add(&[2], Duration::from_secs(1), || u32::MAX);
        assert_eq!(schedule.next_due(), Some(Duration::from_secs(1)));
        assert_eq!(pop(&mut schedule, Duration::from_secs(1)), [1]);
        assert_eq!(pop(&mut schedule, Duration::from_millis(1_100)), [2, 1]);
    }

    #[test]
    fn no_burst_after_a_stall() {
        let mut schedule = Schedule::new(INTERVAL);
        schedule.add(&[1], Duration::ZERO, || 0);
        let late = Duration::from_mins(1);
        assert_eq!(pop(&mut schedule, late), [1]);
        assert_eq!(pop(&mut schedule, late), Vec::<u32>::new());
        assert_eq!(schedule.next_due(), Some(late + INTERVAL));
    }

    #[test]
    fn a_removed_slot_is_never_due() {
        let mut schedule = Schedule::new(INTERVAL);
        schedule.add(&[1], Duration::ZERO, || 0);
        schedule.remove(1);
        assert_eq!(schedule.next_due(), None);
    }

    #[test]
    fn the_interval_grows_with_the_number_of_next_hops() {
        let of = |next_hops| stretched(Duration::from_millis(90), next_hops).as_millis();
        assert_eq!([0, 1, 16, 162].map(of), [90, 90, 90, 90]);
        assert_eq!([163, 1_000, 4_080].map(of), [90, 555, 2_266]);
        assert!(stretched(Duration::from_millis(90), 163) > Duration::from_millis(90));
    }

    #[test]
    fn each_next_hop_is_read_as_often_as_probed() {
        for (next_hops, share) in [(0, 1), (1, 1), (150, 150), (4_080, 181)] {
            let mut schedule = Schedule::new(INTERVAL);
            let slots: Vec<u32> = (1..=next_hops).collect();
            schedule.add(&slots, Duration::ZERO, || 0);
            assert_eq!(schedule.share(), share, "{next_hops}");
        }
    }

    /// A sequence of numbers.
    fn random(mut number: u32) -> impl FnMut() -> u32 {
        move || {
            number = mix(number, 1);
            number
        }
    }

    /// Sends the probes of some next hops for `time`; returns the send times of each probe.
    fn run(
        next_hops: u32,
        time: Duration,
        replies: impl Fn(u32, Duration) -> Replies,
    ) -> Vec<(Duration, u32)> {
        let mut schedule = Schedule::new(INTERVAL);
        let mut random = random(next_hops);
        let slots: Vec<u32> = (1..=next_hops).collect();
        schedule.add(&slots, Duration::ZERO, &mut random);
        let mut sent = Vec::new();
        while let Some(now) = schedule.next_due().filter(|now| *now <= time) {
            let probed = schedule.pop_due(now, |slot| replies(slot, now), &mut random);
            sent.extend(probed.into_iter().map(|slot| (now, slot)));
        }
        sent
    }

    /// Average number of probes a second, and the largest number in one second.
    fn rates(sent: &[(Duration, u32)], time: u32) -> (u32, u32) {
        let mut counts = BTreeMap::new();
        for (at, _) in sent {
            *counts.entry(at.as_secs()).or_insert(0) += 1;
        }
        (
            counts.values().sum::<u32>() / time,
            counts.into_values().max().unwrap_or_default(),
        )
    }

    #[test]
    fn the_rate_of_all_probes_is_bounded() {
        for next_hops in [1_000, 4_080, 16_383] {
            let time = 30;
            let rates = |replies| {
                rates(
                    &run(next_hops, Duration::from_secs(time.into()), |_, _| replies),
                    time,
                )
            };
            let (average, peak) = rates(ANSWERED);
            assert!(
                average <= MAX_RATE && peak <= MAX_RATE * 3 / 2,
                "{next_hops}: {average}, {peak}"
            );
            // Every next hop is overdue.
            let (average, peak) = rates(UNANSWERED);
            assert!(
                average <= 2 * MAX_RATE && peak <= 2 * MAX_RATE * 3 / 2,
                "{next_hops}: {average}, {peak}"
            );
        }
    }

    #[test]
    fn next_hops_without_replies_do_not_delay_the_probes_of_others() {
        let dead = |slot, _| if slot % 2 == 0 { UNANSWERED } else { ANSWERED };
        let sent = run(4_000, Duration::from_secs(30), dead);
        let gaps = |slot: u32| {
            let times: Vec<Duration> = sent
                .iter()
                .filter(|(_, of)| *of == slot)
                .map(|(at, _)| *at)
                .collect();
            times
                .windows(2)
                .map(|pair| pair[1].saturating_sub(pair[0]))
                .max()
                .unwrap()
        };
        assert!(gaps(1) <= stretched(INTERVAL, 4_000), "{:?}", gaps(1));
        assert!(sent.iter().filter(|(_, slot)| *slot == 2).count() > 20);
    }

    /// A path whose two directions may lose packets independently. Only replies to probes count: data of the peer
    /// arrives also while no packet reaches the peer.
    #[derive(Clone, Copy, Debug)]
    struct Path {
        rtt: Duration,
        requests_lost: bool,
        replies_lost: bool,
        fails_at: Duration,
    }

    impl Path {
        fn answers(self, sent: Duration) -> bool {
            let failed = sent >= self.fails_at;
            !failed || !(self.requests_lost || self.replies_lost)
        }
    }

    /// Time from the failure of one path among many until its next hop is dead, if it dies within `limit`.
    fn detection(next_hops: u32, path: Path, limit: Duration) -> Option<Duration> {
        const DETECT: u32 = 3;
        const SLOT: u32 = 1;
        let mut schedule = Schedule::new(INTERVAL);
        let mut random = random(next_hops);
        let slots: Vec<u32> = (1..=next_hops).collect();
        schedule.add(&slots, Duration::ZERO, &mut random);
        let mut probes = BTreeMap::new();
        let mut sent = ProbeSent { id: 1, sequence: 0 };
        let mut seen = ProbeReply {
            id: 1,
            ..ProbeReply::default()
        };
        while let Some(now) = schedule.next_due().filter(|now| *now < path.fails_at + limit) {
            let arrived: Vec<u32> = probes
                .iter()
                .filter(|(_, at)| **at + path.rtt <= now && path.answers(**at))
                .map(|(sequence, _)| *sequence)
                .collect();
            for sequence in arrived {
                let at: Duration = probes.remove(&sequence).unwrap();
                let reply = ReceivedReply {
                    sequence,
                    rtt: u32::try_from(path.rtt.as_nanos()).unwrap(),
                    now: u64::try_from((at + path.rtt).as_nanos()).unwrap().max(1),
                };
                seen = liveness::accept_reply(sent, seen, reply, DETECT, 1_000).unwrap_or(seen);
            }
            if liveness::state(1, sent, seen, DETECT) != State::Alive {
                return Some(now.saturating_sub(path.fails_at));
            }
            let of = |slot| {
                if slot == SLOT {
                    Replies::new(sent, seen)
                } else {
                    ANSWERED
                }
            };
            if schedule.pop_due(now, of, &mut random).contains(&SLOT) {
                sent.sequence += 1;
                probes.insert(sent.sequence, now);
                if liveness::state(1, sent, seen, DETECT) == State::Dead {
                    return Some(now.saturating_sub(path.fails_at));
                }
            }
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Loss in one direction alone is detected, within one stretched and three configured intervals, or as many
        /// round trips on a longer path.
        #[test]
        fn loss_of_requests_or_of_replies_alone_is_detected(
            next_hops in prop::sample::select(vec![1_u32, 16, 180, 500, 4_080]),
            requests_lost: bool,
            fails_after in 3_000..8_000_u64,
            rtt in 1..90_u64,
        ) {
            let path = Path {
                rtt: Duration::from_millis(rtt),
                requests_lost,
                replies_lost: !requests_lost,
                fails_at: Duration::from_millis(fails_after),
            };
            let bound = stretched(INTERVAL, next_hops as usize) + 3 * INTERVAL.max(2 * path.rtt);
            let took = detection(next_hops, path, Duration::from_mins(1));
            prop_assert!(took.is_some_and(|took| took <= bound), "{took:?} > {bound:?}");
        }

        /// A path without loss never dies.
        #[test]
        fn a_path_without_loss_never_dies(
            next_hops in prop::sample::select(vec![1_u32, 180, 4_080]),
            rtt in 1..250_u64,
        ) {
            let path = Path {
                rtt: Duration::from_millis(rtt),
                requests_lost: false,
                replies_lost: false,
                fails_at: Duration::from_secs(1),
            };
            prop_assert_eq!(detection(next_hops, path, Duration::from_secs(20)), None);
        }

        #[test]
        fn one_probe_an_interval(randoms in prop::collection::vec(any::<u32>(), 100)) {
            let mut schedule = Schedule::new(INTERVAL);
            schedule.add(&[1], Duration::ZERO, || 0);
            let mut last = None;
            for random in randoms {
                let now = schedule.next_due().unwrap();
                prop_assert_eq!(schedule.pop_due(now, |_| UNANSWERED, || random), [1]);
                if let Some(last) = last {
                    let gap = now.saturating_sub(last);
                    prop_assert!(gap <= INTERVAL && gap >= INTERVAL * 9 / 10, "{:?}", gap);
                }
                last = Some(now);
            }
        }
    }
}
