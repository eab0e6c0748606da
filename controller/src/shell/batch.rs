//! Which part of much to do is done before the next look.

use std::collections::BTreeSet;

use crate::plan::{Action, Op};

/// Writes until the next plan, so that what becomes urgent meanwhile does not wait for thousands of others.
pub(super) const MOST: usize = 256;
/// Statuses that are written whatever else there is to do.
const FEW: usize = 32;

/// At most `most` of `actions`, in their order. Others act on objects, not on their statuses, so statuses come last: no
/// more than a quarter of what else is done, or [`FEW`]. Still additions, removals and statuses have a quarter of the
/// places each if they need it, so none of them waits for ever. Nothing of a kind is removed before everything of that
/// kind was added.
pub(super) fn choose(actions: Vec<Action>, most: usize) -> Vec<Action> {
    let class = |action: &Action| match action.op {
        Op::Create(_) | Op::Apply(_) | Op::Patch(_) => 0,
        Op::Delete { .. } => 1,
        Op::Status(_) => 2,
    };
    let mut asked = [0_usize; 3];
    for action in &actions {
        if let Some(asked) = asked.get_mut(class(action)) {
            *asked += 1;
        }
    }
    let [additions, removals, statuses] = asked;
    if additions + removals > 0 {
        asked[2] = statuses.min(FEW.max((additions + removals) / 4));
    }
    let mut places = asked.map(|asked| asked.min(most / 4));
    let mut left = most.saturating_sub(places.iter().sum());
    for (places, asked) in places.iter_mut().zip(asked) {
        let more = left.min(asked - *places);
        *places += more;
        left -= more;
    }
    let mut waiting = BTreeSet::new();
    let mut chosen: Vec<Action> = actions
        .into_iter()
        .filter(|action| {
            let place = places.get_mut(class(action)).filter(|places| **places > 0);
            let is_chosen = place.is_some();
            if let Some(places) = place {
                *places -= 1;
            } else if class(action) == 0 {
                waiting.insert(action.target.kind);
            }
            is_chosen
        })
        .collect();
    chosen.retain(|action| class(action) != 1 || !waiting.contains(&action.target.kind));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        body::Body,
        plan::{Kind, Side, Target},
    };

    fn actions(kind: Kind, op: &Op, count: usize) -> Vec<Action> {
        let action = |n: usize| Action {
            target: Target {
                side: Side::Local,
                kind,
                namespace: "shop".to_owned(),
                name: format!("{n}"),
            },
            op: op.clone(),
        };
        (0..count).map(action).collect()
    }

    #[test]
    fn of_much_to_do_a_part_is_done_and_everything_has_its_turn() {
        let (apply, status) = (Op::Apply(Body::default()), Op::Status(Body::default()));
        let delete = Op::Delete {
            uid: None,
            version: None,
        };
        let chosen = |additions: usize, removals: usize, statuses: usize| {
            let all = [
                actions(Kind::ServiceExport, &status, statuses),
                actions(Kind::ResourceExport, &apply, additions),
                actions(Kind::ResourceImport, &delete, removals),
            ]
            .concat();
            let chosen = choose(all, 100);
            let count = |kind| chosen.iter().filter(|a| a.target.kind == kind).count();
            [Kind::ResourceExport, Kind::ResourceImport, Kind::ServiceExport].map(count)
        };
        assert_eq!(chosen(30, 30, 32), [30, 30, 32], "little is done whole");
        assert_eq!(chosen(30, 30, 40), [30, 30, 32]);
        assert_eq!(chosen(0, 0, 90), [0, 0, 90]);
        assert_eq!(chosen(1000, 0, 0), [100, 0, 0]);
        assert_eq!(chosen(0, 0, 1000), [0, 0, 100]);
        assert_eq!(chosen(1000, 1000, 1000), [50, 25, 25]);
        assert_eq!(chosen(1000, 3, 1000), [72, 3, 25]);
        assert_eq!(chosen(40, 1000, 10), [40, 50, 10]);
    }

    #[test]
    fn nothing_is_removed_while_what_replaces_it_has_to_wait() {
        let delete = Op::Delete {
            uid: None,
            version: None,
        };
        let (slices, gateways) = (Kind::EndpointSlice, Kind::Gateway);
        let all = [
            actions(gateways, &Op::Apply(Body::default()), 2),
            actions(slices, &Op::Apply(Body::default()), 200),
            actions(slices, &delete, 10),
            actions(gateways, &delete, 1),
        ]
        .concat();
        let removed: Vec<_> = choose(all, 100)
            .into_iter()
            .filter(|a| matches!(a.op, Op::Delete { .. }))
            .map(|a| a.target.kind)
            .collect();
        assert_eq!(removed, [gateways]);
    }
}
