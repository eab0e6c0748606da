//! Antrea's default Tiers, in a cluster without Antrea.

use kube::core::ObjectMeta;
use mc_api::network_policy::{DEFAULT_TIERS, Tier};
use serde_json::json;

use super::policy_reports::is_enforced;
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, OptionalKind, get},
};

/// Creates the Tiers that are absent while the agents enforce every rule. An existing Tier stays as it is.
pub fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) {
    let OptionalKind::Present(tiers) = &snapshot.tiers else {
        return;
    };
    if !is_enforced(snapshot) {
        return;
    }
    for (name, priority) in DEFAULT_TIERS {
        if get(tiers, "", name).is_none() {
            let tier = Tier {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: json!({ "priority": priority, "description": "default Tier" }),
                ..Tier::default()
            };
            plan.create(ApiServer::Local, &tier);
        }
    }
}
