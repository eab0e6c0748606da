//! Whether what is missing at the leader was taken back, or forgotten: an etcd that is brought back to a snapshot knows
//! nothing of what came after it until the members have told their leader again.
//!
//! Pure. Guarantees: what other clusters exported is not removed because a list that was read anew lacks it, until the
//! leader's other lists had time to be read anew as well; nor for a minute after any of them was seen to have gone back.
//! What a watch says is believed at once.

use jiff::{SignedDuration, Timestamp};

use crate::plan::{Action, Kind, Op, Plan, Side};

/// How long a list that was read anew waits for the others: they pause for 3 s at most after an outage.
const LISTED: SignedDuration = SignedDuration::from_secs(5);
/// How long members and the leader's controller may take to say again what was forgotten.
const REWOUND: SignedDuration = SignedDuration::from_mins(1);

/// What is made of what others exported.
const IMPORTED: [Kind; 6] = [
    Kind::ClusterInfoImport,
    Kind::ClusterNetworkPolicy,
    Kind::EndpointSlice,
    Kind::LabelIdentity,
    Kind::Service,
    Kind::ServiceImport,
];

/// How often lists of the leader were read anew after the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewals {
    /// How often.
    pub lists: u32,
    /// In how many of them an object had an older version than before.
    pub rewound: u32,
}

/// What is remembered of the leader's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    seen: Renewals,
    until: Option<Timestamp>,
}

// === impl Doubt ===

impl Doubt {
    /// Takes note of the lists; returns until when nothing may be removed for being absent.
    pub fn look(&mut self, renewals: Renewals, now: Timestamp) -> Option<Timestamp> {
        let wait = if renewals.rewound == self.seen.rewound {
            (renewals.lists != self.seen.lists).then_some(LISTED)
        } else {
            Some(REWOUND)
        };
        self.seen = renewals;
        let until = wait.and_then(|wait| now.checked_add(wait).ok());
        // A clock that was set back must not make it for ever.
        self.until = self
            .until
            .filter(|until| *until > now && until.duration_since(now) <= REWOUND)
            .max(until);
        self.until
    }
}

/// Leaves out what would remove imports, and looks again when that is allowed.
pub fn hold_back(plan: &mut Plan, until: Timestamp) {
    let removes = |action: &Action| {
        let local = action.target.side == Side::Local && IMPORTED.contains(&action.target.kind);
        local && matches!(action.op, Op::Delete { .. })
    };
    let before = plan.actions.len();
    plan.actions.retain(|action| !removes(action));
    let held = before.saturating_sub(plan.actions.len());
    if held > 0 {
        plan.notice(
            "leader",
            "objects that the leader did not list any more are kept for a while: it may have been restored from a snapshot",
        );
        plan.wake(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn renewals(lists: u32, rewound: u32) -> Renewals {
        Renewals { lists, rewound }
    }

    #[test]
    fn a_list_that_was_read_anew_waits_for_the_others_and_one_that_went_back_for_the_members() {
        let mut doubt = Doubt::default();
        assert_eq!(doubt.look(renewals(0, 0), at(0)), None);
        assert_eq!(doubt.look(renewals(1, 0), at(1)), Some(at(6)));
        assert_eq!(doubt.look(renewals(2, 0), at(3)), Some(at(8)));
        assert_eq!(doubt.look(renewals(3, 1), at(4)), Some(at(64)));
        assert_eq!(doubt.look(renewals(4, 1), at(10)), Some(at(64)));
        assert_eq!(doubt.look(renewals(4, 1), at(64)), None);
    }

    #[test]
    fn a_clock_that_is_set_back_ends_the_wait() {
        let mut doubt = Doubt::default();
        assert_eq!(doubt.look(renewals(1, 1), at(1000)), Some(at(1060)));
        assert_eq!(doubt.look(renewals(1, 1), at(0)), None);
    }
}
