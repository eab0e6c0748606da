//! A trace on both servers, compared answer by answer.

use std::fmt::Write as _;

use super::{
    body::{Kind, SELECTORS},
    op::Op,
    place::{Place, SPACES},
    side::{Answer, Side},
};

/// The name of the object that ends a watch; after all others in a list.
const LAST: &str = "z-last";

/// What the two said.
#[derive(Debug)]
pub(super) struct Difference {
    /// After how many operations of the trace.
    pub(super) after: usize,
    what: String,
    model: Answer,
    real: Answer,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) answers: usize,
    pub(super) events: usize,
}

/// Both servers.
pub(super) struct Pair {
    pub(super) model: Side,
    pub(super) real: Side,
    pub(super) counts: Counts,
}

// === impl Difference ===

impl Difference {
    /// For people.
    pub(super) fn tell(&self) -> String {
        let mut text = format!("{}\n", self.what);
        for (who, answer) in [("model", &self.model), ("real", &self.real)] {
            // Writing to a String cannot fail.
            _ = writeln!(text, "  {who}: {answer}");
        }
        text
    }
}

// === impl Pair ===

impl Pair {
    /// Everything a trace asks for; the first difference ends it.
    pub(super) async fn run(&mut self, kinds: &[Kind], ops: &[Op]) -> Result<(), Difference> {
        for kind in kinds {
            self.same(0, &Op::begin(*kind)).await?;
        }
        for (number, op) in ops.iter().enumerate() {
            self.same(number + 1, op).await?;
        }
        let all = ops.len();
        for (number, kind) in kinds.iter().enumerate() {
            let ends = SPACES.map(|space| Place::new(*kind, space, LAST));
            for end in &ends {
                self.same(all, &Op::end(end.clone())).await?;
            }
            // All that happened, and what happened since some list.
            let later = self.model.lists() - 1 - number;
            for (list, everywhere, selector, end) in [
                (number, false, None, &ends[0]),
                (number, false, None, &ends[1]),
                (number, true, Some(SELECTORS[0]), &ends[1]),
                (later, true, Some(SELECTORS[1]), &ends[1]),
            ] {
                self.watch(all, list, everywhere, selector, end).await?;
            }
        }
        let places: Vec<_> = self.model.places().cloned().collect();
        for op in places.iter().flat_map(Op::clear) {
            self.same(all, &op).await?;
        }
        let (model, real) = (self.model.order(), self.real.order());
        differ(all, || "the order of versions".to_owned(), model, real)
    }

    async fn same(&mut self, after: usize, op: &Op) -> Result<(), Difference> {
        let (model, real) = (self.model.run(op).await, self.real.run(op).await);
        self.counts.answers += 1;
        differ(after, || op.to_string(), model, real)
    }

    async fn watch(
        &mut self,
        after: usize,
        list: usize,
        everywhere: bool,
        selector: Option<&str>,
        end: &Place,
    ) -> Result<(), Difference> {
        let model = self.model.watch(list, everywhere, selector, end).await;
        let real = self.real.watch(list, everywhere, selector, end).await;
        self.counts.events += model.as_array().map_or(0, Vec::len);
        let what = || format!("watch until {end}, everywhere {everywhere}, {selector:?}");
        if let (Some(ours), Some(theirs)) = (model.as_array(), real.as_array())
            && let Some(at) = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))
        {
            let [ours, theirs] = [ours, theirs].map(|events| events.get(at).cloned().unwrap_or_default());
            return differ(after, || format!("{}, event {at}", what()), ours, theirs);
        }
        differ(after, what, model, real)
    }
}

fn differ(after: usize, what: impl Fn() -> String, model: Answer, real: Answer) -> Result<(), Difference> {
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
