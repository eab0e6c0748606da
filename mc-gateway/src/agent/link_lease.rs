//! The time until which programs use the link addresses of next hops.
//!
//! Without it, packets to a neighbor whose MAC address changes while the agent hangs or is gone would go to the old one
//! for good, and no probe would notice: the kernel sends those to the new one. Programs leave link addresses to the
//! kernel as soon as the agent does not vouch for them.

use std::time::Duration;

use super::AgentError;
use super::reconcile::Agent;
use crate::clock::monotonic_ns;
use crate::host::neighbors;

/// Interval at which the time is extended.
pub(super) const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which neighbors without traffic by the kernel are confirmed. The kernel considers a neighbor reachable
/// for 15 to 45 s (`base_reachable_time_ms`).
pub(super) const CONFIRM_INTERVAL: Duration = Duration::from_secs(5);

/// Nanoseconds by which the time is ahead.
const LEASE: u64 = 5_000_000_000;

impl Agent {
    /// Vouches for the link addresses after a reconcile.
    pub(super) fn grant_links(&mut self) {
        self.links_current = true;
        self.renew_links();
    }

    /// Extends the time while the agent has observed all changes.
    pub(super) fn renew_links(&mut self) {
        if self.links_current {
            self.write_links_until(monotonic_ns().saturating_add(LEASE));
        }
    }

    /// Leaves link addresses to the kernel until the next reconcile.
    pub(super) fn withdraw_links(&mut self) {
        if self.links_current {
            self.links_current = false;
            self.write_links_until(0);
        }
    }

    fn write_links_until(&mut self, until: u64) {
        if let Err(error) = self.maps.set_links_until(until) {
            self.log.error(&AgentError::from(error));
        }
    }

    /// Requests the kernel to confirm idle neighbors of next hops and peers: the programs send past its tables. Returns
    /// whether a notification is missing.
    pub(super) async fn confirm_neighbors(&mut self) -> bool {
        let known = self
            .watched
            .borrow()
            .as_ref()
            .map(|watched| watched.neighbors.clone());
        let Some(known) = known else { return false };
        let wanted = known.keys().copied().collect();
        let (found, idle) = match neighbors::observe(&self.handle, wanted).await {
            Ok(found) => found,
            Err(error) => {
                self.log.error(&AgentError::from(error));
                return false;
            }
        };
        for neighbor in idle {
            // A device may have gone meanwhile, which the kernel notifies.
            if let Err(error) = neighbors::confirm(&self.handle, neighbor).await {
                tracing::debug!(%error, "neighbor not confirmed");
            }
        }
        let missed = found != known;
        if missed {
            self.withdraw_links();
            self.known_paths.clear_neighbors();
        }
        missed
    }
}
