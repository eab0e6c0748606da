//! State of the agent's main loop, for the metrics and the health endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use mc_gateway_common::abi;
use mc_metrics::prometheus_client::metrics::histogram::Histogram;

use crate::aggregation::Aggregation;
use crate::cidr::from_abi_addr;
use crate::flow_names::FlowNames;
use crate::id_names::IdNames;
use crate::maps::{MapContents, nexthop_slots};
use crate::objects::FieldError;
use crate::transit::Transit;

/// Largest age of the last iteration before the process counts as stuck; the loop reconciles every 30 s without a
/// trigger.
pub(super) const LOOP_TIMEOUT: Duration = Duration::from_secs(90);

/// Labels of a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopLabels {
    /// Slot in the maps.
    pub slot: u32,
    /// The entry.
    pub next_hop: abi::NextHop,
    /// Name of its group.
    pub group: String,
    /// Kind and name of its object.
    pub name: String,
}

/// Labels of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLabels {
    /// Slot in `mc_peer_stats`.
    pub slot: u32,
    /// Its address.
    pub addr: IpAddr,
    /// Kind and name of its object.
    pub name: String,
}

/// State of the agent.
#[derive(Clone, Debug)]
pub struct State {
    /// Start of the last iteration.
    pub last_turn: Instant,
    /// Successful reconciles.
    pub succeeded: u64,
    /// Failed reconciles.
    pub failed: u64,
    /// Durations of reconciles.
    pub durations: Histogram,
    /// End of the last successful reconcile.
    pub last_success: Option<SystemTime>,
    /// Error of the last reconcile.
    pub error: Option<String>,
    /// Foreign changes of this Node that the last reconcile could not repair.
    pub unrepairable: Vec<String>,
    /// Whether the data path of an earlier agent was adopted.
    pub adopted: bool,
    /// Whether this node is a gateway.
    pub gateway: bool,
    /// Unanswered probes after which a next hop is dead; 0 disables detection.
    pub detect: u32,
    /// Time between two probes to each next hop that answers.
    pub probe_interval: Duration,
    /// Rejected fields by kind of object.
    pub invalid_fields: BTreeMap<String, u64>,
    /// Aggregation of tunnel packets by underlay device.
    pub aggregation: BTreeMap<String, Aggregation>,
    /// Transit by underlay device.
    pub transit: BTreeMap<String, Transit>,
    /// Map, entries, capacity.
    pub map_usage: Vec<(&'static str, usize, u32)>,
    /// All next hops.
    pub next_hops: Vec<NextHopLabels>,
    /// All peers.
    pub peers: Vec<PeerLabels>,
    /// Names of the IDs in the maps.
    pub names: Arc<IdNames>,
    /// Names for the log of dropped packets.
    pub flow_names: Arc<FlowNames>,
    /// Sampled drops that were read.
    pub samples_read: u64,
}

impl State {
    /// State at the start of an agent.
    #[must_use]
    pub fn new(now: Instant, adopted: bool) -> Self {
        Self {
            last_turn: now,
            succeeded: 0,
            failed: 0,
            durations: mc_metrics::duration_histogram(),
            last_success: None,
            error: None,
            unrepairable: Vec::new(),
            adopted,
            gateway: false,
            detect: 0,
            probe_interval: Duration::ZERO,
            invalid_fields: BTreeMap::new(),
            aggregation: BTreeMap::new(),
            transit: BTreeMap::new(),
            map_usage: Vec::new(),
            next_hops: Vec::new(),
            peers: Vec::new(),
            names: Arc::default(),
            flow_names: Arc::default(),
            samples_read: 0,
        }
    }

    /// Records a reconcile.
    pub fn record_reconcile(&mut self, took: Duration, now: SystemTime, result: Result<(), String>) {
        self.durations.observe(took.as_secs_f64());
        match result {
            Ok(()) => {
                self.succeeded = self.succeeded.saturating_add(1);
                self.last_success = Some(now);
                self.error = None;
            }
            Err(error) => {
                self.failed = self.failed.saturating_add(1);
                self.error = Some(error);
            }
        }
    }

    /// Records contents of the maps and rejected fields after a reconcile.
    pub fn set_contents(&mut self, contents: &MapContents, names: &Arc<IdNames>, refusals: &[FieldError]) {
        self.gateway = contents.config.flags & abi::CONFIG_GATEWAY != 0;
        self.detect = contents.config.detect;
        self.map_usage = contents.usage();
        let mut groups = BTreeMap::new();
        for group in contents.groups.values() {
            for slot in nexthop_slots(group) {
                groups.insert(slot, names.group(group.id));
            }
        }
        let next_hops = contents.next_hops.iter().map(|(slot, next_hop)| NextHopLabels {
            slot: *slot,
            next_hop: *next_hop,
            group: groups.get(slot).cloned().unwrap_or_default(),
            name: names.next_hop(next_hop.id),
        });
        self.next_hops = next_hops.collect();
        let peers = contents.peers.iter().map(|(addr, peer)| {
            let addr = from_abi_addr(addr);
            PeerLabels {
                slot: peer.stats,
                addr,
                name: names.peer(addr),
            }
        });
        self.peers = peers.collect();
        self.invalid_fields.clear();
        for refusal in refusals {
            let kind = refusal.object.split(' ').next().unwrap_or_default();
            let count = self.invalid_fields.entry(kind.to_owned()).or_default();
            *count = count.saturating_add(1);
        }
        self.names = Arc::clone(names);
    }

    /// Liveness of the main loop.
    pub fn healthy(&self, now: Instant) -> Result<(), String> {
        mc_metrics::check_loop_age(now.saturating_duration_since(self.last_turn), LOOP_TIMEOUT)
    }

    /// Readiness: the data path is in place, the last reconcile succeeded, and no change of another program remains.
    pub fn ready(&self) -> Result<(), String> {
        match &self.error {
            Some(error) => Err(format!("the last round failed: {error}")),
            None if !self.unrepairable.is_empty() => Err(self.unrepairable.join("; ")),
            None if self.succeeded > 0 || self.adopted => Ok(()),
            None => Err("the data path is not in place yet: waiting for objects".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_with_a_data_path_and_without_an_error() {
        let now = Instant::now();
        let wall = SystemTime::UNIX_EPOCH;
        let mut state = State::new(now, false);
        assert!(state.ready().unwrap_err().contains("waiting for objects"));
        state.record_reconcile(Duration::from_millis(3), wall, Ok(()));
        assert_eq!(state.ready(), Ok(()));
        state.record_reconcile(Duration::from_mins(1), wall, Err("no route".into()));
        assert_eq!(state.ready(), Err("the last round failed: no route".into()));
        assert_eq!((state.succeeded, state.failed), (1, 1));
        state.record_reconcile(Duration::from_millis(3), wall, Ok(()));
        state.unrepairable = vec!["route a".to_owned(), "route b".to_owned()];
        assert_eq!(state.ready(), Err("route a; route b".into()));
        assert_eq!(
            State::new(now, true).ready(),
            Ok(()),
            "an older state was adopted"
        );
    }

    #[test]
    fn a_loop_without_progress_is_unhealthy() {
        let now = Instant::now();
        let state = State::new(now, true);
        assert_eq!(state.healthy(now + LOOP_TIMEOUT), Ok(()));
        let why = state
            .healthy(now + LOOP_TIMEOUT + Duration::from_secs(1))
            .unwrap_err();
        assert_eq!(why, "the main loop has made no progress for 91 s");
    }

    #[test]
    fn invalid_fields_are_counted_by_kind() {
        let refusal = |object: &str| FieldError {
            object: object.to_owned(),
            field: String::new(),
            value: String::new(),
            reason: String::new(),
        };
        let mut state = State::new(Instant::now(), false);
        let refusals = [refusal("Node a"), refusal("Gateway b"), refusal("Node c")];
        state.set_contents(&MapContents::default(), &Arc::default(), &refusals);
        assert_eq!(
            state.invalid_fields,
            [("Gateway".to_owned(), 1), ("Node".to_owned(), 2)].into()
        );
    }
}
