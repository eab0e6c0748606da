//! Heartbeats of members, dated by the leader's clock.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mc_api::member_cluster_announce::MemberClusterAnnounce;

use crate::snapshot::LastHeartbeat;

/// Time without a heartbeat after which a member is not Ready: three heartbeat periods.
pub const HEARTBEAT_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);

/// Records changed heartbeats.
///
/// The member's clock is not trusted: a heartbeat is dated when its change is observed. After a restart the controller
/// takes every member for alive.
pub fn record_heartbeats(
    heartbeats: &mut BTreeMap<String, LastHeartbeat>,
    announces: &[&MemberClusterAnnounce],
    now: Timestamp,
) {
    heartbeats.retain(|name, _| announces.iter().any(|a| a.name_any() == *name));
    for announce in announces {
        let new = announce.heartbeat();
        let known = heartbeats.get(&announce.name_any());
        if known.is_none_or(|known| known.heartbeat != new) {
            heartbeats.insert(
                announce.name_any(),
                LastHeartbeat {
                    heartbeat: new.to_owned(),
                    seen_at: now,
                },
            );
        }
    }
}
