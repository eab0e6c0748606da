//! Status of every probed next hop, for the log and the metrics.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use mc_gateway_common::abi::liveness::{ProbeReply, ProbeSent};
use mc_gateway_common::liveness::{self, State};
use tracing::{info, warn};

/// Status of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHopStatus {
    /// [`mc_gateway_common::abi::NextHop::id`].
    pub id: u32,
    /// Its underlay address.
    pub addr: IpAddr,
    /// Liveness state.
    pub state: State,
    /// Round-trip time of the newest answer; none before the first.
    pub rtt: Option<Duration>,
    /// Probes since the newest one that was answered.
    pub unanswered: u32,
    /// Length in bytes of the largest outer IP packet the path carries.
    pub path_mtu: u32,
}

/// Status of all probed next hops, by slot in `mc_nexthops`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeStatus {
    /// The next hops.
    pub next_hops: BTreeMap<u32, NextHopStatus>,
}

impl ProbeStatus {
    /// Path MTUs by next-hop ID.
    #[must_use]
    pub fn path_mtus(&self) -> BTreeMap<u32, u32> {
        self.next_hops
            .values()
            .map(|next_hop| (next_hop.id, next_hop.path_mtu))
            .collect()
    }

    /// Replaces the status of some slots and removes slots that are no longer probed. Logs each next hop that changed
    /// its state or its path MTU; returns whether one did, or was added or removed.
    pub(super) fn update(
        &mut self,
        results: BTreeMap<u32, NextHopStatus>,
        is_probed: impl Fn(u32) -> bool,
    ) -> bool {
        let before = self.next_hops.len();
        self.next_hops.retain(|slot, _| is_probed(*slot));
        let mut changed = self.next_hops.len() != before;
        for (slot, now) in results {
            let before = self
                .next_hops
                .insert(slot, now)
                .filter(|before| before.id == now.id);
            if before.map_or(State::Alive, |before| before.state) != now.state {
                now.log_state();
            }
            let size = before.map_or(now.path_mtu, |before| before.path_mtu);
            if size != now.path_mtu {
                info!(next_hop = %now.addr, from = size, to = now.path_mtu, "path MTU of next hop changed");
            }
            changed |=
                before.map(|before| (before.state, before.path_mtu)) != Some((now.state, now.path_mtu));
        }
        changed
    }
}

impl NextHopStatus {
    /// Status from the entries of the maps.
    pub(super) fn new(
        id: u32,
        addr: IpAddr,
        (sent, seen): (ProbeSent, ProbeReply),
        detect: u32,
        path_mtu: u32,
    ) -> Self {
        let answered = seen.id == id && seen.at != 0;
        Self {
            id,
            addr,
            state: liveness::state(id, sent, seen, detect),
            rtt: answered.then(|| Duration::from_nanos(seen.rtt.into())),
            unanswered: liveness::unanswered(sent, seen),
            path_mtu,
        }
    }

    fn log_state(&self) {
        let Self {
            addr,
            state,
            rtt,
            unanswered,
            ..
        } = self;
        let rtt = rtt.map_or_else(|| "unknown".to_owned(), |rtt| format!("{rtt:?}"));
        match state {
            State::Dead => warn!("next hop {addr} dead: {unanswered} probes unanswered, last RTT {rtt}"),
            State::HeldDown => info!("next hop {addr} answers again, RTT {rtt}: held down"),
            State::Alive => info!("next hop {addr} alive: RTT {rtt}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_hop(sent: u32, at: u64, rtt: u32) -> NextHopStatus {
        let sent = ProbeSent {
            id: 7,
            sequence: sent,
        };
        let seen = ProbeReply {
            id: 7,
            sequence: 10,
            at,
            rtt,
            ..ProbeReply::default()
        };
        NextHopStatus::new(7, [192, 0, 2, 1].into(), (sent, seen), 3, 1_500)
    }

    #[test]
    fn a_new_round_trip_time_is_no_change_but_a_death_is() {
        let mut status = ProbeStatus::default();
        let mut update = |next_hop| status.update([(1, next_hop)].into(), |slot| slot == 1);
        let alive = next_hop(11, 5, 1_000);
        assert_eq!(alive.rtt, Some(Duration::from_micros(1)));
        assert!(update(alive), "a new next hop");
        assert!(!update(next_hop(12, 9, 2_000)));
        let dead = next_hop(14, 5, 1_000);
        assert_eq!((dead.state, dead.unanswered), (State::Dead, 4));
        assert!(update(dead));
        assert!(!update(dead));
        assert!(update(NextHopStatus { id: 8, ..alive }), "another next hop");
        assert!(status.update(BTreeMap::new(), |_| false), "a removed one");
        assert_eq!(status, ProbeStatus::default());
    }

    #[test]
    fn results_of_some_slots_leave_those_of_others() {
        let mut status = ProbeStatus::default();
        let first = next_hop(11, 5, 1_000);
        let second = NextHopStatus { id: 8, ..first };
        assert!(status.update([(1, first), (2, second)].into(), |_| true));
        let smaller = NextHopStatus {
            path_mtu: 1_400,
            ..second
        };
        assert!(status.update([(2, smaller)].into(), |_| true));
        assert_eq!(status.path_mtus(), [(7, 1_500), (8, 1_400)].into());
    }

    #[test]
    fn before_the_first_answer_there_is_no_round_trip_time() {
        assert_eq!(next_hop(11, 0, 0).rtt, None);
    }
}
