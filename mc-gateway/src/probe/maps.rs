//! The liveness maps, and where the numbers of a member go on from.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{Array, MapData};
use mc_gateway_common::abi::liveness::{RTT, Rtt, SEEN, SENT, Seen, Sent};
use mc_gateway_common::abi::{self, MAX_MEMBERS};
use mc_gateway_common::liveness;

use super::targets::outer_mtu;
use crate::maps::{MapsError, map_error, open};

/// The maps of this node.
pub(crate) struct ProbeMaps {
    sent: Array<MapData, Sent>,
    seen: Array<MapData, Seen>,
    rtt: Array<MapData, Rtt>,
}

impl ProbeMaps {
    /// Opens the maps pinned in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            sent: open(dir, SENT)?,
            seen: open(dir, SEEN)?,
            rtt: open(dir, RTT)?,
        })
    }

    /// What was sent to the member in a slot, and what it answered.
    pub(super) fn read(&self, slot: u32) -> Result<(Sent, Seen), MapsError> {
        let sent = self.sent.get(&slot, 0).map_err(map_error(SENT, "read"))?;
        let seen = self.seen.get(&slot, 0).map_err(map_error(SEEN, "read"))?;
        Ok((sent, seen))
    }

    /// What paths were found to carry by an agent before this one, as outer IP packets in bytes, by member
    /// id.
    pub(crate) fn path_mtus(
        &self,
        members: &BTreeMap<u32, abi::Member>,
    ) -> Result<BTreeMap<u32, u32>, MapsError> {
        let mut sizes = BTreeMap::new();
        for (slot, member) in members {
            let (sent, _) = self.read(*slot)?;
            if sent.id == member.id {
                sizes.insert(member.id, outer_mtu(member));
            }
        }
        Ok(sizes)
    }

    /// Notes the last probe sent to a slot.
    pub(super) fn set_sent(&mut self, slot: u32, sent: Sent) -> Result<(), MapsError> {
        self.sent.set(slot, sent, 0).map_err(map_error(SENT, "write"))
    }

    /// Begins with the member `id` in a slot, or goes on; returns the number of the last probe.
    pub(super) fn resume_or_reset(
        &mut self,
        slot: u32,
        id: u32,
        detect: u32,
        random: u32,
    ) -> Result<u32, MapsError> {
        if let Some(sequence) = resume_sequence(id, self.read(slot)?, detect) {
            self.set_sent(slot, Sent { id, sequence })?;
            return Ok(sequence);
        }
        let seen = Seen {
            id,
            sequence: random,
            ..Seen::default()
        };
        // In this order: a number that was sent makes the program look at what was seen.
        self.seen.set(slot, seen, 0).map_err(map_error(SEEN, "write"))?;
        self.rtt
            .set(slot, Rtt::default(), 0)
            .map_err(map_error(RTT, "write"))?;
        let sequence = random;
        self.set_sent(slot, Sent { id, sequence })?;
        Ok(sequence)
    }

    /// Forgets what was sent to every slot but those wanted: who is not asked is alive.
    pub(super) fn reset_except(&mut self, wanted: impl Fn(u32) -> bool) -> Result<(), MapsError> {
        for slot in (0..MAX_MEMBERS).filter(|slot| !wanted(*slot)) {
            let sent = self.sent.get(&slot, 0).map_err(map_error(SENT, "read"))?;
            if sent != Sent::default() {
                self.set_sent(slot, Sent::default())?;
            }
        }
        Ok(())
    }
}

/// Where an agent before this one left off with the member `id`; none where it never asked.
///
/// Who was dead stays dead until it answers. Who was alive has as many probes as anybody before it counts
/// as dead: the numbers go on from the last answer, not from the last probe.
fn resume_sequence(id: u32, (sent, seen): (Sent, Seen), detect: u32) -> Option<u32> {
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

    fn state(id: u32, sent: u32, seen: u32) -> (Sent, Seen) {
        let known = Seen {
            id,
            sequence: seen,
            ..Seen::default()
        };
        (Sent { id, sequence: sent }, known)
    }

    #[test]
    fn after_a_restart_nobody_dies_before_fresh_probes_went_unanswered() {
        // Three of three probes were on their way when the agent ended.
        assert_eq!(resume_sequence(7, state(7, 13, 10), 3), Some(10));
        assert_eq!(resume_sequence(7, state(7, 10, 10), 3), Some(10));
        // Wrapped around.
        assert_eq!(resume_sequence(7, state(7, 1, u32::MAX), 3), Some(u32::MAX));
    }

    #[test]
    fn who_was_dead_stays_dead() {
        assert_eq!(resume_sequence(7, state(7, 14, 10), 3), Some(14));
    }

    #[test]
    fn another_member_begins_anew() {
        assert_eq!(resume_sequence(8, state(7, 14, 10), 3), None);
    }
}
