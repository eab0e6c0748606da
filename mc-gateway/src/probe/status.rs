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

    /// Whether a next hop changed its state or its path MTU.
    pub(super) fn needs_announcement(&self, new: &Self) -> bool {
        let matters = |status: &Self| {
            let next_hops = status.next_hops.iter();
            next_hops
                .map(|(slot, next_hop)| (*slot, next_hop.id, next_hop.state, next_hop.path_mtu))
                .collect::<Vec<_>>()
        };
        matters(self) != matters(new)
    }

    /// Logs the changes since `self`.
    pub(super) fn log_changes(&self, new: &Self) {
        for (slot, now) in &new.next_hops {
            let before = self.next_hops.get(slot).filter(|before| before.id == now.id);
            if before.map_or(State::Alive, |before| before.state) != now.state {
                now.log_state();
            }
            let size = before.map_or(now.path_mtu, |before| before.path_mtu);
            if size != now.path_mtu {
                info!(next_hop = %now.addr, from = size, to = now.path_mtu, "path MTU of next hop changed");
            }
        }
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
        let status = |next_hop| ProbeStatus {
            next_hops: [(1, next_hop)].into(),
        };
        let alive = status(next_hop(11, 5, 1_000));
        assert_eq!(alive.next_hops[&1].rtt, Some(Duration::from_micros(1)));
        assert!(!alive.needs_announcement(&status(next_hop(12, 9, 2_000))));
        let dead = status(next_hop(14, 5, 1_000));
        assert_eq!(
            (dead.next_hops[&1].state, dead.next_hops[&1].unanswered),
            (State::Dead, 4)
        );
        assert!(alive.needs_announcement(&dead));
        assert!(alive.needs_announcement(&ProbeStatus::default()));
    }

    #[test]
    fn before_the_first_answer_there_is_no_round_trip_time() {
        assert_eq!(next_hop(11, 0, 0).rtt, None);
    }
}
