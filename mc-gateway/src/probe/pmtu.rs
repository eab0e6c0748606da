//! Path MTU discovery with padded probes (DPLPMTUD, RFC 8899). Pure.
//!
//! *Guarantees*: the path MTU is the link MTU until three probes of that size go unanswered while smaller ones are
//! answered; from then on only a confirmed size is used, at least 1280 bytes; larger sizes are retried periodically.
//! A dead path changes nothing. An ICMP error about a probe alone changes nothing either, because any host may forge
//! it: it makes the next probes follow faster.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Smallest path MTU: the minimum of an IPv6 link (RFC 8200 section 5).
pub(super) const BASE_PLPMTU: u32 = 1280;
/// Time to wait for a reply (`PROBE_TIMER`, RFC 8899 section 5.1.1: not below one second).
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The same after an ICMP error about a probe: four round trips, within these limits.
const HINTED_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(200)..=PROBE_TIMEOUT;
/// Time from one accepted ICMP error to the next.
const HINT_INTERVAL: Duration = Duration::from_secs(1);
/// Consecutive unanswered probes of one size that prove it too large (`MAX_PROBES`, RFC 8899 section 5.1.2).
const MAX_PROBES: u32 = 3;
/// Limits of the interval of confirmation: the longest time that a shrunk path drops packets unnoticed.
const CONFIRM_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(10);
/// Its length for each next hop: a node sends no more than 125 confirmations per second below the upper limit.
const CONFIRM_INTERVAL_EACH: Duration = Duration::from_millis(8);
/// Time from a search to the next attempt at larger sizes (`PMTU_RAISE_TIMER`).
const RAISE_INTERVAL: Duration = Duration::from_mins(1);
/// Largest distance in bytes between a confirmed and a failed size at the end of a search.
const SEARCH_RESOLUTION: u32 = 8;

/// A path as its small probes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathState {
    /// Whether small probes are answered.
    pub(super) alive: bool,
    /// Round-trip time of the last one.
    pub(super) rtt: Duration,
    /// From [`confirm_interval`].
    pub(super) confirm_interval: Duration,
}

/// Interval at which a node with this number of next hops confirms each path MTU.
pub(super) fn confirm_interval(next_hops: usize) -> Duration {
    let next_hops = u32::try_from(next_hops).unwrap_or(u32::MAX);
    CONFIRM_INTERVAL_EACH
        .saturating_mul(next_hops)
        .clamp(*CONFIRM_INTERVAL.start(), *CONFIRM_INTERVAL.end())
}

/// A probe to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PmtuProbe {
    /// Length of the outer IP packet in bytes.
    pub(super) size: u32,
    /// Its number.
    pub(super) sequence: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No probe until then.
    Idle(Duration),
    /// Confirms the size in use.
    Confirm,
    /// Searches between `works` and `fails`.
    Search,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    probe: PmtuProbe,
    since: Duration,
    tries: u32,
}

/// The search on one path. All sizes are lengths of outer IP packets; times count from any fixed moment.
#[derive(Clone, Debug)]
pub(super) struct PmtuSearch {
    link_mtu: u32,
    works: u32,
    /// Smallest size that does not fit; one more than the link's where none is known.
    fails: u32,
    phase: Phase,
    waiting: Option<Pending>,
    raise_at: Duration,
    sequence: u32,
    confirm_interval: Duration,
    /// An ICMP error was accepted since the last confirmation.
    hinted: bool,
    next_hint_at: Duration,
}

impl PmtuSearch {
    /// A path over a link of that MTU with a path MTU known before.
    pub(super) fn new(link: u32, known: u32, now: Duration, sequence: u32) -> Self {
        let works = known.clamp(BASE_PLPMTU.min(link), link);
        Self {
            link_mtu: link,
            works,
            fails: link.saturating_add(1),
            phase: Phase::Idle(now.saturating_add(PROBE_TIMEOUT)),
            waiting: None,
            raise_at: now,
            sequence,
            confirm_interval: *CONFIRM_INTERVAL.end(),
            hinted: false,
            next_hint_at: now,
        }
    }

    /// MTU of the link.
    pub(super) fn link_mtu(&self) -> u32 {
        self.link_mtu
    }

    /// The path MTU.
    pub(super) fn path_mtu(&self) -> u32 {
        self.works
    }

    /// Whether a reply to a probe is missing.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Records an ICMP error about a probe that is too big for the path.
    pub(super) fn hint(&mut self, now: Duration) {
        if self.waiting.is_some() && now >= self.next_hint_at {
            self.hinted = true;
            self.next_hint_at = now.saturating_add(HINT_INTERVAL);
        }
    }

    /// Time to wait for a reply.
    fn timeout(&self, rtt: Duration) -> Duration {
        if self.hinted {
            let round_trips = rtt.saturating_mul(4);
            round_trips.clamp(*HINTED_TIMEOUT.start(), *HINTED_TIMEOUT.end())
        } else {
            PROBE_TIMEOUT
        }
    }

    /// The probe to send now, if one is due.
    pub(super) fn next_probe(&mut self, now: Duration, path: PathState) -> Option<PmtuProbe> {
        self.confirm_interval = path.confirm_interval;
        if !path.alive {
            // A dead path explains the missing reply.
            if self.waiting.take().is_some() {
                self.phase = Phase::Idle(now.saturating_add(PROBE_TIMEOUT));
            }
            return None;
        }
        if let Some(waiting) = self.waiting {
            if now < waiting.since.saturating_add(self.timeout(path.rtt)) {
                return None;
            }
            if waiting.tries < MAX_PROBES {
                return Some(self.start_probe(waiting.probe.size, waiting.tries.saturating_add(1), now));
            }
            self.record_loss(waiting.probe.size, now);
        }
        match self.phase {
            Phase::Idle(until) if now < until => None,
            Phase::Idle(_) if self.works < self.link_mtu && now >= self.raise_at => {
                self.phase = Phase::Search;
                self.fails = self.link_mtu.saturating_add(1);
                // The full size is the most likely one.
                Some(self.start_probe(self.link_mtu, 1, now))
            }
            Phase::Idle(_) => {
                self.phase = Phase::Confirm;
                Some(self.start_probe(self.works, 1, now))
            }
            Phase::Confirm => None,
            Phase::Search => Some(self.start_probe(self.midpoint(), 1, now)),
        }
    }

    /// Records a reply; only the pending probe counts.
    pub(super) fn acknowledge(&mut self, sequence: u32, size: u32, now: Duration) {
        let expected = PmtuProbe { size, sequence };
        if self.waiting.is_none_or(|waiting| waiting.probe != expected) {
            return;
        }
        self.waiting = None;
        self.works = self.works.max(size);
        match self.phase {
            Phase::Search => self.finish_if_converged(now),
            _ => self.rest(now),
        }
    }

    fn start_probe(&mut self, size: u32, tries: u32, now: Duration) -> PmtuProbe {
        self.sequence = self.sequence.wrapping_add(1);
        let probe = PmtuProbe {
            size,
            sequence: self.sequence,
        };
        self.waiting = Some(Pending {
            probe,
            since: now,
            tries,
        });
        probe
    }

    fn record_loss(&mut self, size: u32, now: Duration) {
        self.waiting = None;
        if self.phase == Phase::Search {
            self.fails = size;
        } else {
            // A black hole (RFC 8899 section 4.3): restart from the safe size.
            self.fails = self.works;
            self.works = BASE_PLPMTU.min(self.link_mtu);
            self.phase = Phase::Search;
        }
        self.finish_if_converged(now);
    }

    fn finish_if_converged(&mut self, now: Duration) {
        if self.fails.saturating_sub(self.works) <= SEARCH_RESOLUTION || self.works >= self.link_mtu {
            self.raise_at = now.saturating_add(RAISE_INTERVAL);
            self.rest(now);
        }
    }

    /// Waits for the next confirmation.
    fn rest(&mut self, now: Duration) {
        self.hinted = false;
        self.phase = Phase::Idle(now.saturating_add(self.confirm_interval));
    }

    fn midpoint(&self) -> u32 {
        let gap = self.fails.saturating_sub(self.works);
        self.works.saturating_add(gap / 2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    const fn path(alive: bool) -> PathState {
        PathState {
            alive,
            rtt: Duration::from_millis(1),
            confirm_interval: Duration::from_secs(10),
        }
    }

    /// Runs the search for `ticks` over a path with MTU `path`; returns the probed sizes.
    fn run(search: &mut PmtuSearch, now: &mut Duration, ticks: u32, path: u32, alive: bool) -> Vec<u32> {
        let mut sizes = Vec::new();
        for _ in 0..ticks {
            *now += TICK;
            if let Some(probe) = search.next_probe(*now, self::path(alive)) {
                sizes.push(probe.size);
                if alive && probe.size <= path {
                    search.acknowledge(probe.sequence, probe.size, *now);
                }
            }
        }
        sizes
    }

    #[test]
    fn a_path_as_wide_as_its_link_is_confirmed_now_and_then() {
        let (mut search, mut now) = (PmtuSearch::new(1500, 1500, Duration::ZERO, 7), Duration::ZERO);
        let sizes = run(&mut search, &mut now, 600, 1500, true);
        assert!(
            (5..=7).contains(&sizes.len()) && sizes.iter().all(|size| *size == 1500),
            "{sizes:?}"
        );
        assert_eq!(search.path_mtu(), 1500);
    }

    #[test]
    fn a_black_hole_is_found_and_the_size_rises_again() {
        let (mut search, mut now) = (PmtuSearch::new(1500, 1500, Duration::ZERO, 7), Duration::ZERO);
        run(&mut search, &mut now, 600, 1400, true);
        assert!(
            (1393..=1400).contains(&search.path_mtu()),
            "{}",
            search.path_mtu()
        );
        run(&mut search, &mut now, 1200, 1500, true);
        assert_eq!(search.path_mtu(), 1500);
    }

    #[test]
    fn within_four_seconds_the_size_fits_the_path() {
        let (mut search, mut now) = (PmtuSearch::new(9000, 9000, Duration::ZERO, 7), Duration::ZERO);
        run(&mut search, &mut now, 42, 1300, true);
        assert_eq!(search.path_mtu(), BASE_PLPMTU);
    }

    #[test]
    fn a_dead_path_keeps_the_size() {
        let (mut search, mut now) = (PmtuSearch::new(1500, 1500, Duration::ZERO, 7), Duration::ZERO);
        run(&mut search, &mut now, 15, 0, true);
        run(&mut search, &mut now, 600, 0, false);
        assert_eq!(search.path_mtu(), 1500);
    }

    #[test]
    fn a_small_link_limits_the_search() {
        let (mut search, mut now) = (PmtuSearch::new(1000, 1500, Duration::ZERO, 7), Duration::ZERO);
        run(&mut search, &mut now, 600, 900, true);
        assert_eq!(search.path_mtu(), 1000);
    }

    #[test]
    fn replies_to_other_probes_are_ignored() {
        let mut search = PmtuSearch::new(1500, 1300, Duration::ZERO, 7);
        let probe = search.next_probe(Duration::from_secs(2), path(true)).unwrap();
        assert_eq!(probe.size, 1500);
        search.acknowledge(probe.sequence + 1, 1500, Duration::from_secs(2));
        search.acknowledge(probe.sequence, 1400, Duration::from_secs(2));
        assert_eq!(search.path_mtu(), 1300);
        search.acknowledge(probe.sequence, 1500, Duration::from_secs(2));
        assert_eq!(search.path_mtu(), 1500);
    }

    /// As [`run`], with an ICMP error in each tick.
    fn run_with_hints(search: &mut PmtuSearch, now: &mut Duration, ticks: u32, fits: u32) -> Vec<u32> {
        let mut sizes = Vec::new();
        for _ in 0..ticks {
            search.hint(*now);
            sizes.extend(run(search, now, 1, fits, true));
        }
        sizes
    }

    /// The moment of the next confirmation, after a long time on a wide path.
    fn confirming() -> (PmtuSearch, Duration) {
        let (mut search, mut now) = (PmtuSearch::new(1500, 1500, Duration::ZERO, 7), Duration::ZERO);
        run(&mut search, &mut now, 600, 1500, true);
        while run(&mut search, &mut now, 1, 1400, true).is_empty() {}
        assert_eq!(search.path_mtu(), 1500);
        (search, now)
    }

    #[test]
    fn within_a_second_of_an_icmp_error_the_size_fits_the_path() {
        let (mut search, mut now) = confirming();
        run_with_hints(&mut search, &mut now, 8, 1400);
        assert!(search.path_mtu() <= 1400, "{}", search.path_mtu());
        run_with_hints(&mut search, &mut now, 50, 1400);
        assert!(
            (1393..=1400).contains(&search.path_mtu()),
            "{}",
            search.path_mtu()
        );
        // Without one it takes three timeouts of a second.
        let (mut search, mut now) = confirming();
        run(&mut search, &mut now, 25, 1400, true);
        assert_eq!(search.path_mtu(), 1500);
    }

    #[test]
    fn forged_icmp_errors_change_no_size_and_cause_no_flood() {
        let (mut search, mut now) = (PmtuSearch::new(1500, 1500, Duration::ZERO, 7), Duration::ZERO);
        let sizes = run_with_hints(&mut search, &mut now, 600, 1500);
        assert!(
            sizes.len() <= 7 && sizes.iter().all(|size| *size == 1500),
            "{sizes:?}"
        );
        assert_eq!(search.path_mtu(), 1500);
    }

    /// A reply within the round-trip time is always in time.
    #[test]
    fn forged_icmp_errors_change_no_size_of_a_long_path() {
        let mut search = PmtuSearch::new(1500, 1500, Duration::ZERO, 7);
        let long = PathState {
            rtt: Duration::from_millis(600),
            ..path(true)
        };
        let mut pending = Vec::new();
        for tick in 1..600_u32 {
            let now = TICK * tick;
            search.hint(now);
            if let Some(probe) = search.next_probe(now, long) {
                pending.push((now + long.rtt, probe));
            }
            for (_, probe) in pending.extract_if(.., |(at, _)| *at <= now) {
                search.acknowledge(probe.sequence, probe.size, now);
            }
            assert_eq!(search.path_mtu(), 1500, "{now:?}");
        }
    }

    #[test]
    fn few_next_hops_are_confirmed_twice_a_second_and_many_as_before() {
        assert_eq!(confirm_interval(1), Duration::from_millis(500));
        assert_eq!(confirm_interval(125), Duration::from_secs(1));
        assert_eq!(confirm_interval(16_384), Duration::from_secs(10));
    }

    proptest! {
        /// The search converges for every sequence of path MTUs.
        #[test]
        fn the_search_ends_at_the_path(link in BASE_PLPMTU..9_100_u32, paths in prop::collection::vec(BASE_PLPMTU..9_100_u32, 1..4)) {
            let (mut search, mut now) = (PmtuSearch::new(link, link, Duration::ZERO, 7), Duration::ZERO);
            for path in paths {
                run(&mut search, &mut now, 2_000, path, true);
                let fits = path.min(link);
                prop_assert!(search.path_mtu() <= fits && search.path_mtu() + SEARCH_RESOLUTION > fits, "{} of {}", search.path_mtu(), fits);
            }
        }
    }
}
