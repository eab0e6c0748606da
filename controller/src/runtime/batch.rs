//! Selects the next batch of pending writes.

use std::collections::BTreeSet;

use crate::plan::{Write, WriteOp};

/// Writes per plan, so that an urgent one does not wait for thousands of others.
pub(super) const MAX_BATCH: usize = 256;
/// Status writes of a batch, regardless of the number of others.
const MIN_STATUS_WRITES: usize = 32;

/// At most `most` of `writes`, in their order.
///
/// Other controllers act on objects, not on their statuses: statuses get at most a quarter of the number of the other
/// writes, or [`MIN_STATUS_WRITES`]. Additions, removals and statuses have a quarter of the batch each if they need it,
/// so that none of them starves. Objects of a kind are removed only after all additions of that kind.
pub(super) fn select_batch(writes: Vec<Write>, most: usize) -> Vec<Write> {
    let class = |action: &Write| match action.op {
        WriteOp::Create(_) | WriteOp::Apply(_) | WriteOp::Patch(_) => 0,
        WriteOp::Delete { .. } => 1,
        WriteOp::Status(_) => 2,
    };
    let mut demand = [0_usize; 3];
    for action in &writes {
        if let Some(count) = demand.get_mut(class(action)) {
            *count += 1;
        }
    }
    let [additions, removals, statuses] = demand;
    if additions + removals > 0 {
        demand[2] = statuses.min(MIN_STATUS_WRITES.max((additions + removals) / 4));
    }
    let mut places = demand.map(|count| count.min(most / 4));
    let mut left = most.saturating_sub(places.iter().sum());
    for (places, count) in places.iter_mut().zip(demand) {
        let more = left.min(count - *places);
        *places += more;
        left -= more;
    }
    let mut waiting = BTreeSet::new();
    let mut chosen: Vec<Write> = writes
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
        plan::{ApiServer, Kind, ObjectRef},
        raw_json::RawJson,
    };

    fn writes(kind: Kind, op: &WriteOp, count: usize) -> Vec<Write> {
        let action = |n: usize| Write {
            target: ObjectRef {
                side: ApiServer::Local,
                kind,
                namespace: "shop".to_owned(),
                name: format!("{n}"),
            },
            op: op.clone(),
        };
        (0..count).map(action).collect()
    }

    #[test]
    fn no_class_of_writes_starves() {
        let (apply, status) = (
            WriteOp::Apply(RawJson::default()),
            WriteOp::Status(RawJson::default()),
        );
        let delete = WriteOp::Delete {
            uid: None,
            version: None,
        };
        let chosen = |additions: usize, removals: usize, statuses: usize| {
            let all = [
                writes(Kind::ServiceExport, &status, statuses),
                writes(Kind::ResourceExport, &apply, additions),
                writes(Kind::ResourceImport, &delete, removals),
            ]
            .concat();
            let chosen = select_batch(all, 100);
            let count = |kind| chosen.iter().filter(|a| a.target.kind == kind).count();
            [Kind::ResourceExport, Kind::ResourceImport, Kind::ServiceExport].map(count)
        };
        assert_eq!(chosen(30, 30, 32), [30, 30, 32], "a small demand is met in full");
        assert_eq!(chosen(30, 30, 40), [30, 30, 32]);
        assert_eq!(chosen(0, 0, 90), [0, 0, 90]);
        assert_eq!(chosen(1000, 0, 0), [100, 0, 0]);
        assert_eq!(chosen(0, 0, 1000), [0, 0, 100]);
        assert_eq!(chosen(1000, 1000, 1000), [50, 25, 25]);
        assert_eq!(chosen(1000, 3, 1000), [72, 3, 25]);
        assert_eq!(chosen(40, 1000, 10), [40, 50, 10]);
    }

    #[test]
    fn nothing_is_removed_before_its_replacement_is_written() {
        let delete = WriteOp::Delete {
            uid: None,
            version: None,
        };
        let (slices, gateways) = (Kind::EndpointSlice, Kind::Gateway);
        let all = [
            writes(gateways, &WriteOp::Apply(RawJson::default()), 2),
            writes(slices, &WriteOp::Apply(RawJson::default()), 200),
            writes(slices, &delete, 10),
            writes(gateways, &delete, 1),
        ]
        .concat();
        let removed: Vec<_> = select_batch(all, 100)
            .into_iter()
            .filter(|a| matches!(a.op, WriteOp::Delete { .. }))
            .map(|a| a.target.kind)
            .collect();
        assert_eq!(removed, [gateways]);
    }
}
