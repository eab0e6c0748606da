//! Publication of the reachability of the remote clusters, the `NodeReachability` of the Node's name.

use std::time::Duration;

use mc_api::node_reachability::{NodeReachability, NodeReachabilitySpec};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::damping::Damping;
use super::remote_gateways::RemoteGateways;
use crate::changed_state::send_changed;
use crate::config::Config;
use crate::probe::ProbeStatus;
use crate::source::kubernetes::node_object::NodeObjects;
use crate::source::kubernetes::node_report;

/// Time from the first reconcile to the first report, in which the first probes are answered. The report of an earlier
/// agent stays until then.
const FIRST_VERDICTS: Duration = Duration::from_secs(1);
/// Longest time between two evaluations.
const IDLE: Duration = Duration::from_hours(1);

/// The gateways of the last reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gateways {
    /// Before the first reconcile.
    #[default]
    Unknown,
    /// This Node is no gateway.
    Regular,
    /// This Node is a gateway.
    Remote(RemoteGateways),
}

impl From<Option<RemoteGateways>> for Gateways {
    fn from(gateways: Option<RemoteGateways>) -> Self {
        gateways.map_or(Self::Regular, Self::Remote)
    }
}

/// Publishes the reachability while this Node is a gateway and removes it otherwise; requires an API server.
pub fn start(config: &Config, gateways: watch::Receiver<Gateways>, status: watch::Receiver<ProbeStatus>) {
    let Some(objects) = NodeObjects::new(config) else {
        return;
    };
    tokio::spawn(async move {
        let mut gateways = gateways;
        let is_known = |gateways: &Gateways| *gateways != Gateways::Unknown;
        if gateways.wait_for(is_known).await.is_err() {
            return;
        }
        sleep(FIRST_VERDICTS).await;
        let mut damping = Damping::default();
        let (report, _due) = evaluate(&mut damping, &gateways.borrow(), &status.borrow());
        let (reports, wanted) = watch::channel(report);
        tokio::join!(
            observe(damping, gateways, status, reports),
            node_report::publish(&objects, wanted, NodeReachability::of_node),
        );
    });
}

/// The report at this moment, and the time at which it changes if the results of the probes remain.
fn evaluate(
    damping: &mut Damping,
    gateways: &Gateways,
    status: &ProbeStatus,
) -> (Option<NodeReachabilitySpec>, Option<Instant>) {
    let Gateways::Remote(gateways) = gateways else {
        *damping = Damping::default();
        return (None, None);
    };
    let due = damping.update(Instant::now(), &gateways.reachable(status));
    (Some(NodeReachabilitySpec::new(damping.reported())), due)
}

/// Updates the report after each change, until the agent ends.
async fn observe(
    mut damping: Damping,
    mut gateways: watch::Receiver<Gateways>,
    mut status: watch::Receiver<ProbeStatus>,
    reports: watch::Sender<Option<NodeReachabilitySpec>>,
) {
    loop {
        let (report, due) = evaluate(
            &mut damping,
            &gateways.borrow_and_update(),
            &status.borrow_and_update(),
        );
        send_changed(&reports, report);
        let latest = Instant::now().checked_add(IDLE);
        let due = due.or(latest).unwrap_or_else(Instant::now);
        let ended = tokio::select! {
            changed = gateways.changed() => changed.is_err(),
            changed = status.changed() => changed.is_err(),
            () = sleep_until(due) => false,
        };
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mc_gateway_common::abi;
    use mc_gateway_common::liveness::State;
    use tokio::time::timeout;

    use super::*;
    use crate::desired::{DesiredState, Peer};
    use crate::maps::MapContents;
    use crate::probe::NextHopStatus;

    /// A gateway with one next hop to cluster `west`.
    fn to_west() -> Gateways {
        let ip = [192, 0, 2, 1];
        let mut desired = DesiredState {
            gateway: true,
            ..DesiredState::default()
        };
        let peer = Peer {
            cluster: 1,
            flags: abi::PEER_REMOTE_GATEWAY,
            ..Peer::default()
        };
        desired.peers.insert(ip.into(), peer);
        desired.cluster_names.insert(1, "west".to_owned());
        let mut contents = MapContents::default();
        let next_hop = abi::NextHop {
            id: 11,
            addr: std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets(),
            ..abi::NextHop::default()
        };
        contents.next_hops.insert(1, next_hop);
        RemoteGateways::new(&desired, &contents).into()
    }

    fn status(state: State) -> ProbeStatus {
        let next_hop = NextHopStatus {
            id: 11,
            addr: [192, 0, 2, 1].into(),
            state,
            rtt: None,
            unanswered: 0,
            path_mtu: 1_500,
        };
        ProbeStatus {
            next_hops: BTreeMap::from([(1, next_hop)]),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_follows_probes_and_role() {
        let (gateways, seen_gateways) = watch::channel(to_west());
        let (statuses, seen_status) = watch::channel(status(State::Alive));
        let (reports, mut wanted) = watch::channel(None);
        let observed = observe(Damping::default(), seen_gateways, seen_status, reports);
        let check = async {
            let start = Instant::now();
            let mut next = async || {
                wanted.changed().await.unwrap();
                let report: Option<NodeReachabilitySpec> = wanted.borrow_and_update().clone();
                let lists = report.map(|report| (report.reachable.concat(), report.unreachable.concat()));
                (start.elapsed().as_millis() / 100, lists)
            };
            let lists =
                |reachable: &str, unreachable: &str| Some((reachable.to_owned(), unreachable.to_owned()));
            assert_eq!(next().await, (0, lists("west", "")));
            statuses.send_replace(status(State::Dead));
            assert_eq!(next().await, (5, lists("", "west")));
            statuses.send_replace(status(State::Alive));
            assert_eq!(next().await, (55, lists("west", "")));
            // A loss of 400 ms.
            statuses.send_replace(status(State::Dead));
            sleep(Duration::from_millis(400)).await;
            statuses.send_replace(status(State::Alive));
            sleep(Duration::from_mins(10)).await;
            gateways.send_replace(Gateways::Regular);
            let (_, lists) = next().await;
            assert_eq!(lists, None, "no gateway any more");
            drop(gateways);
        };
        let both = async { tokio::join!(observed, check) };
        timeout(Duration::from_hours(2), both).await.unwrap();
    }
}
