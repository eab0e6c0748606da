//! Heartbeats as the leader's API server received them.

use std::{collections::BTreeMap, time::Duration};

use jiff::SignedDuration;
use mc_api::{config::StaleMemberPolicy, names};
use mc_test_kit::fake_apiserver::store::{Actor, Change};

use crate::simulation::Cluster;

/// The last heartbeat and its arrival, by announce name.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatLog(BTreeMap<String, (String, Arrival)>);

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Duration,
    /// The difference of the leader's clock then.
    clock_skew: SignedDuration,
}

impl HeartbeatLog {
    /// Records a write to an announce.
    pub(crate) fn observe(&mut self, leader: &Cluster, change: &Change, at: Duration) {
        let touch = change
            .new
            .annotation(names::ANNOTATION_TOUCH_TS)
            .unwrap_or_default();
        let old = self.0.get(&change.key.1);
        if old.is_none_or(|(known, _)| known != touch) {
            let clock_skew = leader.clock_skew;
            let arrival = Arrival { at, clock_skew };
            self.0.insert(change.key.1.clone(), (touch.to_owned(), arrival));
        }
    }

    /// True if the leader may remove the member: the policy is `Remove`, and the timeout has expired by its clock.
    pub(crate) fn may_remove(&self, leader: &Cluster, actor: Actor, announce: &str, at: Duration) -> bool {
        let Some((_, last)) = self.0.get(announce) else {
            return false;
        };
        let silence = SignedDuration::try_from(at.saturating_sub(last.at)).unwrap_or(SignedDuration::MAX);
        let silence = silence.saturating_add(leader.clock_skew.saturating_sub(last.clock_skew));
        // The leader marks a stale member with whole seconds.
        let silence = silence.saturating_add(SignedDuration::from_secs(1));
        actor == Actor::Leader
            && leader.config.stale_member_policy == StaleMemberPolicy::Remove
            && silence > leader.config.stale_member_timeout
    }
}
