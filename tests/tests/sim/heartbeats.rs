//! Heartbeats as the leader's API server received them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mc_api::{config::StaleMemberPolicy, names};
use mc_test_kit::fake_apiserver::store::{Actor, Change};

use crate::simulation::Cluster;

/// The last heartbeat and its arrival by the leader's clock, by announce name.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatLog(BTreeMap<String, (String, Timestamp)>);

impl HeartbeatLog {
    /// Records a write to an announce.
    pub(crate) fn observe(&mut self, change: &Change, now: Timestamp) {
        let touch = change
            .new
            .annotation(names::ANNOTATION_TOUCH_TS)
            .unwrap_or_default();
        let old = self.0.get(&change.key.1);
        if old.is_none_or(|(known, _)| known != touch) {
            self.0.insert(change.key.1.clone(), (touch.to_owned(), now));
        }
    }

    /// True if the leader may remove the member: the policy is `Remove`, and the timeout has expired by its clock.
    pub(crate) fn may_remove(&self, leader: &Cluster, actor: Actor, announce: &str, now: Timestamp) -> bool {
        let Some((_, last)) = self.0.get(announce) else {
            return false;
        };
        // The leader marks a stale member with whole seconds.
        let silence = now
            .duration_since(*last)
            .saturating_add(SignedDuration::from_secs(1));
        actor == Actor::Leader
            && leader.config.stale_member_policy == StaleMemberPolicy::Remove
            && silence > leader.config.stale_member_timeout
    }
}
