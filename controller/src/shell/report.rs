//! Notices in the log: once when they begin, once when they end.

use std::collections::BTreeSet;

use tracing::{info, warn};

use crate::plan::Notice;

/// The notices that hold now.
#[derive(Debug, Default)]
pub struct Reporter {
    standing: BTreeSet<Notice>,
}

// === impl Reporter ===

impl Reporter {
    /// Logs what is new and what is over; returns how many of each.
    pub fn report(&mut self, notices: Vec<Notice>) -> (usize, usize) {
        let now: BTreeSet<_> = notices.into_iter().collect();
        let mut counts = (0, 0);
        for notice in now.difference(&self.standing) {
            warn!(subject = notice.subject, "{}", notice.message);
            counts.0 += 1;
        }
        for notice in self.standing.difference(&now) {
            info!(subject = notice.subject, "no longer: {}", notice.message);
            counts.1 += 1;
        }
        self.standing = now;
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_is_logged_once() {
        let notice = |m: &str| Notice {
            subject: "Node a".to_owned(),
            message: m.to_owned(),
        };
        let mut reporter = Reporter::default();
        assert_eq!(reporter.report(vec![notice("x"), notice("x")]), (1, 0));
        assert_eq!(reporter.report(vec![notice("x")]), (0, 0));
        assert_eq!(reporter.report(vec![notice("y")]), (1, 1));
        assert_eq!(reporter.report(vec![]), (0, 1));
    }
}
