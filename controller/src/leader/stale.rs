//! Members that fell silent: kept and shown, or, where an administrator decided so (`staleMemberPolicy: Remove`), removed
//! after a time.
//!
//! Pure. Guarantees: with `Keep` nothing is removed because of silence. With `Remove` only a member goes whose heartbeat is
//! the same now as when its silence was written down, by this clock and so long ago; nobody's clock but the leader's counts,
//! and what is written down outlives the controller. A heartbeat in the last moment makes the removal fail.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::members::{self, READY_FOR};
use crate::{
    api::{config::StaleMemberPolicy, member_cluster_announce::MemberClusterAnnounce, names},
    plan::{Plan, Side},
    world::{LeaderWorld, time},
};

/// What is to become of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays, and this is what is written down of its silence.
    Stays(Option<String>),
    /// It goes.
    Goes,
}

/// Since when a member has been silent, as it is written down: the time, and the heartbeat that was the last one then.
fn note(at: Timestamp, announce: &MemberClusterAnnounce) -> String {
    format!("{} after {}", time(at).0, last(announce))
}

/// The heartbeat, as much of it as is written down: it is the member's text, and could be long.
fn last(announce: &MemberClusterAnnounce) -> String {
    members::touch(announce).chars().take(64).collect()
}

/// When this silence began, if that is what is written down.
fn since(announce: &MemberClusterAnnounce, now: Timestamp) -> Option<Timestamp> {
    let note = announce.annotations().get(names::ANNOTATION_SILENT_SINCE)?;
    let (at, touch) = note.split_once(" after ")?;
    // A time to come is of a clock that was set back since.
    let at = at.parse().ok().filter(|at| *at <= now)?;
    (touch == last(announce)).then_some(at)
}

/// What is to become of a member that the leader has accepted.
#[must_use]
pub fn fate(world: &LeaderWorld, announce: &MemberClusterAnnounce) -> Fate {
    if world.config.stale_member_policy == StaleMemberPolicy::Keep {
        return Fate::Stays(None);
    }
    let heard = world.heard.get(&announce.name_any()).map_or(world.now, |h| h.at);
    // A controller that has just started listens for a while before it calls anybody silent.
    let silent = world.now.duration_since(heard) > READY_FOR;
    let timeout = world.config.stale_member_timeout;
    match since(announce, world.now) {
        Some(at) if silent && world.now.duration_since(at) >= timeout => Fate::Goes,
        Some(_) => Fate::Stays(
            announce
                .annotations()
                .get(names::ANNOTATION_SILENT_SINCE)
                .cloned(),
        ),
        None => Fate::Stays(silent.then(|| note(world.now, announce))),
    }
}

/// Removes a member; its exports go as if it had left.
pub fn remove(announce: &MemberClusterAnnounce, timeout: SignedDuration, plan: &mut Plan) {
    plan.notice(
        format!("MemberClusterAnnounce {}", announce.name_any()),
        format!(
            "removed with all its exports: silent for more than {timeout:#} (staleMemberPolicy: Remove, staleMemberTimeout)"
        ),
    );
    plan.delete_unchanged(Side::Local, announce);
}

/// When to look at a silent member again. One that is due already waits for something else: that this controller has
/// listened long enough, or for an answer of the API server.
pub fn wake(world: &LeaderWorld, announce: &MemberClusterAnnounce, plan: &mut Plan) {
    let due =
        since(announce, world.now).and_then(|at| at.checked_add(world.config.stale_member_timeout).ok());
    let removes = world.config.stale_member_policy == StaleMemberPolicy::Remove;
    if let Some(due) = due.filter(|due| removes && *due > world.now) {
        plan.wake(due);
    }
}
