//! The liveness maps: the last probe to each next hop, its last reply and all round-trip times.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{Array, MapData};
use mc_gateway_common::abi;
use mc_gateway_common::abi::liveness::{PROBE_REPLY, PROBE_RTT, PROBE_SENT, ProbeReply, ProbeRtt, ProbeSent};
use mc_gateway_common::liveness::{self, State};

use super::batch;
use super::error::{MapsError, map_error, open};

/// Liveness of one next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHopHealth {
    /// Last probe.
    pub sent: ProbeSent,
    /// Last reply.
    pub seen: ProbeReply,
    /// Round-trip times of all replies.
    pub rtt: ProbeRtt,
}

impl NextHopHealth {
    /// Whether `next_hop` was ever probed.
    #[must_use]
    pub fn is_probed(&self, next_hop: &abi::NextHop) -> bool {
        self.sent.id == next_hop.id && next_hop.id != 0
    }

    /// Its state; `None` without probes.
    #[must_use]
    pub fn state(&self, next_hop: &abi::NextHop, config: &abi::Config) -> Option<State> {
        (config.detect != 0 && self.is_probed(next_hop))
            .then(|| liveness::state(next_hop.id, self.sent, self.seen, config.detect))
    }
}

/// `mc_probe_sent`, `mc_probe_reply` and `mc_probe_rtt`, by next-hop slot.
pub struct LivenessMaps {
    sent: Array<MapData, ProbeSent>,
    seen: Array<MapData, ProbeReply>,
    rtt: Array<MapData, ProbeRtt>,
}

impl LivenessMaps {
    /// Opens the maps pinned in a directory.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            sent: open(maps, PROBE_SENT)?,
            seen: open(maps, PROBE_REPLY)?,
            rtt: open(maps, PROBE_RTT)?,
        })
    }

    /// Reads the entries of some slots.
    pub fn read(&self, slots: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, NextHopHealth>, MapsError> {
        slots
            .map(|slot| {
                let health = NextHopHealth {
                    sent: self.sent(slot)?,
                    seen: self.seen(slot)?,
                    rtt: self.rtt.get(&slot, 0).map_err(map_error(PROBE_RTT, "read"))?,
                };
                Ok((slot, health))
            })
            .collect()
    }

    /// Reads the last probe to every slot.
    pub(crate) fn all_sent(&self) -> impl Iterator<Item = Result<(u32, ProbeSent), MapsError>> {
        batch::entries(&self.sent).map(|entry| entry.map_err(map_error(PROBE_SENT, "read")))
    }

    /// Reads the last probe to a slot.
    pub(crate) fn sent(&self, slot: u32) -> Result<ProbeSent, MapsError> {
        self.sent.get(&slot, 0).map_err(map_error(PROBE_SENT, "read"))
    }

    /// Reads the last reply from a slot.
    pub(crate) fn seen(&self, slot: u32) -> Result<ProbeReply, MapsError> {
        self.seen.get(&slot, 0).map_err(map_error(PROBE_REPLY, "read"))
    }

    /// Writes the last probe to a slot.
    pub(crate) fn set_sent(&mut self, slot: u32, sent: ProbeSent) -> Result<(), MapsError> {
        self.sent
            .set(slot, sent, 0)
            .map_err(map_error(PROBE_SENT, "write"))
    }

    /// Writes the last reply from a slot and clears its round-trip times.
    pub(crate) fn reset_seen(&mut self, slot: u32, seen: ProbeReply) -> Result<(), MapsError> {
        self.seen
            .set(slot, seen, 0)
            .map_err(map_error(PROBE_REPLY, "write"))?;
        self.rtt
            .set(slot, ProbeRtt::default(), 0)
            .map_err(map_error(PROBE_RTT, "write"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_hop_without_probes_has_no_state() {
        let next_hop = abi::NextHop {
            id: 5,
            ..abi::NextHop::default()
        };
        let config = abi::Config {
            detect: 3,
            ..abi::Config::default()
        };
        let mut health = NextHopHealth::default();
        assert_eq!(health.state(&next_hop, &config), None);
        health.sent = ProbeSent { id: 5, sequence: 9 };
        health.seen.id = 5;
        assert_eq!(health.state(&next_hop, &config), Some(State::Dead));
        health.seen.sequence = 8;
        assert_eq!(health.state(&next_hop, &config), Some(State::Alive));
    }
}
