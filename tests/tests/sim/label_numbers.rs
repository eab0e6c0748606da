//! Invariants on the numbers of label identities.
//!
//! | violation | cause |
//! |---|---|
//! | reused-early | the number of a label is given to another one before its quarantine ends |
//! | renumbered | a label gets another number while its former one is in quarantine |

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mc_test_kit::fake_apiserver::store::{Actor, Change};

use crate::{
    invariants::text,
    simulation::{Cluster, LEADER_NAMESPACE},
};

/// The last write of an import with a label and a number, by the leader's clock.
#[derive(Debug, Default)]
pub(crate) struct LabelNumbers {
    labels: BTreeMap<u64, (String, Timestamp)>,
    numbers: BTreeMap<String, (u64, Timestamp)>,
}

// === impl LabelNumbers ===

impl LabelNumbers {
    /// Checks and records a write to the leader's objects. A leader that was restored from a snapshot may have lost
    /// numbers.
    pub(crate) fn check(
        &mut self,
        leader: &Cluster,
        actor: Actor,
        change: &Change,
        is_restored: bool,
        now: Timestamp,
        found: &mut Vec<String>,
    ) {
        let spec = &change.new.value["spec"];
        let is_label = change.resource.1 == "resourceimports" && spec["kind"] == "LabelIdentity";
        let Some(number) = spec["labelIdentity"]["id"]
            .as_u64()
            .filter(|_| is_label && change.key.0 == LEADER_NAMESPACE)
        else {
            return;
        };
        let label = text(&spec["labelIdentity"]["label"]);
        let quarantine = SignedDuration::ZERO..leader.config.quarantine;
        let in_quarantine = |since: &Timestamp| quarantine.contains(&now.duration_since(*since));
        if actor == Actor::Leader && !change.deleted && !is_restored {
            let known = self.labels.get(&number);
            if known.is_some_and(|(known, since)| *known != label && in_quarantine(since)) {
                found.push("reused-early".to_owned());
            }
            let known = self.numbers.get(&label);
            if known.is_some_and(|(known, since)| *known != number && in_quarantine(since)) {
                found.push("renumbered".to_owned());
            }
        }
        self.labels.insert(number, (label.clone(), now));
        self.numbers.insert(label, (number, now));
    }
}
