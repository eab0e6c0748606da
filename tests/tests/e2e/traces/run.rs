//! A trace on both servers, compared response by response.

use std::fmt::Write as _;

use super::{
    body::{Kind, SELECTORS},
    object_ref::{NAMESPACES, ObjectRef},
    op::Op,
    server::{Outcome, Server},
};

/// Name of the object that ends a watch; sorts last.
const LAST: &str = "z-last";

/// A difference between the two servers.
#[derive(Debug)]
pub(super) struct Difference {
    /// Number of completed operations.
    pub(super) after: usize,
    what: String,
    model: Outcome,
    real: Outcome,
}

/// Number of comparisons.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) answers: usize,
    pub(super) events: usize,
}

/// Both servers.
pub(super) struct Pair {
    pub(super) model: Server,
    pub(super) real: Server,
    pub(super) counts: Counts,
}

// === impl Difference ===

impl Difference {
    /// A readable description.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{}\n", self.what);
        for (server, answer) in [("model", &self.model), ("real", &self.real)] {
            // Writing to a String cannot fail.
            _ = writeln!(text, "  {server}: {answer}");
        }
        text
    }
}

// === impl Pair ===

impl Pair {
    /// Runs a trace up to the first difference.
    pub(super) async fn run(&mut self, kinds: &[Kind], ops: &[Op]) -> Result<(), Difference> {
        for kind in kinds {
            self.compare_op(0, &Op::begin(*kind)).await?;
        }
        for (number, op) in ops.iter().enumerate() {
            self.compare_op(number + 1, op).await?;
        }
        let all = ops.len();
        for (number, kind) in kinds.iter().enumerate() {
            let ends = NAMESPACES.map(|namespace| ObjectRef::new(*kind, namespace, LAST));
            for end in &ends {
                self.compare_op(all, &Op::end(end.clone())).await?;
            }
            // All events, and those since a later list.
            let later = self.model.list_count() - 1 - number;
            for (list, everywhere, selector, end) in [
                (number, false, None, &ends[0]),
                (number, false, None, &ends[1]),
                (number, true, Some(SELECTORS[0]), &ends[1]),
                (later, true, Some(SELECTORS[1]), &ends[1]),
            ] {
                self.watch(all, list, everywhere, selector, end).await?;
            }
        }
        let objects: Vec<_> = self.model.objects().cloned().collect();
        for op in objects.iter().flat_map(Op::clear) {
            self.compare_op(all, &op).await?;
        }
        let (model, real) = (self.model.order(), self.real.order());
        compare_outcomes(all, || "the order of versions".to_owned(), model, real)
    }

    async fn compare_op(&mut self, after: usize, op: &Op) -> Result<(), Difference> {
        let (model, real) = (self.model.run(op).await, self.real.run(op).await);
        self.counts.answers += 1;
        compare_outcomes(after, || op.to_string(), model, real)
    }

    async fn watch(
        &mut self,
        after: usize,
        list: usize,
        everywhere: bool,
        selector: Option<&str>,
        end: &ObjectRef,
    ) -> Result<(), Difference> {
        let model = self.model.watch(list, everywhere, selector, end).await;
        let real = self.real.watch(list, everywhere, selector, end).await;
        self.counts.events += model.as_array().map_or(0, Vec::len);
        let what = || format!("watch until {end}, everywhere {everywhere}, {selector:?}");
        if let (Some(ours), Some(theirs)) = (model.as_array(), real.as_array())
            && let Some(at) = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))
        {
            let [ours, theirs] = [ours, theirs].map(|events| events.get(at).cloned().unwrap_or_default());
            return compare_outcomes(after, || format!("{}, event {at}", what()), ours, theirs);
        }
        compare_outcomes(after, what, model, real)
    }
}

fn compare_outcomes(
    after: usize,
    what: impl Fn() -> String,
    model: Outcome,
    real: Outcome,
) -> Result<(), Difference> {
    if model == real {
        return Ok(());
    }
    let what = what();
    Err(Difference {
        after,
        what,
        model,
        real,
    })
}
