//! What was asked of one API server, and what came of it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::plan::{Action, Kind, Target};

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Done.
    Done,
    /// The object was not what it was taken for.
    Stale,
    /// Answered with no.
    Refused,
    /// Answered with not now.
    Busy,
    /// Not answered, or not allowed to be asked.
    Unreachable,
}

/// Counts of one API server; they live as long as the process, over all connections.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Counted>);

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// When it last answered.
    pub answered: Option<Instant>,
    /// When a write last ended, in whatever way.
    pub progress: Option<Instant>,
    /// Writes that ended.
    pub writes: BTreeMap<(Kind, Fate), u64>,
    /// What the last plan asked for and was not done yet, and since when plans ask for it.
    pub pending: BTreeMap<Target, Instant>,
    /// Objects that could not be written, more than once.
    pub failing: BTreeMap<Kind, u64>,
    /// Watches that ended in an error and were begun again, by kind.
    pub watch_restarts: BTreeMap<String, u64>,
    /// Events that were told.
    pub told: u64,
    /// Events that could not be told when it was tried.
    pub untold: u64,
}

// === impl Fate ===

impl Fate {
    /// As labels name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Stale => "stale",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Unreachable => "unreachable",
        }
    }
}

// === impl Counted ===

impl Counted {
    fn ask(&mut self, actions: &[Action], now: Instant) {
        let old = std::mem::take(&mut self.pending);
        let since = |target: &Target| old.get(target).copied().unwrap_or(now);
        self.pending = actions
            .iter()
            .map(|a| (a.target.clone(), since(&a.target)))
            .collect();
    }
}

// === impl Tally ===

impl Tally {
    /// It answered.
    pub fn answered(&self) {
        self.lock().answered = Some(Instant::now());
    }

    /// A request of a batch ended.
    pub fn progress(&self) {
        self.lock().progress = Some(Instant::now());
    }

    /// A plan asks for this, and for nothing else.
    pub fn ask(&self, actions: &[Action]) {
        self.lock().ask(actions, Instant::now());
    }

    /// A write ended like this.
    pub fn write(&self, target: &Target, fate: Fate) {
        let mut counted = self.lock();
        if fate == Fate::Done {
            counted.pending.remove(target);
        }
        let count = counted.writes.entry((target.kind, fate)).or_default();
        *count = count.saturating_add(1);
    }

    /// These cannot be written.
    pub fn failing<'a>(&self, targets: impl Iterator<Item = &'a Target>) {
        let mut failing = BTreeMap::new();
        for target in targets {
            let count: &mut u64 = failing.entry(target.kind).or_default();
            *count = count.saturating_add(1);
        }
        self.lock().failing = failing;
    }

    /// There is nobody to ask any more.
    pub fn parted(&self) {
        let mut counted = self.lock();
        counted.pending.clear();
        counted.failing.clear();
        counted.answered = None;
    }

    /// A watch begins again.
    pub fn watch_restarted(&self, kind: &str) {
        let mut counted = self.lock();
        let count = counted.watch_restarts.entry(kind.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// An Event was told, or not.
    pub fn told(&self, done: bool) {
        let mut counted = self.lock();
        let counted = &mut *counted;
        let count = if done {
            &mut counted.told
        } else {
            &mut counted.untold
        };
        *count = count.saturating_add(1);
    }

    /// Everything, as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Counted {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        // Every change is complete on its own.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Op, Side};

    fn action(name: &str) -> Action {
        Action {
            target: Target {
                side: Side::Local,
                kind: Kind::Service,
                namespace: "n".to_owned(),
                name: name.to_owned(),
            },
            op: Op::Delete {
                uid: None,
                version: None,
            },
        }
    }

    #[test]
    fn what_is_asked_for_again_waits_since_the_first_time() {
        let tally = Tally::default();
        let start = Instant::now();
        let later = start + Duration::from_secs(3);
        tally.lock().ask(&[action("a"), action("b")], start);
        tally.write(&action("a").target, Fate::Refused);
        tally.write(&action("b").target, Fate::Done);
        tally.lock().ask(&[action("a"), action("c")], later);
        let counted = tally.snapshot();
        assert_eq!(
            counted.pending,
            [(action("a").target, start), (action("c").target, later)].into()
        );
        assert_eq!(
            counted.writes,
            [
                ((Kind::Service, Fate::Done), 1),
                ((Kind::Service, Fate::Refused), 1)
            ]
            .into()
        );
        tally.failing([&action("a").target].into_iter());
        assert_eq!(tally.snapshot().failing, [(Kind::Service, 1)].into());
        tally.parted();
        let counted = tally.snapshot();
        assert!(counted.pending.is_empty() && counted.failing.is_empty() && counted.writes.len() == 2);
    }
}
