//! Metrics of the exchanges with one API server.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::plan::{Kind, ObjectRef, Write};

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteResult {
    /// Success.
    Done,
    /// The object had changed.
    Conflict,
    /// The API server rejected the write.
    Rejected,
    /// The API server was overloaded or failed.
    Throttled,
    /// No answer, not authenticated, or the fence was closed.
    Unreachable,
}

/// Metrics of one API server, of all connections of the process.
#[derive(Debug, Default)]
pub struct ApiMetrics(Mutex<ApiMetricsSnapshot>);

/// The values of [`ApiMetrics`].
#[derive(Clone, Debug, Default)]
pub struct ApiMetricsSnapshot {
    /// The time of the last answer.
    pub last_contact: Option<Instant>,
    /// The time at which a write last ended, with any result.
    pub progress: Option<Instant>,
    /// Completed writes.
    pub writes: BTreeMap<(Kind, WriteResult), u64>,
    /// Writes of the last plan that have not succeeded, with the time of the first plan that contained them.
    pub pending: BTreeMap<ObjectRef, Instant>,
    /// Objects whose writes failed more than once.
    pub failing: BTreeMap<Kind, u64>,
    /// Watches restarted after an error, by kind.
    pub watch_restarts: BTreeMap<String, u64>,
    /// Published Events.
    pub events_published: u64,
    /// Failed attempts to publish an Event.
    pub events_failed: u64,
}

// === impl Fate ===

impl WriteResult {
    /// The name in labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
            Self::Throttled => "throttled",
            Self::Unreachable => "unreachable",
        }
    }
}

// === impl Counted ===

impl ApiMetricsSnapshot {
    fn set_pending(&mut self, writes: &[Write], now: Instant) {
        let old = std::mem::take(&mut self.pending);
        let since = |target: &ObjectRef| old.get(target).copied().unwrap_or(now);
        self.pending = writes
            .iter()
            .map(|a| (a.target.clone(), since(&a.target)))
            .collect();
    }
}

// === impl Tally ===

impl ApiMetrics {
    /// Records an answer.
    pub fn contacted(&self) {
        self.lock().last_contact = Some(Instant::now());
    }

    /// Records the end of a write.
    pub fn progress(&self) {
        self.lock().progress = Some(Instant::now());
    }

    /// Replaces the pending writes.
    pub fn set_pending(&self, writes: &[Write]) {
        self.lock().set_pending(writes, Instant::now());
    }

    /// Records the result of a write.
    pub fn write(&self, target: &ObjectRef, fate: WriteResult) {
        let mut counted = self.lock();
        if fate == WriteResult::Done {
            counted.pending.remove(target);
        }
        let count = counted.writes.entry((target.kind, fate)).or_default();
        *count = count.saturating_add(1);
    }

    /// Replaces the persistently failing writes.
    pub fn set_failing<'a>(&self, targets: impl Iterator<Item = &'a ObjectRef>) {
        let mut failing = BTreeMap::new();
        for target in targets {
            let count: &mut u64 = failing.entry(target.kind).or_default();
            *count = count.saturating_add(1);
        }
        self.lock().failing = failing;
    }

    /// Clears the state of a closed connection.
    pub fn reset(&self) {
        let mut counted = self.lock();
        counted.pending.clear();
        counted.failing.clear();
        counted.last_contact = None;
    }

    /// Records the restart of a watch.
    pub fn watch_restarted(&self, kind: &str) {
        let mut counted = self.lock();
        let count = counted.watch_restarts.entry(kind.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// Records an attempt to publish an Event.
    pub fn event_published(&self, done: bool) {
        let mut counted = self.lock();
        let counted = &mut *counted;
        let count = if done {
            &mut counted.events_published
        } else {
            &mut counted.events_failed
        };
        *count = count.saturating_add(1);
    }

    /// The present values.
    #[must_use]
    pub fn snapshot(&self) -> ApiMetricsSnapshot {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, ApiMetricsSnapshot> {
        // Every change leaves the values consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{ApiServer, WriteOp};

    fn action(name: &str) -> Write {
        Write {
            target: ObjectRef {
                side: ApiServer::Local,
                kind: Kind::Service,
                namespace: "n".to_owned(),
                name: name.to_owned(),
            },
            op: WriteOp::Delete {
                uid: None,
                version: None,
            },
        }
    }

    #[test]
    fn a_pending_write_ages_from_its_first_plan() {
        let tally = ApiMetrics::default();
        let start = Instant::now();
        let later = start + Duration::from_secs(3);
        tally.lock().set_pending(&[action("a"), action("b")], start);
        tally.write(&action("a").target, WriteResult::Rejected);
        tally.write(&action("b").target, WriteResult::Done);
        tally.lock().set_pending(&[action("a"), action("c")], later);
        let counted = tally.snapshot();
        assert_eq!(
            counted.pending,
            [(action("a").target, start), (action("c").target, later)].into()
        );
        assert_eq!(
            counted.writes,
            [
                ((Kind::Service, WriteResult::Done), 1),
                ((Kind::Service, WriteResult::Rejected), 1)
            ]
            .into()
        );
        tally.set_failing([&action("a").target].into_iter());
        assert_eq!(tally.snapshot().failing, [(Kind::Service, 1)].into());
        tally.reset();
        let counted = tally.snapshot();
        assert!(counted.pending.is_empty() && counted.failing.is_empty() && counted.writes.len() == 2);
    }
}
