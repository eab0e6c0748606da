//! Search for changes by other programs of which the kernel notifies no process (pins, links, contents of maps), and of
//! `rp_filter`: `rtnetlink` cannot decode its notification (`RTM_NEWNETCONF`).

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::AgentError;
use super::reconcile::Agent;
use super::schedule::RESYNC;
use crate::host::link;

/// Interval of the search.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two readings of the maps for each entry, which bounds the CPU time: in batches, reading an entry takes
/// less than a microsecond.
const INTERVAL_PER_ENTRY: Duration = Duration::from_micros(100);

/// Results of the last search.
#[derive(Debug)]
pub(super) struct ForeignChanges {
    /// Time at which the maps were read.
    read_at: Instant,
    /// The reverse-path filter of `mc0`.
    rp_filter: Option<String>,
}

impl ForeignChanges {
    /// The maps are read when the agent starts.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            read_at: now,
            rp_filter: None,
        }
    }

    /// Whether another program has changed the data path. Changed maps are read again by the next reconcile.
    pub(super) fn find(&mut self, agent: &mut Agent, now: Instant) -> bool {
        let pins = agent.datapath.is_pinned();
        let links = agent.datapath.is_attached();
        let rp_filter = link::read_rp_filter(&agent.config.paths.device);
        let same_filter = self.rp_filter == rp_filter;
        self.rp_filter = rp_filter;
        if now.saturating_duration_since(self.read_at) >= reading_interval(agent.maps.entries()) {
            self.read_at = now;
            let unchanged = agent.maps.is_unchanged();
            let unchanged = unchanged
                .map_err(AgentError::from)
                .inspect_err(|error| agent.log.error(error));
            if !unchanged.unwrap_or(false) && !agent.maps_stale {
                warn!("contents of maps changed by another program: restored");
                agent.maps_stale = true;
            }
        }
        !pins || !links || !same_filter || agent.maps_stale
    }
}

/// Time between two readings of maps with some entries: the interval of the search for up to 10,000 entries, at
/// most that of the resync, which reads all maps.
fn reading_interval(entries: usize) -> Duration {
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    // Half an interval less: the search may be some milliseconds early.
    INTERVAL_PER_ENTRY
        .saturating_mul(entries)
        .clamp(SEARCH_INTERVAL, RESYNC)
        .saturating_sub(SEARCH_INTERVAL / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_entries_are_read_by_every_search() {
        assert!(reading_interval(0) < SEARCH_INTERVAL);
        assert!(reading_interval(10_000) < SEARCH_INTERVAL);
    }

    #[test]
    fn more_entries_are_read_less_often_and_at_least_as_often_as_the_resync() {
        assert_eq!(reading_interval(100_000), Duration::from_millis(9_500));
        assert_eq!(
            reading_interval(usize::MAX),
            RESYNC.saturating_sub(SEARCH_INTERVAL / 2)
        );
    }
}
