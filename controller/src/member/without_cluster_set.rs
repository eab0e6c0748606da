//! The end of a membership whose `ClusterSet` was deleted.
//!
//! Pure. Guarantees: a `ClusterSet` that is created again within [`GRACE_PERIOD`], as by `kubectl replace --force`,
//! changes no import, gateway or export. A controller without a recorded membership, such as a second one in another
//! Namespace, deletes nothing outside its own Namespace.

use jiff::{SignedDuration, Timestamp};

use super::{
    cluster_info, gateway_candidates, gateways, imports, label_identities,
    membership_record::{self, MembershipRecord},
    policies,
};
use crate::{issue_code::IssueCode, plan::Plan, snapshot::MemberSnapshot};

/// The time for which a membership outlasts its `ClusterSet`, in a cluster that exports a Service or has a Node with
/// the annotation of a gateway. Without both, as in the steps of an uninstallation, it ends with the `ClusterSet`.
pub const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// The state of the memberships in a cluster without `ClusterSet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MembershipPhase {
    /// There is no membership.
    NotRecorded,
    /// The membership lasts until this time.
    Kept {
        /// The end of the grace period.
        until: Timestamp,
    },
    /// The membership has ended: its imports are withdrawn and the leader deregisters it.
    Ended,
}

/// The phase of a cluster without active `ClusterSet`.
pub fn phase(snapshot: &MemberSnapshot) -> MembershipPhase {
    let record = MembershipRecord::from_snapshot(snapshot);
    if record.endpoints.is_empty() {
        return MembershipPhase::NotRecorded;
    }
    if snapshot.service_exports.is_empty() && !gateway_candidates::any(snapshot) {
        return MembershipPhase::Ended;
    }
    let since = record.without_cluster_set_since(snapshot.now);
    match since.checked_add(GRACE_PERIOD) {
        Ok(until) if until > snapshot.now => MembershipPhase::Kept { until },
        _ => MembershipPhase::Ended,
    }
}

/// The plan of a cluster without active `ClusterSet`.
pub fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) {
    let phase = phase(snapshot);
    let before = plan.writes.len();
    match phase {
        MembershipPhase::NotRecorded => {
            gateways::withdraw(snapshot, plan);
            cluster_info::withdraw(snapshot, plan);
        }
        MembershipPhase::Kept { until } => {
            let _gateways = gateways::plan(snapshot, plan);
            plan.issue(
                IssueCode::ClusterSetMissing,
                "ClusterSet",
                format!("there is none: imports, exports and gateways are kept until {until}"),
            );
            plan.requeue_at(until);
        }
        MembershipPhase::Ended => {
            gateways::withdraw(snapshot, plan);
            imports::withdraw(snapshot, plan);
            cluster_info::withdraw(snapshot, plan);
            label_identities::withdraw(snapshot, plan);
            policies::withdraw(snapshot, plan);
        }
    }
    let is_withdrawn = phase == MembershipPhase::Ended && plan.writes.len() == before;
    membership_record::plan_without_cluster_set(snapshot, is_withdrawn, plan);
}
