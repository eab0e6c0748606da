//! The rows of the section of network policies. Pure.

use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{DIMENSION_ADDRESS, POD_CLOSED, POD_DROPS_UNKNOWN, PolicyPod};
use serde_json::json;

use super::render::Table;
use super::snapshot::Snapshot;
use crate::cidr::from_abi_addr;
use crate::policy_tables::RulePrefix;

/// The Pods of this node that policies select, with the numbers of their table entries.
pub(super) fn policies(snapshot: &Snapshot) -> Table {
    let tables = snapshot.contents.policies.current();
    let row = |(addr, pod): (&Addr, &PolicyPod)| {
        let of_pod = |dimension| {
            let rules = tables.rules.keys();
            rules
                .filter(
                    |RulePrefix {
                         set, dimension: of, ..
                     }| *set == pod.set && *of == dimension,
                )
                .count()
        };
        let by_address = of_pod(DIMENSION_ADDRESS);
        vec![
            json!(from_abi_addr(addr)),
            json!(pod.set),
            json!(of_pod(0)),
            json!(by_address),
            json!(if pod.flags & POD_CLOSED != 0 {
                "closed"
            } else if pod.flags & POD_DROPS_UNKNOWN != 0 {
                "drop"
            } else {
                "by rule"
            }),
        ]
    };
    Table {
        name: "policies",
        columns: &["pod", "set", "by_identity", "by_address", "unknown_senders"],
        rows: tables.pods.iter().map(row).collect(),
    }
}
