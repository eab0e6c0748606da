//! The rows of the sections of network policies. Pure.

use std::collections::BTreeMap;

use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{
    DIMENSION_ADDRESS, DIMENSION_IDENTITY, NO_RULES, POD_CLOSED, POD_DROPS_UNKNOWN, PolicyPod,
};
use serde_json::json;

use super::render::Table;
use super::snapshot::Snapshot;
use crate::cidr::from_abi_addr;
use crate::desired::rule_names::RuleName;

/// The Pods of this node that policies select, with the numbers of their table entries.
pub(super) fn policies(snapshot: &Snapshot) -> Table {
    let tables = snapshot.contents.policies.current();
    // Pods share sets, and a set may have many rules: they are counted once.
    let mut counts: BTreeMap<(u32, u8), usize> = BTreeMap::new();
    for rule in tables.rules.keys() {
        *counts.entry((rule.peer.set, rule.peer.dimension)).or_default() += 1;
    }
    let row = |direction: &str, (addr, pod): (&Addr, &PolicyPod)| {
        let of_pod = |dimension| counts.get(&(pod.set, dimension)).copied().unwrap_or_default();
        vec![
            json!(from_abi_addr(addr)),
            json!(direction),
            json!(pod.set),
            json!(pod.enforced),
            json!(of_pod(DIMENSION_IDENTITY)),
            json!(of_pod(DIMENSION_ADDRESS)),
            json!(if pod.flags & POD_CLOSED != 0 {
                "closed"
            } else if pod.flags & POD_DROPS_UNKNOWN != 0 {
                "drop"
            } else {
                "by rule"
            }),
        ]
    };
    let ingress = tables.pods.iter().filter(|(_, pod)| pod.set != NO_RULES);
    let ingress = ingress.map(|pod| row("ingress", pod));
    let egress = tables.egress_pods.iter().map(|pod| row("egress", pod));
    Table {
        name: "policies",
        columns: &[
            "pod",
            "direction",
            "set",
            "enforced_set",
            "by_identity",
            "by_address",
            "unknown_senders",
        ],
        rows: ingress.chain(egress).collect(),
    }
}

/// The rules of the policies, by name, with the packets on which they decided.
pub(super) fn rules(snapshot: &Snapshot) -> Table {
    let mut names: Vec<_> = snapshot.names.rules.iter().collect();
    names.sort_by_key(|(_, name)| (&name.policy, &name.rule));
    let row = |(id, name): (&u32, &RuleName)| {
        let counter = snapshot.rule_counters.get(id);
        vec![
            json!(name.policy),
            json!(name.rule),
            json!(name.action),
            json!(counter.map(|counter| counter.packets)),
            json!(counter.map(|counter| counter.bytes)),
        ]
    };
    Table {
        name: "rules",
        columns: &["policy", "rule", "action", "packets", "bytes"],
        rows: names.into_iter().map(row).collect(),
    }
}
