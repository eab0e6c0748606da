//! The times of writes of the statuses of policies.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use mc_api::network_policy::NetworkPolicyStatus;

use crate::plan::{Kind, ObjectRef, Write, WriteOp};

/// Time after which a write of this process is forgotten.
const MEMORY: SignedDuration = SignedDuration::from_hours(24);

/// The times of this process's last writes of the statuses of policies. An API server whose CRD lacks the field
/// `trafficStatsTime` does not store the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusTimes(Arc<BTreeMap<ObjectRef, Timestamp>>);

// === impl StatusTimes ===

impl StatusTimes {
    /// Records the writes that begin at `now`.
    pub fn record(&mut self, writes: &[Write], now: Timestamp) {
        let is_of_policy = |kind| matches!(kind, Kind::ClusterNetworkPolicy | Kind::NetworkPolicy);
        let written: Vec<_> = writes
            .iter()
            .filter(|write| is_of_policy(write.target.kind) && matches!(write.op, WriteOp::Status(_)))
            .collect();
        if written.is_empty() {
            return;
        }
        let times = Arc::make_mut(&mut self.0);
        times.retain(|_, at| now.duration_since(*at) < MEMORY);
        times.extend(written.into_iter().map(|write| (write.target.clone(), now)));
    }

    /// The time of the last write of the status of `policy`, which has the status `old`. A time of another form does
    /// not count.
    #[must_use]
    pub fn last(&self, policy: &ObjectRef, old: &NetworkPolicyStatus) -> Option<Timestamp> {
        let stored = old.traffic_stats_time.as_ref();
        stored
            .and_then(|time| time.parse().ok())
            .or_else(|| self.0.get(policy).copied())
    }
}

#[cfg(test)]
mod tests {
    use mc_api::network_policy::{ClusterNetworkPolicy, Tier};
    use serde_json::json;

    use super::*;
    use crate::{
        plan::{ApiServer, Plan},
        snapshot::fake::{NOW, object},
    };

    fn after(seconds: i64) -> Timestamp {
        let now: Timestamp = NOW.parse().unwrap();
        now.checked_add(SignedDuration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn a_stored_time_precedes_a_remembered_one() {
        let named = |name: &str| -> ClusterNetworkPolicy { object(json!({ "metadata": { "name": name } })) };
        let target = |name| ObjectRef::new(ApiServer::Local, &named(name));
        let mut plan = Plan::default();
        plan.status(ApiServer::Local, &named("web"), &json!({}));
        plan.merge(ApiServer::Local, &named("spec"), json!({}));
        let tier: Tier = object(json!({ "metadata": { "name": "web" } }));
        plan.status(ApiServer::Local, &tier, &json!({}));
        let mut times = StatusTimes::default();
        times.record(&plan.writes, after(0));
        let status = |time: Option<&str>| NetworkPolicyStatus {
            traffic_stats_time: time.map(str::to_owned),
            ..NetworkPolicyStatus::default()
        };
        assert_eq!(times.last(&target("web"), &status(None)), Some(after(0)));
        assert_eq!(
            times.last(&target("web"), &status(Some("yesterday"))),
            Some(after(0))
        );
        let stored = status(Some("2026-01-01T11:00:00Z"));
        assert_eq!(times.last(&target("web"), &stored), Some(after(-3600)));
        assert_eq!(times.last(&target("other"), &stored), Some(after(-3600)));
        for other in [
            target("spec"),
            target("other"),
            ObjectRef::new(ApiServer::Local, &tier),
        ] {
            assert_eq!(times.last(&other, &status(None)), None, "{other}");
        }
        // A day later the first one is forgotten.
        let mut later = Plan::default();
        later.status(ApiServer::Local, &named("db"), &json!({}));
        times.record(&later.writes, after(24 * 3600));
        assert_eq!(times.last(&target("web"), &status(None)), None);
        assert_eq!(times.last(&target("db"), &status(None)), Some(after(24 * 3600)));
    }
}
