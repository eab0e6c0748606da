//! Sequence numbers in the liveness maps, continued after a restart.

use std::collections::BTreeMap;
use std::path::Path;

use mc_gateway_common::abi;
use mc_gateway_common::abi::liveness::{ProbeReply, ProbeSent};
use mc_gateway_common::liveness;

use super::targets::outer_mtu;
use crate::maps::{LivenessMaps, MapsError};

/// The liveness maps as the prober uses them.
pub(crate) struct ProbeMaps(LivenessMaps);

impl ProbeMaps {
    /// Opens the maps pinned in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, MapsError> {
        LivenessMaps::open(dir).map(Self)
    }

    /// Reads the last probe to a slot and its last reply.
    pub(super) fn read(&self, slot: u32) -> Result<(ProbeSent, ProbeReply), MapsError> {
        Ok((self.0.sent(slot)?, self.0.seen(slot)?))
    }

    /// Path MTUs that a previous agent found, as lengths of outer IP packets by next-hop ID.
    pub(crate) fn path_mtus(
        &self,
        next_hops: &BTreeMap<u32, abi::NextHop>,
    ) -> Result<BTreeMap<u32, u32>, MapsError> {
        let mut mtus = BTreeMap::new();
        for (slot, next_hop) in next_hops {
            if self.0.sent(*slot)?.id == next_hop.id {
                mtus.insert(next_hop.id, outer_mtu(next_hop));
            }
        }
        Ok(mtus)
    }

    /// Writes the last probe to a slot.
    pub(super) fn set_sent(&mut self, slot: u32, sent: ProbeSent) -> Result<(), MapsError> {
        self.0.set_sent(slot, sent)
    }

    /// Continues the sequence of the next hop `id` in a slot, or starts a new one at `random`; returns the number of
    /// the last probe.
    pub(super) fn resume_or_reset(
        &mut self,
        slot: u32,
        id: u32,
        detect: u32,
        random: u32,
    ) -> Result<u32, MapsError> {
        if let Some(sequence) = resume_sequence(id, self.read(slot)?, detect) {
            self.set_sent(slot, ProbeSent { id, sequence })?;
            return Ok(sequence);
        }
        let seen = ProbeReply {
            id,
            sequence: random,
            ..ProbeReply::default()
        };
        // The reply is written first: the programs read it as soon as a probe is recorded.
        self.0.reset_seen(slot, seen)?;
        let sequence = random;
        self.set_sent(slot, ProbeSent { id, sequence })?;
        Ok(sequence)
    }

    /// Clears every slot that is not a target: a next hop without probes counts as alive.
    pub(super) fn reset_except(&mut self, is_target: impl Fn(u32) -> bool) -> Result<(), MapsError> {
        let unwanted = |(slot, sent): &(u32, ProbeSent)| *sent != ProbeSent::default() && !is_target(*slot);
        let all: Vec<(u32, ProbeSent)> = self.0.all_sent().collect::<Result<_, _>>()?;
        for (slot, _) in all.into_iter().filter(unwanted) {
            self.set_sent(slot, ProbeSent::default())?;
        }
        Ok(())
    }
}

/// Sequence number at which a previous agent's probes of the next hop `id` continue; `None` if it sent none.
///
/// A dead next hop stays dead until it replies. For a live one the sequence continues at the last reply instead of the
/// last probe, so it has the full number of probes before it counts as dead.
fn resume_sequence(id: u32, (sent, seen): (ProbeSent, ProbeReply), detect: u32) -> Option<u32> {
    if sent.id != id || seen.id != id {
        return None;
    }
    if liveness::unanswered(sent, seen) > detect {
        Some(sent.sequence)
    } else {
        Some(seen.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(id: u32, sent: u32, seen: u32) -> (ProbeSent, ProbeReply) {
        let known = ProbeReply {
            id,
            sequence: seen,
            ..ProbeReply::default()
        };
        (ProbeSent { id, sequence: sent }, known)
    }

    #[test]
    fn a_restart_alone_declares_no_next_hop_dead() {
        // Three of three probes were in flight at the restart.
        assert_eq!(resume_sequence(7, state(7, 13, 10), 3), Some(10));
        assert_eq!(resume_sequence(7, state(7, 10, 10), 3), Some(10));
        // The number has wrapped around.
        assert_eq!(resume_sequence(7, state(7, 1, u32::MAX), 3), Some(u32::MAX));
    }

    #[test]
    fn a_dead_next_hop_stays_dead_after_a_restart() {
        assert_eq!(resume_sequence(7, state(7, 14, 10), 3), Some(14));
    }

    #[test]
    fn another_next_hop_starts_a_new_sequence() {
        assert_eq!(resume_sequence(8, state(7, 14, 10), 3), None);
    }
}
