//! Since when members are silent, as the leader's API server sees it, and whether they may be removed for it.

use std::{collections::BTreeMap, time::Duration};

use controller::api::{config::StaleMemberPolicy, names};

use crate::{
    model::store::{Actor, Change},
    world::Cluster,
};

/// The last heartbeat of each announce, by name, and when it came.
#[derive(Debug, Default)]
pub(crate) struct Beats(BTreeMap<String, (String, Duration)>);

impl Beats {
    /// Something was written to an announce.
    pub(crate) fn learn(&mut self, change: &Change, at: Duration) {
        let touch = change
            .new
            .annotation(names::ANNOTATION_TOUCH_TS)
            .unwrap_or_default();
        let old = self.0.get(&change.key.1);
        if old.is_none_or(|(known, _)| known != touch) {
            self.0.insert(change.key.1.clone(), (touch.to_owned(), at));
        }
    }

    /// Whether somebody may remove a member because nothing was heard of it: the leader, whose administrator decided
    /// so, and after the time that was decided.
    pub(crate) fn may_remove(&self, leader: &Cluster, actor: Actor, announce: &str, at: Duration) -> bool {
        let Some((_, heard)) = self.0.get(announce) else {
            return false;
        };
        let timeout = Duration::try_from(leader.config.stale_member_timeout).unwrap_or(Duration::MAX);
        actor == Actor::Leader
            && leader.config.stale_member_policy == StaleMemberPolicy::Remove
            && at.saturating_sub(*heard) > timeout
    }
}
