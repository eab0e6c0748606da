//! Issues in the log: once when they appear, once when they are resolved.

use std::collections::BTreeSet;

use tracing::{info, warn};

use crate::plan::Issue;

/// Logs changes of the set of issues.
#[derive(Debug, Default)]
pub struct IssueLogger {
    active: BTreeSet<Issue>,
}

// === impl IssueLogger ===

impl IssueLogger {
    /// Logs new and resolved issues; returns their numbers.
    pub fn update(&mut self, issues: Vec<Issue>) -> (usize, usize) {
        let issues: BTreeSet<_> = issues.into_iter().collect();
        let mut counts = (0, 0);
        for issue in issues.difference(&self.active) {
            warn!(
                code = issue.code.as_str(),
                subject = issue.subject,
                "{}",
                issue.message
            );
            counts.0 += 1;
        }
        for issue in self.active.difference(&issues) {
            info!(
                code = issue.code.as_str(),
                subject = issue.subject,
                "resolved: {}",
                issue.message
            );
            counts.1 += 1;
        }
        self.active = issues;
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue_code::IssueCode;

    #[test]
    fn each_issue_is_logged_once() {
        let issue = |m: &str| Issue {
            code: IssueCode::NotReady,
            subject: "Node a".to_owned(),
            message: m.to_owned(),
        };
        let mut logger = IssueLogger::default();
        assert_eq!(logger.update(vec![issue("x"), issue("x")]), (1, 0));
        assert_eq!(logger.update(vec![issue("x")]), (0, 0));
        assert_eq!(logger.update(vec![issue("y")]), (1, 1));
        assert_eq!(logger.update(vec![]), (0, 1));
    }
}
