//! Path MTU discovery with padded probes (DPLPMTUD, RFC 8899). Pure.
//!
//! *Guarantees*: the path MTU is the link MTU until three probes of that size go unanswered while smaller ones are
//! answered; from then on only a confirmed size is used, at least 1280 bytes; larger sizes are retried periodically.
//! A dead path changes nothing.

use std::time::Duration;

/// Smallest path MTU: the minimum of an IPv6 link (RFC 8200 section 5).
pub(super) const BASE_PLPMTU: u32 = 1280;
/// Time to wait for a reply (`PROBE_TIMER`, RFC 8899 section 5.1.1: not below one second).
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Consecutive unanswered probes of one size that prove it too large (`MAX_PROBES`, RFC 8899 section 5.1.2).
const MAX_PROBES: u32 = 3;
/// Interval of confirmation: the longest time that a shrunk path drops packets unnoticed.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(10);
/// Time from a search to the next attempt at larger sizes (`PMTU_RAISE_TIMER`).
const RAISE_INTERVAL: Duration = Duration::from_mins(1);
/// Largest distance in bytes between a confirmed and a failed size at the end of a search.
const SEARCH_RESOLUTION: u32 = 8;

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

    /// The probe to send now, if one is due. `alive`: whether small probes are answered.
    pub(super) fn next_probe(&mut self, now: Duration, alive: bool) -> Option<PmtuProbe> {
        if !alive {
            // A dead path explains the missing reply.
            if self.waiting.take().is_some() {
                self.phase = Phase::Idle(now.saturating_add(PROBE_TIMEOUT));
            }
            return None;
        }
        if let Some(waiting) = self.waiting {
            if now < waiting.since.saturating_add(PROBE_TIMEOUT) {
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
            _ => self.phase = Phase::Idle(now.saturating_add(CONFIRM_INTERVAL)),
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
            self.phase = Phase::Idle(now.saturating_add(CONFIRM_INTERVAL));
        }
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

    /// Runs the search for `ticks` over a path with MTU `path`; returns the probed sizes.
    fn run(search: &mut PmtuSearch, now: &mut Duration, ticks: u32, path: u32, alive: bool) -> Vec<u32> {
        let mut sizes = Vec::new();
        for _ in 0..ticks {
            *now += TICK;
            if let Some(probe) = search.next_probe(*now, alive) {
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
        let probe = search.next_probe(Duration::from_secs(2), true).unwrap();
        assert_eq!(probe.size, 1500);
        search.acknowledge(probe.sequence + 1, 1500, Duration::from_secs(2));
        search.acknowledge(probe.sequence, 1400, Duration::from_secs(2));
        assert_eq!(search.path_mtu(), 1300);
        search.acknowledge(probe.sequence, 1500, Duration::from_secs(2));
        assert_eq!(search.path_mtu(), 1500);
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
